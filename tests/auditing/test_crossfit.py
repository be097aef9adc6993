"""Pairs of texts become embeddings in one space, and no pair is embedded by encoders that saw it."""

from __future__ import annotations

import torch

import gcalign
from gcalign.auditing import crossfit, texts
from gcalign.auditing.texts import bags, groups, split


def test_bags_hold_the_n_grams_of_each_text_alone():
    alone, together = bags(["red heart"]), bags(["blue", "red  HEART", "x"])
    codes, offsets = together.take(torch.tensor([1]))
    assert sorted(codes.tolist()) == sorted(alone.codes.tolist())
    assert offsets.tolist() == [0]
    assert len(codes) == sum(len(" red heart ") - n + 1 for n in texts.LENGTHS)
    codes, offsets = together.take(torch.tensor([2, 0]))
    assert offsets.tolist() == [0, len(" x ") * 2 - 3]  # two of length 2, one of length 3


def test_pairs_that_share_a_text_are_in_one_fold():
    first = [f"text {k % 40}" for k in range(100)]
    second = [f"texte {k}" for k in range(90)] + ["texte 1"] * 10
    group = groups(first, second)
    fold = split(group, 3)
    assert all(len(set(fold[group == g].tolist())) == 1 for g in group.unique())
    assert max(torch.bincount(fold)) - min(torch.bincount(fold)) <= 12
    assert int(group[99]) == int(group[1])


def test_no_encoder_has_seen_what_it_embeds(monkeypatch):
    members = []
    train = crossfit._trained
    monkeypatch.setattr(
        crossfit, "_trained", lambda a, b, some, *more: members.append(some) or train(a, b, some, *more)
    )
    monkeypatch.setattr(crossfit, "STEPS", 2)
    words = [f"word {k} {k * 7 % 11}" for k in range(60)]
    fold = crossfit.folds_of(words, words[::-1])
    crossfit.crossfitted(crossfit.TextItems(words), crossfit.TextItems(words[::-1]), fold)
    assert len(members) == 3
    for k, some in enumerate(members):
        assert not (fold[some] == k).any()


def test_images_and_numbers_are_learnt_too():
    generator = torch.Generator().manual_seed(0)
    colour = torch.randint(256, (300, 3), generator=generator)
    pixels = colour[:, :, None, None].expand(-1, -1, 16, 16).to(torch.uint8)
    numbers = colour.float() @ torch.randn(3, 10, generator=generator)
    numbers[:30] = numbers[:30].roll(1, 0)
    found = gcalign.audit(pixels, numbers)
    wrong = torch.arange(300) < 30
    assert float((found.suspicion[wrong][:, None] > found.suspicion[~wrong]).double().mean()) > 0.8
