"""A bilingual static model of sentence-transformers, trained from nothing with `AlignmentLoss`, without a download.

python examples/sentences_static.py                  # number words, English and German
python examples/sentences_static.py pairs.parquet    # your pairs: columns english and translation
"""

import re
import sys
import tempfile

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from gcalign.interop.sentence_transformers import AlignmentLoss

ONES = {
    "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
    "siebzehn achtzehn neunzehn",
}
TENS = {
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
    "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
}


def spelled(n: int, language: str) -> str:
    ones, tens, hundreds, rest = ONES[language].split(), TENS[language].split(), n // 100, n % 100
    words = [f"{ones[hundreds]} {'hundred' if language == 'en' else 'hundert'}"] if hundreds else []
    if rest >= 20 and rest % 10:
        ten, one = tens[rest // 10 - 2], ones[rest % 10]
        words.append(f"{ten} {one}" if language == "en" else f"{one} und {ten}")
    elif rest >= 20:
        words.append(tens[rest // 10 - 2])
    elif rest or not hundreds:
        words.append(ones[rest])
    return " ".join(words)


def numbers() -> list[tuple[str, str]]:
    """Pairs from 0 to 999."""
    return [(spelled(n, "en"), spelled(n, "de")) for n in range(1000)]


def translations(path: str) -> list[tuple[str, str]]:
    """Pairs of a table, without placeholders, and each English text once."""
    import pandas

    table = pandas.read_parquet(path)
    table = table[~table["fuzzy"]] if "fuzzy" in table else table
    clean = {
        tuple(re.sub(r"%[-\w.]+|<[^>]*>|[&_{}\\]", " ", text) for text in pair)
        for pair in zip(table["english"], table["translation"], strict=True)
    }
    return sorted({english: (english, other) for english, other in sorted(clean)}.values())


def static_model(texts: list[str], words: int = 30000, dim: int = 256) -> SentenceTransformer:
    """A mean of learnt word pieces."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=words, special_tokens=["[UNK]"], show_progress=False)
    )
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=dim)], device="cpu")


def main(steps: int = 150, path: str | None = None, method: str = "gca-ince") -> list[float]:
    torch.manual_seed(0)
    pairs = numbers() if path is None else translations(path)
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    held_out = min(2000, len(pairs) // 5)
    test, train = ([pairs[k] for k in which] for which in (order[:held_out], order[held_out:]))
    model = static_model([text for pair in train for text in pair])
    data = Dataset.from_dict({"english": [a for a, _ in train], "translation": [b for _, b in train]})
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=min(1024, len(train) // 4), learning_rate=0.05,
            warmup_steps=steps // 10, logging_steps=1, use_cpu=True, save_strategy="no", report_to="none",
            disable_tqdm=True, dataloader_drop_last=True,
        )  # fmt: skip
        loss = AlignmentLoss(model, method)
        trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss)
        trainer.train()
    a, b = (model.encode(list(side), convert_to_tensor=True) for side in zip(*test, strict=True))
    hits = model.similarity(a, b).argmax(1) == torch.arange(len(a))
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}, R@1 {hits.float().mean():.3f} among {len(a)} held-out pairs")
    return losses


if __name__ == "__main__":
    main(*([150] if len(sys.argv) < 2 else [600, sys.argv[1]]))
