"""The demo."""

from __future__ import annotations

import re

import pytest

from gcalign.cli import main


@pytest.mark.slow
def test_the_demo_beats_pixels_and_an_untrained_encoder(tmp_path, capsys):
    assert main(["demo", "--runs", str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    last = {m[1]: float(m[2]) for m in re.finditer(r"│ ([\w -]+?) +│ (?:–|clean) +│.*│ +([\d.]+) │", out)}
    assert (
        min(last[name] for name in ("ince", "gca-ince", "gca-uot"))
        > max(last["raw pixels"], last["untrained encoder"]) + 20
    )
    assert (tmp_path / "runs" / "report.html").stat().st_size > 50_000
