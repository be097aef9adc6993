"""`make clients`: the libraries whose losses we stand in for, at pinned versions, with our adapters in their places.

A virtual environment in a temporary folder has these libraries, on top of the packages of the interpreter that runs
this script. Nothing of torchvision is used, so that a stand-in takes its place where it is not installed. For each
library our own tests of its adapter run, in which the original is an oracle. None of their source distributions has
tests; with `--checkouts FOLDER`, where FOLDER/pytorch-metric-learning and FOLDER/lightly are clones of their
repositories, the tests there run twice: with the original, and with our class under its name.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import site
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PML_TESTS = tuple(
    f"tests/losses/test_{name}.py"
    for name in ("ntxent_loss", "cross_batch_memory", "self_supervised_loss", "losses_without_labels")
)
TORCHVISION = '''"""Stands in for torchvision, of which nothing is used here."""
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__version__ = "0"


class Anything(type):
    """A class whose attributes are such classes."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class Module(ModuleType):
    __path__: list = []
    __getattr__ = Anything.__getattr__


class Finder(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.startswith("torchvision.") else None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())


def __getattr__(name):
    return Anything.__getattr__(None, name)
'''


class Client(NamedTuple):
    """A library, how it is installed, and what is run."""

    name: str
    packages: tuple[str, ...]  # installed with their dependencies
    alone: tuple[str, ...] = ()  # installed without
    ours: tuple[str, ...] = ()  # our tests
    theirs: tuple[str, ...] = ()  # files of their repository
    replaced: Mapping[str, str] = {}  # their class → ours, as module:name


CLIENTS = (
    Client(
        "sentence-transformers",
        ("sentence-transformers==6.2.0", "accelerate==1.15.0"),
        ours=(
            "interop/test_sentences.py",
            "docs/test_examples.py",
            "-k",
            "test_sentences or sentences_",
            "-m",
            "slow or not slow",
        ),
    ),
    Client(
        "pytorch-metric-learning",
        ("pytorch-metric-learning==2.9.0",),
        ours=(
            "interop/test_interop.py",
            "-k",
            "supcon or original or wrapper or memory_over or miners or reducers or pairs",
        ),
        theirs=PML_TESTS,
        replaced={
            "pytorch_metric_learning.losses:SupConLoss": "gcalign.interop.metric_learning:SupConLoss",
            "pytorch_metric_learning.losses:NTXentLoss": "gcalign.interop.metric_learning:NTXentLoss",
        },
    ),
    Client(
        "lightly",
        ("pytest-mock==3.17.0", "lightly-utils==0.0.2"),
        alone=("lightly==1.6.0",),
        ours=("interop/test_interop.py", "-k", "nt_xent or memory_bank or bank or negative_temperature or gathering"),
        theirs=("tests/loss/test_ntx_ent_loss.py",),
        replaced={"lightly.loss:NTXentLoss": "gcalign.interop.lightly:NTXentLoss"},
    ),
    Client(
        "open_clip_torch",
        ("ftfy", "regex", "huggingface-hub", "tqdm"),
        alone=("open_clip_torch==3.3.0", "timm==1.0.22"),
        ours=("interop/test_interop.py", "-k", "clip"),
    ),
    Client("scikit-learn", (), ours=("lab/test_estimator.py",)),
    Client("POT", (), ours=("transport/test_solve_like_pot.py",)),
)


class Row(NamedTuple):
    """One line of the table."""

    client: str
    version: str
    theirs: str
    ours: str
    failed: bool = False


def pytest_configure(config: Any) -> None:
    """This file is also a plugin of pytest: it puts our classes in the places of the originals.

    The originals are imported here too where they are tested themselves: the order of imports changes what some of
    their tests draw.
    """
    client = next((c for c in CLIENTS if c.name == os.environ.get("GCALIGN_CLIENT")), None)
    for original, own in ({} if client is None else client.replaced).items():
        (module, name), (from_module, from_name) = original.split(":"), own.split(":")
        ours = getattr(importlib.import_module(from_module), from_name)
        if "GCALIGN_REPLACE" in os.environ:
            setattr(importlib.import_module(module), name, ours)


def _run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def environment(folder: Path) -> Path:
    """The interpreter of a virtual environment that also has the packages of this one."""
    _run([sys.executable, "-m", "venv", str(folder)]).check_returncode()
    python = folder / "bin" / "python"
    own = Path(_run([str(python), "-c", "import site; print(site.getsitepackages()[0])"]).stdout.strip())
    (own / "base.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    if _run([str(python), "-c", "import torchvision"]).returncode:
        (own / "torchvision").mkdir()
        (own / "torchvision" / "__init__.py").write_text(TORCHVISION)
    return python


def install(python: Path, client: Client) -> str:
    """Install a library; the reason if it cannot be."""
    for packages, options in ((client.packages, ("-c", str(ROOT / "constraints.txt"))), (client.alone, ("--no-deps",))):
        if packages:
            done = _run([str(python), "-m", "pip", "install", "--quiet", *options, *packages])
            if done.returncode:
                return f"cannot be installed: {done.stderr.strip().splitlines()[-1]}"
    return ""


def tests(python: Path, arguments: Sequence[str], folder: Path, **variables: str) -> tuple[int, int, int, set[str]]:
    """How many tests passed, failed and were skipped, and which failed."""
    paths = [str(ROOT / "src"), str(ROOT / "tests")]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "TEST_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", **variables}
    options = ["-rf", "-n", "0", "-p", "no:cacheprovider", "-p", "clients"]
    command = [str(python), "-m", "pytest", *options, *arguments]
    done = _run(command, cwd=folder, env={**os.environ, **variables})
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-200:]]
    numbers = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last[0])}
    failed = set(re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE))
    wrong = numbers.get("failed", 0) + numbers.get("error", 0)
    return numbers.get("passed", 0), max(wrong, int(not numbers)), numbers.get("skipped", 0), failed


def tested(python: Path, client: Client, checkouts: Path | None) -> Row:
    """The row of one library."""
    name = client.name.replace("_", "-")
    code = f"from importlib.metadata import version; print(version({name!r}))"
    version = _run([str(python), "-c", code]).stdout.strip()
    theirs, bad = "not at hand", False
    folder = None if checkouts is None else checkouts / client.name
    if client.theirs and folder is not None and folder.is_dir():
        arguments, own = [*client.theirs, "--noconftest"], {"GCALIGN_CLIENT": client.name}
        originals = tests(python, arguments, folder, **own)
        ours = tests(python, arguments, folder, GCALIGN_REPLACE="1", **own)
        new = ours[3] - originals[3]
        theirs = f"{ours[0]} of {ours[0] + ours[1]} (the original: {originals[0]})"
        bad = bool(new) or ours[0] < originals[0]
        print(*sorted(new), sep="\n", end="\n" if new else "")
    elif not client.theirs:
        theirs = "–"
    passed, failed, skipped, names = tests(python, client.ours, ROOT / "tests")
    print(*sorted(names), sep="\n", end="\n" if names else "")
    ours_text = f"{passed} of {passed + failed}" + (f", {skipped} skipped" if skipped else "")
    return Row(client.name, version, theirs, ours_text, bad or failed > 0)


def main(argv: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(prog="clients.py", description=__doc__)
    parser.add_argument("--checkouts", type=Path, help="a folder of clones of their repositories")
    parser.add_argument("--only", action="append", choices=[c.name for c in CLIENTS], help="may be repeated")
    asked = parser.parse_args(argv)
    rows = []
    print("| library | version | their tests, with our class | our tests |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="gcalign-clients-") as name:
        python = environment(Path(name))
        for client in CLIENTS:
            if asked.only and client.name not in asked.only:
                continue
            reason = install(python, client)
            row = Row(client.name, "–", "–", reason) if reason else tested(python, client, asked.checkouts)
            rows.append(row)
            print(f"| {row.client} | {row.version} | {row.theirs} | {row.ours} |", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(any(row.failed for row in main()))
