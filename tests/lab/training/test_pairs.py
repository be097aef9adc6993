"""Pairs of columns: what a table may hold, a split that keeps groups together, runs, retrieval and names."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import gcalign
from gcalign.cli import main
from gcalign.lab.data.sides import divided
from gcalign.lab.data.table_sides import base_emoji, load_columns
from gcalign.lab.evaluation.retrieval import Gallery, nearest, ranks_of, recall
from gcalign.lab.models.encoders import NGrams, hashed
from gcalign.lab.training.config import configured
from gcalign.lab.training.encoder import Encoders
from gcalign.lab.training.export import export
from gcalign.lab.training.probe import probe
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import columns_of
from gcalign.lab.training.stream import Stream
from gcalign.lab.training.train import train
from small_runs import StoppedError, stopping

SMALL = ("model.width=0.25", "model.hidden=16", "model.out=8", "batch_size=32", "logger=none")
QUICK = ("data=shapes", "epochs=1", *SMALL)


def png(colour, size=8) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(out, "PNG")
    return out.getvalue()


def rows(n: int = 12) -> dict[str, list]:
    return {
        "image": [{"bytes": png((20 * k % 256, 7 * k % 256, 99)), "path": None} for k in range(n)],
        "name": [f"thing number {k}" for k in range(n)],
        "other": [[f"ding {k}", f"sache {k}"] if k % 2 else [f"ding {k}"] for k in range(n)],
        "numbers": [[float(k), 1.0, -k / 2] for k in range(n)],
        "family": [k // 2 for k in range(n)],
    }


@pytest.fixture
def table(tmp_path):
    """A parquet file of the rows, with changes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(**changed) -> str:
        path = tmp_path / "pairs.parquet"
        pq.write_table(pa.table(rows() | changed), path)
        return str(path)

    return write


# tables


@pytest.mark.parametrize(
    ("columns", "kinds", "shapes"),
    [
        (["image", "name"], ["image", "text"], [(3, 8, 8), ()]),
        (["name", "other"], ["text", "text"], [(), ()]),
        (["numbers", "image"], ["array", "image"], [(3,), (3, 8, 8)]),
        (["image", "name", "numbers"], ["image", "text", "array"], [(3, 8, 8), (), (3,)]),
    ],
)
def test_a_column_says_what_it_holds(table, columns, kinds, shapes):
    pairs = load_columns("pairs", root=table(), columns=columns)
    assert [side.kind for side in pairs.sides] == kinds
    assert [side.shape for side in pairs.sides] == shapes


def test_arrays_are_standardised_number_by_number(table):
    side = load_columns("pairs", root=table(), columns=["numbers", "name"]).sides[0]
    x = side.preprocessing(side.items)
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.tensor([1.0, 0.0, 1.0]))  # one is the same in each row


def test_lists_of_texts_and_joined_columns_are_several_right_answers(table):
    pairs = load_columns("pairs", root=table(), columns=["image", "name+other"])
    side = pairs.sides[1]
    assert [side.items[k] for k in side.of(torch.tensor([3, 0]))[0].tolist()] == [
        *("thing number 3", "ding 3", "sache 3"),
        *("thing number 0", "ding 0"),
    ]
    assert side.of(torch.tensor([3, 0]))[1].tolist() == [0, 0, 0, 1, 1]
    assert not side.single
    assert pairs.sides[0].single


def test_tables_beside_files_and_arrays_give_the_same_pairs(table, tmp_path):
    known = rows()
    for k, image in enumerate(known["image"]):
        (tmp_path / f"{k}.png").write_bytes(image["bytes"])
        np.save(tmp_path / f"{k}.npy", np.array(known["numbers"][k]))
    with (tmp_path / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "name", "numbers"])
        writer.writerows([f"{k}.png", known["name"][k], f"{k}.npy"] for k in range(12))
    lines = [{"image": f"{k}.png", "name": known["name"][k], "numbers": known["numbers"][k]} for k in range(12)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(image["bytes"]))) for image in known["image"]])
    np.savez(tmp_path / "x.npz", image=pixels, name=np.array(known["name"]), numbers=np.array(known["numbers"]))
    columns = ["image", "name", "numbers"]
    want = load_columns("pairs", root=table(), columns=columns)
    for place in ("metadata.csv", "x.jsonl", "x.npz"):
        found = load_columns("pairs", root=tmp_path / place, columns=columns)
        for mine, theirs in zip(found.sides, want.sides, strict=True):
            assert mine.kind == theirs.kind
            if mine.kind == "text":
                assert mine.items == theirs.items
            else:
                torch.testing.assert_close(mine.items, theirs.items)


