"""Labels as an upper line."""

from __future__ import annotations

import dataclasses

import torch

from gcalign.lab.data.sides import views_of
from gcalign.lab.training.module import Training
from gcalign.lab.training.supervised import supervised
from small_runs import assert_same, config_for, pictures


def test_supervision_starts_from_the_runs_weights_sees_its_batches_and_learns_the_labels(tmp_path):
    images = pictures(64)
    told = images.domains
    images.pixels[told == 1] //= 4  # one domain is darker
    config = config_for(tmp_path, "epochs=8", "optimizer.lr=0.01")
    start = Training(config, views_of(images), total=10).towers[0].encoder.state_dict()
    still = supervised(
        dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, lr=1e-30)), images, told
    )
    for name, value in still.named_parameters():
        torch.testing.assert_close(value, start[name], atol=1e-6, rtol=0)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    body, again = (supervised(config, images, told) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert_same(body.state_dict(), again.state_dict())
    assert not body.training
    x = images.pixels.float() / 255

    def separation(network):
        z = network((x - 0.5) / 0.25).detach()
        gap = z[told == 1].mean(0) - z[told == 0].mean(0)
        return float(gap.norm() / z.std(0).norm())

    other = supervised(config, images, told[torch.randperm(64, generator=torch.Generator().manual_seed(2))])
    assert separation(body) > 1.2 * separation(other)  # labels that say nothing teach nothing
