"""More than two views of a batch: a queue of keys, lists of views, one tensor with labels. And ε by its other names."""

from __future__ import annotations

import copy
import io
import re
from itertools import combinations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own name for it

import gcalign
from gcalign import KL, Alignment, Columns, Cosine, Labels, Queue, Rows
from processes import needs_gloo, ranks

BALANCED = ("gca-ince", "gca-rince", "iot", "iot-uni", "gca-uot")
ONE_SIDED = ("ince", "rince", "simclr", "clip")
LAYOUTS = ("cross", "joint")


def draw(n: int, d: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def views(n: int = 5) -> tuple[Tensor, Tensor]:
    z1 = draw(n, seed=1)
    return z1.requires_grad_(), (z1.detach() + 0.7 * draw(n, seed=2)).requires_grad_()


def filled(size: int = 7, pushed: int = 9, seed: int = 3, **options: object) -> Queue:
    queue = Queue(size, 4, **options).double()
    queue.push(draw(pushed, seed=seed))
    return queue


def made(name: str, **options: object):
    return gcalign.method(name, **options).double()


# --- the queue ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [[3], [3, 3, 3], [4, 4, 4, 4], [7, 1], [2, 9, 3], [30], [7, 7], [6, 8]])
def test_a_queue_keeps_the_last_keys_and_wraps(batches):
    queue, everything = Queue(7, 2), torch.arange(2.0 * sum(batches)).view(-1, 2)
    for batch in everything.split(batches):
        queue.push(batch)
    kept = everything[-7:]
    assert len(queue) == len(kept)
    assert torch.equal(queue().sort(0).values, kept)  # rows ascend, so sorting columns keeps them together


def test_a_queue_is_saved_loaded_copied_and_moved():
    queue, other = filled(), Queue(7, 4).double()
    stream = io.BytesIO()
    torch.save(queue.state_dict(), stream)
    stream.seek(0)
    other.load_state_dict(torch.load(stream, weights_only=True))
    twin = copy.deepcopy(queue)
    for copied in (other, twin):
        copied.push(draw(2, seed=9))
    assert len(other) == 7
    queue.push(draw(2, seed=9))
    assert torch.equal(other(), queue())
    assert torch.equal(twin(), queue())
    assert queue.float().keys.dtype == torch.float32
    assert not list(queue.parameters())


def test_a_queue_keeps_values_and_no_graph():
    queue, z = Queue(4, 4).double(), draw(2).requires_grad_()
    queue.push(z)
    with torch.no_grad():
        z.zero_()
    assert not queue().requires_grad
    assert torch.equal(queue(), draw(2))


def test_infonce_with_a_queue_is_moco():
    (q, k), queue, eps = views(), filled(), 0.2
    unit_q, unit_k, keys = (F.normalize(x, dim=1) for x in (q, k, queue()))
    positive = torch.einsum("nc,nc->n", unit_q, unit_k).unsqueeze(-1)
    negative = torch.einsum("nc,ck->nk", unit_q, keys.T)
    expected = F.cross_entropy(torch.cat([positive, negative], 1) / eps, torch.zeros(5, dtype=torch.long))
    loss = made("ince", eps=eps)(q, k, queue=queue)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, (q, k)), torch.autograd.grad(expected, (q, k)))


def test_infonce_can_keep_the_negatives_of_the_batch():
    (q, k), queue, eps = views(), filled(in_batch=True), 0.2
    logits = F.normalize(q, dim=1) @ F.normalize(torch.cat([k, queue()]), dim=1).T / eps
    torch.testing.assert_close(made("ince", eps=eps)(q, k, queue=queue), F.cross_entropy(logits, torch.arange(5)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*ONE_SIDED, *BALANCED])
def test_an_empty_queue_changes_nothing(name, layout):
    criterion = made(name, layout=layout)
    assert torch.equal(criterion(*views(), queue=Queue(7, 4)), criterion(*views()))


