"""Pairs of texts become embeddings in one space, and no pair is embedded by encoders that saw it."""

from __future__ import annotations

import torch

import gcalign
from gcalign.auditing import texts
from gcalign.auditing.texts import bags, embed_texts, groups, split


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
    seen = []
    train = texts.train
    monkeypatch.setattr(texts, "train", lambda a, b, members, **o: seen.append(members) or train(a, b, members, **o))
    words = [f"word {k} {k * 7 % 11}" for k in range(60)]
    _, _, fold = embed_texts(words, words[::-1], width=8, epochs=1, batch=16)
    assert len(seen) == 3
    for k, members in enumerate(seen):
        assert not (fold[members] == k).any()


def test_wrong_translations_are_found_with_what_is_learnt_from_the_others():
    generator = torch.Generator().manual_seed(0)
    english = ["red", "blue", "green", "small", "large", "old", "open", "close", "fast", "slow", "house", "tree"]
    other = {word: "".join(chr(ord("a") + (ord(c) * 7 + 3) % 26) for c in word) for word in english}
    draw = torch.randint(len(english), (1500, 5), generator=generator).tolist()
    first = [" ".join(english[k] for k in row) for row in draw]
    second = [" ".join(other[english[k]] for k in row) for row in draw]
    second[:150] = second[1:150] + second[:1]
    a, b, fold = embed_texts(first, second, width=32, batch=128)
    found = gcalign.audit(a, b, folds=fold)
    wrong = torch.arange(1500) < 150
    assert float(wrong[found.ranking[:150]].double().mean()) > 0.9
    assert found.share_at_least <= 0.1 <= found.share_at_most
