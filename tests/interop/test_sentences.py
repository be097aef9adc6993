"""`gcalign.interop.sentence_transformers`: the losses of sentence-transformers by formula, and by its own classes.

The first part needs no library: its model returns the tensors that it is given. The second part is skipped where
sentence-transformers is not installed.
"""

from __future__ import annotations

import copy
import logging
import os
import sys

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F  # noqa: N812  # torch's own name for it

import gcalign
from gcalign import metrics
from gcalign.interop.sentence_transformers import AlignmentLoss, CachedAlignmentLoss, cos_sim

EVERY = ("ince", "gca-ince", "rince", "gca-rince", "iot", "iot-uni", "gca-uot", "gca-uot-published", "clip", "siglip")


class Embedder(nn.Module):
    """A model whose texts are rows of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 4, dtype=torch.float64)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": self.linear(features["x"])}


def texts(n: int = 6, columns: int = 2, seed: int = 0) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"x": torch.randn(n, 5, dtype=torch.float64, generator=generator)} for _ in range(columns)]


def ranking(z: list[Tensor], scale: float, symmetric: bool = False) -> Tensor:
    """Multiple negatives ranking loss, by its formula."""
    unit = [F.normalize(column, dim=1) for column in z]
    scores, own = scale * unit[0] @ torch.cat(unit[1:]).T, torch.arange(len(z[0]))
    loss = F.cross_entropy(scores, own)
    return (loss + F.cross_entropy(scores[:, : len(own)].T, own)) / 2 if symmetric else loss


def gradient(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def assert_same(one: list[Tensor], other: list[Tensor], tol: float = 1e-8) -> None:
    assert max(float(g.norm()) for g in other) > 1e-6
    torch.testing.assert_close(one, other, rtol=tol, atol=tol)


# --- without the library ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("columns", [2, 3, 5])
def test_ince_is_the_ranking_loss(columns, symmetric):
    model, features = Embedder(), texts(columns=columns)
    loss = AlignmentLoss(model, "ince", scale=7.0, symmetric=symmetric)(features)
    expected = ranking([model(column)["sentence_embedding"] for column in features], 7.0, symmetric)
    torch.testing.assert_close(loss, expected)
    assert_same(gradient(loss, model), gradient(expected, model))


@pytest.mark.parametrize("name", EVERY)
def test_hard_negatives_have_a_gradient_for_every_method(name):
    z = [torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) for k in range(4)]
    z = [column.requires_grad_() for column in z]
    criterion = AlignmentLoss(nn.Identity(), name, scale=5.0)
    loss = criterion.compute_loss_from_embeddings(z)
    grads = torch.autograd.grad(loss, z)
    assert all(float(g.norm()) > 1e-6 for g in grads)
    direction, step = [torch.randn_like(column) for column in z], 1e-5
    around = [
        criterion.compute_loss_from_embeddings(
            [x.detach() + sign * step * d for x, d in zip(z, direction, strict=True)]
        ).item()
        for sign in (1, -1)
    ]
    slope = sum(float((g * d).sum()) for g, d in zip(grads, direction, strict=True))
    assert slope == pytest.approx((around[0] - around[1]) / (2 * step), rel=2e-4, abs=1e-7)


def joint_ranking(z: list[Tensor], scale: float, directions: tuple[str, ...], mode: str | None, alpha: float) -> Tensor:
    """The ranking loss with all directions in one softmax and hardness weights, entry by entry."""
    unit = [F.normalize(column, dim=1) for column in z]
    queries, docs, n = unit[0], unit[1:], len(z[0])
    losses = []
    for i in range(n):
        logits = []
        for c, column in enumerate(docs):
            for j in range(n):
                s = queries[i] @ column[j]
                kind = "positive" if i == j and c == 0 else "hard_negatives" if i == j else "in_batch_negatives"
                raised = kind == mode or (mode == "all_negatives" and kind != "positive")
                logits.append(scale * s + (alpha * s.detach() if raised else 0))
        own = logits[i]
        if "query_to_query" in directions:
            logits += [scale * queries[i] @ queries[j] for j in range(n) if j != i]
        if "doc_to_query" in directions:
            logits += [scale * docs[0][i] @ queries[j] for j in range(n)]
        if "doc_to_doc" in directions:
            logits += [scale * docs[0][i] @ column[j] for column in docs for j in range(n) if j != i]
        losses.append(torch.stack(logits).logsumexp(0) - own)
    return torch.stack(losses).mean()


ALL = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
VARIANTS = [
    (ALL, None),
    (("doc_to_doc", "query_to_doc"), None),
    (("query_to_doc", "query_to_query"), "in_batch_negatives"),
    (("query_to_doc",), "in_batch_negatives"),
    (("query_to_doc",), "hard_negatives"),
    (ALL, "all_negatives"),
]


@pytest.mark.parametrize(("directions", "mode"), VARIANTS)
@pytest.mark.parametrize("columns", [2, 4])
def test_directions_and_hardness_are_those_of_the_formula(columns, directions, mode):
    model, features = Embedder(), texts(columns=columns)
    options = {"directions": directions, "hardness_mode": mode, "hardness_strength": 4.0}
    loss = AlignmentLoss(model, "ince", scale=7.0, **options)(features)
    expected = joint_ranking([model(column)["sentence_embedding"] for column in features], 7.0, directions, mode, 4.0)
    torch.testing.assert_close(loss, expected)
    assert_same(gradient(loss, model), gradient(expected, model))


def test_two_directions_apart_are_the_symmetric_form():
    model, features = Embedder(), texts(columns=3)
    apart = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    for name in ("ince", "gca-uot"):
        one = AlignmentLoss(model, name, **apart)(features)
        torch.testing.assert_close(one, AlignmentLoss(model, name, symmetric=True)(features))


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("clip", "siglip")])
@pytest.mark.parametrize(("directions", "mode"), [(ALL, None), (ALL[:1], "all_negatives")])
def test_directions_and_hardness_train_with_every_method(name, directions, mode):
    z = [torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    z = [column.requires_grad_() for column in z]
    options = {"directions": directions, "hardness_mode": mode, "hardness_strength": 4.0}
    loss = AlignmentLoss(nn.Identity(), name, scale=5.0, **options).compute_loss_from_embeddings(z)
    assert all(bool(g.isfinite().all()) and float(g.norm()) > 1e-6 for g in torch.autograd.grad(loss, z))


def test_a_method_of_pairs_is_that_of_the_library():
    model, features = Embedder(), texts()
    z1, z2 = (model(column)["sentence_embedding"] for column in features)
    expected = gcalign.method("gca-uot", eps=1 / 20, relax=(1.0, 1.0))(z1, z2)
    torch.testing.assert_close(AlignmentLoss(model, "gca-uot", relax=(1.0, 1.0))(features), expected)


def test_the_temperature_can_be_given_in_place_of_the_scale():
    criterion, cached = (loss(nn.Identity(), "gca-uot", eps=0.1) for loss in (AlignmentLoss, CachedAlignmentLoss))
    assert criterion.scale == cached.loss.scale == pytest.approx(10)
    assert repr(criterion.criterion) == repr(gcalign.method("gca-uot", eps=0.1, gather=False))


def test_another_similarity_is_the_kernel():
    def dot_score(a: Tensor, b: Tensor) -> Tensor:
        return a @ b.T

    z = [torch.randn(6, 4, dtype=torch.float64).requires_grad_() for _ in range(3)]
    loss = AlignmentLoss(nn.Identity(), "ince", 1.0, dot_score).compute_loss_from_embeddings(z)
    expected = F.cross_entropy(z[0] @ torch.cat(z[1:]).T, torch.arange(6))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, z), torch.autograd.grad(expected, z))


def test_half_precision_is_computed_in_float32():
    z = [torch.randn(8, 16).bfloat16() for _ in range(3)]
    loss = AlignmentLoss(nn.Identity(), "gca-ince").compute_loss_from_embeddings(z)
    exact = AlignmentLoss(nn.Identity(), "gca-ince").compute_loss_from_embeddings([x.double() for x in z])
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(exact), rel=1e-4)


def test_a_cached_loss_of_chunks_is_the_loss_of_the_batch():
    z = [torch.randn(7, 4, dtype=torch.float64) for _ in range(3)]
    expected = AlignmentLoss(nn.Identity(), "gca-ince").compute_loss_from_embeddings(z)
    chunks = [[part.clone().requires_grad_() for part in column.split(3)] for column in z]
    loss = CachedAlignmentLoss(nn.Identity(), "gca-ince").calculate_loss(chunks, with_backward=True)
    torch.testing.assert_close(loss, expected)
    assert not loss.requires_grad
    assert all(float(part.grad.norm()) > 0 for column in chunks for part in column)


class Guide(nn.Module):
    """A guide that compares the numbers themselves."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features["x"]}


