"""Rooms know only the rooms below them, stay readable, and cost nothing until they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gcalign

PACKAGE = Path(gcalign.__file__).parent
# from the ground up; a room may import rooms on earlier lines (and, in a folder, its own)
STOREYS = [
    ("errors", "files"),
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
    ("verify",),
    ("data", "models", "report"),
    ("evaluation",),
    ("training",),
    ("experiments",),
    ("bench", "demo"),
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
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively; write gcalign.… in full"
            names = [node.module] if node.module != "gcalign" else [f"gcalign.{alias.name}" for alias in node.names]
        for name in names:
            parts = (name or "").split(".")
            if parts[0] == "gcalign":
                found.add(parts[1] if len(parts) > 1 else "__init__")
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downward(path):
    room = room_of(path)
    assert room in HEIGHT, f"{room} is a new room: give it a storey in this test"
    if room == "__init__":
        return  # opens `public` lazily, and nothing else
    for other in imported_rooms(path) - {room}:
        assert HEIGHT[other] < HEIGHT[room], f"{room} imports {other}, which stands above it or beside it"


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
