"""The notebooks run from their first cell to their last, and are stored without outputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[str]:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == kind]


def test_there_are_notebooks_to_start_with():
    expected = {"quick-start", "mismatched-pairs", "domain-target", "swap-the-loss", "align"}
    assert expected <= {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_stored_without_outputs_and_checks_itself(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    assert cells(path, "markdown")[0].startswith("# ")
    assert "assert " in "\n".join(cells(path, "code"))
    for source in cells(path, "code"):
        compile(source, path.stem, "exec")  # plain Python, no magics


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(path, tmp_path):
    for library in ("matplotlib", "sklearn"):
        pytest.importorskip(library)
    program = tmp_path / f"{path.stem}.py"
    program.write_text("import matplotlib\nmatplotlib.use('Agg')\n" + "\n\n".join(cells(path, "code")))
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
