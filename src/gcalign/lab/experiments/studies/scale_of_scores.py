"""E11: which scale of scores is safe, from scratch and on a pretrained encoder, if a part of the pairs is wrong?

A plan with at least the mass of its target: it is level with the fixed scale from scratch (nearest neighbours: both
41.8 %, InfoNCE 36.6 %), and with InfoNCE on MiniLM (heads: MRR 59.7 and 59.9; upper layers: 59.9 and 59.4), where the
fixed scale harms (57.7 and 54.3). By the planned rule it just misses: on the design seed it is 1.4 points below the
fixed scale, where one was allowed, and no form is safe in both cases. No loss was clearly better than InfoNCE on
MiniLM.

A relaxed plan depends on the absolute size of the scores, which has helped from scratch and harms a pretrained encoder
([why](../sentences.md#which-loss-when)). Which form of GCA-UOT is safe in both cases, so that it can be the default?

## Plan

* from scratch (`table-scale-scratch`): the setting of E7 at 60 %: CIFAR-10, 5000 images, 10 epochs; ε = 0.1, λ = 0.2
  (INCE 0.12), as the search of E1 chose. kNN, linear probe, mean cosine of different images in the last epoch
* pretrained (`table-scale-pretrained`): names × one-line descriptions of Debian packages (Debian 12, `apt-cache
  dumpavail > DATA/debian/packages.txt`; each description once; 9,000 drawn with seed 0), all-MiniLM-L6-v2, 4,000
  training pairs of which 30 % are wrong in all epochs, 2,000 validation and 2,000 test pairs, all right. Linear heads
  that start as the identity, 6 epochs of batches of 128, learning rate 1e-3; MRR, mean of both ways; mean cosine of
  different items
* compared: InfoNCE in both directions, also centred; SigLIP (ε and bias learnt); GCA-UOT: fixed scale (as in the
  paper), also centred; total mass equal to the target's, also centred; at least the target's (ΣP ≥ ΣT); an offset of
  log K that gives the plan the target's mass in the first ten batches, then fixed; the same, then following with rate
  0.01; an offset that is learnt, with ε fixed; InfoNCE with the right pairs only, which nobody has
* chosen by seed 100. Pretrained: ε of 0.05 and 0.1, by MRR on validation pairs. From scratch: kNN on a fifth of the
  training images, whose labels are not used in training; only forms that E7 does not compare, and beside them fixed
  scale and total mass
* then fresh seeds. Heads: 110 to 114, all losses. Upper two layers trained (2 epochs, Adam, 1e-4, ε = 0.1 for all): 110
  and 111, four losses. From scratch: 110 to 112, INCE, fixed scale, total mass, at least the mass
* safe: from scratch, kNN within a point of the fixed scale or above. Pretrained, MRR above the frozen encoder and
  within a point of InfoNCE. The default of `gca-uot` is the form that is safe in both on the design seed; if there are
  several, the simplest; if there is none, the least harmful
* limits: two data sets, small encoders, few seeds; nothing is judged
* cost: about 20 runs of 60 s, 85 runs of 3 s, 8 of 100 s (CPU time, one core): 0.6 core-hours

Before this plan, heads were trained once with seed 1000 on validation pairs (ε = 0.05 and 0.1): fixed scale 51.8 and
57.0, at least the mass 57.5 and 59.5, InfoNCE 58.0 and 59.8, frozen 53.0.

## Changes

* Before any result on MiniLM but that of seed 1000: ε of 0.05 and 0.1 in place of three values, one learning rate in
  place of two, and ε = 0.1 for trained layers, because the machine was busy. Two runs from scratch, of at least the
  mass, were known by then.
* After the design seed on MiniLM (the ε of all but SigLIP is 0.1), with the machine still busy: the fresh seeds were
  run for six losses first, the others, the trained layers and most runs from scratch later. All are there now.
* At least the mass became the default before the runs from scratch, by its property (its KL term never gains by moving
  all embeddings together) and the trial with seed 1000, not by the rule above. By the rule, no form is safe in both
  cases, and it is the least harmful.

## Results

<!-- table table-scale-pretrained -->

<!-- table table-scale-scratch -->
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab.experiments.engine.experiment import Computing, Experiment, joined, value_of
from gcalign.lab.experiments.engine.records import Record, by_seed, check_any, having, seeds
from gcalign.lab.experiments.engine.statistics import Estimate, estimates
from gcalign.lab.experiments.engine.tables import NOTHING, Sheet, listed
from gcalign.lab.experiments.pretrained import minilm, minilm_model
from gcalign.lab.experiments.studies import cone

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from gcalign.objective import Objective

SCRATCH, PRETRAINED = "table-scale-scratch", "table-scale-pretrained"
DESIGN = 100  # the seed whose validation data choose
RELAX, WRONG = 0.2, 0.3

# --- what is compared ----------------------------------------------------------------------------------------------


def candidates(eps: float, ince_eps: float) -> Mapping[str, Callable[[], Objective]]:
    """The losses by name; all forms of GCA-UOT differ in one thing from the fixed scale."""
    import torch
    from torch import nn

    from gcalign.public import KL, Alignment, Columns, Cosine, Kernel, Robust, Rows, Symmetric, TotalMass, method

    def relaxed(kernel: Kernel, *more: TotalMass) -> Alignment:
        return Alignment(kernel, (Rows(RELAX), Columns(RELAX), *more), KL() + 0.02 * Robust(0.6, 0.01))

    def learnt() -> Alignment:
        kernel = Cosine(eps, bias=-1 / eps)
        del kernel.bias
        kernel.bias = nn.Parameter(torch.tensor(-1 / eps))
        return relaxed(kernel)

    def both(center: bool) -> Symmetric:
        return Symmetric(Alignment(Cosine(ince_eps, center=center), (Rows(),), KL()))

    return {
        "ince": lambda: both(False),
        "ince centred": lambda: both(True),
        "siglip": lambda: method("siglip", eps=eps, bias=-10.0),
        "fixed scale": lambda: relaxed(Cosine(eps)),
        "fixed scale, centred": lambda: relaxed(Cosine(eps, center=True)),
        "total mass": lambda: relaxed(Cosine(eps), TotalMass()),
        "total mass, centred": lambda: relaxed(Cosine(eps, center=True), TotalMass()),
        "at least the mass": lambda: relaxed(Cosine(eps), TotalMass(at_least=True)),
        "offset of the first batches": lambda: relaxed(_offset(eps, 0.0)),
        "offset that follows": lambda: relaxed(_offset(eps, 0.01)),
        "offset that is learnt": learnt,
    }


def _offset(eps: float, slowest: float) -> Any:
    """A cosine kernel whose bias gives the plan the mass of the target: of ten batches, then slowly or not at all."""
    import torch

    from gcalign.public import Columns, Cosine, Entropic, Kernel, Rows, solve

    tau = RELAX / (RELAX + eps)
    power = (1 - tau) / (1 + tau)  # the mass of a plan of γK goes with γ to this power

    class Offset(Kernel):
        def __init__(self) -> None:
            super().__init__(eps)
            self.cosine, self.batches = Cosine(eps, bias=-1 / eps), 0

        def features(self, z: Tensor) -> Tensor:
            return self.cosine.features(z)

        def cost(self, x: Tensor, y: Tensor) -> Tensor:
            return self.cosine.cost(x, y)

        def factors(self, x: Tensor, y: Tensor) -> Any:
            if torch.is_grad_enabled():  # in training
                self.batches += 1
                rate = 1 / self.batches if self.batches <= 10 else slowest
                if rate:
                    self.follow(x, y, rate)
            return self.cosine.factors(x, y)

        @torch.no_grad()
        def follow(self, x: Tensor, y: Tensor, rate: float) -> None:
            plan = solve(self.cosine(x, y), (Rows(RELAX), Columns(RELAX)), Entropic(eps), iterations=50)
            lacking = math.log(len(x) / float(plan.mass)) / power
            self.cosine.bias = float(self.cosine.bias or 0.0) + rate * lacking

    return Offset()


# --- from scratch --------------------------------------------------------------------------------------------------

DESIGNED = (  # the others are compared by E7
    "at least the mass",
    "fixed scale",
    "offset of the first batches",
    "offset that is learnt",
    "offset that follows",
    "total mass",
    "fixed scale, centred",
)
REPEATED = ("at least the mass", "fixed scale", "ince", "total mass")  # with fresh seeds


def scratch(of: Computing) -> Iterator[list[Record]]:
    """Which scale of scores is safe from scratch, with 60 % of the pairs wrong: kNN, linear, cosines (ours)."""
    losses = candidates(0.1, 0.12)  # ε of E1's search
    for seed in of.scale.seeds:
        part = "validation" if seed == DESIGN else "test"
        for name in DESIGNED if seed == DESIGN else REPEATED:
            labels = {"method": name, "part": part}
            if of.has(seed, **labels):
                continue
            print(f"{SCRATCH}, seed {seed}: {name}", file=sys.stderr, flush=True)
            found = _from_scratch(losses[name](), of, seed, part)
            yield [Record(SCRATCH, of.scale.name, measure, x, labels, seed) for measure, x in found.items()]


def _from_scratch(criterion: Objective, of: Computing, seed: int, part: str) -> dict[str, float]:
    """Train as `gcalign train` does, with any criterion; what is measured on held-out or on test images."""
    import torch

    from gcalign.lab.evaluation import evaluate, extract
    from gcalign.lab.training.config import configured
    from gcalign.lab.training.module import Training
    from gcalign.lab.training.optimizers import lr_at, optimizer_of
    from gcalign.lab.training.samples import images_of, samples_of
    from gcalign.lab.training.stream import Stream, seed_of
    from gcalign.metrics import negative_similarity

    words = joined(("method=ince",), of.scale.train, of.scale.images, (f"pairs.noise={cone.MOST:g}", f"seed={seed}"))
    config = configured(words)
    samples = samples_of(config)
    stream = Stream.of(config, samples)
    module = Training(config, samples, stream.total)
    tower: Any = module.towers[0]
    optimizer = optimizer_of(config.optimizer, [*tower.parameters(), *criterion.parameters()])
    cosines = []
    for step in range(stream.total):
        batch = stream[step]
        torch.manual_seed(seed_of(config.seed, "model", step, 0))
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, stream.total, config.optimizer)
        (encoder,) = module.encoders(batch)
        first, second = encoder(torch.arange(len(batch.index))).unbind(1)
        optimizer.zero_grad()
        criterion(first, second).backward()
        optimizer.step()
        if step >= stream.total - stream.steps_per_epoch:
            cosines.append(float(negative_similarity(first.detach(), second.detach())))
    images = images_of(config.data, "train")
    x, y = extract(tower.encoder, images), images.labels
    assert y is not None
    if part == "validation":  # a fifth of the training images, whose labels no run has seen
        held = torch.arange(len(x)) % 5 == 0
        known, asked = (x[~held], y[~held]), (x[held], y[held])
    else:
        test = images_of(config.data, "test")
        assert test.labels is not None
        known, asked = (x, y), (extract(tower.encoder, test), test.labels)
    found = {"cosine": sum(cosines) / len(cosines)}
    for protocol in ("knn", of.scale.probe):
        found[protocol] = evaluate(protocol, *known, *asked).accuracy
    return found


# --- pretrained ----------------------------------------------------------------------------------------------------

ORACLE = "ince, right pairs only"
LAYERED = ("at least the mass", "fixed scale", "ince", "total mass")  # compared with trained layers, too
TEMPERATURES, RATE = (0.05, 0.1), 1e-3
TRAINED = {"tiny": 200, "small": 4000, "paper": 4000}
TESTED = {"tiny": 100, "small": 2000, "paper": 2000}
EPOCHS, BATCH, LAYER_EPOCHS, LAYER_RATE, LAYER_EPS = 6, 128, 2, 1e-4, 0.1


def pretrained(of: Computing) -> Iterator[list[Record]]:
    """Which scale of scores is safe on a pretrained encoder, with 30 % of the pairs wrong: MRR, cosines (ours)."""
    texts = _packages(of)
    a, b = _gaussian() if texts is None else tuple(map(minilm, texts))
    known = list(of.known)
    for name in (*candidates(0.1, 0.1), ORACLE):
        for eps in TEMPERATURES:
            labels = {"method": name, "part": "validation", "trained": "heads", "eps": eps, "lr": RATE}
            if not of.has(DESIGN, **labels):
                known += (made := _records(of, labels, DESIGN, _heads(a, b, of, labels, DESIGN)))
                yield made
    chosen = {name: _best(known, name) for name in (*candidates(0.1, 0.1), ORACLE)}
    ways: list[tuple[str, tuple[str, ...], Callable[..., dict[str, float]]]] = [("heads", tuple(chosen), _heads)]
    if texts is not None:
        ways.append(("layers", LAYERED, _layers(texts)))
    for trained, names, train in ways:
        for seed in of.scale.seeds if trained == "heads" else of.scale.seeds[:2]:
            for name in names:
                own = chosen[name] if trained == "heads" else {"eps": LAYER_EPS, "lr": LAYER_RATE}
                labels = {"method": name, "part": "test", "trained": trained, **own}
                if not of.has(seed, **labels):
                    print(f"{PRETRAINED}, seed {seed}: {trained}, {name}", file=sys.stderr, flush=True)
                    yield _records(of, labels, seed, train(a, b, of, labels, seed))


def _records(of: Computing, labels: dict[str, Any], seed: int, values: dict[str, float]) -> list[Record]:
    return [Record(PRETRAINED, of.scale.name, measure, x, labels, seed) for measure, x in values.items()]


def _best(known: list[Record], name: str) -> dict[str, float]:
    """ε and learning rate with the best MRR on validation pairs."""
    tried = [r for r in known if r.seed == DESIGN and r.measure == "mrr" and r.labels["method"] == name]
    best = max(tried, key=lambda r: r.value or 0.0)
    return {key: best.labels[key] for key in ("eps", "lr")}


def _packages(of: Computing) -> tuple[list[str], list[str]] | None:
    """Names and one-line descriptions of Debian packages, each once, 9,000 of them; None at the tiny scale.

    `apt-cache dumpavail > DATA/debian/packages.txt`, in Debian 12, makes the file.
    """
    import torch

    from gcalign.lab.data.catalogue import table_in

    if of.scale.name == "tiny":
        return None
    root = value_of(of.scale.images, "data.root")
    place = table_in(root, "debian/packages.txt")
    if place is None:
        raise FileNotFoundError(
            f"debian/packages.txt is not in data.root={root}; make it with: apt-cache dumpavail > debian/packages.txt"
        )
    names: dict[str, str] = {}
    for entry in place.read_text().split("\n\n"):
        name, about = (re.search(rf"^{key}: (.*)$", entry, re.M) for key in ("Package", "Description(?:-en)?"))
        if name and about:
            names.setdefault(about[1].strip(), name[1].strip())
    every = sorted((name, about) for about, name in names.items())
    some = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))[:9000].tolist()
    return [every[k][0] for k in some], [every[k][1] for k in some]


def _gaussian() -> tuple[Tensor, Tensor]:
    """Two noisy views of points, far from the origin on purpose."""
    import torch

    g = torch.Generator().manual_seed(0)
    shared = torch.randn(500, 16, generator=g)
    a, b = (shared + torch.randn(500, 16, generator=g) for _ in range(2))
    return a, b


def _split(n: int, of: Computing, labels: Mapping[str, Any], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Items to ask about, and both sides of the training pairs, of which a part is wrong in all epochs."""
    import torch

    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    tested, trained = TESTED[of.scale.name], TRAINED[of.scale.name]
    asked = order[tested : 2 * tested] if labels["part"] == "validation" else order[:tested]
    first = order[2 * tested : 2 * tested + trained]
    second, wrong = first.clone(), round(WRONG * trained)
    second[:wrong] = second[:wrong].roll(1)
    return (asked, first[wrong:], second[wrong:]) if labels["method"] == ORACLE else (asked, first, second)


