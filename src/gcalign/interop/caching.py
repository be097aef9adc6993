"""Gradient caching: the gradient of a large batch in the memory of a small one (Gao et al. 2021, arXiv:2101.06983)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from gcalign.errors import count

Encoder = Callable[[Any], Tensor]  # a module, or a method of one


def cached_backward(
    criterion: Callable[..., Tensor],
    encoder: Encoder | Sequence[Encoder],
    views: Sequence[Any],
    *,
    chunk: int,
    backward: Callable[[Tensor], object] = Tensor.backward,
    **known: Any,
) -> Tensor:
    """Compute the gradient of a large batch in the memory of `chunk` samples.

    The result is that of `criterion(encoder(view1), encoder(view2), **known).backward()`. Every chunk is encoded twice:
    first to get the embeddings, the loss and ∂L/∂z, then to propagate ∂L/∂z to the parameters.

    Random layers draw the same numbers in both passes, buffers are updated once, and autocast applies to both passes.
    Layers that mix samples, such as BatchNorm in training mode, see one chunk at a time: the gradient is then that of
    the encoder applied chunk by chunk. Under DistributedDataParallel only the last chunk synchronises; wrap each
    encoder separately.

    Args:
        criterion: called with the embeddings of all samples; its `block` limits the memory of the kernel.
        encoder: a module or a method of one, or a tuple with one for each view, e.g. (image, text). A side without a
            gradient (a frozen encoder or a momentum encoder) is encoded once.
        views: one input for each side: a tensor, or a dict, tuple or list of tensors with the same first dimension. It
            is passed to the encoder as one argument. Sides may differ in length if the criterion allows it.
        chunk: samples that are encoded at once.
        backward: called with the loss; default `Tensor.backward`. For example
            `lambda loss: scaler.scale(loss).backward()`, or Lightning's `self.manual_backward`.
        known: inputs of the criterion, e.g. `ids` or `labels`.

    Returns:
        The loss, detached. Gradients are added to `.grad` of the parameters.

    Raises:
        ValueError, TypeError: if gradients are disabled, or if an input or an output of an encoder has a wrong form.

    Example:
        >>> import torch, gcalign
        >>> encoder, criterion = torch.nn.Linear(5, 3), gcalign.method("gca-ince")
        >>> optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
        >>> view1, view2 = torch.randn(8, 5), torch.randn(8, 5)
        >>> optimizer.zero_grad()
        >>> loss = gcalign.cached_backward(criterion, encoder, (view1, view2), chunk=2)
        >>> loss.shape, encoder.weight.grad.shape
        (torch.Size([]), torch.Size([3, 5]))
        >>> optimizer.step()
    """
    if not torch.is_grad_enabled():
        raise ValueError("gradients are disabled, but cached_backward computes them; call it outside torch.no_grad()")
    sides = _sides(
        encoder, views, count("chunk", chunk, "it is the number of samples that are encoded at once, e.g. 512")
    )
    for side in sides:
        side.embed(_State(sides))
    loss = criterion(*(side.embeddings for side in sides), **known)
    _check_loss(loss)
    backward(loss)
    loss, end = loss.detach(), _State(sides)  # frees the criterion's graph before the second pass
    _propagate([side for side in sides if side.embeddings.grad is not None])
    end.restore()
    return loss


class _Side:
    """One view with its encoder and, after the first pass, its embeddings [B, D], a leaf tensor."""

    embeddings: Tensor
    start: _State

    def __init__(self, name: str, encoder: Encoder, view: Any, chunk: int) -> None:
        self.name, self.encoder, self.chunk = name, encoder, chunk
        self.module = _module(encoder)
        self.view, self.inputs = view, _leaves(view)
        self.size = _size(name, self.inputs)
        self.synchronised = _synchronised(self.module)

    def __len__(self) -> int:
        return -(-self.size // self.chunk)

    def rows(self, k: int) -> slice:
        return slice(k * self.chunk, min((k + 1) * self.chunk, self.size))

    def encode(self, k: int) -> Tensor:
        rows = self.rows(k)
        z = self.encoder(_mapped(self.view, lambda x: x[rows]))
        if not isinstance(z, Tensor) or not z.dim() or len(z) != rows.stop - rows.start:
            raise ValueError(
                f"the encoder of {self.name} returns {_named(z)} for {rows.stop - rows.start} samples; it must return "
                "one embedding for each, a tensor [B, D]: wrap it in a module that does"
            )
        return z

    def embed(self, start: _State) -> None:
        """The first pass. The second pass starts from the same state, `start`."""
        self.start = start
        torch.clear_autocast_cache()  # before pytorch#165068 it returns weights that were cast under no_grad
        with _unsynchronised(self.synchronised):
            z = self.encode(0)  # with gradient, to see whether this side has one
            live = z.requires_grad
            # copied, because z may be a view of a larger tensor, e.g. one token of many
            self.embeddings = z.new_empty(self.size, *z.shape[1:])
            self.embeddings[self.rows(0)] = z.detach()
            del z  # frees its graph
            with torch.no_grad():
                for k in range(1, len(self)):
                    self.embeddings[self.rows(k)] = self.encode(k)
        self.embeddings.requires_grad_(live)


def _propagate(sides: Sequence[_Side]) -> None:
    """The second pass: propagate ∂L/∂z to the parameters. Only the last backward of each module synchronises."""
    steps = [(side, k) for side in sides for k in range(len(side))]
    last = {module: n for n, (side, _) in enumerate(steps) for module in side.synchronised}
    for n, (side, k) in enumerate(steps):
        if k == 0:
            side.start.restore()
            torch.clear_autocast_cache()
        with _unsynchronised(module for module in side.synchronised if last[module] != n):
            assert side.embeddings.grad is not None
            torch.autograd.backward(side.encode(k), side.embeddings.grad[side.rows(k)])


class _State:
    """A copy of what a pass changes: the buffers of the encoders, and the random generators of all devices."""

    def __init__(self, sides: Sequence[_Side]) -> None:
        parts = dict.fromkeys(part for side in sides for part in side.module.modules())
        self._buffers = [
            (part, name, buffer, buffer.clone())
            for part in parts
            for name, buffer in part._buffers.items()
            if buffer is not None
        ]
        self._cpu = torch.get_rng_state()
        devices = {x.device for side in sides for x in (*side.inputs, *side.module.parameters())}
        # the functions of MPS take no device
        places = [(torch.get_device_module(d), (d,) * (d.type != "mps")) for d in devices if d.type != "cpu"]
        self._devices = [(module, module.get_rng_state(*device), device) for module, device in places]

    @torch.no_grad()
    def restore(self) -> None:
        for part, name, buffer, value in self._buffers:
            buffer.copy_(value)
            part._buffers[name] = buffer  # the pass may have replaced it by another tensor
        torch.set_rng_state(self._cpu)
        for module, state, device in self._devices:
            module.set_rng_state(state, *device)


def _mapped(view: Any, f: Callable[[Any], Any]) -> Any:
    """The same dicts, tuples and lists with f of everything in them."""
    if isinstance(view, dict):
        return type(view)((key, _mapped(value, f)) for key, value in view.items())
    if isinstance(view, tuple) and hasattr(view, "_fields"):
        return type(view)(*(_mapped(value, f) for value in view))
    if isinstance(view, (tuple, list)):
        return type(view)(_mapped(value, f) for value in view)
    return f(view)


def _leaves(view: Any) -> list[Any]:
    """Everything in dicts, tuples and lists, in their order."""
    tensors: list[Any] = []
    _mapped(view, tensors.append)
    return tensors


def _synchronised(module: nn.Module) -> list[nn.Module]:
    """The outermost modules that have `no_sync`."""
    if hasattr(module, "no_sync"):
        return [module]
    return [inner for child in module.children() for inner in _synchronised(child)]


def _unsynchronised(modules: Iterable[Any]) -> ExitStack:
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.no_sync())
        return stack.pop_all()


def _sides(encoder: Encoder | Sequence[Encoder], views: Sequence[Any], chunk: int) -> list[_Side]:
    if not isinstance(views, (tuple, list)) or not views:
        raise ValueError(f"views is {_named(views)}; it must be one input for each side: (view1, view2)")
    encoders: Sequence[Any] = encoder if isinstance(encoder, (tuple, list)) else [encoder] * len(views)
    if len(encoders) != len(views):
        raise ValueError(f"{len(encoders)} encoders for {len(views)} views; give one for all, or one for each view")
    return [_Side(f"view {n + 1}", *pair, chunk) for n, pair in enumerate(zip(encoders, views, strict=True))]


def _module(encoder: Encoder) -> nn.Module:
    owner = encoder if isinstance(encoder, nn.Module) else getattr(encoder, "__self__", None)
    if not isinstance(owner, nn.Module):
        raise TypeError(f"encoder is {_named(encoder)}; its buffers must be restored: pass a module or a method of one")
    return owner


def _size(name: str, inputs: Sequence[Any]) -> int:
    for x in inputs:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} holds {_named(x)}; a view must be tensors, in dicts, tuples or lists: convert it")
        if x.requires_grad and not x.is_leaf:
            raise ValueError(
                f"{name} has a graph, {x.grad_fn}; a view must have none: move that computation into the encoder, "
                "or detach() the view"
            )
    sizes = {len(x) if x.dim() else 0 for x in inputs}
    if len(sizes) != 1 or 0 in sizes:
        shapes = ", ".join(map(_named, inputs)) or "no tensors"
        raise ValueError(
            f"{name} has {shapes}; they must have the same first dimension ≥ 1: give one row for each sample"
        )
    return sizes.pop()


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor) or loss.dim():
        raise ValueError(f"the criterion returns {_named(loss)}; it must return a 0-dim loss: take its mean()")
    if not loss.requires_grad:
        raise ValueError(
            "the loss requires no gradient; call requires_grad_() on the parameters that are to be trained"
        )


def _named(x: Any) -> str:
    return f"a tensor {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
