"""Fine-tuning: the whole network, starting from a copy of the encoder."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from gcalign.errors import count, positive
from gcalign.lab.data.images import Images, Subset
from gcalign.lab.data.splits import stratified
from gcalign.lab.evaluation.features import extract, pixels
from gcalign.lab.evaluation.results import Fitted
from gcalign.lab.models.state import seeded


def finetune(
    x: Images,
    y: Tensor,
    *,
    classes: int,
    seed: int,
    encoder: nn.Module,
    lr: float | Sequence[float] = (0.1, 0.01, 0.001),
    epochs: int = 10,
    batch_size: int = 256,
    validation: float = 0.1,
    device: str | torch.device = "cpu",
) -> Fitted:
    """Encoder and linear layer by SGD with a cosine rate on un-augmented images; of several, validation chooses."""
    rates = tuple(lr) if isinstance(lr, Sequence) else (lr,)
    if not rates:
        raise ValueError("lr=[] is empty; give one learning rate or more")
    for rate in rates:
        positive("lr", rate, "0.01 suits a pretrained encoder")
    count("epochs", epochs, "10 is the default")
    count("batch_size", batch_size, "BatchNorm needs 2 images", least=2)

    def tuned(images: Images, codes: Tensor, rate: float) -> nn.Module:
        body = copy.deepcopy(encoder).requires_grad_(True).train().to(device)
        steps = epochs * max(1, math.ceil(len(images) / batch_size))
        order = torch.Generator().manual_seed(seed)
        with seeded(seed):  # the last layer's weights, and dropout if the encoder has any
            width = extract(body, Subset(images, torch.arange(1)), device=device, finite=False).shape[1]
            model = nn.Sequential(body, nn.Linear(width, classes).to(device))
            solver = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(solver, steps)
            for _ in range(epochs):
                for batch in torch.randperm(len(images), generator=order).split(batch_size):
                    if len(batch) > 1:  # BatchNorm has no variance of a single image
                        solver.zero_grad()
                        out = model(pixels(images, batch, device))
                        functional.cross_entropy(out, codes[batch].to(device)).backward()
                        solver.step()
                    schedule.step()
        return model

    def predicted(model: nn.Module, images: Images) -> Tensor:  # [M]; a diverged model loses on validation, no more
        return extract(model, images, device=device, finite=False).argmax(1)

    score, best = None, rates[0]
    if len(rates) > 1:
        rest, held = stratified(y, validation, seed)
        scores = []
        for rate in rates:
            model = tuned(Subset(x, rest), y[rest], rate)
            scores.append((predicted(model, Subset(x, held)) == y[held]).double().mean().item())
        score = max(scores)
        best = rates[scores.index(score)]
    model = tuned(x, y, best)
    settings = {"lr": best, "tried": list(rates), "epochs": epochs, "batch_size": batch_size}
    return Fitted({"test": partial(predicted, model)}, settings, len(y), score)
