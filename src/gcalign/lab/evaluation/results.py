"""What a protocol hands back, and the one place where test labels are looked at."""

from __future__ import annotations

import dataclasses
import inspect
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from gcalign.errors import one_of
from gcalign.lab.data.images import Images
from gcalign.lab.words import some

Inputs = TypeVar("Inputs", Tensor, Images)


@dataclass(frozen=True)
class Fitted:
    """Classifiers made from training data only: one, or one for each draw of labels."""

    predictors: Mapping[str, Callable[[Any], Tensor]]  # test inputs -> [M] codes
    hyperparameters: dict[str, Any]
    labels_used: int
    validation: float | None = None  # accuracy on the validation split, where something was chosen


Fit = Callable[..., Fitted]


@dataclass(frozen=True)
class Result:
    """An accuracy with what it takes to judge it."""

    protocol: str
    accuracy: float  # mean over `parts`
    std: float | None  # over `parts`, if there are several
    parts: dict[str, float]  # accuracy of each draw of labels, held-out domain or corruption
    per_class: dict[str, float]  # of the classes that occur in the test set
    split: str  # what was tested on
    seed: int
    hyperparameters: dict[str, Any]
    validation: float | None  # accuracy that the hyper-parameters were chosen by
    labels_used: int
    classes: int
    n_train: int
    n_test: int
    of: str | None = None  # the baseline that was measured; None for the encoder that was given

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {100 * self.std:.1f}"
        subject = "" if self.of is None else f"{self.of}, "
        return (
            f"{subject}{self.protocol}: {100 * self.accuracy:.1f}{spread} % on {self.split} ({self.n_test} images), "
            f"{self.labels_used} labels, seed {self.seed}, chosen: {self.hyperparameters}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)


def judged(
    protocol: str,
    fit: Fit,
    train: Inputs,
    train_labels: Tensor | None,
    test: Inputs,
    test_labels: Tensor | None,
    *,
    seed: int,
    split: str,
    names: Sequence[str] = (),
    **options: Any,
) -> Result:
    """Fits on `train` and scores on `test`; `fit` is never given the test labels."""
    for name in options:
        one_of(f"option of {protocol}", name, options_of(fit))
    train_y = checked_labels(train_labels, len(train), "train")
    test_y = checked_labels(test_labels, len(test), split)
    if len(test) == 0:
        raise ValueError(f"the {split} set is empty; an accuracy needs samples")
    classes, train_codes, test_codes = encoded(train_y, test_y)
    if isinstance(train, Tensor):
        train_codes = train_codes.to(train.device)
    fitted = fit(train, train_codes, classes=len(classes), seed=seed, **options)

    parts, hits = {}, []
    for part, predict in fitted.predictors.items():
        hit = predict(test).cpu() == test_codes
        parts[part] = hit.double().mean().item()
        hits.append(hit)
    mean_hits = torch.stack(hits).double().mean(0)
    return Result(
        protocol=protocol,
        accuracy=statistics.fmean(parts.values()),
        std=spread(parts.values()),
        parts=parts,
        per_class={
            _name(classes, code, names): mean_hits[test_codes == code].mean().item() for code in test_codes.unique()
        },
        split=split,
        seed=seed,
        hyperparameters=fitted.hyperparameters,
        validation=fitted.validation,
        labels_used=fitted.labels_used,
        classes=len(classes),
        n_train=len(train),
        n_test=len(test),
    )


def options_of(fit: Fit) -> list[str]:
    """What may be chosen of a fit: the arguments that are not its inputs."""
    return [name for name in inspect.signature(fit).parameters if name not in ("x", "y", "classes", "seed")]


def spread(values: Sequence[float] | Any) -> float | None:
    """Standard deviation (n − 1), if there is more than one value."""
    values = list(values)
    return statistics.stdev(values) if len(values) > 1 else None


def _name(classes: Tensor, code: Tensor, names: Sequence[str]) -> str:
    label = int(classes[code])
    return names[label] if label < len(names) else str(label)


def checked_labels(labels: Tensor | None, n: int, what: str) -> Tensor:  # [N] int64 on the CPU
    """The labels if there is one, not negative, for each of `n` samples."""
    if labels is None:
        raise ValueError(
            f"the {what} samples have no labels, which a protocol needs; add labels, or embed them: gcalign embed"
        )
    if labels.shape != (n,) or labels.is_floating_point():
        raise ValueError(
            f"{what} labels of shape {tuple(labels.shape)} and dtype {labels.dtype} must be ({n},) whole numbers"
        )
    labels = labels.cpu().long()
    if n and int(labels.min()) < 0:
        raise ValueError(f"{int((labels < 0).sum())} {what} labels are negative (unknown); leave those samples out")
    return labels


def encoded(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # classes [K], codes [N], codes [M]
    """The classes of `train` in order, and both sets of labels as positions among them."""
    classes = torch.unique(train)
    if len(classes) < 2:
        raise ValueError(f"the train labels hold {len(classes)} class; a classifier needs at least 2")
    foreign = torch.unique(test[~torch.isin(test, classes)]).tolist()
    if foreign:
        raise ValueError(
            f"test classes {some(foreign, 5)} are absent from the train labels, so they can never be predicted; "
            "add training samples of them, or leave them out of the test set"
        )
    return classes, torch.searchsorted(classes, train), torch.searchsorted(classes, test)
