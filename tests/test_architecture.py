"""Rooms know only the rooms below them, stay readable, and cost nothing until they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import gcalign

PACKAGE = Path(gcalign.__file__).parent
# from the ground up; a room may import rooms on earlier lines (and, in a folder, its own)
STOREYS = [
    ("errors",),
    ("kernels", "geometry", "plan", "support"),
    ("metrics", "targets", "constraints", "operators", "warm"),
    ("solvers", "distributed"),
    ("divergences",),
    ("modes", "gradients"),
    ("proximal",),
    ("alignment",),
    ("methods",),
    ("functional", "caching"),
    ("public",),
    ("__init__",),
    ("lab",),
    ("lab.files", "lab.provenance"),
    ("lab.verify",),
    ("lab.data", "lab.models", "lab.report"),
    ("lab.evaluation",),
    ("lab.training",),
    ("lab.experiments",),
    ("lab.bench", "lab.demo"),
    ("cli",),
]
HEIGHT = {room: k for k, rooms in enumerate(STOREYS) for room in rooms}
TRAINING_STACK = (
    "lightning",
    "hydra",
    "datasets",
    "kornia",
    "torchmetrics",
    "sklearn",
    "scipy",
    "matplotlib",
    "plotly",
)


def room_of(path: Path) -> str:
    return room(path.relative_to(PACKAGE).with_suffix("").parts)


def room(parts: Sequence[str]) -> str:
    """`alignment`, `operators`, `lab.training`: the module or folder that has a storey."""
    parts = [part for part in parts if part != "__init__"] or ["__init__"]
    return ".".join(parts[: 2 if parts[0] == "lab" else 1])


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively; write gcalign.… in full"
            whole = node.module in ("gcalign", "gcalign.lab")
            names = [f"{node.module}.{alias.name}" for alias in node.names] if whole else [node.module]
        for name in names:
            parts = (name or "").split(".")
            if parts[0] == "gcalign":
                found.add(room(parts[1:]))
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downward(path):
    here = room_of(path)
    assert here in HEIGHT, f"{here} is a new module: give it a storey in this test"
    if here == "__init__":
        return  # opens `public` lazily, and nothing else
    for other in imported_rooms(path) - {here}:
        assert HEIGHT[other] < HEIGHT[here], f"{here} imports {other}, which stands above it or beside it"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_stay_under_about_300_lines(path):
    assert len(path.read_text().splitlines()) <= 320


def test_an_upward_arrow_would_be_caught(tmp_path):
    wrong = tmp_path / "kernels.py"
    wrong.write_text("from gcalign.alignment import Alignment\n")
    assert any(HEIGHT[other] >= HEIGHT["kernels"] for other in imported_rooms(wrong))


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_library_costs_little_more_than_torch_and_none_of_the_training_stack():
    code = f"""
import sys, time
import torch
start = time.process_time()
import gcalign
gcalign.method("gca-uot")
print(time.process_time() - start)
print(*(m for m in {TRAINING_STACK} if m in sys.modules))
"""
    times, pulled = [], ""
    for _ in range(3):
        seconds, _, pulled = fresh(code).partition("\n")
        times.append(float(seconds))
    assert min(times) < 0.3
    assert pulled == ""


def test_nothing_is_imported_before_it_is_used():
    assert fresh("import sys, gcalign; print('torch' in sys.modules)") == "False"


def test_every_public_name_is_there_and_no_other():
    for name in gcalign.__all__:
        assert getattr(gcalign, name) is not None
    assert set(gcalign.__all__) <= set(dir(gcalign))
    with pytest.raises(AttributeError, match="no attribute 'Kernle'"):
        _ = gcalign.Kernle
