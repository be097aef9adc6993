"""`gcalign audit`: files in, ranking, page and weights out; a run is cross-fitted; bad input writes nothing."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import gcalign
from gcalign.cli import main
from gcalign.lab.audit import crossfit
from gcalign.lab.audit.crossfit import folds_of
from gcalign.lab.training.config import configured
from gcalign.lab.training.samples import columns_of, samples_of
from gcalign.lab.training.stream import mismatched
from gcalign.lab.training.train import train

N, WRONG = 120, 20


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(N, 16, generator=generator)
    b = a + 0.3 * torch.randn(N, 16, generator=generator)
    b[:WRONG] = b[:WRONG].roll(1, 0)
    np.save("a.npy", a.numpy())
    np.save("b.npy", b.numpy())
    return tmp_path


def picture(k):
    buffer = io.BytesIO()
    Image.new("RGB", (9, 9), (k, 255 - k, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def ranking(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def run(capsys, *words):
    code = main(["audit", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_ranking_is_that_of_the_library(here, capsys):
    code, out, err = run(capsys, "a.npy", "b.npy", "-o", "out.csv", "--feedback", "w.npy")
    assert code == 0
    expected = gcalign.audit(np.load("a.npy"), np.load("b.npy"))
    rows = ranking(here / "out.csv")
    assert [int(row["pair"]) for row in rows] == expected.ranking.tolist()
    assert {int(row["pair"]) for row in rows[:WRONG]} == set(range(WRONG))
    assert [int(row["other"]) for row in rows] == expected.other[expected.ranking].tolist()
    assert float(rows[0]["suspicion"]) == pytest.approx(float(expected.suspicion.max()), rel=1e-5)
    weights = np.load("w.npy", allow_pickle=False)
    np.testing.assert_allclose(weights, expected.weights.numpy(), rtol=1e-6)
    assert f"expected share of mismatches: {expected.share:.1%}" in out
    assert "must not come from a model trained on these very pairs" in err
    assert not list(here.glob(".*.part"))


def test_json_has_the_summary_and_the_worst_pairs(here, capsys):
    words = ("a.npy", "b.npy", "-o", "out.csv", "--worst", "7")
    code, out, _ = run(capsys, *words, "--json", "-")
    assert code == 0
    told = json.loads(out)  # nothing else is printed there
    expected = gcalign.audit(np.load("a.npy"), np.load("b.npy"))
    assert told["summary"] == expected.summary()
    assert [row["pair"] for row in told["worst"]] == expected.ranking[:7].tolist()
    assert told["known"] is None
    assert told["written"] == ["out.csv"]
    code, out, _ = run(capsys, *words, "--json", "told.json")
    assert json.loads((here / "told.json").read_text(encoding="utf-8")) == told
    assert "best other" in out  # the table is shown as well


def test_the_table_fits_the_columns_that_are_set(here, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    (here / "ids.txt").write_text("\n".join(f"[red]{k}" for k in range(N)), encoding="utf-8")
    out = run(capsys, "a.npy", "b.npy", "-o", "out.csv", "--ids", "ids.txt")[1]
    worst = ranking(here / "out.csv")[0]
    assert f"pair: {worst['pair']}\n" in out  # as it is written, not as a colour
    assert f"its similarity: {float(worst['other_similarity']):.3f}\n" in out
    monkeypatch.delenv("COLUMNS")
    assert "│" in run(capsys, "a.npy", "b.npy", "-o", "out.csv")[1]


def test_every_format_gives_the_same_ranking(here, capsys):
    a, b = np.load("a.npy"), np.load("b.npy")
    np.savez("both.npz", first=a, second=b)
    save_file({"x": torch.from_numpy(a), "y": torch.from_numpy(b)}, "both.safetensors")
    pq.write_table(pa.table({"z": list(a), "w": pa.FixedSizeListArray.from_arrays(b.reshape(-1), 16)}), "both.parquet")
    pq.write_table(pa.table({"label": range(N)} | {f"f{k}": a[:, k] for k in range(16)}), "numbered.parquet")
    sides = [
        ("both.npz:first", "both.npz:second"),
        ("both.safetensors:x", "both.safetensors:y"),
        ("both.parquet:z", "both.parquet:w"),
        ("numbered.parquet", "b.npy"),
    ]
    assert run(capsys, "a.npy", "b.npy", "-o", "expected.json")[0] == 0
    expected = json.loads((here / "expected.json").read_text(encoding="utf-8"))
    for first, second in sides:
        assert run(capsys, first, second, "-o", "out.json")[0] == 0
        assert json.loads((here / "out.json").read_text(encoding="utf-8")) == expected
    assert run(capsys, "a.npy", "b.npy", "-o", "out.parquet")[0] == 0
    table = pq.read_table("out.parquet")
    assert table["pair"].to_pylist() == [row["pair"] for row in expected["pairs"]]
    assert json.loads(table.schema.metadata[b"gcalign"]) == expected["summary"]


def test_the_page_shows_what_stands_together_and_what_would_fit(here, capsys):
    images = [{"bytes": picture(k), "path": None} for k in range(N)]
    texts = [f"<b>text {k}</b>" for k in range(N)]
    pq.write_table(pa.table({"image": images, "text": texts, "id": [f"item-{k}" for k in range(N)]}), "items.parquet")
    words = ["--html", "out.html", "--ids", "items.parquet:id", "--worst", "5"]
    words += ["--show-a", "items.parquet:image", "--show-b", "items.parquet:text"]
    assert run(capsys, "a.npy", "b.npy", "-o", "out.csv", *words)[0] == 0
    page = (here / "out.html").read_text(encoding="utf-8")
    found = gcalign.audit(np.load("a.npy"), np.load("b.npy"))
    for k in found.ranking[:5].tolist():
        assert f"item-{k}<" in page
        assert f"&lt;b&gt;text {k}&lt;/b&gt;" in page
        assert f"&lt;b&gt;text {int(found.other[k])}&lt;/b&gt;" in page
    assert "<b>text" not in page
    assert page.count("data:image/png;base64,") == 5
    assert ranking(here / "out.csv")[0]["pair"] == f"item-{int(found.ranking[0])}"


def test_an_unreadable_image_does_not_spoil_the_page(here, capsys):
    pq.write_table(pa.table({"image": [b"no image"] * N}), "items.parquet")
    assert run(capsys, "a.npy", "b.npy", "-o", "out.csv", "--html", "p.html", "--show-a", "items.parquet:image")[0] == 0
    assert "unreadable image (not an image of a known format)" in (here / "p.html").read_text(encoding="utf-8")


def test_no_cell_of_the_table_is_a_formula_or_moves_the_cursor(here, capsys):
    odd = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\x1b[2J", "-7", "plain"]
    names = [*odd, *(f"n{k}" for k in range(N - len(odd)))]
    (here / "ids.txt").write_text("\n".join(names), encoding="utf-8")
    for suffix in ("csv", "json"):
        assert run(capsys, "a.npy", "b.npy", "-o", f"out.{suffix}", "--ids", "ids.txt")[0] == 0
    cells = {row["pair"] for row in ranking(here / "out.csv")}
    assert {"'=cmd|' /C calc'!A0", "'+1+1", "'-2+3", "'@SUM(A1)", r"\x1b[2J", "-7", "plain"} <= cells
    assert not any(c in "=+@\x1b" for cell in cells for c in cell[:1])
    assert {pair["pair"] for pair in json.loads((here / "out.json").read_text())["pairs"]} == set(names)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_full_standard_output_does_not_deny_the_files_that_were_written(here):
    command = [sys.executable, "-m", "gcalign", "audit", "a.npy", "b.npy", "-o", "out.csv", "--json", "-"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert len(ranking(here / "out.csv")) == N
    assert "standard output" in done.stderr
    assert "nothing was" not in done.stderr


def test_folds_are_read(here, capsys):
    np.save("folds.npy", np.arange(N) % 2)
    assert run(capsys, "a.npy", "b.npy", "-o", "out.json", "--folds", "folds.npy")[0] == 0
    assert json.loads((here / "out.json").read_text(encoding="utf-8"))["summary"]["folds"] == 2


class Evil:
    def __reduce__(self):
        return (open, ("evil.txt", "w"))


def _prepare(case, here):
    """The words of a call that must fail, and what it must say."""
    a = np.load("a.npy")
    if case == "length":
        np.save("short.npy", a[:50])
        return ["a.npy", "short.npy"], "a.npy has 120 rows and short.npy has 50"
    if case == "nan":
        a[3, 2] = np.nan
        np.save("nan.npy", a)
        return ["nan.npy", "b.npy"], "nan.npy[3] has values that are not finite"
    if case == "zero":
        a[5] = 0
        np.save("zero.npy", a)
        return ["b.npy", "zero.npy"], "zero.npy[5] is zero"
    if case == "width":
        np.save("narrow.npy", a[:, :5])
        return ["a.npy", "narrow.npy", "--fit", "never"], "fit='never'"
    if case == "words":
        np.save("words.npy", np.full((N, 16), "word"))
        return ["a.npy", "words.npy"], "must hold real numbers"
    if case == "pickled":
        np.save("evil.npy", np.array([Evil()] * N, dtype=object), allow_pickle=True)
        return ["a.npy", "evil.npy"], "evil.npy holds Python objects"
    if case == "pickled npz":
        np.savez("evil.npz", x=np.array([Evil()] * N, dtype=object))
        return ["a.npy", "evil.npz"], "holds Python objects"
    if case == "damaged":
        (here / "half.npy").write_bytes((here / "a.npy").read_bytes()[:300])
        return ["half.npy", "b.npy"], "half.npy cannot be read"
    if case == "text":
        (here / "text.npy").write_text("1 2 3\n")
        return ["text.npy", "b.npy"], "does not begin like an npy file"
    if case == "ids":
        (here / "ids.txt").write_text("\n".join(["x", *map(str, range(N - 2)), "x"]), encoding="utf-8")
        return ["a.npy", "b.npy", "--ids", "ids.txt"], "has the id 'x' in rows 0 and 119"
    if case == "encoding":
        (here / "ids.txt").write_bytes(b"\xff\xfe\xfa")
        return ["a.npy", "b.npy", "--ids", "ids.txt"], "ids.txt is not UTF-8"
    if case == "empty column":
        pq.write_table(pa.table({"z": [None, *a[1:].tolist()]}), "holes.parquet")
        return ["holes.parquet", "b.npy"], "holes.parquet:z is empty in 1 of 120 rows, first in row 0"
    if case == "no rows":
        pq.write_table(pa.table({"z": pa.array([], pa.list_(pa.float32()))}), "none.parquet")
        return ["none.parquet", "b.npy"], "none.parquet:z is empty"
    if case == "ragged":
        pq.write_table(pa.table({"z": [[1.0], *a[1:].tolist()]}), "ragged.parquet")
        return ["ragged.parquet", "b.npy"], "lists of 1 to 16 numbers"
    if case == "several":
        np.savez("two.npz", x=a, y=a)
        return ["two.npz", "b.npy"], "several arrays or columns (x, y); say which: two.npz:NAME"
    if case == "name":
        np.savez("two.npz", first=a, y=a)
        return ["two.npz:frist", "b.npy"], "did you mean 'first'?"
    if case == "missing":
        return ["nowhere.npy", "b.npy"], "nowhere.npy does not exist"
    if case == "format":
        (here / "a.pkl").write_bytes(b"")
        return ["a.pkl", "b.npy"], "must be a .npy, .npz, .parquet, .safetensors file"
    if case == "one":
        return ["a.npy"], "pairs.csv english romanian"
    if case == "items":
        (here / "few.txt").write_text("one\ntwo\n", encoding="utf-8")
        return ["a.npy", "b.npy", "--show-a", "few.txt"], "few.txt has 2 rows for 120 pairs"
    if case == "folds":
        np.save("folds.npy", np.zeros(3, dtype=int))
        return ["a.npy", "b.npy", "--folds", "folds.npy"], "must have 120 whole numbers"
    if case == "score":
        return ["a.npy", "b.npy", "--score", "plam"], "did you mean 'plan'?"
    return ["run=runs/none"], "run=runs/none must be a folder with a config.json"


@pytest.mark.parametrize(
    "case",
    [
        *("length", "nan", "zero", "width", "words", "pickled", "pickled npz", "damaged", "text", "ids", "encoding"),
        *("empty column", "no rows", "ragged"),
        *("several", "name", "missing", "format", "one", "items", "folds", "score", "run"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(case, here, capsys):
    words, said = _prepare(case, here)
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    code, out, err = run(capsys, *words, "-o", "out.csv", "--html", "out.html", "--feedback", "w.npy")
    assert code == 2
    assert out == ""
    assert said in err
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "out.txt"], "-o out.txt must be a .csv, .json, .parquet file"),
        (["-o", "nowhere/out.csv"], "in a directory that exists"),
        (["-o", "out.csv", "--feedback", "w.csv"], "--feedback w.csv must be a .npy file"),
        (["-o", "out.csv", "--html", "page.pdf"], "--html page.pdf must be a .html file"),
        (["--feedback", "a.npy"], "--feedback a.npy is an input of this command"),
        (["-o", "out.csv", "--json", "./out.csv"], "-o and --json both name out.csv"),
        (["--show-a", "page.html:x", "--html", "page.html"], "--html page.html is an input of this command"),
    ],
)
def test_where_nothing_can_be_written_is_known_before_the_work(words, said, here, capsys):
    code, _, err = run(capsys, "a.npy", "b.npy", *words)
    assert code == 2
    assert said in err


# --- a run ----------------------------------------------------------------------------------------------------------

TINY = (
    "method=gca-ince", "data=scenes", "data.limit=200", "epochs=2", "batch_size=40", "model.width=0.25",
    "model.hidden=32", "model.out=16", "logger=none", "accelerator=cpu",
)  # fmt: skip
NOISY = ("pairs.noise=0.3", "pairs.fixed=true")


def test_runs_keep_their_names_unless_pairs_are_fixed_or_weighted(tmp_path):
    plain = configured(TINY)
    assert "fixed" not in plain.identity["pairs"]
    assert "weights" not in plain.identity["pairs"]
    fixed = configured([*TINY, "pairs.fixed=true"])
    assert fixed.hash != plain.hash
    first, second = tmp_path / "one.npy", tmp_path / "two.npy"
    for path in (first, second):
        np.save(path, np.ones(200))
    names = {configured([*TINY, f"pairs.weights={path}"]).hash for path in (first, second)}
    assert len(names) == 1
    np.save(second, np.full(200, 0.5))
    assert configured([*TINY, f"pairs.weights={second}"]).hash not in names


@pytest.mark.parametrize(
    ("content", "said"),
    [(np.ones(7), "has the shape (7,)"), (np.full(200, -1.0), "finite weight ≥ 0"), (None, "cannot be read")],
)
def test_bad_weights_are_refused_before_a_run_starts(content, said, tmp_path):
    path = tmp_path / "w.npy"
    if content is not None:
        np.save(path, content)
    with pytest.raises(ValueError, match=r"pairs\.weights") as error:
        train(configured([*TINY, f"pairs.weights={path}", f"runs={tmp_path / 'runs'}"]), quiet=True)
    assert said in str(error.value)
    assert not (tmp_path / "runs").exists()


def watch(monkeypatch):
    """For each fold, which pairs its model was trained on, and which rows of each side it embedded."""
    seen, honest = {}, crossfit.embedded

    def trained(part, *, members, **others):
        made = train(part, members=members, **others)
        seen[part.name] = {"members": members.tolist(), "folder": made.path}
        return made

    def embedded(run, config, samples, side, rows, *others):
        (of,) = [entry for entry in seen.values() if entry["folder"] == run.path]
        of[side] = rows.tolist()
        return honest(run, config, samples, side, rows, *others)

    monkeypatch.setattr(crossfit, "train", trained)
    monkeypatch.setattr(crossfit, "embedded", embedded)
    return seen


def each_fold_is_embedded_without_having_been_seen(seen, folds, partner):
    assert len(seen) == folds
    for of in seen.values():
        assert sorted(of["members"] + of[0]) == list(range(len(partner)))
        assert of[1] == partner[of[0]].tolist()
    assert sorted(row for of in seen.values() for row in of[0]) == list(range(len(partner)))


def test_a_run_is_audited_by_models_that_never_saw_its_pairs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = configured([*TINY, "pairs.noise=0.3", "pairs.fixed=true"])
    made = train(config, quiet=True)
    seen = watch(monkeypatch)
    code, out, _ = run(
        capsys, f"run={made.path}", "folds=3", "-o", "out.json", "--feedback", "w.npy", "--html", "p.html"
    )
    assert code == 0
    each_fold_is_embedded_without_having_been_seen(seen, 3, mismatched(samples_of(config), 0.3, config.seed))
    assert "known mismatches: 30.0%" in out
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["summary"]["folds"] == 3
    again = configured([*TINY, "pairs.noise=0.3", "pairs.fixed=true", "pairs.weights=w.npy"])
    assert train(again, quiet=True).done  # weights go back into training
    assert "data:image/png" in (tmp_path / "p.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("link", ["audit", "audit/fold1of2"])
def test_folds_are_not_written_through_a_link_in_the_folder_of_a_run(tmp_path, monkeypatch, capsys, link):
    monkeypatch.chdir(tmp_path)
    made = train(configured([*TINY, *NOISY, "epochs=1"]), quiet=True)
    if link == "audit":
        place = made.path / "audit"
    else:  # a fold's own folder has its hash in its name
        assert run(capsys, f"run={made.path}", "folds=2", "-o", "out.csv")[0] == 0
        place = next((made.path / "audit").glob("fold1of2-*"))
        shutil.rmtree(place)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place.symlink_to(elsewhere)
    code, _, err = run(capsys, f"run={made.path}", "folds=2", "-o", "out.csv")
    assert code == 2
    assert f"{place} links outside the run" in err
    assert not list(elsewhere.iterdir())


def test_a_run_whose_pairs_change_in_each_step_cannot_be_audited(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = train(configured([*TINY, "pairs.noise=0.3", "epochs=1"]), quiet=True)
    code, _, err = run(capsys, f"run={made.path}", "-o", "out.csv")
    assert code == 2
    assert "train it with pairs.fixed=true" in err


def test_views_of_one_image_are_no_pairs_to_audit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = train(configured([*TINY, "epochs=1"]), quiet=True)
    code, _, err = run(capsys, f"run={made.path}", "-o", "out.csv")
    assert code == 2
    assert "never a wrong pair" in err


def test_weights_that_changed_since_are_refused(tmp_path):
    path = tmp_path / "w.npy"
    np.save(path, np.ones(200))
    config = configured([*TINY, f"pairs.weights={path}", f"runs={tmp_path / 'runs'}"])
    np.save(path, np.full(200, 0.5))
    with pytest.raises(ValueError, match=r"w\.npy"):
        train(config, quiet=True)


@pytest.mark.parametrize(
    ("part", "key", "value", "said"),
    [
        ("model", "encoder", "evil:make", "a name in a file is not imported"),
        ("data", "root", "/elsewhere", "data.root=/elsewhere"),
    ],
)
def test_what_a_run_of_somebody_else_names_is_not_followed(part, key, value, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('evil.txt', 'w')", encoding="utf-8")
    made = train(configured([*TINY, *NOISY, "epochs=1"]), quiet=True)
    content = json.loads(made.config_file.read_text(encoding="utf-8"))
    content[part][key] = value
    made.config_file.write_text(json.dumps(content), encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    code, _, err = run(capsys, f"run={made.path}", "-o", "out.csv")
    assert code == 2
    assert said in err
    assert sorted(tmp_path.rglob("*")) == before


# --- a run on pairs of columns --------------------------------------------------------------------------------------

SHAPES = (
    "method=ince", "data=shapes", "epochs=1", "batch_size=32", "model.width=0.25", "model.hidden=32",
    "model.out=16", "logger=none", "accelerator=cpu",
)  # fmt: skip


def test_folds_keep_groups_together_and_are_of_similar_size():
    groups = torch.randint(40, (300,), generator=torch.Generator().manual_seed(0))
    fold = folds_of(groups, 300, 3, 0)
    assert all(len(set(fold[groups == k].tolist())) == 1 for k in groups.unique())
    sizes = torch.bincount(fold)
    assert len(sizes) == 3
    assert int(sizes.max() - sizes.min()) <= int(torch.bincount(groups).max())


def test_a_run_on_pairs_is_audited_by_encoders_that_never_saw_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [*SHAPES, "pairs.noise=0.3"]
    made = train(configured(words), quiet=True)
    pairs = columns_of(made.config().data)
    n, seen = len(pairs), watch(monkeypatch)
    code, out, err = run(
        capsys, f"run={made.path}", "folds=2", "-o", "out.csv", "--feedback", "w.npy", "--html", "p.html"
    )
    assert code == 0, err
    each_fold_is_embedded_without_having_been_seen(seen, 2, mismatched(pairs, 0.3, 0))
    groups = pairs.groups
    first, second = ({int(groups[k]) for k in seen[f"fold{k}of2"]["members"]} for k in (1, 2))
    assert not first & second
    assert len(ranking(tmp_path / "out.csv")) == n  # those held out of training, too
    assert f"known mismatches: {round(0.3 * len(pairs.rows('train'))) / n:.1%}" in out
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "data:image/png" in page
    weights = np.load("w.npy", allow_pickle=False)
    assert weights.shape == (n,)
    assert train(configured([*words, "pairs.weights=w.npy"]), quiet=True).done


@pytest.mark.slow
def test_a_hundred_thousand_pairs_are_audited_in_three_gigabytes(tmp_path):
    """All similarities at once would take 40 GB."""
    for seed, name in enumerate(("a", "b")):
        shared = np.random.default_rng(2).standard_normal((100_000, 512), dtype=np.float32)
        noise = np.random.default_rng(seed).standard_normal((100_000, 512), dtype=np.float32)
        shared += 1.5 * noise
        if name == "b":
            shared[:10_000] = np.roll(shared[:10_000], 1, axis=0)
        np.save(tmp_path / f"{name}.npy", shared)
    script = (
        "import resource, sys; from gcalign.cli import main; "
        "code = main(['audit', 'a.npy', 'b.npy', '-o', 'out.parquet', '--feedback', 'w.npy']); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 3e6  # kB
    worst = pq.read_table(tmp_path / "out.parquet")["pair"].to_numpy()[:10_000]
    assert np.mean(worst < 10_000) > 0.9


@pytest.mark.parametrize("dtype", [">f4", ">i8", "longdouble"])
def test_numbers_that_torch_cannot_hold_are_converted(here, capsys, dtype):
    # torch refused them, without a remedy
    a = (100 * np.load("b.npy")).round()
    written = []
    for name, array in (("a.npy", a), ("odd.npy", a.astype(dtype))):
        np.save(name, array)
        assert main(["audit", name, "b.npy", "-o", "o.csv"]) == 0
        written.append((here / "o.csv").read_text())
    assert written[0] == written[1]
    assert "o.csv" in capsys.readouterr().out


# --- a table with two columns ---------------------------------------------------------------------------------------


def read_csv(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(Path(path).read_text(encoding="utf-8"), newline="")))


def test_one_command_audits_a_table_of_texts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [("red", "rot"), ("blue", "blau"), ("big", "groß"), ("cat", "Katze"), ("dog", "Hund"), ("sun", "Sonne")]
    draw = torch.randint(len(words), (240, 5), generator=torch.Generator().manual_seed(0)).tolist()
    first, second = ([" ".join(words[k][side] for k in row) for row in draw] for side in (0, 1))
    second[:24] = second[1:24] + second[:1]
    lines = [f"{k},{a},{b}" for k, (a, b) in enumerate(zip(first, second, strict=True))]
    Path("pairs.csv").write_text("\n".join(["number,english,german", *lines]) + "\n", encoding="utf-8")
    options = ("-o", "ranking.csv", "--clean", "clean.csv", "--suggest", "better.csv", "--html", "page.html")
    code, out, err = run(capsys, "pairs.csv", "english", "german", *options)
    assert code == 0, err
    assert "expected share" in out
    ranking = read_csv("ranking.csv")
    worst = [int(row["pair"]) for row in ranking[:20]]
    assert sum(k < 24 for k in worst) >= 16
    assert ranking[0]["german"] == second[worst[0]]
    flagged = {row["pair"] for row in ranking if row["flagged"] == "True"}
    clean = read_csv("clean.csv")
    assert [row["number"] for row in clean] == [str(k) for k in range(240) if str(k) not in flagged]
    suspects = {row["pair"] for row in ranking if float(row["probability"]) >= 0.25}
    assert {row["pair"] for row in read_csv("better.csv")} <= suspects


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pairs.csv", "english", "frensh"), "'french'"),
        (("pairs.csv", "english", "english"), "named twice"),
        (("pairs.csv", "english", "french"), "row 1"),
        (("pairs.txt", "english", "french"), ".csv, .jsonl, .parquet"),
        (("pairs.csv", "english", "number", "--clean", "clean.parquet"), ".csv"),
        (("pairs.csv", "english", "french", "--clean", "pairs.csv"), "--clean pairs.csv is an input of this command"),
        (("pairs.csv", "english", "number"), "number of pairs.csv holds one number for each pair"),
        (("pairs.csv", "english", "picture"), "row 1: picture='n/a' is missing"),
        (("pairs.csv", "english", "cut"), "save embeddings as .npy"),
    ],
)
def test_a_table_that_cannot_be_audited_is_refused_and_nothing_is_written(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f'b {k},c,{k},x.png,"[1. 2. ... 3.]"' for k in range(12)]
    rows[:2] = ['a b,c,1,x.png,"[1. 2. ... 3.]"', 'b,,2,n/a,"[1. 2. ... 3.]"']
    Path("pairs.csv").write_text("\n".join(["english,french,number,picture,cut", *rows, ""]), encoding="utf-8")
    Path("x.png").write_bytes(picture(1))
    Path("pairs.txt").write_text("x", encoding="utf-8")
    code, _, err = run(capsys, *words, "-o", "ranking.csv")
    assert code == 2
    assert said in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.csv", "pairs.txt", "x.png"]


@pytest.mark.parametrize("separator", [", ", " "])
def test_lists_of_numbers_in_a_csv_are_embeddings(separator, here, capsys):
    a, b = np.load("a.npy"), np.load("b.npy")
    with Path("vectors.csv").open("w", newline="") as file:
        written = csv.writer(file)
        written.writerow(("first", "second", "number"))
        for k, sides in enumerate(zip(a, b, strict=True)):
            written.writerow((*(f"[{separator.join(map(str, side.tolist()))}]" for side in sides), k))
    assert run(capsys, "vectors.csv", "first", "second", "-o", "out.csv", "--fit", "never")[0] == 0
    assert [int(row["pair"]) for row in ranking(here / "out.csv")] == gcalign.audit(a, b).ranking.tolist()
    assert "number" in ranking(here / "out.csv")[0]
