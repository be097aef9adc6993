"""The paper's empirical claims, then the questions of our plan, then the paper against its own tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gcalign.lab import paper
from gcalign.lab.experiments import columns, judges, printed
from gcalign.lab.experiments.columns import NEW_COMBINE, Column
from gcalign.lab.experiments.jobs import COMPARED
from gcalign.lab.experiments.planned_claims import PLANNED, mismatched
from gcalign.lab.experiments.sheets import points, signed
from gcalign.lab.experiments.verdicts import EmpiricalClaim, Results, Verdict
from gcalign.lab.experiments.verdicts import signed as by_sign
from gcalign.lab.paper import DELTAS, MFLOPS, NAMES, PAIRS

ACCURACY, VIEWS, QUALITY, TARGET = "Accuracy", "Noisy views", "Alignment and uniformity", "Target plans"
CORRUPTED = "cifar10c"  # the measure whose protocol was mended after a first look
PLANS, ITERATIONS, COST, OWN = "Plans", "Iterations and hyper-parameters", "Cost", "The paper against its own tables"
Judge = Callable[[Results], Verdict]


def _more_flops(method: str) -> str:
    """MFLOP of a loss against those of INCE, as printed."""
    more = signed(100 * (MFLOPS[method] / MFLOPS["ince"] - 1), 1)
    return f"{MFLOPS[method]} against {MFLOPS['ince']} MFLOP: {more} %"


def _deltas() -> list[EmpiricalClaim]:
    """Each Δ of tab:new_combine: the sign it has in the paper."""
    found = []
    for a, b in PAIRS:
        for k, (column, delta) in enumerate(zip(NEW_COMBINE, DELTAS[a], strict=True)):
            label, sign = f"Δ {NAMES[a]}, {column.name}", 1 if delta > 0 else -1
            says = f"{NAMES[a]} − {NAMES[b]} on {column.name} is {'positive' if delta > 0 else 'negative'}"
            told, judge = f"{signed(delta)} points", partial(judges.gain, k=k, a=a, b=b, sign=sign)
            mended = column.measure == CORRUPTED
            found.append(EmpiricalClaim(ACCURACY, label, "tab:new_combine", says, told, judge, mended))
    return found


def _larger_gains() -> EmpiricalClaim:
    standard = [k for k, c in enumerate(NEW_COMBINE) if c.group == "Standard"]
    rince, ince = (signed(sum(DELTAS[m][k] for k in standard) / len(standard)) for m in ("gca-rince", "gca-ince"))
    says = "Bigger gains are observed when adding GCA to RINCE than to INCE"
    told, where = f"mean Δ of the four columns {rince} against {ince}", "Results on Standard Augmentations"
    return EmpiricalClaim(ACCURACY, "larger gains for RINCE", where, says, told, judges.larger_gains)


def _best(label: str, where: str, says: str, of: Sequence[Column], *experiments: str) -> EmpiricalClaim:
    told = f"highest mean in {sum('gca-uot' in c.best() for c in of)} of {len(of)} columns of its table"

    def judge(results: Results) -> Verdict:
        return judges.best(results, of, *experiments)

    mended = all(c.measure == CORRUPTED for c in of)
    return EmpiricalClaim(ACCURACY, f"GCA-UOT best{label}", where, says, told, judge, mended)


def _extreme() -> list[EmpiricalClaim]:
    found = []
    for k, column in enumerate(NEW_COMBINE):
        if column.group == "Noisy":
            says = f"GCA-UOT excels with extreme augmentations and corrupted data: above INCE on {column.name}"
            told = f"{points(column.delta('gca-uot', 'ince'), 1)} points from its table, unpaired"
            judge, mended = partial(judges.gain, k=k, a="gca-uot", b="ince"), column.measure == CORRUPTED
            found.append(EmpiricalClaim(VIEWS, f"GCA-UOT, {column.name}", "Introduction", says, told, judge, mended))
    return found


def _noise() -> list[EmpiricalClaim]:
    said = {
        "gca-uot": ("Introduction", "GCA-UOT enhances robustness against view noise"),
        "rince": ("Background", "RINCE provides robustness to noisy views"),
        "gca-rince": ("Introduction", "GCA reduces the effect of noise between views"),
    }
    found = []
    for m, (where, words) in said.items():
        says, told = f"{words}: {NAMES[m]} is above INCE where pairs are mismatched", "no figure (our experiment)"
        judge: Judge = partial(judges.under_noise, a=m, b="ince")
        if m in COMPARED:
            says, judge = f"{says}, linear probe of E1", partial(mismatched, measure=None, method=m)
        found.append(EmpiricalClaim(VIEWS, f"{NAMES[m]}, mismatched pairs", where, says, told, judge))
    return found


def _quality() -> list[EmpiricalClaim]:
    return [
        EmpiricalClaim(
            QUALITY,
            f"{measure} {NAMES[a]}, {on}",
            "app:representation",
            f"{NAMES[a]} improves {measure} over {NAMES[b]} on {images} (lower is better)",
            "“in general” (a bar chart, no numbers)",
            partial(judges.quality, measure=measure, on=on, a=a, b=b),
        )
        for a, b in PAIRS
        for measure in ("alignment", "uniformity")
        for on, images in (("clean", "CIFAR-10"), ("corrupted", "CIFAR-10C"))
    ]


def _same_eps() -> list[EmpiricalClaim]:
    """Our control: the search may give a method and its GCA version different ε."""
    return [
        EmpiricalClaim(
            QUALITY if measure else ACCURACY,
            f"{measure or 'accuracy'} {NAMES[a]}, same ε",
            "app:representation" if measure else "Results on Standard Augmentations",
            f"{NAMES[a]} improves {measure or 'accuracy'} over {NAMES[b]} on CIFAR-10 with the same ε for both",
            "no figure (our control)",
            partial(judges.same_eps, measure=measure, a=a, b=b),
        )
        for measure in (None, "alignment", "uniformity")
        for a, b in PAIRS
    ]


def _cost() -> list[EmpiricalClaim]:
    time, text, none = "app:time", "Computational Complexity", "no figure in the text"
    less = MFLOPS["gca-uot"] / MFLOPS["ince"] - 1
    found = []
    for a, b in PAIRS:
        says = f"{NAMES[a]} has a “very similar run time” as {NAMES[b]} (held: within ± 10 %)"
        judge: Judge = partial(judges.similar_seconds, a=a, b=b)
        found.append(EmpiricalClaim(COST, f"run time {NAMES[a]}, {NAMES[b]}", time, says, none, judge))
    for a, b, how in (
        ("rince", "ince", "has a lower run time"),
        ("gca-rince", "gca-ince", "has a lower run time"),
        ("gca-uot", "ince", "is faster"),
        ("gca-uot", "gca-ince", "is faster"),
    ):
        # by whole epochs none could be told from its rival; the loss alone was looked at after that
        says, judge = f"{NAMES[a]} {how} than {NAMES[b]}", partial(judges.fewer_seconds, a=a, b=b)
        found.append(EmpiricalClaim(COST, f"run time {NAMES[a]}, {NAMES[b]}", time, says, none, judge, True))
    says = "GCA-INCE has 5 % more FLOPs than INCE (held: in the published code, which was counted)"
    judge = partial(judges.flops_of_the_published_code, method="gca-ince", most=0.055)  # 5 % to the nearest one
    found.append(EmpiricalClaim(COST, "FLOPs GCA-INCE", text, says, _more_flops("gca-ince"), judge))
    told = f"{_more_flops('gca-uot')}; its INCE multiplies by dense diagonal matrices (`flops published` below)"
    says, judge = "GCA-UOT saves 30 % of INCE's FLOPs", partial(judges.flops, method="gca-uot", most=less)
    return [*found, EmpiricalClaim(COST, "FLOPs GCA-UOT", text, says, told, judge)]


def _own() -> list[EmpiricalClaim]:
    table, text, caption = "tab:new_combine", "Results on Standard Augmentations", "caption of tab:new_combine"
    told: list[tuple[str, str, str, str, printed.Rule]] = [
        ("7 of 8", table, "GCA-UOT has the bold number in all but one column", "7 of 8", printed.all_but_one),
        ("SVHN", text, "+GCA gains “in almost all settings except for SVHN”", "no figure", printed.except_svhn),
        ("larger", text, "“bigger gains observed when adding GCA to RINCE”", "no figure", printed.larger_for_rince),
        ("rows Δ", table, "Δ is the GCA row less the row above it", "16 differences", printed.rows_delta),
        ("spread of Δ", text, "+GCA versions show “performance gains”", "16 differences", printed.deltas_exclude_zero),
        ("underlined", caption, "“the second-place model is underlined”", "8 columns", printed.underlined),
        ("standard", "app:corruptset", f"Standard rows are the columns of {table}", "27 figures", printed.standard),
    ]
    return [
        EmpiricalClaim(OWN, label, where, says, figures, partial(_by_the_paper, rule=rule))
        for label, where, says, figures, rule in told
    ]


def _by_the_paper(results: Results, rule: printed.Rule) -> Verdict:
    return rule(printed.PAPER)


LEDGER: tuple[EmpiricalClaim, ...] = (
    *_deltas(),
    _larger_gains(),
    _best("", "tab:new_combine", "GCA-UOT is best in 7 of 8 columns", NEW_COMBINE, "table1"),
    *(
        _best(f", {name}", f"tab:{data}", f"… under {where} on {name}", of, f"tableA-{data}", "table1")
        for name, data, where, of in (
            ("CIFAR-10", "cifar10", "every condition", columns.CIFAR10),
            ("CIFAR-100", "cifar100", "every condition", columns.CIFAR100),
            ("CIFAR-10C", "cifar10c", "all but large erase", columns.CIFAR10C),
        )
    ),
    *_extreme(),
    *_noise(),
    *_quality(),
    *_same_eps(),
    EmpiricalClaim(
        TARGET,
        "domain accuracy",
        "sec:domaingen, fig:Ptgt",
        "More weight on the domain raises the accuracy of domain classification",
        "{} % → {} %".format(*paper.DOMAIN_ACCURACY),
        partial(judges.domains, measure="domain", judged=by_sign),
        exploratory=True,
    ),
    EmpiricalClaim(
        TARGET,
        "class accuracy",
        "sec:domaingen, fig:Ptgt",
        "… “without diminishing classification performance”",
        "no figure in the text",
        partial(judges.domains, measure="across-domains", judged=judges.from_scratch),
    ),
    EmpiricalClaim(
        PLANS,
        "row and column sums",
        "app:vistransplan",
        "INCE's plan has only its rows normalised, GCA-INCE's and GCA-RINCE's rows and columns",
        "a picture",
        judges.both_marginals,
    ),
    EmpiricalClaim(
        PLANS,
        "contrast of GCA-UOT",
        "app:vistransplan",
        "GCA-UOT's plan shows greater differences between positive and negative pairs",
        "a picture",
        judges.clearer,
    ),
    EmpiricalClaim(
        PLANS,
        "ε smooths",
        "sec:otppm, fig:epsilon_study",
        "ε controls the amount of smoothing: the plan's entropy rises with ε",
        "a picture",
        judges.smoother,
    ),
    EmpiricalClaim(
        ITERATIONS,
        "fewer than ten",
        "app:time",
        "Plans converge in fewer than 10 iterations (held: at least half of them have row sums within 1 %)",
        "“in many cases can converge very quickly in fewer than 10 iterations”",
        judges.converged,
        exploratory=True,
    ),
    EmpiricalClaim(
        ITERATIONS,
        "q and λ",
        "fig:ablation_study",
        "GCA-RINCE lies above the INCE line over q and λ with large erase (held: in most settings)",
        "a picture; 89.21 against 88.40 % in tab:cifar10",
        judges.above_the_line,
    ),
    *_cost(),
    *PLANNED,
    *_own(),
)
