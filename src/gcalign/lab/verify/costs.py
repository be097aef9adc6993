"""What the paper says of cost: that iterations stay out of the backward pass, and that GCA-UOT saves FLOPs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gcalign.lab import paper
from gcalign.lab.verify import published
from gcalign.lab.verify.claims import Case, Draw, RandomBatch, claim
from gcalign.public import method, solve

CONVERGED, TRUNCATED = (3000, 1e-12), (5, 0.0)  # iterations and tol


def _gradient(loss: Tensor, batch: RandomBatch) -> Tensor:
    return torch.cat(torch.autograd.grad(loss, (batch.z1, batch.z2)))


def _detached(batch: RandomBatch, stop: tuple[int, float]) -> Tensor:
    """log P as a function of log K with u and v held constant."""
    plan = solve(batch.log_k.detach(), iterations=stop[0], tol=stop[1])
    return batch.log_k + plan.log_u[:, None] + plan.log_v


def _kl(log_p: Tensor) -> Tensor:
    """KL(I‖P) with its mass terms, but for the constant."""
    return log_p.exp().sum() / len(log_p) - log_p.diagonal().mean()


def _off(got: Tensor, truth: Tensor) -> float:
    return float((got - truth).norm() / truth.norm())


def _drawn(draw: Draw) -> RandomBatch:
    batch = draw.batch((8, 16), (4, 8), eps=(0.4, 1.0))
    batch.z1.requires_grad_()
    batch.z2.requires_grad_()
    return batch


def _library(name: str, batch: RandomBatch, stop: tuple[int, float], gradient: str, **options: Any) -> Tensor:
    criterion = method(name, eps=batch.eps, iterations=stop[0], tol=stop[1], gradient=gradient, **options)
    return _gradient(criterion(batch.z1, batch.z2), batch)


@claim(
    "backward",
    "Iterations do not affect the backward pass (app:time_complexity): for KL on a converged plan",
    sides=("relative error of the gradient of KL(I‖P) with u and v detached", "=", "0"),
    tell="the envelope theorem: worst relative error {worst.detached:.0e}, with F.cross_entropy(log P) "
    "{worst.normalised:.0e}; but −log P at the positives, as lm:klfg writes the loss, loses its repulsion with the "
    "mass terms: {median.attraction:.0%} off in the median",
    tolerance=1e-6,
)
def backward(draw: Draw) -> Case:
    """Against autograd through every iteration of GCA-INCE."""
    batch = _drawn(draw)
    truth = _library("gca-ince", batch, CONVERGED, "unrolled")
    log_p = _detached(batch, CONVERGED)
    positives = torch.arange(len(log_p))
    normalised = _gradient(torch.nn.functional.cross_entropy(log_p, positives), batch)
    numbers = {
        "detached": _off(_gradient(_kl(_detached(batch, CONVERGED)), batch), truth),
        "normalised": _off(normalised, truth),
        "attraction": _off(_gradient(-_detached(batch, CONVERGED).diagonal().mean(), batch), truth),
    }
    return Case(numbers["detached"], 0.0, numbers, scale=1.0)


@claim(
    "backward truncated",
    "… for KL after five iterations",
    sides=("relative error of the gradient of KL(I‖P) with u and v detached", "=", "0"),
    tell="inexact, not wrong: {median.detached:.0e} in the median, {worst.detached:.2f} at worst",
    tolerance=1e-6,
    kind="slip",
)
def backward_truncated(draw: Draw) -> Case:
    batch = _drawn(draw)
    off = _off(_gradient(_kl(_detached(batch, TRUNCATED)), batch), _library("gca-ince", batch, TRUNCATED, "unrolled"))
    return Case(off, 0.0, {"detached": off}, scale=1.0)


@claim(
    "backward other d_M",
    "… for another d_M, that of GCA-RINCE, on a converged plan",
    sides=("relative error of the gradient of GCA-RINCE with u and v detached", "=", "0"),
    tell="wrong: {median.detached:.0%} off in the median, {worst.detached:.0%} at worst; the envelope theorem asks for "
    "the divergence that the projection minimises",
    tolerance=1e-6,
    kind="substance",
)
def backward_robust(draw: Draw) -> Case:
    batch, q, lam = _drawn(draw), draw.uniform(0.3, 1.0), draw.one_of(0.01, 0.1, 0.5)
    truth = _library("gca-rince", batch, CONVERGED, "unrolled", q=q, lam=lam)
    log_v = solve(batch.log_k.detach(), iterations=CONVERGED[0], tol=CONVERGED[1]).log_v
    rows = (batch.log_k + (log_v - log_v.mean())).exp()  # K diag(v) with mean log v = 0, as the library has it
    loss = ((lam * rows.sum(1)) ** q - rows.diagonal() ** q).mean() / q
    off = _off(_gradient(loss, batch), truth)
    return Case(off, 0.0, {"q": q, "lam": lam, "detached": off}, scale=1.0)


_LEFT_FACTOR = {"mm": 0, "mv": 0, "dot": 0, "bmm": 0, "addmm": 1, "addmv": 1, "baddbmm": 1}
_REDUCTIONS = {"sum", "mean", "prod", "logsumexp", "amax", "amin", "max", "min", "all", "any", "index_add"}
_ALLOCATION = {"empty", "zeros", "ones", "full", "arange", "scalar_tensor", "fill", "zero"}
_MOVEMENT = {"clone", "copy", "_to_copy", "cat", "stack", "index", "index_put", "index_select", "gather", "masked_fill"}
_MOVEMENT |= {"where", "select_backward", "slice_backward"}
_FREE = _MOVEMENT | {f"{new}{name}{like}" for name in _ALLOCATION for new in ("", "new_") for like in ("", "_like")}


class Flops(TorchDispatchMode):
    """Counts 2mnk for a matrix product, one per input element of a reduction, one per output element of the rest."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.total = 0
        self.products = 0  # of that, matrix products

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.removesuffix("_")
        if isinstance(out, Tensor) and not func.is_view and name not in _FREE:
            if name in _LEFT_FACTOR:
                product = 2 * out.numel() * args[_LEFT_FACTOR[name]].shape[-1]
                self.total += product
                self.products += product
            else:
                self.total += args[0].numel() if name in _REDUCTIONS else out.numel()
        return out


