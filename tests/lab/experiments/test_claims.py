"""Claims are judged by intervals and corrected by family: never more is said than the records say."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from scipy import stats

from gcalign import cli
from gcalign.lab import paper
from gcalign.lab.experiments.engine import claims, ledger, records
from gcalign.lab.experiments.engine.claims import Contrast, Judgement, Results, planned_seeds
from gcalign.lab.experiments.engine.experiment import EXTREME, every_claim
from gcalign.lab.experiments.engine.records import Record
from gcalign.lab.experiments.engine.statistics import contrast
from gcalign.lab.experiments.paper import printed
from gcalign.lab.experiments.paper.columns import NEW_COMBINE, Column

CLAIMS = {claim.label: claim for claim in every_claim()}
PLANNED = [claim for claim in CLAIMS.values() if claim.family.kind == "planned"]
NEAR = (0.50, 0.51, 0.52)
Values = Mapping[tuple[Any, ...], Iterable[float]]  # the labels of a row -> a value for each seed


def recorded(experiment: str, measure: str, names: tuple[str, ...], values: Values, **labels: Any) -> list[Record]:
    """Records of rows that are known by the values of these labels; other labels are of all."""
    return [
        Record(experiment, "small", measure, x, labels | dict(zip(names, row, strict=True)), seed)
        for row, by in values.items()
        for seed, x in enumerate(by)
    ]


def results(values: list[Record]) -> Results:
    return Results("small", {values[0].experiment: records.frame(values)})


def table(*, column="standard", **values) -> list[Record]:
    """Accuracies on CIFAR-10 by method, one for each seed."""
    rows = {(m.replace("_", "-"),): by for m, by in values.items()}
    return recorded("table1", "linear-fast", ("method",), rows, data="cifar10", setting=column)


def verdict(label: str, values: list[Record]) -> Judgement:
    """By itself, before the correction over its family."""
    return CLAIMS[label].judged(results(values))


def in_family(label: str, values: list[Record]) -> Judgement:
    (judged,) = [j for j in claims.judged(results(values)) if j.claim.label == label]
    return judged


# --- every contrast, planned ones among them ---------------------------------------------------------------------

CONTRASTS = {label: claim.judge for label, claim in CLAIMS.items() if isinstance(claim.judge, Contrast)}
UNPLANNED_SEEDS = range(6)


def contrasted(judge: Contrast, gain: float, turns: float = 0.0, *, seeds: Iterable[int] | None = None) -> list[Record]:
    """Records in which the contrast is `gain`, ± `turns` from seed to seed; rows also change with the seed alike."""
    if seeds is None:
        seeds = planned_seeds(judge.experiment, "small") if judge.planned else UNPLANNED_SEEDS
    size = math.fsum(w * w for w in judge.weights.values())
    places = (judge.among or ("here", "there")) if judge.over else (None,)
    return [
        Record(
            judge.experiment,
            "small",
            judge.measure or "linear-fast",
            0.4
            + (gain + turns * (-1) ** seed) * w / size
            + 0.01 * (seed % 5)
            + random.Random(f"{seed} {row} {place}").gauss(0, 0.002),
            {**judge.at, judge.by: row, **({judge.over: place} if judge.over else {})},
            seed,
        )
        for place, (row, w), seed in product(places, judge.weights.items(), seeds)
    ]


def gains(judge: Contrast) -> tuple[float, float]:
    """A gain that its rule holds with, and one with which it fails."""
    low, high = judge.rule.low, judge.rule.high
    if math.isfinite(low) and math.isfinite(high):
        return (low + high) / 2, high + 0.05
    return (low + 0.05, low - 0.05) if math.isfinite(low) else (high - 0.05, high + 0.05)


@pytest.mark.parametrize("label", CONTRASTS)
def test_every_contrast_can_go_either_way_and_needs_its_seeds(label):
    judge = CONTRASTS[label]
    within, outside = gains(judge)
    held, failed = (verdict(label, contrasted(judge, gain)) for gain in (within, outside))
    assert (held.word, failed.word) == ("held", "failed")
    expected = planned_seeds(judge.experiment, "small") if judge.planned else UNPLANNED_SEEDS
    assert held.n == len(expected)
    assert held.estimate.mean == pytest.approx(within, abs=0.02)
    assert verdict(label, contrasted(judge, within, turns=0.2)).word == "not shown"
    alone = verdict(label, contrasted(judge, within, seeds=[*expected][:1]))
    assert alone.word == ("not measured" if judge.planned else "not shown")
    if judge.among:
        there = [r for r in contrasted(judge, within) if r.labels[judge.over] != judge.among[0]]
        assert verdict(label, there).word == "not measured"


MAIN = "E1 GCA-UOT, nearest neighbours"


def paired(values: list[Record]) -> Any:
    """The paired test of scipy, of the first row less the second."""
    rows = [[r.value for r in values if r.labels["method"] == m] for m in CONTRASTS[MAIN].weights]
    return stats.ttest_rel(*rows)


def test_what_was_planned_is_decided_by_the_paired_test_of_scipy():
    values = contrasted(CONTRASTS[MAIN], 0.01)
    third = contrasted(CONTRASTS["E1 RINCE, nearest neighbours"], 0.0, turns=0.1)
    values += [r for r in third if r.labels["method"] == "rince"]  # which the pooled error would count
    judged, expected = verdict(MAIN, values), paired(values)
    assert judged.p == pytest.approx(expected.pvalue, rel=1e-9)
    low, high = expected.confidence_interval(0.95)
    assert f"[{100 * low:+.2f}, {100 * high:+.2f}]".replace("-", "−") in judged.result


def test_some_of_the_planned_seeds_decide_nothing_and_others_are_left_out():
    judge = CONTRASTS[MAIN]
    few = verdict(MAIN, contrasted(judge, 0.3, seeds=range(10, 17)))
    assert (few.word, few.result) == (
        "not measured",
        "`gcalign reproduce fig-mismatch scale=small` (7 of 8 seeds so far)",
    )
    more = [*contrasted(judge, 0.03), *contrasted(judge, -0.9, seeds=(3, 4))]
    assert verdict(MAIN, more).word == "held"


def test_a_family_is_corrected_together_and_its_intervals_hold_together():
    family = [label for label, claim in CLAIMS.items() if claim.family is CLAIMS[MAIN].family]
    assert len(family) == 8

    def found(gain):
        of = {(judge.measure, m): judge for label in family for judge in [CONTRASTS[label]] for m in judge.weights}
        every = {(m, row): contrasted(judge, 0.0) for (m, row), judge in of.items()}
        values = [r for (_, row), some in every.items() for r in some if r.labels["method"] == row]
        return [replace(r, value=r.value + gain) if _is_main(r) else r for r in values]

    for gain, word in ((0.0035, "not shown"), (0.02, "held")):
        values = found(gain)
        judged = in_family(MAIN, values)
        assert judged.p < 0.05
        assert 6 * judged.p < judged.adjusted <= 8 * judged.p
        assert judged.verdict == word
        low, high = paired([r for r in values if r.measure == "knn"]).confidence_interval(1 - 0.05 / 8)
        assert judged.as_dict()["simultaneous"]["ends"] == pytest.approx((low, high))
        assert f"[{100 * low:+.2f}, {100 * high:+.2f}]".replace("-", "−") in judged.result


def _is_main(r: Record) -> bool:
    return (r.measure, r.labels["method"]) == ("knn", "gca-uot")


def test_planned_comparisons_are_counted_apart():
    values = [r for label in CONTRASTS if label.startswith("E2") for r in contrasted(CONTRASTS[label], 0.0)]
    values = [*{(r.labels["method"], r.labels["setting"], r.seed): r for r in values}.values()]
    found = claims.judged(results(values))
    assert f"; {len(PLANNED)} comparisons of our plan: " in ledger.summary(found)
    assert "3 not shown" in ledger.summary(found)
    assert f"{len(PLANNED)} planned comparisons: " in ledger.markdown(found, results(values))


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("fig-mismatch", range(10, 18)),
        ("fig-mismatch-lambda", range(10, 14)),
        ("fig-extreme", range(20, 32)),
        ("fig-targets", range(40, 45)),
        ("table-labels", range(70, 78)),
        ("emoji-pairs", range(5)),
        ("fig-cone", range(80, 88)),
    ],
)
def test_planned_seeds_are_those_of_the_plan(name, seeds):
    assert planned_seeds(name, "small") == [*seeds]


# --- other judges of the plan --------------------------------------------------------------------------------------

RELAXATIONS = (0.05, 0.2, 0.5, 1, 2)


def around(level: float, seed: int, k: int, noise: float = 1.0) -> float:
    """A value that changes with the seed alike for all, and a little on its own."""
    return level + 0.01 * (seed % 5) + noise * random.Random(f"{seed} {k}").gauss(0, 0.003)


def rows_around(experiment: str, measure: str, label: str, levels: Mapping[Any, float], seeds, noise=1.0, **labels):
    return [
        Record(experiment, "small", measure, around(level, s, k, noise), {label: at, **labels}, s)
        for k, (at, level) in enumerate(levels.items())
        for s in seeds
    ]


def test_the_push_is_a_slope_over_the_logarithm_of_lambda():
    levels = dict(zip(RELAXATIONS, (0.1, 0.2, 0.3, 0.35, 0.4), strict=True))
    values = rows_around("fig-mismatch-lambda", "push", "relax", levels, range(10, 14), pairs="mismatched")
    means = [statistics.fmean(r.value for r in values if r.labels["relax"] == x) for x in RELAXATIONS]
    expected = stats.linregress([math.log10(x) for x in RELAXATIONS], means).slope
    assert verdict("E1 push", values).estimate.mean == pytest.approx(expected)


@pytest.mark.parametrize(
    ("levels", "noise", "word"),
    [
        ((0.3, 0.45, 0.4, 0.38, 0.35), 1, "held"),  # at 0.2 and others
        ((0.2, 0.25, 0.3, 0.32, 0.4), 1, "failed"),  # the largest is above all others
        ((0.2, 0.25, 0.3, 0.399, 0.4), 3, "not shown"),  # but for one, which may be as good
        ((0.34, 0.36, 0.355, 0.352, 0.35), 30, "not shown"),
    ],
)
def test_a_finite_lambda_is_best_if_one_beats_the_largest(levels, noise, word):
    by = dict(zip(RELAXATIONS, levels, strict=True))
    found = verdict("E1 finite λ", rows_around("fig-mismatch-lambda", "knn", "relax", by, range(10, 14), noise))
    assert found.word == word
    assert (found.p <= 0.05) == (word != "not shown")


ALPHAS = (0.0, 0.003, 0.01, 0.03, 0.1, 1.0)
UP, LEVEL, DOWN = (0.03,) * 5, (0.0,) * 5, (-0.05,) * 5


@pytest.mark.parametrize(
    ("domain", "across", "noise", "seeds", "word"),
    [
        ((0, 0, 0.03, 0.03, 0.03), (0, 0, 0, -0.05, -0.05), 0.3, 5, "held"),  # at 0.03
        (UP, DOWN, 0.3, 5, "failed"),  # every α costs classes
        (DOWN, LEVEL, 0.3, 5, "failed"),  # every α costs domains
        ((-0.05, 0.03, 0.03, -0.05, 0.03), (0, -0.05, -0.05, 0, -0.05), 0.3, 5, "failed"),  # each in its way
        ((0, 0, 0.03, 0.03, 0.03), (0, 0, -0.05, -0.05, -0.05), 0.3, 5, "not shown"),  # no gain where nothing is lost
        (LEVEL, LEVEL, 0.3, 5, "not shown"),
        ((0, 0, 0.03, 0.03, 0.03), (0, 0, 0, -0.05, -0.05), 15, 5, "not shown"),  # seeds disagree
        ((0, 0, 0.03, 0.03, 0.03), (0, 0, 0, -0.05, -0.05), 0.3, 4, "not measured"),
    ],
)
def test_an_alpha_is_bought_only_where_it_costs_nothing(domain, across, noise, seeds, word):
    wanted, values = range(40, 40 + seeds), []
    for measure, level, by in (("domain", 0.8, domain), ("across-domains", 0.4, across)):
        levels = {alpha: level + gain for alpha, gain in zip(ALPHAS, (0.0, *by), strict=True)}
        values += rows_around("fig-targets", measure, "alpha", levels, wanted, noise, beta=0.0)
    lines = {"domain-untrained": 0.6, "domain-supervised": 0.9}
    lined = [Record("fig-targets", "small", name, x, {"alpha": 0.0}, s) for name, x in lines.items() for s in wanted]
    found = verdict("E3 both", values + lined)
    assert (found.word, found.p) == (word, None)
    assert ("untrained 60.0 %, supervised 90.0 %" in found.result) == (word != "not measured")
    assert "untrained" not in verdict("E3 both", values).result


@pytest.mark.parametrize("measure", ["nearest neighbours", "linear probe"])
@pytest.mark.parametrize(
    ("same", "noise", "seeds", "words"),
    [
        (0.0, 0.5, 8, ("held", "held")),
        (0.06, 0.5, 8, ("held", "failed")),
        (0.0, 40, 8, ("not shown", "not shown")),
        (0.0, 0.5, 7, ("not measured", "not measured")),
    ],
)
def test_noisy_labels_are_judged_against_both_temperatures(measure, same, noise, seeds, words):
    """GCA-UOT is above INCE by 0.03; INCE at the ε of GCA-UOT by `same`."""
    levels = {("ince", "chosen"): 0.4, ("ince", "ε of GCA-UOT"): 0.4 + same, ("gca-uot", "chosen"): 0.43}
    values = [
        Record("table-labels", "small", name, around(level, s, k, noise), {"method": m, "setting": setting}, s)
        for name in ("linear-fast", "knn")
        for k, ((m, setting), level) in enumerate(levels.items())
        for s in range(70, 70 + seeds)
    ]
    labels = [f"E4 {measure}, {setting}" for setting in ("chosen", "ε of GCA-UOT")]
    assert tuple(verdict(label, values).word for label in labels) == words


# --- what the paper claims -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gca", "word"),
    [
        ((0.52, 0.53, 0.541), "held"),
        ((0.48, 0.49, 0.501), "failed"),
        ((0.52, 0.50, 0.53), "not shown"),
        ((0.60,), "not shown"),  # one seed, however far
    ],
)
def test_a_difference_is_judged_by_its_interval(gca, word):
    found = verdict("Δ GCA-INCE, CIFAR-10", table(ince=NEAR, gca_ince=gca))
    assert (found.word, found.n) == (word, len(gca))


def test_where_the_paper_has_a_loss_a_loss_is_what_holds():
    down = {(m, s): by for m, by in (("ince", NEAR), ("gca-ince", (0.48, 0.49, 0.501))) for s in EXTREME}
    values = recorded("table1", "cifar10c", ("method", "setting"), down, data="cifar10")
    assert verdict("Δ GCA-INCE, CIFAR-10C (Ex)", values).word == "held"


def test_without_result_files_every_claim_names_the_command_that_measures_it():
    for claim in every_claim():
        found = claim.judged(Results("small", {}))
        if claim.family.kind != "printed":
            assert found.word == "not measured", claim.label
            assert found.result.startswith("`gcalign reproduce ")
            assert found.result.endswith(" scale=small`")


def test_a_column_this_scale_has_no_runs_of_is_not_measured():
    found = verdict("Δ GCA-INCE, SVHN", table(ince=NEAR, gca_ince=NEAR))
    assert (found.word, found.result) == ("not measured", "`gcalign reproduce table1 scale=paper`")


def test_labels_are_unique_and_each_delta_is_there():
    labels = [claim.label for claim in every_claim()]
    assert len(set(labels)) == len(labels)
    assert sum(label.startswith("Δ ") for label in labels) == 16


# --- composite claims ------------------------------------------------------------------------------------------


def test_best_needs_to_beat_every_other_method():
    clear = table(ince=NEAR, gca_uot=(0.6, 0.611, 0.62))
    assert verdict("GCA-UOT best", clear).word == "held"
    unclear = table(ince=NEAR, rince=(0.59, 0.61, 0.60), gca_uot=(0.6, 0.611, 0.62))
    found = verdict("GCA-UOT best", unclear)
    assert found.word == "not shown"
    assert "highest mean in 1 of 1 columns (CIFAR-10); above every other method in 0" in found.result


def test_best_fails_only_where_a_loss_stands_among_all_comparisons():
    base = {seed: 0.5 + 0.01 * seed for seed in range(5)}
    uot = tuple(base.values())

    def against(gap, wobble):
        rival = tuple(x + gap + wobble * (-1) ** s for s, x in base.items())
        return verdict("GCA-UOT best", table(rince=rival, gca_uot=uot))

    assert against(0.05, 0.001).word == "failed"
    assert "beaten" in against(0.05, 0.001).result
    assert against(0.05, 0.06).word == "not shown"


def test_best_is_not_beaten_by_the_one_of_many_rivals_that_chance_puts_ahead():
    base, wobble = {s: 0.5 + 0.01 * s for s in range(5)}, (1, -1, 1, -1, 0.5)
    rivals = {
        name.replace("-", "_"): tuple(x + 0.004 * wobble[(s + k) % 5] for s, x in base.items())
        for k, name in enumerate(m for m in paper.METHODS if m != "gca-uot")
    }
    ahead = rivals | {"iot": tuple(x + 0.005 for x in rivals["iot"])}

    def found(values):
        return verdict("GCA-UOT best", table(gca_uot=tuple(base.values()), **values))

    column = records.frame(table(gca_uot=tuple(base.values()), **ahead))
    alone = contrast(NEW_COMBINE[0].ours(column), {"iot": 1, "gca-uot": -1}, pooled=True)
    assert alone.p() < 0.05  # one comparison would be enough
    assert found(ahead).word == "not shown"  # one of eight is not
    assert found(rivals | {"iot": tuple(x + 0.02 for x in rivals["iot"])}).word == "failed"


def test_appendix_claims_fall_back_on_the_records_of_table1():
    found = verdict("GCA-UOT best, CIFAR-10", table(ince=NEAR, gca_uot=(0.6, 0.611, 0.62)))
    assert found.word == "held"


def alignments(gca: Iterable[float], eps: Mapping[str, float] | None = None) -> list[Record]:
    """Of two settings, and the words of runs with these ε."""
    base = {"ince": (0.30, 0.31, 0.32), "gca-ince": gca}
    rows = {(m, s): [x + 0.1 * k for x in by] for m, by in base.items() for k, s in enumerate(("standard", "C1"))}
    found = recorded("fig-align-uniform", "alignment", ("method", "setting"), rows, data="cifar10", on="clean")
    return [replace(r, words=(f"method.eps={eps[r.labels['method']]}",)) for r in found] if eps else found


def test_lower_alignment_is_better_where_both_have_one_eps():
    label, better = "alignment GCA-INCE, clean", (0.25, 0.26, 0.271)
    assert verdict(label, alignments(better)).word == "held"
    assert verdict(label, alignments((0.35, 0.36, 0.371))).word == "failed"
    assert verdict(label, alignments(better, {"ince": 0.1, "gca-ince": 0.1})).word == "held"
    found = verdict(label, alignments(better, {"ince": 0.1, "gca-ince": 0.2}))
    assert (found.word, found.p) == ("not judgeable", None)
    assert "0.2 against 0.1" in found.result
    assert verdict("alignment GCA-INCE, corrupted", alignments(better)).word == "not measured"


def ptgt(measure, none, most):
    rows = {(0.0, 0.25): (0.49, 0.50, 0.51), (0.0, 0.0): none, (0.5, 0.0): (0.29, 0.30, 0.31), (1.0, 0.0): most}
    return recorded("fig-ptgt", measure, ("alpha", "beta"), rows, method="gca-ince")


def test_domain_accuracy_with_the_most_weight_is_compared_with_none():
    found = verdict("domain accuracy", ptgt("domain", (0.7, 0.71, 0.72), (0.9, 0.91, 0.921)))
    assert found.word == "held"
    assert "71.0 % with pairs alone, 91.0 % at α = 1: +20.0" in found.result
    assert found.result.endswith("50.0 % at β = 0.25")


@pytest.mark.parametrize("most", [(0.401, 0.41, 0.42), (0.35, 0.36, 0.371)])
def test_class_accuracy_from_random_weights_is_told_but_decides_nothing(most):
    found = verdict("class accuracy", ptgt("across-domains", (0.40, 0.41, 0.42), most))
    assert (found.word, found.n, found.p) == ("not judgeable", 3, None)
    assert "41.0 % with pairs alone" in found.result
    assert found.result.endswith("from random weights, where DomainBed starts from ImageNet's")


def test_noise_is_judged_at_its_largest_share():
    levels = {("ince", 0.0): 0.5, ("gca-rince", 0.0): 0.3, ("ince", 0.6): 0.3, ("gca-rince", 0.6): 0.4}
    rows = {at: (base, base + 0.01, base + 0.021) for at, base in levels.items()}
    assert (
        verdict("GCA-RINCE, mismatched pairs", recorded("fig-noise", "linear-fast", ("method", "noise"), rows)).word
        == "held"
    )


@pytest.mark.parametrize(
    ("uot", "word"), [((8.0, 8.1, 8.2), "held"), ((13.0, 13.1, 13.3), "failed"), ((8.0, 13.0, 10.2), "not shown")]
)
def test_which_is_faster_is_decided_by_the_loss_alone(uot, word):
    loss = {"ince": (10.0, 10.1, 10.2), "gca-uot": uot}
    epoch = {"ince": (900.0, 1000.0, 1100.0), "gca-uot": (1100.0, 1000.0, 950.0)}  # tells nothing
    values = [
        r
        for measure, by in (("step-seconds-loss", loss), ("seconds-per-epoch", epoch))
        for r in recorded("fig-time", measure, ("method",), {(m,): xs for m, xs in by.items()})
    ]
    values.append(Record("fig-time", "small", "step-seconds-loss", 1.0, {"method": "gca-uot", "iterations": 5}, 0))
    found = verdict("run time GCA-UOT, INCE", values)
    assert (found.word, found.n, found.of) == (word, 3, "rounds")
    ratio = math.exp(sum(math.log(a / b) for a, b in zip(uot, loss["ince"], strict=True)) / 3) - 1
    assert f"takes {100 * ratio:+.1f} [".replace("-", "−") in found.result


@pytest.mark.parametrize(
    ("slower", "word"), [((10.1, 10.2, 10.3), "held"), ((14.0, 14.1, 14.3), "failed"), ((9.0, 12.0, 10.2), "not shown")]
)
def test_similar_means_within_a_tenth(slower, word):
    rows = {("ince",): (10.0, 10.1, 10.2), ("gca-ince",): slower}
    values = recorded("fig-time", "seconds-per-epoch", ("method",), rows)
    assert verdict("run time GCA-INCE, INCE", values).word == word


def flops(**counts):
    return recorded(
        "flops", "mflops", ("method",), {(m.replace("_", "-"),): [x] for m, x in counts.items()}, part="total"
    )


@pytest.mark.parametrize(("uot", "word"), [(70.0, "held"), (90.0, "failed")])
def test_counted_operations_need_no_seeds(uot, word):
    found = verdict("FLOPs GCA-UOT", flops(ince=100.0, gca_uot=uot))
    assert (found.word, found.n) == (word, None)


def test_the_flops_that_the_paper_states_are_those_of_its_code():
    found = verdict("FLOPs GCA-INCE", flops(ince=100.0, gca_ince=130.0))
    assert found.word == "held"
    assert found.result.startswith("published code: 6.62 against 6.31 million multiply-adds, +4.9 %; here 130.00")


def plan(method, matrix, seed=0):
    log_plan = [[round(math.log(x), 3) for x in row] for row in matrix]
    return Record("fig-plans", "small", "plan", None, {"method": method}, seed, {"log_plan": log_plan})


def test_column_sums_follow_from_the_projection_so_that_only_a_failure_is_a_finding():
    rows_only, both = [[0.8, 0.2], [0.5, 0.5]], [[0.7, 0.3], [0.3, 0.7]]

    def judged(ince, gca):
        return verdict("row and column sums", [plan("ince", ince), plan("gca-ince", gca)]).word

    assert judged(rows_only, both) == "true by construction"
    assert judged(rows_only, rows_only) == "failed"
    assert judged(both, both) == "failed"


@pytest.mark.parametrize(("rows", "iterations", "word"), [(1.005, 5, "held"), (1.1, 5, "failed"), (1.0, 10, None)])
def test_plans_of_fewer_than_ten_iterations_converge_if_their_row_sums_are_equal(rows, iterations, word):
    record = plan("gca-ince", [[0.5 * rows, 0.5 * rows], [0.5 / rows, 0.5 / rows]])
    record = replace(record, about=record.about | {"iterations": iterations, "eps": 0.2})
    found = verdict("fewer than ten", [record])
    assert found.word == (word or "not measured")
    assert word is None or "GCA-INCE, 5 iterations at ε = 0.2" in found.result


@pytest.mark.parametrize(
    ("uot", "word"),
    [
        ((0.9, 0.91, 0.92), "held"),
        ((0.6, 0.61, 0.62), "failed"),
        ((0.9, 0.6, 0.8), "not shown"),
        ((0.95,), "not shown"),
    ],
)
def test_contrast_is_judged_over_the_seeds_of_each_plan(uot, word):
    shares = {"ince": (0.80, 0.81, 0.815), "gca-ince": (0.7, 0.712, 0.72), "gca-uot": uot}
    values = [
        plan(m, [[x, 1 - x], [1 - x, x]], seed) for m, by in shares.items() for seed, x in enumerate(by[: len(uot)])
    ]
    found = verdict("contrast of GCA-UOT", values)
    assert (found.word, found.n) == (word, len(uot))
    assert ("one run of each" in found.result) == (len(uot) == 1)


@pytest.mark.parametrize(("shares", "word"), [((0.9, 0.8, 0.6), "held"), ((0.9, 0.6, 0.8), "failed")])
def test_rows_must_spread_with_every_step_of_epsilon_whatever_their_mass(shares, word):
    values = [
        Record(
            *("fig-epsilon", "small", "plan", None, {"method": "gca-uot", "eps": eps}, 0),
            {"log_plan": [[math.log(mass * x), math.log(mass * (1 - x))] for _ in range(2)]},
        )
        for eps, mass, x in zip((0.01, 0.1, 1.0), (5.0, 1.0, 0.01), shares, strict=True)
    ]
    assert verdict("ε smooths", values).word == word


@pytest.mark.parametrize(("gap", "word"), [(0.05, "held"), (-0.05, "failed"), (0.0, "not shown")])
def test_the_line_of_ince_is_passed_in_most_settings_or_not(gap, word):
    rows = {("gca-rince", q, 0.01): [x + gap + 0.001 * (-1) ** s for s, x in enumerate(NEAR)] for q in (0.1, 0.6, 1.0)}
    values = recorded("fig-q-lambda", "linear-fast", ("method", "q", "lam"), rows)
    values += recorded("fig-q-lambda", "linear-fast", ("method",), {("ince",): NEAR})
    found = verdict("q and λ", values)
    assert found.word == word
    assert f"; from {100 * gap + 0.03:+.2f}".replace("-", "−") in found.result


# --- the paper against itself ----------------------------------------------------------------------------------


def test_the_papers_sentences_are_held_against_its_own_tables():
    found = {c.label: c.judged(Results("small", {})) for c in printed.CLAIMS}
    assert found["7 of 8"].word == "held"
    assert found["SVHN"].word == "failed"
    assert found["rows Δ"].result == "GCA-RINCE, CIFAR-100 (Ex): printed −0.47, the rows give −0.41"
    assert "14 of 16 are gains; 4 have" in found["spread of Δ"].result
    assert found["standard"].result == "5 differ, e.g. GCA-RINCE, CIFAR-10 93.47 ± 0.30, appendix 93.47 ± 0.32"


def columns(**means) -> tuple[Column, ...]:
    """Two columns of a table, CIFAR-10 and SVHN, with 50 ± 1 for whom nothing is said."""
    return tuple(
        Column(
            *(name, name.lower(), "accuracy", ("standard",), "Standard"),
            mean=tuple(means.get(m.replace("-", "_"), (50.0, 50.0))[k] for m in paper.METHODS),
            std=(1.0,) * len(paper.METHODS),
        )
        for k, name in enumerate(("CIFAR-10", "SVHN"))
    )


def printed_table(deltas=None, underlined=("rince", "rince"), standard=None, **means) -> printed.Printed:
    found = columns(**means)
    said = {a: [c.delta(a, b).mean for c in found] for a, b in paper.PAIRS} | (deltas or {})
    return printed.Printed(found, said, [frozenset({m}) for m in underlined], standard or {"CIFAR-10": found[0]})


@pytest.mark.parametrize(
    ("rule", "table", "word"),
    [
        (printed.all_but_one, {"gca_uot": (60, 40)}, "held"),
        (printed.all_but_one, {"gca_uot": (60, 60)}, "failed"),
        (printed.except_svhn, {"gca_ince": (60, 40)}, "held"),
        (printed.except_svhn, {"gca_ince": (60, 60), "gca_rince": (60, 60)}, "failed"),
        (printed.larger_for_rince, {"gca_rince": (60, 60)}, "held"),
        (printed.larger_for_rince, {"gca_ince": (60, 40)}, "failed"),
        (printed.rows_delta, {}, "held"),
        (printed.rows_delta, {"deltas": {"gca-ince": [0.0, 0.1]}}, "failed"),
        (printed.deltas_exclude_zero, {"gca_ince": (60, 60), "gca_rince": (60, 50)}, "held"),
        (printed.deltas_exclude_zero, {"gca_ince": (60, 50)}, "not shown"),
        (printed.deltas_exclude_zero, {"gca_ince": (60, 40)}, "failed"),
        (printed.underlined, {"gca_uot": (60, 60), "rince": (55, 55)}, "held"),
        (printed.underlined, {"gca_uot": (60, 60), "rince": (55, 55), "byol": (40, 56)}, "failed"),
        (printed.underlined, {"gca_uot": (60, 60), "rince": (55, 55), "byol": (40, 55)}, "failed"),  # a tie has two
        (printed.standard, {}, "held"),
        (printed.standard, {"standard": {"SVHN": columns(byol=(40, 40))[1]}}, "failed"),
    ],
)
def test_a_rule_about_the_papers_table_can_go_either_way(rule, table, word):
    assert rule(printed_table(**table)).word == word


# --- families --------------------------------------------------------------------------------------------------


def test_a_claim_that_stands_alone_may_fall_in_its_family():
    seeds = range(5)
    base = {
        m: tuple(0.5 + 0.01 * s + 0.004 * ((s * 7 + k * 3) % 5 - 2) for s in seeds) for k, m in enumerate(paper.METHODS)
    }

    def found(gain):
        values = base | {"gca-ince": tuple(x + gain for x in base["ince"])}
        return [
            r
            for setting in ("standard", *EXTREME)
            for r in table(column=setting, **{m.replace("-", "_"): v for m, v in values.items()})
        ]

    label = "Δ GCA-INCE, CIFAR-10"
    small, large = found(0.009), found(0.03)
    assert verdict(label, small).word == "held"
    assert verdict(label, small).p < 0.05 < in_family(label, small).adjusted
    assert in_family(label, small).word == "not shown"
    assert in_family(label, large).word == "held"


def test_a_verdict_is_exploratory_where_the_first_rule_would_not_have_given_it():
    even = {"ince": (0.30, 0.31, 0.32), "gca-rince": (0.38, 0.37, 0.42), "rince": (0.30, 0.31, 0.32)}

    def found(**changed):
        values = [
            Record("fig-noise", "small", "linear-fast", x, {"method": m, "noise": 0.6}, s)
            for m, by in (
                even | changed | dict.fromkeys(("simclr", "iot", "iot-uni", "byol"), (0.3, 0.31, 0.32))
            ).items()
            for s, x in enumerate(by)
        ]
        return in_family("GCA-RINCE, mismatched pairs", values)

    steady = found(**{"gca-rince": (0.38, 0.39, 0.401)})
    assert (steady.word, steady.verdict) == ("held", "held")
    shaky = found(**{"gca-rince": (0.33, 0.38, 0.35)})
    assert (shaky.first, shaky.word, shaky.verdict) == ("not shown", "held", "held, exploratory")


def test_what_was_mended_after_a_look_stays_exploratory():
    values = ptgt("domain", (0.7, 0.71, 0.72), (0.9, 0.91, 0.921))
    judged = in_family("domain accuracy", values)
    assert (judged.word, judged.verdict) == ("held", "held, exploratory")
    assert judged.as_dict()["exploratory"]


# --- the command -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    records.write(tmp_path / "small" / "table1.jsonl", table(ince=NEAR, gca_ince=(0.52, 0.53, 0.541)))
    return tmp_path


def test_the_page_is_the_same_bytes_each_time_and_counts_its_verdicts(folder, capsys):
    pages = []
    for name in ("a.md", "new/b.md"):
        assert cli.main(["claims", str(folder), "--write", str(folder / name)]) == 0
        pages.append((folder / name).read_text())
    assert pages[0] == pages[1]
    row = "|+2.03 [+1.89, +2.18]|0.00027|"
    assert any(line.startswith("|**held**|") and row in line for line in pages[0].splitlines())
    ours = sum(c.family.kind == "claimed" for c in every_claim())
    counts = f"1 held, 0 failed, 0 not shown, 0 not judgeable, 0 true by construction, {ours - 1} not measured"
    assert f"**{ours} claims: {counts};" in pages[0]
    assert "`gcalign verify` checks theorems" in pages[0]
    assert f"{ours} claims: 1 held" in capsys.readouterr().out


def test_json_holds_every_claim_and_nothing_else_is_printed(folder, capsys):
    assert cli.main(["claims", str(folder), "--json", "-"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [c["label"] for c in content["claims"]] == [c.label for c in every_claim()]
    assert content["claims"][0]["verdict"] == "held"
    assert content["claims"][0]["basis"] == "small, 3 seeds"
    assert content["theorems"] == []


def test_theorems_are_added_on_request(folder, monkeypatch):
    from gcalign.lab import verify

    honest = verify.run
    monkeypatch.setattr(verify, "run", lambda: honest(["pacs-classes"]))
    assert cli.main(["claims", str(folder), "--theorems", "--write", str(folder / "c.md")]) == 0
    page = (folder / "c.md").read_text()
    assert "| **fails**, misprint | `pacs-classes` | PACS has five classes |" in page
    assert "**Of 1: fails 1 (misprint 1).**" in page


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{}/none"], "is not a results folder. The project's own result files are in docs/results"),
        (["{}", "--scale", "smal"], "did you mean 'small'"),
    ],
)
def test_a_wrong_folder_or_scale_is_one_line_that_helps(folder, capsys, words, says):
    assert cli.main(["claims", *(word.format(folder) for word in words)]) == 2
    assert says in capsys.readouterr().err
