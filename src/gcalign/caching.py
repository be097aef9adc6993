"""Gradient caching: the gradient of a large batch in the memory of a small one (Gao et al. 2021, arXiv:2101.06983)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

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
    """`criterion(encoder(view1), encoder(view2), **known).backward()`, with activations of `chunk` samples at a time.

    Every chunk is encoded twice: first for its embeddings alone, from which the loss and ∂L/∂z follow, then to carry
    ∂L/∂z on to the parameters. Each `.grad` receives what the plain call gives it; the loss comes back detached.

        optimizer.zero_grad()
        loss = gcalign.cached_backward(criterion, encoder, (view1, view2), chunk=512, labels=y)
        optimizer.step()

    encoder: a module or a module's method, for all views, or a tuple with one for each view, e.g. (image, text). A side
        without a gradient (frozen, or a momentum twin) is encoded once.
    views: for each side a tensor, or dicts, tuples and lists of tensors with one first dimension, given to the encoder
        as one argument. Sides may differ in length where the criterion lets them.
    backward: how the loss starts: `lambda loss: scaler.scale(loss).backward()`, or Lightning's `self.manual_backward`.

    Random layers draw the same numbers in both passes, and torch's generators end where one pass leaves them; buffers
    change once; autocast holds in both. BatchNorm in train mode, and whatever else mixes samples, sees one chunk: the
    gradient is then that of the encoder applied chunk by chunk. Under DistributedDataParallel (one around each tower)
    only the last chunk synchronises. The criterion sees the whole batch; its `block` bounds what the kernel takes.
    """
    if not torch.is_grad_enabled():
        raise ValueError("gradients are off, but cached_backward computes them; call it outside torch.no_grad()")
    sides = _sides(encoder, views, count("chunk", chunk, "it is how many samples the memory holds, e.g. 512"))
    for side in sides:
        side.embed(_State(sides))
    loss = criterion(*(side.embeddings for side in sides), **known)
    _check_loss(loss)
    backward(loss)
    loss, end = loss.detach(), _State(sides)  # the criterion's graph goes before the second pass
    _propagate([side for side in sides if side.embeddings.grad is not None])
    end.restore()
    return loss


class _Side:
    """One view, its encoder and, once embedded, its embeddings [B, D]: a leaf."""

    embeddings: Tensor
    start: _State

    def __init__(self, name: str, encoder: Encoder, view: Any, chunk: int) -> None:
        self.name, self.encoder, self.chunk = name, encoder, chunk
        self.module = _module(encoder)
        self.inputs, self.tree = tree_flatten(view)
        self.size = _size(name, self.inputs)
        self.synchronised = _synchronised(self.module)

    def __len__(self) -> int:
        return -(-self.size // self.chunk)

    def rows(self, k: int) -> slice:
        return slice(k * self.chunk, min((k + 1) * self.chunk, self.size))

    def encode(self, k: int) -> Tensor:
        rows = self.rows(k)
        z = self.encoder(tree_unflatten([x[rows] for x in self.inputs], self.tree))
        if not isinstance(z, Tensor) or not z.dim() or len(z) != rows.stop - rows.start:
            raise ValueError(
                f"the encoder of {self.name} makes {_named(z)} of {rows.stop - rows.start} samples; it must return one "
                "embedding for each, a tensor [B, D]: wrap it in a module that does"
            )
        return z

    def embed(self, start: _State) -> None:
        """The first pass; the second begins at `start` too."""
        self.start = start
        torch.clear_autocast_cache()  # before pytorch#165068 it hands out weights cast under no_grad
        with _unsynchronised(self.synchronised):
            z = self.encode(0)  # with gradient, in the memory of the second pass: has this side one at all?
            live = z.requires_grad
            # copied, since z may be a view of much more, such as one token of many
            self.embeddings = z.new_empty(self.size, *z.shape[1:])
            self.embeddings[self.rows(0)] = z.detach()
            del z  # and with it the graph
            with torch.no_grad():
                for k in range(1, len(self)):
                    self.embeddings[self.rows(k)] = self.encode(k)
        self.embeddings.requires_grad_(live)


def _propagate(sides: Sequence[_Side]) -> None:
    """The second pass: ∂L/∂z on to the parameters; of each module the last backward alone synchronises."""
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
    """What a pass changes, as it is now: the encoders' buffers, and the generators of the CPU and their devices."""

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
        # MPS is one device, and its functions take none
        places = [(torch.get_device_module(d), (d,) * (d.type != "mps")) for d in devices if d.type != "cpu"]
        self._devices = [(room, room.get_rng_state(*device), device) for room, device in places]

    @torch.no_grad()
    def restore(self) -> None:
        for part, name, buffer, value in self._buffers:
            buffer.copy_(value)
            part._buffers[name] = buffer  # which the pass may have replaced rather than written to
        torch.set_rng_state(self._cpu)
        for room, state, device in self._devices:
            room.set_rng_state(state, *device)


def _synchronised(module: nn.Module) -> list[nn.Module]:
    """The outermost modules that can hold back their synchronisation."""
    if hasattr(module, "no_sync"):
        return [module]
    return [found for child in module.children() for found in _synchronised(child)]


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
        raise TypeError(f"encoder is {_named(encoder)}; its buffers must be known: give a module or a method of one")
    return owner


def _size(name: str, inputs: Sequence[Any]) -> int:
    for x in inputs:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} holds {_named(x)}; it must be tensors, in dicts, tuples or lists: convert it")
        if x.requires_grad and not x.is_leaf:
            raise ValueError(f"{name} has a history, {x.grad_fn}; the encoder must contain it, or detach() the view")
    sizes = {len(x) if x.dim() else 0 for x in inputs}
    if len(sizes) != 1 or 0 in sizes:
        shapes = ", ".join(map(_named, inputs)) or "no tensors"
        raise ValueError(f"{name} has {shapes}; they must share a first dimension ≥ 1: give one row for each sample")
    return sizes.pop()


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor) or loss.dim():
        raise ValueError(f"the criterion returns {_named(loss)}; it must return a 0-dim loss: take its mean()")
    if not loss.requires_grad:
        raise ValueError("the loss requires no gradient; encoder or criterion must: requires_grad_() what is to learn")


def _named(x: Any) -> str:
    return f"a tensor {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
