"""`python -m fuzz.audits --cases 500`: audits of random pairs with every kind of error; what must hold of any audit."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

import gcalign

KINDS = ("none", "shuffled", "exchanged", "one text", "one image", "one pair", "missing", "far")


def case(seed: int, number: int) -> tuple[str, Tensor, Tensor]:
    """A kind of error, and pairs that have it."""
    r, g = random.Random(f"{seed}/audits/{number}"), torch.Generator().manual_seed(1000 * seed + number)
    kind, n, d = r.choice(KINDS), r.randint(10, 160), r.choice((2, 5, 40))
    a = torch.randn(n, d, generator=g)
    if r.random() < 0.3:  # clusters
        a = a[torch.randint(max(2, n // 8), (n,), generator=g)] + 0.2 * torch.randn(n, d, generator=g)
    b = a + r.choice((0.0, 1e-4, 0.3, 5.0)) * torch.randn(n, d, generator=g)
    if r.random() < 0.3:  # a hub
        b = b + torch.randn(n, 1, generator=g).square() * torch.randn(d, generator=g)
    m = min(round(r.random() * n), n - 2)
    if kind == "one pair":
        a[:m], b[:m] = a[0].clone(), b[0].clone()
    elif kind == "one text":
        b[:m] = b[0].clone()
    elif kind == "one image":
        a[:m] = a[0].clone()
    elif kind == "exchanged":
        m -= m % 2
        order = (b[:m] @ torch.randn(d, generator=g)).argsort().view(-1, 2)  # neighbours on a line
        b[order.flatten()] = b[order.flip(1).flatten()]
    elif kind == "missing":
        b[:m] = torch.randn(m, d, generator=g)
    elif kind != "none":
        b[:m] = b[:m].roll(1, 0) * (1e6 if kind == "far" else 1)
    return kind, a, b


def violations(seed: int, number: int) -> Iterator[str]:
    """What does not hold of the audit of a case."""
    _, a, b = case(seed, number)
    n = len(a)
    audit = gcalign.audit(a, b, fit="never")
    if not audit.suspicion.isfinite().all():
        yield "suspicion is finite"
    if not bool((audit.probability[audit.ranking].diff() <= 0).all()):
        yield "probability grows with suspicion"
    if not 0 <= float(audit.probability.min()) <= float(audit.probability.max()) <= 1:
        yield "probability is in [0, 1]"
    if not 0 <= audit.share_at_least <= audit.share_at_most <= 1:
        yield "the interval is in [0, 1]"
    if not audit.warnings and not audit.share_at_least <= audit.share <= audit.share_at_most:
        yield "the share is in its interval"
    if not 0.5 <= audit.auroc <= 1:
        yield "auroc is in [0.5, 1]"
    if audit.warnings and bool(audit.flagged.any() or audit.suspects.any()):
        yield "nothing is flagged if there is a warning"
    if bool((audit.other == torch.arange(n)).any()):
        yield "the other partner is another"
    again = gcalign.audit(a, b, fit="never")
    if not torch.equal(again.suspicion, audit.suspicion) or not torch.equal(again.probability, audit.probability):
        yield "the same seed gives the same audit"
    order = torch.randperm(n, generator=torch.Generator().manual_seed(number))
    moved = gcalign.audit(a[order], b[order], fit="never")
    scale = 1e-3 * (1 + audit.suspicion.abs().max())
    if not bool(((moved.suspicion - audit.suspicion[order]).abs() <= scale).all()):
        yield "the order of the pairs does not matter"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.audits", description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    broken = {number: held for number in range(asked.cases) if (held := [*violations(asked.seed, number)])}
    for number, rules in [*broken.items()][:20]:
        print(f"case {number} of seed {asked.seed}, {case(asked.seed, number)[0]}: not so: {'; '.join(rules)}")
    print(f"{asked.cases} audits: {len(broken)} fail")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
