"""Who sits on each side of a plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Side:
    """The embeddings along one side of a plan and what is known of each; `ids` None means "by position"."""

    features: Tensor  # [n, d]
    ids: Tensor | None = None  # [n]
    labels: Tensor | None = None  # [n] or [n, levels]
    domains: Tensor | None = None  # [n]
    weights: Tensor | None = None  # [n]

    def __len__(self) -> int:
        return len(self.features)

    def joined(self, other: Side) -> Side:
        """Both sides in one, for the joint layout."""

        def cat(x: Tensor | None, y: Tensor | None) -> Tensor | None:
            return None if x is None or y is None else torch.cat([x, y])

        return Side(
            torch.cat([self.features, other.features]),
            cat(self.ids, other.ids),
            cat(self.labels, other.labels),
            cat(self.domains, other.domains),
            cat(self.weights, other.weights),
        )


@dataclass(frozen=True)
class Sides:
    """Rows and columns. Where pairs go by position, row i belongs to column i + `partner` modulo their number. With
    `joint`, rows and columns are the same embeddings, and none is matched with itself."""

    rows: Side
    columns: Side
    joint: bool = False
    partner: int | None = None

    @staticmethod
    def in_cross(rows: Side, columns: Side) -> Sides:
        """The cross layout: rows are the first views, columns the second."""
        return Sides(rows, columns, partner=0 if rows.ids is None else None)

    @staticmethod
    def in_joint(first: Side, second: Side) -> Sides:
        """The joint layout: rows and columns are all embeddings."""
        everyone = first.joined(second)
        return Sides(everyone, everyone, joint=True, partner=len(first) if first.ids is None else None)

    def exchanged(self) -> Sides:
        """Columns as rows and rows as columns, in the cross layout."""
        return Sides.in_cross(self.columns, self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)
