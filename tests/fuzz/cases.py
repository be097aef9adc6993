"""One random call of the library: drawn from a seed and a number, printed as data, made again at any time."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

INF = math.inf
METHODS = (
    "ince", "gca-ince", "rince", "gca-rince", "simclr", "byol", "iot", "iot-uni", "gca-uot", "supcon", "clip",
)  # fmt: skip
TEMPERATURES = (1e-3, 0.0075, 0.01, 0.02, 0.05, 0.07, 0.1, 0.2, 0.5, 0.5, 1.0, 3.0, 10.0)
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BATCHES = (
    "pairs", "pairs", "pairs", "pairs", "unrelated", "same", "all equal", "opposite", "all opposite", "one zero row",
    "all zero", "repeated rows", "orthogonal", "mixed norms", "tiny", "huge", "huge against tiny", "denormal",
    "nearly denormal",
)  # fmt: skip
MISTAKES = {  # what is wrong -> what the message must contain
    "nan row": r"z[12]\[\d+\] has NaN or Inf",
    "inf row": r"z[12]\[\d+\] has NaN or Inf",
    "zero weight": r"weights\[\d+\]=0 must be > 0",
    "negative weight": r"weights\[\d+\]=-1 must be > 0",
    "nan weight": r"weights\[\d+\]=nan must be > 0 and finite",
    "weights with gradient": r"weights require a gradient",
    "lonely label": r"row \d+ \(77\) of the target has no positive",
    "lonely id": r"row \d+ \(77\) of the target has no positive",
    "unread labels": r"labels were given, but the target .* does not read them",
    "target of another shape": r"target of shape .* must be",
    "negative target": r"target has a negative or non-finite entry",
    "empty target row": r"row \d+ of the target has no positive",
    "target with gradient": r"target requires a gradient",
    "other dimension": r"z1 has \d+ dimensions and z2 \d+",
    "other dtype": r"give both sides one dtype",
    "whole numbers": r"embeddings must be real floating-point",
    "three axes": r"must be \[B, D\]",
    "no rows": r"must be \[B, D\] with B, D ≥ 1",
    "a list": r"must be a tensor \[B, D\]",
    "short ids": r"ids of shape .* must have one value for each",
    "real ids": r"ids has dtype .* whole numbers",
    "eps": r"eps=.* must be > 0 and finite",
    "tol": r"tol=.* must be ≥ 0",
    "iterations": r"iterations=.* must be",
    "block": r"block=.* (must be|is unknown)",
    "gradient": r"gradient='exact' is unknown",
    "layout": r"layout='both' is unknown",
    "reduction": r"reduction='sum' is unknown",
    "unknown option": r"has no option 'temprature'",
}
UNCHECKED = ("nan row unchecked", "inf row unchecked")  # check_finite=False: NaN in, NaN out


@dataclass(frozen=True)
class Case:
    """A call, as data."""

    seed: int
    number: int
    family: str  # "method", "composition", "sets" or "solve"
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # of every criterion
    kernel: str = "cosine"
    rows: tuple[str, float, str] | None = None  # kind, λ, mass: "target", "number" or "vector"
    columns: tuple[str, float, str] | None = None
    terms: dict[str, Any] = field(default_factory=dict)  # of `oracles.Terms`
    sets: str = ""
    n: int = 4
    m: int = 4
    d: int = 3
    batch: str = "pairs"
    dtype: str = "float64"
    autocast: bool = False
    target: str = "identity"
    ids: str = ""
    weights: str = ""
    mistake: str = ""

    def generator(self, what: int) -> torch.Generator:
        return torch.Generator().manual_seed((self.seed * 1_000_003 + self.number) * 16 + what)

    @property
    def joint(self) -> bool:
        default = "joint" if self.name in ("simclr", "iot", "iot-uni", "supcon") else "cross"
        return bool(self.options.get("layout", default) == "joint")

    @property
    def eps(self) -> float:
        return float(self.options.get("eps", 0.5))

    def __str__(self) -> str:
        default = {f.name: f.default for f in dataclasses.fields(self)}
        shown = [f"{k}={v!r}" for k, v in vars(self).items() if v != default.get(k) and v != {} and k != "seed"]
        return f"Case(seed={self.seed}, {', '.join(shown)})"


# --- drawing --------------------------------------------------------------------------------------------------


def draw(seed: int, number: int) -> Case:
    """The case `number` of the seed."""
    r = random.Random(f"{seed}/{number}")
    family = r.choices(("method", "composition", "sets", "solve"), (62, 26, 4, 8))[0]
    case = Case(seed, number, family, options=_options(r), **_sizes(r))
    if family == "method":
        case = _method(case, r)
    elif family == "composition":
        case = _composition(case, r)
    elif family == "sets":
        case = _sets(case, r)
    else:
        case = _solve(case, r)
    return case


def _options(r: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {
        "eps": r.choice((*TEMPERATURES, _spread(r, 1e-3, 10))),
        "iterations": r.choices((1, 2, 3, 5, 10, 19, 20, 50, 200, 1000), (3, 2, 2, 4, 8, 2, 3, 3, 4, 1))[0],
        "tol": r.choices((0.0, 1e-12, 1e-9, 1e-6, 1e-4, 1e-2), (3, 1, 1, 8, 2, 1))[0],
        "gradient": r.choices(("auto", "envelope", "implicit", "truncated", "unrolled"), (12, 2, 2, 2, 2))[0],
        "layout": r.choice(("cross", "joint")),
        "reduction": r.choices(("mean", "none"), (6, 1))[0],
    }
    if r.random() < 0.35:
        options["block"] = r.choice((1, 2, 3, 7, 100, "auto"))
        if r.random() < 0.15:
            options["cache"] = "half"
    if r.random() < 0.05:
        options["check_finite"] = False
    return options


def _sizes(r: random.Random) -> dict[str, Any]:
    n = r.choice((1, 2, 2, 3, 4, 5, 7, 9, 12, 17))
    dtype = r.choices(tuple(DTYPES), (7, 9, 2, 2))[0]
    batch = r.choice(BATCHES if dtype in ("float64", "float32") else BATCHES[:-6])
    return {
        "n": n,
        "m": n if r.random() < 0.8 else r.choice((1, 2, 3, 6, 11)),
        "d": r.choice((1, 2, 3, 5, 8, 16)),
        "batch": batch,
        "dtype": dtype,
        "autocast": r.random() < (0.5 if dtype in ("bfloat16", "float16") else 0.05),
    }


def _spread(r: random.Random, low: float, high: float) -> float:
    return math.exp(r.uniform(math.log(low), math.log(high)))


def _target(case: Case, r: random.Random, *, supervised: bool = False) -> Case:
    kinds = ("identity", "labels", "unnormalized labels", "blocks", "hierarchy", "dense", "sparse", "spread")
    target = r.choices(kinds, (9, 2, 1, 2, 2, 2, 1, 1))[0]
    if supervised and target in ("identity", "unnormalized labels"):
        target = "labels"
    ids = r.choices(("", "shuffled", "views"), (4, 2, 2))[0] if case.n == case.m else "views"
    if target in ("labels", "unnormalized labels", "dense", "sparse", "spread"):
        ids = ""
    weights = r.choices(("", "ones", "mild", "spread", "tiny", "some tiny", "huge"), (14, 1, 2, 2, 1, 1, 1))[0]
    return dataclasses.replace(case, target=target, ids=ids, weights=weights)


def _method(case: Case, r: random.Random) -> Case:
    name = r.choice(METHODS)
    options = dict(case.options)
    if name == "byol":
        options["eps"] = r.choice((0.5, 1.0, 2.0))
    if name == "clip":
        options["learnable"] = r.random() < 0.3
    if name in ("rince", "gca-rince", "gca-uot"):
        options["q"], options["lam"] = r.choice((0.1, 0.6, 1.0)), r.choice((0.0, 0.01, 0.5))
        options["scale"] = r.choices(("kernel", "score"), (5, 1))[0]
    if name == "gca-uot":
        options["relax"] = r.choice(((0.2, 0.2), (2.0, 0.1), (INF, 0.5), (1e-4, 1e-4), (30.0, 30.0), (INF, INF)))
        options["w_robust"] = r.choice((0.02, 0.02, 1.0, 0.0))
    if name == "iot-uni":
        options["weight"] = r.choice((0.2, 1.0))
    if name in ("simclr", "iot", "iot-uni", "supcon") and r.random() < 0.5:
        options.pop("layout")
    case = _target(dataclasses.replace(case, name=name, options=options), r, supervised=name == "supcon")
    if name == "clip" and case.n != case.m:
        case.options["reduction"] = "mean"
    if r.random() < 0.12:
        case = _mistaken(case, r)
    return case


def _mistaken(case: Case, r: random.Random) -> Case:
    mistake = r.choice((*MISTAKES, *UNCHECKED))
    options = {k: v for k, v in case.options.items() if k != "check_finite"}
    options["gradient"] = "auto"
    plain: dict[str, Any] = {"m": case.n, "weights": "", "target": "identity", "ids": "", "autocast": False}
    if case.name == "supcon":
        plain["target"] = "labels"
    if mistake == "lonely label":
        plain["target"] = "labels"
    if mistake in ("lonely id", "short ids", "real ids") and case.name == "supcon":
        plain["name"] = "simclr"
        plain["target"] = "identity"
    if mistake in ("lonely label", "lonely id", "empty target row") and case.name == "gca-uot":
        plain["name"] = "simclr"  # whose rows are not relaxed, so that each needs a positive
    if mistake == "unread labels" and case.name == "supcon":
        plain["name"] = "simclr"
        plain["target"] = "identity"
    if mistake in UNCHECKED:
        options["check_finite"] = False
        plain["batch"] = "pairs"
        plain["name"] = r.choice([name for name in METHODS if name != "byol"])
        if plain["name"] == "supcon":
            plain["target"] = "labels"
        for extra in ("q", "lam", "scale", "relax", "w_robust", "weight", "learnable"):
            options.pop(extra, None)
        if plain["name"] == "gca-uot":
            options["relax"] = (0.2, 0.2)  # else it bounds the mass of its plan
    if plain.get("name") == "simclr":
        for extra in ("q", "lam", "scale", "relax", "w_robust", "weight", "learnable"):
            options.pop(extra, None)
    return dataclasses.replace(case, mistake=mistake, options=options, **plain)


def _composition(case: Case, r: random.Random) -> Case:
    def side() -> tuple[str, float, str] | None:
        kind = r.choices(("", "hard", "relaxed", "variation"), (2, 5, 4, 1))[0]
        if not kind:
            return None
        lam = INF if kind == "hard" else r.choice((1e-4, 0.01, 0.2, 1.0, 30.0))
        return kind, lam, r.choices(("target", "number", "vector"), (8, 1, 1))[0]

    terms: dict[str, Any] = {"kl": r.choice((1.0, 1.0, 1.0, 0.5, 0.0))}
    if terms["kl"] and r.random() < 0.3:
        terms |= r.choice(({"normalized": True}, {"penalties": False}, {"entropy": False}))
    if r.random() < 0.3:
        terms |= {"robust": r.choice((0.02, 1.0)), "q": r.choice((0.1, 0.6, 1.0)), "lam": r.choice((0.01, 0.5))}
    if r.random() < 0.2 or not any(terms.get(k) for k in ("kl", "robust")):
        terms["squared"] = r.choice((1.0, 0.3))
    if r.random() < 0.15:
        terms["uniformity"] = 0.2
    kernel = r.choices(("cosine", "squared", "distances", "callable", "learnt"), (6, 2, 1, 1, 1))[0]
    if kernel in ("distances", "callable") and case.batch in BATCHES[-6:]:
        case = dataclasses.replace(case, batch="pairs")  # nothing is normalised there
    case = dataclasses.replace(case, kernel=kernel, rows=side(), columns=side(), terms=terms)
    return _target(case, r)


def _sets(case: Case, r: random.Random) -> Case:
    sets = r.choice(("capacity", "block sums", "non-negative", "euclidean"))
    options = {**case.options, "gradient": r.choice(("auto", "unrolled")), "eps": _spread(r, 0.05, 2.0)}
    options = {k: v for k, v in options.items() if k not in ("block", "cache")}
    terms = {"squared": 1.0} if sets == "euclidean" else {"kl": 1.0}
    side = ("hard", INF, "target")
    case = dataclasses.replace(case, sets=sets, options=options, terms=terms, rows=side, columns=side, m=case.n)
    if sets == "block sums":
        options["layout"] = "cross"  # else a block may have only pairs of a row with itself
    return dataclasses.replace(case, batch="pairs", autocast=False)


def _solve(case: Case, r: random.Random) -> Case:
    case = dataclasses.replace(_composition(case, r), autocast=False, kernel="matrix", weights="", ids="")
    options = {k: case.options[k] for k in ("eps", "iterations", "tol", "gradient")}
    if options["gradient"] == "envelope":
        options["gradient"] = "auto"
    target = r.choice(("", "dense"))
    batch = r.choice(("numbers", "numbers", "numbers", "forbidden", "flat", "large", "equal rows"))
    if case.rows is None and case.columns is None:
        case = dataclasses.replace(case, rows=("hard", INF, "target"))
    return dataclasses.replace(case, options=options, target=target, batch=batch, terms={})


# --- tensors --------------------------------------------------------------------------------------------------


def embeddings(case: Case) -> tuple[Tensor, Tensor]:
    """Both views, in the dtype of the case."""
    g = case.generator(0)
    n, m, d = case.n, case.m, case.d
    base = torch.randn(max(n, m), d, generator=g, dtype=torch.float64)
    noise = torch.randn(max(n, m), d, generator=g, dtype=torch.float64)
    z1, z2 = base[:n].clone(), (base + 0.5 * noise)[:m].clone()
    if case.batch == "unrelated":
        z2 = noise[:m].clone()
    elif case.batch == "same":
        z2 = base[:m].clone()
    elif case.batch == "all equal":
        z1, z2 = base[:1].repeat(n, 1), base[:1].repeat(m, 1)
    elif case.batch == "opposite":
        z2 = -base[:m]
    elif case.batch == "all opposite":
        z1, z2 = base[:1].repeat(n, 1), -base[:1].repeat(m, 1)
    elif case.batch == "one zero row":
        (z1 if case.number % 2 else z2)[0] = 0
    elif case.batch == "all zero":
        z1, z2 = 0 * z1, 0 * z2
    elif case.batch == "repeated rows":
        z1[: (n + 1) // 2], z2[m // 2 :] = z1[0].clone(), z2[m // 2].clone()
    elif case.batch == "orthogonal":
        z1, z2 = torch.eye(max(n, d), d, dtype=torch.float64)[:n], torch.eye(max(m, d), d, dtype=torch.float64)[:m]
        z1, z2 = _full(z1), _full(z2)
    elif case.batch == "mixed norms":
        z1 *= torch.logspace(-15, 15, n, dtype=torch.float64)[:, None]
    elif case.batch == "tiny":
        z1, z2 = 1e-30 * z1, 1e-30 * z2
    elif case.batch == "huge":
        z1, z2 = 1e30 * z1, 1e30 * z2
    elif case.batch == "huge against tiny":
        z1, z2 = 1e30 * z1, 1e-30 * z2
    elif case.batch == "denormal":
        z1[0] *= 1e-42
    elif case.batch == "nearly denormal":
        z2[0] *= 1e-29
    return z1.to(DTYPES[case.dtype]), z2.to(DTYPES[case.dtype])


def _full(z: Tensor) -> Tensor:
    """The first axis for the rows beyond the last one."""
    z = z.clone()
    z[z.abs().sum(1) == 0, 0] = 1
    return z


def covering(case: Case, what: int, groups: int) -> tuple[Tensor, Tensor]:
    """A number for each row of both sides, such that each number is on both sides."""
    g = case.generator(what)
    groups = max(1, min(groups, case.n, case.m))
    sides = []
    for size in (case.n, case.m):
        more = torch.randint(0, groups, (size - groups,), generator=g)
        sides.append(torch.cat([torch.arange(groups), more])[torch.randperm(size, generator=g)])
    return sides[0], sides[1]


def known(case: Case) -> dict[str, Any]:
    """ids, labels, domains and weights of the call, each for (z1, z2)."""
    g = case.generator(1)
    given: dict[str, Any] = {}
    if case.ids == "shuffled":
        numbers = 5 * torch.randperm(4 * case.n, generator=g)[: case.n]
        given["ids"] = (numbers, numbers[torch.randperm(case.n, generator=g)])
    elif case.ids == "views":
        given["ids"] = covering(case, 2, 1 + case.number % 5)
    if "labels" in case.target:
        given["labels"] = covering(case, 3, 1 + case.number % 4)
    if case.target == "blocks":
        given["domains"] = tuple(torch.randint(0, 3, (size,), generator=g) for size in (case.n, case.m))
    if case.target == "hierarchy":
        given["labels"] = tuple(
            torch.stack([torch.randint(0, 2, (size,), generator=g), torch.randint(0, 3, (size,), generator=g)], 1)
            for size in (case.n, case.m)
        )
    if case.weights:
        given["weights"] = tuple(_weights(case, size, g) for size in (case.n, case.m))
    return given


def _weights(case: Case, size: int, g: torch.Generator) -> Tensor:
    draw = torch.rand(size, generator=g, dtype=torch.float64)
    if case.weights == "ones":
        return torch.ones(size, dtype=torch.float64)
    if case.weights == "mild":
        return 0.5 + 1.5 * draw
    if case.weights == "spread":
        return torch.exp(math.log(1e-3) + draw * math.log(950 / 1e-3))
    if case.weights == "tiny":
        return torch.full((size,), 1e-23, dtype=torch.float64)
    if case.weights == "some tiny":
        return torch.where(torch.arange(size) % 2 == 0, 1.0, 1e-23).double()
    return 950 * (0.5 + draw)


def matrix(case: Case) -> Tensor:
    """A target as a matrix in float64, without an empty row or column."""
    g = case.generator(4)
    size = (case.n + case.m,) * 2 if case.joint and case.family != "solve" else (case.n, case.m)
    t = torch.rand(*size, generator=g, dtype=torch.float64)
    if case.target == "spread":
        t = torch.exp(math.log(1e-6) + t * math.log(1e9))
    t = t * (torch.rand(*size, generator=g) < 0.4)
    for i in range(size[0]):  # every row and every column has an entry; none is its own in the joint layout
        t[i, (i + size[0] // 2) % size[1]] += 0.5
    for j in range(size[1]):
        t[(j + size[0] // 2) % size[0], j] += 0.5
    if size[0] == size[1] and case.joint and case.family != "solve":
        t.fill_diagonal_(0)
    return t.to(torch.float32).double()  # numbers that every dtype above half precision has


def log_matrix(case: Case) -> Tensor:
    """log K of a call of `gcalign.solve`, in the dtype of the case."""
    g = case.generator(5)
    size = {"large": 12.0, "flat": 0.0}.get(case.batch, 2.0)
    k = size * torch.randn(case.n, case.m, generator=g, dtype=torch.float64)
    if case.batch == "equal rows":
        k = k[:1].repeat(case.n, 1)
    if case.batch == "forbidden":
        keep = torch.rand(case.n, case.m, generator=g) < 0.6
        for i in range(max(case.n, case.m)):
            keep[i % case.n, i % case.m] = True
        k = k.masked_fill(~keep, -INF)
    return k.to(DTYPES[case.dtype])
