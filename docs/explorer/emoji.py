"""Writes docs/explorer/emoji.js: 24 emoji and their names, embedded by two small encoders that gcalign trains.

An emoji is given by words for what one sees, its name by groups of three letters. Both are mapped to eight numbers.
The target is `Blocks`: an emoji belongs to its name, and a little to the names of its kind.

python docs/explorer/emoji.py [PATH]
"""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import gcalign

HERE = Path(__file__).resolve().parent
KINDS = {
    "animal": {
        "🐱": "face fur ears whiskers pet",
        "🐶": "face fur ears tongue pet",
        "🐯": "face fur ears whiskers stripes wild",
        "🐟": "water fins scales swims",
        "🐳": "water fins large swims spout",
        "🐦": "feathers wings beak flies",
    },
    "food": {
        "🍎": "red round fruit leaf",
        "🍒": "red round fruit leaf two",
        "🍌": "yellow long fruit",
        "🍋": "yellow round fruit sour leaf",
        "🍕": "slice cheese round baked",
        "🍞": "slice baked brown",
    },
    "sky": {
        "🌞": "yellow round face shines sky day",
        "🌙": "yellow sky night shines",
        "⭐": "yellow sky night shines points",
        "🌈": "sky arc colours rain",
        "⚡": "yellow sky storm flash",
        "🔥": "red yellow hot flames",
    },
    "vehicle": {
        "🚗": "wheels road red doors",
        "🚌": "wheels road yellow doors large",
        "🚲": "wheels road two pedals",
        "🚂": "wheels rails smoke large",
        "🚀": "flies sky flames fins",
        "⛵": "water wind swims mast",
    },
}
NAMES = {
    "🌞": "sun with face",
    "🌙": "crescent moon",
    "⭐": "star",
    "⚡": "lightning",
    "🚗": "car",
    "⛵": "sailboat",
    "🐳": "whale",
}


def name(emoji: str) -> str:
    """A short name: that of Unicode, unless the table above has a plainer one."""
    return NAMES.get(emoji, unicodedata.name(emoji).lower())


def counts(words: list[list[str]]) -> Tensor:  # [n, vocabulary]
    """How often each word occurs."""
    known = sorted({w for line in words for w in line})
    return torch.tensor([[line.count(w) for w in known] for line in words], dtype=torch.float64)


def trigrams(text: str) -> list[str]:
    padded = f" {text} "
    return [padded[k : k + 3] for k in range(len(padded) - 2)]


def trained(dim: int = 8, steps: int = 18, seed: int = 0) -> dict[str, object]:
    """Emoji, names, kinds and embeddings, and two axes along which the embeddings spread most."""
    emoji = [e for kind in KINDS.values() for e in kind]
    kinds = [k for k, kind in enumerate(KINDS.values()) for _ in kind]
    seen = counts([words.split() for kind in KINDS.values() for words in kind.values()])
    spelt = counts([trigrams(name(e)) for e in emoji])
    generator = torch.Generator().manual_seed(seed)
    encoders = [nn.Linear(x.shape[1], dim, bias=False, dtype=torch.float64) for x in (seen, spelt)]
    for encoder in encoders:
        nn.init.normal_(encoder.weight, std=0.3, generator=generator)
    criterion = gcalign.method("gca-ince", eps=0.3, target=gcalign.Blocks(alpha=0.08))
    optimizer = torch.optim.Adam([p for e in encoders for p in e.parameters()], lr=0.02)
    for _ in range(steps):
        z1, z2 = encoders[0](seen), encoders[1](spelt)
        optimizer.zero_grad()
        criterion(z1, z2, domains=torch.tensor(kinds)).backward()
        optimizer.step()
    z1, z2 = (normalize(z.detach(), dim=1) for z in (z1, z2))
    both = torch.cat([z1, z2])
    axes = torch.linalg.svd(both - both.mean(0), full_matrices=False).Vh[:2]
    axes = axes * axes[:, :1].sign()  # the sign of an axis is free; fix it

    def rounded(x: Tensor) -> list[list[float]]:
        return [[round(v, 4) for v in row] for row in x.tolist()]

    return {
        "emoji": emoji,
        "names": [name(e) for e in emoji],
        "kinds": list(KINDS),
        "kind": kinds,
        "z1": rounded(z1),
        "z2": rounded(z2),
        "axes": rounded(axes),
    }


def write(path: Path) -> None:
    """Write the file that the page loads."""
    lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in trained().items())
    text = f"// Written by docs/explorer/emoji.py; do not edit.\nself.emoji = {{\n{lines}\n}};\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "emoji.js")
