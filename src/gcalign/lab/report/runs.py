"""What a report shows of chosen runs: curves, and their embeddings of one sample of pairs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

import gcalign
from gcalign import methods
from gcalign.alignment import Alignment, Symmetric
from gcalign.auditing.pairs import LEAST_PAIRS
from gcalign.constraints import Columns, Constraint, Rows
from gcalign.kernels import normalize
from gcalign.lab.data.catalogue import find
from gcalign.lab.data.images import Images
from gcalign.lab.data.views import make_views
from gcalign.lab.evaluation import extract
from gcalign.lab.models.state import evaluating
from gcalign.lab.pages.maps import maps
from gcalign.lab.pages.pack import Sprite, halves, pixels, sprite, whole
from gcalign.lab.pages.page import Json
from gcalign.lab.report.views import seen
from gcalign.lab.training.config import Config, Data, criterion_of
from gcalign.lab.training.load import load_encoder, load_whole
from gcalign.lab.training.probe import data_of
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import images_of
from gcalign.lab.training.stream import exchanged, seed_of
from gcalign.targets import Blocks, Identity, Labels, Target

Made = TypeVar("Made")
NEAREST = 8
POINTS = 240  # of a curve
DIRECTIONS = 256  # of an embedding: what cosines need of wider ones fits
FIRST = ("loss", "knn", "rank", "spread", "alignment", "uniformity")  # of the curves


@dataclass(frozen=True, eq=False)
class Entry:
    """A run whose files were read once."""

    run: Run
    config: Config
    results: list[dict[str, Any]]

    @property
    def method(self) -> str:
        return str(self.config.method["name"])


def one_way(config: Config) -> Alignment:
    """The alignment a run minimises, in one direction where it has two."""
    criterion = criterion_of(config)
    found = criterion.alignment if isinstance(criterion, Symmetric) else criterion
    assert isinstance(found, Alignment)
    return found


def choose(runs: Sequence[Entry], most: int) -> list[Entry]:
    """Up to `most` runs, finished ones first: one of each method in turn, of the setting that most runs have."""
    common = Counter(_setting(entry.config) for entry in runs)

    def rank(entry: Entry) -> tuple[Any, ...]:
        config = entry.config
        return not entry.run.done, -common[_setting(config)], config.pairs.noise, config.seed, entry.run.path.name

    turns: Counter[str] = Counter()
    queue = []
    for entry in sorted(runs, key=rank):
        queue.append((not entry.run.done, turns[entry.method], methods.names().index(entry.method), entry))
        turns[entry.method] += 1
    chosen = sorted(queue, key=lambda item: item[:3])[:most]
    return [entry for *_, entry in sorted(chosen, key=lambda item: (item[2], item[1]))]


def _setting(config: Config) -> tuple[Any, ...]:
    return config.data.name, config.view_name, config.pairs.noise, config.epochs, config.target.name


def names(runs: Sequence[Entry], *, seeds: bool = True) -> list[str]:
    """Each run by its method and what tells it from the others, with or without its seed."""
    configs = [entry.config for entry in runs]
    parts = [
        [c.data.name, c.view_name, f"noise {c.pairs.noise:g}", f"ε {c.method.get('eps')}", f"seed {c.seed}"]
        for c in configs
    ]
    telling = [k for k in range(5 if seeds else 4) if len({p[k] for p in parts}) > 1]
    # ε goes with the method where each method has one
    if len({(c.method["name"], c.method.get("eps")) for c in configs}) == len({c.method["name"] for c in configs}):
        telling = [k for k in telling if k != 3]
    out = [", ".join([c.method["name"], *(p[k] for k in telling)]) for c, p in zip(configs, parts, strict=True)]
    twice = {name for name, times in Counter(out).items() if times > 1}
    return [f"{name}, {c.hash[:6]}" if name in twice else name for name, c in zip(out, configs, strict=True)]


@dataclass
class Showcase:
    """Samples and pairings, made once for all runs that share them; what could not be made is said in `notes`."""

    size: int
    encoders: Sequence[str] = ()  # of the user's own, that may be imported
    roots: Sequence[Path] = ()  # folders in which data may be read, wherever a run comes from
    samples: list[Json] = field(default_factory=list)
    pairings: list[Json] = field(default_factory=list)
    seen: list[Json] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _images: dict[Any, tuple[int, Images] | None] = field(default_factory=dict)
    _batches: dict[str, int | None] = field(default_factory=dict)
    _views: dict[Any, tuple[int, Tensor, Tensor]] = field(default_factory=dict)

    def show(self, entry: Entry, name: str) -> Json:
        run, config, alignment = entry.run, entry.config, one_way(entry.config)
        # ε in units of 1 − cos, whatever the kernel's cost makes of orthogonal embeddings
        axes = alignment.kernel.features(torch.eye(2))
        eps = float(torch.as_tensor(alignment.kernel.eps).detach()) / float(alignment.kernel.cost(axes, axes)[0, 1])
        rows, columns = (_relaxation(alignment, kind, eps) for kind in (Rows, Columns))
        parts = f"Plans, pairs and neighbours of {run.path}"
        embedded = self._made(parts, lambda: self._embedded(run, config)) if run.done else None
        about = {"objective": repr(alignment), "eps": eps, "iterations": alignment.options.iterations}
        about |= _mode(rows, columns) | {"goal": goal(alignment.target), "curves": curves(entry.results)}
        own = {"name": name, "method": entry.method, **about, "seen": self._seen(run, config)}
        return own | (embedded or {"pairing": None})

    def _made(self, what: str, make: Callable[[], Made | None]) -> Made | None:
        """What could be made; what could not is said."""
        try:
            return make()
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            self.notes.append(f"{what} are left out: {error}")
            return None

    def _seen(self, run: Run, config: Config) -> int | None:
        """What training saw, once for all runs that saw the same."""
        deciding = ("data", "views", "pairs", "batch_size", "epochs", "seed", "world")
        key = repr([getattr(config, name) for name in deciding])
        if key not in self._batches:
            found = self._made(f"The views that {run.path} saw", lambda: seen(run, config, self.roots))
            self._batches[key] = None if found is None else len(self.seen)
            self.seen += [] if found is None else [found]
        return self._batches[key]

    def _embedded(self, run: Run, config: Config) -> Json | None:
        if config.data.paired:  # `retrieval` has what there is to see
            return None
        found = self._sample(run)
        if found is None:
            return None
        sample, images = found
        pairing, first, second = self._pairing(sample, images, config)
        name = config.model.encoder
        given = name if name in self.encoders else None
        encoder, network = load_encoder(run.path, encoder=given), load_whole(run.path, encoder=given)
        with evaluating(network), torch.inference_mode():
            z = normalize(torch.cat([network(x) for x in torch.cat([first, second]).split(256)]))
        z1, z2 = _narrow(z).chunk(2)
        return embedded(pairing, z1, z2, normalize(extract(encoder, images)))

    def _sample(self, run: Run) -> tuple[int, Images] | None:
        data = dataclasses.replace(data_of(run, {}, roots=self.roots), limit=self.size)
        key = dataclasses.astuple(data)
        if key not in self._images:
            self._images[key] = self._loaded(data)
        return self._images[key]

    def _loaded(self, data: Data) -> tuple[int, Images] | None:
        splits = find(data.name).splits
        split = "test" if "test" in splits else splits[0]
        parts = f"Pictures, plans, pairs and neighbours of {data.name}"
        images = self._made(parts, lambda: images_of(data, split, at_most=True))
        if images is None:
            return None
        everything = images.get(torch.arange(len(images)))
        name = f"{data.name} ({images.split})"
        known = images.labels, images.classes, images.domains, images.domain_names
        self.samples.append(sample_of(name, sprite(everything), *known))
        return len(self.samples) - 1, images

    def _pairing(self, sample: int, images: Images, config: Config) -> tuple[int, Tensor, Tensor]:
        key = sample, config.view_name, config.pairs.noise
        if key not in self._views:
            index, noise = torch.arange(len(images)), config.pairs.noise
            partners = exchanged(len(index), noise, seed_of(0, "noise", 0))
            augment = make_views(config.view_name, images.shape, images.mean, images.std)
            bases = [images.draw(x, seed_of("draw", k)) for k, x in enumerate((index, partners))]
            first, second = (augment(x, seed_of("view", k)) for k, x in enumerate(bases))
            # a fresh rendering need not keep its sample's domain
            domains = images.domains if type(images).draw is Images.draw else None
            pairs = f"{noise:.0%} of the pairs mismatched, as in training" if noise else "no pair mismatched"
            about = (
                f"{len(index)} images of {images.name} ({images.split}), views {config.view_name}, {pairs}; "
                "every row and column should have mass 1."
            )
            one, other = (sprite(pixels(x, images.mean, images.std)) for x in (first, second))
            views = {"sample": sample, "about": about, "first": one, "second": other}
            groups = {"domains": domains, "domainNames": images.domain_names}
            self.pairings.append(views | pairing_of(self.samples[sample], partners) | groups)
            self._views[key] = len(self.pairings) - 1, first, second
        return self._views[key]


def _relaxation(alignment: Alignment, kind: type[Constraint], eps: float) -> float | None:
    """λ of a side in the page's unit of ε: None where it is free, inf where it is hard."""
    for constraint in alignment.constraints:
        if isinstance(constraint, Rows | Columns) and isinstance(constraint, kind):
            tau = constraint.h.tau(float(torch.as_tensor(alignment.kernel.eps).detach()))
            return math.inf if tau is None or tau == 1 else eps * tau / (1 - tau)
    return None


