"""K_θ: the augmentation kernel (Definition 3, def:gibbs), kept as its logarithm."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gcalign.errors import positive

_PAPER = "the paper uses 0.5"
SMALLEST = 1e-30  # ε: 1/ε must be a number of float32
SMALLEST_OF_UNIT_ROWS = 1e-6  # ε: a cosine of float32 is rounded to 6e-8, and that is divided by ε
LEAST = 0.01  # of a learnable ε: CLIP keeps its logit_scale, 1/ε, at 100 or less


class Factors(NamedTuple):
    """log K = scale·φ ψᵀ + r ⊕ c, where r and c hold one number per row (column), or one for all.

    `bound` is an upper bound on |scale·φ ψᵀ| that is known without reading the entries.
    """

    phi: Tensor  # [n, k]
    psi: Tensor  # [m, k]
    r: Tensor  # [n] or [1]
    c: Tensor  # [m] or [1]
    scale: float = 1.0
    bound: float = math.inf


class Kernel(nn.Module, ABC):
    """Base class of kernels: log K_ij = −C(x_i, y_j)/ε for the embeddings of the two sides (Definition 3, def:gibbs).

    Your own kernel overrides `cost`. It can also override `features`, which prepares each embedding. Its matrix is
    stored whole unless it also overrides `factors`.

    Args:
        eps: temperature ε of at least 1e-30; the paper uses 0.5.
        learnable: whether ε is a parameter that is trained. It then stays at 0.01 or more, as in CLIP.

    Example:
        >>> import torch, gcalign
        >>> class Manhattan(gcalign.Kernel):
        ...     def cost(self, x, y):
        ...         return torch.cdist(x, y, p=1)
        >>> criterion = gcalign.Alignment(Manhattan(eps=1.0), (gcalign.Rows(),), gcalign.KL())
        >>> criterion(torch.eye(3), torch.eye(3)).shape
        torch.Size([])
    """

    def __init__(self, eps: float, *, learnable: bool = False) -> None:
        super().__init__()
        eps = positive("eps", eps, _PAPER, least=SMALLEST)
        if not isinstance(learnable, bool):
            raise TypeError(f"learnable={learnable!r} must be True or False; True trains eps")
        self._eps, self._least = eps, math.log(min(LEAST, eps))
        self.log_eps: nn.Parameter | None = None
        if learnable:
            self.learn()

    def learn(self) -> None:
        """Make ε a parameter. It is log ε, so that ε stays positive."""
        self.log_eps = nn.Parameter(torch.tensor(math.log(self._eps)))

    @property
    def learnable(self) -> bool:
        """Whether ε is a parameter."""
        return self.log_eps is not None

    @torch.no_grad()
    def clamp_(self) -> None:
        """Bring the parameter of a learnable ε back to its bound; call it after the optimiser's step, as CLIP does.

        ε itself is at its bound in any case. Without this call, the parameter can move on beyond it.
        """
        if self.log_eps is not None:
            self.log_eps.clamp_(min=self._least)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.log_eps is not None:
            destination[f"{prefix}least_log_eps"] = torch.tensor(self._least, dtype=torch.float64)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # the bound of the criterion that was saved: this one may have been made with another ε
        bound = state_dict.pop(f"{prefix}least_log_eps", None)
        if bound is not None and self.log_eps is not None:
            self._least = float(bound)
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def eps(self) -> Tensor | float:
        """Temperature ε: a number, or a tensor with a gradient if it is learnable."""
        if self.log_eps is None:
            return self._eps
        beyond = (self.log_eps.clamp(min=self._least) - self.log_eps).detach()  # 0 unless it is too small
        return (self.log_eps + beyond).exp()

    def features(self, z: Tensor) -> Tensor:  # [n, d] -> [n, d]
        """The features that `cost` compares, computed from each embedding separately."""
        return z

    @abstractmethod
    def cost(self, x: Tensor, y: Tensor) -> Tensor:  # [n, d], [m, d] -> [n, m]
        """The cost C between the features of the two sides."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # [n, d], [m, d] -> [n, m]
        """log K = −C/ε."""
        return -self.cost(x, y) / self._temperature(x)

    def _temperature(self, like: Tensor) -> Tensor | float:
        """ε as a number, or as a tensor of this dtype if it is learnable."""
        eps = self.eps
        return eps.to(like.dtype) if isinstance(eps, Tensor) else eps

    def factors(self, x: Tensor, y: Tensor) -> Factors | None:
        """log K as a matrix product, if the kernel has that form; None is always correct.

        With factors, products with K and its gradient are matrix products. Without them, autograd differentiates the
        rows of log K.
        """
        return None

    def _unchanged(self, kind: type[Kernel]) -> bool:
        """Whether log K is that of `kind`: no subclass has overridden it."""
        own = type(self)
        return own.cost is kind.cost and own.forward is Kernel.forward

    def extra_repr(self) -> str:
        eps = self._eps if self.log_eps is None else float(torch.as_tensor(self.eps).detach())
        return f"eps={eps:g}" + (", learnable=True" if self.learnable else "")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


