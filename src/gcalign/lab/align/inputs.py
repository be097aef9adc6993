"""Sides and pairs of `gcalign align`, from files. Nothing is unpickled."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gcalign.lab import files
from gcalign.lab.audit.inputs import EMBEDDINGS, Place, embeddings
from gcalign.lab.data.tables import csv_rows
from gcalign.lab.models.encoders import hashed
from gcalign.lab.words import path_of

BUCKETS, NUMBERS = 2**15, 384  # n-grams by hash; numbers of a text


def side(text: str) -> tuple[Any, Sequence[str] | None]:  # [n, D] embeddings, and texts where the file has them
    """One side: a file of embeddings, or a CSV file of texts, which are embedded here."""
    if path_of(text).suffix == ".csv" or path_of(text.rpartition(":")[0]).suffix == ".csv":
        place = Place.of(text, (".csv",))
        rows = csv_rows(place.path)
        if not rows:
            raise ValueError(f"{place.path} has no rows; every row must have a text")
        column = place.chosen(list(rows[0]))
        texts = [str(row[column]) for row in rows]
        return by_ngrams(texts, str(place)), texts
    Place.of(text, (*EMBEDDINGS, ".csv"))
    return embeddings(text), None


def by_ngrams(texts: Sequence[str], name: str) -> Any:  # [n, D] float32
    """Texts as TF-IDF of their character n-grams, by hash, in their leading principal directions."""
    from scipy.sparse import csr_matrix
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfTransformer

    codes = [hashed(text) % BUCKETS for text in texts]
    starts = np.cumsum([0, *map(len, codes)])
    counts = csr_matrix((np.ones(starts[-1]), np.concatenate(codes), starts), shape=(len(texts), BUCKETS))
    counts.sum_duplicates()
    width = min(NUMBERS, len(texts) - 1)
    if width < 2:
        raise ValueError(f"{name} has {len(texts)} texts; n-grams need at least 3: add texts, or give embeddings")
    weighted = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    return TruncatedSVD(width, random_state=0).fit_transform(weighted).astype(np.float32)


def pairs(text: str) -> Any:  # [P, 2]
    """Two columns of row numbers, of A and of B: npy, or CSV, where a heading b,a exchanges them."""
    place = Place.of(text, (".csv", ".npy"))
    if place.path.suffix == ".npy":
        try:
            found = np.load(place.path, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise ValueError(f"{place} cannot be read ({error}); write it with np.save(path, pairs)") from None
        if found.ndim != 2 or found.shape[1] != 2 or found.dtype.kind not in "iu":
            raise ValueError(f"{place} has shape {found.shape} and {found.dtype}; it must be [P, 2] whole numbers")
        return found.astype(np.int64)
    return _csv(place.path)


def _csv(path: Path) -> Any:
    rows: list[tuple[int, int]] = []
    step = 1
    for number, row in enumerate(csv.reader(io.StringIO(files.read(path).decode("utf-8-sig"), newline="")), 1):
        if not row or (number == 1 and not all(cell.strip().lstrip("-").isdigit() for cell in row)):
            if [cell.strip().lower() for cell in row] == ["b", "a"]:
                step = -1
            continue  # an empty line, or the heading
        try:
            first, second = (int(cell) for cell in row[::step])
        except ValueError:
            raise ValueError(
                f"{path} line {number} is {','.join(row)!r}; it must be two whole numbers, a row of A and a row of B, "
                "counted from 0"
            ) from None
        rows.append((first, second))
    if not rows:
        raise ValueError(f"{path} has no pairs; each line must have two row numbers")
    return np.asarray(rows, dtype=np.int64)
