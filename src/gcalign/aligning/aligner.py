"""`gcalign.align` and `Aligner`: heads for two frozen spaces."""

from __future__ import annotations

import inspect
import json
import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcalign.aligning.closed import CLOSED
from gcalign.aligning.fitting import fitted
from gcalign.aligning.heads import SideHead
from gcalign.aligning.inputs import Items
from gcalign.aligning.report import AlignmentReport
from gcalign.aligning.retrieval import nearest, ranks
from gcalign.aligning.training import TRAINED, Heads, Settings
from gcalign.errors import count, did_you_mean, one_of, positive

METHODS = ("auto", *CLOSED, "matching", *TRAINED)
HIDDEN = {"linear": 0, "mlp": 256}
ABOUT, WEIGHTS = "aligner.json", "aligner.safetensors"  # files of a saved aligner


def align(a: Any, b: Any, pairs: Any = None, **options: Any) -> Aligner:
    """Map two frozen embedding spaces into one, from a few pairs and any number of items without a partner.

    A regularised CCA of the pairs embeds the unpaired items of both sides; a transport plan between them gives each a
    partner; those that are each other's best join the pairs for the next CCA. Heads that are trained start from there:
    InfoNCE both ways on the pairs, and KL(P_teacher ‖ P) on unpaired items, where the target P_tgt of Eq. 8
    (eq:mainobj) is the plan of the closed form (SOTAlign, arXiv:2602.23353). What is not given is chosen by
    cross-validation over the pairs. Wrong pairs are found by an audit of embeddings that never saw them; they weigh
    less.

    Args:
        a: embeddings of the first side [n, D₁]: a tensor, an array, or a memory-mapped array, which stays on disk.
        b: embeddings of the second side [m, D₂].
        pairs: which rows belong together [P, 2], or a tuple of two columns (rows of a, rows of b). None: row i with row
            i. An item may be in several pairs.
        options: those of `Aligner`.

    Returns:
        An `Aligner`: `embed_a(x)`, `embed_b(y)`, `match(x, y, k)`, `save(folder)`, `report`.

    Raises:
        TypeError, ValueError: if rows are not finite, or pairs or an option are out of range.

    Example:
        >>> import torch, gcalign
        >>> g = torch.Generator().manual_seed(0)
        >>> shared = torch.randn(300, 8, generator=g)
        >>> a, b = shared @ torch.randn(8, 24, generator=g), shared @ torch.randn(8, 16, generator=g)
        >>> aligner = gcalign.align(a, b, pairs=[[k, k] for k in range(60)], budget=0, steps=20)
        >>> found, similarity = aligner.match(a[200:], b[200:], k=1)
        >>> bool((found[:, 0] == torch.arange(100)).float().mean() > 0.8)
        True
    """
    known = inspect.signature(Aligner).parameters
    for name in options:
        if name not in known:
            raise TypeError(f"align takes no option {name!r}; {did_you_mean(name, known)}")
    return Aligner(**options).fit(a, b, pairs)


