"""The table of the experiments on pairs, from result files alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.sheets import Sheet, percent
from gcalign.lab.experiments.statistics import Estimate, Seeded, by_seed, holm, minus, spread

NAMES = {"clip": "INCE (CLIP)", "gca-ince": "GCA-INCE", "gca-uot": "GCA-UOT"}
MEASURES = ("R@1", "R@5", "R@10", "zeroshot R@1", "zeroshot R@10")
PRIMARY = "R@10"


def emoji_pairs(records: Sequence[Record], folder: Path) -> list[Path]:
    """Retrieval of each method with clean and mismatched pairs, identity and graded targets, and paired differences."""
    if not records:
        raise ValueError("emoji-pairs has no records to show; `gcalign reproduce emoji-pairs` makes some")
    noises = sorted({float(r.labels["noise"]) for r in records})
    targets = [t for t in ("identity", "graded") if any(r.labels["target"] == t for r in records)]
    methods = [m for m in NAMES if any(r.labels["method"] == m for r in records)]
    rows = []
    ps = _adjusted(records, noises, methods)
    for noise in noises:
        for target in targets:
            for method in methods:
                of = {"method": method, "noise": noise, "target": target}
                cells = [f"{noise:.0%}", target, NAMES[method]]
                for measure in MEASURES:
                    values = by_seed(records, measure, **of)
                    cells.append(percent(spread(values.values()), 1) if values else "–")
                mine = by_seed(records, PRIMARY, **of)
                clip = by_seed(records, PRIMARY, method="clip", noise=noise, target=target)
                plain = by_seed(records, PRIMARY, method=method, noise=noise, target="identity")
                p = ps.get((noise, method)) if target == "identity" else None
                cells.append(_gap(mine, clip, p, len(ps)) if method != "clip" else "–")
                cells.append(_gap(mine, plain) if target == "graded" else "–")
                rows.append(cells)
    header = ["mismatched", "target", "method", *MEASURES, f"{PRIMARY}: − INCE", f"{PRIMARY}: graded − identity"]
    seeds = sorted({r.seed for r in records if r.seed is not None})
    about = next((r.about for r in records if r.measure == PRIMARY), {})
    notes = [
        "Retrieval on held-out pairs in %, mean of both ways ± standard deviation over seeds "
        f"{', '.join(map(str, seeds))}; {about.get('n_test')} test pairs whose groups training never saw. "
        "Zero-shot: image to name, among all "
        f"{next((r.about.get('candidates') for r in records if r.measure == 'zeroshot R@1'), '')} names of the table. "
        "Differences are paired by seed, with 95 % intervals (Student's t); ▲ and ▼ mark those that exclude zero. p is "
        f"Holm's, over the {len(ps)} comparisons with INCE at the identity target, whose intervals are simultaneous "
        "(Bonferroni). The other intervals are of each difference alone.",
        *_settings(records, methods),
    ]
    return Sheet("emoji-pairs", header, rows, notes).write(folder)


def _gap(a: Seeded, b: Seeded, p: float | None = None, family: int = 1) -> str:
    """With p, as one of a family of comparisons."""
    gaps = minus(a, b).values()
    if not gaps:
        return "–"
    found = Estimate.of(gaps).among(1 if p is None else family).interval()
    if found.n < 2:
        return f"{100 * found.mean:+.1f}"
    mark = " ▲" if found.better else " ▼" if found.worse else ""
    said = "" if p is None else f", p = {p:.2g}"
    return f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]{mark}{said}"


def _adjusted(
    records: Sequence[Record], noises: Sequence[float], methods: Sequence[str]
) -> dict[tuple[float, str], float]:
    """Holm's p of each method against INCE, at the identity target."""
    ps = {}
    for noise in noises:
        clip = by_seed(records, PRIMARY, method="clip", noise=noise, target="identity")
        for method in methods:
            gaps = minus(by_seed(records, PRIMARY, method=method, noise=noise, target="identity"), clip)
            if method != "clip" and len(gaps) > 1:
                ps[noise, method] = Estimate.of(gaps.values()).p()
    return dict(zip(ps, holm([*ps.values()]), strict=True))


def _settings(records: Sequence[Record], methods: Sequence[str]) -> list[str]:
    said = []
    for method in methods:
        words = next(r.words for r in records if r.labels["method"] == method)
        own = [w for w in words if w.startswith("method.")]
        eps = [r.about["eps"] for r in records if r.labels["method"] == method and "eps" in r.about]
        said.append(f"{NAMES[method]}: {' '.join(own)}, ε at the end {min(eps):.3f} to {max(eps):.3f}")
    return [f"Settings that the search chose: {'; '.join(said)}."]
