"""The losses of `gcalign.interop` are those of the libraries they stand in for: by formula, and by their own code.

The formulas are written here. Where a library is installed, its own class is a second oracle.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed.nn
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F  # noqa: N812  # torch's own name for it

import gcalign
from gcalign.interop.lightly import NTXentLoss
from gcalign.interop.metric_learning import NTXentLoss as PairedNTXentLoss
from gcalign.interop.metric_learning import SupConLoss
from gcalign.interop.openclip import ClipLoss
from processes import needs_gloo, ranks

ALIGNED = ("ince", "gca-ince", "rince", "gca-rince", "gca-uot", "iot", "iot-uni")


def original(module: str, name: str):
    """A class of another library, or a skip with the reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # theirs
            return getattr(importlib.import_module(module), name)
    except ImportError as error:
        pytest.skip(f"{module} is not installed ({error})")


def draw(n: int, d: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(n: int, seed: int, d: int = 4) -> Tensor:
    return F.normalize(draw(n, d, seed), dim=1).requires_grad_()


def assert_same(one: Tensor, other: Tensor, leaves: list[Tensor]) -> None:
    """One loss and one gradient."""
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    got, expected = (torch.autograd.grad(loss, leaves, retain_graph=True) for loss in (one, other))
    assert any(float(grad.norm()) > 1e-6 for grad in expected)
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)


def test_nothing_of_others_is_imported():
    others = "{'open_clip', 'lightly', 'pytorch_metric_learning', 'sentence_transformers', 'torchvision'}"
    code = (
        f"import sys, gcalign, gcalign.interop.openclip, gcalign.interop.lightly\nprint(*{others} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


# --- OpenCLIP -------------------------------------------------------------------------------------------------


def clip(image: Tensor, text: Tensor, scale: Tensor) -> Tensor:
    logits, labels = scale * image @ text.T, torch.arange(len(image))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def test_a_clip_loss_is_called_like_that_of_open_clip():
    words = ["local_loss", "gather_with_grad", "cache_labels", "rank", "world_size", "use_horovod"]
    assert list(inspect.signature(ClipLoss).parameters)[:6] == words
    called = inspect.signature(ClipLoss.forward).parameters
    assert list(called) == ["self", "image_features", "text_features", "logit_scale", "logit_bias", "output_dict"]
    assert called["logit_bias"].default is None
    assert called["output_dict"].default is False


@pytest.mark.parametrize("bias", [None, -3.0])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("local_loss", [True, False])
def test_the_default_clip_loss_is_that_of_open_clip(bias, normalised, local_loss):
    image, text = (unit(6, 1), unit(6, 2)) if normalised else (draw(6, seed=k).requires_grad_() for k in (1, 2))
    scale = torch.tensor(9.0, dtype=torch.float64, requires_grad=True)
    bias = None if bias is None else torch.tensor(bias, dtype=torch.float64)
    loss = ClipLoss(local_loss)(image, text, scale, bias)
    assert_same(loss, clip(image, text, scale), [image, text, scale])
    assert torch.equal(
        ClipLoss()(image, text, scale, output_dict=True)["contrastive_loss"], ClipLoss()(image, text, scale)
    )


def test_the_default_clip_loss_is_that_of_the_original():
    theirs, image, text = original("open_clip", "ClipLoss"), unit(6, 1), unit(6, 2)
    assert list(inspect.signature(theirs).parameters) == list(inspect.signature(ClipLoss).parameters)[:6]
    scale = torch.tensor(9.0, dtype=torch.float64, requires_grad=True)
    assert_same(ClipLoss()(image, text, scale), theirs()(image, text, scale), [image, text, scale])


@pytest.mark.parametrize("name", [*ALIGNED, "clip", "simclr"])
def test_a_clip_loss_of_any_method_is_that_method_both_ways(name):
    image, text, value = unit(6, 1), unit(6, 2), 4.0
    scale = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    fixed = gcalign.method(name, eps=1 / value, layout="cross").double()
    loss = ClipLoss(method=name)(image, text, scale)
    expected = (fixed(image, text) + fixed(text, image)) / 2
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-6, atol=1e-8)
    (got,) = torch.autograd.grad(loss, scale)
    step = 1e-5
    around = [ClipLoss(method=name)(image, text, value + sign * step).detach() for sign in (1, -1)]
    torch.testing.assert_close(got, (around[0] - around[1]) / (2 * step), rtol=1e-5, atol=1e-8)
    assert abs(float(got)) > 1e-7