@pytest.mark.parametrize(
    ("changed", "columns", "more", "said"),
    [
        ({}, ["image", "nam"], {}, "data.columns=nam: .* has no such column; did you mean 'name'"),
        ({}, ["image"], {}, "must name two columns or more"),
        ({}, ["name", "name"], {}, "names a column twice"),
        ({}, ["image+name", "numbers"], {}, "one side has one kind"),
        ({}, ["image", "name"], {"group": "famly"}, "data.group=famly: .* did you mean 'family'"),
        ({}, ["image", "name"], {"group": "family:kind"}, "the rule after data.group"),
        ({"family": [1] * 12}, ["image", "name"], {"group": "family"}, "has 1 group.s. in 12 pairs"),
        ({"name": ["a"] * 11 + [" "]}, ["image", "name"], {}, "1 of 12 pairs .* row 11: name is empty.*on_error=skip"),
        ({"name": ["a"] * 11 + [None]}, ["image", "name"], {}, "row 11: name is empty"),
        ({"numbers": [[1.0]] * 11 + [[1.0, 2.0]]}, ["numbers", "name"], {}, "different lengths, 1 in .* and 2 in"),
        ({"numbers": [[1.0]] * 11 + [[math.nan]]}, ["numbers", "name"], {}, "row 11: numbers has no numbers"),
        (
            {"image": [{"bytes": b"no image", "path": None}] * 12},
            ["image", "name"],
            {},
            "not an image of a known format",
        ),
        ({"family": [True] * 12}, ["image", "family"], {}, "holds='bool' is unknown"),
    ],
)
def test_a_table_with_a_fault_is_refused_with_value_rule_and_remedy(table, changed, columns, more, said):
    with pytest.raises(ValueError, match=said):
        load_columns("pairs", root=table(**changed), columns=columns, **more)


def test_pairs_with_a_fault_can_be_left_out(table):
    root = table(name=["a", "", *"cdefghijkl"])
    with pytest.warns(UserWarning, match="1 of 12 pairs cannot be used"):
        pairs = load_columns("pairs", root=root, columns=["image", "name"], on_error="skip")
    assert len(pairs) == 11
    assert pairs.sides[1].items == ("a", *"cdefghijkl")
    assert sum(len(pairs.rows(split)) for split in ("train", "validation", "test")) == 11


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "image,name\n../x.png,b\n", "is outside"),
        ("a.csv", "image,name\nx.png,b\n", "is missing in"),
        ("a.csv", "image,name\nx.png\n", "does not have one value for each column"),
        ("a.jsonl", '{"a": 1, "b": "x"}\n{"a": 2}\n', r"row 1 has 1 of 2 columns \(b missing\)"),
        ("a.csv", "a,name,a\nx,b,y\n", "has two columns called 'a'"),
        ("a.jsonl", '{"a": 1, "name": "x", "a": 2}\n', "line 1 is not JSON .*the key 'a' is there twice"),
        ("a.jsonl", "{\n", "line 1 is not JSON"),
        ("a.jsonl", "", "has no rows"),
        ("a.txt", "", "must end in .parquet"),
        ("a.parquet", "no", "not a readable parquet file"),
        ("a.npz", "no", "cannot be read .*; write it again"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=said):
        load_columns("pairs", root=tmp_path / name, columns=["image" if "image" in content else "a", "name"])


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0b"])
def test_a_text_may_hold_what_python_takes_for_the_end_of_a_line(tmp_path, odd):
    lines = [json.dumps({"a": f"text {k}{odd}more", "b": f"b {k}"}, ensure_ascii=False) for k in range(12)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    found = load_columns("pairs", root=tmp_path / "x.jsonl", columns=["a", "b"])
    assert found.sides[0].items[3] == f"text 3{odd}more"


def test_images_of_two_columns_on_one_side_get_one_size(table):
    small = [{"bytes": png((9, k, 9), size=6), "path": None} for k in range(12)]
    found = load_columns("pairs", root=table(small=small), columns=["image+small", "name"])
    assert found.sides[0].items.shape == (24, 3, 6, 6)
    assert found.sides[0].items[1::2, 1, 0, 0].tolist() == list(range(12))


def test_arrays_of_different_lengths_and_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones((3, 2)), b=np.ones((4, 2)))
    with pytest.raises(ValueError, match="a has 3, b has 4 rows"):
        load_columns("pairs", root=tmp_path / "a.npz", columns=["a", "b"])
    np.savez(tmp_path / "b.npz", a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="would run code from the file"):
        load_columns("pairs", root=tmp_path / "b.npz", columns=["a", "b"])


