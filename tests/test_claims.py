"""Claims are judged by intervals: held, failed, not shown or not measured, and never more than the records say."""

from __future__ import annotations

import json
import math

import pytest

from gcalign import cli
from gcalign.lab.experiments import claims, paper, records
from gcalign.lab.experiments.judges import Results, Verdict
from gcalign.lab.experiments.ledger import LEDGER, OWN
from gcalign.lab.experiments.records import Record


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
    return Results("small", {experiment: values})


def verdict(label: str, found: Results) -> Verdict:
    (claim,) = [c for c in LEDGER if c.label == label]
    return claim.verdict(found)


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
        for s in paper.EXTREME
        for seed, x in enumerate(by)
    ]
    assert verdict("Δ GCA-INCE, CIFAR-10C (Ex)", results("table1", down)).word == "held"


def test_without_result_files_every_claim_names_the_command_that_measures_it():
    for claim in LEDGER:
        found = claim.verdict(Results("small", {}))
        if claim.section != OWN:
            assert found.word == "not measured", claim.label
            assert found.ours.startswith("`gcalign reproduce ")
            assert found.ours.endswith(" scale=small`")


def test_a_column_this_scale_has_no_runs_of_is_not_measured():
    found = verdict("Δ GCA-INCE, SVHN", results("table1", table(ince=NEAR, gca_ince=NEAR)))
    assert found == Verdict("not measured", "`gcalign reproduce table1 scale=paper`")


def test_labels_are_unique_and_each_delta_is_there():
    labels = [claim.label for claim in LEDGER]
    assert len(set(labels)) == len(labels)
    assert sum(label.startswith("Δ ") for label in labels) == 16


# --- composite claims ------------------------------------------------------------------------------------------


def test_best_needs_to_beat_every_other_method():
    clear = table(ince=NEAR, gca_uot=(0.6, 0.611, 0.62))
    assert verdict("GCA-UOT best", results("table1", clear)).word == "held"
    unclear = table(ince=NEAR, rince=(0.59, 0.61, 0.60), gca_uot=(0.6, 0.611, 0.62))
    found = verdict("GCA-UOT best", results("table1", unclear))
    assert found.word == "not shown"
    assert "highest mean in 1 of 1 columns (CIFAR-10); better than every other method in 0" in found.ours


def test_best_fails_only_where_a_loss_stands_among_all_comparisons():
    base = {seed: 0.5 + 0.01 * seed for seed in range(5)}
    uot = tuple(base.values())

    def against(gap, wobble):
        rival = tuple(x + gap + wobble * (-1) ** s for s, x in base.items())
        return verdict("GCA-UOT best", results("table1", table(rince=rival, gca_uot=uot)))

    assert against(0.05, 0.001).word == "failed"
    assert "beaten" in against(0.05, 0.001).ours
    assert against(0.05, 0.03).word == "not shown"  # 95 % alone would be enough for one comparison, not for eight


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
    assert "mean of 2 settings" in verdict(label, measured((0.25, 0.26, 0.271))).ours
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
    assert found.ours.startswith("+0.030 [" if lower else "+3.03 [")
    assert found.ours.endswith(", mean of 2 values of ε")
    assert verdict(f"{label} GCA-INCE, same ε", measured(-0.05, -0.01)).word == down
    assert verdict(f"{label} GCA-RINCE, same ε", measured(0.05, 0.01)).word == "not measured"


def ptgt(measure, none, most):
    return [
        Record("fig-ptgt", "small", measure, x, {"method": "gca-ince", "alpha": a, "beta": b}, s)
        for (a, b), by in {
            (0.0, 0.25): (0.1, 0.9, 0.5),
            (0.0, 0.0): none,
            (0.5, 0.0): (0.2, 0.3, 0.4),
            (1.0, 0.0): most,
        }.items()
        for s, x in enumerate(by)
    ]


def test_domain_accuracy_with_the_most_weight_is_compared_with_none():
    found = verdict("domain accuracy", results("fig-ptgt", ptgt("domain", (0.7, 0.71, 0.72), (0.9, 0.91, 0.921))))
    assert found.word == "held"
    assert "71.0 % with pairs alone, 91.0 % at α = 1: +20.0" in found.ours
    assert found.ours.endswith("50.0 % at β = 0.25")


@pytest.mark.parametrize(
    ("most", "word"),
    [((0.401, 0.41, 0.42), "held"), ((0.35, 0.36, 0.371), "failed"), ((0.40, 0.38, 0.43), "not shown")],
)
def test_no_loss_is_shown_by_an_interval_above_a_point_not_by_its_absence(most, word):
    found = verdict("class accuracy", results("fig-ptgt", ptgt("across-domains", (0.40, 0.41, 0.42), most)))
    assert found.word == word


def test_noise_is_judged_at_its_largest_share():
    values = [
        Record("fig-noise", "small", "linear-fast", x, {"method": m, "noise": noise, "setting": "standard"}, s)
        for noise, by in {0.0: (0.5, 0.3), 0.6: (0.3, 0.4)}.items()
        for m, base in zip(("ince", "gca-uot"), by, strict=True)
        for s, x in enumerate((base, base + 0.01, base + 0.021))
    ]
    found = verdict("GCA-UOT, mismatched pairs", results("fig-noise", values))
    assert found.word == "held"
    assert "60 % of the pairs" in found.ours


