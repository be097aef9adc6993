"""A mistake, planted into a case: what a user may get wrong, one thing at a time."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from fuzz import build, cases
from fuzz.cases import Case

_OPTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "eps": ("eps", (0.0, -1.0, math.nan, math.inf)),
    "tol": ("tol", (-1e-3, math.nan)),
    "iterations": ("iterations", (0, -3, 2.5)),
    "block": ("block", (0, -1, True, "half")),
    "gradient": ("gradient", ("exact",)),
    "layout": ("layout", ("both",)),
    "reduction": ("reduction", ("sum",)),
    "unknown option": ("temprature", (0.1,)),
}


def planted(case: Case) -> tuple[Any, Any, dict[str, Any], Case]:
    """z1, z2, what else the call is given, and the case whose criterion is called."""
    z1: Any
    z2: Any
    z1, z2 = cases.embeddings(case)
    given = build.call_options(case)
    what = case.mistake.removesuffix(" unchecked")
    if what in ("nan row", "inf row"):
        value = math.nan if what == "nan row" else math.copysign(math.inf, 1 if case.number % 3 else -1)
        (z1 if case.number % 2 else z2)[case.number % case.n, case.number % case.d] = value
    elif what in ("zero weight", "negative weight", "nan weight"):
        w = torch.ones(case.n, dtype=z1.dtype)
        w[case.number % case.n] = {"zero": 0.0, "negative": -1.0, "nan": math.nan}[what.split()[0]]
        given["weights"] = w
    elif what == "weights with gradient":
        given["weights"] = torch.ones(case.n, requires_grad=True)
    elif what in ("lonely label", "lonely id"):
        numbers = given["labels"][0].clone() if what == "lonely label" else torch.arange(case.n)
        other = given["labels"][1] if what == "lonely label" else torch.arange(case.n)
        numbers[case.number % case.n] = 77
        given["labels" if what == "lonely label" else "ids"] = (numbers, other)
    elif what == "unread labels":
        given["labels"] = torch.zeros(case.n, dtype=torch.long)
    elif what in ("target of another shape", "negative target", "empty target row", "target with gradient"):
        given["target"] = _matrix(case, what)
    elif what in ("other dimension", "other dtype", "whole numbers", "three axes", "no rows", "a list"):
        z2 = _embeddings(what, z2)
    elif what == "short ids":
        given["ids"] = torch.arange(case.n + 1)
    elif what == "real ids":
        given["ids"] = torch.rand(case.n)
    elif what in _OPTIONS:
        name, values = _OPTIONS[what]
        case = dataclasses.replace(case, options={**case.options, name: values[case.number % len(values)]})
    return z1, z2, given, case


def _matrix(case: Case, what: str) -> Tensor:
    t = cases.matrix(dataclasses.replace(case, target="dense"))
    if what == "target of another shape":
        return torch.cat([t, t[:1]])
    if what == "negative target":
        t[0, -1] = -1.0
    elif what == "empty target row":
        t[case.number % len(t)] = 0
    return t.requires_grad_(what == "target with gradient")


def _embeddings(what: str, z: Tensor) -> Any:
    return {
        "other dimension": lambda: torch.cat([z, z], 1),
        "other dtype": lambda: z.to(torch.float32 if z.dtype == torch.float64 else torch.float64),
        "whole numbers": lambda: z.nan_to_num(0, 0, 0).clamp(-9, 9).long(),
        "three axes": lambda: z[None],
        "no rows": lambda: z[:0],
        "a list": lambda: z.tolist(),
    }[what]()
