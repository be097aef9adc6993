"""Table 1 of the paper: each method is a composition (tab:diff, tab:new_combine)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gcalign.alignment import Alignment
from gcalign.constraints import Columns, Rows
from gcalign.divergences import KL, Robust, Uniformity
from gcalign.errors import did_you_mean
from gcalign.kernels import Cosine, SquaredEuclidean
from gcalign.objective import Objective
from gcalign.symmetric import Symmetric
from gcalign.targets import Labels

Factory = Callable[..., Objective]
_REGISTRY: dict[str, Factory] = {}


def register(name: str) -> Callable[[Factory], Factory]:
    """Make a composition known under a name; options after its own go to `Alignment`."""

    def add(factory: Factory) -> Factory:
        if name in _REGISTRY:
            raise ValueError(
                f"method {name!r} is registered already, by {_REGISTRY[name].__module__}; choose another name"
            )
        _REGISTRY[name] = factory
        return factory

    return add


def names() -> tuple[str, ...]:
    """Every registered method, the paper's first and in its order."""
    return tuple(_REGISTRY)


def options(name: str) -> tuple[str, ...]:
    """What `method(name, …)` takes: the method's own options, then those of every alignment."""
    own = [p.name for p in inspect.signature(_factory(name)).parameters.values() if p.kind is not p.VAR_KEYWORD]
    common = [p.name for p in inspect.signature(Alignment).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return tuple(dict.fromkeys([*own, *common, "target"]))


def method(name: str, **chosen: Any) -> Objective:
    """The criterion called `name`: `method("gca-uot", eps=0.5)(z1, z2)`."""
    factory, known = _factory(name), options(name)
    for option in chosen:
        if option not in known:
            raise TypeError(f"{name} has no option {option!r}; {did_you_mean(option, known)}")
    return factory(**chosen)


def _factory(name: str) -> Factory:
    if name not in _REGISTRY:
        raise ValueError(f"method {name!r} is unknown; {did_you_mean(str(name), _REGISTRY)}")
    return _REGISTRY[name]


@register("ince")
def ince(eps: float = 0.5, **common: Any) -> Alignment:
    """InfoNCE: one row projection (Theorem thm:cl_eq_ot)."""
    return Alignment(Cosine(eps), (Rows(),), KL(), **common)


@register("gca-ince")
def gca_ince(eps: float = 0.5, **common: Any) -> Alignment:
    """Both marginals instead of one: INCE iterated to convergence (Theorem thm:lowest)."""
    return Alignment(Cosine(eps), (Rows(), Columns()), KL(), **common)


@register("rince")
def rince(eps: float = 0.5, q: float = 0.6, lam: float = 0.01, scale: str = "kernel", **common: Any) -> Alignment:
    """Robust InfoNCE: the robust divergence of one row projection (Theorem thm:rince)."""
    return Alignment(Cosine(eps), (Rows(),), Robust(q, lam, scale), **common)


@register("gca-rince")
def gca_rince(eps: float = 0.5, q: float = 0.6, lam: float = 0.01, scale: str = "kernel", **common: Any) -> Alignment:
    """The robust divergence on both marginals (eq:gcarince)."""
    return Alignment(Cosine(eps), (Rows(), Columns()), Robust(q, lam, scale), **common)


@register("simclr")
def simclr(eps: float = 0.5, layout: str = "joint", **common: Any) -> Alignment:
    """NT-Xent: InfoNCE with all other embeddings of the batch as negatives."""
    return Alignment(Cosine(eps), (Rows(),), KL(), layout=layout, **common)


@register("byol")
def byol(eps: float = 1.0, **common: Any) -> Alignment:
    """‖q(z') − z''‖² of normalised embeddings: no constraint, no mass terms (Theorem thm:byol).

    z1 is the prediction and z2 the momentum twin's projection, without gradient; training supplies both.
    """
    return Alignment(SquaredEuclidean(eps), (), KL(mass=False), **common)


@register("iot")
def iot(eps: float = 0.5, layout: str = "joint", **common: Any) -> Alignment:
    """Inverse optimal transport: both marginals over all embeddings of the batch."""
    return Alignment(Cosine(eps), (Rows(), Columns()), KL(), layout=layout, **common)


@register("iot-uni")
def iot_uni(eps: float = 0.5, weight: float = 0.2, layout: str = "joint", **common: Any) -> Alignment:
    """IOT and a uniformity term on the negatives."""
    return Alignment(Cosine(eps), (Rows(), Columns()), KL() + weight * Uniformity(), layout=layout, **common)


@register("gca-uot")
def gca_uot(
    eps: float = 0.5,
    relax: tuple[float, float] = (0.2, 0.2),
    q: float = 0.6,
    lam: float = 0.01,
    scale: str = "kernel",
    w_kl: float = 1.0,
    w_robust: float = 0.02,
    **common: Any,
) -> Alignment:
    """Relaxed marginals, their Fenchel–Young loss and the robust divergence (eq:uot; the authors' weights)."""
    if not isinstance(relax, (tuple, list)) or len(relax) != 2:
        raise ValueError(f"relax={relax!r} must be two penalties, (rows, columns); the paper uses (0.2, 0.2)")
    divergence = w_kl * KL() + w_robust * Robust(q, lam, scale)
    return Alignment(Cosine(eps), (Rows(relax[0]), Columns(relax[1])), divergence, **common)


@register("supcon")
def supcon(eps: float = 0.5, layout: str = "joint", **common: Any) -> Alignment:
    """Supervised contrastive learning: one row projection against the label plan, without the target's entropy."""
    return Alignment(Cosine(eps), (Rows(),), KL(entropy=False), layout=layout, **{"target": Labels(), **common})


@register("clip")
def clip(eps: float = 0.07, learnable: bool = True, **common: Any) -> Symmetric:
    """InfoNCE both ways between two modalities, its temperature learnt."""
    return Symmetric(Alignment(Cosine(eps, learnable=learnable), (Rows(),), KL(), **common))
