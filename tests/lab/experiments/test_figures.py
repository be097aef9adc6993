"""Figures show their records' numbers, cope with what is missing, and are the same bytes each time."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

import torch
from matplotlib.figure import Figure

import gcalign
from gcalign.lab.experiments.engine import drawing
from gcalign.lab.experiments.engine.experiment import Computing, named, names
from gcalign.lab.experiments.engine.records import Record, by_seed, frame, read, write
from gcalign.lab.experiments.engine.statistics import Estimate
from gcalign.lab.experiments.paper import fig_prox, fig_ptgt, fig_time, flops
from gcalign.lab.experiments.studies import align
from gcalign.lab.paper import METHODS

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "small"
SEEDS = (0, 1, 2)


def record(measure, value, seed=None, about=None, **labels):
    return Record("fig", "tiny", measure, value, labels, seed, about or {})


def aligned():
    return [
        record(name, 0.2 + 0.05 * k + 0.001 * n**0.5 + 0.01 * s, s, method=m, data=d, pairs=n, wrong=w, pools=pools)
        for k, m in enumerate(align.LOOKS)
        for d in ("nl", "de", "emoji")
        for n in (100, 300)
        for w, pools in (("none", "shared"), ("exchanged", "shared"), ("near", "shared"), ("none", "apart"))
        for s in SEEDS
        for name in ("R@1", "R@10")
    ]


NOT_YET = {"fig-align": aligned}  # made up, until there is a result file
FIGURES = [name for name in names() if name.startswith("fig-") and name != "fig-prox"]
DRAWN = [name for name in FIGURES if name in NOT_YET or (RESULTS / f"{name}.jsonl").exists()]


@cache
def committed(name: str) -> list[Record]:
    path = RESULTS / f"{name}.jsonl"
    return read(path) if path.exists() else NOT_YET[name]()


def draw(name: str, records: list[Record], folder: Path) -> list[Path]:
    return named(name).draw(frame(records), folder)


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draws without rendering and gives the figures back."""

    def without_rendering(name, records):
        seen: dict[int, Figure] = {}
        with monkeypatch.context() as patch:
            patch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: seen.setdefault(id(figure), figure))
            draw(name, records, tmp_path)
        return list(seen.values())

    return without_rendering


def texts(figure):
    from matplotlib.text import Text

    return " ".join(text.get_text().replace("\n", " ") for text in figure.findobj(Text))


def handles(axes) -> dict[str, object]:
    """What an axes shows, by its name in the legend."""
    return dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))


# --- every figure --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIGURES)
def test_no_records_are_refused_with_a_remedy(name, tmp_path):
    with pytest.raises(ValueError, match=f"{name} needs records of .*`gcalign reproduce {name}`"):
        draw(name, [], tmp_path)
    assert not list(tmp_path.iterdir())


def parts(records: list[Record]) -> dict[str, list[Record]]:
    """One seed alone; then without each measure, and without each value of each label."""
    some = sorted({r.seed for r in records if r.seed is not None})[:2]
    records = [r for r in records if r.seed is None or r.seed in some]
    first = {"one seed": [r for r in records if r.seed == records[0].seed]}
    measures = {r.measure for r in records}
    labels = {(key, value) for r in records for key, value in r.labels.items()}
    without = {f"without {m}": [r for r in records if r.measure != m] for m in sorted(measures)}
    without |= {f"without {k}={v}": [r for r in records if r.labels.get(k) != v] for k, v in sorted(labels, key=str)}
    return first | {name: some for name, some in without.items() if some}