def test_a_guide_leaves_out_what_it_finds_more_similar():
    features = texts()
    features[1]["x"][3] = features[0]["x"][0]  # a false negative of the first anchor
    model = Embedder()
    z1, z2 = (model(column)["sentence_embedding"] for column in features)
    allowed = gcalign.guided(features[0]["x"], features[1]["x"], 0.1)
    assert not bool(allowed[0, 3])
    expected = gcalign.method("ince", eps=0.05)(z1, z2, allowed=allowed)
    torch.testing.assert_close(AlignmentLoss(model, "ince", guide=Guide(), margin=0.1)(features), expected)


def test_settings_are_those_of_the_model_card():
    settings = AlignmentLoss(nn.Identity(), "gca-uot", relax=(1.0, 1.0)).get_config_dict()
    assert settings["method"] == "gca-uot"
    assert settings["scale"] == 20.0
    assert settings["similarity_fct"] == "cos_sim"
    assert settings["relax"] == (1.0, 1.0)
    assert "Rows(penalty=1.0)" in settings["criterion"]
    assert CachedAlignmentLoss(nn.Identity(), mini_batch_size=8).get_config_dict()["mini_batch_size"] == 8
    assert "2502.20141" in AlignmentLoss(nn.Identity()).citation


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: AlignmentLoss(nn.Identity(), scale=-1.0), "scale=-1"),
        (lambda: AlignmentLoss(nn.Identity(), eps=0.1, scale=5.0), "give one of them"),
        (lambda: AlignmentLoss(nn.Identity(), eps=-0.1), "eps=-0.1 must be > 0"),
        (lambda: AlignmentLoss(nn.Identity(), "gca-uott"), "did you mean"),
        (lambda: AlignmentLoss(nn.Identity(), "byol", similarity_fct=torch.cdist), "cosine kernel"),
        (lambda: AlignmentLoss(nn.Identity()).compute_loss_from_embeddings([torch.eye(3)]), "at least two"),
        (lambda: AlignmentLoss(nn.Identity(), directions=("doc_to_doc",)), "must have 'query_to_doc'"),
        (lambda: AlignmentLoss(nn.Identity(), directions=ALL, partition_mode="per_direction"), "write partition_mode"),
        (lambda: AlignmentLoss(nn.Identity(), directions=ALL, symmetric=True), "no symmetric form"),
        (lambda: AlignmentLoss(nn.Identity(), directions=ALL, gather_across_devices=True), "leave out gather_across"),
        (lambda: AlignmentLoss(nn.Identity(), directions=ALL, block=4), "leave out block"),
        (lambda: AlignmentLoss(nn.Identity(), hardness_mode="hard"), "hardness_mode='hard'"),
        (lambda: AlignmentLoss(nn.Identity(), hardness_strength=-1.0), "hardness_strength=-1"),
        (lambda: CachedAlignmentLoss(nn.Identity(), learnable=True), "cannot be learnt"),
        (lambda: CachedAlignmentLoss(nn.Identity(), mini_batch_size=0), "mini_batch_size=0"),
        (lambda: CachedAlignmentLoss(nn.Identity(), guide=nn.Identity()), "use AlignmentLoss"),
    ],
)
def test_a_wrong_loss_is_refused(mistake, words):
    with pytest.raises((TypeError, ValueError), match=words):
        mistake()


