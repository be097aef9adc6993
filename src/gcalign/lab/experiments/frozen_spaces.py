"""Items of two frozen encoders that were never trained together, and which belong together.

Texts are embedded by all-MiniLM-L6-v2 and images by EfficientNet-Lite0 (`pretrained`), translations by their n-grams.
Icons are drawn by `pip install resvg_py`. Embeddings are made once and kept in a folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcalign.lab.data.catalogue import IMAGENET, table_in
from gcalign.lab.data.views import normalise
from gcalign.lab.experiments.pretrained import efficientnet, minilm

MESSAGES = 14_000  # of a language
PIXELS = 96
PLACEHOLDERS = r"%[-\w.$]*|<[^>]*>|&\w+;|[_&~]"
# skin tones, hair, genders, joiners and variation selectors: what is left of an emoji is its base
VARIANTS = re.compile("[\U0001f3fb-\U0001f3ff\U0001f9b0-\U0001f9b3\u2640\u2642\u200d\ufe0f]")
DOMAINS = {"photo": "photo", "art_painting": "painting", "cartoon": "cartoon", "sketch": "sketch"}
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="96" height="96">'
    '<rect width="24" height="24" fill="white"/>{body}</svg>'
)


@dataclass(frozen=True)
class FrozenSpaces:
    """Both sides: row i of a belongs to row partner[i] of b. Items of one group are never split."""

    name: str
    a: Tensor  # [n, D₁]
    b: Tensor  # [m, D₂]
    partner: Tensor  # [n]
    group: Tensor  # [n]

    @property
    def one_to_one(self) -> bool:
        """Whether no item of b has two partners."""
        return len(self.partner.unique()) == len(self.partner)


def kept(folder: Path, name: str, root: str | None) -> FrozenSpaces | None:
    """The spaces of this name: from the folder, else made and put there; None where their data is not."""
    file = folder / f"{name}.npz"
    if not file.exists():
        make, place = MADE[name]
        table = table_in(root, place)
        if table is None:
            return None
        made = make(table)
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{name}.{os.getpid()}.npz")
        np.savez(part, a=made.a, b=made.b, partner=made.partner, group=made.group)
        part.replace(file)
    with np.load(file, allow_pickle=False) as arrays:
        return FrozenSpaces(name, *(torch.from_numpy(arrays[key]) for key in ("a", "b", "partner", "group")))


# --- what there is -------------------------------------------------------------------------------------------------


def messages(table: Path) -> FrozenSpaces:
    """Messages of programs that were kept between two releases, without placeholders, each once, and translations.

    Those are taken whose hash is least, so that languages have many English messages in common.
    """
    import pandas as pd

    from gcalign.lab.align.inputs import by_ngrams

    rows = pd.read_parquet(table, columns=["english", "translation", "fuzzy", "later"])
    rows = rows[~rows["fuzzy"] & (rows["later"] == "kept")]
    for column in ("english", "translation"):
        rows[column] = rows[column].str.replace(PLACEHOLDERS, "", regex=True).str.strip()
        rows = rows[rows[column].str.len() > 8].drop_duplicates(column)
    key = rows["english"].map(lambda text: hashlib.sha256(text.encode()).hexdigest())
    rows = rows.iloc[key.argsort().to_numpy()[:MESSAGES]]
    a = minilm(rows["english"].tolist())
    return _paired(table.stem, a, by_ngrams(rows["translation"].tolist(), str(table)), range(len(rows)))


def emoji(table: Path) -> FrozenSpaces:
    """Emoji and their English names; variants of one emoji are a group."""
    import pandas as pd

    rows = pd.read_parquet(table, columns=["emoji", "image", "name_en"])
    bases = rows["emoji"].map(lambda text: VARIANTS.sub("", text))
    a = _features(torch.stack([_picture(image["bytes"]) for image in rows["image"]]))
    return _paired("emoji", a, minilm(rows["name_en"].tolist()), bases)


def icons(file: Path) -> FrozenSpaces:
    """Material Design Icons and their names (`icons.json` of the npm package `@iconify-json/mdi`).

    Those whose names begin with the same word are a group.
    """
    draw = import_module("resvg_py").svg_to_bytes
    content = json.loads(file.read_bytes())["icons"]
    names = [name for name, icon in content.items() if not icon.get("hidden")]
    bodies = (content[name]["body"].replace("currentColor", "black") for name in names)
    a = _features(torch.stack([_picture(bytes(draw(svg_string=SVG.format(body=body)))) for body in bodies]))
    return _paired("icons", a, minilm([n.replace("-", " ") for n in names]), [n.partition("-")[0] for n in names])


def pacs(table: Path) -> FrozenSpaces:
    """PACS, with a caption for each domain and class: every caption belongs to many images."""
    from gcalign.lab.data.sources import load

    parts = [load("pacs", split, root=table.parent.parent, size=PIXELS) for split in ("train", "test")]
    a = torch.cat([_features(part.get(torch.arange(len(part)))) for part in parts])
    domain, label = (torch.cat([getattr(part, key) for part in parts]) for key in ("domains", "labels"))
    captions = [f"a {DOMAINS[style]} of a {name}" for style in parts[0].domain_names for name in parts[0].classes]
    partner = len(parts[0].classes) * domain + label
    return FrozenSpaces("pacs", a, minilm(captions), partner, torch.arange(len(a)))


MADE: dict[str, tuple[Callable[[Path], FrozenSpaces], str]] = {
    **{language: (messages, f"po/{language}.parquet") for language in ("nl", "de", "fr", "ru")},
    "emoji": (emoji, "emoji/pairs.parquet"),
    "icons": (icons, "icons/mdi.json"),
    "pacs": (pacs, "pacs/train.parquet"),
}


def _paired(name: str, a: Tensor, b: Any, group: Sequence[Any]) -> FrozenSpaces:
    """Row i with row i."""
    codes = {value: k for k, value in enumerate(dict.fromkeys(group))}
    return FrozenSpaces(
        name, a, torch.as_tensor(b), torch.arange(len(a)), torch.tensor([codes[value] for value in group])
    )


def _picture(content: bytes) -> Tensor:  # [3, H, W] uint8
    """A picture in RGB on white, of the size that is embedded."""
    from PIL import Image

    image = Image.open(io.BytesIO(content)).convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image)
    white = white.convert("RGB").resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(white)).permute(2, 0, 1)


def _features(pictures: Tensor) -> Tensor:  # [n, 1280]
    """By EfficientNet-Lite0, in parts."""
    encode = efficientnet()
    return torch.cat([encode(normalise(part, *IMAGENET)) for part in pictures.split(256)])
