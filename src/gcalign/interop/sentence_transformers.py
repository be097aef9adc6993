"""The ranking losses of sentence-transformers, for any method."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gcalign import metrics
from gcalign.alignment import Symmetric
from gcalign.constraints import can_lose_mass
from gcalign.errors import count, one_of, positive
from gcalign.interop.guides import guided
from gcalign.interop.ranks import with_own_value
from gcalign.kernels import Cosine, Kernel, normalize
from gcalign.methods import method as named

try:
    from sentence_transformers.base.losses.gradcache import CachedLossMixin
    from sentence_transformers.base.losses.merged_forward import embed_columns
except ImportError:  # not installed, or older than 6.0

    class CachedLossMixin:  # type: ignore[no-redef]  # its place, if it is missing
        """Stands in for the mixin of sentence-transformers that caches gradients."""

        def forward_cached(self, features: Any, labels: Any) -> Tensor:
            raise ImportError(
                "CachedAlignmentLoss uses the gradient cache of sentence-transformers 6.0 or later; install it with "
                "pip install 'sentence-transformers>=6', or use AlignmentLoss"
            )

    def embed_columns(model: Any, features: list[Any]) -> list[Tensor]:
        return [model(column)["sentence_embedding"] for column in features]


logger = logging.getLogger(__name__)
SCALE = 20.0  # the default of the library
CHECK_EVERY = 100  # calls between two looks at the embeddings; each solves a plan once more
DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
PARTITIONS = ("joint", "per_direction")
HARDNESS = ("in_batch_negatives", "hard_negatives", "all_negatives")
_FIXED = {
    "gather": "write gather_across_devices=",
    "reduction": "the loss is a mean",
    "warm_start": "texts have no ids here",
}
CITATION = """
@misc{chen2025yourcontrastive,
    title={Your contrastive learning problem is secretly a distribution alignment problem},
    author={Zihao Chen and Chi-Heng Lin and Ran Liu and Jingyun Xiao and Eva L. Dyer},
    year={2025},
    eprint={2502.20141},
    archivePrefix={arXiv},
    primaryClass={cs.LG}
}
"""


def cos_sim(a: Tensor, b: Tensor) -> Tensor:  # [n, D], [m, D] -> [n, m]
    """The cosine of each pair, as `sentence_transformers.util.cos_sim`."""
    return normalize(a) @ normalize(b).T


class AlignmentLoss(nn.Module):
    """`MultipleNegativesRankingLoss` of sentence-transformers for any method: rows are anchors, columns candidates.

    With `method="ince"` it has the loss and the gradients of `MultipleNegativesRankingLoss`, and with `symmetric=True`
    those of its symmetric form. Its columns are those of the original: anchors, positives and any number of hard
    negatives. All negatives of the batch are candidates of every anchor, and get a gradient. It works in
    `SentenceTransformerTrainer` and in `MatryoshkaLoss`. Half precision is computed in float32.

    If the embeddings move together, or the plan loses most of its mass, a warning in the log names the remedy, once.

    Args:
        model: a `SentenceTransformer`.
        method: the name of a method, e.g. "gca-uot".
        scale: similarities are multiplied by it; 1 / ε.
        similarity_fct: similarity of all pairs of two matrices of embeddings. For cosines the kernel need not be
            stored; any other function, e.g. `dot_score`, is called with all rows.
        symmetric: whether the loss from positives to anchors is averaged in. It has no hard negatives, as there.
        gather_across_devices: whether the batches of all processes are joined, with gradient.
        guide: a second `SentenceTransformer` with the same tokenizer. Texts of other pairs that it finds more similar
            than the positive are left out, as in GISTEmbed; see `gcalign.guided`. Hard negatives stay.
        margin: of the guide.
        directions: which similarities are candidates of a pair: those of the anchor to all texts ("query_to_doc",
            always) and to other anchors ("query_to_query"), of the positive to anchors ("doc_to_query") and to texts of
            other pairs ("doc_to_doc"). As in the original, see `partition_mode`.
        partition_mode: "joint" has the candidates of all directions in one row of the plan. "per_direction" with
            "doc_to_query" is `symmetric=True`.
        hardness_mode: the negatives whose similarity s is raised by `hardness_strength` · s before the plan, without a
            gradient: "in_batch_negatives" (texts of other pairs), "hard_negatives" (the pair's own) or "all_negatives".
        hardness_strength: of `hardness_mode`, added to `scale`.
        eps: temperature ε, in place of `scale`.
        options: options of the method, e.g. `least_mass=True` or `block=1024`.

    Example:
        >>> import torch
        >>> from gcalign.interop.sentence_transformers import AlignmentLoss
        >>> model = lambda features: {"sentence_embedding": features["x"]}
        >>> anchors, positives, negatives = ({"x": torch.randn(8, 4)} for _ in range(3))
        >>> AlignmentLoss(model, method="gca-uot")([anchors, positives, negatives]).shape
        torch.Size([])
    """

    def __init__(
        self,
        model: Any,
        method: str = "gca-ince",
        scale: float = SCALE,
        similarity_fct: Callable[[Tensor, Tensor], Tensor] = cos_sim,
        symmetric: bool = False,
        gather_across_devices: bool = False,
        *,
        guide: Any = None,
        margin: float = 0.0,
        directions: Sequence[str] = DIRECTIONS[:1],
        partition_mode: str = "joint",
        hardness_mode: str | None = None,
        hardness_strength: float = 0.0,
        eps: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if eps is not None:
            if scale != SCALE:
                raise TypeError(
                    f"eps={eps} and scale={scale} both say the temperature, ε = 1 / scale; give one of them"
                )
            scale = 1 / positive("eps", eps, "it is 1 / scale, and 0.05 is usual for cosines")
        positive("scale", scale, "similarities are multiplied by it; 20 is usual for cosines")
        for word, why in _FIXED.items():
            if word in options:
                raise TypeError(f"{word}={options[word]!r} cannot be chosen here: {why}")
        if guide is not None and _vocabulary(guide) != _vocabulary(model):
            raise ValueError("the tokenizer of guide must be that of model, whose tokens it reads; choose such a guide")
        one_of("partition_mode", partition_mode, PARTITIONS)
        positive("hardness_strength", hardness_strength, "the papers use 5 and 9", zero=True)
        if hardness_mode is not None:
            one_of("hardness_mode", hardness_mode, HARDNESS)
        self.directions, self.partition_mode = _checked(directions, partition_mode), partition_mode
        self.hardness_mode, self.hardness_strength = hardness_mode, hardness_strength
        symmetric = symmetric or (partition_mode == "per_direction" and "doc_to_query" in directions)
        self._more = self.directions[1:] if partition_mode == "joint" else ()
        self.model, self.guide = model, guide
        self.method, self.scale, self.similarity_fct, self.symmetric = method, scale, similarity_fct, symmetric
        self.gather_across_devices, self.margin, self.options = gather_across_devices, margin, options
        self.criterion = self._criterion(self._more, hardness_mode if hardness_strength else None)
        hardened = self.symmetric and hardness_mode is not None
        self._back = self._criterion() if hardened else self.criterion  # no hardness there, as in the original
        self._calls, self._first_cosine, self._warned = 0, math.nan, False

    def _criterion(self, more: Sequence[str] = (), hardness: str | None = None) -> Any:
        """The criterion of rows of candidates; `more` directions and hardness need a kernel of their own."""
        gather = self.gather_across_devices
        chosen = {"layout": "cross", "learnable": False, **self.options}
        reduction = "none" if gather else "mean"
        criterion: Any = named(self.method, eps=1 / self.scale, gather=gather, reduction=reduction, **chosen)
        if isinstance(criterion, Symmetric):
            criterion, self.symmetric = criterion.alignment, True
        cosines = _name(self.similarity_fct) in ("cos_sim", "pytorch_cos_sim")
        if cosines and not more and hardness is None:
            return criterion
        asked = "similarity_fct" if not cosines else "directions" if more else "hardness_mode"
        if not isinstance(criterion.kernel, Cosine) or criterion.kernel.learnable:
            raise ValueError(
                f"method={self.method!r} with {asked}= must have the cosine kernel and a fixed eps; try 'gca-ince', or "
                f"leave out {asked} and learnable"
            )
        if more and self.symmetric:
            raise ValueError(
                f"directions={self.directions} in one row of the plan have no symmetric form; leave out symmetric, or "
                "write partition_mode='per_direction' and directions=('query_to_doc', 'doc_to_query')"
            )
        if (more or hardness is not None) and (gather or "block" in self.options):
            other = "gather_across_devices" if gather else "block"
            raise ValueError(f"{asked}= reads whole columns of one process; leave out {other}, or {asked}")
        criterion.kernel = _Similarity(1 / self.scale, self.similarity_fct, more, hardness, self.hardness_strength)
        return criterion

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """The loss of the columns (anchors, positives, negatives, …); labels are not read."""
        features = list(sentence_features)
        allowed = None if self.guide is None else self._allowed(features)
        return self.compute_loss_from_embeddings(embed_columns(self.model, features), labels, allowed)

    def compute_loss_from_embeddings(
        self,
        embeddings: list[Tensor],  # of [n, D]
        labels: Tensor | None = None,
        allowed: Tensor | None = None,  # [n, n]
    ) -> Tensor:
        """The loss of the embeddings of each column."""
        if len(embeddings) < 2:
            raise ValueError(f"{len(embeddings)} column of texts; give at least two: anchors and their positives")
        anchors, positives = embeddings[:2]
        columns = [*embeddings[2:], *(x for name in self._more for x in _columns(name, embeddings))]
        negatives = torch.cat(columns) if columns else None
        self._watch(anchors, positives, negatives)
        loss = self.criterion(anchors, positives, negatives=negatives, allowed=allowed)
        if self.symmetric:
            back = self._back(positives, anchors, allowed=None if allowed is None else allowed.T)
            loss = 0.5 * (loss + back)
        return with_own_value(loss, len(anchors)) if self.gather_across_devices else loss

    @torch.no_grad()
    def _allowed(self, features: list[dict[str, Tensor]]) -> Tensor:
        """Which pairs of anchors and positives the guide leaves."""
        guide = self.guide.eval()
        one, two = (guide(dict(column))["sentence_embedding"] for column in features[:2])
        return guided(one, two, self.margin)

    @torch.no_grad()
    def _watch(self, anchors: Tensor, positives: Tensor, negatives: Tensor | None) -> None:
        """Log a warning, once, if the embeddings collapse; looks at every hundredth batch."""
        calls, self._calls = self._calls, self._calls + 1
        if self._warned or calls % CHECK_EVERY or len(anchors) < 2:
            return
        share = None
        if can_lose_mass(self.criterion.constraints):
            share = self.criterion.plan(anchors, positives, negatives=negatives).mass / len(anchors)
        if math.isnan(self._first_cosine):
            self._first_cosine = float(metrics.negative_similarity(anchors, positives))
        message = metrics.collapse(anchors, positives, share, start=self._first_cosine)
        if message is not None:
            self._warned = True
            logger.warning(message)

    def get_config_dict(self) -> dict[str, Any]:
        """The settings, for the model card."""
        settings = {
            "method": self.method,
            "scale": self.scale,
            "similarity_fct": _name(self.similarity_fct),
            "symmetric": self.symmetric,
            "gather_across_devices": self.gather_across_devices,
            "directions": self.directions,
            "partition_mode": self.partition_mode,
            "hardness_mode": self.hardness_mode,
            "hardness_strength": self.hardness_strength,
        }
        if self.guide is not None:
            settings.update(guide=self.guide, margin=self.margin)
        return {**settings, **self.options, "criterion": repr(self.criterion)}

    @property
    def temperature(self) -> float:
        """ε."""
        return 1 / self.scale

    @property
    def citation(self) -> str:
        """The paper, for the model card."""
        return CITATION


class CachedAlignmentLoss(CachedLossMixin, nn.Module):  # type: ignore[misc]  # the library may be missing
    """`AlignmentLoss` for large batches in the memory of `mini_batch_size` texts, as the cached losses of the library.

    Every text is encoded twice: see `gcalign.cached_backward`. The loss and the gradients are those of `AlignmentLoss`.
    The kernel is stored whole unless `block=` is given.

    Args:
        model, method, scale, similarity_fct, symmetric, gather_across_devices: as for `AlignmentLoss`.
        mini_batch_size: texts that are encoded at once.
        mini_batch_num_tokens: encode as many texts at once as have this many tokens, instead.
        show_progress_bar: of the library's cache.
        options: options of the method; ε cannot be learnt here.

    Example:
        >>> import torch
        >>> from gcalign.interop.sentence_transformers import CachedAlignmentLoss
        >>> criterion = CachedAlignmentLoss(torch.nn.Identity(), method="ince", mini_batch_size=4)
        >>> columns = [[torch.randn(4, 3), torch.randn(4, 3)] for _ in range(2)]
        >>> criterion.calculate_loss(columns).shape
        torch.Size([])
    """

    loss: AlignmentLoss
    forward_cached: Callable[..., Tensor]  # of the mixin

    def __init__(
        self,
        model: Any,
        method: str = "gca-ince",
        scale: float = SCALE,
        similarity_fct: Callable[[Tensor, Tensor], Tensor] = cos_sim,
        symmetric: bool = False,
        gather_across_devices: bool = False,
        mini_batch_size: int = 32,
        *,
        mini_batch_num_tokens: int | None = None,
        show_progress_bar: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        if options.get("guide") is not None:
            raise TypeError("guide= is not for CachedAlignmentLoss; use AlignmentLoss, or leave it out")
        if any("StaticEmbedding" in type(part).__name__ for part in _first_modules(model)):
            raise ValueError("the texts of a StaticEmbedding cannot be split into mini-batches; use AlignmentLoss")
        self.model = model
        self.loss = AlignmentLoss(
            model, method, scale, similarity_fct, symmetric, gather_across_devices, **options
        )  # fmt: skip
        if any(True for _ in self.loss.criterion.parameters()):
            raise ValueError("eps cannot be learnt by CachedAlignmentLoss; leave out learnable, or use AlignmentLoss")
        self.mini_batch_size = count("mini_batch_size", mini_batch_size, "texts that are encoded at once, e.g. 32")
        self.mini_batch_num_tokens, self.show_progress_bar = mini_batch_num_tokens, show_progress_bar

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """The loss of the columns; its gradient is computed already, and passed on by `backward`."""
        return self.forward_cached(list(sentence_features), labels)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of the embeddings of each column, which come in chunks."""
        loss = self.loss.compute_loss_from_embeddings([torch.cat(column) for column in reps], labels)
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """The settings, for the model card."""
        return {**self.loss.get_config_dict(), "mini_batch_size": self.mini_batch_size}

    @property
    def citation(self) -> str:
        """The paper, for the model card."""
        return CITATION


class _Similarity(Kernel):
    """log K = (s − 1)/ε for any function s of all pairs, with columns for more directions, and hardness.

    Columns are the positives, c − 1 columns of hard negatives, and the texts of each further direction in its order.
    Of these, a text and its own pair have no entry.
    """

    def __init__(
        self,
        eps: float,
        similarity: Callable[[Tensor, Tensor], Tensor],
        more: Sequence[str] = (),
        hardness: str | None = None,
        strength: float = 0.0,
    ) -> None:
        super().__init__(eps)
        self.similarity, self.more, self.hardness, self.strength = similarity, more, hardness, strength

    def cost(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.more and self.hardness is None:
            return 1 - self.similarity(x, y)
        n, all_texts = len(x), "doc_to_doc" in self.more
        single = len(self.more) - all_texts
        texts = y[: (len(y) - single * n) // (1 + all_texts)]
        more = [self._direction(name, x, texts) for name in self.more]
        return 1 - torch.cat([self._hardened(self.similarity(x, texts)), *more], 1)

    def _hardened(self, s: Tensor) -> Tensor:  # [n, c·n] -> [n, c·n]
        if self.hardness is None:
            return s
        own, positives = _own(s), torch.arange(s.shape[1], device=s.device) < len(s)
        chosen = {
            "in_batch_negatives": ~own,
            "hard_negatives": own & ~positives,
            "all_negatives": ~(own & positives),
        }[self.hardness]
        return s + torch.where(chosen, self.strength * self._eps * s.detach(), 0.0)

    def _direction(self, name: str, x: Tensor, texts: Tensor) -> Tensor:
        positives = texts[: len(x)]
        if name == "doc_to_query":
            return self.similarity(x, positives).T
        s = self.similarity(x, x) if name == "query_to_query" else self.similarity(texts, positives).T
        return s.masked_fill(_own(s), -math.inf)

    def extra_repr(self) -> str:
        words = [_name(self.similarity), super().extra_repr(), *self.more]
        return ", ".join(words if self.hardness is None else [*words, f"{self.hardness}={self.strength:g}"])


def _own(s: Tensor) -> Tensor:  # [n, c·n]
    """Which texts belong to the pair of the row."""
    n = len(s)
    row = torch.arange(n, device=s.device)
    return row[:, None] == row.repeat(s.shape[1] // n)


def _columns(direction: str, embeddings: list[Tensor]) -> list[Tensor]:
    """The texts that are candidates in a direction."""
    return embeddings[1:] if direction == "doc_to_doc" else embeddings[:1]


def _checked(directions: Sequence[str], partition_mode: str) -> tuple[str, ...]:
    """The directions in their order."""
    for name in directions:
        one_of("directions", name, DIRECTIONS)
    if DIRECTIONS[0] not in directions:
        raise ValueError(f"directions={tuple(directions)} must have 'query_to_doc', the direction of the pairs; add it")
    alike = [name for name in ("query_to_query", "doc_to_doc") if name in directions]
    if partition_mode == "per_direction" and alike:
        raise ValueError(
            f"{alike[0]!r} has no pairs of its own to tell apart; write partition_mode='joint', or leave it out"
        )
    return tuple(name for name in DIRECTIONS if name in directions)


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _vocabulary(model: Any) -> Any:
    tokenizer: Any = getattr(model, "tokenizer", None)
    return tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else None


def _first_modules(model: Any) -> list[Any]:
    """The modules that read tokens: the first one, or the first of each route."""
    first = next(iter(model.children()), None) if isinstance(model, nn.Module) else None
    routes = getattr(first, "sub_modules", None)
    return [first] if routes is None else [route[0] for route in routes.values()]