def sinkhorn(log_k: Tensor, mu: Tensor, nu: Tensor) -> Tensor:
    """The balanced plan, by plain loops in log space."""
    a, b = torch.zeros_like(mu), torch.zeros_like(nu)
    for _ in range(3000):
        a = mu.log() - torch.logsumexp(log_k + b, 1)
        b = nu.log() - torch.logsumexp(log_k + a[:, None], 0)
    return log_k + a[:, None] + b


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_a_balanced_plan_with_a_queue_has_the_masses_it_should(share):
    (z1, z2), queue = views(), filled(share=share)
    criterion = made("gca-ince", eps=0.3, iterations=3000, tol=1e-13)
    nu = share * torch.full((12,), 5 / 12, dtype=torch.float64)
    nu[:5] += 1 - share
    log_k = (F.normalize(z1, dim=1) @ F.normalize(torch.cat([z2, queue()]), dim=1).T - 1) / 0.3
    expected = sinkhorn(log_k.detach(), torch.ones(5, dtype=torch.float64), nu)
    plan = criterion.plan(z1, z2, queue=queue)
    assert plan.shape == (5, 12)
    assert plan.converged
    torch.testing.assert_close(plan.nu, nu)
    torch.testing.assert_close(plan.log, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(criterion(z1, z2, queue=queue), -expected[:, :5].diagonal().mean())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BALANCED)
def test_masses_with_a_queue_are_those_of_some_plan(name, layout):
    """The sums of a plan that no solver made: each row keeps 0.7 for its partner and spreads 0.3 evenly."""
    (z1, z2), queue = views(), filled(share=0.3)
    n = 5 if layout == "cross" else 10
    possible = torch.full((n, n + 7), 0.3 / (n + 7), dtype=torch.float64)
    if layout == "joint":
        possible = torch.full((n, n + 7), 0.3 / (n + 6), dtype=torch.float64)
        possible[:, :n].fill_diagonal_(0)
    partner = (torch.arange(n) + (0 if layout == "cross" else 5)) % n
    possible[torch.arange(n), partner] += 0.7
    plan = made(name, layout=layout).plan(z1, z2, queue=queue)
    torch.testing.assert_close(plan.mu, possible.sum(1))
    torch.testing.assert_close(plan.nu, possible.sum(0))
    if name != "gca-uot":
        solved = made(name, layout=layout, iterations=3000, tol=1e-12).plan(z1, z2, queue=queue)
        assert solved.converged
        assert solved.row_error < 1e-10
        assert solved.column_error < 1e-10


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*ONE_SIDED, *BALANCED])
def test_the_gradient_with_a_queue_is_that_of_finite_differences(name, layout):
    criterion, queue = made(name, layout=layout), filled()
    assert torch.autograd.gradcheck(lambda x, y: criterion(x, y, queue=queue), views(), atol=1e-6)


def test_each_direction_of_a_symmetric_loss_has_keys_of_its_own_columns():
    one_way, (z1, z2), first, second = made("ince"), views(), filled(seed=1), filled(seed=2)
    both_ways = gcalign.Symmetric(one_way)
    there, back = one_way(z1, z2, queue=second), one_way(z2, z1, queue=first)
    torch.testing.assert_close(both_ways(z1, z2, queue=(first, second)), (there + back) / 2)
    torch.testing.assert_close(both_ways(z1, z2, queue=second), (there + one_way(z2, z1)) / 2)
    assert both_ways.plan(z1, z2, queue=(first, second)).shape == one_way.plan(z1, z2, queue=second).shape


@pytest.mark.parametrize("block", [None, 2])
def test_a_queue_streams(block):
    loss = made("gca-ince", block=block)(*views(), queue=filled())
    torch.testing.assert_close(loss, made("gca-ince", gradient="unrolled")(*views(), queue=filled()))


def test_a_queue_works_with_ids_weights_and_matrices_as_targets():
    (z1, z2), queue = views(), filled(in_batch=True)
    criterion = made("ince", eps=0.3)
    ids = torch.tensor([3, 1, 4, 0, 2])
    order = ids.argsort()
    torch.testing.assert_close(
        criterion(z1, z2[ids], ids=(torch.arange(5), ids), queue=queue), criterion(z1, z2, queue=queue)
    )
    assert torch.equal(ids[order], torch.arange(5))
    log_p = (F.normalize(z1, dim=1) @ F.normalize(torch.cat([z2, queue()]), dim=1).T / 0.3).log_softmax(1)[:, :5]
    target = torch.eye(5, dtype=torch.float64) * 0.8 + 0.04
    entropy = (target * target.log()).sum()
    expected = (entropy - (target * log_p).sum()) / 5
    torch.testing.assert_close(criterion(z1, z2, target=target, queue=queue), expected)
    w = torch.linspace(0.5, 1.5, 5, dtype=torch.float64)
    expected = -(w * log_p.diagonal()).mean()  # the rows of T and P sum to w
    torch.testing.assert_close(criterion(z1, z2, weights=w, queue=queue), expected)


