"""The pages say what the code does: the call they follow, the picture they show, the examples they give."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "life-of-a-call.md"
FOLLOWED = """
import sys, torch, gcalign
z1, z2 = torch.randn(256, 64, requires_grad=True), torch.randn(256, 64)
criterion = gcalign.method("gca-uot", eps=0.2)
criterion(z1, z2).backward()
modules = set()
def follow(frame, event, arg):
    module = frame.f_globals.get("__name__", "")
    if event == "call" and module.startswith("gcalign."):
        modules.add(module.removeprefix("gcalign."))
sys.setprofile(follow)
criterion(z1, z2).backward()
sys.setprofile(None)
print(*modules)
"""


@pytest.fixture(scope="module")
def met():
    """The modules that one call meets."""
    done = subprocess.run([sys.executable, "-c", FOLLOWED], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def picture():
    spec = importlib.util.spec_from_file_location("life_of_a_call", ROOT / "docs" / "life_of_a_call.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_life_of_a_call_lists_the_modules_that_it_meets(met):
    listed = re.findall(r"^\| `([\w.]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(met)
    assert f"meets {len(met)} modules" in PAGE.read_text()


def test_the_picture_of_a_call_names_only_modules_that_it_meets(met, picture):
    short = {module.removeprefix("transport.") for module in met}
    named = {module for box in (*picture.FORWARD, *picture.BACKWARD) for module in box.modules}
    named |= {module for _, module, *_ in picture.OPERATORS}
    assert named <= short
    assert short - named == {"distributed", "support"}  # they only carry


def test_the_picture_of_a_call_is_drawn_the_same_each_time(tmp_path, picture):
    pytest.importorskip("matplotlib")
    for name in ("one.png", "two.png"):
        picture.draw(tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