def counted(name: str, z1: Tensor, z2: Tensor, **options: Any) -> tuple[float, float]:
    """MFLOP of one forward and backward pass: all, and of these the matrix products."""
    z1, z2 = (z.detach().requires_grad_() for z in (z1, z2))
    with Flops() as counter:
        method(name, **options)(z1, z2).backward()
    return counter.total / 1e6, counter.products / 1e6


@claim(
    "flops",
    "GCA-UOT needs 30 % fewer FLOPs than InfoNCE (4.54 against 6.31 M)",
    sides=("MFLOP of GCA-UOT", "≤", "MFLOP of InfoNCE"),
    tell="MFLOP forward and backward at B = 512, D = 128: INCE {worst.ince:.0f}, GCA-INCE {worst.gca_ince:.0f} and "
    "GCA-UOT {worst.gca_uot:.0f} with 5 iterations, {worst.one_step:.0f} with only one; counted: products 2mnk, "
    "reductions one per input element, other arithmetic one per output element, views and copies free",
    unit="measurements",
    cases=1,
    kind="substance",
)
def fewer_flops(draw: Draw) -> Case:
    z1 = draw.normal(512, 128)
    z2 = z1 + 0.5 * draw.normal(512, 128)
    five: dict[str, Any] = {"iterations": 5, "tol": 0.0}
    losses = {"ince": ("ince", {}), "gca_ince": ("gca-ince", five), "gca_uot": ("gca-uot-paper", five)}
    losses["one_step"] = ("gca-uot-paper", five | {"iterations": 1})
    numbers = {key: counted(name, z1, z2, **options)[0] for key, (name, options) in losses.items()}
    return Case(numbers["gca_uot"], numbers["ince"], {"B": 512, "D": 128, **numbers})


def macs(name: str, rows: int = 128, dim: int = 128) -> float:
    """Millions of multiply-adds in the matrix products of one of the published losses, forward."""
    with Flops() as counter:
        published.LOSSES[name](torch.randn(rows, dim, generator=torch.Generator().manual_seed(0)))
    return counter.products / 2e6


@claim(
    "flops published",
    "6.31, 6.65 and 4.54 MFlops are those of INCE, GCA-INCE and GCA-UOT as published",
    sides=("million multiply-adds in the matrix products of the published loss, 128 × 128", "=", "MFlops of the paper"),
    tell="that is what the published code multiplies, forward, with ten iterations: {worst.INCE:.3f}, "
    "{worst.GCA_INCE:.3f} and {worst.GCA_UOT:.3f} ({worst.checked:.3f} with its checks for zeros); the first two form "
    "diag(u) K diag(v) with dense diagonal matrices, the third does not, and this is the “30 %” saved: INCE written "
    "plainly (NT-Xent) takes {worst.NT_Xent:.2f}",
    unit="losses",
    cases=len(paper.MFLOPS),
    tolerance=0.01,
)
def published_products(draw: Draw) -> Case:
    name = tuple(paper.MFLOPS)[draw.case]
    title, counts = paper.NAMES[name], {key.replace("-", "_"): macs(key) for key in published.LOSSES}
    return Case(macs(title), paper.MFLOPS[name], {"loss": title, **counts})