def test_masses_of_ones_own_stay():
    nu = torch.linspace(0.5, 1.5, 12, dtype=torch.float64)
    nu *= 5 / nu.sum()
    plan = Alignment(Cosine(0.3), (Rows(), Columns(mass=nu)), KL()).plan(*views(), queue=filled())
    torch.testing.assert_close(plan.nu, nu)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: Queue(0, 4), "size=0 must be at least 1"),
        (lambda: Queue(4, 4, share=2.0), "share=2 must be at most 1"),
        (lambda: Queue(4, 4, share=0.0), "share=0 must be > 0"),
        (lambda: Queue(4, 4).push(torch.ones(2, 3)), "must be a tensor [B, 4]"),
        (lambda: made("ince")(draw(3, 5), draw(3, 5), queue=filled()), "Queue(size, dim=5)"),
        (lambda: made("gca-ince")(*views(), queue=filled(in_batch=False)), "leave in_batch out"),
        (lambda: made("ince", warm_start=True)(*views(), ids=range(5), queue=filled()), "queue= has none"),
        (lambda: made("supcon")(*views(), labels=[0, 0, 1, 1, 1], queue=filled()), "leave out queue"),
    ],
)
def test_a_wrong_queue_is_refused(mistake, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        mistake()


# --- a queue in a process group -------------------------------------------------------------------------------


def queue_main(rank):
    mine = slice(0, 4) if rank == 0 else slice(4, 6)
    queue, local = Queue(7, 4).double(), Queue(7, 4, gather=False).double()
    for k in range(3):
        for each in (queue, local):
            each.push(draw(6, seed=k)[mine])
    found = {"keys": queue(), "local": local()}
    for name in ("ince", "gca-ince", "gca-uot"):
        leaves = [z.detach()[mine].clone().requires_grad_() for z in views(6)]
        loss = made(name)(*leaves, queue=queue)
        found[name] = (loss.detach(), *torch.autograd.grad(loss, leaves))
    return found


@needs_gloo
def test_queues_of_all_ranks_are_that_of_one_process(tmp_path):
    found = ranks(queue_main, tmp_path)
    queue = Queue(7, 4).double()
    for k in range(3):
        queue.push(draw(6, seed=k))
    for rank in found:
        assert torch.equal(rank["keys"], queue())
    assert len(found[1]["local"]) == 6
    for name in ("ince", "gca-ince", "gca-uot"):
        leaves = views(6)
        loss = made(name)(*leaves, queue=queue)
        grads = torch.autograd.grad(loss, leaves)
        for rank in found:
            torch.testing.assert_close(rank[name][0], loss.detach(), rtol=1e-10, atol=1e-12)
        for k in (1, 2):
            got = torch.cat([rank[name][k] for rank in found]) / 2
            torch.testing.assert_close(got, grads[k - 1], rtol=1e-7, atol=1e-10)


# --- lists of views -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", gcalign.methods.names())
def test_two_views_in_a_list_are_two_views(name, layout):
    criterion, known = made(name, layout=layout), {"labels": [0, 0, 1, 1, 1]} if name == "supcon" else {}
    (z1, z2), (y1, y2) = views(), views()
    listed, plain = criterion([z1, z2], **known), criterion(y1, y2, **known)
    assert torch.equal(listed, plain)
    for got, expected in zip(torch.autograd.grad(listed, (z1, z2)), torch.autograd.grad(plain, (y1, y2)), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("rows", [None, 1, 2, 4])
@pytest.mark.parametrize("name", ["gca-ince", "clip", "simclr"])
def test_several_views_are_the_mean_over_their_pairs(name, rows):
    criterion, z = made(name), [draw(5, seed=k) for k in range(4)]
    pairs = [(i, j) for i, j in combinations(range(4), 2) if i < (rows or 4)]
    expected = sum(criterion(z[i], z[j]) for i, j in pairs) / len(pairs)
    torch.testing.assert_close(criterion(z, rows=rows), expected)
    torch.testing.assert_close(criterion(tuple(z), rows=rows), expected)


def test_what_is_known_of_views_is_one_for_all_or_one_for_each():
    criterion, z = made("gca-ince"), [draw(5, seed=k) for k in range(3)]
    orders = [torch.arange(5), torch.tensor([4, 2, 0, 1, 3]), torch.tensor([1, 0, 3, 2, 4])]
    shuffled = [view[order] for view, order in zip(z, orders, strict=True)]
    torch.testing.assert_close(criterion(shuffled, ids=tuple(orders)), criterion(z))
    weights = torch.linspace(0.5, 1.5, 5, dtype=torch.float64)
    pairs = [criterion(z[i], z[j], weights=weights) for i, j in combinations(range(3), 2)]
    torch.testing.assert_close(criterion(z, weights=weights), torch.stack(pairs).mean())


def test_views_take_a_queue_and_give_a_loss_for_each_row():
    z, queue = [draw(5, seed=k) for k in range(3)], filled()
    criterion, each = made("gca-ince"), made("gca-ince", reduction="none")
    pairs = [criterion(z[i], z[j], queue=queue) for i, j in combinations(range(3), 2)]
    torch.testing.assert_close(criterion(z, queue=queue), torch.stack(pairs).mean())
    assert each(z, queue=queue).shape == (5,)
    torch.testing.assert_close(each(z, queue=queue).mean(), criterion(z, queue=queue))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda c, z: c([z]), TypeError, "1 views"),
        (lambda c, z: c({"a": z}), TypeError, "a dict"),
        (lambda c, z: c([z, z.tolist()]), TypeError, "z2 is a list"),
        (lambda c, z: c([z, z], rows=0), ValueError, "rows=0 must be at least 1"),
        (lambda c, z: c([z, z], rows=3), ValueError, "rows=3 must be at most 2"),
        (lambda c, z: c(z), ValueError, "criterion(z, labels=y)"),
    ],
)
@pytest.mark.parametrize("name", ["gca-ince", "clip"])
def test_what_are_not_views_is_refused(name, call, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call(made(name), draw(4))


# --- one tensor with labels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", gcalign.methods.names())
def test_one_tensor_is_split_into_views_in_vain(name):
    """Joint plans of the two halves are plans of the whole."""
    z, criterion = draw(8), made(name, layout="joint", target=Labels())
    y = torch.tensor([0, 1, 0, 2, 1, 2, 0, 0])
    halves = criterion(z[:4], z[4:], labels=(y[:4], y[4:]))
    torch.testing.assert_close(made(name)(z, labels=y), halves)
    assert criterion.plan(z, labels=y).shape == (8, 8)


def test_one_tensor_takes_ids_or_a_matrix():
    z, ids = draw(6), torch.tensor([5, 5, 7, 7, 9, 9])
    criterion = made("gca-ince")
    pairs = torch.eye(6, dtype=torch.float64)[[1, 0, 3, 2, 5, 4]]
    torch.testing.assert_close(criterion(z, ids=ids), criterion(z, target=pairs))
    assert torch.autograd.gradcheck(lambda x: criterion(x, ids=ids), (z.requires_grad_(),), atol=1e-6)


# --- functions, and other names of ε --------------------------------------------------------------------------


def test_functions_take_what_criteria_take():
    z, queue = [draw(6, seed=k) for k in range(3)], filled(in_batch=True)
    f, y = gcalign.functional, torch.tensor([0, 0, 1, 1, 2, 2])
    torch.testing.assert_close(f.gca_ince(z, eps=0.3, rows=1), made("gca-ince", eps=0.3)(z, rows=1))
    torch.testing.assert_close(f.supcon(z[0], labels=y), made("supcon")(z[0], labels=y))
    torch.testing.assert_close(f.info_nce(z[0], z[1], queue=queue), made("ince")(z[0], z[1], queue=queue))


@pytest.mark.parametrize("word", ["temperature", "temp", "tau"])
def test_a_temperature_is_answered_with_the_call_that_has_eps(word):
    with pytest.raises(TypeError) as refused:
        gcalign.method("gca-uot", q=0.3, **{word: 0.1})
    call = re.search(r"gcalign\.method\(.*\)$", str(refused.value)).group()
    assert repr(eval(call)) == repr(gcalign.method("gca-uot", q=0.3, eps=0.1))
    with pytest.raises(TypeError, match=re.escape("gcalign.method('ince', eps=0.1)")):
        gcalign.functional.info_nce(draw(3), draw(3), **{word: 0.1})