# groups


@pytest.mark.parametrize("fold", range(6))
def test_a_group_is_never_divided_and_the_shares_are_met(fold):
    generator = torch.Generator().manual_seed(fold)
    groups = torch.unique(torch.randint(0, 80, (400,), generator=generator), return_inverse=True)[1]
    part = divided(groups, (0.1, 0.2), fold, "x")
    assert all(len(part[groups == g].unique()) == 1 for g in groups.unique())
    assert 0.2 <= float((part == 2).double().mean()) < 0.25
    assert 0.1 <= float((part == 1).double().mean()) < 0.15
    again = divided(groups, (0.15, 0.2), fold, "x")
    assert torch.equal(part == 2, again == 2)  # what is tested does not depend on what is used for choosing


def test_three_groups_are_one_for_each_part():
    assert sorted(divided(torch.tensor([0, 1, 1, 1, 1, 2]), (0.1, 0.2), 0, "x").unique().tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("variants", "others"),
    [
        ("👍 👍🏻 👍🏿", "👎"),
        ("🧑‍🔧 👨🏽‍🔧 👩‍🔧", "🧑‍🎓"),
        ("🏃 🏃‍♀️ 🏃🏾‍♂️ 🏃‍➡️ 🏃‍♀️‍➡️", "🚶"),
        ("🧑 👨 👩🏼 👨‍🦰 🧑🏿‍🦲", "🧒"),
        ("👫 👬🏽 🧑🏻‍🤝‍🧑🏿 👩‍🤝‍👨", "🤝"),
        ("❤️ ❤", "🧡"),
        ("♀️ ♀", "♂"),
    ],
)
def test_variants_of_an_emoji_have_one_base(variants, others):
    assert len({base_emoji(emoji) for emoji in variants.split()}) == 1
    assert base_emoji(others) != base_emoji(variants.split()[0])


# encoders


def test_n_grams_are_hashed_alike_on_every_machine():
    assert tuple(hashed("ab")[:4]) == tuple(zlib.crc32(x.encode()) for x in ("1 ", "1a", "1b", "1 "))
    assert hashed("Red  heart").tolist() == hashed("red heart").tolist() != hashed("heart red").tolist()


def test_a_text_is_encoded_alone_as_in_a_batch():
    encoder = NGrams(buckets=128, width=0.25)
    texts = ["red heart", "a", "赤いハート"]
    torch.testing.assert_close(encoder(texts), torch.cat([encoder([text]) for text in texts]))


# retrieval


def unit(*values):
    return torch.nn.functional.normalize(torch.tensor(values, dtype=torch.float64), dim=1)


def test_recall_is_that_of_a_plain_loop():
    generator = torch.Generator().manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(30, 4, generator=generator, dtype=torch.float64), dim=1)
    y = torch.nn.functional.normalize(z + 0.7 * torch.randn(30, 4, generator=generator, dtype=torch.float64), dim=1)
    owner = torch.arange(30)
    code = torch.arange(30)
    code[7] = 3  # the same text twice: right for both pairs
    ranks = []
    for i in range(30):
        right = [j for j in range(30) if code[j] == code[i]]
        best = max(float(z[i] @ y[j]) for j in right)
        ranks.append(sum(float(z[i] @ y[j]) > best for j in range(30) if j not in right))
    queries, gallery = Gallery(z, owner, torch.arange(30)), Gallery(y, owner, code)
    assert ranks_of(queries, gallery).tolist() == ranks
    assert recall(queries, gallery, (1, 5)) == {k: pytest.approx(np.mean([r < k for r in ranks])) for k in (1, 5)}


def test_a_collapsed_encoder_retrieves_by_chance():
    z = unit(*[[1.0, 0.0]] * 40)
    side = Gallery(z, torch.arange(40), torch.arange(40))
    assert recall(side, side, (1, 10)) == {1: 0.0, 10: 0.0}  # every rank is the middle one
    assert set(ranks_of(side, side).tolist()) == {19.5}


