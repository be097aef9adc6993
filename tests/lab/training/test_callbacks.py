"""What a person sees of a run while it trains."""

import re
from functools import partial

import pytest
import torch

from gcalign import metrics
from gcalign.lab.training import callbacks
from gcalign.lab.training.config import configured
from gcalign.lab.training.module import collapse
from gcalign.lab.training.train import train
from small_runs import SCENES


def test_without_a_terminal_progress_is_lines(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(callbacks, "EVERY", 0.0)
    train(configured([*SCENES, "epochs=2", f"runs={tmp_path}"]))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    assert lines[0].startswith("epoch 1/2, step 1 of 4, loss ")
    assert lines[-1].startswith("epoch 2/2, step 3 of 4")
    assert all(line.endswith(" s left") for line in lines)


def test_collapse_is_measured():
    torch.manual_seed(0)
    spread = collapse(torch.randn(512, 16))
    assert spread["spread"] > 0.95
    assert spread["rank"] > 14
    one = collapse(torch.ones(64, 16) + 1e-4 * torch.randn(64, 16))
    assert one["spread"] < callbacks.COLLAPSED
    line = collapse(torch.randn(64, 1) * torch.ones(1, 16))
    assert line["rank"] == pytest.approx(1, abs=1e-2)


def test_collapse_is_warned_about_once(tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks, "COLLAPSED", 2.0)  # no spread is as large
    with pytest.warns(UserWarning, match="collapsed to one point") as caught:
        train(configured([*SCENES, "epochs=2", f"runs={tmp_path}"]), quiet=True)
    assert len([w for w in caught if "collapsed" in str(w.message)]) == 1


def test_a_plan_that_lost_its_mass_is_logged_once_with_the_remedy(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(metrics, "collapse", partial(metrics.collapse, least=1e9))  # no plan has as much
    with caplog.at_level("WARNING", logger="gcalign"):
        train(configured([*SCENES, "method=gca-uot-paper", "log_every=1", f"runs={tmp_path}"]), quiet=True)
    (message,) = [r.getMessage() for r in caplog.records if r.name.startswith("gcalign")]
    assert re.match(r"step \d+: the plan has ", message)
    assert "least_mass=True" in message
