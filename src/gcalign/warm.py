"""Where a solve may begin: the column potentials that samples had when they were last seen."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST = 1 << 26  # ids: a table of numbers, one for each


class Memory:
    """log v by sample id. Nothing is recalled of a sample that was not seen, so other batches cannot mislead a solve.

    It is no part of a `state_dict`: a plan solved to `tol` is the same wherever it began.
    """

    def __init__(self) -> None:
        self._tables: dict[int, Tensor] = {}

    def recall(self, ids: list[Tensor], like: Tensor) -> Tensor | None:
        """log v of columns, given as ids for each view that stands along them; None where no column is known."""
        parts = [self._known(view, column, like) for view, column in enumerate(ids)]
        b = torch.cat(parts)
        known = torch.isfinite(b)
        if not bool(known.any()):
            return None
        return torch.where(known, b, b[known].mean())

    def _known(self, view: int, ids: Tensor, like: Tensor) -> Tensor:
        table = self._tables.get(view)
        if table is None:
            return like.new_full((len(ids),), torch.nan)
        inside = ids < len(table)
        return torch.where(inside, table[torch.where(inside, ids, 0)].to(like), torch.nan)

    def keep(self, ids: list[Tensor], b: Tensor) -> None:
        """Remember log v, centred: its constant belongs to the batch, not to the samples."""
        b = b - b.mean()
        for view, (column, part) in enumerate(zip(ids, b.split([len(x) for x in ids]), strict=True)):
            least, most = (int(x) for x in column.aminmax())
            if least < 0 or most >= _MOST:
                raise ValueError(
                    f"warm_start=True keeps a number for each id, and ids range from {least} to {most}; they must lie "
                    f"in 0 … {_MOST - 1}: number the samples"
                )
            table = self._tables.get(view)
            if table is None or len(table) <= most:
                size = max(most + 1, 0 if table is None else 2 * len(table))
                grown = b.new_full((size,), torch.nan)
                if table is not None:
                    grown[: len(table)] = table
                table = self._tables[view] = grown
            table[column] = part
