"""The named methods. Each is one composition of kernel, constraints, divergence and target (Table 1, tab:diff).

Every function returns the criterion, an `nn.Module` that is called as `criterion(z1, z2)`. All have `eps`, the
temperature ε, and in `common` the options of every `Alignment`, e.g. `layout`, `iterations` or `target`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gcalign.alignment import Alignment, Symmetric
from gcalign.constraints import Columns, Rows, TotalMass
from gcalign.divergences import KL, Logistic, Robust, Uniformity
from gcalign.errors import did_you_mean, plain
from gcalign.kernels import Cosine, SquaredEuclidean
from gcalign.objective import Objective
from gcalign.targets import Labels

Factory = Callable[..., Objective]
_REGISTRY: dict[str, Factory] = {}
_SWITCHES = ("learnable", "center")  # of the kernel
_EPS = ("temperature", "temp", "tau")  # what others call ε


def register(name: str) -> Callable[[Factory], Factory]:
    """Register a function that returns a criterion, so that `method(name)` finds it. Use it as a decorator.

    Args:
        name: a name that is not yet registered.

    Example:
        >>> import gcalign
        >>> @gcalign.register("my-method")
        ... def my_method(eps=0.1, **common):
        ...     return gcalign.Alignment(gcalign.Cosine(eps), (gcalign.Rows(),), gcalign.SquaredL2(), **common)
        >>> gcalign.method("my-method").divergence
        SquaredL2()
    """

    def add(factory: Factory) -> Factory:
        if name in _REGISTRY:
            raise ValueError(
                f"method {name!r} is registered already, by {_REGISTRY[name].__module__}; choose another name"
            )
        _REGISTRY[name] = factory
        return factory

    return add


def names() -> tuple[str, ...]:
    """The names of all registered methods.

    Example:
        >>> import gcalign
        >>> gcalign.methods.names()[:4]
        ('ince', 'gca-ince', 'rince', 'gca-rince')
    """
    return tuple(_REGISTRY)


def options(name: str) -> tuple[str, ...]:
    """The options of `method(name, …)`: first those of the method, then those of every `Alignment`.

    Example:
        >>> import gcalign
        >>> gcalign.methods.options("rince")[:4]
        ('eps', 'q', 'lam', 'scale')
    """
    own = [p.name for p in inspect.signature(_factory(name)).parameters.values() if p.kind is not p.VAR_KEYWORD]
    common = [p.name for p in inspect.signature(Alignment).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return tuple(dict.fromkeys([*own, *common, "target", *_SWITCHES]))


def method(name: str, **chosen: Any) -> Objective:
    """Build the criterion of a named method (Table 1, tab:diff).

    Args:
        name: e.g. "ince", "gca-ince" or "gca-uot"; `methods.names()` has all of them.
        chosen: options, as `methods.options(name)` lists them. `learnable=True` makes ε a parameter,
            and `center=True` subtracts the mean direction of each side, see `Cosine`.

    Example:
        >>> import torch, gcalign
        >>> z1, z2 = torch.eye(4, requires_grad=True), torch.eye(4)
        >>> gcalign.method("gca-uot", eps=0.5)(z1, z2).backward()
        >>> z1.grad.shape
        torch.Size([4, 4])
    """
    factory, known = _factory(name), options(name)
    for option in chosen:
        if option in _EPS and option not in known:
            right = {"eps" if key == option else key: value for key, value in chosen.items()}
            call = ", ".join([repr(name), *(f"{key}={value!r}" for key, value in right.items())])
            raise TypeError(f"{option}={chosen[option]!r} is called eps here; write gcalign.method({call})")
        if option not in known:
            raise TypeError(f"{name} has no option {option!r}; {did_you_mean(option, known)}")
    own = inspect.signature(factory).parameters
    learnable, center = (option not in own and chosen.pop(option, False) for option in _SWITCHES)
    for option, on in zip(_SWITCHES, (learnable, center), strict=True):
        if not isinstance(on, bool):
            raise TypeError(f"{option}={on!r} must be True or False")
    made: Any = factory(**{option: plain(value) for option, value in chosen.items()})
    kernel = getattr(made, "alignment", made).kernel
    if learnable:
        kernel.learn()
    if center and not isinstance(kernel, Cosine):
        raise ValueError(f"center=True needs a cosine kernel, and {name} has {kernel!r}; leave it out")
    if center:
        kernel.center = True
    return made


def _factory(name: str) -> Factory:
    if name not in _REGISTRY:
        raise ValueError(f"method {name!r} is unknown; {did_you_mean(str(name), _REGISTRY)}")
    return _REGISTRY[name]


@register("ince")
def ince(eps: float = 0.1, **common: Any) -> Alignment:
    """InfoNCE: KL on one row projection of the kernel (Eq. 1, eq:INCE; Theorem 1, thm:cl_eq_ot).

    Example:
        >>> import torch, gcalign
        >>> round(float(gcalign.methods.ince(eps=0.1)(torch.eye(4), torch.eye(4))), 2)
        0.0
    """
    return Alignment(Cosine(eps), (Rows(),), KL(), **common)


@register("gca-ince")
def gca_ince(eps: float = 0.1, **common: Any) -> Alignment:
    """GCA-INCE: KL with constraints on rows and columns (Theorem 5, thm:lowest).

    Example:
        >>> import gcalign
        >>> gcalign.methods.gca_ince().constraints
        (Rows(), Columns())
    """
    return Alignment(Cosine(eps), (Rows(), Columns()), KL(), **common)


@register("rince")
def rince(eps: float = 0.1, q: float = 0.6, lam: float = 0.01, scale: str = "kernel", **common: Any) -> Alignment:
    """RINCE: the robust divergence of one row projection (Eq. 2, eq:RINCE; Theorem 2, thm:rince).

    Args:
        q, lam, scale: as for `Robust`.

    Example:
        >>> import gcalign
        >>> gcalign.methods.rince(q=0.3).divergence
        Robust(0.3, 0.01)
    """
    return Alignment(Cosine(eps), (Rows(),), Robust(q, lam, scale), **common)


@register("gca-rince")
def gca_rince(eps: float = 0.1, q: float = 0.6, lam: float = 0.01, scale: str = "kernel", **common: Any) -> Alignment:
    """GCA-RINCE: the robust divergence with constraints on rows and columns (Eq. 13, eq:gcarince).

    Args:
        q, lam, scale: as for `Robust`.

    Example:
        >>> import gcalign
        >>> gcalign.methods.gca_rince(iterations=5).constraints
        (Rows(), Columns())
    """
    return Alignment(Cosine(eps), (Rows(), Columns()), Robust(q, lam, scale), **common)


@register("simclr")
def simclr(eps: float = 0.1, layout: str = "joint", **common: Any) -> Alignment:
    """SimCLR's NT-Xent: −log(K_ij / Σ_{k≠i} K_ik), averaged over all 2B embeddings i, where j is the other view of i.

    Args:
        layout: "joint" for NT-Xent; "cross" gives `ince`.

    Example:
        >>> import torch, gcalign
        >>> gcalign.methods.simclr().plan(torch.eye(4), torch.eye(4)).shape
        (8, 8)
    """
    return Alignment(Cosine(eps), (Rows(),), KL(), layout=layout, **common)


@register("byol")
def byol(eps: float = 1.0, **common: Any) -> Alignment:
    """BYOL: ‖q(z') − z''‖² of normalised embeddings, without constraints and mass terms (Theorem 4, thm:byol).

    Give the prediction as z1, and the projection by the momentum encoder as z2, without gradient.

    Args:
        eps: the loss is divided by it.

    Example:
        >>> import torch, gcalign
        >>> round(float(gcalign.methods.byol()(torch.eye(4), torch.eye(4).flip(0))), 2)  # ‖e_i − e_j‖² = 2
        2.0
    """
    return Alignment(SquaredEuclidean(eps), (), KL(mass=False), **common)


@register("iot")
def iot(eps: float = 0.1, layout: str = "joint", **common: Any) -> Alignment:
    """IOT, inverse optimal transport: KL(T‖P) with constraints on rows and columns, over all 2B embeddings.

    Args:
        layout: "joint" for IOT; "cross" gives `gca_ince`.

    Example:
        >>> import torch, gcalign
        >>> gcalign.methods.iot().plan(torch.eye(4), torch.eye(4)).shape
        (8, 8)
    """
    return Alignment(Cosine(eps), (Rows(), Columns()), KL(), layout=layout, **common)


@register("iot-uni")
def iot_uni(eps: float = 0.1, weight: float = 0.2, layout: str = "joint", **common: Any) -> Alignment:
    """IOT-uni: the loss of IOT plus a uniformity term, KL(T‖P) + w·KL(Q‖P), with the Q of `Uniformity`.

    Args:
        weight: w, the weight of `Uniformity`.
        layout: "joint" or "cross".

    Example:
        >>> import gcalign
        >>> gcalign.methods.iot_uni().divergence
        KL() + 0.2 * Uniformity()
    """
    return Alignment(Cosine(eps), (Rows(), Columns()), KL() + weight * Uniformity(), layout=layout, **common)


@register("gca-uot")
def gca_uot(
    eps: float = 0.1,
    relax: tuple[float, float] | None = None,
    q: float = 0.6,
    lam: float = 0.01,
    scale: str = "kernel",
    w_kl: float = 1.0,
    w_robust: float = 0.02,
    least_mass: bool | None = None,
    **common: Any,
) -> Alignment:
    """GCA-UOT: relaxed marginals, with their Fenchel–Young loss and the robust divergence (Eq. 9, eq:uot).

    As it is, the plan has at least the mass of the target: its KL term never falls when all similarities rise together,
    which would pull all embeddings together and harm a pretrained encoder. With `relax=` it is the paper's form,
    `gca_uot_paper`, unless `least_mass` is True.

    Args:
        relax: penalties λ of rows and columns; inf is the hard constraint. None: (0.2, 0.2).
        q, lam, scale: as for `Robust`.
        w_kl, w_robust: weights of `KL` and `Robust`; the defaults are the authors' values.
        least_mass: whether the plan has at least the mass of the target, `TotalMass(at_least=True)`. None: if `relax`
            is not given.

    Example:
        >>> import gcalign
        >>> gcalign.methods.gca_uot().constraints
        (Rows(penalty=0.2), Columns(penalty=0.2), TotalMass(at_least=True))
        >>> gcalign.methods.gca_uot(relax=(2.0, 2.0)).constraints
        (Rows(penalty=2.0), Columns(penalty=2.0))
    """
    if least_mass not in (None, True, False):
        raise TypeError(f"least_mass={least_mass!r} must be True, False or None; None is True if relax is not given")
    bounded = relax is None if least_mass is None else least_mass
    sides = _relaxed((0.2, 0.2) if relax is None else relax)
    constraints = (*sides, TotalMass(at_least=True)) if bounded else sides
    return Alignment(Cosine(eps), constraints, w_kl * KL() + w_robust * Robust(q, lam, scale), **common)


@register("gca-uot-paper")
def gca_uot_paper(
    eps: float = 0.1,
    relax: tuple[float, float] = (0.2, 0.2),
    q: float = 0.6,
    lam: float = 0.01,
    scale: str = "kernel",
    w_kl: float = 1.0,
    w_robust: float = 0.02,
    **common: Any,
) -> Alignment:
    """GCA-UOT as in the paper: relaxed marginals and no bound on the mass of the plan (Eq. 9, eq:uot).

    Args:
        relax, q, lam, scale, w_kl, w_robust: as for `gca_uot`.

    Example:
        >>> import gcalign
        >>> gcalign.methods.gca_uot_paper().constraints
        (Rows(penalty=0.2), Columns(penalty=0.2))
    """
    divergence = w_kl * KL() + w_robust * Robust(q, lam, scale)
    return Alignment(Cosine(eps), _relaxed(relax), divergence, **common)


@register("gca-uot-published")
def gca_uot_published(
    eps: float = 0.1,
    relax: tuple[float, float] = (0.2, 0.2),
    q: float = 0.6,
    lam: float = 0.01,
    scale: str = "kernel",
    w_kl: float = 1.0,
    w_robust: float = 0.02,
    **common: Any,
) -> Alignment:
    """GCA-UOT as its published code computes it: −Σ_j T_ij log(P_ij / Σ_k P_ik), in which the row scaling cancels.

    It is InfoNCE on K diag(v), and another loss than `gca_uot`, the Fenchel–Young loss of the relaxed problem.

    Args:
        relax, q, lam, scale, w_kl, w_robust: as for `gca_uot`.

    Example:
        >>> import gcalign
        >>> gcalign.methods.gca_uot_published(w_robust=0.0).divergence
        KL(normalized=True)
    """
    divergence = w_kl * KL(normalized=True) + w_robust * Robust(q, lam, scale)
    return Alignment(Cosine(eps), _relaxed(relax), divergence, **common)


def _relaxed(relax: tuple[float, float]) -> tuple[Rows, Columns]:
    if not isinstance(relax, (tuple, list)) or len(relax) != 2:
        raise ValueError(f"relax={relax!r} must be two penalties, (rows, columns); the paper uses (0.2, 0.2)")
    return Rows(relax[0]), Columns(relax[1])


@register("supcon")
def supcon(eps: float = 0.1, layout: str = "joint", **common: Any) -> Alignment:
    """SupCon: −mean_{j ∈ S} log(K_ij / Σ_{k≠i} K_ik) for row i, where S are the others with its label (`Labels()`).

    Args:
        layout: "joint" as published, or "cross".

    Example:
        >>> import torch, gcalign
        >>> gcalign.methods.supcon()(torch.eye(4), torch.eye(4), labels=[0, 0, 1, 1]).shape
        torch.Size([])
    """
    return Alignment(Cosine(eps), (Rows(),), KL(entropy=False), layout=layout, **{"target": Labels(), **common})


@register("clip")
def clip(eps: float = 0.07, learnable: bool = True, **common: Any) -> Symmetric:
    """CLIP: InfoNCE in both directions, L = ½ L(z1, z2) + ½ L(z2, z1), with a learnable temperature.

    Args:
        eps: temperature ε, the initial value if it is learnable.
        learnable: whether ε is trained; pass `criterion.parameters()` to the optimizer.

    Example:
        >>> import gcalign
        >>> len(list(gcalign.methods.clip().parameters()))
        1
    """
    return Symmetric(Alignment(Cosine(eps, learnable=learnable), (Rows(),), KL(), **common))


@register("siglip")
def siglip(eps: float = 0.1, bias: float = -10.0, learnable: bool = True, **common: Any) -> Alignment:
    """SigLIP: each pair is classified by itself, −Σ_ij log σ(±(cos/ε + b))/B, without constraints.

    Args:
        eps: temperature ε, 1 / logit_scale; the initial value if it is learnable.
        bias: b, logit_bias; the initial value if it is learnable.
        learnable: whether ε and b are trained; pass `criterion.parameters()` to the optimizer.

    Example:
        >>> import gcalign
        >>> len(list(gcalign.methods.siglip().parameters()))
        2
    """
    return Alignment(Cosine(eps, learnable=learnable, bias=bias), (), Logistic(), **common)