def test_a_bias_counts_where_marginals_are_relaxed():
    image, text = unit(6, 1), unit(6, 2)
    bias = torch.tensor(-0.5, dtype=torch.float64, requires_grad=True)
    losses = [ClipLoss(method="gca-uot-paper")(image, text, 4.0, b) for b in (None, bias)]
    assert abs(float(losses[0].detach() - losses[1].detach())) > 1e-3
    (got,) = torch.autograd.grad(losses[1], bias)
    around = [ClipLoss(method="gca-uot-paper")(image, text, 4.0, -0.5 + sign * 1e-5).detach() for sign in (1, -1)]
    torch.testing.assert_close(got, (around[0] - around[1]) / 2e-5, rtol=1e-5, atol=1e-8)


def test_a_clip_loss_keeps_no_parameter_and_no_graph():
    loss, scale = ClipLoss(), nn.Parameter(torch.tensor(5.0))
    loss(unit(3, 1).float(), unit(3, 2).float(), scale)
    assert not list(loss.parameters())
    copy.deepcopy(loss)  # which a tensor of a graph would refuse
    assert "logit_scale" in repr(loss)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: ClipLoss(use_horovod=True), "torchrun"),
        (lambda: ClipLoss(eps=0.1), "eps is 1 / logit_scale"),
        (lambda: ClipLoss(method="byol"), "cosine kernel"),
        (lambda: ClipLoss(method="gca-out"), "did you mean 'gca-uot'"),
        (lambda: ClipLoss(world_size=2)(unit(3, 1), unit(3, 2), 5.0), "init_process_group"),
        (lambda: ClipLoss()(unit(3, 1), unit(3, 2), -1.0), "logit_scale=-1 must be > 0"),
    ],
)
def test_a_wrong_clip_loss_is_refused(mistake, words):
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        mistake()


MODES = [(local, grad) for local in (False, True) for grad in (False, True)]


def gathered_clip(image, text, scale, local, grad, rank):
    """What open_clip does in a process group."""
    whole = []
    for z in (image, text):
        if grad:
            whole.append(torch.cat(torch.distributed.nn.all_gather(z)))
            continue
        parts = [torch.zeros_like(z) for _ in range(2)]
        dist.all_gather(parts, z.detach().contiguous())
        if not local:
            parts[rank] = z
        whole.append(torch.cat(parts))
    if not local:
        return clip(*whole, scale)
    labels = torch.arange(len(image)) + rank * len(image)
    there, back = scale * image @ whole[1].T, scale * text @ whole[0].T
    return (F.cross_entropy(there, labels) + F.cross_entropy(back, labels)) / 2


def clip_main(rank, theirs):
    mine, found = slice(3 * rank, 3 * rank + 3), {}
    for local, grad in MODES:
        reference = None
        if theirs:
            reference = original("open_clip", "ClipLoss")(local, grad, rank=rank, world_size=2)
        for kind in ("ours", "reference", "gca-ince"):
            leaves = [unit(6, k).detach()[mine].clone().requires_grad_() for k in (1, 2)]
            scale = torch.tensor(9.0, dtype=torch.float64, requires_grad=True)
            if kind == "reference":
                loss = gathered_clip(*leaves, scale, local, grad, rank)
                if reference is not None:
                    torch.testing.assert_close(reference(*leaves, scale), loss)
                    loss = reference(*leaves, scale)
            else:
                name = "ince" if kind == "ours" else kind
                loss = ClipLoss(local, grad, rank=rank, world_size=2, method=name)(*leaves, scale)
            found[kind, (local, grad)] = (loss.detach(), *torch.autograd.grad(loss, [*leaves, scale]))
    return found