def test_a_learnt_temperature_is_a_parameter_of_the_loss():
    assert not list(AlignmentLoss(nn.Identity(), "clip").parameters())
    assert len(list(AlignmentLoss(nn.Identity(), "clip", learnable=True).parameters())) == 1


def gathered_main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    results = {}
    for name in ("ince", "gca-ince", "gca-uot"):
        leaves = [drawn(k)[5 * rank : 5 * rank + 5].clone().requires_grad_() for k in range(4)]
        loss = AlignmentLoss(nn.Identity(), name, 5.0, symmetric=True, gather_across_devices=True)
        value = loss.compute_loss_from_embeddings(leaves)
        results[name] = (value.detach(), *torch.autograd.grad(value, leaves))
    torch.save(results, os.path.join(folder, f"{rank}.pt"))
    dist.destroy_process_group()


def drawn(seed: int) -> Tensor:
    return torch.randn(10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.skipif(sys.platform == "win32" or not dist.is_gloo_available(), reason="needs gloo")
def test_gathered_batches_with_hard_negatives_are_one_batch(tmp_path):
    mp.spawn(gathered_main, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for name in ranks[0]:
        leaves = [drawn(k).requires_grad_() for k in range(4)]
        whole = AlignmentLoss(nn.Identity(), name, 5.0, symmetric=True).compute_loss_from_embeddings(leaves)
        values = [rank[name][0] for rank in ranks]
        torch.testing.assert_close(sum(values) / 2, whole.detach())  # each is the mean over its own rows
        assert values[0] != values[1]
        for k, expected in enumerate(torch.autograd.grad(whole, leaves), start=1):
            # DDP takes the mean over ranks, so that each has twice its share
            torch.testing.assert_close(torch.cat([rank[name][k] for rank in ranks]) / 2, expected)


# --- signs of a collapse ----------------------------------------------------------------------------------------


def test_the_mean_cosine_of_negatives_is_a_plain_mean():
    z1, z2 = torch.randn(2, 7, 3, dtype=torch.float64)
    cosines = cos_sim(z1, z2)
    expected = sum(cosines[i, j] for i in range(7) for j in range(7) if i != j) / 42
    torch.testing.assert_close(metrics.negative_similarity(z1, z2), expected)


def test_a_collapse_is_logged_once_with_its_remedy(caplog):
    spread, criterion = [torch.randn(8, 16) for _ in range(2)], AlignmentLoss(nn.Identity(), "ince")
    together = [1 + 0.1 * column for column in spread]
    with caplog.at_level(logging.WARNING):
        for step in range(301):
            criterion.compute_loss_from_embeddings(spread if step < 50 else together)
    assert len(caplog.records) == 1
    assert "moving together" in caplog.text
    assert "center=True" in caplog.text


def test_one_batch_in_a_hundred_is_looked_at(monkeypatch):
    criterion, looked = AlignmentLoss(nn.Identity(), "gca-uot", relax=(5.0, 5.0)), []
    plan = criterion.criterion.plan
    monkeypatch.setattr(criterion.criterion, "plan", lambda *z, **known: looked.append(1) or plan(*z, **known))
    z = [torch.eye(4) + 0.1 * torch.randn(4, 4) for _ in range(2)]
    for _ in range(150):
        criterion.compute_loss_from_embeddings(z)
    assert len(looked) == 2


def test_an_encoder_that_starts_with_high_cosines_is_no_collapse(caplog):
    together, criterion = [1 + 0.1 * torch.randn(8, 16) for _ in range(2)], AlignmentLoss(nn.Identity(), "gca-ince")
    with caplog.at_level(logging.WARNING):
        for _ in range(201):
            criterion.compute_loss_from_embeddings(together)
    assert not caplog.records


def test_a_plan_that_has_lost_its_mass_is_logged(caplog):
    spread = [torch.randn(16, 64) for _ in range(2)]
    with caplog.at_level(logging.WARNING):
        AlignmentLoss(nn.Identity(), "gca-uot", relax=(0.2, 0.2)).compute_loss_from_embeddings(spread)
    assert "of the target's mass" in caplog.text
    assert "least_mass=True" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        AlignmentLoss(nn.Identity(), "gca-uot").compute_loss_from_embeddings(spread)
    assert not caplog.records
    plan = gcalign.method("gca-uot-paper", eps=0.05).plan(*spread)
    assert float(plan.mass) < 8
    assert metrics.collapse(*spread, gcalign.method("gca-ince").plan(*spread).mass / 16) is None


# --- with the library -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("sentence_transformers", minversion="6.0")


SENTENCES = {
    "anchor": ["a red apple", "two blue cars", "the old house", "green grass", "a cold winter", "one small dog"],
    "positive": ["apple of red colour", "cars, two, blue", "house that is old", "grass, green", "winter cold", "dog"],
    "negative": ["a green apple", "two red cars", "the new house", "dry grass", "a hot summer", "one big cat"],
}


@pytest.fixture
def static(library):
    """A static model that is made here: words of the sentences, 16 numbers each."""
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted({w for column in SENTENCES.values() for text in column for w in text.replace(",", " ,").split()})
    vocabulary = {"[UNK]": 0, **{word: k for k, word in enumerate(words, 1)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    return library.SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")


@pytest.fixture
def transformer(library, tmp_path):
    """A BERT of two small layers, made here."""
    import transformers
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    words = sorted({w for column in SENTENCES.values() for text in column for w in text.replace(",", " ").split()})
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", *words]))
    config = transformers.BertConfig(
        vocab_size=6 + len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(tmp_path)
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    first = Transformer(str(tmp_path))
    return library.SentenceTransformer(modules=[first, Pooling(16)], device="cpu")


def features_of(model, columns: int) -> list[dict[str, Tensor]]:
    return [model.preprocess(list(column)) for column in list(SENTENCES.values())[:columns]]


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("kind", ["static", "transformer"])
@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("symmetric", [False, True])
def test_ince_is_the_loss_of_the_original(library, request, kind, columns, symmetric):
    from sentence_transformers.sentence_transformer import losses

    model = request.getfixturevalue(kind).eval()
    directions = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    theirs = losses.MultipleNegativesRankingLoss(model, **(directions if symmetric else {}))
    ours = AlignmentLoss(model, "ince", similarity_fct=library.util.cos_sim, symmetric=symmetric)
    values = [criterion(features_of(model, columns), None) for criterion in (theirs, ours)]
    assert values[1].item() == pytest.approx(values[0].item(), abs=1e-5)
    assert_same(gradients(values[1], model), gradients(values[0], model), 1e-5)


@pytest.mark.parametrize("columns", [2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {"directions": ALL},
        {"hardness_mode": "hard_negatives", "hardness_strength": 5.0},
        {"directions": ALL[:2], "hardness_mode": "all_negatives", "hardness_strength": 9.0},
        {
            "directions": ("query_to_doc", "doc_to_query"),
            "partition_mode": "per_direction",
            "hardness_mode": "in_batch_negatives",
            "hardness_strength": 9.0,
        },
    ],
)
def test_directions_and_hardness_are_those_of_the_original(library, static, columns, options):
    from sentence_transformers.sentence_transformer import losses

    both = (losses.MultipleNegativesRankingLoss(static, **options), AlignmentLoss(static, "ince", **options))
    values = [criterion(features_of(static, columns), None) for criterion in both]
    assert values[1].item() == pytest.approx(values[0].item(), abs=1e-5)
    assert_same(gradients(values[1], static), gradients(values[0], static), 1e-5)


@pytest.mark.parametrize("name", ["ince", "gca-ince", "gca-uot"])
def test_the_cached_loss_is_the_loss(library, transformer, name):
    from sentence_transformers.sentence_transformer import losses

    model = transformer.eval()
    plain, cached = AlignmentLoss(model, name), CachedAlignmentLoss(model, name, mini_batch_size=4)
    values = [criterion(features_of(model, 3), None) for criterion in (plain, cached)]
    assert values[1].item() == pytest.approx(values[0].item(), abs=1e-5)
    expected = gradients(values[0], model)
    assert_same(gradients(values[1], model), expected, 1e-5)
    if name == "ince":
        theirs = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=4)(features_of(model, 3), None)
        assert_same(gradients(theirs, model), expected, 1e-5)


@pytest.mark.parametrize("cached", [False, True])
def test_matryoshka_wraps_the_loss(library, transformer, cached):
    from sentence_transformers.sentence_transformer import losses

    model = transformer.eval()
    dims = [16, 8, 4]
    theirs = losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model), dims)
    own = CachedAlignmentLoss(model, "ince", mini_batch_size=4) if cached else AlignmentLoss(model, "ince")
    ours = losses.MatryoshkaLoss(model, own, dims)
    values = [criterion(features_of(model, 2), None) for criterion in (theirs, ours)]
    assert values[1].item() == pytest.approx(values[0].item(), abs=1e-5)
    expected = gradients(values[0], model)
    assert_same(gradients(values[1], model), expected, 1e-5)


def test_a_static_model_is_refused_by_the_cached_loss(static):
    with pytest.raises(ValueError, match="use AlignmentLoss"):
        CachedAlignmentLoss(static)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("cached", [False, True])
def test_the_trainer_trains_with_it_and_its_card_names_it(library, transformer, tmp_path, cached):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("accelerate")
    own = CachedAlignmentLoss(transformer, "gca-uot", mini_batch_size=2)
    own = own if cached else AlignmentLoss(transformer, "gca-uot")
    arguments = library.SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "out"), num_train_epochs=2, per_device_train_batch_size=3, learning_rate=1e-2,
        gradient_accumulation_steps=2, gradient_checkpointing=True, bf16=True, use_cpu=True, report_to=[],
        prompts={"anchor": "a red "}, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    before = copy.deepcopy(transformer.state_dict())
    trainer = library.SentenceTransformerTrainer(
        model=transformer, args=arguments, train_dataset=datasets.Dataset.from_dict(SENTENCES), loss=own
    )
    trainer.train()
    assert any(not torch.equal(value, before[key]) for key, value in transformer.state_dict().items())
    transformer.save(str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text()
    assert type(own).__name__ in card
    assert "2502.20141" in card
