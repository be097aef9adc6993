"""What stands in `docs/results` and `docs/claims.md` is what the result files there say, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcalign.lab.experiments import claims, records, registry, suite
from gcalign.lab.paper import METHODS

DOCS = Path(__file__).parents[1] / "docs"
SMALL = DOCS / "results" / "small"
FILES = sorted(path for path in SMALL.glob("*.jsonl") if not path.stem.startswith("search"))
TABLES = [path for path in FILES if path.with_suffix(".md").exists()]
FIGURES = [path for path in FILES if path not in TABLES]


def redrawn(result: Path, folder: Path) -> dict[str, bytes]:
    drawn = registry.named(result.stem).draw(records.read(result), folder)
    return {path.name: path.read_bytes() for path in drawn if path.suffix != ".pdf"}  # PDFs are not committed


@pytest.mark.parametrize("result", TABLES, ids=lambda path: path.stem)
def test_tables_are_regenerated_byte_for_byte_without_training(result, tmp_path):
    again = redrawn(result, tmp_path)
    assert {f"{result.stem}.md", f"{result.stem}.tex"} <= again.keys()  # the audit has a brief one, too
    assert again == {name: (SMALL / name).read_bytes() for name in again}


@pytest.mark.slow
@pytest.mark.parametrize("result", FIGURES, ids=lambda path: path.stem)
def test_figures_are_regenerated_byte_for_byte_without_training(result, tmp_path):
    again = redrawn(result, tmp_path)
    assert again == {name: (SMALL / name).read_bytes() for name in again}


def test_every_drawing_has_its_result_file():
    names = {path.stem for path in FILES}
    assert names <= set(suite.names())
    parts = ("", "-plane", "-brief")  # some have two
    for path in SMALL.iterdir():
        assert path.stem.startswith("search") or any(path.stem == name + part for name in names for part in parts)


def test_claims_are_those_of_the_result_files():
    results = claims.loaded(DOCS / "results", "small")
    fresh = claims.markdown(claims.judged(results), results).splitlines()
    page = (DOCS / "claims.md").read_text(encoding="utf-8").splitlines()
    end = page.index("## Theorems")  # `gcalign verify` has tests of its own
    assert [line for line in page[:end] if not line.startswith("What the paper claims")] == [
        line for line in fresh[: fresh.index("## Theorems")] if not line.startswith("What the paper claims")
    ]


def test_committed_runs_took_what_the_search_chose():
    # the first search: three values of one knob, seed 0; table1 and what shares its runs were made with it
    trials = records.read(SMALL / "search-1.jsonl")
    assert {r.labels["method"] for r in trials} == set(METHODS)
    for record in records.read(SMALL / "table1.jsonl"):
        mine = [r for r in trials if r.labels["method"] == record.labels["method"]]
        best = max(r.value for r in mine)
        assert any(r.value == best and r.labels["knob"] in record.words for r in mine), record.labels
