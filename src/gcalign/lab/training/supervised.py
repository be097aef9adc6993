"""What labels could teach the encoder of a run: an upper line beside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from gcalign.lab.data.images import Images
from gcalign.lab.data.sides import views_of
from gcalign.lab.models import encoder, outside
from gcalign.lab.models.state import seeded
from gcalign.lab.training.config import Config
from gcalign.lab.training.optimizers import lr_at, optimizer_of
from gcalign.lab.training.stream import Stream, seed_of


def supervised(config: Config, images: Images, labels: Tensor, device: str | torch.device = "cpu") -> nn.Module:
    """The encoder of a run trained by cross-entropy on labels [N], with the run's first weights, batches and views."""
    m = config.model
    body = encoder(outside(m.encoder), shape=images.shape, width=m.width, stem=m.stem, seed=config.seed)
    assert isinstance(body.features, int)
    with seeded(config.seed):
        model = nn.Sequential(body, nn.Linear(body.features, int(labels.max()) + 1)).to(device).train()
    samples = views_of(images, config.pairs.views)
    prepare = samples.sides[0].preprocessing
    stream = Stream(samples, batch_size=config.batch_size, epochs=config.epochs, seed=config.seed)
    optimizer = optimizer_of(config.optimizer, model.parameters())
    for step in range(stream.total):
        batch = stream[step]
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, stream.total, config.optimizer)
        given = zip(batch.items, batch.seeds, strict=True)
        views = [prepare(items.to(device), config.view_name, seed) for items, seed in given]
        with seeded(seed_of(config.seed, "model", step)):  # whatever an encoder draws
            predicted = model(torch.cat(views))
        optimizer.zero_grad()
        functional.cross_entropy(predicted, labels[batch.index].repeat(len(views)).to(device)).backward()
        optimizer.step()
    return body.eval()