def _trained(
    embed: Callable[[int, Tensor], Tensor],  # side and items -> embeddings
    weights: list[Tensor],
    pairs: tuple[Tensor, Tensor, Tensor],
    labels: Mapping[str, Any],
    steps: int,
    rate: float,
    seed: int,
) -> dict[str, float]:
    """Train with batches of pairs; the mean reciprocal rank, both ways, and the mean cosine of different items."""
    import torch
    from torch.nn.functional import normalize

    asked, first, second = pairs
    name = "ince" if labels["method"] == ORACLE else labels["method"]
    criterion = candidates(labels["eps"], labels["eps"])[name]()
    optimizer = torch.optim.Adam([*weights, *criterion.parameters()], lr=rate)
    generator, done = torch.Generator().manual_seed(seed), 0
    while done < steps:
        for batch in torch.randperm(len(first), generator=generator).split(BATCH):
            if len(batch) < BATCH or done == steps:
                break
            for group in optimizer.param_groups:
                group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * done / steps))
            optimizer.zero_grad()
            criterion(embed(0, first[batch]), embed(1, second[batch])).backward()
            optimizer.step()
            done += 1
    with torch.no_grad():
        x, y = (normalize(torch.cat([embed(k, some) for some in asked.split(256)]), dim=1) for k in (0, 1))
        scores = x @ y.T
    own = scores.diagonal()
    ranks = torch.cat([(scores >= own[:, None]).sum(1), (scores >= own).sum(0)])
    others = (scores.sum() - own.sum()) / (len(own) * (len(own) - 1))
    return {"mrr": float((1 / ranks).mean()), "cosine": float(others)}


