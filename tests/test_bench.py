"""`gcalign bench`: contestants take turns, ratios are of one run, errors are measured, files are whole."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from gcalign import KL, Alignment, Columns, Cosine, Rows, cli
from gcalign.functional import solve
from gcalign.lab import timing
from gcalign.lab.bench import (
    arguments,
    data,
    distributed,
    launches,
    losses,
    memory,
    peers,
    probe,
    scaling,
    solvers,
)
from gcalign.lab.bench.batches import COSINE, cost, eager_info_nce, pairs
from gcalign.lab.bench.table import BenchTarget
from gcalign.lab.data.views import make_views
from gcalign.lab.terminal import Progress
from gcalign.methods import method

SILENT = Progress(shown=False)


def test_pillow_and_ours_are_the_same_c0():
    generator = torch.Generator().manual_seed(0)
    small = torch.randint(0, 256, (64, 3, 4, 4), generator=generator).float()
    pixels = torch.nn.functional.interpolate(small, size=32, mode="bilinear").to(torch.uint8)
    random.seed(0)  # Pillow's views draw from Python's own generator
    one_by_one = data.PillowViews(pixels, 512)
    theirs = torch.stack([one_by_one[k] for k in range(512)])
    ours = torch.cat([make_views("C0", data.SHAPE, data.MEAN, data.STD)(pixels, seed) for seed in range(8)])
    assert theirs.shape == ours.shape
    assert abs(theirs.mean() - ours.mean()) < 0.1
    assert abs(theirs.std() - ours.std()) < 0.1
    grey = [(x[:, 0] - x[:, 1]).abs().amax((1, 2)).lt(1e-4).float().mean() for x in (theirs, ours)]
    assert all(0.1 < share < 0.3 for share in grey)


def test_the_median_leaves_out_the_first_and_the_odd_one(monkeypatch):
    clock = iter([0, 1, 1, 2, 2, 99])
    calls = []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    assert timing.median_seconds(lambda: calls.append(1), 3) == 1
    assert len(calls) == 4


def test_contestants_take_turns_and_each_round_begins_with_another():
    calls = []
    jobs = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = timing.interleaved(jobs, 3, SILENT, warm=("b",))
    assert "".join(calls) == "ac" + "abc" + "bca" + "cab"
    assert {name: len(found.seconds) for name, found in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_a_contestant_beyond_its_budget_is_still_counted_once(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def takes(seconds):
        def job():
            now[0] += seconds

        return job

    times = timing.interleaved({"quick": takes(1), "slow": takes(100)}, 5, SILENT, budget=60)
    assert times["quick"].seconds == (1,) * 5
    assert times["slow"].figures() == {"seconds": 100, "least": 100, "most": 100, "repeats": 1}


def test_the_baseline_is_our_ince_and_partners_have_the_cosine_that_is_stated():
    z1, z2 = pairs(512, 64)
    assert abs(torch.cosine_similarity(z1, z2).mean().item() - COSINE) < 0.02
    torch.testing.assert_close(eager_info_nce(z1, z2, 0.2), method("ince", eps=0.2)(z1, z2))


def test_a_target_is_met_missed_or_not_measured():
    met = [BenchTarget("", rule, 2, value).met for rule in "≤≥" for value in (1, 2, 3, None)]
    assert met == [True, True, False, None, False, True, True, None]


@pytest.mark.parametrize("name", arguments.WHAT)
def test_each_measurement_has_help_with_an_example_of_itself(capsys, name):
    assert cli.main(["bench", name, "--help"]) == 0
    assert f"example:\n  gcalign bench {name}" in capsys.readouterr().out


def test_help_does_not_wait_for_torch():
    code = "import sys, gcalign.cli as c; c.main(['bench', 'losses', '--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["losses", "--n", "0"], "0 must be a whole number of at least 1"),
        (["losses", "--eps", "-1"], "must be a number > 0"),
        (["loses"], "invalid choice: 'loses'"),
        (["losses", "--json", "no/such/folder/x.json"], "directory that exists"),
        (["scaling", "--plot", "scaling.txt"], "must end in .png, .svg, .pdf; try scaling.png"),
        (["scaling", "--n", "64"], "at least two sizes"),
        (["distributed", "--ranks", "9", "--n", "8"], "between 1 and n = 8"),
    ],
)
def test_bad_usage_is_one_line_that_helps(capsys, argv, says):
    assert cli.main(["bench", *argv]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert says in err


def test_settings_given_win_over_quick_and_full_ones():
    parser = cli.Parser()
    arguments.declare(parser)
    given = parser.parse_args(["--quick", "losses", "--n", "32", "48"])
    assert arguments.chosen("losses", given) == {"n": [32, 48], "dim": [16], "eps": [0.5], "repeats": 2, "seed": 0}
    given = parser.parse_args(["scaling", "--large", "--seed", "3"])
    assert arguments.chosen("scaling", given)["n"][-1] == 32_768
    assert arguments.chosen("scaling", given)["seed"] == 3
    given = parser.parse_args(["memory", "--large"])
    assert arguments.chosen("memory", given)["large"] == [65_536]


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
    assert {"cpu", "cores", "threads", "memory_gb"} <= written["machine"].keys()
    found = written["benches"]["losses"]
    rows = {row["name"]: row for row in found["tables"]["losses"]}
    assert list(rows) == [losses.EAGER, *losses.OURS]
    for row in rows.values():
        assert row["against_eager"] == row["seconds"] / rows[losses.EAGER]["seconds"]
        assert row["against_ince"] == row["seconds"] / rows[losses.INCE]["seconds"]
    assert rows[losses.GCA_INCE]["converged"]
    assert rows[losses.GCA_INCE]["error"] < 2e-5
    assert rows[losses.GCA_RINCE]["iterations"] == 10
    assert all(target["met"] is None for target in found["targets"])  # none is set at n = 64


@pytest.mark.parametrize(("n", "dim", "eps", "name", "operations", "waits"), launches.GOALS)
def test_a_step_is_few_operations_and_waits(n, dim, eps, name, operations, waits):
    z1, z2 = pairs(n, dim)
    found = launches.launches(lambda: losses.backward(method(name, eps=eps), z1, z2))
    assert 0 < found.operations <= operations
    assert 0 < found.waits <= waits


def test_the_goals_of_a_step_are_these():
    assert {(name, eps): most for n, dim, eps, name, *most in launches.GOALS if (n, dim) == (256, 128)} == {
        ("ince", 0.1): [80, 1],
        ("gca-ince", 0.5): [140, 2],
        ("gca-ince", 0.1): [250, 2],
        ("gca-uot", 0.1): [400, 3],
        ("gca-rince", 0.1): [400, 2],
    }


def test_operations_are_counted_but_not_views_allocations_or_what_they_call():
    x, y = torch.ones(3, 4), torch.ones(4)

    def step():
        z = torch.empty_like(x).copy_(x).view(4, 3).T[:, :2].exp()  # a copy and an exponential
        return torch.addmv(y[:3], x, y), z[0, 0].item()  # a product; a wait

    found = launches.launches(step)
    assert [part.name for part in found.work] == ["copy_", "exp", "addmv"]
    assert (found.operations, found.waits) == (3, 1)
    assert found.work[2] == ("addmv", 2 * 12, 4 * (12 + 4 + 3))


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


def test_the_work_of_a_step_has_its_three_matrix_products():
    z1, z2 = pairs(64, 128)
    for loss in (lambda x, y: eager_info_nce(x, y, 0.5), method("ince", eps=0.5)):
        work = launches.launches(lambda loss=loss: losses.backward(loss, z1, z2)).work
        products = [part.flops for part in work if part.name.rstrip("_") in ("mm", "addmm")]
        assert products == [2 * 64 * 64 * 128] * 3


def test_an_estimate_is_the_longer_of_launching_and_working_with_the_waits():
    small = launches.Work.of("addmm_", [[2, 3], [2, 4], [4, 3], [], []])
    assert small == ("addmm_", 2 * 2 * 4 * 3, 4 * (8 + 12 + 6))
    assert launches.Work.of("add", [[8], [8]]) == ("add", 8, 4 * 24)
    assert launches.estimated(10, 2, [small] * 10)["estimate"] == pytest.approx(10 * 5e-6 + 2 * 15e-6)
    large = launches.Work("mm", 195 * 10**12, 15 * 10**9)
    assert launches.estimated(1, 0, [large])["estimate"] == pytest.approx(10)


def test_launches_are_written_beside_eager_info_nce(capsys):
    assert cli.main(["bench", "launches", "--quick", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)["benches"]["launches"]
    rows = {row["name"]: row for row in found["tables"]["launches"]}
    assert list(rows) == [losses.EAGER, *launches.METHODS]
    eager = rows[losses.EAGER]["operations"]
    assert all(row["against_eager"] == row["operations"] / eager for row in rows.values())
    assert all(target["met"] is None for target in found["targets"])  # none is set at n = 64


def test_targets_read_the_ratio_against_their_own_baseline():
    row = {"n": 4096, "dim": 128, "eps": 0.5, "name": losses.GCA_INCE, "against_eager": 0.4, "against_ince": 1.2}
    judged = {t.what: t.met for t in losses._targets([row]) if t.value is not None}
    assert judged == {
        "GCA-INCE / eager InfoNCE, n = 4096, D = 128, ε = 0.5": True,
        "GCA-INCE / INCE, n = 4096, D = 128, ε = 0.5": False,
    }


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
    assert {solvers.OURS, solvers.OURS_WRITTEN, solvers.POT, solvers.POT_LOG} <= rows.keys()
    assert all(row["error"] <= 1e-4 for row in rows.values())
    assert rows[solvers.OURS]["slower"] == 1


@pytest.mark.skipif(not peers.GEOMLOSS.installed, reason="needs geomloss")
def test_geomloss_gives_the_same_plan():
    matrix, x, y = cost(32, 8)
    steps, error = solvers.geomloss_iterations(x, y, 0.2, 1e-5)
    assert error <= 1e-5
    assert solvers.geomloss_iterations(x, y, 0.2, 1e-5, most=8)[0] == 8 < steps < 500
    f, g = peers.geomloss(x, y, 0.2, iterations=steps)
    ours = torch.exp((f[:, None] + g - matrix) / 0.2) / 32
    torch.testing.assert_close(ours, solve(-matrix / 0.2).matrix, rtol=1e-3, atol=1e-6)


def test_warm_starts_are_counted_after_the_first_step(monkeypatch):
    class Criterion:
        def __init__(self, warm_start, **_):
            self.warm_start, self.steps = warm_start, 0

        def plan(self, z1, z2, ids):
            return SimpleNamespace(iterations=2 if self.warm_start and self.steps else 10)

        def __call__(self, z1, z2, ids):
            self.steps += 1

    monkeypatch.setattr(solvers, "method", lambda name, **chosen: Criterion(**chosen))
    rows = solvers.warm_starts(8, 4, 0, 1e-4, SILENT)
    assert [(row["cold"], row["warm"], row["ratio"]) for row in rows] == [(10, 2, 0.2)] * len(solvers.MOVES)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a peak cannot be reset")
def test_a_fresh_process_sees_the_matrices_of_eager_info_nce():
    spec = {"method": None, "options": {}, "eps": 0.5, "n": 2048, "dim": 8, "seed": 0, "threads": 1}
    found = probe.probed(spec)
    assert found["seconds"] > 0
    assert 2 < found["extra_bytes"] / (4 * 2048**2) < 6  # the logits, their softmax and their gradient, at least


def test_a_measuring_process_that_fails_says_at_what(monkeypatch):
    failed = SimpleNamespace(returncode=-9, stderr="", stdout="")
    monkeypatch.setattr(probe.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(OSError, match=r"'n': 7.*exit code -9; out of memory\? try a smaller --n"):
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
    judged = {target.what: target.met for target in result.targets}
    assert judged["GCA-INCE, dense, n = 4,096, in n × n float32"] is True
    assert judged["GCA-INCE, recomputed / streaming INCE, n = 65,536, time"] is True
    assert judged["GCA-INCE, recomputed, n = 65,536, extra MB"] is True


def test_the_exponent_of_a_power_is_its_power():
    assert scaling.exponent([1, 2, 4, 8], [3, 12, 48, 192]) == pytest.approx(2)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_scaling_fits_exponents_and_draws_them(tmp_path, monkeypatch, capsys, suffix):
    monkeypatch.setattr(scaling, "probed", fake_probe)
    path = tmp_path / f"scaling{suffix}"
    assert cli.main(["bench", "scaling", "--quick", "--plot", str(path)]) == 0
    assert "exponent in memory" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [path]
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")


def test_a_plot_needs_matplotlib_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install matplotlib"):
        scaling.drawable(tmp_path / "scaling.png")


def test_a_run_takes_as_long_as_its_slowest_rank():
    def rank(seconds, megabytes):
        figures = {"seconds": seconds, "megabytes": megabytes, "iterations": 3, "loss": 1.0}
        return dict.fromkeys(distributed.NAMES, figures)

    turns = [distributed._joined([rank([1, 5], 10), rank([2, 1], 20)]), distributed._joined([rank([4], 10)])]
    row = distributed._median(turns, losses.INCE)
    assert (row["seconds"], row["least"], row["most"], row["repeats"]) == (4, 2, 5, 3)
    assert row["megabytes"] == 20


def test_collectives_are_counted_with_the_bytes_put_in(monkeypatch):
    done = []
    monkeypatch.setattr(distributed.dist, "all_reduce", lambda x: done.append(len(x)))
    monkeypatch.setattr(distributed.dist, "all_gather", lambda parts, x: done.append(len(x)))
    counted = distributed.Counted()
    with counted:
        distributed.dist.all_reduce(torch.zeros(10))
        distributed.dist.all_gather([torch.zeros(5), torch.zeros(5)], torch.zeros(5))
    distributed.dist.all_reduce(torch.zeros(10))
    assert done == [10, 5, 10]
    assert counted.figures() == {"all_reduces": 1, "other": 1, "communicated": 60e-6}


@pytest.mark.slow  # starts three processes
def test_two_processes_have_the_loss_of_one(capsys):
    assert cli.main(["bench", "distributed", "--quick", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["benches"]["distributed"]["tables"]["distributed"]
    assert [(row["name"], row["ranks"]) for row in rows] == [(name, k) for name in distributed.NAMES for k in (1, 2)]
    assert all(row["loss_error"] < 1e-5 for row in rows)
    assert all((row["all_reduces"] > 0) == (row["ranks"] > 1) for row in rows)


@pytest.mark.slow  # a ResNet-18 step, and processes that make views
def test_the_data_measurement_has_both_tables(capsys):
    assert cli.main(["bench", "data", "--quick"]) == 0
    shown = capsys.readouterr().out
    assert "Pillow, one by one" in shown
    assert "gca-uot" in shown
