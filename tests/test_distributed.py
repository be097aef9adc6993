"""Two processes give the loss and the gradients of one process with the joined batch."""

from __future__ import annotations

import os
import sys

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed as dist

import gcalign

NAMES = gcalign.methods.names()
LABELS = torch.tensor([0, 1, 0, 1, 0, 1, 1, 0])
pytestmark = pytest.mark.skipif(sys.platform == "win32" or not dist.is_gloo_available(), reason="needs gloo")


def joined():
    generator = torch.Generator().manual_seed(0)
    z1 = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    return z1, z1 + torch.randn(8, 4, generator=generator, dtype=torch.float64)


def losses(z1, z2, labels):
    """Each method's loss and gradients, positives once by position and once by ids."""
    found = {}
    for name in NAMES:
        known = {"labels": labels} if name == "supcon" else {}
        for layout in ("cross", "joint"):
            leaves = [z.detach().clone().requires_grad_() for z in (z1, z2)]
            loss = gcalign.method(name, layout=layout)(*leaves, **known)
            loss.backward()
            found[name, layout] = (loss.detach(), *(z.grad for z in leaves))
    return found


def rank_main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mine = slice(4 * rank, 4 * rank + 4)
    z1, z2 = joined()
    torch.save(losses(z1[mine], z2[mine], LABELS[mine]), os.path.join(folder, f"{rank}.pt"))
    alone = gcalign.method("gca-ince", gather=False)(z1[mine], z2[mine])
    torch.save(alone, os.path.join(folder, f"alone{rank}.pt"))
    dist.destroy_process_group()


def test_the_gathered_loss_and_gradients_are_those_of_the_joined_batch(tmp_path):
    mp.spawn(rank_main, args=(str(tmp_path),), nprocs=2)
    z1, z2 = joined()
    expected = losses(z1, z2, LABELS)
    ranks = [torch.load(tmp_path / f"{r}.pt", weights_only=True) for r in (0, 1)]
    for key, (loss, *grads) in expected.items():
        for rank in ranks:
            torch.testing.assert_close(rank[key][0], loss, rtol=1e-12, atol=1e-14)
        for k, grad in enumerate(grads, start=1):
            # DDP divides by the number of ranks, so each rank holds twice its share before that
            got = torch.cat([rank[key][k] for rank in ranks]) / 2
            torch.testing.assert_close(got, grad, rtol=1e-9, atol=1e-12)


def test_without_gathering_each_rank_sees_its_own_batch(tmp_path):
    mp.spawn(rank_main, args=(str(tmp_path),), nprocs=2)
    z1, z2 = joined()
    for rank in (0, 1):
        mine = slice(4 * rank, 4 * rank + 4)
        expected = gcalign.method("gca-ince")(z1[mine], z2[mine])
        torch.testing.assert_close(torch.load(tmp_path / f"alone{rank}.pt", weights_only=True), expected)
