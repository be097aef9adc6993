"""Encoders -> [B, features] of images (ResNets, a small one for CPUs), texts, arrays, and any of the user's own."""

from __future__ import annotations

import functools
import inspect
import logging
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gcalign.errors import count, did_you_mean
from gcalign.lab.models.state import evaluating, made, seeded
from gcalign.lab.outside import imported

_log = logging.getLogger(__name__)

_SMALL_IMAGE = 64  # up to this side, a stem that shrinks the image four times leaves too little of it
_CLASSIFIERS = ("fc", "head", "classifier")  # what torchvision, timm and others call their last layer
USUAL = {"image": "small", "text": "ngrams", "array": "mlp"}
BUCKETS = 2**15
LENGTHS = (1, 2, 3, 4)  # of the n-grams, in characters
LONGEST = 2000  # characters of a text that are read
FEATURES = 256


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class _Residual(nn.Module):
    """x ↦ relu(x + f(x)); the names of the parts are torchvision's, so weights can be exchanged."""

    expansion: int
    downsample: nn.Module | None

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def residual(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(shortcut + self.residual(x))


class _Basic(_Residual):
    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__(inputs, planes, stride)
        self.conv1, self.bn1 = _conv(inputs, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = _conv(planes, planes, 3), nn.BatchNorm2d(planes)

    def residual(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))


class _Bottleneck(_Residual):
    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        outputs = planes * self.expansion
        super().__init__(inputs, outputs, stride)
        self.conv1, self.bn1 = _conv(inputs, planes, 1), nn.BatchNorm2d(planes)
        # the stride sits on the 3×3 convolution, as in torchvision ("v1.5")
        self.conv2, self.bn2 = _conv(planes, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = _conv(planes, outputs, 1), nn.BatchNorm2d(outputs)

    def residual(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        return self.bn3(self.conv3(self.relu(self.bn2(self.conv2(x)))))


class ResNet(nn.Module):
    """He et al. 2016 without the classifier; `state_dict` has torchvision's keys except `fc.*`."""

    def __init__(
        self, block: type[_Basic] | type[_Bottleneck], depths: tuple[int, ...], channels: int, stem: str, width: float
    ) -> None:
        super().__init__()
        base = _scaled(64, width)
        # app:hpdetails: 3×3 stride 1 for CIFAR; in both settings the max-pool becomes the identity, which "paper"
        # follows for the 7×7 stem; "imagenet" keeps the max-pool of the published network
        self.conv1 = _conv(channels, base, 3) if stem == "cifar" else _conv(channels, base, 7, 2)
        self.bn1, self.relu = nn.BatchNorm2d(base), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity()
        inputs, stages = base, []
        for k, depth in enumerate(depths):
            planes, blocks = base * 2**k, []
            for j in range(depth):
                blocks.append(block(inputs, planes, stride=2 if k > 0 and j == 0 else 1))
                inputs = planes * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.features = inputs
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, features]
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((2, 3))


class Small(nn.Module):
    """Four 3×3 convolutions with BatchNorm, 0.4 million parameters: the encoder for CPUs and images up to about 64²."""

    def __init__(self, channels: int, width: float) -> None:
        super().__init__()
        sizes = [channels, *(_scaled(size, width) for size in (32, 64, 128, 256))]
        layers: list[nn.Module] = []
        for k in range(4):
            # pooled before BatchNorm and ReLU, which then see a quarter of the pixels
            pool = nn.MaxPool2d(2) if k < 3 else nn.Identity()
            layers += [_conv(sizes[k], sizes[k + 1], 3), pool, nn.BatchNorm2d(sizes[k + 1]), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)
        self.features = sizes[-1]
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, features]
        # CPUs convolve faster with channels last; the weights stay contiguous, which safetensors asks for
        return self.layers(x.contiguous(memory_format=torch.channels_last)).mean((2, 3))


class Custom(nn.Module):
    """A module of the user's, with the number of its features, which two items tell."""

    def __init__(self, module: nn.Module, two: Any) -> None:
        super().__init__()
        self.module = module
        with evaluating(self), torch.no_grad():  # eval mode: a dry run must not reach BatchNorm's statistics
            out = self(two)
        if out.dim() != 2 or len(out) != 2:
            raise ValueError(
                f"{type(module).__name__} maps {list(two.shape) if isinstance(two, Tensor) else 'two items'} to "
                f"{tuple(out.shape)}; it must give features [2, D], or of images feature maps [2, D, H, W]"
            )
        self.features = out.shape[1]

    def forward(self, x: Any) -> Tensor:  # items -> [B, features]
        out = self.module(x)
        if not isinstance(out, Tensor):
            raise TypeError(
                f"{type(self.module).__name__} returns {type(out).__name__}; an encoder returns one tensor: "
                "wrap it in a function that picks the features"
            )
        return out.mean((2, 3)) if out.dim() == 4 else out

    def extra_repr(self) -> str:
        return f"features={self.features}"


_RESNETS: dict[str, tuple[type[_Basic] | type[_Bottleneck], tuple[int, ...]]] = {
    "resnet18": (_Basic, (2, 2, 2, 2)),
    "resnet50": (_Bottleneck, (3, 4, 6, 3)),
}
NAMES = (*_RESNETS, "small")
Factory = Callable[..., Any]  # of a module; it is given `shape`, `width` and `stem` as far as it takes them


def outside(name: str) -> str | Factory:
    """The function that `module:function` names, imported; any other name as it is.

    For names that a command or a call gives. A name out of a file is not passed through here.
    """
    if ":" not in name:
        return name
    function = imported("encoder", name, "write module:function, and see that the module is installed or on PYTHONPATH")
    if not callable(function):
        raise TypeError(f"encoder={name!r} is a {type(function).__name__}; it must be a function that makes a module")
    return function


def encoder(
    name: str | Factory,
    *,
    shape: tuple[int, int, int],  # [C, H, W] of the images
    width: float = 1.0,
    stem: str = "auto",
    seed: int = 0,
) -> nn.Module:
    """An encoder [B, C, H, W] -> [B, features], initialised from `seed`: a name, or a function of your own."""
    if not isinstance(name, str):
        with seeded(seed):
            return _custom(name, shape, width, stem)
    what = f"encoder={name} width={width:g}"
    if name in _RESNETS:
        auto = "cifar" if max(shape[1:]) <= _SMALL_IMAGE else "imagenet"
        form = (*_RESNETS[name], shape[0], auto if stem == "auto" else stem, width)
        return made(lambda: ResNet(*form), seed, what)
    if name != "small":
        raise ValueError(
            f"encoder={name!r} is unknown; {did_you_mean(name, NAMES)}; your own: name module:function in the "
            "command, e.g. model.encoder=timm.models:resnet34"
        )
    if stem != "auto":
        raise ValueError(f"stem={stem!r} is for ResNets; the small encoder has one of its own: leave stem=auto")
    if min(shape[1:]) < 8:
        raise ValueError(f"images of {shape[1]}×{shape[2]} are too small for the small encoder: at least 8×8")
    return made(lambda: Small(shape[0], width), seed, what)


def _custom(function: Factory, shape: tuple[int, int, int], width: float, stem: str) -> nn.Module:
    name, parameters = called(function), inspect.signature(function).parameters
    for key, value, default in (("width", width, 1.0), ("stem", stem, "auto")):
        if value != default and key not in parameters:
            raise ValueError(f"{key}={value!r} has no effect: {name} takes no argument {key!r}; leave it out")
    module = module_of(function, shape=shape, width=width, stem=stem)
    replaced = [part for part in _CLASSIFIERS if isinstance(getattr(module, part, None), nn.Module)]
    for part in replaced:
        setattr(module, part, nn.Identity())
    if replaced:
        _log.warning("%s: %s replaced by the identity to get at the features", name, " and ".join(replaced))
    return Custom(module, torch.zeros(2, *shape))


def called(function: Factory) -> str:
    """The name of a user's function."""
    return str(getattr(function, "__name__", type(function).__name__))


def module_of(function: Factory, **offered: Any) -> nn.Module:
    """What a user's function makes, given those arguments that it takes."""
    parameters = inspect.signature(function).parameters
    module = function(**{key: value for key, value in offered.items() if key in parameters})
    if not isinstance(module, nn.Module):
        raise TypeError(f"{called(function)} returned {type(module).__name__}; it must return a torch.nn.Module")
    return module


def _scaled(channels: int, width: float) -> int:
    return max(8, round(channels * width / 8) * 8)  # multiples of 8: the vector units' own width


def _initialise(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


# --- texts and arrays ---------------------------------------------------------------------------------------------


class NGrams(nn.Module):
    """Texts → features: the mean embedding of their character n-grams, by hash, then two layers.

    It needs no vocabulary and no language. A word that training never saw shares n-grams with those it did.

    Args:
        buckets: number of embeddings; n-grams share them by hash.
        width: times 128 is the size of an embedding, times 256 that of the features.

    Example:
        >>> NGrams(buckets=64)(["red heart", "赤いハート"]).shape
        torch.Size([2, 256])
    """

    def __init__(self, buckets: int = BUCKETS, width: float = 1.0) -> None:
        super().__init__()
        self.buckets = count("buckets", buckets, f"{BUCKETS} is usual")
        inner, self.features = _scaled(128, width), _scaled(FEATURES, width)
        self.embedding = nn.EmbeddingBag(buckets, inner, mode="mean")
        self.layers = _two_layers(inner, self.features)

    def forward(self, texts: Sequence[str]) -> Tensor:  # B texts -> [B, features]
        if isinstance(texts, str):
            raise TypeError(f"texts={texts!r} must be a list of texts; write [{texts!r}]")
        codes = [hashed(text) for text in texts]
        offsets = torch.tensor([0, *(len(code) for code in codes[:-1])]).cumsum(0)
        device = self.embedding.weight.device
        flat = torch.from_numpy(np.concatenate(codes) % self.buckets)
        return self.layers(self.embedding(flat.to(device), offsets.to(device)))


@functools.lru_cache(maxsize=2**16)
def hashed(text: str) -> npt.NDArray[np.int64]:
    """A number for each n-gram of a text, the same on every machine; words begin and end with a space."""
    padded = f" {' '.join(text.lower()[:LONGEST].split())} "
    codes = [
        zlib.crc32(f"{n}{padded[k : k + n]}".encode("utf-8", "surrogatepass"))
        for n in LENGTHS
        for k in range(len(padded) - n + 1)
    ]
    return np.array(codes, np.int64)


def _two_layers(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs), nn.ReLU())


class Numbers(nn.Module):
    """Arrays [B, D] → features: two layers."""

    def __init__(self, inputs: int, width: float = 1.0) -> None:
        super().__init__()
        self.features = _scaled(FEATURES, width)
        self.layers = _two_layers(inputs, self.features)

    def forward(self, x: Tensor) -> Tensor:  # [B, D] -> [B, features]
        return self.layers(x)


def side_encoder(
    name: str | Factory,
    kind: str,
    shape: tuple[int, ...],
    *,
    width: float = 1.0,
    stem: str = "auto",
    seed: int = 0,
) -> nn.Module:
    """The encoder of one side: items of this kind and shape → [B, features], initialised from `seed`."""
    if kind == "image":
        if isinstance(name, str) and name in ("ngrams", "mlp"):
            raise ValueError(f"the encoder {name!r} is not for images; {did_you_mean(name, NAMES)}")
        return encoder(name, shape=(shape[0], shape[1], shape[2]), width=width, stem=stem, seed=seed)
    with seeded(seed):
        if isinstance(name, str):
            if name != USUAL[kind]:
                raise ValueError(
                    f"the encoder {name!r} is not for a side of kind {kind}; use {USUAL[kind]!r}, or your own: "
                    "module:function, named in the command"
                )
            return NGrams(width=width) if kind == "text" else Numbers(shape[0], width)
        module = module_of(name, shape=shape, width=width)
        return Custom(module, ["a", "b"] if kind == "text" else torch.zeros(2, *shape))
