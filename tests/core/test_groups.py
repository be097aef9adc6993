"""Targets of few levels are the matrices they stand for, and stream in the memory of vectors."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import gcalign
from gcalign import KL, Alignment, Blocks, Columns, Cosine, Hierarchy, Labels, Robust, Rows, Side, Sides, Weighted
from gcalign.transport.support import Groups

N = 9
KNOWN = {
    "labels": torch.tensor([3, 1, 3, 1, 7, 7, 3, 1, 7]),
    "domains": torch.tensor([0, 0, 2, 2, 2, 0, 5, 5, 0]),
    "weights": torch.linspace(0.5, 2, N, dtype=torch.float64),
}
LEVELS = torch.stack([KNOWN["domains"], KNOWN["labels"]], 1)
TARGETS = {
    "labels": Labels(),
    "labels, counted": Labels(normalized=False),
    "blocks": Blocks(0.3, 0.1),
    "blocks, without others": Blocks(0.2),
    "hierarchy": Hierarchy((0.1, 0.5)),
    "weighted": Weighted(Blocks(0.3, 0.1)),
}


def side(labels: torch.Tensor) -> Side:
    return Side(
        torch.zeros(N, 2, dtype=torch.float64), labels=labels, domains=KNOWN["domains"], weights=KNOWN["weights"]
    )


def entry(name: str, i: int, j: int, *, same: bool) -> float:
    """T_ij by the definitions, before rows are normalised."""
    y, d, w = (KNOWN[key].tolist() for key in ("labels", "domains", "weights"))
    i, j = i % N, j % N
    if name.startswith("labels"):
        return float(y[i] == y[j])
    if name == "hierarchy":
        return 1.0 if same else 0.5 if (d[i], y[i]) == (d[j], y[j]) else 0.1 if d[i] == d[j] else 0.0
    alpha, beta = (0.2, 0.0) if name == "blocks, without others" else (0.3, 0.1)
    value = 1.0 if same else alpha if d[i] == d[j] else beta
    return value * (w[i] * w[j]) ** 0.5 if name == "weighted" else value


@pytest.mark.parametrize("layout", ["cross", "joint"])
@pytest.mark.parametrize("name", TARGETS)
def test_groups_are_the_matrix_of_the_definition(name, layout):
    one = side(LEVELS if name == "hierarchy" else KNOWN["labels"])
    sides = Sides.in_cross(one, one) if layout == "cross" else Sides.in_joint(one, one)
    t = TARGETS[name].on(sides, torch.float64)
    assert isinstance(t, Groups)
    n, m = sides.shape
    matrix = torch.tensor(
        [
            [0.0 if layout == "joint" and i == j else entry(name, i, j, same=i % N == j % N) for j in range(m)]
            for i in range(n)
        ],
        dtype=torch.float64,
    )
    if name == "labels":
        matrix = matrix / matrix.sum(1, keepdim=True)
    exact = {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(t.dense(), matrix, **exact)
    assert ((t.dense() == 0) == (matrix == 0)).all()  # zeros are exact: log P may be −∞ there
    x, y = torch.randn(m, 3, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    torch.testing.assert_close(t.dot(x), matrix @ x, **exact)
    torch.testing.assert_close(t.tdot(y), matrix.T @ y, **exact)
    torch.testing.assert_close(t.mu, matrix.sum(1), **exact)
    torch.testing.assert_close(t.nu, matrix.sum(0), **exact)
    torch.testing.assert_close(t.entropy(), torch.xlogy(matrix, matrix).sum(1), **exact)
    torch.testing.assert_close(t.rows(2, 5), matrix[2:5], **exact)
    torch.testing.assert_close(t.transposed().dense(), matrix.T, **exact)


@pytest.mark.parametrize("layout", ["cross", "joint"])
@pytest.mark.parametrize("divergence", [KL(), KL() + 0.5 * Robust(0.5, 0.1)], ids=repr)
@pytest.mark.parametrize("name", ["labels", "blocks", "hierarchy"])
def test_a_target_in_groups_gives_what_its_matrix_gives(name, divergence, layout):
    generator = torch.Generator().manual_seed(0)
    z1, z2 = torch.randn(2, N, 4, generator=generator, dtype=torch.float64)
    labels = LEVELS if name == "hierarchy" else KNOWN["labels"]
    known = {"labels": labels} if name != "blocks" else {"domains": KNOWN["domains"]}
    one = side(labels)
    sides = Sides.in_cross(one, one) if layout == "cross" else Sides.in_joint(one, one)
    matrix = TARGETS[name].on(sides, torch.float64).dense()

    def run(target, block, **said):
        leaves = [z.clone().requires_grad_() for z in (z1, z2)]
        criterion = Alignment(Cosine(0.4), (Rows(), Columns(0.5)), divergence, target, layout=layout, block=block)
        loss = criterion(*leaves, **said)
        return loss.detach(), *torch.autograd.grad(loss, leaves)

    expected = run(matrix, None)
    for block in (None, 4):
        torch.testing.assert_close(run(TARGETS[name], block, **known), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_a_target_in_groups_streams_in_little_memory():
    code = """
