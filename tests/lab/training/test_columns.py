"""Pairs of columns: what a table may hold, a split that keeps groups together, runs, retrieval and names."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import gcalign
from gcalign.cli import main
from gcalign.lab.data.table_sides import load_columns
from gcalign.lab.training.config import configured
from gcalign.lab.training.encoder import Encoders
from gcalign.lab.training.export import export
from gcalign.lab.training.probe import probe
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import columns_of
from gcalign.lab.training.stream import Stream
from gcalign.lab.training.train import train
from small_runs import SHAPES, StoppedError, stopping

SMALL = ("model.width=0.25", "model.hidden=16", "model.out=8", "batch_size=32", "logger=none")


def test_a_batch_follows_from_its_step_and_ranks_share_it(table):
    pairs = load_columns("pairs", root=table(), columns=["image", "name+other"], group="family")
    about = {"batch_size": 4, "epochs": 2, "seed": 3, "noise": 0.5}
    whole, again = Stream(pairs, **about), Stream(pairs, **about)
    one, two = (Stream(pairs, **about, rank=r, world=2) for r in (0, 1))
    for step in range(len(whole)):
        batch = whole[step]
        assert torch.equal(batch.items[0], again[step].items[0])
        assert batch.items[1] == again[step].items[1] == one[step].items[1] + two[step].items[1]
        assert torch.equal(batch.known["ids"][1].unique(), batch.known["ids"][0].sort().values)
        names = dict(zip(pairs.sides[1].items, pairs.groups[pairs.sides[1].owner].tolist(), strict=True))
        assert [names[text] for text in batch.items[1]] == batch.known["domains"][
            1
        ].tolist()  # of the name that is shown
    with pytest.raises(ValueError, match="batch_size=64 must be at most"):
        Stream(pairs, **about | {"batch_size": 64})


@pytest.mark.parametrize(
    "words",
    [
        ("method=clip",),
        ("method=ince", "method.learnable=true", "data.columns=[caption,caption_de]"),
        ("method=gca-ince", "data.columns=[image,caption+caption_de]"),
        ("method=iot", "method.learnable=true", "pairs.noise=0.3"),
        ("method=gca-uot", "target.name=blocks", "target.alpha=0.1"),
        ("method=gca-ince", "data.columns=[image,caption,caption_de]"),
        ("method=gca-uot", "data.columns=[image,caption,caption_de]", "pairs.multi=joint", "method.learnable=true"),
        ("method=rince", "views=C0", "precision=bf16-mixed"),
    ],
)
def test_a_run_on_pairs_trains_and_is_loaded(words, tmp_path):
    run = train(configured([*SHAPES, *words, f"runs={tmp_path}"]), quiet=True)
    lines = [line for line in run.results() if line["kind"] == "train"]
    assert math.isfinite(lines[-1]["loss"])
    assert ("eps" in lines[-1]) == ("method.learnable=true" in words or "method=clip" in words)
    model = gcalign.load(run.path)
    assert isinstance(model, Encoders)
    assert model["caption"].embed(["a red circle"]).shape == (1, 8)
    result = probe([f"run={run.path}"])
    assert set(result.recall) == {
        way for other in model.columns[1:] for way in (f"{model.columns[0]} → {other}", f"{other} → {model.columns[0]}")
    }


def test_an_interrupted_run_ends_with_the_same_bytes(tmp_path):
    words = [*SHAPES, "method=gca-uot", "method.learnable=true", "checkpoint_every=2", "pairs.noise=0.3"]
    whole = train(configured([*words, f"runs={tmp_path / 'a'}"]), quiet=True)
    config = configured([*words, f"runs={tmp_path / 'b'}"])
    with pytest.raises(StoppedError), stopping(3):
        train(config, quiet=True)
    assert Run.of(config).checkpoint_file.exists()
    assert train(config, quiet=True).weights_file.read_bytes() == whole.weights_file.read_bytes()


def test_epsilon_is_learnt_and_brought_back_after_every_step(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(gcalign.Kernel, "clamp_", lambda self: called.append(self.eps.item()))
    words = ("method=ince", "method.eps=0.1", "method.learnable=true", "log_every=1")
    run = train(configured([*SHAPES, *words, f"runs={tmp_path}"]), quiet=True)
    values = [line["eps"] for line in run.results() if line["kind"] == "train"]
    assert len(called) == len(values) == 5
    assert len(set(called)) == 5


def test_each_side_embeds_items_as_they_come(run_on_pairs):
    model = gcalign.load(run_on_pairs.path)
    assert model.columns == ("image", "caption")
    pairs = columns_of(run_on_pairs.config().data)
    pixels = pairs.sides[0].items[:3]
    z = model["image"].embed(pixels)
    torch.testing.assert_close(z, model["image"].embed_items(pixels))
    torch.testing.assert_close(z, model["image"].embed([Image.fromarray(x.permute(1, 2, 0).numpy()) for x in pixels]))
    torch.testing.assert_close(z.norm(dim=1), torch.ones(3))
    assert model["caption"].embed("one text").shape == (1, 8)
    with pytest.raises(ValueError, match=r"items\[1\]='' must be a text"):
        model["caption"].embed(["a", ""])
    with pytest.raises(ValueError, match="did you mean 'caption'"):
        model["captoin"]
    assert model.eps < 0.5


def test_commands_know_a_run_on_pairs(run_on_pairs, capsys, tmp_path):
    run = f"run={run_on_pairs.path}"
    assert main(["probe", run]) == 0
    assert "image → caption: R@1" in capsys.readouterr().out
    assert main(["probe", run, "protocol=zeroshot", "show=4", "top=2"]) == 0
    out = capsys.readouterr().out
    assert "48 pairs that training never saw, 240 candidates" in out
    assert len(out.splitlines()) == 2 + 4
    assert main(["list", str(run_on_pairs.path.parent)]) == 0
    assert "retrieval" in capsys.readouterr().out
    files = [tmp_path / f"{column}.parquet" for column in ("image", "caption")]
    for file in files:
        assert main(["embed", run, f"column={file.stem}", "split=test", "-o", str(file)]) == 0
    kept = files[0].read_bytes()
    assert main(["embed", run, "column=caption", f"data.root={files[0]}", "-o", str(files[0])]) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert files[0].read_bytes() == kept
    import pyarrow.parquet as pq

    tables = [pq.read_table(file) for file in files]
    assert tables[0].column("row").equals(tables[1].column("row"))
    z = [torch.tensor(np.stack([t.column(f"f{k}").to_numpy() for k in range(8)], 1)) for t in tables]
    hits = (z[0] @ z[1].T).argmax(1) == torch.arange(48)
    found = probe([run]).recall["image → caption"]["1"]
    assert found == pytest.approx(hits.double().mean().item())
    capsys.readouterr()
    for words, said in (
        ([run, "protocol=linear"], "protocol='linear' is unknown"),
        ([run, "split=tset"], "did you mean 'test'"),
        ([run, "top=3"], "top= is for protocol=zeroshot"),
    ):
        assert main(["probe", *words]) == 2
        assert said in capsys.readouterr().err
    assert main(["embed", run, "-o", str(tmp_path / "x.parquet")]) == 2
    assert "column= is missing; this run has image, caption" in capsys.readouterr().err
    assert main(["export", run, "format=safetensors", "-o", str(tmp_path / "out")]) == 2
    assert "column= is missing; this run has image, caption" in capsys.readouterr().err
    assert main(["export", run, "column=caption", "format=torch-export", "-o", str(tmp_path / "out")]) == 2
    assert "caption holds texts; use format=safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("column", "kind"), [("image", "torch-export"), ("image", "safetensors"), ("caption", "safetensors")]
)
def test_a_column_is_exported_and_gives_the_same_embeddings(run_on_pairs, tmp_path, column, kind):
    folder = export([f"run={run_on_pairs.path}", f"column={column}", f"format={kind}"], str(tmp_path / "out"))
    card = (folder / "README.md").read_text()
    assert f"# {column} trained with gca-uot on shapes" in card
    encoder = gcalign.load(run_on_pairs.path)[column]
    if kind == "safetensors":
        weights = load_file(folder / "model.safetensors")
        assert weights.keys() == encoder.network.state_dict().keys()
        assert all(torch.equal(value, weights[key]) for key, value in encoder.network.state_dict().items())
    else:
        pixels = columns_of(run_on_pairs.config().data).sides[0].items[:3]
        found = torch.export.load(folder / "model.pt2").module()(pixels.float() / 255).detach()
        torch.testing.assert_close(found, encoder.embed(pixels), rtol=1e-4, atol=1e-5)


def test_a_report_shows_the_names_that_were_found(run_on_pairs, tmp_path):
    assert main(["probe", f"run={run_on_pairs.path}", "protocol=zeroshot", "show=3"]) == 0
    page = tmp_path / "report.html"
    assert main(["report", str(run_on_pairs.path.parent), "-o", str(page)]) == 0
    text = page.read_text()
    assert "zeroshot" in text
    assert "names for what training never saw" in text


def test_the_table_of_somebody_elses_run_is_not_followed(table, tmp_path, capsys):
    root = table()
    words = [f"data.root={root}", "data.columns=[image,name]", *SMALL, "batch_size=4", "epochs=1", "data.size=8"]
    run = train(configured(["data=pairs", "method=ince", *words, f"runs={tmp_path / 'runs'}"]), quiet=True)
    assert main(["probe", f"run={run.path}"]) == 0
    moved = shutil.move(root, tmp_path / "elsewhere.parquet")
    content = json.loads(run.config_file.read_text())
    content["data"]["root"] = root = str(moved)
    run.config_file.write_text(json.dumps(content))
    capsys.readouterr()
    assert main(["probe", f"run={run.path}"]) == 2
    assert f"data.root={root}" in capsys.readouterr().err
    assert main(["probe", f"run={run.path}", f"data.root={root}"]) == 0
    other = [json.dumps({"image": [1.0, 2.0], "name": name}) for name in "abcdefghi"]
    (tmp_path / "x.jsonl").write_text("\n".join(other))
    capsys.readouterr()
    assert main(["probe", f"run={run.path}", f"data.root={tmp_path / 'x.jsonl'}"]) == 2
    assert "holds array of shape (2,), and the run was trained on image" in capsys.readouterr().err


LETTERS = """
import torch
from torch import nn