@needs_gloo
@pytest.mark.parametrize("theirs", [False, True])
def test_the_clip_loss_of_two_processes_is_that_of_open_clip(tmp_path, theirs):
    if theirs:
        original("open_clip", "ClipLoss")
    both = ranks(clip_main, tmp_path, 2, theirs)
    scale = torch.tensor(9.0, dtype=torch.float64)
    whole = ClipLoss(method="gca-ince")(unit(6, 1), unit(6, 2), scale)
    for mode in MODES:
        for rank in both:
            for k in range(3):  # the loss and the gradients of both features
                torch.testing.assert_close(rank["ours", mode][k], rank["reference", mode][k], rtol=1e-8, atol=1e-10)
        # DDP takes the mean of the gradient of the scale
        got, expected = (torch.stack([rank[kind, mode][3] for rank in both]).mean() for kind in ("ours", "reference"))
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)
        value = torch.stack([rank["gca-ince", mode][0] for rank in both]).mean()
        torch.testing.assert_close(value, whole.detach(), rtol=1e-6, atol=1e-8)


# --- pytorch-metric-learning ----------------------------------------------------------------------------------

LABELS = torch.tensor([0, 1, 0, 2, 1, 2, 0, 3])  # the last is alone
MINED = tuple(torch.tensor(x) for x in ([0, 0, 2, 4, 5], [2, 6, 0, 1, 3], [0, 0, 2, 2, 5, 7], [1, 3, 4, 5, 6, 0]))
TRIPLETS = tuple(torch.tensor(x) for x in ([0, 0, 2, 4], [2, 6, 0, 1], [1, 3, 4, 5]))


