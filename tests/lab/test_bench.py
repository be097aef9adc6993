"""`gcalign bench`: contestants take turns, ratios are of one run, errors are measured, files are whole."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from gcalign import KL, Alignment, Columns, Cosine, Rows, cli
from gcalign.lab import timing
from gcalign.lab.bench import arguments, launches, losses, memory, peers, probe, solvers, table
from gcalign.lab.bench.batches import COSINE, eager_info_nce, pairs
from gcalign.lab.commands import Parser
from gcalign.lab.terminal import Progress
from gcalign.methods import method

SILENT = Progress(shown=False)


def test_contestants_take_turns_and_warm_up_before_each_time_that_counts():
    calls = []
    jobs = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = timing.interleaved(jobs, 3, SILENT)
    assert "".join(calls) == 3 * "aabbcc"
    assert {name: len(found.times) for name, found in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_a_contestant_beyond_its_budget_is_still_counted_once(monkeypatch):
    calls = []
    monkeypatch.setattr(timing, "BUDGET", 0.05)
    times = timing.interleaved({"quick": lambda: None, "slow": lambda: (calls.append(1), time.sleep(0.06))}, 5, SILENT)
    assert len(times["quick"].times) == 5
    assert len(times["slow"].times) == 1
    assert len(calls) == 2
    assert table.figures(times["slow"])["seconds"] >= 0.06


def test_times_are_taken_with_the_threads_that_are_set():
    seen = []
    with timing.threads(1):
        timing.median_seconds(lambda: seen.append(torch.get_num_threads()), 1)
    assert set(seen) == {1}


def test_the_baseline_is_our_ince_and_partners_have_the_cosine_that_is_stated():
    z1, z2 = pairs(512, 64)
    assert abs(torch.cosine_similarity(z1, z2).mean().item() - COSINE) < 0.02
    torch.testing.assert_close(eager_info_nce(z1, z2, 0.2), method("ince", eps=0.2)(z1, z2))


@pytest.mark.parametrize("name", arguments.WHAT)
def test_each_measurement_has_help_with_an_example_of_itself(capsys, name):
    assert cli.main(["bench", name, "--help"]) == 0
    assert f"example:\n  gcalign bench {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["losses", "--n", "0"], "0 must be a whole number of at least 1"),
        (["losses", "--eps", "-1"], "must be a number > 0"),
        (["loses"], "invalid choice: 'loses'"),
        (["losses", "--json", "no/such/folder/x.json"], "directory that exists"),
    ],
)
def test_bad_usage_is_one_line_that_helps(capsys, argv, says):
    assert cli.main(["bench", *argv]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert says in err


def test_settings_given_win_over_quick_and_full_ones():
    parser = Parser()
    arguments.declare(parser)
    given = parser.parse_args(["--quick", "losses", "--n", "32", "48"])
    assert arguments.chosen("losses", given) == {"n": [32, 48], "dim": [16], "eps": [0.5], "repeats": 2, "seed": 0}
    given = parser.parse_args(["memory", "--large", "--seed", "3"])
    assert arguments.chosen("memory", given).items() >= {"large": [65_536], "seed": 3}.items()


def test_losses_are_compared_in_one_run_and_written_with_the_machine(tmp_path, capsys, monkeypatch):
    absent = peers.PeerLoss("absent", peers.Peer("no_such_module", "no-such-package"), peers.lightly_loss, 10)
    small = peers.PeerLoss("small", peers.Peer("torch", "torch"), peers.lightly_loss, 10)
    monkeypatch.setattr(peers, "LOSSES", (absent, small))
    path = tmp_path / "losses.json"
    assert cli.main(["bench", "losses", "--quick", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "no-such-package: not installed; pip install no-such-package" in out
    assert "small: not run above n = 10" in out
    assert list(tmp_path.iterdir()) == [path]
    written = json.loads(path.read_text())
    assert written["machine"]["torch"] == torch.__version__
    assert {"cpu", "cores", "threads"} <= written["machine"].keys()
    found = written["benches"]["losses"]
    rows = {row["name"]: row for row in found["tables"]["losses"]}
    torchs = [losses.LINEAR] if hasattr(torch.nn.functional, "linear_cross_entropy") else []
    assert list(rows) == [losses.EAGER, *torchs, *losses.OURS]
    for row in rows.values():
        assert row["against_eager"] == row["seconds"] / rows[losses.EAGER]["seconds"]
        assert row["against_ince"] == row["seconds"] / rows[losses.INCE]["seconds"]
    assert rows[losses.GCA_INCE]["converged"]
    assert rows[losses.GCA_INCE]["error"] < 2e-5
    assert rows[losses.GCA_RINCE]["iterations"] == 10


@pytest.mark.parametrize(
    ("name", "eps", "operations", "waits"),
    [("ince", 0.1, 80, 1), ("gca-ince", 0.5, 140, 2), ("gca-ince", 0.1, 250, 2), ("gca-uot", 0.1, 400, 3),
     ("gca-rince", 0.1, 400, 2)],
)  # fmt: skip
def test_a_step_is_few_operations_and_waits(name, eps, operations, waits):
    z1, z2 = pairs(256, 128)
    found = launches.launches(lambda: losses.backward(method(name, eps=eps), z1, z2))
    assert 0 < found.operations <= operations
    assert 0 < found.waits <= waits


def test_operations_are_counted_but_not_views_allocations_or_what_they_call():
    x, y = torch.ones(3, 4), torch.ones(4)

    def step():
        z = torch.empty_like(x).copy_(x).view(4, 3).T[:, :2].exp()  # a copy and an exponential
        return torch.addmv(y[:3], x, y), z[0, 0].item()  # a product; a wait

    assert launches.launches(step) == (3, 1)


def test_every_way_to_look_at_a_number_is_a_wait():
    x, tolist = torch.ones(3), torch.Tensor.tolist
    found = launches.launches(lambda: (x.tolist(), x[0].item(), float(x[1]), bool(x[2] > 0), x.nonzero()))
    assert found.waits == 5
    assert torch.Tensor.tolist is tolist  # as it was


@pytest.mark.parametrize(("name", "operations"), [("gca-ince", 4), ("gca-uot", 6)])  # products, and steps: one or two
def test_what_runs_inside_our_operator_is_counted_for_every_iteration(name, operations):
    z1, z2 = pairs(64, 16)

    def count(iterations):
        criterion = method(name, eps=0.5, iterations=iterations, tol=0.0)
        return launches.launches(lambda: criterion.plan(z1, z2)).operations

    assert count(9) - count(8) == operations


def test_a_learnt_temperature_costs_three_waits():
    z1, z2 = pairs(64, 16)
    waits = []
    for learnable in (False, True):
        criterion = Alignment(Cosine(0.5, learnable=learnable), (Rows(), Columns()), KL())
        waits.append(launches.launches(lambda c=criterion: losses.backward(c, z1, z2)).waits)
    assert waits[1] - waits[0] == 3


def test_launches_are_written_beside_eager_info_nce(capsys):
    assert cli.main(["bench", "launches", "--quick", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)["benches"]["launches"]
    rows = {row["name"]: row for row in found["tables"]["launches"]}
    assert list(rows) == [losses.EAGER, *launches.METHODS]
    eager = rows[losses.EAGER]["operations"]
    assert all(row["against_eager"] == row["operations"] / eager for row in rows.values())


@pytest.mark.skipif(not peers.METRIC_LEARNING.installed, reason="needs pytorch-metric-learning")
def test_pytorch_metric_learning_computes_the_same_loss():
    z1, z2 = pairs(16, 8)
    torch.testing.assert_close(peers.metric_learning_loss(0.5)(z1, z2), eager_info_nce(z1, z2, 0.5))


def test_the_marginal_error_is_what_is_missed_on_both_sides():
    p = torch.full((4, 4), 1 / 16)
    assert solvers.marginal_error(p, 1) == 0
    p[0, 0] += 0.01
    assert solvers.marginal_error(p, 1) == pytest.approx(0.02)
    assert solvers.marginal_error(4 * p, 4) == pytest.approx(0.02)


@pytest.mark.skipif(not peers.POT.installed, reason="needs POT")
def test_solvers_are_compared_at_one_measured_error(capsys):
    assert cli.main(["bench", "--quick", "solvers", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)["benches"]["solvers"]  # alone on standard output
    rows = {row["name"]: row for row in found["tables"]["solvers"]}
    assert list(rows) == [solvers.OURS, solvers.OURS_WRITTEN, solvers.POT]
    assert all(row["error"] <= 1e-4 for row in rows.values())
    assert rows[solvers.OURS]["slower"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a peak cannot be reset")
def test_a_fresh_process_sees_the_matrices_of_eager_info_nce():
    spec = {"method": None, "options": {}, "eps": 0.5, "n": 2048, "dim": 8, "seed": 0, "threads": 1}
    found = probe.probed(spec)
    assert found["seconds"] > 0
    assert 2 < found["extra_bytes"] / (4 * 2048**2) < 6  # the logits, their softmax and their gradient, at least


def test_a_measuring_process_that_fails_says_at_what(monkeypatch):
    failed = SimpleNamespace(returncode=-9, stderr="", stdout="")
    monkeypatch.setattr(probe.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(OSError, match=r"'n': 7.*-9.*--n"):
        probe.probed({"n": 7})


def fake_probe(spec):
    """4 bytes for each entry of a dense matrix, 1000 for each row streamed; all but InfoNCE take twice its time."""
    n, block = spec["n"], spec["options"].get("block")
    seconds = 1.0 if spec["method"] == "ince" else 2.0
    return {"seconds": seconds, "extra_bytes": 4 * n * n if block is None else 1000 * n}


def test_memory_is_in_matrices_dense_and_in_megabytes_streaming(monkeypatch):
    monkeypatch.setattr(memory, "probed", fake_probe)
    result = memory.bench_memory(n=[4096], dim=8, eps=0.5, large=[65_536], seed=0, progress=SILENT)
    dense, streaming = (sheet.rows for sheet in result.sheets)
    assert [row["matrices"] for row in dense] == [1.0] * (1 + len(losses.OURS))
    assert {row["name"]: row["against_ince"] for row in streaming}["GCA-INCE, recomputed"] == 2.0
    assert streaming[0]["megabytes"] == pytest.approx(65.536)
