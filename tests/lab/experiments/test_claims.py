"""Claims are judged by intervals and corrected by family: never more is said than the records say."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from gcalign import cli
from gcalign.lab import paper
from gcalign.lab.experiments.engine import claims, records
from gcalign.lab.experiments.engine.claims import Judgement, Results
from gcalign.lab.experiments.engine.experiment import EXTREME, every_claim
from gcalign.lab.experiments.engine.records import Record
from gcalign.lab.experiments.engine.statistics import Estimate, contrast, simultaneous
from gcalign.lab.experiments.paper import printed
from gcalign.lab.experiments.paper.columns import NEW_COMBINE, Column


def table(*, column="standard", **values) -> list[Record]:
    """Accuracies on CIFAR-10 by method, one for each seed."""
    return [
        Record(
            "table1",
            "small",
            "linear-fast",
            x,
            {"method": m.replace("_", "-"), "data": "cifar10", "setting": column},
            s,
        )
        for m, by in values.items()
        for s, x in enumerate(by)
    ]


def results(experiment: str, values: list[Record]) -> Results:
    return Results("small", {experiment: records.frame(values)})


def verdict(label: str, found: Results) -> Judgement:
    """By itself, before the correction over its family."""
    (claim,) = [c for c in every_claim() if c.label == label]
    return claim.judged(found)


def in_family(label: str, found: Results) -> Judgement:
    (judged,) = [j for j in claims.judged(found) if j.claim.label == label]
    return judged


NEAR = (0.50, 0.51, 0.52)


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
    found = verdict("Δ GCA-INCE, CIFAR-10", results("table1", table(ince=NEAR, gca_ince=gca)))
    assert (found.word, found.n) == (word, len(gca))


def test_where_the_paper_has_a_loss_a_loss_is_what_holds():
    down = [
        Record("table1", "small", "cifar10c", x, {"method": m, "data": "cifar10", "setting": s}, seed)
        for m, by in {"ince": NEAR, "gca-ince": (0.48, 0.49, 0.501)}.items()
        for s in EXTREME
        for seed, x in enumerate(by)
    ]
    assert verdict("Δ GCA-INCE, CIFAR-10C (Ex)", results("table1", down)).word == "held"


def test_without_result_files_every_claim_names_the_command_that_measures_it():
    for claim in every_claim():
        found = claim.judged(Results("small", {}))
        if claim.family.kind != "printed":
            assert found.word == "not measured", claim.label
            assert found.result.startswith("`gcalign reproduce ")
            assert found.result.endswith(" scale=small`")


def test_a_column_this_scale_has_no_runs_of_is_not_measured():
    found = verdict("Δ GCA-INCE, SVHN", results("table1", table(ince=NEAR, gca_ince=NEAR)))
    assert (found.word, found.result) == ("not measured", "`gcalign reproduce table1 scale=paper`")


def test_labels_are_unique_and_each_delta_is_there():
    labels = [claim.label for claim in every_claim()]
    assert len(set(labels)) == len(labels)
    assert sum(label.startswith("Δ ") for label in labels) == 16


# --- composite claims ------------------------------------------------------------------------------------------


def test_best_needs_to_beat_every_other_method():
    clear = table(ince=NEAR, gca_uot=(0.6, 0.611, 0.62))
    assert verdict("GCA-UOT best", results("table1", clear)).word == "held"
    unclear = table(ince=NEAR, rince=(0.59, 0.61, 0.60), gca_uot=(0.6, 0.611, 0.62))
    found = verdict("GCA-UOT best", results("table1", unclear))
    assert found.word == "not shown"
    assert "highest mean in 1 of 1 columns (CIFAR-10); above every other method in 0" in found.result


def test_best_fails_only_where_a_loss_stands_among_all_comparisons():
    base = {seed: 0.5 + 0.01 * seed for seed in range(5)}
    uot = tuple(base.values())

    def against(gap, wobble):
        rival = tuple(x + gap + wobble * (-1) ** s for s, x in base.items())
        return verdict("GCA-UOT best", results("table1", table(rince=rival, gca_uot=uot)))

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
        return verdict("GCA-UOT best", results("table1", table(gca_uot=tuple(base.values()), **values)))

    column = results("table1", table(gca_uot=tuple(base.values()), **ahead)).of("table1")
    alone = contrast(NEW_COMBINE[0].ours(column), {"iot": 1, "gca-uot": -1}, pooled=True)
    assert alone.p() < 0.05  # one comparison would be enough
    assert found(ahead).word == "not shown"  # one of eight is not
    assert found(rivals | {"iot": tuple(x + 0.02 for x in rivals["iot"])}).word == "failed"


def test_appendix_claims_fall_back_on_the_records_of_table1():
    found = verdict("GCA-UOT best, CIFAR-10", results("table1", table(ince=NEAR, gca_uot=(0.6, 0.611, 0.62))))
    assert found.word == "held"


def test_lower_alignment_is_better():
    def measured(gca):
        return results(
            "fig-align-uniform",
            [
                Record(
                    "fig-align-uniform",
                    "small",
                    "alignment",
                    x + 0.1 * k,
                    {"method": m, "data": "cifar10", "setting": s, "on": "clean"},
                    seed,
                )
                for m, by in {"ince": (0.30, 0.31, 0.32), "gca-ince": gca}.items()
                for k, s in enumerate(("standard", "C1"))
                for seed, x in enumerate(by)
            ],
        )

    label = "alignment GCA-INCE, clean"
    assert verdict(label, measured((0.25, 0.26, 0.271))).word == "held"
    assert verdict(label, measured((0.35, 0.36, 0.371))).word == "failed"
    assert verdict("alignment GCA-INCE, corrupted", measured((0.25, 0.26, 0.27))).word == "not measured"


@pytest.mark.parametrize(
    ("measure", "label", "lower"), [("alignment", "alignment", True), ("linear-fast", "accuracy", False)]
)
def test_at_the_same_eps_a_difference_is_averaged_over_its_values(measure, label, lower):
    def measured(*gaps):
        labels = {"method": "ince", "data": "cifar10"} | ({"on": "clean"} if lower else {})
        return results(
            "fig-same-eps",
            [
                Record("fig-same-eps", "small", measure, x + gap, labels | {"method": m, "eps": eps}, seed)
                for eps, gap_of_gca in zip((0.1, 0.5), gaps, strict=True)
                for m, gap in (("ince", 0.0), ("gca-ince", gap_of_gca))
                for seed, x in enumerate((0.30, 0.31, 0.32 + 0.001 * (gap > 0)))
            ],
        )

    up, down = ("failed", "held") if lower else ("held", "failed")
    found = verdict(f"{label} GCA-INCE, same ε", measured(0.05, 0.01))
    assert (found.word, found.n) == (up, 3)
    assert found.result.startswith("+0.030 [" if lower else "+3.03 [")
    assert verdict(f"{label} GCA-INCE, same ε", measured(-0.05, -0.01)).word == down
    assert verdict(f"{label} GCA-RINCE, same ε", measured(0.05, 0.01)).word == "not measured"


def ptgt(measure, none, most):
    return [
        Record("fig-ptgt", "small", measure, x, {"method": "gca-ince", "alpha": a, "beta": b}, s)
        for (a, b), by in {
            (0.0, 0.25): (0.49, 0.50, 0.51),
            (0.0, 0.0): none,
            (0.5, 0.0): (0.29, 0.30, 0.31),
            (1.0, 0.0): most,
        }.items()
        for s, x in enumerate(by)
    ]


def test_domain_accuracy_with_the_most_weight_is_compared_with_none():
    found = verdict("domain accuracy", results("fig-ptgt", ptgt("domain", (0.7, 0.71, 0.72), (0.9, 0.91, 0.921))))
    assert found.word == "held"
    assert "71.0 % with pairs alone, 91.0 % at α = 1: +20.0" in found.result
    assert found.result.endswith("50.0 % at β = 0.25")


@pytest.mark.parametrize("most", [(0.401, 0.41, 0.42), (0.35, 0.36, 0.371)])
def test_class_accuracy_from_random_weights_is_told_but_decides_nothing(most):
    found = verdict("class accuracy", results("fig-ptgt", ptgt("across-domains", (0.40, 0.41, 0.42), most)))
    assert (found.word, found.n, found.p) == ("not judgeable", 3, None)
    assert "41.0 % with pairs alone" in found.result
    assert found.result.endswith("from random weights, where DomainBed starts from ImageNet's")


def test_alignment_is_not_judged_where_the_search_chose_different_eps():
    def measured(eps):
        return results(
            "fig-align-uniform",
            [
                Record(
                    *("fig-align-uniform", "small", "alignment", x),
                    {"method": m, "data": "cifar10", "setting": "standard", "on": "clean"},
                    seed,
                    words=(f"method.eps={eps[m]}",),
                )
                for m, by in {"ince": (0.30, 0.31, 0.32), "gca-ince": (0.25, 0.26, 0.271)}.items()
                for seed, x in enumerate(by)
            ],
        )

    label = "alignment GCA-INCE, clean"
    assert verdict(label, measured({"ince": 0.1, "gca-ince": 0.1})).word == "held"
    found = verdict(label, measured({"ince": 0.1, "gca-ince": 0.2}))
    assert (found.word, found.p) == ("not judgeable", None)
    assert "confounded by ε (0.2 against 0.1)" in found.result


def test_noise_is_judged_at_its_largest_share():
    values = [
        Record("fig-noise", "small", "linear-fast", x, {"method": m, "noise": noise, "setting": "standard"}, s)
        for noise, by in {0.0: (0.5, 0.3), 0.6: (0.3, 0.4)}.items()
        for m, base in zip(("ince", "gca-rince"), by, strict=True)
        for s, x in enumerate((base, base + 0.01, base + 0.021))
    ]
    found = verdict("GCA-RINCE, mismatched pairs", results("fig-noise", values))
    assert found.word == "held"
    assert "at 60 %" in found.result


def test_methods_of_the_planned_experiment_are_judged_by_it_where_pairs_are_mismatched():
    values = [
        Record(
            "fig-mismatch", "small", "linear-fast", base + 0.01 * s + 0.001 * (s % 3), {"method": m, "noise": 0.6}, s
        )
        for m, base in (("ince", 0.3), ("rince", 0.35))
        for s in range(10, 18)
    ]
    found = verdict("RINCE, mismatched pairs", results("fig-mismatch", values))
    assert (found.word, found.n) == ("held", 8)
    assert verdict("RINCE, mismatched pairs", results("fig-noise", values)).word == "not measured"


@pytest.mark.parametrize(
    ("uot", "word"), [((8.0, 8.1, 8.2), "held"), ((13.0, 13.1, 13.3), "failed"), ((8.0, 13.0, 10.2), "not shown")]
)
def test_which_is_faster_is_decided_by_the_loss_alone(uot, word):
    loss = {"ince": (10.0, 10.1, 10.2), "gca-uot": uot}
    epoch = {"ince": (900.0, 1000.0, 1100.0), "gca-uot": (1100.0, 1000.0, 950.0)}  # tells nothing
    values = [
        Record("fig-time", "small", measure, x, {"method": m}, s)
        for measure, by in (("step-seconds-loss", loss), ("seconds-per-epoch", epoch))
        for m, xs in by.items()
        for s, x in enumerate(xs)
    ]
    values.append(Record("fig-time", "small", "step-seconds-loss", 1.0, {"method": "gca-uot", "iterations": 5}, 0))
    found = verdict("run time GCA-UOT, INCE", results("fig-time", values))
    assert (found.word, found.n, found.of) == (word, 3, "rounds")
    ratio = math.exp(sum(math.log(a / b) for a, b in zip(uot, loss["ince"], strict=True)) / 3) - 1
    assert f"takes {100 * ratio:+.1f} [".replace("-", "−") in found.result


@pytest.mark.parametrize(
    ("slower", "word"), [((10.1, 10.2, 10.3), "held"), ((14.0, 14.1, 14.3), "failed"), ((9.0, 12.0, 10.2), "not shown")]
)
def test_similar_means_within_a_tenth(slower, word):
    values = [
        Record("fig-time", "small", "seconds-per-epoch", x, {"method": m}, s)
        for m, by in {"ince": (10.0, 10.1, 10.2), "gca-ince": slower}.items()
        for s, x in enumerate(by)
    ]
    assert verdict("run time GCA-INCE, INCE", results("fig-time", values)).word == word


def flops(**counts):
    return results(
        "flops",
        [
            Record("flops", "small", "mflops", x, {"method": m.replace("_", "-"), "part": "total"})
            for m, x in counts.items()
        ],
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
        return verdict("row and column sums", results("fig-plans", [plan("ince", ince), plan("gca-ince", gca)])).word

    assert judged(rows_only, both) == "true by construction"
    assert judged(rows_only, rows_only) == "failed"
    assert judged(both, both) == "failed"


@pytest.mark.parametrize(("rows", "iterations", "word"), [(1.005, 5, "held"), (1.1, 5, "failed"), (1.0, 10, None)])
def test_plans_of_fewer_than_ten_iterations_converge_if_their_row_sums_are_equal(rows, iterations, word):
    record = plan("gca-ince", [[0.5 * rows, 0.5 * rows], [0.5 / rows, 0.5 / rows]])
    record = replace(record, about=record.about | {"iterations": iterations, "eps": 0.2})
    found = verdict("fewer than ten", results("fig-plans", [record]))
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
    found = verdict("contrast of GCA-UOT", results("fig-plans", values))
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
    assert verdict("ε smooths", results("fig-epsilon", values)).word == word


@pytest.mark.parametrize(("gap", "word"), [(0.05, "held"), (-0.05, "failed"), (0.0, "not shown")])
def test_the_line_of_ince_is_passed_in_most_settings_or_not(gap, word):
    def point(value, seed, **labels):
        return Record("fig-q-lambda", "small", "linear-fast", value, labels, seed)

    values = [point(x, s, method="ince") for s, x in enumerate(NEAR)]
    values += [
        point(x + gap + 0.001 * (-1) ** s, s, method="gca-rince", q=q, lam=0.01)
        for q in (0.1, 0.6, 1.0)
        for s, x in enumerate(NEAR)
    ]
    found = verdict("q and λ", results("fig-q-lambda", values))
    assert found.word == word
    assert f"; from {100 * gap + 0.03:+.2f}".replace("-", "−") in found.result


# --- the paper against itself ----------------------------------------------------------------------------------


def test_the_papers_sentences_are_held_against_its_own_tables():
    found = {c.label: c.judged(Results("small", {})) for c in printed.CLAIMS}
    assert found["7 of 8"].word == "held"
    assert found["SVHN"].word == "failed"
    assert found["rows Δ"].result == "GCA-RINCE, CIFAR-100 (Ex): printed −0.47, the rows give −0.41"
    assert "14 of 16 are gains; 4 have" in found["spread of Δ"].result
    assert "SimCLR, CIFAR-10 92.07 ± 0.90, appendix 92.16 ± 0.16" in found["standard"].result


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
        every = [
            r
            for setting in ("standard", *EXTREME)
            for r in table(column=setting, **{m.replace("-", "_"): v for m, v in values.items()})
        ]
        return results("table1", every)

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
        return in_family("GCA-RINCE, mismatched pairs", results("fig-noise", values))

    steady = found(**{"gca-rince": (0.38, 0.39, 0.401)})
    assert (steady.word, steady.verdict) == ("held", "held")
    shaky = found(**{"gca-rince": (0.33, 0.38, 0.35)})
    assert (shaky.first, shaky.word, shaky.verdict) == ("not shown", "held", "held, exploratory")


def test_what_was_mended_after_a_look_stays_exploratory():
    values = ptgt("domain", (0.7, 0.71, 0.72), (0.9, 0.91, 0.921))
    judged = in_family("domain accuracy", results("fig-ptgt", values))
    assert (judged.word, judged.verdict) == ("held", "held, exploratory")
    assert judged.as_dict()["exploratory"]


def test_the_intervals_of_a_family_hold_together():
    values = [
        Record("fig-align-uniform", "small", "alignment", x, {"method": m, "setting": "standard", "on": on}, seed)
        for m, by in {"ince": (0.30, 0.31, 0.32), "gca-ince": (0.25, 0.26, 0.271)}.items()
        for on in ("clean", "corrupted")
        for seed, x in enumerate(by)
    ]
    found = results("fig-align-uniform", values)
    judged = in_family("alignment GCA-INCE, clean", found)
    assert judged.level == simultaneous(2) == pytest.approx(0.975)  # Bonferroni over the two that were tested
    gaps = [0.25 - 0.30, 0.26 - 0.31, 0.271 - 0.32]
    assert judged.as_dict()["simultaneous"]["ends"] == pytest.approx(Estimate.of(gaps).interval(0.975))
    assert in_family("uniformity GCA-INCE, clean", found).as_dict()["simultaneous"] is None
    text = verdict("alignment GCA-INCE, clean", replace(found, level=0.975)).result  # as it can be printed
    low, high = Estimate.of(gaps).interval(0.975)
    assert text.startswith(f"{sum(gaps) / 3:+.3f} [{low:+.3f}, {high:+.3f}]".replace("-", "−"))


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
    assert "`gcalign verify` checks them" in pages[0]
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
    [(["{}/none"], "is not a results folder; `gcalign reproduce"), (["{}", "--scale", "smal"], "did you mean 'small'")],
)
def test_a_wrong_folder_or_scale_is_one_line_that_helps(folder, capsys, words, says):
    assert cli.main(["claims", *(word.format(folder) for word in words)]) == 2
    assert says in capsys.readouterr().err