def supcon(z: Tensor, other: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """SupCon of anchors and references; the mean over anchors whose loss is positive."""
    logits = F.normalize(z, dim=1) @ F.normalize(other, dim=1).T / temperature
    log_p = logits - torch.logsumexp(logits.masked_fill(~(positive | negative), -torch.inf), 1, keepdim=True)
    losses = torch.stack([-log_p[i][positive[i]].mean() for i in range(len(z)) if positive[i].any()])
    return losses[losses > 0].mean()


def masks(labels: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
    same = labels[:, None] == (labels if other is None else other)
    return (same & ~torch.eye(len(labels), dtype=torch.bool) if other is None else same), ~same


def masks_of(pairs: tuple[Tensor, ...], shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    a, p, k, n = pairs if len(pairs) == 4 else (pairs[0], pairs[1], pairs[0], pairs[2])
    positive, negative = torch.zeros(2, *shape, dtype=torch.bool)
    positive[a, p], negative[k, n] = True, True
    return positive, negative


def test_a_supcon_loss_is_called_like_that_of_pytorch_metric_learning():
    called = inspect.signature(SupConLoss.forward).parameters
    assert list(called) == ["self", "embeddings", "labels", "indices_tuple", "ref_emb", "ref_labels"]
    assert all(called[name].default is None for name in list(called)[2:])
    assert inspect.signature(SupConLoss).parameters["temperature"].default == 0.1
    assert SupConLoss.__name__ == "SupConLoss"  # by which the wrappers accept a loss


def test_the_default_loss_of_one_tensor_is_supcon():
    z = draw(8).requires_grad_()
    assert_same(SupConLoss(0.2)(z, LABELS), supcon(z, z, *masks(LABELS), 0.2), [z])
    kept = LABELS < 3
    assert_same(
        SupConLoss(0.2)(z[kept], LABELS[kept]), gcalign.method("supcon", eps=0.2)(z[kept], labels=LABELS[kept]), [z]
    )


@pytest.mark.parametrize("pairs", [MINED, TRIPLETS])
def test_a_miner_says_which_pairs_are_in_the_plan(pairs):
    z = draw(8).requires_grad_()
    assert_same(SupConLoss(0.2)(z, LABELS, pairs), supcon(z, z, *masks_of(pairs, (8, 8)), 0.2), [z])
    assert_same(SupConLoss(0.2)(z, indices_tuple=pairs), SupConLoss(0.2)(z, LABELS, pairs), [z])


def test_references_are_columns():
    z, other = draw(8).requires_grad_(), draw(5, seed=1).requires_grad_()
    theirs = torch.tensor([0, 1, 2, 2, 5])
    loss = SupConLoss(0.2)(z, LABELS, ref_emb=other, ref_labels=theirs)
    assert_same(loss, supcon(z, other, *masks(LABELS, theirs), 0.2), [z, other])


@pytest.mark.parametrize("name", ALIGNED)
@pytest.mark.parametrize("pairs", [None, MINED])
def test_any_method_takes_anchors_without_positives_and_columns_without(name, pairs):
    loss = SupConLoss(0.3, method=name).double()
    assert torch.autograd.gradcheck(lambda z: loss(z, LABELS, pairs), (draw(8).requires_grad_(),), atol=1e-6)


def test_a_balanced_plan_of_mined_pairs_is_possible_and_solved():
    """The plan of the mined pairs against plain Sinkhorn iterations with the masses of a plan written out here."""
    z, share = draw(8), 0.1
    positive, negative = masks_of(MINED, (8, 8))
    rows = positive.any(1)
    allowed = (positive | negative)[rows]
    columns = allowed.any(0)
    allowed, target = allowed[:, columns].double(), positive[rows][:, columns].double()
    target = target / target.sum(1, keepdim=True)
    possible = (1 - share) * target + share * allowed / allowed.sum(1, keepdim=True)
    x = F.normalize(z, dim=1)
    log_k = (x[rows] @ x[columns].T - 1) / 0.3 + allowed.log()
    a, b = possible.new_zeros(len(log_k)), possible.new_zeros(log_k.shape[1])
    for _ in range(5000):
        a = possible.sum(1).log() - torch.logsumexp(log_k + b, 1)
        b = possible.sum(0).log() - torch.logsumexp(log_k + a[:, None], 0)
    log_p = (log_k + a[:, None] + b).masked_fill(target == 0, 0)
    losses = (torch.xlogy(target, target) - target * log_p).sum(1)
    expected = losses.sum() / (allowed.sum(1) > 1).sum()  # the loss of an anchor with one column is 0
    loss = SupConLoss(0.3, method="gca-ince", share=share, iterations=5000, tol=1e-13)(z, LABELS, MINED)
    torch.testing.assert_close(loss, expected, rtol=1e-7, atol=1e-9)


class Sum(nn.Module):
    """A reducer: what the library passes to its own."""

    def forward(self, loss_dict, embeddings, labels):
        info = loss_dict["loss"]
        assert list(loss_dict) == ["loss"]
        assert info["reduction_type"] == "element"
        assert torch.equal(info["indices"], torch.arange(len(embeddings)))
        assert labels.shape == (len(embeddings),)
        return info["losses"].sum()


def test_a_reducer_gets_the_loss_of_each_anchor():
    z = draw(8).requires_grad_()
    positive, negative = masks(LABELS)
    expected = supcon(z, z, positive, negative, 0.1) * 7  # all but the one that is alone
    assert_same(SupConLoss(reducer=Sum())(z, LABELS), expected, [z])


def test_without_positives_or_negatives_the_loss_is_zero():
    z = draw(4).requires_grad_()
    for labels in (torch.arange(4), torch.zeros(4, dtype=torch.long)):
        loss = SupConLoss()(z, labels)
        loss.backward()
        assert float(loss.detach()) == 0
        assert not z.grad.any()


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: SupConLoss(eps=0.1), "write temperature="),
        (lambda: SupConLoss(method="clip"), "two directions"),
        (lambda: SupConLoss()(draw(4)), "pass labels"),
        (lambda: SupConLoss()(draw(4), torch.arange(3)), "one for each of 4 embeddings"),
        (lambda: SupConLoss()(draw(4), torch.arange(4), ref_emb=draw(3)), "ref_labels"),
        (lambda: SupConLoss()(draw(4), torch.arange(4), (torch.zeros(1),) * 2), "3 or 4"),
        (lambda: SupConLoss()(draw(4), None, [torch.tensor([0]), torch.tensor([1])] * 2), "positive and negative"),
        (lambda: SupConLoss()(draw(4).log(), torch.tensor([0, 0, 1, 1])), "NaN or Inf"),
    ],
)
def test_a_wrong_supcon_loss_is_refused(mistake, words):
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        mistake()


