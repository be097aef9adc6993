"""`logger=csv`: a row for each step that was logged. The table of a resumed run continues where the run does."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger

from gcalign.lab import files


class MetricsFile:
    """A table on disk. A row is added whole or not at all; with a new column the table is written again."""

    def __init__(self, file: Path, resume_at: int) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        self.rows = [row for row in _read(file) if row["step"].isdigit() and int(row["step"]) <= resume_at]
        self.columns = sorted({name for row in self.rows for name in row} | {"step"})
        files.write(file, _lines(self.columns, [dict(zip(self.columns, self.columns, strict=True)), *self.rows]))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        row = {name: str(value) for name, value in metrics.items()} | {"step": str(step)}
        self.rows.append(row)
        if row.keys() <= set(self.columns):
            files.append(self.file, _lines(self.columns, [row]))
            return
        self.columns = sorted({*self.columns, *row})
        files.write(self.file, _lines(self.columns, [dict(zip(self.columns, self.columns, strict=True)), *self.rows]))

    def log_hparams(self, params: Mapping[str, Any]) -> None:
        """A run's config is in its folder already."""

    def save(self) -> None:
        """Every row is on disk already."""


class RowsLogger(CSVLogger):
    """Lightning's CSVLogger, which deletes the rows that it finds, with a table that keeps those up to `resume_at`."""

    def __init__(
        self, save_dir: str | Path, name: str = "", version: str = "csv", prefix: str = "", resume_at: int = 0
    ) -> None:
        super().__init__(save_dir, name, version, prefix)
        self.resume_at = resume_at

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            rows = MetricsFile(Path(self.log_dir) / "metrics.csv", self.resume_at)
            self._experiment = rows  # type: ignore[assignment]  # in place of Lightning's writer
        return self._experiment


def _read(file: Path) -> list[dict[str, str]]:
    """The rows of a table; one that was cut short is left out."""
    if not file.exists():
        return []
    text = files.read(file).decode("utf-8", "replace")
    table = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    rows = [{k: v for k, v in row.items() if k and v} for row in table if None not in row.values()]
    return [row for row in rows if "step" in row]


def _lines(columns: list[str], rows: list[dict[str, str]]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