def test_the_nearest_are_different_texts():
    gallery = Gallery(unit([1.0, 0.0], [1.0, 0.01], [0.0, 1.0]), torch.arange(3), torch.tensor([0, 0, 1]))
    query = Gallery(unit([1.0, 0.1]), torch.tensor([0]), torch.tensor([0]))
    assert nearest(query, gallery, 5)[1].tolist() == [[0, 2]]


# batches


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


# runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    words = ("method=gca-uot", "method.learnable=true", "epochs=3", "seed=1", f"runs={tmp_path_factory.mktemp('runs')}")
    return train(configured([*QUICK, *words]), quiet=True)


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
    run = train(configured([*QUICK, *words, f"runs={tmp_path}"]), quiet=True)
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
    words = [*QUICK, "method=gca-uot", "method.learnable=true", "checkpoint_every=2", "pairs.noise=0.3"]
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
    run = train(configured([*QUICK, *words, f"runs={tmp_path}"]), quiet=True)
    values = [line["eps"] for line in run.results() if line["kind"] == "train"]
    assert len(called) == len(values) == 5
    assert len(set(called)) == 5


def test_each_side_embeds_items_as_they_come(finished):
    model = gcalign.load(finished.path)
    assert model.columns == ("image", "caption")
    pairs = columns_of(finished.config().data)
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


def test_commands_know_a_run_on_pairs(finished, capsys, tmp_path):
    run = f"run={finished.path}"
    assert main(["probe", run]) == 0
    assert "image → caption: R@1" in capsys.readouterr().out
    assert main(["probe", run, "protocol=zeroshot", "show=4", "top=2"]) == 0
    out = capsys.readouterr().out
    assert "48 pairs that training never saw, 240 candidates" in out
    assert len(out.splitlines()) == 2 + 4
    assert main(["list", str(finished.path.parent)]) == 0
    assert "retrieval" in capsys.readouterr().out
    files = [tmp_path / f"{column}.parquet" for column in ("image", "caption")]
    for file in files:
        assert main(["embed", run, f"column={file.stem}", "split=test", "-o", str(file)]) == 0
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
def test_a_column_is_exported_and_gives_the_same_embeddings(finished, tmp_path, column, kind):
    folder = export([f"run={finished.path}", f"column={column}", f"format={kind}"], str(tmp_path / "out"))
    card = (folder / "README.md").read_text()
    assert f"# {column} trained with gca-uot on shapes" in card
    encoder = gcalign.load(finished.path)[column]
    if kind == "safetensors":
        weights = load_file(folder / "model.safetensors")
        assert weights.keys() == encoder.network.state_dict().keys()
        assert all(torch.equal(value, weights[key]) for key, value in encoder.network.state_dict().items())
    else:
        pixels = columns_of(finished.config().data).sides[0].items[:3]
        found = torch.export.load(folder / "model.pt2").module()(pixels.float() / 255).detach()
        torch.testing.assert_close(found, encoder.embed(pixels), rtol=1e-4, atol=1e-5)


def test_a_report_shows_the_names_that_were_found(finished, tmp_path):
    assert main(["probe", f"run={finished.path}", "protocol=zeroshot", "show=3"]) == 0
    page = tmp_path / "report.html"
    assert main(["report", str(finished.path.parent), "-o", str(page)]) == 0
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
    np.savez(tmp_path / "x.npz", image=np.ones((9, 2)), name=np.array(list("abcdefghi")))
    capsys.readouterr()
    assert main(["probe", f"run={run.path}", f"data.root={tmp_path / 'x.npz'}"]) == 2
    assert "holds array of shape (2,), and the run was trained on image" in capsys.readouterr().err


def letters() -> nn.Module:
    """An encoder of texts of one's own."""

    class Letters(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(26, 6)

        def forward(self, texts):
            counts = [[float(text.count(chr(97 + k))) for k in range(26)] for text in texts]
            return self.linear(torch.tensor(counts))

    return Letters()


def test_an_encoder_of_ones_own_is_named_in_the_command_and_never_in_a_file(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from test_pairs import letters\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [*QUICK, "method=clip", "model.encoders=[small,mine:letters]", f"runs={tmp_path / 'runs'}"]
    run = train(configured(words), quiet=True)
    with pytest.raises(ValueError, match="a name in a file is not imported"):
        gcalign.load(run.path)
    assert gcalign.load(run.path, encoder="mine:letters")["caption"].embed(["abc"]).shape == (1, 8)
    assert gcalign.load(run.path, encoder=[None, letters]).columns == ("image", "caption")


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


# learnable ε