def enough(draw, name: str, records: list[Record]) -> bool:
    """Whether a figure is drawn; False if it says what it lacks."""
    try:
        return len(draw(name, records)) > 0
    except ValueError as error:
        if "needs records of" not in str(error):
            raise
        return False


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_missing_records_leave_gaps_not_errors(name, drawn):
    assert sum(enough(drawn, name, some) for some in parts(committed(name)).values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_one_seed_of_some_methods_is_a_png_and_a_pdf_of_the_same_bytes_each_time(name, tmp_path):
    every = committed(name)
    window = [r for r in every if r.labels.get("setting") == "window"]  # without which one figure is refused
    some = [r for r in every if r.seed == every[0].seed and r.labels.get("method") != "ince"]
    some = [*window, *(r for r in some if r not in window)] or every
    first, again = (draw(name, some, tmp_path / folder) for folder in ("a", "b"))
    assert {path.suffix for path in first} == {".png", ".pdf"}
    assert all(path.stat().st_size > 5000 for path in first)
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted(p.name for p in first)  # no part is left


def test_files_are_written_whole_and_say_nothing_of_when(tmp_path):
    paths = draw("fig-sensitivity", committed("fig-sensitivity"), tmp_path)
    assert [p.name for p in paths] == ["fig-sensitivity.png", "fig-sensitivity.pdf"]
    png, pdf = (path.read_bytes() for path in paths)
    assert png.startswith(b"\x89PNG")
    assert pdf.startswith(b"%PDF")
    assert b"CreationDate" not in pdf


def test_the_order_of_records_is_not_seen(drawn, tmp_path):
    write(tmp_path / "r.jsonl", reversed(committed("fig-extreme")))
    before, after = (drawn("fig-extreme", some) for some in (committed("fig-extreme"), read(tmp_path / "r.jsonl")))
    assert list(map(texts, before)) == list(map(texts, after))


# --- what some of them show ----------------------------------------------------------------------------------------


def noise(methods=METHODS, seeds=SEEDS):
    return [
        record("linear-fast", 0.5 + 0.01 * k - 0.2 * x + 0.01 * s, s, method=m, data="cifar10", noise=x)
        for k, m in enumerate(methods)
        for x in (0.0, 0.3, 0.6)
        for s in seeds
    ]


def test_noise_shows_means_and_paired_differences(drawn):
    (figure,) = drawn("fig-noise", noise())
    left, right = map(handles, figure.axes)
    assert list(left) == [drawing.look(m).name for m in METHODS]
    assert left["GCA-UOT"].lines[0].get_ydata() == pytest.approx([59, 53, 47])
    assert "InfoNCE" not in right
    assert right["GCA-UOT"].lines[0].get_ydata() == pytest.approx([8, 8, 8])
    assert "CIFAR-10; tiny scale; 3 seeds" in texts(figure)


def test_one_seed_is_said_to_have_no_spread(drawn):
    (figure,) = drawn("fig-noise", noise(seeds=(0,)))
    assert "one seed, no spread" in texts(figure)
    assert "standard deviation" not in texts(figure)


def test_two_results_of_one_seed_are_refused(tmp_path):
    with pytest.raises(ValueError, match="with seed 0 twice"):
        draw("fig-noise", noise() + noise(("ince",), (0,)), tmp_path)


def same_eps():
    measures = (("linear-fast", 0.5, {}), ("alignment", 0.4, {"on": "clean"}), ("alignment", 9.0, {"on": "corrupted"}))
    measures += (("uniformity", -2.0, {"on": "clean"}),)
    return [
        record(name, value + 0.01 * k * (1 + s * x), s, method=m, data="cifar10", eps=x, **where)
        for k, m in enumerate(METHODS[:4])
        for x in (0.1, 0.5)
        for s in SEEDS
        for name, value, where in measures
    ]


def test_the_same_eps_shows_differences_of_clean_images_by_eps(drawn):
    (figure,) = drawn("fig-same-eps", same_eps())
    for axes, unit in zip(figure.axes, (100, 1, 1), strict=True):
        assert [bars.get_label() for bars in axes.containers] == ["GCA-INCE less InfoNCE", "GCA-RINCE less RINCE"]
        for bars in axes.containers:
            at, gains = bars.lines[0].get_data()
            assert at == pytest.approx([0.1, 0.5], rel=0.05)
            assert gains == pytest.approx([unit * 0.01 * (1 + 0.1), unit * 0.01 * (1 + 0.5)])


def extreme_views():
    return [
        record(m, 0.4 + 0.01 * k * (1 + j) + 0.01 * s, s, method=name, data="cifar10", setting=view)
        for k, name in enumerate(("ince", "gca-ince", "rince", "gca-rince", "gca-uot"))
        for j, view in enumerate(("C1", "C2", "C3"))
        for s in SEEDS
        for m in ("linear-fast", "knn")
    ]


def test_extreme_views_show_each_view_their_mean_and_paired_differences(drawn):
    records = extreme_views()
    records.remove(next(r for r in records if (r.labels["method"], r.labels["setting"], r.seed) == ("ince", "C3", 2)))
    (figure,) = drawn("fig-extreme", records)
    left, right, *_ = figure.axes
    shown = handles(left)
    assert shown["GCA-UOT"].lines[0].get_ydata() == pytest.approx([45, 49, 53, 49])
    assert shown["InfoNCE"].lines[0].get_ydata() == pytest.approx([41, 41, 40.5, 40.5])  # seeds with every view
    shown = handles(right)
    assert list(shown) == ["GCA-UOT less InfoNCE", "GCA-INCE less InfoNCE", "GCA-RINCE less RINCE"]
    assert shown["GCA-RINCE less RINCE"].lines[0].get_ydata() == pytest.approx([1, 2, 3, 2])
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == [
        "C1 erase",
        "C2 crop",
        "C3 brightness",
        "mean",
    ]


def target_plans():
    about = {"batch_size": 128, "domains": 4}
    known = {"method": "gca-ince", "data": "pacs", "beta": 0.0}
    found = [
        record(name, value + 0.1 * a * sign + 0.01 * s, s, about if name == "domain" else {}, alpha=a, **known)
        for a in (0.0, 0.003, 0.1, 1.0)
        for s in SEEDS
        for name, value, sign in (("domain", 0.8, 1), ("across-domains", 0.4, -1))
    ]
    return found + [
        record(f"{name}-{line}", 0.6 + 0.01 * s, s, alpha=0.0, **known)
        for line in ("untrained", "supervised")
        for s in SEEDS
        for name in ("domain", "across-domains")
    ]


def test_targets_show_the_window_the_mass_and_paired_differences(drawn):
    (figure,) = drawn("fig-targets", target_plans())
    first, second, third, fourth = figure.axes
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["0\n0", "0.003\n0.096", "0.1\n3.2", "1\n32"]
    shown = handles(first)
    assert list(shown) == ["untrained", "trained on domains", "domain"]
    assert shown["domain"].lines[0].get_ydata() == pytest.approx([81, 81.03, 82, 91])
    assert shown["untrained"].get_ydata() == pytest.approx([61, 61])
    shown = handles(fourth)
    assert shown["domain"].lines[0].get_ydata() == pytest.approx([0.03, 1, 10])
    assert shown["class"].lines[0].get_ydata() == pytest.approx([-0.03, -1, -10])
    curve = third.containers[0].lines[0]
    assert curve.get_xdata() == pytest.approx([81, 81.03, 82, 91])
    assert curve.get_ydata() == pytest.approx([41, 40.97, 40, 31])
    assert second.get_ylabel() == "class accuracy (%)"


def test_a_base_and_its_gca_version_share_a_hue_and_nothing_else():
    for base, version in (("ince", "gca-ince"), ("rince", "gca-rince"), ("iot", "iot-uni")):
        one, two = drawing.look(base), drawing.look(version)
        assert one.colour == two.colour
        assert one.dash != two.dash
        assert one.filled != two.filled
    assert len({(s.colour, s.filled) for s in map(drawing.look, METHODS)}) == len(METHODS)
    assert len({(s.marker, s.filled) for s in map(drawing.look, METHODS)}) == len(METHODS)  # and so in grey


def test_target_plans_are_those_of_the_library():
    plan = torch.tensor(fig_ptgt.target(0.5, 0.25))
    n = fig_ptgt.SHOWN_EACH
    assert plan.diagonal().tolist() == [1.0] * (n * fig_ptgt.SHOWN_DOMAINS)
    assert plan[0, 1] == 0.5
    assert plan[0, n] == 0.25


def test_projections_of_the_toy_fall_to_gca_ince():
    steps = fig_prox.projections(400)
    losses = [float(p.sum() - 2 - p.diagonal().log().sum()) for p in steps]
    assert all(a >= b - 1e-12 for a, b in pairwise(losses))
    ince = gcalign.solve(fig_prox.kernel(), (gcalign.Rows(),))
    limit = gcalign.solve(fig_prox.kernel(), tol=1e-12, iterations=5000)
    assert torch.allclose(steps[1], ince.matrix)
    assert torch.allclose(steps[-1], limit.matrix, atol=1e-6)
    assert fig_prox.shares(steps[-1]) == pytest.approx((0.5, 0.5), abs=1e-6)


def test_the_papers_prox_is_not_the_nearest_point(drawn):
    (figure,) = drawn("fig-prox", [])
    assert "not nearest" in texts(figure)
    corner = (fig_prox.SIDE, fig_prox.SIDE, 2 * fig_prox.SIDE**2)
    assert math.dist(fig_prox.V2, corner) < math.dist(fig_prox.V2, fig_prox.PAPER_PROX)


def computed(name: str) -> list[Record]:
    experiment = named(name)
    assert experiment.compute is not None
    return [record for some in experiment.compute(Computing(experiment.at("tiny"), "runs")) for record in some]


@pytest.mark.slow
def test_operations_are_those_of_the_products_and_a_little_more():
    counts = {(r.labels["method"], r.labels["part"]): r.value for r in computed("flops")}
    assert {method for method, _ in counts} == set(METHODS)
    for method in METHODS:
        parts = [counts[method, part] for part in ("matmul", "elementwise", "total")]
        assert min(parts) > 0
        assert parts[0] + parts[1] == pytest.approx(parts[2])
    product = 2 * flops.BATCH**2 * flops.DIM / 1e6
    assert counts["ince", "matmul"] == pytest.approx(3 * product, rel=0.01)  # scores, and a gradient for each side
    assert counts["ince", "total"] < counts["gca-ince", "total"]


@pytest.mark.slow
def test_times_are_paired_by_round(monkeypatch, tmp_path):
    from gcalign.lab import paper

    monkeypatch.setattr(paper, "METHODS", ("ince", "byol"))
    monkeypatch.setattr(fig_time, "TIMED", (1, 50))
    threads = torch.get_num_threads()
    records = computed("fig-time")
    assert torch.get_num_threads() == threads
    assert {r.seed for r in records} == {0, 1, 2}
    assert len(records) == 2 * 4 * 3
    assert all(r.value > 0 for r in records)
    seconds = by_seed(frame(records), "step-seconds-loss", "iterations")
    assert Estimate.of(seconds.loc[1]).mean < Estimate.of(seconds.loc[50]).mean
    assert len(draw("fig-time", records, tmp_path)) == 2