PML = "pytorch_metric_learning"


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_supcon_is_that_of_the_original(temperature):
    theirs = original(f"{PML}.losses", "SupConLoss")(temperature)
    z, other, ref = draw(8).requires_grad_(), draw(5, seed=1).requires_grad_(), torch.tensor([0, 1, 2, 2, 5])
    ours = SupConLoss(temperature)
    for pairs in (None, MINED, TRIPLETS):
        assert_same(ours(z, LABELS, pairs), theirs(z, LABELS, pairs), [z])
    assert_same(
        ours(z, LABELS, ref_emb=other, ref_labels=ref), theirs(z, LABELS, ref_emb=other, ref_labels=ref), [z, other]
    )


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_wrapper_for_views_takes_our_loss(symmetric):
    wrapper, theirs = original(f"{PML}.losses", "SelfSupervisedLoss"), original(f"{PML}.losses", "SupConLoss")
    z1, z2 = draw(6, seed=1).requires_grad_(), draw(6, seed=2).requires_grad_()
    got, expected = (wrapper(loss, symmetric=symmetric)(z1, z2) for loss in (SupConLoss(0.2), theirs(0.2)))
    assert_same(got, expected, [z1, z2])
    assert torch.isfinite(wrapper(SupConLoss(0.2, method="gca-uot"), symmetric=symmetric)(z1, z2))


def test_the_memory_over_batches_takes_our_loss():
    memory, theirs = original(f"{PML}.losses", "CrossBatchMemory"), original(f"{PML}.losses", "SupConLoss")
    miner = original(f"{PML}.miners", "MultiSimilarityMiner")
    for mine in (None, miner(epsilon=0.5)):
        ours, other = memory(SupConLoss(0.2), 4, 12, mine), memory(theirs(0.2), 4, 12, mine)
        balanced = memory(SupConLoss(0.2, method="gca-ince"), 4, 12, mine)
        for step in range(4):
            z = draw(8, seed=step).requires_grad_()
            assert_same(ours(z, LABELS), other(z, LABELS), [z])
            assert torch.isfinite(balanced(z, LABELS))


@pytest.mark.parametrize("name", ["MeanReducer", "AvgNonZeroReducer", "ThresholdReducer", "ClassWeightedReducer"])
def test_reducers_of_the_original_work(name):
    reducer, theirs = original(f"{PML}.reducers", name), original(f"{PML}.losses", "SupConLoss")
    options = {"ThresholdReducer": {"low": 1.0}, "ClassWeightedReducer": {"weights": torch.arange(1.0, 5.0)}}
    z, made = draw(8).requires_grad_(), reducer(**options.get(name, {}))
    assert_same(SupConLoss(0.2, reducer=made)(z, LABELS), theirs(0.2, reducer=made)(z, LABELS), [z])


