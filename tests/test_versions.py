"""The oldest and the newest supported Python and torch, as far as they can be had here."""

from __future__ import annotations

import re
import sys

import pytest

import versions

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_the_versions_are_those_that_the_package_declares():
    lowest, pinned = versions.torch_versions()
    assert tuple(map(int, lowest.split("."))) <= tuple(map(int, pinned.split(".")))
    text = (versions.ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={versions.PYTHONS[0]}"' in text
    assert re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text) == list(versions.PYTHONS)
    assert versions.combinations(("3.10", "3.13")) == [("3.10", lowest), ("3.10", pinned), ("3.13", pinned)]


def test_an_interpreter_counts_only_if_it_runs(tmp_path, monkeypatch):
    assert versions.find_python(HERE) is not None
    shim = tmp_path / "python3.10"  # as pyenv's for a version that is not active
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert versions.find_python("3.10") is None


@pytest.mark.slow
def test_the_wheel_passes_the_core_tests_with_every_version_that_can_be_had(capsys):
    rows = versions.main(["--quick"])
    with capsys.disabled():
        print("", *rows, sep="\n")
    assert not [row for row in rows if row.result == "failed"]
    assert all(row.detail for row in rows if row.result == "skipped")
    if all(row.result == "skipped" for row in rows):
        pytest.skip("; ".join(f"Python {row.python}, torch {row.torch}: {row.detail}" for row in rows))