def _mode(rows: float | None, columns: float | None) -> Json:
    """Which constraints the page solves with: by the λ of each side, None where it is free and inf where it is hard."""
    relaxed = [lam for lam in (rows, columns) if lam is not None and lam != math.inf]
    one_sided = "free" if rows is None else "rows"
    mode = one_sided if columns is None else "both" if rows == columns == math.inf else "relaxed"
    return {"mode": mode, "lam": relaxed[0] if relaxed else None}


def goal(target: Target) -> Json | None:
    """A target in terms of what two images share, where that is all it depends on.

    That is the value on pairs, within a group and of all others; if `normalized`, each row is divided by its sum.
    """
    plain = {"pair": 1.0, "same": 0.0, "other": 0.0, "group": None, "normalized": False}
    if isinstance(target, Labels):
        return plain | {"same": 1.0, "group": "labels", "normalized": target.normalized}
    if isinstance(target, Blocks):
        return plain | {"same": target.alpha, "other": target.beta, "group": "domains"}
    return plain if isinstance(target, Identity) else None


def sample_of(
    name: str,
    images: Sprite,
    labels: Tensor | None,  # [n]
    classes: Sequence[str],
    domains: Tensor | None = None,  # [n]
    domain_names: Sequence[str] = (),
) -> Json:
    """Images as they are, to choose from."""
    groups = {"labels": labels, "classes": classes, "domains": domains, "domainNames": domain_names}
    return {"name": name, "n": images.n, "sprite": images, **groups}


