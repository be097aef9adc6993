"""Runs of a folder as a table."""

import pytest

from gcalign.lab import files
from gcalign.lab.training.config import configured
from gcalign.lab.training.listing import listing, records
from gcalign.lab.training.runs import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of clean and of mismatched pairs, and a run with a name and another ε; each was probed twice."""
    folder = tmp_path_factory.mktemp("runs")
    words = [[f"pairs.noise={noise}", f"seed={seed}", f"runs={folder}/deep"] for seed in (0, 1) for noise in (0.0, 0.5)]
    for config in map(configured, [*words, ["name=mine", "method.eps=0.2", f"runs={folder}"]]):
        run, probes = Run.of(config), [{"kind": "probe", "protocol": "knn", "accuracy": x} for x in (0.25, 0.5)]
        run.start(config)
        files.append_json_lines(run.results_file, [{"kind": "train", "step": 7, "loss": 1.0}, *probes])
    return folder


def test_list_looks_into_folders_and_tells_clean_from_mismatched(runs):
    rows = listing(str(runs))
    assert sorted(row["pairs"] for row in rows) == ["50% mismatched"] * 2 + ["clean"] * 3
    assert {(row["state"], row["accuracy"]) for row in rows} == {("step 7", "knn 50.0 %")}  # the last one measured
    assert all(row["accuracy"] == {"knn": 0.5} for row in records(str(runs)))


def test_a_named_run_is_found_by_its_name(runs):
    assert Run.at(runs / "mine").config().name == "mine"
    with pytest.raises(ValueError, match=r"run=.*min "):
        Run.at(runs / "min")