class Cosine(Kernel):
    """Cosine kernel, log K_ij = −(1 − cos(z'_i, z''_j))/ε: the paper's kernel (Definition 3, def:gibbs).

    Args:
        eps: temperature ε of at least 1e-6; the paper uses 0.5.
        learnable: whether ε, and the bias if there is one, are parameters that are trained, as in CLIP and SigLIP.
        center: whether the mean direction of each side of the batch is subtracted first. InfoNCE is nearly blind to a
            direction that all embeddings share, and this removes it. With several processes, the mean is that of the
            joined batch.
        bias: log K_ij = cos/ε + bias, as in SigLIP. None: −1/ε, so that K ≤ 1.

    Example:
        >>> import torch, gcalign
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> kernel = gcalign.Cosine(eps=0.5)
        >>> kernel.cost(kernel.features(z), kernel.features(z))
        tensor([[0., 1.],
                [1., 0.]])
    """

    bias: nn.Parameter | float | None

    def __init__(
        self, eps: float = 0.5, *, learnable: bool = False, center: bool = False, bias: float | None = None
    ) -> None:
        self.bias = None if bias is None else float(bias)  # before a learnable one becomes a parameter
        super().__init__(eps, learnable=learnable)
        positive("eps", eps, _PAPER, least=SMALLEST_OF_UNIT_ROWS)
        if not isinstance(center, bool):
            raise TypeError(f"center={center!r} must be True or False; True subtracts the mean direction of each side")
        if bias is not None and not math.isfinite(bias):
            raise ValueError(f"bias={bias} must be finite; SigLIP starts at −10")
        self.center = center

    def learn(self) -> None:
        super().learn()
        if isinstance(self.bias, float):
            self.bias = nn.Parameter(torch.tensor(self.__dict__.pop("bias")))

    def features(self, z: Tensor) -> Tensor:
        x = normalize(z)
        return normalize(x - x.mean(0)) if self.center else x

    def cost(self, x: Tensor, y: Tensor) -> Tensor:
        if self.bias is None:
            return 1 - x @ y.T
        return -(x @ y.T) - self.bias * self._temperature(x)

    def factors(self, x: Tensor, y: Tensor) -> Factors | None:
        if not self._unchanged(Cosine):
            return None
        eps, bias = self._temperature(x), self.bias
        r = -1 / eps if bias is None else bias
        scaled = _scaled(x, y, r, x.new_zeros(1), eps, 1.0, unit=True)
        return scaled if not isinstance(bias, float) else scaled._replace(bound=max(scaled.bound, abs(bias)))

    def extra_repr(self) -> str:
        bias = "" if self.bias is None else f", bias={float(torch.as_tensor(self.bias).detach()):g}"
        return super().extra_repr() + ", center=True" * self.center + bias


class SquaredEuclidean(Kernel):
    """Squared-distance kernel, log K_ij = −‖x_i − y_j‖²/ε: the kernel of BYOL (Theorem 4, thm:byol).

    Args:
        eps: temperature ε of at least 1e-6, or 1e-30 if embeddings are not normalised.
        learnable: whether ε is a parameter that is trained.
        normalized: whether embeddings are normalised first.

    Example:
        >>> import torch, gcalign
        >>> x = torch.tensor([[0.0], [3.0]])
        >>> gcalign.SquaredEuclidean(normalized=False).cost(x, x)
        tensor([[0., 9.],
                [9., 0.]])
    """

    def __init__(self, eps: float = 1.0, *, learnable: bool = False, normalized: bool = True) -> None:
        super().__init__(eps, learnable=learnable)
        self.normalized = normalized
        if normalized:
            positive("eps", eps, _PAPER, least=SMALLEST_OF_UNIT_ROWS)

    def features(self, z: Tensor) -> Tensor:
        return normalize(z) if self.normalized else z

    def cost(self, x: Tensor, y: Tensor) -> Tensor:
        return x.square().sum(1)[:, None] + y.square().sum(1) - 2 * (x @ y.T)

    def factors(self, x: Tensor, y: Tensor) -> Factors | None:
        if not self._unchanged(SquaredEuclidean):
            return None
        eps = self._temperature(x)
        beta = 1 / eps
        r, c = (-beta * z.square().sum(1) for z in (x, y))
        return _scaled(x, y, r, c, eps, 2.0, unit=self.normalized)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.normalized else ", normalized=False")