def pairing_of(sample: Json, partners: Tensor) -> Json:  # [n]
    """What is known of two views of each image of a sample, the second of which shows `partners`."""
    labels, here = sample["labels"], torch.arange(len(partners))
    return {
        "n": len(partners),
        "labels": labels,
        "secondLabels": None if labels is None else labels[partners],
        "classes": sample["classes"],
        "mismatched": (partners != here).nonzero().flatten(),
    }


def embedded(pairing: int, z1: Tensor, z2: Tensor, h: Tensor) -> Json:
    """What a run makes of a pairing: normalised projections [n, d], and the images in the encoder's space [n, D]."""
    cosines, near = (h @ h.T).fill_diagonal_(-math.inf).topk(min(NEAREST, len(h) - 1))
    return {
        "pairing": pairing,
        "dim": z1.shape[1],
        "z1": halves(z1),
        "z2": halves(z2),
        "neighbours": whole(near),
        "neighbourCosines": halves(cosines),
        "audit": _audited(z1, z2) if len(z1) >= LEAST_PAIRS else None,
        "maps": {name: whole((65535 * points).round()) for name, points in maps(h).items()},
    }


def _audited(z1: Tensor, z2: Tensor) -> Json:
    a = gcalign.audit(z1, z2)
    each = {"ranking": whole(a.ranking), "other": whole(a.other), "probability": halves(a.probability)}
    share = a.share if math.isfinite(a.share) else None
    expected = {"share": share, "auroc": a.auroc, "flagged": int(a.flagged.sum())}
    return each | {"eps": a.settings["eps"]} | expected


def _narrow(z: Tensor) -> Tensor:  # [n, d] -> [n, ≤ DIRECTIONS]
    """The leading directions of wide embeddings: inner products stay, but for what the rest carries."""
    if z.shape[1] <= DIRECTIONS:
        return z
    return z @ torch.linalg.svd(z, full_matrices=False).Vh[:DIRECTIONS].T


def curves(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Every number that was logged, against the step; long runs thinned evenly."""
    logged: dict[str, tuple[list[float], list[float]]] = {}
    for record in results:
        shown = {"knn": record["accuracy"]} if record["kind"] == "knn" else record
        if record["kind"] not in ("train", "knn"):
            continue
        for name, value in shown.items():
            if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                steps, values = logged.setdefault(name, ([], []))
                steps.append(record["step"])
                values.append(value)
    order = sorted(logged, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    thinned = {name: map(_thinned, logged[name]) for name in order}
    return {name: {"x": x, "y": [float(f"{v:.5g}") for v in y]} for name, (x, y) in thinned.items()}


def _thinned(values: list[float]) -> list[float]:
    if len(values) <= POINTS:
        return values
    return [values[round(k * (len(values) - 1) / (POINTS - 1))] for k in range(POINTS)]
