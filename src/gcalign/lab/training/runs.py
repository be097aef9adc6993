"""A run's folder: config, results, checkpoint, weights and the `done` marker; no pickles, nothing half-written."""

from __future__ import annotations

import glob
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcalign.lab import files
from gcalign.lab.training.config import Config
from gcalign.lab.words import explained, path_of

NEEDED: Mapping[str, Mapping[str, Any]] = {  # by the kind of a result line, what is read of it
    "train": {"step": int},
    "knn": {"step": int, "accuracy": (int, float)},
    "probe": {"protocol": str, "accuracy": (int, float)},
    "measure": {"key": str, "findings": list},
}
FINDING: Mapping[str, Any] = {"measure": str, "value": (int, float, type(None)), "labels": dict, "about": dict}


@dataclass(frozen=True)
class Run:
    """`runs/<name>-<hash>/`."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def results_file(self) -> Path:
        return self.path / "results.jsonl"

    @property
    def weights_file(self) -> Path:
        return self.path / "weights.safetensors"

    @property
    def checkpoint_file(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def done(self) -> bool:
        return (self.path / "done").exists() and self.weights_file.exists()

    @staticmethod
    def of(config: Config) -> Run:
        return Run(path_of(config.runs) / config.folder)

    @staticmethod
    def at(path: str | Path) -> Run:
        run = Run(path_of(path))
        if not run.config_file.exists():
            named = sorted(run.path.parent.glob(f"{glob.escape(run.path.name)}-{'[0-9a-f]' * 10}/config.json"))
            if len(named) == 1:  # name=mine is runs/mine-<hash>
                return Run(named[0].parent)
            if named:
                found = ", ".join(str(file.parent) for file in named)
                raise ValueError(f"run={path} must name one run, and there are {len(named)}: {found}; choose one")
            raise ValueError(f"run={path} must be a folder with a config.json, of `gcalign train`; see `gcalign list`")
        return run

    def start(self, config: Config) -> None:
        """Write the config, and remove what a killed process left half-written."""
        self.path.mkdir(parents=True, exist_ok=True)
        files.clean(self.path)
        files.write(self.config_file, json.dumps(config.as_dict(), indent=2, sort_keys=True) + "\n")

    def config(self) -> Config:
        remedy = "the command that started this run writes it again"
        with explained(f"{self.config_file} cannot be read", remedy, ValueError, OSError):
            return Config.from_dict(files.from_json(files.read(self.config_file)))

    def check_writable(self) -> None:
        """That a result can be recorded, before the time it takes to find it."""
        with explained(f"run={self.path} cannot record results", "make it writable, or probe a copy of it", OSError):
            files.append_json_lines(self.results_file, [])

    def finish(self) -> None:
        files.clean(self.path)
        files.write(self.path / "done", "")
        self.checkpoint_file.unlink(missing_ok=True)

    def results(self) -> list[dict[str, Any]]:
        """The result lines that are whole; others are named in a warning."""
        return files.read_json_lines(self.results_file, _fault)

    def keep_results_before(self, step: int) -> None:
        """Forget what a killed process wrote after its last checkpoint: it will be written again."""
        if self.results_file.exists():
            with warnings.catch_warnings():  # the line is written again, and whole
                warnings.filterwarnings("ignore", message=f".*{files.CUT_SHORT}")
                kept = [r for r in self.results() if r.get("step", 0) <= step]
            files.write(self.results_file, "".join(map(files.to_json_line, kept)))


def _fault(line: dict[str, Any]) -> str | None:
    """What keeps a line from being one of the kinds that are read."""
    kind = line.get("kind")
    needed = NEEDED.get(str(kind), {})
    wrong = [name for name, kinds in needed.items() if not isinstance(line.get(name), kinds)]
    if kind == "train":  # every other value is a curve
        wrong += [name for name, value in line.items() if name != "kind" and not isinstance(value, int | float)]
    if kind == "measure" and not wrong:
        wrong += [] if all(map(_is_finding, line["findings"])) else ["findings"]
    return (
        None if isinstance(kind, str) and not wrong else f"{wrong[0] if wrong else 'kind'} is missing or not a result"
    )


def _is_finding(content: Any) -> bool:
    """As `experiments.engine.measures` writes them."""
    if not isinstance(content, dict) or not {"measure", "value"} <= content.keys() <= FINDING.keys():
        return False
    return all(isinstance(value, FINDING[name]) for name, value in content.items())
