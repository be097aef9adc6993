"""The worst pairs as an HTML page: what stands together, and what would have fitted better."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from gcalign.auditing.result import Audit
from gcalign.lab.data.decode import pixels_of
from gcalign.lab.pages.page import filled

SIDE = 72  # pixels of an image


def rendered(
    audit: Audit,
    title: str,
    *,
    names: Sequence[str] | None = None,
    first: Sequence[Any] | None = None,  # of side a: text, encoded image or pixels [H, W, C]
    second: Sequence[Any] | None = None,
    worst: int = 50,
    commands: Sequence[str] = (),
    note: str = "",
    sides: tuple[str, str] = ("first", "second"),
) -> str:
    """The page as one string; texts are escaped, images are decoded here and stored as PNG."""
    rows = []
    for k in audit.ranking[:worst].tolist():
        other = int(audit.other[k])
        rows.append(
            {
                "pair": _name(names, k),
                "suspicion": f"{float(audit.suspicion[k]):.2f}",
                "probability": f"{float(audit.probability[k]):.0%}",
                "similarity": f"{float(audit.similarity[k]):.3f}",
                "kind": "flagged" if audit.flagged[k] else "suspect" if audit.suspects[k] else "",
                "a": cell(first, k),
                "b": cell(second, k),
                "other": _name(names, other),
                "other_b": cell(second, other),
                "other_similarity": f"{float(audit.other_similarity[k]):.3f}",
                "better": bool(audit.other_similarity[k] > audit.similarity[k]),
            }
        )
    return filled(
        "audit.html.jinja",
        ("style.css",),
        title=title,
        audit=audit,
        summary=audit.summary(),
        rows=rows,
        shown=first is not None or second is not None,
        commands=commands,
        note=note,
        sides=sides,
        counted=names is None,
    )


def _name(names: Sequence[str] | None, k: int) -> str:
    return f"row {k}" if names is None else names[k]


def cell(items: Sequence[Any] | None, k: int) -> str | Markup:
    """A text, which the template escapes, or an image."""
    if items is None:
        return ""
    item = items[k]
    if isinstance(item, str):
        return item
    try:
        return Markup('<img alt="" src="data:image/png;base64,{}">').format(_png(item))
    except Exception as error:  # Pillow's readers raise whatever damaged bytes lead them to
        return f"unreadable image ({str(error) or type(error).__name__})"


def _png(item: Any) -> str:
    from PIL import Image

    pixels = pixels_of(np.asarray(item) if not isinstance(item, bytes) else item, SIDE)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
