"""Table 1 (tab:new_combine): nine methods on four data sets, with standard and with noisy views.

Test accuracy of a linear layer on frozen features, mean over seeds; the rows Δ are paired differences between a method
and its GCA version. The paper claims gains of GCA in almost all columns, larger ones for RINCE, and that GCA-UOT is
best in seven of eight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from gcalign.lab.experiments.engine.claims import ABOVE, BELOW, Bounds, EmpiricalClaim, Judgement, Results, compared
from gcalign.lab.experiments.engine.experiment import Chosen, Experiment, Job, Scale, grid, seed_by_seed, views
from gcalign.lab.experiments.engine.statistics import mean_of, points, signed
from gcalign.lab.experiments.paper import ACCURACY, VIEWS
from gcalign.lab.experiments.paper.columns import CORRUPTED, NEW_COMBINE, claims_best, comparison, standing_in
from gcalign.lab.paper import DELTAS, METHODS, NAMES, PAIRS

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: Mapping[str, tuple[str, ...]] = {"paper": ("cifar100", "svhn", "imagenet100")}  # beside CIFAR-10, by scale


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """Accuracy of nine methods in standard and noisy settings, with paired differences."""
    every = grid(scale, chosen, (scale.probe, "knn", "cifar10c"), METHODS, views())
    for name in COLUMNS.get(scale.name, ()):
        # the paper has noisy views of CIFAR only
        own = views() if name.startswith("cifar") else views(("standard",))
        every += grid(scale, chosen, (scale.probe, "knn"), METHODS, own, data=scale.others[name])
    return seed_by_seed(scale.seeds, every)


# --- claims --------------------------------------------------------------------------------------------------------


def gain(results: Results, k: int, weights: Mapping[str, float], rule: Bounds = ABOVE) -> Judgement:
    """A contrast of the methods in column k."""
    records = results.of("table1")
    return compared(results, "table1", standing_in(NEW_COMBINE, records)[k].ours(records), weights, rule)


def larger_gains(results: Results) -> Judgement:
    """Whether GCA adds more to RINCE than to INCE, over the standard columns measured."""
    records = results.of("table1")
    columns = [c for c in standing_in(NEW_COMBINE, records) if c.group == "Standard"]
    tables: dict[str, pd.DataFrame] = {c.name: table for c in columns if len(table := c.ours(records))}
    weights = {"gca-rince": 1, "rince": -1, "gca-ince": -1, "ince": 1}
    if not tables:
        raise results.missing("table1")
    text = f"{{gap}} points more for RINCE{{other}}, {', '.join(tables)}"
    return compared(results, "table1", mean_of([*tables.values()]), weights, text=text)


def _deltas() -> list[EmpiricalClaim]:
    """Each Δ of the table: the sign it has in the paper."""
    claims = []
    for a, b in PAIRS:
        for k, (column, delta) in enumerate(zip(NEW_COMBINE, DELTAS[a], strict=True)):
            sign, rule = ("positive", ABOVE) if delta > 0 else ("negative", BELOW)
            says = f"{NAMES[a]} − {NAMES[b]} on {column.name} is {sign}"
            judge = partial(gain, k=k, weights={a: 1, b: -1}, rule=rule)
            label, printed, mended = (
                f"Δ {NAMES[a]}, {column.name}",
                f"{signed(delta)} points",
                column.measure == CORRUPTED,
            )
            claims.append(EmpiricalClaim(ACCURACY, label, says, judge, "tab:new_combine", printed, mended))
    return claims


def _larger_gains() -> EmpiricalClaim:
    standard = [k for k, c in enumerate(NEW_COMBINE) if c.group == "Standard"]
    rince, ince = (signed(sum(DELTAS[m][k] for k in standard) / len(standard)) for m in ("gca-rince", "gca-ince"))
    return EmpiricalClaim(
        ACCURACY,
        "larger gains for RINCE",
        "Bigger gains are observed when adding GCA to RINCE than to INCE",
        larger_gains,
        "Results on Standard Augmentations",
        f"mean Δ of the four columns {rince} against {ince}",
    )


def _extreme() -> list[EmpiricalClaim]:
    return [
        EmpiricalClaim(
            VIEWS,
            f"GCA-UOT, {column.name}",
            f"GCA-UOT excels with extreme or corrupted data: above INCE on {column.name}",
            partial(gain, k=k, weights={"gca-uot": 1, "ince": -1}),
            "Introduction",
            f"{points(column.delta('gca-uot', 'ince'), unit=1)} points",
            column.measure == CORRUPTED,
        )
        for k, column in enumerate(NEW_COMBINE)
        if column.group == "Noisy"
    ]


def claims() -> Iterable[EmpiricalClaim]:
    return [
        *_deltas(),
        _larger_gains(),
        claims_best("", "tab:new_combine", "GCA-UOT is best in 7 of 8 columns", NEW_COMBINE, "table1"),
        *_extreme(),
    ]


EXPERIMENTS = (
    Experiment(
        "table1",
        comparison("table1", "tab:new_combine", NEW_COMBINE),
        jobs,
        searched=METHODS,
        claims=claims,
        place=1,
    ),
)
