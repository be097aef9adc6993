"""`make versions`: the wheel and the core tests with the oldest and the newest supported Python and torch.

Every Python from 3.10 to 3.13 that is on this machine gets a virtual environment in a temporary folder for the pinned
torch, and the oldest one another for torch 2.6. What cannot be had is skipped, and the table says why.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
QUICK = (
    "tests/core/test_methods.py", "tests/core/test_criterion.py", "tests/core/test_errors.py",
    "tests/transport/test_compile.py",
)  # fmt: skip
CORE = ("tests/core", "tests/transport")
ALONE = """
import gcalign, torch
gcalign.method("gca-uot")(torch.randn(8, 4, requires_grad=True), torch.randn(8, 4)).backward()
"""
NEEDED = ("pytest", "hypothesis", "numpy", "scipy", "POT")


class Row(NamedTuple):
    """One line of the table."""

    python: str
    torch: str
    result: str  # "passed", "failed" or "skipped"
    detail: str


def torch_versions() -> tuple[str, str]:
    """The lowest that pyproject.toml allows, and the one that constraints.txt pins."""
    lowest = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    pinned = re.search(r"^torch==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert lowest is not None
    assert pinned is not None
    return f"{lowest[1]}.0", pinned[1]


def find_python(version: str) -> str | None:
    """An interpreter of this version that runs: on the path, or from pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [
        shutil.which(f"python{version}"),
        *map(str, sorted(root.glob(f"{version}.*/bin/python"), reverse=True)),
    ]
    for python in candidates:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        if python and _run([python, "-c", code]).stdout.strip() == version:
            return python
    return None


def _run(command: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
    whole = {"capture_output": True, "text": True, "check": False, **options}
    return subprocess.run(command, **whole)  # type: ignore[call-overload]  # options of any type


def combinations(pythons: Sequence[str]) -> list[tuple[str, str]]:
    """The oldest with the oldest, then every Python with the pinned torch."""
    lowest, pinned = torch_versions()
    return [(pythons[0], lowest), *((python, pinned) for python in pythons)]


def too_large(pip: Sequence[str], torch: str, index: Sequence[str]) -> str | None:
    """Why torch is not installed: it cannot be had, or it brings gigabytes of CUDA libraries. None if all is well."""
    asked = _run([*pip, "install", "--dry-run", "--quiet", "--report", "-", *index, f"torch=={torch}"])
    if asked.returncode:
        return f"torch {torch} cannot be installed: {asked.stderr.strip().splitlines()[-1]}"
    names = [item["metadata"]["name"] for item in json.loads(asked.stdout)["install"]]
    cuda = [name for name in names if name.startswith(("nvidia", "cuda"))]
    if cuda:
        return (
            f"the index has torch {torch} only with {len(cuda)} CUDA packages; --large, or --torch-index of CPU builds"
        )
    return None


def tested(python: str, version: str, torch: str, wheel: Path, folder: Path, asked: argparse.Namespace) -> Row:
    """Install and test one combination."""
    home = folder / f"{version}-{torch}"
    made = _run([python, "-m", "venv", str(home)])
    if made.returncode:
        return Row(version, torch, "skipped", f"no virtual environment: {made.stderr.strip()[-80:]}")
    inside = str(home / "bin" / "python")
    pip = [inside, "-m", "pip", "--disable-pip-version-check"]
    index = ["--index-url", asked.torch_index] if asked.torch_index else []
    reason = None if asked.large else too_large(pip, torch, index)
    if reason is not None:
        return Row(version, torch, "skipped", reason)
    for packages in ([*index, f"torch=={torch}"], [str(wheel)], NEEDED):
        done = _run([*pip, "install", "--quiet", *packages])
        if done.returncode:
            return Row(version, torch, "skipped", f"cannot be installed: {done.stderr.strip().splitlines()[-1]}")
        if packages == [str(wheel)] and _run([inside, "-c", ALONE]).returncode:
            return Row(version, torch, "failed", "the library needs more than torch and rich")
    where = _run([inside, "-c", "import gcalign, torch; print(gcalign.__file__, torch.__version__)"]).stdout.split()
    if len(where) != 2 or not where[0].startswith(str(home)):
        return Row(version, torch, "failed", "the wheel cannot be imported")
    files = QUICK if asked.quick else CORE
    start = time.perf_counter()
    run = _run([inside, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", "-q", "-rf", *files], cwd=ROOT)
    failed = re.findall(r"^FAILED (\S+)", run.stdout, re.MULTILINE)
    for name in failed:
        print(f"  {version}, torch {torch}: {name}", flush=True)
    good = run.returncode == 0
    text = f"{len(failed)} tests fail" if failed else "core tests" if good else run.stdout.strip()[-200:]
    return Row(version, where[1], "passed" if good else "failed", f"{text}, {time.perf_counter() - start:.0f} s")


def main(argv: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(prog="versions.py", description=__doc__)
    parser.add_argument(
        "--torch-index", default=os.environ.get("TORCH_INDEX", ""), help="URL of an index of CPU builds"
    )
    parser.add_argument("--large", action="store_true", help="also install builds of torch with CUDA, gigabytes each")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this Python; may be repeated")
    asked = parser.parse_args(argv)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="gcalign-versions-") as name:
        folder = Path(name)
        built = _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT)])
        if built.returncode:
            raise SystemExit(f"the wheel cannot be built:\n{built.stderr}")
        wheel = next(folder.glob("gcalign-*.whl"))
        for version, torch in combinations(asked.python or PYTHONS):
            python = find_python(version)
            if python is None:
                row = Row(version, torch, "skipped", "no such Python on this machine")
            else:
                row = tested(python, version, torch, wheel, folder, asked)
                shutil.rmtree(folder / f"{version}-{torch}", ignore_errors=True)
            rows.append(row)
            print(f"Python {row.python:5} torch {row.torch:14} {row.result:8} {row.detail}", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(any(row.result == "failed" for row in main()))
