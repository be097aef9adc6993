"""The runs of each experiment; their first lines are what `gcalign reproduce --help` says. Light to import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gcalign.lab.experiments.columns import EXTREME
from gcalign.lab.experiments.registry import Chosen, Job, Scale
from gcalign.lab.experiments.scales import joined
from gcalign.lab.paper import METHODS

Variants = Iterable[tuple[Mapping[str, Any], tuple[str, ...]]]  # labels of runs that are compared, and their words
VIEWS: Mapping[str, tuple[str, ...]] = {"standard": (), **{view: (f"views={view}",) for view in EXTREME}}
EXTENDED = ("ince", "gca-ince", "rince", "gca-rince")  # each method before its GCA version
SHOWN = ("ince", "gca-ince", "gca-rince", "gca-uot")  # whose plans fig:diagnolline shows
COMPARED = ("ince", "rince", "gca-ince", "gca-uot", "iot")  # where pairs are mismatched
VIEWED = (*EXTENDED, "gca-uot")  # with extreme views
SCOUTED = ("ince", "gca-ince", "gca-uot")
LABELLED = ("ince", "gca-uot")
SAME = "ε of GCA-UOT"
PAIRED = ("clip", "gca-ince", "gca-uot")  # between two modalities, where INCE both ways is CLIP
ITERATIONS = (1, 2, 3, 5, 10, 20)
EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0)
SAME_EPS = (0.1, 0.2, 0.5)  # of fig-same-eps
RELAXATIONS = (0.05, 0.2, 0.5, 1, 2)
# fig:ablation_study: q = 0.98 with λ from 0 to 1, and λ = 0.01 with q from (nearly) 0 to 1
Q_LAMBDA = (
    *((0.98, lam) for lam in (0.0, 0.01, 0.1, 0.5, 1.0)),
    *((q, 0.01) for q in (0.1, 0.3, 0.6, 1.0)),
)
# fig:Ptgt varies α − β: across domains (α = 0), pairs alone, within a domain (β = 0)
ALPHA_BETA = ((0.0, 0.25), (0.0, 0.0), (0.05, 0.0), (0.25, 0.0), (0.5, 0.0), (1.0, 0.0))
ALPHAS = (0.0, 0.003, 0.01, 0.03, 0.1, 1.0)  # of a batch of B, α gives a domain the mass α·B/4 against 1 for the pair
DOMAINS = ("domain", "across-domains")
LINES = tuple(f"{measure}-{which}" for which in ("untrained", "supervised") for measure in DOMAINS)
DOMAIN_EPS = 0.2  # appendix:dgsetting
GRADED = 0.1  # of the mass of a pair, for each near-duplicate of its name in the batch


def data_name(words: Sequence[str]) -> str:
    """The data set that words name."""
    return next(word.partition("=")[2] for word in words if word.startswith("data="))


def grid(
    scale: Scale,
    chosen: Chosen,
    measures: tuple[str, ...],
    methods: Iterable[str],
    variants: Variants = (({}, ()),),
    *,
    data: tuple[str, ...] = (),
    seeds: Sequence[int] = (),
) -> list[Job]:
    """Every method in every variant, on the scale's images unless other data is given.

    Seed by seed, so that a sweep cut short has whole grids.
    """
    data = data or scale.images
    shared = {"data": data_name(data), "setting": "standard"}
    return [
        Job({"method": method, **shared, **labels}, joined(*before, words, (f"seed={seed}",)), measures, seed)
        for seed in seeds or scale.seeds
        for labels, words in variants
        for method in methods
        for before in [((f"method={method}",), scale.train, data, chosen[method])]
    ]


def _views(names: Iterable[str] = VIEWS) -> Variants:
    return [({"setting": name}, VIEWS[name]) for name in names]


def _knobs(values: Sequence[Mapping[str, float]], setting: str = "standard", **labels: Any) -> Variants:
    """Settings of a method's options, which are labels too."""
    own = [tuple(f"method.{key}={value}" for key, value in by.items()) for by in values]
    shared = {"setting": setting, **labels}
    return [({**shared, **by}, (*VIEWS[setting], *words)) for by, words in zip(values, own, strict=True)]


def _mismatched(scale: Scale) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    return [({"noise": noise}, (f"pairs.noise={noise:g}",) if noise else ()) for noise in scale.noise]


