"""Warm starts: column potentials, stored for each sample id after a solve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gcalign.batch import Sides

_MOST = 1 << 26  # size limit of the table, which has one number per id


class Memory:
    """log v by sample id. A sample that was not seen before has no stored value.

    It is not part of a `state_dict`: a plan solved to `tol` does not depend on the start of the iterations.
    """

    def __init__(self) -> None:
        self._tables: dict[tuple[bool, int], Tensor] = {}
        self._exchanged = False

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Use the potentials of the second direction of a `Symmetric` criterion."""
        self._exchanged = True
        try:
            yield
        finally:
            self._exchanged = False

    def recall(self, sides: Sides, like: Tensor) -> Tensor | None:  # [m]
        """The stored log v of the columns; None if there is none. Unknown columns get the mean of the others."""
        b = torch.cat([self._known(view, ids, like) for view, ids in enumerate(_column_ids(sides))])
        known = torch.isfinite(b)
        if not bool(known.any()):
            return None
        return torch.where(known, b, b[known].mean())

    def _known(self, view: int, ids: Tensor, like: Tensor) -> Tensor:
        table = self._tables.get((self._exchanged, view))
        if table is None:
            return like.new_full((len(ids),), torch.nan)
        table = table.to(like)
        inside = ids < len(table)
        return torch.where(inside, table[torch.where(inside, ids, 0)], torch.nan)

    def keep(self, sides: Sides, b: Tensor) -> None:  # [m]
        """Store log v minus its mean, because its mean depends on the batch and not on the samples."""
        b = b.detach() - b.detach().mean()
        columns = _column_ids(sides)
        for view, (ids, part) in enumerate(zip(columns, b.split([len(x) for x in columns]), strict=True)):
            least, most = (int(x) for x in ids.aminmax())
            if least < 0 or most >= _MOST:
                raise ValueError(
                    f"warm_start=True stores a number for each id, and ids range from {least} to {most}; they must lie "
                    f"in 0 … {_MOST - 1}: number the samples"
                )
            table = self._tables.get((self._exchanged, view), b[:0]).to(b)
            if len(table) <= most:
                grown = b.new_full((max(most + 1, 2 * len(table)),), torch.nan)
                grown[: len(table)] = table
                table = grown
            table[ids] = part
            self._tables[self._exchanged, view] = table


def _column_ids(sides: Sides) -> list[Tensor]:
    """The ids of the columns, as one tensor for each view."""
    ids = sides.columns.ids
    if ids is None:
        raise ValueError("warm_start=True needs the id of each sample, and there are none; pass ids=")
    return list(ids.chunk(2)) if sides.joint else [ids]
