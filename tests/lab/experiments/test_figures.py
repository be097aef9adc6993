"""Figures show their records' numbers, cope with what is missing, and are the same bytes each time."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

import torch
from matplotlib.figure import Figure

import gcalign
from gcalign.lab.experiments.engine import drawing
from gcalign.lab.experiments.engine.experiment import Computing, named
from gcalign.lab.experiments.engine.records import Record, by_seed, frame, read, write
from gcalign.lab.experiments.engine.statistics import Estimate
from gcalign.lab.experiments.paper import fig_prox, fig_ptgt, fig_time, flops
from gcalign.lab.experiments.studies import align, cone

METHODS = ("ince", "gca-ince", "rince", "gca-rince", "simclr", "byol", "iot", "iot-uni", "gca-uot")
SEEDS = (0, 1, 2)


def record(measure, value, seed=None, about=None, experiment="fig", **labels):
    return Record(experiment, "tiny", measure, value, labels, seed, about or {})


def noise(methods=METHODS, seeds=SEEDS):
    return [
        record("linear-fast", 0.5 + 0.01 * k - 0.2 * x + 0.01 * s, s, method=m, data="cifar10", noise=x)
        for k, m in enumerate(methods)
        for x in (0.0, 0.3, 0.6)
        for s in seeds
    ]


def sensitivity(seeds=SEEDS):
    points = [("iterations", n) for n in (1, 5, 10)] + [("eps", x) for x in (0.1, 0.5)]
    measures = (("linear-fast", 0.5), ("compactness", 3.0))
    return [
        record(name, base + 0.01 * s, s, method="gca-ince", varied=knob, **{knob: value})
        for knob, value in points
        for s in seeds
        for name, base in measures
    ]


def q_lambda(seeds=SEEDS):
    points = [(0.98, lam) for lam in (0.0, 0.01, 1.0)] + [(q, 0.01) for q in (0.1, 0.6)]
    found = [record("linear", 0.4 + 0.1 * q, s, method="gca-rince", q=q, lam=lam) for q, lam in points for s in seeds]
    return found + [record("linear", 0.45, s, method="ince") for s in seeds]


def times():
    about = {"steps": 10, "timed": "Times: by the clock."}
    labels = [{"method": m} for m in METHODS] + [{"method": "gca-ince", "iterations": n} for n in (1, 10, 100)]
    found = [record("seconds-per-epoch", 2.0 + k, 0, about, **x) for k, x in enumerate(labels)]
    found += [record("step-seconds-loss", 0.05, 0, about, **x) for x in labels]
    return found + [record("linear-fast", 0.5, s, method="gca-ince", iterations=n) for n in (1, 10) for s in SEEDS]


def targets(seeds=(71, 68)):
    return [
        record(name, 0.5 + 0.1 * (a - b), s, method="gca-ince", data="pacs", alpha=a, beta=b)
        for a, b in ((0.0, 0.25), (0.0, 0.0), (0.5, 0.0))
        for name in ("domain", "across-domains")
        for s in seeds
    ]


def solved(method, eps):
    z = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    plan = gcalign.method(method, eps=eps).plan(z, z.roll(1, 1))
    return {"log_plan": plan.log.tolist(), "classes": ["cat"] * 6 + ["dog"] * 6, "eps": eps, "iterations": 10}


def by_class(methods=("ince", "gca-ince", "gca-rince", "gca-uot")):
    return [record("plan", None, 0, solved(m, 0.5), method=m, data="cifar10") for m in methods]


def by_epsilon(values=(0.01, 0.1, 1.0)):
    cells = [(m, x) for m in ("ince", "gca-uot") for x in values]
    found = [record("plan", None, 0, solved(m, x), method=m, eps=x) for m, x in cells]
    return found + [record("diagonal", 0.25, 0, method=m, eps=x) for m, x in cells]


def align_uniform(methods=METHODS, seeds=SEEDS, on=("clean", "corrupted")):
    return [
        record(name, value + 0.01 * k + 0.01 * s, s, method=m, data="cifar10", setting=setting, on=where)
        for k, m in enumerate(methods)
        for setting in ("standard", "C1", "C2", "C3")
        for where in on
        for s in seeds
        for name, value in (("alignment", 0.4), ("uniformity", -2.0))
    ]


def same_eps(methods=METHODS[:4], seeds=SEEDS):
    measures = (("linear-fast", 0.5, {}), ("alignment", 0.4, {"on": "clean"}), ("alignment", 9.0, {"on": "corrupted"}))
    measures += (("uniformity", -2.0, {"on": "clean"}),)
    return [
        record(name, value + 0.01 * k * (1 + s * x), s, method=m, data="cifar10", eps=x, **where)
        for k, m in enumerate(methods)
        for x in (0.1, 0.5)
        for s in seeds
        for name, value, where in measures
    ]


def extreme_views(methods=("ince", "gca-ince", "rince", "gca-rince", "gca-uot"), seeds=SEEDS, views=("C1", "C2", "C3")):
    return [
        record(m, 0.4 + 0.01 * k * (1 + j) + 0.01 * s, s, method=name, data="cifar10", setting=view)
        for k, name in enumerate(methods)
        for j, view in enumerate(views)
        for s in seeds
        for m in ("linear-fast", "knn")
    ]


def mismatched(methods=("ince", "rince", "gca-ince", "gca-uot", "iot"), seeds=SEEDS):
    return [
        record(name, value + 0.01 * k - 0.2 * x + 0.01 * s, s, method=m, data="cifar10", noise=x, **more)
        for k, m in enumerate(methods)
        for x in (0.0, 0.3, 0.6)
        for s in seeds
        for name, value, more in (
            *((name, 0.5, {}) for name in ("linear-fast", "knn", "10-labels", "100-labels")),
            *(("mismatch-auroc", 0.8, {"score": score}) for score in ("plan", "cosine")),
        )
    ]


def relaxed(seeds=SEEDS):
    measures = (*((m, {}) for m in ("linear-fast", "knn", "100-labels")), ("mismatch-auroc", {"score": "plan"}))
    measures += tuple((m, {"pairs": pairs}) for m in ("pull", "push") for pairs in ("true", "mismatched"))
    return [
        record(name, 0.5 + 0.1 * x + 0.01 * s, s, method="gca-uot", data="cifar10", noise=0.6, relax=x, **more)
        for x in (0.05, 0.5, 2)
        for s in seeds
        for name, more in measures
    ]


def cones(methods=tuple(cone.COMPARED), seeds=SEEDS):
    shapes = [(name, {"epoch": e}) for name in ("negative-cosine", "rank") for e in (1, 3)]
    return [
        record(name, 0.5 + 0.01 * k - 0.2 * x + 0.01 * s, s, method=m, data="cifar10", noise=x, **more)
        for k, m in enumerate(methods)
        for x in (0.0, 0.6)
        for s in seeds
        for name, more in (("linear-fast", {}), ("knn", {}), *shapes)
    ]


def aligned(methods=tuple(align.LOOKS), seeds=SEEDS):
    return [
        record(name, 0.2 + 0.05 * k + 0.001 * n**0.5 + 0.01 * s, s, method=m, data=d, pairs=n, wrong=w, pools=pools)
        for k, m in enumerate(methods)
        for d in ("nl", "de")
        for n in (100, 300)
        for w, pools in ((0.0, "shared"), (0.3, "shared"), (0.0, "apart"))
        for s in seeds
        for name in ("R@1", "R@10")
    ]


def target_plans(seeds=SEEDS, lines=("untrained", "supervised")):
    about = {"batch_size": 128, "domains": 4}
    known = {"method": "gca-ince", "data": "pacs", "beta": 0.0}
    found = [
        record(name, value + 0.1 * a * sign + 0.01 * s, s, about if name == "domain" else {}, alpha=a, **known)
        for a in (0.0, 0.003, 0.1, 1.0)
        for s in seeds
        for name, value, sign in (("domain", 0.8, 1), ("across-domains", 0.4, -1))
    ]
    return found + [
        record(f"{name}-{line}", 0.6 + 0.01 * s, s, alpha=0.0, **known)
        for line in lines
        for s in seeds
        for name in ("domain", "across-domains")
    ]


def windows(settings=("C0, 32 px", "DomainBed, 32 px")):
    return [
        record(name + line, 0.6 + 0.1 * k, 49, method="gca-ince", data="pacs", alpha=0.0, beta=0.0, setting=setting)
        for setting in settings
        for name in ("domain", "across-domains")
        for k, line in enumerate(("-untrained", "", "-supervised"))
    ]


WHOLE = {
    "fig-noise": noise,
    "fig-sensitivity": sensitivity,
    "fig-q-lambda": q_lambda,
    "fig-time": times,
    "fig-ptgt": targets,
    "fig-plans": by_class,
    "fig-epsilon": by_epsilon,
    "fig-align-uniform": align_uniform,
    "fig-prox": list,
    "fig-same-eps": same_eps,
    "fig-extreme": extreme_views,
    "fig-targets": target_plans,
    "fig-targets-window": windows,
    "fig-mismatch": mismatched,
    "fig-mismatch-lambda": relaxed,
    "fig-cone": cones,
    "fig-align": aligned,
}
PARTIAL = {
    "noise without InfoNCE": ("fig-noise", lambda: noise(("gca-uot",), (0,))),
    "noise of an unknown method": ("fig-noise", lambda: noise(("ince", "mine"), (0,))),
    "one seed": ("fig-sensitivity", lambda: sensitivity((0,))),
    "iterations only": ("fig-sensitivity", lambda: [r for r in sensitivity() if "eps" not in r.labels]),
    "no InfoNCE line": ("fig-q-lambda", lambda: [r for r in q_lambda() if "q" in r.labels]),
    "one point": ("fig-q-lambda", lambda: [record("knn", 0.4, 0, method="gca-rince", q=0.6, lam=0.0)]),
    "times only": ("fig-time", lambda: [r for r in times() if "seconds" in r.measure]),
    "iterations' times only": ("fig-time", lambda: [r for r in times() if "iterations" in r.labels]),
    "domain only": ("fig-ptgt", lambda: [r for r in targets((71,)) if r.measure == "domain"]),
    "one target": ("fig-ptgt", lambda: [r for r in targets() if r.labels["alpha"] == 0.5]),
    "one plan": ("fig-plans", lambda: by_class(("gca-uot",))),
    "one ε": ("fig-epsilon", lambda: by_epsilon((0.5,))),
    "a missing ε": ("fig-epsilon", lambda: by_epsilon()[1:]),
    "one of two pairs, one seed": ("fig-same-eps", lambda: same_eps(("rince", "gca-rince"), (0,))),
    "accuracy at the same ε only": ("fig-same-eps", lambda: [r for r in same_eps() if r.measure == "linear-fast"]),
    "extreme views without InfoNCE": ("fig-extreme", lambda: extreme_views(("gca-uot", "rince"), (0,))),
    "one extreme view": ("fig-extreme", lambda: extreme_views(views=("C2",))),
    "mismatched pairs without InfoNCE": ("fig-mismatch", lambda: mismatched(("gca-uot",), (0,))),
    "a cone with accuracies alone": ("fig-cone", lambda: [r for r in cones(("ince",), (0,)) if r.measure == "knn"]),
    "a cone of clean pairs": ("fig-cone", lambda: [r for r in cones() if r.labels["noise"] == 0]),
    "targets without their lines": ("fig-targets", lambda: target_plans((0,), ())),
    "targets without class accuracy": (
        "fig-targets",
        lambda: [r for r in target_plans() if r.measure.startswith("domain")],
    ),
    "a window without supervision": (
        "fig-targets-window",
        lambda: [r for r in windows() if "supervised" not in r.measure],
    ),
    "clean only": ("fig-align-uniform", lambda: align_uniform(("ince",), (0,), ("clean",))),
    "alignment only": (
        "fig-align-uniform",
        lambda: [r for r in align_uniform(("ince",)) if r.measure == "alignment"],
    ),
}


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


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_figure_is_a_png_and_a_pdf_of_the_same_bytes_each_time(name, tmp_path):
    first, again = (draw(name, WHOLE[name](), tmp_path / folder) for folder in ("a", "b"))
    assert {path.suffix for path in first} == {".png", ".pdf"}
    pages = [name, f"{name}-plane"] if name == "fig-align-uniform" else [name]
    assert [path.stem for path in first] == [page for page in pages for _ in range(2)]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted(p.name for p in first)  # no part is left


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTIAL)
def test_missing_records_leave_gaps_not_errors(name, tmp_path):
    figure, records = PARTIAL[name]
    assert all(path.stat().st_size > 5000 for path in draw(figure, records(), tmp_path))


def test_files_are_written_whole_and_say_nothing_of_when(tmp_path):
    paths = draw("fig-q-lambda", q_lambda((0,)), tmp_path)
    assert [p.name for p in paths] == ["fig-q-lambda.png", "fig-q-lambda.pdf"]
    png, pdf = (path.read_bytes() for path in paths)
    assert png.startswith(b"\x89PNG")
    assert pdf.startswith(b"%PDF")
    assert b"CreationDate" not in pdf


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "fig-prox"])
def test_no_records_are_refused_with_a_remedy(name, tmp_path):
    with pytest.raises(ValueError, match=f"{name} needs records of .*; `gcalign reproduce {name}` makes them"):
        draw(name, [], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_records_from_a_file_are_drawn_alike(name, drawn, tmp_path):
    write(tmp_path / "r.jsonl", WHOLE[name]())
    before, after = (drawn(name, records) for records in (WHOLE[name](), read(tmp_path / "r.jsonl")))
    assert list(map(texts, before)) == list(map(texts, after))


def test_the_same_eps_shows_differences_of_clean_images_by_eps(drawn):
    (figure,) = drawn("fig-same-eps", same_eps())
    for axes, unit in zip(figure.axes, (100, 1, 1), strict=True):
        assert [bars.get_label() for bars in axes.containers] == ["GCA-INCE less InfoNCE", "GCA-RINCE less RINCE"]
        for bars in axes.containers:
            at, gains = bars.lines[0].get_data()
            assert at == pytest.approx([0.1, 0.5], rel=0.05)
            assert gains == pytest.approx([unit * 0.01 * (1 + 0.1), unit * 0.01 * (1 + 0.5)])


def test_noise_shows_means_and_paired_differences(drawn):
    (figure,) = drawn("fig-noise", noise())
    left, right = figure.axes
    handles = dict(zip(*reversed(left.get_legend_handles_labels()), strict=True))
    assert list(handles) == [drawing.look(m).name for m in METHODS]
    assert handles["GCA-UOT"].lines[0].get_ydata() == pytest.approx([59, 53, 47])
    handles = dict(zip(*reversed(right.get_legend_handles_labels()), strict=True))
    assert "InfoNCE" not in handles
    assert handles["GCA-UOT"].lines[0].get_ydata() == pytest.approx([8, 8, 8])
    assert "CIFAR-10; tiny scale; 3 seeds" in texts(figure)


def test_extreme_views_show_each_view_their_mean_and_paired_differences(drawn):
    records = extreme_views()
    records.remove(next(r for r in records if (r.labels["method"], r.labels["setting"], r.seed) == ("ince", "C3", 2)))
    (figure,) = drawn("fig-extreme", records)
    left, right, *_ = figure.axes
    handles = dict(zip(*reversed(left.get_legend_handles_labels()), strict=True))
    assert handles["GCA-UOT"].lines[0].get_ydata() == pytest.approx([45, 49, 53, 49])
    assert handles["InfoNCE"].lines[0].get_ydata() == pytest.approx([41, 41, 40.5, 40.5])  # seeds with every view
    handles = dict(zip(*reversed(right.get_legend_handles_labels()), strict=True))
    assert list(handles) == ["GCA-UOT less InfoNCE", "GCA-INCE less InfoNCE", "GCA-RINCE less RINCE"]
    assert handles["GCA-RINCE less RINCE"].lines[0].get_ydata() == pytest.approx([1, 2, 3, 2])
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == [
        "C1 erase",
        "C2 crop",
        "C3 brightness",
        "mean",
    ]


def test_targets_show_the_window_the_mass_and_paired_differences(drawn):
    (figure,) = drawn("fig-targets", target_plans())
    first, second, third, fourth = figure.axes
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["0\n0", "0.003\n0.096", "0.1\n3.2", "1\n32"]
    handles = dict(zip(*reversed(first.get_legend_handles_labels()), strict=True))
    assert list(handles) == ["untrained", "trained on domains", "domain"]
    assert handles["domain"].lines[0].get_ydata() == pytest.approx([81, 81.03, 82, 91])
    assert handles["untrained"].get_ydata() == pytest.approx([61, 61])
    handles = dict(zip(*reversed(fourth.get_legend_handles_labels()), strict=True))
    assert handles["domain"].lines[0].get_ydata() == pytest.approx([0.03, 1, 10])
    assert handles["class"].lines[0].get_ydata() == pytest.approx([-0.03, -1, -10])
    curve = third.containers[0].lines[0]
    assert curve.get_xdata() == pytest.approx([81, 81.03, 82, 91])
    assert curve.get_ydata() == pytest.approx([41, 40.97, 40, 31])
    assert second.get_ylabel() == "class accuracy (%)"


def test_one_seed_is_said_to_have_no_spread(drawn):
    (figure,) = drawn("fig-noise", noise(seeds=(0,)))
    assert "one seed, no spread" in texts(figure)
    assert "standard deviation" not in texts(figure)


def test_two_results_of_one_seed_are_refused(tmp_path):
    with pytest.raises(ValueError, match="with seed 0 twice"):
        draw("fig-noise", noise() + noise(("ince",), (0,)), tmp_path)


def test_a_base_and_its_gca_version_share_a_hue_and_nothing_else():
    for base, version in (("ince", "gca-ince"), ("rince", "gca-rince"), ("iot", "iot-uni")):
        one, two = drawing.look(base), drawing.look(version)
        assert one.colour == two.colour
        assert one.dash != two.dash
        assert one.filled != two.filled
    assert len({(s.colour, s.filled) for s in map(drawing.look, METHODS)}) == len(METHODS)
    assert len({(s.marker, s.filled) for s in map(drawing.look, METHODS)}) == len(METHODS)  # and so in grey


def test_bars_show_alignment_above_and_uniformity_below(drawn):
    bars, plane = drawn("fig-align-uniform", align_uniform())
    assert len(plane.axes) == 8
    for axes in bars.axes:
        heights = [bar.get_height() for bar in axes.patches]
        assert len(heights) == 2 * 4 * len(METHODS)
        assert sum(h > 0 for h in heights) == 4 * len(METHODS)
        low, high = axes.get_ylim()
        assert axes.transData.transform((0, 0))[1] == pytest.approx(axes.bbox.y0 + axes.bbox.height / 2)
        assert low < min(heights)
        assert max(heights) < high


def test_plans_share_one_colour_scale_and_mark_classes(drawn):
    (figure,) = drawn("fig-plans", by_class())
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title(loc="left").split()[-1] for axes in panels] == [
        "InfoNCE",
        "GCA-INCE",
        "GCA-RINCE",
        "GCA-UOT",
    ]
    assert len({axes.images[0].get_clim() for axes in panels}) == 1
    assert all(len(axes.lines) == 2 for axes in panels)  # one boundary, across and down
    shown = torch.tensor(panels[0].images[0].get_array().tolist())
    assert torch.allclose((-shown).exp().sum(1), torch.ones(12), atol=1e-4)


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
