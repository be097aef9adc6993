"""torch sees one operator: compiled and eager are the same loss and gradient in every mode, alone and in a group."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

import gcalign
from processes import needs_gloo, ranks

OLD = torch.__version__.startswith("2.6.")
since_2_7 = pytest.mark.skipif(OLD, reason="torch 2.6 refuses to trace it: see Versions in docs/reliability.md")
CASES = [
    ("gca-ince", {"gradient": "envelope", "iterations": 300}),
    ("gca-uot", {"gradient": "implicit", "iterations": 300}),
    ("gca-uot", {"gradient": "truncated", "iterations": 5}),
    ("gca-ince", {"gradient": "unrolled", "tol": 0.0}),
    ("gca-rince", {"eps": 0.05, "iterations": 300}),
    ("gca-uot", {"eps": 0.004}),  # leaves the range of plain scalings
    ("gca-uot", {"block": 7}),
    ("gca-ince", {"block": 7, "cache": "half"}),
    ("gca-uot", {"reduction": "none"}),
    *((name, {}) for name in gcalign.methods.names()),
    *(pytest.param(name, {"layout": "joint"}, marks=pytest.mark.slow) for name in gcalign.methods.names()),
]


def batch(n: int = 20, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    z1, noise = torch.randn(2, n, 6, generator=generator, dtype=torch.float64).to(dtype)
    return z1, z1 + noise


def differentiated(criterion, z1: Tensor, z2: Tensor, **known: Tensor) -> list[Tensor]:
    leaves = [z.clone().requires_grad_() for z in (z1, z2)]
    loss = criterion(*leaves, **known)
    weights = torch.linspace(1, 2, loss.numel(), dtype=loss.dtype).view_as(loss)  # so that rows count differently
    return [loss.detach(), *torch.autograd.grad((weights * loss).sum(), leaves)]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for got, want in zip(found, expected, strict=True):
        assert (got - want).norm() <= 1e-6 * want.norm()


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_compiled_is_eager_in_every_mode_and_method(name, options):
    if OLD and name in ("iot-uni", "supcon"):
        pytest.skip("torch 2.6 refuses to trace it: see Versions in docs/reliability.md")
    torch._dynamo.reset()
    criterion = gcalign.method(name, **options)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    known = {"labels": torch.arange(20) // 4} if name == "supcon" else {}
    assert_same(differentiated(compiled, *batch(), **known), differentiated(criterion, *batch(), **known))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("name", ["ince", "gca-ince", "gca-uot"])
def test_compiled_to_machine_code_is_eager(name):
    torch._dynamo.reset()
    criterion = gcalign.method(name)
    assert_same(differentiated(torch.compile(criterion, fullgraph=True), *batch()), differentiated(criterion, *batch()))


def test_one_process_compiles_several_criteria():
    torch._dynamo.reset()
    for criterion in (
        gcalign.method("gca-ince"),
        gcalign.method("gca-uot"),
        gcalign.method("gca-uot", relax=(1.0, 2.0)),
    ):
        compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
        assert_same(differentiated(compiled, *batch()), differentiated(criterion, *batch()))


@since_2_7
@pytest.mark.parametrize("target", [gcalign.Labels(), gcalign.Blocks(0.3, 0.1)], ids=repr)
@pytest.mark.parametrize("divergence", [gcalign.KL(), gcalign.KL() + gcalign.Robust(0.5, 0.1)], ids=repr)
def test_targets_in_groups_compile_and_have_their_gradient(target, divergence):
    torch._dynamo.reset()
    known = {"labels": torch.arange(20) // 4, "domains": torch.arange(20) % 3}
    known = {name: value for name, value in known.items() if name in target.reads}
    sets = (gcalign.Rows(), gcalign.Columns())
    criterion = gcalign.Alignment(gcalign.Cosine(0.5), sets, divergence, target, block=6)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    assert_same(differentiated(compiled, *batch(), **known), differentiated(criterion, *batch(), **known))


SUMS_AND_MASS = (gcalign.Rows(0.2), gcalign.Columns(0.2), gcalign.TotalMass(at_least=True))


@pytest.mark.parametrize("gradient", ["auto", "unrolled"])
@pytest.mark.parametrize("divergence", [gcalign.KL() + gcalign.Robust(0.5, 0.1), gcalign.SquaredL2()], ids=repr)
def test_a_target_with_an_empty_row_is_refused_by_compiled_code_in_every_mode(divergence, gradient):
    torch._dynamo.reset()
    criterion = gcalign.Alignment(gcalign.Cosine(0.1), SUMS_AND_MASS, divergence, gradient=gradient)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    target = torch.eye(20, dtype=torch.float64)
    target[0, 1] = 0.5
    assert_same(differentiated(compiled, *batch(), target=target), differentiated(criterion, *batch(), target=target))
    target[:, 3] = 0
    with pytest.raises((ValueError, RuntimeError), match="has no positive"):
        compiled(*batch(), target=target)


def test_total_mass_and_powers_of_a_matrix_need_no_autograd_through_iterations():
    criterion = gcalign.Alignment(gcalign.Cosine(0.1), SUMS_AND_MASS, gcalign.KL() + gcalign.Robust(0.5, 0.1))
    unrolled = gcalign.Alignment(gcalign.Cosine(0.1), SUMS_AND_MASS, criterion.divergence, gradient="unrolled")
    target = torch.eye(20, dtype=torch.float64)
    target[0, 1], target[4, 2] = 0.5, 0.1
    assert criterion.explain(*batch(), target=target).mode != "unrolled"
    assert_same(differentiated(criterion, *batch(), target=target), differentiated(unrolled, *batch(), target=target))


def test_a_batch_of_another_size_is_compiled_right():
    torch._dynamo.reset()
    criterion = gcalign.method("gca-uot", layout="joint")
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    for n in (20, 12, 33):
        assert_same(differentiated(compiled, *batch(n)), differentiated(criterion, *batch(n)))


@since_2_7
def test_torch_func_says_what_to_do():
    z1, z2 = batch()
    with pytest.raises(RuntimeError, match=r"with torch\.func use gradient='unrolled'"):
        torch.func.grad(gcalign.method("gca-uot"))(z1, z2)
    unrolled = gcalign.method("gca-uot", gradient="unrolled")
    assert_same([torch.func.grad(unrolled)(z1, z2)], differentiated(unrolled, z1, z2)[1:2])


@since_2_7
def test_a_warm_start_is_refused_under_compile():
    torch._dynamo.reset()
    criterion = torch.compile(gcalign.method("gca-ince", warm_start=True), fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"warm_start=True is not for torch\.compile"):
        criterion(*batch(), ids=torch.arange(20))


# --- in a process group ---------------------------------------------------------------------------------------


def group_main(rank):
    mine = slice(10 * rank, 10 * rank + 10)
    criterion = gcalign.method("gca-uot")
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    found = differentiated(compiled, *(z[mine] for z in batch()))
    with pytest.raises(RuntimeError, match=r"under torch\.compile all must be equally long"):
        torch.compile(gcalign.method("gca-ince"), fullgraph=True, backend="aot_eager")(
            *(z[: 10 + rank] for z in batch())
        )
    return found


@needs_gloo
def test_a_compiled_criterion_joins_the_batches_of_all_ranks(tmp_path):
    loss, grad_1, grad_2 = differentiated(gcalign.method("gca-uot"), *batch())
    found = ranks(group_main, tmp_path)
    for rank in found:
        torch.testing.assert_close(rank[0], loss)
    for k, grad in ((1, grad_1), (2, grad_2)):  # DDP divides by the number of ranks
        torch.testing.assert_close(torch.cat([rank[k] for rank in found]) / 2, grad)


def subgroup_main(rank):
    pair = dist.new_group([0, 1])  # a call for all ranks
    mine = slice(10 * rank, 10 * rank + 10)
    return gcalign.method("gca-uot", gather=pair)(*(z[mine] for z in batch())) if rank < 2 else None


@needs_gloo
def test_a_process_group_joins_the_batches_of_its_own_ranks(tmp_path):
    loss = gcalign.method("gca-uot")(*batch())
    for found in ranks(subgroup_main, tmp_path, 3)[:2]:
        torch.testing.assert_close(found, loss)


def alone_main(rank):
    plan = gcalign.method("gca-uot").plan(*batch()).matrix if rank == 0 else None  # nobody waits for the other
    dist.barrier()
    mine = slice(10 * rank, 10 * rank + 10)
    assert gcalign.method("gca-uot").plan(*(z[mine] for z in batch()), gather=True).shape == (20, 20)
    return plan


@needs_gloo
def test_one_rank_alone_can_look_at_its_plan(tmp_path):
    expected = gcalign.method("gca-uot").plan(*batch()).matrix
    torch.testing.assert_close(ranks(alone_main, tmp_path)[0], expected)


# --- bad input ------------------------------------------------------------------------------------------------

BAD = {
    "a NaN row": (lambda z: z.index_fill(0, torch.tensor(2), torch.nan), {}, "embedding 2 of the plan's rows has NaN"),
    "an Inf row": (lambda z: z.index_fill(0, torch.tensor(1), torch.inf), {}, "embedding 1 of the plan's rows has NaN"),
    "a zero weight": (
        lambda z: z,
        {"weights": torch.tensor([1.0, 1, 1, 0, 1, 1])},
        "row 3 of the target has no positive: its mass is 0",
    ),
    "a row without a positive": (
        lambda z: z,
        {"target": torch.diag(torch.tensor([1.0, 1, 1, 1, 0, 1]))},
        "row 4 of the",
    ),
    "a negative target": (
        lambda z: z,
        {"target": torch.eye(6) + torch.full((6, 6), -0.01)},
        "target has a negative or non-finite entry",
    ),
}


@pytest.mark.parametrize("name", ["ince", "gca-ince", "gca-uot-paper"])
@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_an_error_in_compiled_code_too(name, bad):
    if OLD and ("weights" in BAD[bad][1] or (name == "gca-uot-paper" and "target" in BAD[bad][1])):
        pytest.skip("torch 2.6 refuses to trace it: see Versions in docs/reliability.md")
    change, known, message = BAD[bad]
    torch.manual_seed(0)
    z1, z2 = torch.randn(6, 5), torch.randn(6, 5)
    torch.compiler.reset()
    criterion = torch.compile(gcalign.method(name), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=message):
        criterion(change(z1), z2, **known)


@pytest.mark.parametrize("sparse", [False, pytest.param(True, marks=since_2_7)])
def test_a_target_of_an_embedding_with_itself_is_an_error_in_compiled_code_too(sparse):
    torch.compiler.reset()
    criterion = torch.compile(gcalign.method("gca-ince", layout="joint"), fullgraph=True, backend="aot_eager")
    matrix = torch.eye(12)
    with pytest.raises(ValueError, match="target pairs an embedding with itself"):
        criterion(*batch(6), target=gcalign.Soft(matrix.to_sparse() if sparse else matrix))


@since_2_7
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own: CSR is in beta; partly compiled code reads .grad
@pytest.mark.parametrize("name", ["ince", "gca-uot", "clip"])
def test_a_sparse_target_compiles(name):
    """As `Soft`. torch itself refuses a sparse tensor as an argument of compiled code with fullgraph=True."""
    generator = torch.Generator().manual_seed(1)
    matrix = torch.eye(20) + (torch.rand(20, 20, generator=generator) < 0.1).float()
    expected = differentiated(gcalign.method(name), *batch(), target=matrix)
    for given in (gcalign.Soft(matrix.to_sparse()), gcalign.Soft(matrix.to_sparse_csr())):
        torch.compiler.reset()
        compiled = torch.compile(gcalign.method(name), fullgraph=True, backend="aot_eager")
        assert_same(differentiated(compiled, *batch(), target=given), expected)
    torch.compiler.reset()
    held = torch.compile(gcalign.method(name, target=given), fullgraph=True, backend="aot_eager")
    assert_same(differentiated(held, *batch()), expected)
    torch.compiler.reset()
    partly = torch.compile(gcalign.method(name), backend="aot_eager")
    assert_same(differentiated(partly, *batch(), target=matrix.to_sparse()), expected)


@since_2_7
def test_a_lonely_label_is_an_error_in_compiled_code_too():
    torch.manual_seed(0)
    y = torch.tensor([0, 0, 1, 1, 2])
    torch.compiler.reset()
    criterion = torch.compile(gcalign.method("supcon"), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"row \d+ of the target has no positive: its mass is 0"):
        criterion(torch.randn(5, 4), torch.randn(5, 4), labels=(y, y + 1))


@since_2_7
def test_an_exported_program_runs_in_another_process(tmp_path):
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.criterion = gcalign.method("gca-uot", eps=0.2, check_finite=False)

        def forward(self, z1, z2):
            return self.criterion(z1, z2)

    inputs = tuple(z.detach() for z in batch())
    torch.export.save(torch.export.export(Loss(), inputs), tmp_path / "loss.pt2")
    torch.save([*inputs, Loss()(*inputs)], tmp_path / "loss.pt")
    script = (
        "import sys, torch, gcalign; gcalign.method; *z, loss = torch.load(sys.argv[2]);"
        "assert torch.equal(torch.export.load(sys.argv[1]).module()(*z), loss)"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "loss.pt2"), str(tmp_path / "loss.pt")]
    subprocess.run(words, check=True, capture_output=True, text=True)