def _heads(a: Tensor, b: Tensor, of: Computing, labels: Mapping[str, Any], seed: int) -> dict[str, float]:
    """A linear head on each side's frozen embeddings, which starts as the identity."""
    from torch import nn
    from torch.nn.functional import normalize

    sides = [normalize(z, dim=1) for z in (a, b)]
    heads = [nn.Linear(z.shape[1], z.shape[1], bias=False) for z in sides]
    for head in heads:
        nn.init.eye_(head.weight)
    steps = EPOCHS * (TRAINED[of.scale.name] // BATCH)  # as many for the right pairs alone
    weights = [head.weight for head in heads]
    pairs = _split(len(a), of, labels, seed)
    return _trained(lambda k, some: heads[k](sides[k][some]), weights, pairs, labels, steps, labels["lr"], seed)


def _layers(texts: tuple[list[str], list[str]]) -> Callable[..., dict[str, float]]:
    """The upper two layers of MiniLM; what the layers below give is computed once."""
    import copy
    from functools import cache

    import torch
    from torch.nn.utils.rnn import pad_sequence

    @cache
    def lower() -> tuple[list[list[Tensor]], Any]:
        model = minilm_model()
        bert, sides = model[0].auto_model, []
        with torch.no_grad():
            for side in texts:
                hidden: list[Tensor] = []
                for k in range(0, len(side), 64):
                    read = model.tokenize(side[k : k + 64])
                    mask = read["attention_mask"]
                    layers = bert(input_ids=read["input_ids"], attention_mask=mask, output_hidden_states=True)
                    below = layers.hidden_states[-3]
                    hidden += [row[: int(length)].half() for row, length in zip(below, mask.sum(1), strict=True)]
                sides.append(hidden)
        return sides, bert.encoder.layer[-2:]

    def train(_: Tensor, __: Tensor, of: Computing, labels: Mapping[str, Any], seed: int) -> dict[str, float]:
        sides, pretrained_layers = lower()
        upper = copy.deepcopy(pretrained_layers).eval()  # without dropout

        def embed(k: int, items: Tensor) -> Tensor:
            rows = [sides[k][i].float() for i in items.tolist()]
            h = pad_sequence(rows, batch_first=True)
            real = torch.arange(h.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
            mask = torch.where(real, 0.0, -1e9)[:, None, None, :]
            for layer in upper:
                out = layer(h, mask)
                h = out[0] if isinstance(out, tuple) else out
            return (h * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)

        pairs = _split(len(texts[0]), of, labels, seed)
        steps = LAYER_EPOCHS * (TRAINED[of.scale.name] // BATCH)
        return _trained(embed, list(upper.parameters()), pairs, labels, steps, labels["lr"], seed)

    return train


# --- the tables ----------------------------------------------------------------------------------------------------


def draw_scratch(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Accuracies and the mean cosine of different images, on validation and on test images."""
    columns = [
        (f"{name}, {part}", measure, {"part": part})
        for part in ("validation", "test")
        for name, measure in (("kNN", "knn"), ("linear", "linear-fast"), ("cosine", "cosine"))
    ]
    note = f"From scratch, {100 * cone.MOST:.0f} % of the pairs wrong. Validation: one seed ({DESIGN}), training "
    note += "images whose labels were not seen. Test: fresh seeds."
    return _sheet(records, SCRATCH, columns, note, folder)


def draw_pretrained(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Mean reciprocal rank and the mean cosine of different items: heads, and trained layers."""
    columns = [
        (f"{name}, {trained}", measure, {"part": "test", "trained": trained})
        for trained in ("heads", "layers")
        for name, measure in (("MRR", "mrr"), ("cosine", "cosine"))
    ]
    note = f"MiniLM, {100 * WRONG:.0f} % of the training pairs wrong, right test pairs; MRR is the mean of both ways. "
    note += (
        f"ε and learning rate of the heads by the validation pairs of seed {DESIGN}; trained layers: ε = {LAYER_EPS}."
    )
    return _sheet(records, PRETRAINED, columns, note, folder)


def _sheet(
    records: pd.DataFrame, name: str, columns: list[tuple[str, str, dict[str, Any]]], note: str, folder: Path
) -> list[Path]:
    tables = {title: estimates(by_seed(records, measure, "method", **where)) for title, measure, where in columns}
    tables = {title: table for title, table in tables.items() if table}
    check_any(tables, name, "method and part")
    methods = [m for m in (*candidates(0.1, 0.1), ORACLE) if any(m in table for table in tables.values())]
    rows = [[m, *(_cell(title, table.get(m)) for title, table in tables.items())] for m in methods]
    fresh = seeds(having(records, part="test"))
    notes = [f"{note} Mean ± standard deviation over seeds {listed(fresh)}. Nothing is judged."]
    return Sheet(name, ["loss", *tables], rows, notes).write(folder)


def _cell(title: str, e: Estimate | None) -> str:
    if e is None:
        return NOTHING
    unit, digits = (1, 2) if title.startswith("cosine") else (100, 1)
    spread = f" ± {unit * e.std:.{digits}f}" if e.n > 1 else ""
    return f"{unit * e.mean:.{digits}f}{spread}"


EXPERIMENTS = (
    Experiment(
        SCRATCH,
        draw_scratch,
        compute=scratch,
        changes={
            "tiny": {**cone.SETTINGS["tiny"], "seeds": (DESIGN, 110)},
            "small": {**cone.SETTINGS["small"], "seeds": (DESIGN, 110, 111, 112)},
            "paper": {**cone.SETTINGS["paper"], "seeds": (DESIGN, 110, 111, 112)},
        },
        place=18.1,
    ),
    Experiment(
        PRETRAINED,
        draw_pretrained,
        compute=pretrained,
        changes={scale: {"seeds": (110, 111, 112, 113, 114)} for scale in ("tiny", "small", "paper")},
        place=18.2,
    ),
)