def nt_xent_of_pairs(z: Tensor, other: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Each positive alone against the negatives of its anchor."""
    logits = F.normalize(z, dim=1) @ F.normalize(other, dim=1).T / temperature
    losses = [
        torch.logsumexp(torch.cat([logits[i, j].view(1), logits[i][negative[i]]]), 0) - logits[i, j]
        for i, j in positive.nonzero().tolist()
    ]
    return torch.stack(losses).mean()


@pytest.mark.parametrize("pairs", [None, MINED, TRIPLETS])
def test_a_positive_pair_is_a_row_of_nt_xent(pairs):
    z = draw(8).requires_grad_()
    masked = masks(LABELS) if pairs is None else masks_of(pairs, (8, 8))
    assert_same(PairedNTXentLoss(0.2)(z, LABELS, pairs), nt_xent_of_pairs(z, z, *masked, 0.2), [z])
    other, theirs = draw(5, seed=1).requires_grad_(), torch.tensor([0, 1, 2, 2, 5])
    loss = PairedNTXentLoss(0.2)(z, LABELS, ref_emb=other, ref_labels=theirs)
    assert_same(loss, nt_xent_of_pairs(z, other, *masks(LABELS, theirs), 0.2), [z, other])


@pytest.mark.parametrize("name", ALIGNED)
def test_any_method_takes_positive_pairs_as_rows(name):
    loss = PairedNTXentLoss(0.3, method=name).double()
    assert torch.autograd.gradcheck(lambda z: loss(z, LABELS), (draw(8).requires_grad_(),), atol=1e-6)


class Euclidean(nn.Module):
    """What the library calls a distance."""

    is_inverted = False

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x[:, None] - y).square().sum(2).add(1e-12).sqrt()


def test_a_distance_is_the_cost_of_the_kernel():
    z = draw(8).requires_grad_()
    positive, negative = masks(LABELS)
    logits = -Euclidean()(z, z) / 0.5
    log_p = logits - torch.logsumexp(logits.masked_fill(~(positive | negative), -torch.inf), 1, keepdim=True)
    expected = torch.stack([-log_p[i][positive[i]].mean() for i in range(8) if positive[i].any()]).mean()
    assert_same(SupConLoss(0.5, distance=Euclidean())(z, LABELS), expected, [z])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_loss_has_the_dtype_of_its_embeddings(dtype):
    for kind in (SupConLoss, PairedNTXentLoss):
        assert kind()(draw(8).to(dtype), LABELS).dtype == dtype


@pytest.mark.filterwarnings("ignore:DistributedLossWrapper")
@pytest.mark.parametrize("name", ["SupConLoss", "NTXentLoss"])
def test_the_other_doors_of_the_original_take_our_loss(name):
    wrapper = original(f"{PML}.utils.distributed", "DistributedLossWrapper")
    theirs, ours = original(f"{PML}.losses", name), {"SupConLoss": SupConLoss, "NTXentLoss": PairedNTXentLoss}[name]
    lp, regular = original(f"{PML}.distances", "LpDistance"), original(f"{PML}.regularizers", "LpRegularizer")
    z = draw(8).requires_grad_()
    assert_same(wrapper(ours(0.2))(z, LABELS), wrapper(theirs(0.2))(z, LABELS), [z])
    for options in ({"distance": lp()}, {"embedding_regularizer": regular(), "embedding_reg_weight": 0.3}):
        assert_same(ours(0.2, **options)(z, LABELS), theirs(0.2, **options)(z, LABELS), [z])


def test_miners_of_the_original_work():
    theirs, z = original(f"{PML}.losses", "SupConLoss"), draw(8).requires_grad_()
    for name in ("BatchHardMiner", "MultiSimilarityMiner", "TripletMarginMiner"):
        pairs = original(f"{PML}.miners", name)()(z, LABELS)
        assert_same(SupConLoss(0.2)(z, LABELS, pairs), theirs(0.2)(z, LABELS, pairs), [z])


# --- lightly --------------------------------------------------------------------------------------------------


def nt_xent(z0: Tensor, z1: Tensor, temperature: float, rank: int | None = None) -> Tensor:
    """NT-Xent by a mask over all pairs; with a rank, of its rows among the features of two processes."""
    sides = [F.normalize(z, dim=1) for z in (z0, z1)]
    mine, (n, start) = torch.cat(sides), (len(z0), 0)
    if rank is not None:
        sides = [torch.cat(torch.distributed.nn.all_gather(z)) for z in sides]
        start = rank * n
    everyone, m = torch.cat(sides), len(sides[0])
    own = torch.cat([torch.arange(n) + start, torch.arange(n) + start + m])
    logits = mine @ everyone.T / temperature
    logits = logits.masked_fill(torch.arange(2 * m) == own[:, None], -torch.inf)
    return F.cross_entropy(logits, (own + m) % (2 * m))


def moco(q: Tensor, k: Tensor, keys: Tensor, temperature: float) -> Tensor:
    q, k = F.normalize(q, dim=1), F.normalize(k, dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ keys.T], 1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def test_an_nt_xent_loss_is_made_like_that_of_lightly():
    made = inspect.signature(NTXentLoss).parameters
    assert [made[name].default for name in ("temperature", "memory_bank_size", "gather_distributed")] == [0.5, 0, False]
    assert list(made)[:3] == ["temperature", "memory_bank_size", "gather_distributed"]
    assert list(inspect.signature(NTXentLoss.forward).parameters) == ["self", "out0", "out1"]


def test_the_default_loss_is_nt_xent():
    z0, z1 = draw(6, seed=1).requires_grad_(), draw(6, seed=2).requires_grad_()
    assert_same(NTXentLoss(0.2)(z0, z1), nt_xent(z0, z1, 0.2), [z0, z1])


@pytest.mark.parametrize("name", ["simclr", "ince"])
def test_a_memory_bank_is_that_of_moco(name):
    loss = NTXentLoss(0.2, memory_bank_size=(12, 4), method=name).double()
    torch.testing.assert_close(loss.memory_bank().norm(dim=1), torch.ones(12, dtype=torch.float64), rtol=0, atol=1e-6)
    keys = F.normalize(loss.memory_bank(), dim=1)  # their norms are those of float32
    for step in range(5):
        z0, z1 = draw(4, seed=2 * step).requires_grad_(), draw(4, seed=2 * step + 1).requires_grad_()
        assert_same(loss(z0, z1), moco(z0, z1, keys, 0.2), [z0, z1])
        keys[4 * (step % 3) : 4 * (step % 3) + 4] = F.normalize(z1.detach(), dim=1)
    loss(draw(4), draw(4))  # without a gradient nothing is stored
    torch.testing.assert_close(loss.memory_bank(), keys)


@pytest.mark.parametrize("size", [0, (12, 4)])
@pytest.mark.parametrize("name", ALIGNED)
def test_any_method_learns_in_the_place_of_nt_xent(name, size):
    torch.manual_seed(0)
    loss = NTXentLoss(0.2, size, method=name).double()
    z0, z1 = draw(6, seed=1).requires_grad_(), draw(6, seed=2).requires_grad_()
    value = loss(z0, z1)
    (grad,) = torch.autograd.grad(value, z0)
    assert torch.isfinite(value)
    assert grad.norm() > 1e-4


@pytest.mark.parametrize("size", [-7, (), (7, 4, 2), (7, 0.5)])
def test_a_memory_bank_has_a_size(size):
    with pytest.raises(ValueError, match=re.escape("(4096, 128)")):
        NTXentLoss(memory_bank_size=size)


@pytest.mark.parametrize("size", [12, (12,)])
def test_a_memory_bank_gets_its_dimension_from_the_first_batch(size):
    loss = NTXentLoss(0.2, size)
    assert loss.memory_bank is None
    z0, z1 = draw(4, seed=1).requires_grad_(), draw(4, seed=2)
    value = loss(z0, z1)
    assert loss.memory_bank.keys.shape == (12, 4)
    assert loss.memory_bank.keys.dtype == torch.float64
    torch.testing.assert_close(loss.memory_bank.keys[:4], F.normalize(z1, dim=1))
    assert torch.isfinite(value)


def test_a_negative_temperature_prefers_unlike_views():
    z0, z1 = draw(6, seed=1).requires_grad_(), draw(6, seed=2).requires_grad_()
    assert_same(NTXentLoss(-0.5)(z0, z1), nt_xent(z0, z1, -0.5), [z0, z1])
    with pytest.raises(ValueError, match="must not be 0"):
        NTXentLoss(0.0)


def test_gathering_needs_torch_distributed(monkeypatch):
    monkeypatch.setattr(dist, "is_available", lambda: False)
    with pytest.raises(ValueError, match="gather_distributed=True needs"):
        NTXentLoss(gather_distributed=True)


def test_the_loss_of_one_pair_is_exactly_zero():
    for seed in range(20):
        z0, z1 = draw(1, 8, seed).float().requires_grad_(), draw(1, 8, seed + 50).float().requires_grad_()
        for name in ("ince", "gca-ince", "simclr", "iot", "iot-uni"):
            loss = gcalign.method(name)(z0, z1)
            assert loss.item() == 0
            assert float(torch.autograd.grad(loss, z0)[0].abs().max()) < 1e-5
        assert NTXentLoss(0.1)(z0, z1).item() == 0


def test_nt_xent_is_that_of_the_original():
    theirs = original("lightly.loss", "NTXentLoss")
    z0, z1 = draw(6, seed=1).requires_grad_(), draw(6, seed=2).requires_grad_()
    assert_same(NTXentLoss(0.2)(z0, z1), theirs(0.2)(z0, z1), [z0, z1])
    made = []
    for kind in (NTXentLoss, theirs):
        torch.manual_seed(0)
        made.append(kind(0.2, memory_bank_size=(12, 4)).double())
    assert torch.equal(made[0].memory_bank.keys, made[1].memory_bank.bank)
    made[1].memory_bank.bank = F.normalize(made[1].memory_bank.bank, dim=1)  # their norms are those of float32
    for step in range(5):
        z0, z1 = draw(4, seed=2 * step).requires_grad_(), draw(4, seed=2 * step + 1).requires_grad_()
        assert_same(made[0](z0, z1), made[1](z0, z1), [z0, z1])


def lightly_main(rank, theirs):
    mine, found = slice(4 * rank, 4 * rank + 4), {}
    keys = F.normalize(draw(16, seed=7), dim=1)
    for size in (0, (16, 4)):
        ours = NTXentLoss(0.2, size, gather_distributed=True).double()
        reference = original("lightly.loss", "NTXentLoss")(0.2, size, True).double() if theirs else None
        if size:
            ours.memory_bank.keys.copy_(keys)
            if theirs:
                reference.memory_bank.bank.copy_(keys)
        for step in range(3):
            for kind in ("ours", "reference"):
                leaves = [draw(8, seed=2 * step + k)[mine].clone().requires_grad_() for k in (0, 1)]
                if kind == "ours":
                    loss = ours(*leaves)
                elif theirs:
                    loss = reference(*leaves)
                else:
                    loss = moco(*leaves, keys, 0.2) if size else nt_xent(*leaves, 0.2, rank)
                found[kind, (str(size), step)] = (loss.detach(), *torch.autograd.grad(loss, leaves))
            first = 8 * step % 16
            keys[first : first + 8] = F.normalize(draw(8, seed=2 * step + 1), dim=1)
        keys = F.normalize(draw(16, seed=7), dim=1)
    return found


@needs_gloo
@pytest.mark.parametrize("theirs", [False, True])
def test_nt_xent_of_two_processes_is_that_of_lightly(tmp_path, theirs):
    if theirs:
        original("lightly.loss", "NTXentLoss")
    for found in ranks(lightly_main, tmp_path, 2, theirs):
        for kind, case in list(found):
            if kind == "ours":
                torch.testing.assert_close(found["ours", case], found["reference", case], rtol=1e-8, atol=1e-10)


def bank_main(rank):
    torch.manual_seed(rank)
    loss = NTXentLoss(0.2, (16, 4), True, method="gca-ince").double()
    loss(draw(4, seed=rank).requires_grad_(), draw(4, seed=rank + 2))
    return loss.memory_bank()


@needs_gloo
def test_banks_of_all_ranks_become_equal(tmp_path):
    one, two = ranks(bank_main, tmp_path)
    assert torch.equal(one, two)
    assert torch.equal(one[:8], F.normalize(torch.cat([draw(4, seed=2), draw(4, seed=3)]), dim=1))
