"""What stands in `docs/results` and `docs/claims.md` is what the result files there say, byte for byte."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from gcalign.cli import main
from gcalign.lab.experiments.engine import claims, experiment, ledger, records

DOCS = Path(__file__).parents[3] / "docs"
SMALL = DOCS / "results" / "small"
UNFINISHED = {"fig-cone"}  # sweeps that go on: the same command continues them
FILES = sorted(path for path in SMALL.glob("*.jsonl") if not path.stem.startswith("search"))
TABLES = [path for path in FILES if path.with_suffix(".tex").exists()]
FIGURES = [path for path in FILES if path not in TABLES]


def redrawn(result: Path, folder: Path) -> dict[str, bytes]:
    drawn = experiment.named(result.stem).draw(records.frame(records.read(result)), folder)
    return {path.name: path.read_bytes() for path in drawn if path.suffix not in (".pdf", ".md")}  # not committed


@pytest.mark.parametrize("result", TABLES, ids=lambda path: path.stem)
def test_tables_are_regenerated_byte_for_byte_without_training(result, tmp_path):
    again = redrawn(result, tmp_path)
    assert f"{result.stem}.tex" in again  # the audit has a brief one, too
    assert again == {name: (SMALL / name).read_bytes() for name in again}


@pytest.mark.slow
@pytest.mark.parametrize("result", FIGURES, ids=lambda path: path.stem)
def test_figures_are_regenerated_byte_for_byte_without_training(result, tmp_path):
    again = redrawn(result, tmp_path)
    assert again == {name: (SMALL / name).read_bytes() for name in again}


@pytest.mark.parametrize("name", ["table1", "table-labels", "scouts", "emoji-pairs"])
def test_the_whole_command_changes_no_byte_without_runs_and_data(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SMALL, tmp_path / "results" / "small")
    assert main(["reproduce", name, "scale=small"]) == 0
    again = {path.name: path.read_bytes() for path in (tmp_path / "results" / "small").iterdir()}
    assert again.pop(f"{name}.md")
    assert again == {path.name: path.read_bytes() for path in SMALL.iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_every_drawing_has_its_result_file():
    names = {path.stem for path in FILES}
    assert names <= set(experiment.names())
    parts = ("", "-plane", "-brief", "-shares")  # some have several
    for path in SMALL.iterdir():
        assert path.stem.startswith("search") or any(path.stem == name + part for name in names for part in parts)


def test_claims_are_those_of_the_result_files():
    results = claims.Results.read(DOCS / "results", "small")
    fresh = ledger.markdown(claims.judged(results), results)
    assert (DOCS / "claims.md").read_text(encoding="utf-8") == fresh


@pytest.mark.parametrize("result", FILES, ids=lambda path: path.stem)
def test_the_command_that_made_a_result_file_has_nothing_left_to_do(result, tmp_path, monkeypatch, capsys):
    """Searches and runs are those of the files, whose runs are gone; a run is known wherever its data lay."""
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", result.stem, "scale=small", f"out={DOCS / 'results'}", "dry=true"]) == 0
    shown = capsys.readouterr().err
    assert "the search's first" not in shown
    for have, wanted in re.findall(r"(\d+) of (\d+) in", shown):
        assert 0 < int(have) < int(wanted) if result.stem in UNFINISHED else have == wanted, shown