import resource, torch, gcalign
torch.set_num_threads(2)
n = 16384
z1, z2 = torch.randn(n, 64, requires_grad=True), torch.randn(n, 64, requires_grad=True)
domains = torch.arange(n) % 4
criterion = gcalign.method("gca-ince", target=gcalign.Blocks(0.001), block=256, iterations=3)
gcalign.method("gca-ince", target=gcalign.Blocks(0.001), block=64)(z1[:256], z2[:256], domains=domains[:256]).backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
criterion(z1, z2, domains=domains).backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(found) < 600


def test_a_constraint_set_that_cannot_stream_says_so():
    sets = (Rows(), Columns(), gcalign.Capacity(0.9))
    z = torch.randn(6, 3)
    with pytest.raises(ValueError, match="block=2 "):
        Alignment(Cosine(0.5), sets, KL(), block=2)(z, z)


@pytest.mark.parametrize("name", gcalign.methods.names())
@pytest.mark.parametrize("layout", ["cross", "joint"])
def test_the_loss_of_each_row_has_the_loss_for_its_mean_and_its_own_gradient(name, layout):
    generator = torch.Generator().manual_seed(0)
    z1, z2 = (z.requires_grad_() for z in torch.randn(2, 6, 4, generator=generator, dtype=torch.float64))
    known = {"labels": torch.arange(6) // 2} if name == "supcon" else {}
    rows = gcalign.method(name, layout=layout, reduction="none")
    whole, oracle = (
        gcalign.method(name, layout=layout),
        gcalign.method(name, layout=layout, reduction="none", gradient="unrolled"),
    )
    each = rows(z1, z2, **known)
    assert each.shape == ((6,) if layout == "cross" else (12,))
    torch.testing.assert_close(each.mean(), whole(z1, z2, **known), rtol=1e-9, atol=1e-12)
    weights = torch.linspace(0, 1, len(each), dtype=torch.float64)
    got = torch.autograd.grad((weights * each).sum(), (z1, z2))
    want = torch.autograd.grad((weights * oracle(z1, z2, **known)).sum(), (z1, z2))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-7)


def test_a_plan_is_data(tmp_path):
    z1, z2 = torch.randn(2, 8, 4)
    for criterion in (gcalign.method("gca-uot"), gcalign.method("supcon")):
        known = {"labels": torch.arange(8) // 2} if "Labels" in repr(criterion) else {}
        plan = criterion.plan(z1, z2, **known)
        torch.save(plan, tmp_path / "plan.pt")
        again = torch.load(tmp_path / "plan.pt", weights_only=False)
        assert torch.equal(again.log, plan.log)
        assert repr(again) == repr(plan)
        double = plan.to(torch.float64)
        assert double.log.dtype == double.target.mu.dtype == torch.float64
        assert (double.iterations, double.converged) == (plan.iterations, plan.converged)
    log_k = torch.randn(3, 3, requires_grad=True)
    plan = gcalign.solve(log_k)
    assert plan.log.requires_grad
    assert not plan.detach().log.requires_grad