class LogKernel(Kernel):
    """Kernel from any callable that returns log K for the embeddings of the two sides (Definition 3, def:gibbs).

    The matrix is always stored whole; `block` has no effect on it.

    Args:
        log_k: callable (x [n, d], y [m, d]) → log K [n, m]. If it has parameters, make it an `nn.Module`, so that
            `criterion.parameters()` includes them.
        eps: the unit of the potentials and of the penalties λ. It does not change log K.

    Example:
        >>> import torch, gcalign
        >>> kernel = gcalign.LogKernel(lambda x, y: 5 * x @ y.T)
        >>> gcalign.Alignment(kernel, (gcalign.Rows(),), gcalign.KL())(torch.eye(3), torch.eye(3)).shape
        torch.Size([])
    """

    def __init__(self, log_k: Callable[[Tensor, Tensor], Tensor], eps: float = 1.0) -> None:
        super().__init__(eps)
        self.log_k = log_k

    def learn(self) -> None:
        raise ValueError(f"ε of {self!r} does not change log K, so it cannot be learnt; make log_k an nn.Module")

    def cost(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.forward(x, y) * self._eps

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        log_k = self.log_k(x, y)
        if not isinstance(log_k, Tensor) or log_k.shape != (len(x), len(y)):
            got = tuple(log_k.shape) if isinstance(log_k, Tensor) else type(log_k).__name__
            raise ValueError(
                f"the kernel gave {got} for {len(x)} rows and {len(y)} columns; "
                f"it must give log K of shape ({len(x)}, {len(y)})"
            )
        return log_k

    def extra_repr(self) -> str:
        return f"{getattr(self.log_k, '__name__', repr(self.log_k))}, {super().extra_repr()}"


def _scaled(
    x: Tensor, y: Tensor, r: Tensor | float, c: Tensor, eps: Tensor | float, times: float, unit: bool
) -> Factors:
    """`times`·x yᵀ/ε + r ⊕ c. A learnable ε is multiplied into φ, for its gradient; a fixed ε needs no copy."""
    r = r.to(x.dtype).view(-1) if isinstance(r, Tensor) else x.new_full((1,), r)
    if isinstance(eps, Tensor):
        return Factors(x * (times / eps), y, r, c)
    return Factors(x, y, r, c, times / eps, 1.001 * times / eps if unit else math.inf)


def as_kernel(kernel: Kernel | Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    """Return a kernel unchanged; wrap any other callable in a `LogKernel`."""
    if isinstance(kernel, Kernel):
        return kernel
    if not callable(kernel) or isinstance(kernel, type):
        raise TypeError(f"kernel={kernel!r} must be a Kernel or a callable (x, y) -> log K; try gcalign.Cosine(0.5)")
    return LogKernel(kernel)


def normalize(z: Tensor) -> Tensor:
    """Divide each row by its norm. A zero row stays zero and has a finite gradient; no row over- or underflows."""
    if not torch.compiler.is_compiling():
        try:
            return _Normalize.apply(z)[0]  # type: ignore[no-untyped-call]  # torch's own
        except RuntimeError as error:
            if "functorch transforms" not in str(error):
                raise
    return z / _norms(z)  # torch.compile differentiates the formula itself, and fuses it; torch.func needs it


def _norms(z: Tensor) -> Tensor:  # [n, 1]
    """The norm of each row; 1 where a row is so short that its gradient would overflow, NaN where the norm does.

    Squares of float32 numbers neither over- nor underflow in float64. In float64 itself, and on devices without it,
    each row is first divided by its largest entry.
    """
    info = torch.finfo(z.dtype)
    if z.dtype == torch.float32 and z.device.type != "mps":
        norm = torch.linalg.vector_norm(z, dim=1, keepdim=True, dtype=torch.float64).to(z.dtype)
    else:
        largest = z.detach().abs().amax(1, keepdim=True)
        largest = torch.where(largest > 0, largest, 1)
        squared = (z / largest).square().sum(1, keepdim=True)
        norm = torch.where(squared > 0, squared, 1).sqrt() * largest
    norm = torch.threshold_(norm, info.tiny / info.eps, 1)
    return norm.nan_to_num_(nan=math.nan, posinf=math.nan)


class _Normalize(torch.autograd.Function):
    """z/‖z‖ of each row; only the result and the norms are stored for the backward pass."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> tuple[Tensor, Tensor]:
        norm = _norms(z)
        unit = z / norm
        ctx.save_for_backward(unit, norm)  # outputs, so that second derivatives exist
        ctx.set_materialize_grads(False)
        return unit, norm

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, along: Tensor | None) -> Tensor | None:
        unit, norm = ctx.saved_tensors
        through = None if along is None else unit * along
        if grad is None:
            return through
        within = (unit * grad).sum(1, keepdim=True)
        result = torch.addcmul(grad, unit, within, value=-1).div_(norm)
        return result if through is None else result + through