class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(26, 6)

    def forward(self, texts):
        return self.linear(torch.tensor([[float(text.count(chr(97 + k))) for k in range(26)] for text in texts]))
"""


def test_an_encoder_of_ones_own_is_named_in_the_command_and_never_in_a_file(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(LETTERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [*SHAPES, "method=clip", "model.encoders=[small,mine:Letters]", f"runs={tmp_path / 'runs'}"]
    run = train(configured(words), quiet=True)
    with pytest.raises(ValueError, match="encoder=mine:Letters"):
        gcalign.load(run.path)
    assert gcalign.load(run.path, encoder="mine:Letters")["caption"].embed(["abc"]).shape == (1, 8)
    from mine import Letters

    assert gcalign.load(run.path, encoder=[None, Letters]).columns == ("image", "caption")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data=pairs"], "data=pairs needs data.root="),
        (["data=pairs", "data.root=nowhere.parquet"], "does not exist"),
        (["data=shapes", "method=byol"], "method=byol is for images"),
        (["data=shapes", "model.encoder=resnet18"], "write model.encoders="),
        (["data=shapes", "model.encoders=[small]"], "one for each of the 2 columns"),
        (["data=shapes", "model.encoders=[ngrams,ngrams]"], "not for images"),
        (["data=shapes", "model.encoders=[small,mlp]"], "not for a side of kind text"),
        (["data=shapes", "knn_every=1"], "knn_every=1 is for images"),
        (["data=shapes", "target.name=labels"], "target.name=labels is for images"),
        (["data=shapes", "pairs.multi=all"], "pairs.multi='all' is unknown"),
        (["data=shapes", "data.test=0.95"], "leave pairs for training"),
        (["data=scenes", "data.group=x"], "data.group=x is for pairs"),
        (["data=shapes", "batch_size=1000"], "at most the 168 training pairs"),
    ],
)
def test_a_bad_setting_is_refused_before_anything_is_written(words, said, tmp_path, capsys):
    assert main(["train", *SMALL, *words, f"runs={tmp_path / 'runs'}"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_blocks_need_groups(table, tmp_path, capsys):
    words = [f"data.root={table()}", "data.columns=[name,other]", "batch_size=4", "target.name=blocks"]
    assert main(["train", "data=pairs", *words, "target.alpha=0.1", f"runs={tmp_path / 'runs'}"]) == 2
    assert "name them with data.group=" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
