"""Runs that several files of tests look at, each trained once, and a table of pairs."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gcalign.lab.training.config import configured
from gcalign.lab.training.runs import Run
from gcalign.lab.training.train import train
from small_runs import SHAPES, png


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Run:
    """A finished run on images."""
    words = ["method=ince", "data=scenes", "data.limit=256", "epochs=1", "batch_size=64", "model.width=0.25",
             "model.hidden=32", "model.out=8", "accelerator=cpu", "logger=none"]  # fmt: skip
    return train(configured([*words, f"runs={tmp_path_factory.mktemp('runs')}"]), quiet=True)


@pytest.fixture(scope="session")
def run_on_pairs(tmp_path_factory) -> Run:
    """A finished run on images with captions."""
    words = ["method=gca-uot", "method.learnable=true", "epochs=3", "seed=1", f"runs={tmp_path_factory.mktemp('runs')}"]
    return train(configured([*SHAPES, *words]), quiet=True)


@pytest.fixture
def given(run, tmp_path) -> Run:
    """The run on images as somebody else would hand it over: a copy, which a test may change."""
    copy = tmp_path / "given" / run.path.name
    shutil.copytree(run.path, copy)
    return Run(copy)


@pytest.fixture(scope="session")
def rows() -> dict[str, list]:
    """Twelve pairs of everything that a table may hold."""
    return {
        "image": [{"bytes": png((20 * k % 256, 7 * k % 256, 99)), "path": None} for k in range(12)],
        "name": [f"thing number {k}" for k in range(12)],
        "other": [[f"ding {k}", f"sache {k}"] if k % 2 else [f"ding {k}"] for k in range(12)],
        "numbers": [[float(k), 1.0, -k / 2] for k in range(12)],
        "family": [k // 2 for k in range(12)],
    }


@pytest.fixture
def table(rows, tmp_path):
    """A parquet file of these pairs, with changes."""

    def write(**changed) -> str:
        pq.write_table(pa.table(rows | changed), tmp_path / "pairs.parquet")
        return str(tmp_path / "pairs.parquet")

    return write
