"""Several processes give the loss and the gradients of one process with the joined batch, each doing its rows."""

from __future__ import annotations

import math
import os
import time
import warnings

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed as dist
from torch import nn

import gcalign
from gcalign.transport import distributed as distributed
from gcalign.transport.distributed import Shard
from processes import needs_gloo, ranks

NAMES = gcalign.methods.names()
pytestmark = needs_gloo

SIZES = {1: [9], 2: [5, 4], 3: [4, 4, 1], 4: [3, 3, 3, 0]}  # the last batch of an epoch is uneven


def batch(n=9):
    generator = torch.Generator().manual_seed(0)
    z1 = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    z2 = z1 + torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return z1, z2, torch.arange(n) % 2


def cases():
    for name in NAMES:
        for layout in ("cross", "joint"):
            yield name, {"layout": layout}
    for name in ("ince", "gca-ince", "gca-rince", "gca-uot"):
        yield name, {"block": 2}
        yield name, {"iterations": 300, "tol": 1e-12}
    yield "gca-ince", {"eps": 0.004}  # leaves the kernel's range
    yield "gca-ince", {"gradient": "unrolled"}


def losses(z1, z2, labels):
    found = {}
    for name, options in cases():
        known = {"labels": labels} if name == "supcon" else {}
        leaves = [z.detach().clone().requires_grad_() for z in (z1, z2)]
        criterion = gcalign.method(name, **options).double()
        loss = criterion(*leaves, **known)
        loss.backward()
        found[name, str(options)] = (
            loss.detach(),
            *(z.grad for z in leaves),
            *(p.grad for p in criterion.parameters()),
        )
    return found


def own(rank, sizes):
    first = sum(sizes[:rank])
    return slice(first, first + sizes[rank])


def rank_main(rank, world):
    mine = own(rank, SIZES[world])
    return losses(*(x[mine] for x in batch()))


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_loss_and_gradients_are_those_of_the_joined_batch(tmp_path, world):
    expected = losses(*batch())
    found = ranks(rank_main, tmp_path, world, world)
    for key, (loss, grad_1, grad_2, *own_grads) in expected.items():
        for rank in found:
            torch.testing.assert_close(rank[key][0], loss, rtol=1e-11, atol=1e-13)
            for k, grad in enumerate(
                own_grads, start=3
            ):  # computed in full by every rank, so DDP's mean changes nothing
                torch.testing.assert_close(rank[key][k], grad, rtol=1e-7, atol=1e-10)
        for k, grad in enumerate((grad_1, grad_2), start=1):
            # DDP divides by the number of ranks, so each rank holds that many times its share before
            got = torch.cat([rank[key][k] for rank in found]) / world
            torch.testing.assert_close(got, grad, rtol=1e-7, atol=1e-10, msg=lambda m, key=key: f"{key}: {m}")


FEW = [(name, learns) for name in ("iot-uni", "gca-uot") for learns in (False, True)]


def few_main(rank):
    mine, losses = own(rank, [2, 0, 0]), []
    for name, learns in FEW:
        z1, z2 = (z[mine].clone().requires_grad_(learns) for z in batch(2)[:2])
        loss = gcalign.method(name, layout="cross", block=1)(z1, z2)
        if learns:
            loss.backward()
        losses.append(loss.detach())
    return losses


def test_more_ranks_than_rows(tmp_path):
    z1, z2, _ = batch(2)
    expected = [gcalign.method(name, layout="cross")(z1, z2) for name, _ in FEW]
    for found in ranks(few_main, tmp_path, 3):
        torch.testing.assert_close(found, expected)


# --- parameters under DDP -------------------------------------------------------------------------------------


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def ddp_main(rank):
    z1, z2, _ = batch()
    mine = own(rank, SIZES[2])
    model = nn.parallel.DistributedDataParallel(network())
    h1, h2 = model(torch.cat([z1[mine], z2[mine]])).chunk(2)
    gcalign.method("gca-uot")(h1, h2).backward()
    return [p.grad for p in model.parameters()]


def test_parameters_get_the_gradient_of_the_joined_batch(tmp_path):
    z1, z2, _ = batch()
    model = network()
    h1, h2 = model(torch.cat([z1, z2])).chunk(2)
    gcalign.method("gca-uot")(h1, h2).backward()
    for found in ranks(ddp_main, tmp_path):
        torch.testing.assert_close(found, [p.grad for p in model.parameters()], rtol=1e-8, atol=1e-12)


# --- what is exchanged ----------------------------------------------------------------------------------------


def count_main(rank):
    calls = []
    plain = dist.all_reduce

    def counted(tensor, *args, **options):
        calls.append(tensor.numel())
        return plain(tensor, *args, **options)

    distributed.dist.all_reduce = counted
    z1, z2, _ = batch(12)
    mine = slice(6 * rank, 6 * rank + 6)
    counts = []
    for iterations in (2, 7):
        calls.clear()
        with torch.no_grad():
            gcalign.method("gca-ince", iterations=iterations, tol=0)(z1[mine], z2[mine])
        counts.append(list(calls))
    assert len(counts[1]) - len(counts[0]) == 5
    assert max(counts[1]) <= 3 * 12