def _blocks(scale: Scale, measures: tuple[str, ...], weights: Iterable[tuple[float, float]], **more: Any) -> list[Job]:
    """GCA-INCE with weight α on pairs within a domain and β on pairs across domains."""
    variants = [
        (
            {"alpha": alpha, "beta": beta, **more.get("labels", {})},
            ("target.name=blocks", f"target.alpha={alpha}", f"target.beta={beta}"),
        )
        for alpha, beta in weights
    ]
    chosen, data = {"gca-ince": (f"method.eps={DOMAIN_EPS}",)}, joined(scale.domains, more.get("words", ()))
    return grid(scale, chosen, measures, chosen, variants, data=data, seeds=scale.domain_seeds)


def _by_seed(seeds: Sequence[int], jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: seeds.index(job.seed))


def table1(scale: Scale, chosen: Chosen) -> list[Job]:
    """Accuracy of nine methods in standard and noisy settings, with paired differences."""
    jobs = grid(scale, chosen, (scale.probe, "knn", "cifar10c"), METHODS, _views())
    for name in scale.columns:
        # the paper has noisy views of CIFAR only
        views = _views() if name.startswith("cifar") else _views(("standard",))
        jobs += grid(scale, chosen, (scale.probe, "knn"), METHODS, views, data=scale.others[name])
    return _by_seed(scale.seeds, jobs)


def cifar10(scale: Scale, chosen: Chosen) -> list[Job]:
    """CIFAR-10: standard, erase, crop and brightness."""
    return grid(scale, chosen, (scale.probe, "knn"), METHODS, _views())


def cifar100(scale: Scale, chosen: Chosen) -> list[Job]:
    """CIFAR-100: standard, erase, crop and brightness."""
    return grid(scale, chosen, (scale.probe, "knn"), METHODS, _views(), data=scale.others.get("cifar100", ()))


def cifar10c(scale: Scale, chosen: Chosen) -> list[Job]:
    """CIFAR-10-C: standard, erase, crop and brightness."""
    return grid(scale, chosen, ("cifar10c",), METHODS, _views())


def align_uniform(scale: Scale, chosen: Chosen) -> list[Job]:
    """Alignment and uniformity of each method, on clean and corrupted images."""
    return grid(scale, chosen, ("align-uniform",), METHODS, _views())


def noise(scale: Scale, chosen: Chosen) -> list[Job]:
    """Accuracy against the share of mismatched pairs (ours)."""
    return grid(scale, chosen, (scale.probe, "knn"), METHODS, _mismatched(scale))


def plans(scale: Scale, chosen: Chosen) -> list[Job]:
    """−log P of four methods, sorted by class."""
    return grid(scale, chosen, ("plan",), SHOWN, seeds=scale.seeds[:1])


def epsilon(scale: Scale, chosen: Chosen) -> list[Job]:
    """Plans for ε from 0.01 to 1, INCE and GCA-UOT."""
    # one set of weights for every plan, as in the paper
    return grid(scale, chosen, ("plans-epsilon",), ("ince",), seeds=scale.seeds[:1])


def sensitivity(scale: Scale, chosen: Chosen) -> list[Job]:
    """Compactness and accuracy against iterations and ε."""
    varied = [
        *_knobs([{"iterations": n} for n in ITERATIONS], varied="iterations"),
        *_knobs([{"eps": eps} for eps in EPSILONS], varied="eps"),
    ]
    return grid(scale, chosen, (scale.probe, "compactness"), ("gca-ince",), varied)


def q_lambda(scale: Scale, chosen: Chosen) -> list[Job]:
    """Accuracy of GCA-RINCE against q and λ."""
    knobs = _knobs([{"q": q, "lam": lam} for q, lam in Q_LAMBDA], "C1")
    line = grid(scale, chosen, (scale.probe,), ("ince",), _views(("C1",)))
    return _by_seed(scale.seeds, [*line, *grid(scale, chosen, (scale.probe,), ("gca-rince",), knobs)])


def time(scale: Scale, chosen: Chosen) -> list[Job]:
    """Run time of each method and of iterations, and accuracy against iterations."""
    return grid(scale, chosen, (scale.probe,), ("gca-ince",), _knobs([{"iterations": n} for n in ITERATIONS]))


def ptgt(scale: Scale, chosen: Chosen) -> list[Job]:
    """Domain and class accuracy against α − β of the target plan."""
    return _blocks(scale, DOMAINS, ALPHA_BETA)


