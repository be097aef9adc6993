"""`gcalign align`: from files to a folder with heads, embeddings and a page; nothing is written on bad input."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file

import gcalign
from gcalign.cli import main
from gcalign.lab.align import inputs

WORDS = ("--budget", "0", "--dim", "12")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two sides and pairs, in the current folder."""
    monkeypatch.chdir(tmp_path)
    g = torch.Generator().manual_seed(0)
    s = torch.randn(200, 8, generator=g)
    a, b = ((s @ torch.randn(8, d, generator=g)).numpy() for d in (24, 16))
    np.save("a.npy", a)
    np.save("b.npy", b)
    (tmp_path / "pairs.csv").write_text("a,b\n" + "".join(f"{k},{k}\n" for k in range(60)))
    return tmp_path, a, b


def test_a_folder_has_heads_embeddings_suspects_and_a_page(files, capsys):
    folder, a, _ = files
    assert main(["align", "a.npy", "b.npy", "--pairs", "pairs.csv", "-o", "aligned", *WORDS]) == 0
    names = sorted(path.name for path in (folder / "aligned").iterdir())
    assert names == ["a.npy", "aligner.json", "aligner.safetensors", "b.npy", "index.html", "suspects.csv"]
    aligner = gcalign.load("aligned")
    np.testing.assert_allclose(np.load("aligned/a.npy"), aligner.embed_a(a), atol=1e-6)
    shown = capsys.readouterr().out
    assert "100 more pairs would" in shown
    assert "procrustes" in shown
    page = (folder / "aligned" / "index.html").read_text()
    assert "Pairs that look wrong" in page
    assert "http://" not in page


def test_sides_are_read_from_every_format_and_json_alone_is_printed(files, capsys):
    _, a, b = files
    np.savez("a.npz", x=a)
    save_file({"z": b}, "b.safetensors")
    pq.write_table(pa.table({"v": list(b)}), "b.parquet")
    np.save("pairs.npy", np.stack([np.arange(60)] * 2, 1))
    reports = []
    for k, second in enumerate(("b.safetensors", "b.parquet:v", "b.npy")):
        words = ["align", "a.npz", second, "--pairs", "pairs.npy", "-o", f"out{k}", "--method", "cca", "--json", "-"]
        assert main([*words, *WORDS]) == 0
        reports.append(json.loads(capsys.readouterr().out)["report"])
    assert reports[0] == reports[1] == reports[2]
    assert reports[0]["settings"]["method"] == "cca"


def test_texts_are_embedded_by_their_n_grams_and_shown_escaped(files):
    folder, _, _ = files
    words = [f"item number {k} <b>of {'left' if k % 2 else 'right'}</b>" for k in range(200)]
    (folder / "texts.csv").write_text("name\n" + "\n".join(words) + "\n")
    assert main(["align", "a.npy", "texts.csv", "--pairs", "pairs.csv", "-o", "out", "--method", "cca", *WORDS]) == 0
    page = (folder / "out" / "index.html").read_text()
    assert "Not known: no audit was made, or it could not tell" in page
    assert "&lt;b&gt;of" in page
    assert "<b>of" not in page


def test_an_input_is_not_overwritten(files, capsys):
    before = (files[0] / "a.npy").read_bytes()
    assert main(["align", "a.npy", "b.npy", "--pairs", "pairs.csv", "-o", "out", "--json", "a.npy"]) == 2
    assert "--json a.npy is an input of this command" in capsys.readouterr().err
    assert (files[0] / "a.npy").read_bytes() == before
    assert not (files[0] / "out").exists()


def test_a_heading_says_which_column_is_which(files):
    (files[0] / "exchanged.csv").write_text("b,a\n1,2\n3,4\n")
    assert inputs.pairs("exchanged.csv").tolist() == [[2, 1], [4, 3]]


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (lambda: _with("a.npy", 3, np.nan), (), "a.npy[3] has values that are not finite"),
        (lambda: _pairs("0,1\n1,x\n"), (), "line 2 is '1,x'; it must be two whole numbers"),
        (lambda: _pairs("a,b\n"), (), "has no pairs"),
        (lambda: _pairs("".join(f"{k},{k}\n" for k in range(195, 205))), (), "pairs.csv[5] names row 200 of a"),
        (lambda: None, ("--method", "planned"), "did you mean 'plan'"),
        (lambda: None, ("--show-a", "none.txt"), "none.txt does not exist"),
    ],
)
def test_nothing_is_written_on_bad_input(files, capsys, change, words, message):
    folder, _, _ = files
    change()
    before = sorted(path.name for path in folder.iterdir())
    assert main(["align", "a.npy", "b.npy", "--pairs", "pairs.csv", "-o", "out", *WORDS, *words]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == before


def _with(name, row, value):
    array = np.load(name)
    array[row] = value
    np.save(name, array)


def _pairs(text):
    with open("pairs.csv", "w") as file:
        file.write(text)


def test_a_folder_that_exists_is_kept(files, capsys):
    folder, _, _ = files
    (folder / "out").mkdir()
    assert main(["align", "a.npy", "b.npy", "--pairs", "pairs.csv", "-o", "out"]) == 2
    assert "choose another name" in capsys.readouterr().err
    assert list((folder / "out").iterdir()) == []


@pytest.mark.filterwarnings("default")
def test_few_pairs_are_a_warning_not_an_error(files, capsys):
    folder, _, _ = files
    _pairs("".join(f"{k},{k}\n" for k in range(12)))
    assert main(["align", "a.npy", "b.npy", "--pairs", "pairs.csv", "-o", "out", *WORDS]) == 0
    assert "12 pairs are few" in capsys.readouterr().err
    assert (folder / "out" / "a.npy").is_file()