def test_an_iteration_is_one_all_reduce_of_vectors(tmp_path):
    ranks(count_main, tmp_path)


def test_rows_are_shared_out_whole_and_once():
    shard = object.__new__(Shard)
    for world in range(1, 6):
        for n in range(12):
            shard.world, rows = world, []
            for shard.rank in range(world):
                rows += range(*shard.rows(n))
            assert rows == list(range(n))


# --- alone, refused, dead -------------------------------------------------------------------------------------


def alone_main(rank):
    z1, z2, _ = batch(8)
    mine = slice(4 * rank, 4 * rank + 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            alone = gcalign.method("gca-ince", gather=False)(z1[mine], z2[mine])
    assert ["gather=False on 2 ranks" in str(w.message) for w in caught] == [True]
    return alone


def test_without_gathering_each_rank_sees_its_own_batch_and_is_told_once(tmp_path):
    z1, z2, _ = batch(8)
    for found, mine in zip(ranks(alone_main, tmp_path), (slice(4), slice(4, 8)), strict=True):
        torch.testing.assert_close(found, gcalign.method("gca-ince")(z1[mine], z2[mine]))


def refusing_main(rank):
    z1, z2, labels = batch(8)
    if rank == 1:
        z1[0, 0] = torch.nan
    with pytest.raises(ValueError if rank == 1 else RuntimeError, match="NaN" if rank == 1 else "rank 1 has an error"):
        gcalign.method("gca-ince")(z1, z2)
    known = {"ids": labels} if rank == 1 else {}
    with pytest.raises(ValueError, match="different kinds"):
        gcalign.method("gca-ince")(z2, z2, **known)


def test_a_batch_that_one_rank_refuses_is_an_error_on_all(tmp_path):
    ranks(refusing_main, tmp_path)


def dying_main(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    z1, z2, _ = batch(8)
    criterion = gcalign.method("gca-ince")
    criterion(z1, z2)
    through = os.path.join(folder, "through")
    if rank == 1:
        while not os.path.exists(through):  # the other still needs this rank for the first call
            time.sleep(0.01)
        os._exit(0)
    open(through, "x").close()
    with pytest.raises(RuntimeError, match="lost another rank"):
        criterion(z1, z2)
    os._exit(0)  # gloo's threads may abort an interpreter that ends while they hold a group that lost a rank


def test_a_rank_that_dies_does_not_hang_the_others(tmp_path):
    started = time.monotonic()
    mp.spawn(dying_main, args=(str(tmp_path),), nprocs=2)
    assert time.monotonic() - started < 60


def disagreeing_main(rank):
    z1, z2, _ = batch(8)
    pairs = [
        (gcalign.method("gca-ince", eps=(0.1, 0.5)[rank]), r"eps=0\.1.*eps=0\.5"),
        (gcalign.method("gca-rince", lam=(0.01, 0.2)[rank]), r"0\.01\).*0\.2\)"),
        (gcalign.method(("gca-ince", "gca-uot")[rank]), r"Columns\(\).*Columns\(penalty=0\.2\)"),
        (gcalign.method("ince", learnable=True), r"eps=0\.1 and .*eps=0\.3"),
    ]
    with torch.no_grad():
        pairs[3][0].kernel.log_eps.fill_(math.log((0.1, 0.3)[rank]))
    for criterion, both in pairs:
        with pytest.raises(ValueError, match=f"different criteria.*{both}"):
            criterion(z1, z2)


def test_ranks_with_different_settings_are_an_error_that_names_both(tmp_path):
    ranks(disagreeing_main, tmp_path)


def more_inputs(mine=slice(None)):
    z1, z2, _ = batch(8)
    generator = torch.Generator().manual_seed(5)
    shared, own = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((8, 4), (8, 2, 4)))
    groups = torch.tensor([0, 1, 0, 2, 3, 1, 4, 5])
    teacher = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    found = {}
    for name in ("ince", "gca-ince", "gca-uot"):
        cases = {
            "shared": {"negatives": shared[mine]},
            "own": {"negatives": own[mine]},
            "groups": {"groups": groups[mine]},
            "teacher": {"teacher": (teacher[mine],) * 2},
        }
        for key, inputs in cases.items():
            options = {"target": gcalign.Teacher(0.2)} if key == "teacher" else {}
            leaves = [z[mine].detach().clone().requires_grad_() for z in (z1, z2)]
            loss = gcalign.method(name, eps=0.3, **options)(*leaves, **inputs)
            loss.backward()
            found[f"{name} {key}"] = loss.detach(), leaves[0].grad
    return found


def more_main(rank):
    return more_inputs(own(rank, [5, 3]))


def test_negatives_groups_and_teachers_are_joined_over_ranks(tmp_path):
    expected = more_inputs()
    found = ranks(more_main, tmp_path)
    for key, (loss, grad) in expected.items():
        assert all(torch.allclose(rank[key][0], loss, rtol=1e-10) for rank in found), key
        torch.testing.assert_close(torch.cat([rank[key][1] for rank in found]) / 2, grad, rtol=1e-7, atol=1e-10)