def same_eps(scale: Scale, chosen: Chosen) -> list[Job]:
    """What GCA adds where both have the same ε (ours)."""
    # the search may give a method and its GCA version different ε, which alone moves alignment and uniformity
    own: Chosen = dict.fromkeys(EXTENDED, ())
    knobs, measures = _knobs([{"eps": eps} for eps in SAME_EPS]), (scale.probe, "align-uniform")
    return _by_seed(scale.seeds, (job for m in EXTENDED for job in grid(scale, own, measures, (m,), knobs)))


# --- those that `docs/plan.md` plans ------------------------------------------------------------------------------

DETECTED = ("knn", "10-labels", "100-labels", "mismatch")  # beside the probe


def mismatch(scale: Scale, chosen: Chosen) -> list[Job]:
    """Does alignment protect against mismatched pairs? accuracy and detection, eight seeds (ours)."""
    return grid(scale, chosen, (scale.probe, *DETECTED), COMPARED, _mismatched(scale))


def mismatch_lambda(scale: Scale, chosen: Chosen) -> list[Job]:
    """The same for GCA-UOT against its relaxation λ (ours)."""
    most = max(scale.noise)
    relaxed = [({"noise": most, "relax": x}, (f"pairs.noise={most:g}", f"method.relax=[{x},{x}]")) for x in RELAXATIONS]
    return grid(scale, chosen, (scale.probe, *DETECTED), ("gca-uot",), relaxed, seeds=scale.seeds[:4])


def extreme(scale: Scale, chosen: Chosen) -> list[Job]:
    """Does GCA help with extreme views? C1, C2 and C3, paired differences, twelve seeds (ours)."""
    return grid(scale, chosen, (scale.probe, "knn"), VIEWED, _views(EXTREME))


def targets(scale: Scale, chosen: Chosen) -> list[Job]:
    """Is there a target plan that buys domain accuracy and costs no class accuracy? PACS against α (ours)."""
    jobs = _blocks(scale, (*DOMAINS, *LINES), [(0.0, 0.0)])
    return _by_seed(scale.domain_seeds, [*jobs, *_blocks(scale, DOMAINS, [(alpha, 0.0) for alpha in ALPHAS[1:]])])


def window(scale: Scale, chosen: Chosen) -> list[Job]:
    """What a target plan can show on PACS: untrained, pairs alone and supervised, by setting, one seed (ours)."""
    every = (*DOMAINS, *LINES)
    jobs = [
        job
        for name, words in scale.variants.items()
        for job in _blocks(scale, every, [(0.0, 0.0)], labels={"setting": name}, words=words)
    ]
    return _by_seed(scale.domain_seeds, jobs)


def scouts(scale: Scale, chosen: Chosen) -> list[Job]:
    """Where else alignment could win: long tail, small batches, four views, noisy labels; two seeds, exploratory
    (ours)."""
    settings = [({"setting": name}, words) for name, words in scale.variants.items()]
    return grid(scale, chosen, (scale.probe, "knn"), SCOUTED, settings)


def noisy_labels(scale: Scale, chosen: Chosen) -> list[Job]:
    """Targets by label with wrong labels: INCE, GCA-UOT, and INCE at the ε of GCA-UOT, eight seeds (ours)."""
    words, measures = scale.variants["noisy labels"], (scale.probe, "knn")
    jobs = grid(scale, chosen, measures, LABELLED, [({"setting": "chosen"}, words)])
    same = {"ince": tuple(word for word in chosen["gca-uot"] if word.startswith("method.eps="))}
    if same["ince"] == chosen["ince"]:  # the same run
        return jobs
    return [*jobs, *grid(scale, same, measures, ("ince",), [({"setting": SAME}, words)])]


def pairs(scale: Scale, chosen: Chosen) -> list[Job]:
    """Emoji and their names: INCE (CLIP), GCA-INCE and GCA-UOT, mismatched pairs, graded targets, five seeds (ours)."""
    targets = {"identity": (), "graded": ("target.name=blocks", f"target.alpha={GRADED}")}
    return [
        job
        for target, more in targets.items()
        for variants in [[({**labels, "target": target}, (*words, *more)) for labels, words in _mismatched(scale)]]
        for job in grid(scale, chosen, ("retrieval",), PAIRED, variants)
    ]