@pytest.mark.parametrize(("uot", "word"), [((8.0, 8.1, 8.2), "held"), ((13.0, 13.1, 13.3), "failed")])
def test_run_times_are_compared_as_ratios(uot, word):
    values = [
        Record("fig-time", "small", "seconds-per-epoch", x, {"method": m}, s)
        for m, by in {"ince": (10.0, 10.1, 10.2), "gca-uot": uot}.items()
        for s, x in enumerate(by)
    ]
    values.append(Record("fig-time", "small", "seconds-per-epoch", 1.0, {"method": "gca-uot", "iterations": 5}, 0))
    found = verdict("run time GCA-UOT, INCE", results("fig-time", values))
    assert (found.word, found.n, found.of) == (word, 3, "rounds")


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


def test_few_iterations_are_compared_with_the_most():
    labels = [{"method": "gca-ince", "varied": "iterations", "iterations": n} for n in (1, 5, 20)]
    values = [
        Record("fig-sensitivity", "small", "linear-fast", 0.5 + 0.01 * s + 0.05 * (known["iterations"] > 1), known, s)
        for known in labels
        for s in range(3)
    ]
    values.append(Record("fig-sensitivity", "small", "linear-fast", 0.1, {"varied": "eps", "eps": 0.5}, 0))
    found = verdict("fewer than ten", results("fig-sensitivity", values))
    assert found.word == "held"
    assert "with 5 iterations less that with 20" in found.ours


@pytest.mark.parametrize(("gca", "uot", "words"), [(105.0, 70.0, "held held"), (130.0, 90.0, "failed failed")])
def test_counted_operations_need_no_seeds(gca, uot, words):
    counts = {"ince": 100.0, "gca-ince": gca, "gca-uot": uot}
    values = [Record("flops", "small", "mflops", x, {"method": m, "part": "total"}) for m, x in counts.items()]
    found = [verdict(f"FLOPs {name}", results("flops", values)) for name in ("GCA-INCE", "GCA-UOT")]
    assert " ".join(v.word for v in found) == words
    assert found[0].n is None


def plan(method, matrix):
    log_plan = [[round(math.log(x), 3) for x in row] for row in matrix]
    return Record("fig-plans", "small", "plan", None, {"method": method}, 0, {"log_plan": log_plan})


def test_plans_are_judged_by_their_sums_and_one_run_shows_no_contrast():
    values = [
        plan("ince", [[0.8, 0.2], [0.5, 0.5]]),
        plan("gca-ince", [[0.7, 0.3], [0.3, 0.7]]),
        plan("gca-uot", [[0.8, 0.1], [0.1, 0.8]]),
    ]
    assert verdict("row and column sums", results("fig-plans", values)).word == "held"
    assert (
        verdict(
            "row and column sums", results("fig-plans", [*values[:1], plan("gca-ince", [[0.8, 0.2], [0.5, 0.5]])])
        ).word
        == "failed"
    )
    found = verdict("contrast of GCA-UOT", results("fig-plans", values))
    assert found.word == "not shown"
    assert "GCA-UOT 2.08" in found.ours


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
    assert f"; from {100 * gap + 0.03:+.2f}".replace("-", "−") in found.ours


# --- the paper against itself ----------------------------------------------------------------------------------


def test_the_papers_sentences_are_held_against_its_own_tables():
    found = {c.label: c.verdict(Results("small", {})) for c in LEDGER if c.section == OWN}
    assert found["7 of 8"].word == "held"
    assert found["SVHN"].word == "failed"
    assert found["rows Δ"].ours == "GCA-RINCE, CIFAR-100 (Ex): printed −0.47, the rows give −0.41"
    assert "14 of 16 are gains; 4 have" in found["spread of Δ"].ours
    assert "SimCLR, CIFAR-10: 92.07 ± 0.90, in the appendix 92.16 ± 0.16" in found["standard"].ours


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
    assert "+2.03 [+1.89, +2.18] points | small, 3 seeds | **held** |" in pages[0]
    ours = sum(c.section != OWN for c in LEDGER)
    assert f"**{ours} claims: 1 held, 0 failed, 0 not shown, {ours - 1} not measured;" in pages[0]
    assert "`gcalign verify` checks them" in pages[0]
    assert f"{ours} claims: 1 held" in capsys.readouterr().out


def test_json_holds_every_claim_and_nothing_else_is_printed(folder, capsys):
    assert cli.main(["claims", str(folder), "--json", "-"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [c["label"] for c in content["claims"]] == [c.label for c in LEDGER]
    assert content["claims"][0]["verdict"] == "held"
    assert content["claims"][0]["basis"] == "small, 3 seeds"
    assert content["theorems"] == []


def test_theorems_are_added_on_request(folder, monkeypatch):
    from gcalign.lab import verify

    monkeypatch.setattr(claims, "_verified", lambda: verify.run(["pacs-classes"]))
    assert cli.main(["claims", str(folder), "--theorems", "--write", str(folder / "c.md")]) == 0
    page = (folder / "c.md").read_text()
    assert "| `pacs-classes` | PACS has five classes |" in page
    assert page.rstrip().endswith("**fails** |")


@pytest.mark.parametrize(
    ("words", "says"),
    [(["{}/none"], "is no folder of results; `gcalign reproduce"), (["{}", "--scale", "smal"], "did you mean 'small'")],
)
def test_a_wrong_folder_or_scale_is_one_line_that_helps(folder, capsys, words, says):
    assert cli.main(["claims", *(word.format(folder) for word in words)]) == 2
    assert says in capsys.readouterr().err