class Aligner:
    """Heads for two frozen spaces: z = normalise(W(x − mean)) on each side. `gcalign.align` makes and fits one.

    It is a scikit-learn estimator too: `fit(X, y)` takes both sides, row i with row i, `transform(X)` embeds the first,
    and `score(X, y)` is the share of rows whose partner is nearest, so it works in pipelines and in `GridSearchCV`.

    Args:
        method: "matching" (a CCA of the pairs and of the matches in a plan between unpaired items), "plan" (InfoNCE and
            the plan of a teacher), "infonce", a closed form ("cca", "procrustes", "ridge"), or "auto": the best of
            them in cross-validation.
        dim: size of the common space.
        head: "linear" or "mlp"; None: linear, unless the budget allows to try both.
        eps: ε of InfoNCE and of the plan.
        weight: of the loss on unpaired items.
        ridge: how much the closed form is regularised.
        relax: λ of the marginals of the plan; a finite value, e.g. 1.0, lets items stay without a partner.
        renew: how often the heads become their own teacher.
        steps: of training.
        budget: how many heads the search may train; 0 takes the defaults.
        audit: whether wrong pairs are looked for.
        evaluate: whether retrieval and the learning curve are measured, which costs as much as the search.
        seed: of folds, pools and training.
        progress: show a progress bar.

    Attributes:
        report: an `AlignmentReport`: retrieval on held-out pairs, learning curve, suspicious pairs.
        settings: what was chosen.

    Example:
        >>> import torch, gcalign
        >>> x = torch.randn(100, 12, generator=torch.Generator().manual_seed(0))
        >>> aligner = gcalign.Aligner(method="cca", dim=8).fit(x, x.flip(1))
        >>> aligner.transform(x).shape
        torch.Size([100, 8])
    """

    def __init__(
        self,
        method: str = "auto",
        *,
        dim: int = 256,
        head: str | None = None,
        eps: float | None = None,
        weight: float | None = None,
        ridge: float | None = None,
        relax: float = math.inf,
        renew: int | None = None,
        steps: int = 100,
        budget: int = 3,
        audit: bool = True,
        evaluate: bool = True,
        seed: int = 0,
        progress: bool = False,
    ) -> None:
        self.method, self.dim, self.head, self.eps, self.weight = method, dim, head, eps, weight
        self.ridge, self.relax, self.renew, self.steps, self.budget = ridge, relax, renew, steps, budget
        self.audit, self.evaluate, self.seed, self.progress = audit, evaluate, seed, progress

    def fit(self, a: Any, b: Any, pairs: Any = None) -> Aligner:
        """Fit the heads; see `gcalign.align`."""
        given = self._given()
        result = fitted(
            a,
            b,
            pairs,
            given,
            budget=count("budget", self.budget, "how many heads the search may train; 3 is usual", least=0),
            audited=bool(self.audit),
            evaluated=bool(self.evaluate),
            seed=count("seed", self.seed, "0 is usual", least=0),
            progress=self.progress,
        )
        self._heads, self._settings, self._report = result.heads, result.settings, result.report
        for note in result.report.notes:
            warnings.warn(note, stacklevel=2)
        return self

    def _given(self) -> dict[str, Any]:
        """The settings that are fixed, checked."""
        given: dict[str, Any] = {
            "dim": count("dim", self.dim, "the size of the common space; 256 is usual", least=2),
            "steps": count("steps", self.steps, "of training; 100 are usual"),
            "relax": positive("relax", self.relax, "inf keeps the marginals", infinite=True),
        }
        if one_of("method", self.method, METHODS) != "auto":
            given["method"] = self.method
        if self.head is not None:
            given["hidden"] = HIDDEN[one_of("head", self.head, HIDDEN)]
        if self.eps is not None:
            given["eps"] = positive("eps", self.eps, "0.1 is usual", least=1e-3)
        if self.weight is not None:
            given["weight"] = positive("weight", self.weight, "1 is usual", zero=True)
        if self.ridge is not None:
            given["ridge"] = positive("ridge", self.ridge, "1 is usual")
        if self.renew is not None:
            given["renew"] = count("renew", self.renew, "0 keeps the first teacher", least=0)
        return given

    @property
    def heads(self) -> Heads:
        """The heads of a and of b, torch modules that take unit rows."""
        if not hasattr(self, "_heads"):
            raise ValueError("this Aligner has no heads yet; call fit(a, b, pairs), or use gcalign.align")
        return self._heads

    @property
    def report(self) -> AlignmentReport:
        """Retrieval on held-out pairs, the learning curve, and what was chosen."""
        return self.heads and self._report

    @property
    def settings(self) -> Settings:
        """How the heads were made."""
        return self.heads and self._settings

    def embed_a(self, x: Any) -> Any:  # [n, D₁] -> [n, dim]
        """Items of the first side in the common space, as unit rows: a tensor for a tensor, else an array.

        A row of zeros stays zero.
        """
        return self._embedded(0, x)

    def embed_b(self, y: Any) -> Any:  # [m, D₂] -> [m, dim]
        """Items of the second side in the common space, as unit rows: a tensor for a tensor, else an array."""
        return self._embedded(1, y)

    def blocks(self, side: int, values: Any) -> Iterator[Tensor]:
        """The embeddings of side 0 (a) or 1 (b) in parts, for what does not fit into memory."""
        items, head = Items("ab"[side], values), self.heads[side]
        if items.dim != len(head.mean):
            other = self.heads[1 - side]
            swapped = "; that is what the other side has: exchange the sides" if items.dim == len(other.mean) else ""
            raise ValueError(
                f"{items.name} has {items.dim} columns, and this aligner was fitted to {len(head.mean)}{swapped}"
            )
        with torch.no_grad():
            for start, part in items.blocks():
                bad = ~part.isfinite().all(1)
                if bad.any():
                    k = start + int(bad.nonzero()[0])
                    raise ValueError(f"{items.name}[{k}] has values that are not finite; embed the item again")
                yield head(part) * part.any(1)[:, None]  # a row of zeros has no direction, and stays zero

    def _embedded(self, side: int, values: Any) -> Any:
        z = torch.cat(list(self.blocks(side, values)))
        return z if isinstance(values, Tensor) else z.numpy()

    def match(self, x: Any, y: Any, k: int = 1) -> tuple[Any, Any]:  # [n, k] rows of y, [n, k] cosines
        """The k rows of y that are nearest to each row of x, best first, and their cosines."""
        count("k", k, "how many of the nearest are wanted")
        queries = torch.cat(list(self.blocks(0, x)))
        where, near = nearest(queries, self.blocks(1, y), k)
        return (where, near) if isinstance(x, Tensor) else (where.numpy(), near.numpy())

    # --- files ------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write the heads as safetensors, and how they were made as JSON. `gcalign.load(folder)` reads them."""
        from safetensors.torch import save

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"{side}.{name}": value.contiguous()
            for side, head in zip("ab", self.heads, strict=True)
            for name, value in head.state_dict().items()
        }
        _write(path / WEIGHTS, save(tensors))
        about = _finite({"kind": "aligner", "options": self.get_params(), "report": self.report.as_dict()})
        _write(path / ABOUT, json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False).encode())
        return path

    @staticmethod
    def load(folder: str | Path) -> Aligner:
        """An aligner that was saved; nothing in its files is imported or evaluated."""
        from safetensors.torch import load

        path = Path(folder)
        try:
            about = json.loads((path / ABOUT).read_bytes())
            tensors = load((path / WEIGHTS).read_bytes())
            aligner = Aligner(**_infinite(about["options"]))
            aligner._given()
            content = _infinite(about["report"])
            aligner._report = AlignmentReport.from_dict(content)
            aligner._settings = Settings(**{f.name: content["settings"][f.name] for f in fields(Settings)})
            aligner._heads = _head(tensors, "a"), _head(tensors, "b")
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ValueError(
                f"{path} cannot be read as a saved aligner ({error}); save it again with save(folder)"
            ) from error
        except Exception as error:  # safetensors has an error of its own
            raise ValueError(f"{path / WEIGHTS} is damaged ({error}); save the aligner again") from error
        return aligner

    # --- scikit-learn -----------------------------------------------------------------------------------------------

    def transform(self, X: Any) -> Any:  # [n, D₁] -> [n, dim]
        """`embed_a`."""
        return self.embed_a(X)

    def fit_transform(self, X: Any, y: Any, pairs: Any = None) -> Any:
        """`fit`, then `embed_a`."""
        return self.fit(X, y, pairs).embed_a(X)

    def score(self, X: Any, y: Any) -> float:
        """R@1, mean of both ways: row i of X with row i of y."""
        za, zb = (torch.cat(list(self.blocks(k, z))) for k, z in enumerate((X, y)))
        own = torch.arange(len(za))
        ways = [ranks(p, q, own, own, own) for p, q in ((za, zb), (zb, za))]
        return float((torch.stack(ways) < 1).double().mean())

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The options by name."""
        return {name: getattr(self, name) for name in inspect.signature(Aligner).parameters}

    def set_params(self, **params: Any) -> Aligner:
        """Change options by name."""
        known = self.get_params()
        for name, value in params.items():
            setattr(self, one_of("parameter", name, known), value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_heads")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        target = TargetTags(required=True, multi_output=True)
        return Tags(None, target, transformer_tags=TransformerTags(), input_tags=InputTags())

    def __repr__(self) -> str:
        defaults = inspect.signature(Aligner).parameters
        changed = {k: v for k, v in self.get_params().items() if v != defaults[k].default}
        return f"Aligner({', '.join(f'{k}={v!r}' for k, v in changed.items())})"


def _head(tensors: dict[str, Tensor], side: str) -> SideHead:
    """The head of a side from its tensors, whose shapes must fit each other."""
    own = {name.removeprefix(f"{side}."): value for name, value in tensors.items() if name.startswith(f"{side}.")}
    hidden = own["inner"].shape[1] if "inner" in own else 0
    head = SideHead(torch.zeros_like(own["mean"]), torch.zeros_like(own["weight"]), hidden)
    head.load_state_dict(own)
    return head.eval().requires_grad_(False)


def _write(path: Path, content: bytes) -> None:
    """All or nothing."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _finite(value: Any) -> Any:
    """JSON has no infinity: it is the text "inf" there."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return "inf" if value == math.inf else value


def _infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _infinite(v) for k, v in value.items()}
    return math.inf if value == "inf" else value
