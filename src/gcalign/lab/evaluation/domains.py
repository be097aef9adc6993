"""Evaluation across domains: which one an image is from, what it shows in one never trained on, and corruptions."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gcalign.lab.data.splits import stratified
from gcalign.lab.evaluation.classifiers import descent, regression, squared_error
from gcalign.lab.evaluation.protocols import linear
from gcalign.lab.evaluation.results import Fit, Fitted, Result, checked_labels, judged, spread


def least_squares(
    x: Tensor,
    y: Tensor,
    *,
    classes: int,
    seed: int,
    lr: float = 5e-5,
    epochs: int = 3000,
    batch_size: int | None = None,
    exact: bool = False,
) -> Fitted:
    """A linear layer with squared error and Adam: appendix:dgsetting; `exact=True` solves for where that goes."""
    if exact:
        return Fitted({"test": regression(x, y, classes)}, {"exact": True}, len(y))
    # The paper's 3000 "epochs" with a checkpoint every 300 are the defaults of DomainBed, which counts steps: so the
    # whole set at a time, once an epoch. The paper reports the best checkpoint on test; this is the last one.
    layer = descent(
        x, y, classes, loss=squared_error, optimizer="adam", lr=lr, epochs=epochs, batch_size=batch_size, seed=seed
    )
    return Fitted({"test": layer}, {"lr": lr, "epochs": epochs, "batch_size": batch_size}, len(y))


def domain_probe(
    features: Tensor,  # [N, D]
    domains: Tensor | None,  # [N]
    *,
    unseen: Tensor,  # [N] bool
    seed: int = 0,
    names: Sequence[str] = (),
    **options: Any,
) -> Result:
    """How well the domain can be told, with options of `least_squares`.

    A target may have shown an encoder the domains of its training images: `unseen` marks those that it never saw, and
    the test is on them.
    """
    known = _known(domains, len(features))
    about = {"seed": seed, "split": "images held out of training", "names": names, **options}
    return _divided("domain-probe", least_squares, features, known, ~unseen, unseen, **about)


def leave_one_domain_out(
    features: Tensor,  # [N, D]
    labels: Tensor | None,  # [N]
    domains: Tensor | None,  # [N]
    *,
    seed: int = 0,
    names: Sequence[str] = (),
    domain_names: Sequence[str] = (),
    **options: Any,
) -> Result:
    """Classes in a domain never trained on: each domain is the test set once (`parts`); the accuracy is their mean.

    `options` are those of `least_squares`.
    """
    known = _known(domains, len(features))
    labels = checked_labels(labels, len(features), "probe")
    present = known.unique().tolist()
    if len(present) < 2:
        raise ValueError(f"there is {len(present)} domain; leaving one out needs at least 2")
    results = {}
    for domain in present:
        name = domain_names[domain] if domain < len(domain_names) else str(domain)
        about = {"seed": seed, "split": f"domain {name}", "names": names, **options}
        inside, outside = known != domain, known == domain
        results[name] = _divided("leave-one-domain-out", least_squares, features, labels, inside, outside, **about)
    return _mean(results, "each domain in turn")


def corruption_probe(
    features: Mapping[str, Tensor],  # [N, D] of each corruption and severity
    labels: Mapping[str, Tensor],  # [N]
    *,
    seed: int = 0,
    share: float = 0.1,
    names: Sequence[str] = (),
    epochs: int = 50,
    **options: Any,
) -> Result:
    """CIFAR-10-C as in app:corruptset: a linear layer on 10 % of each corrupted set, tested on the rest; the mean.

    `options` are those of `linear`.
    """
    if not features:
        raise ValueError("there is no corrupted set; give the features of at least one")
    results = {}
    for corruption, x in features.items():
        y = checked_labels(labels[corruption], len(x), corruption)
        test, train = stratified(y, share, seed)
        about = {"seed": seed, "split": f"the other {1 - share:.0%} of {corruption}", "names": names, **options}
        results[corruption] = _divided("corruption-probe", linear, x, y, train, test, epochs=epochs, **about)
    return _mean(results, f"the other {1 - share:.0%} of each corruption")


def _divided(protocol: str, fit: Fit, x: Tensor, y: Tensor, train: Tensor, test: Tensor, **about: Any) -> Result:
    """A fit on the rows `train`, judged on the rows `test`."""
    return judged(protocol, fit, x[train], y[train], x[test], y[test], **about)


def _known(domains: Tensor | None, n: int) -> Tensor:
    if domains is None:
        raise ValueError("the samples have no domains; use data that has them, such as pacs or scenes")
    return checked_labels(domains, n, "domain")


def _mean(results: Mapping[str, Result], split: str) -> Result:
    parts = {name: result.accuracy for name, result in results.items()}
    each = list(results.values())
    classes = sorted({name for result in each for name in result.per_class})
    return dataclasses.replace(
        each[0],
        accuracy=statistics.fmean(parts.values()),
        std=spread(parts.values()),
        parts=parts,
        per_class={c: statistics.fmean(r.per_class[c] for r in each if c in r.per_class) for c in classes},
        split=split,
        labels_used=max(result.labels_used for result in each),
        classes=max(result.classes for result in each),
        n_train=max(result.n_train for result in each),
        n_test=sum(result.n_test for result in each),
    )
