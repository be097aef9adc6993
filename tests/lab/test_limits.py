"""What a file or a word may ask for: refused by a stated limit before memory is, with value, rule and remedy."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib
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
from gcalign.lab import files, limits
from gcalign.lab.data import sources
from gcalign.lab.data.sources import load
from gcalign.lab.data.table_sides import load_columns, open_table
from gcalign.lab.training import checkpoints, runs
from gcalign.lab.training.config import configured
from gcalign.lab.training.load import load_whole
from gcalign.lab.training.runs import Run
from gcalign.lab.training.train import train
from gcalign.lab.training.weights import weights_of_pairs
from small_runs import SCENES as TINY
from small_runs import command, config_for, pictures, weights

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|sync_dist|lightning).*")]


def png(size=(16, 16), grey=0):
    buffer = io.BytesIO()
    Image.new("RGB", size, (grey, grey, grey)).save(buffer, "PNG")
    return buffer.getvalue()


def table(path, images, metadata=None, **columns):
    made = pa.table({"image": images, **columns})
    pq.write_table(made.replace_schema_metadata(metadata) if metadata else made, path, compression="zstd")
    return path


# tables


def repeated(path, value, times):
    """A table of one value, stored once, that stands for `times` rows."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(times, np.int32)), pa.array([value]))
    pq.write_table(pa.table({"image": column}), path, compression="zstd", store_schema=False)
    return path


def test_a_kilobyte_that_unpacks_to_gigabytes_is_read_in_small_parts(tmp_path):
    path = repeated(tmp_path / "bomb.parquet", bytes(5_000_000), 1000)
    assert path.stat().st_size < 3000
    code = (
        "import sys, pyarrow as pa; from gcalign.lab.data.sources import load\n"
        "try: load('parquet', 'all', root=sys.argv[1])\n"
        "except ValueError as error: print(error)\n"
        "print(pa.default_memory_pool().max_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    said, peak = done.stdout.splitlines()
    assert "no readable image" in said
    assert int(peak) < 3 * limits.LIMITS["TABLE_BYTES"]  # a builder doubles what it holds


def test_a_column_that_unpacks_a_thousandfold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GCALIGN_TABLE_BYTES", str(2**22))
    path = table(tmp_path / "x.parquet", [bytes(2**21)] * 4)
    pq.write_table(pq.read_table(path), path, compression="zstd", use_dictionary=False)
    with pytest.raises(ValueError, match=r"unpacks to is 8,\d+,\d+, at most 4,194,304 .*GCALIGN_TABLE_BYTES"):
        load("parquet", "all", root=path)


def test_too_many_rows_are_refused_before_they_are_read(tmp_path, monkeypatch):
    path = table(tmp_path / "x.parquet", [png()] * 30)
    monkeypatch.setenv("GCALIGN_TABLE_ROWS", "20")
    with pytest.raises(ValueError, match=r"number of rows of .* is 30, at most 20 .*GCALIGN_TABLE_ROWS=…"):
        load("parquet", "all", root=path)
    monkeypatch.setenv("GCALIGN_TABLE_ROWS", "many")
    with pytest.raises(ValueError, match=r"GCALIGN_TABLE_ROWS='many' must be a whole number"):
        load("parquet", "all", root=path)


def test_a_long_label_that_is_stored_once_is_held_once(tmp_path):
    n = 100_000
    label = pa.DictionaryArray.from_arrays(pa.array(np.arange(n, dtype=np.int32) % 2), pa.array(["a" * 10**6, "b"]))
    image = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([png()]))
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"image": image, "label": label}), path, compression="zstd", store_schema=False)
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    found = load("parquet", "train", root=path, limit=10)
    assert found.labels.tolist().count(0) == 5
    assert pool.max_memory() < max(before, 2**29)


@pytest.mark.parametrize(
    "said",
    [b"{", b"[]", b'{"info": 3}', b'{"info": {"features": []}}', b'{"info": {"features": {"label": 3}}}', b"\xff\xfe",
     b'{"info": {"features": {"label": {"_type": "ClassLabel"}}}}', b"[" * 99999,
     b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": [1, {}]}}}}',
     b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": "cat"}}}}'],
)  # fmt: skip
def test_odd_metadata_of_a_table_is_passed_over(tmp_path, said):
    path = table(tmp_path / "x.parquet", [png(grey=k) for k in range(4)], {b"huggingface": said}, label=[3, 4, 3, 4])
    found = load("parquet", "all", root=path)
    assert found.labels.tolist() == [0, 1, 0, 1]
    assert found.classes == ("3", "4")


@pytest.mark.parametrize("label", [[[1], [2], [1]], [{"a": 1}] * 3, [{}] * 3], ids=str)
def test_labels_that_are_lists_are_refused(tmp_path, label):
    kind = pa.array(label) if label != [{}] * 3 else pa.array([[("k", 1)]] * 3, pa.map_(pa.string(), pa.int64()))
    path = table(tmp_path / "x.parquet", [png()] * 3, label=kind)
    with pytest.raises(ValueError, match=r"'label' holds .*; a label is one number or text.*rename it"):
        load("parquet", "all", root=path)


@pytest.mark.parametrize("label", [[True, False, True], [1.5, 2.0, 1.5], ["a", "b", "a"]], ids=str)
def test_other_labels_are_numbered(tmp_path, label):
    found = load("parquet", "all", root=table(tmp_path / "x.parquet", [png()] * 3, label=label))
    assert found.labels.dtype == torch.int64
    assert found.labels[0] == found.labels[2] != found.labels[1]


def test_a_table_that_names_files_elsewhere_is_refused(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"image": [png()] * 3, "label": [0, 1, 0]}).save_to_disk(str(tmp_path / "set"))
    assert len(load("parquet", "all", root=tmp_path / "set")) == 3
    state = tmp_path / "set" / "state.json"
    content = json.loads(state.read_text())
    content["_data_files"][0]["filename"] = "../elsewhere.arrow"
    state.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"state\.json names '\.\./elsewhere\.arrow'.*within its folder"):
        load("parquet", "all", root=tmp_path / "set")


# images


def giant(width, height):
    """A PNG whose header promises more than a machine has."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


def test_an_image_with_too_many_pixels_is_named_and_left_out(tmp_path, monkeypatch):
    path = table(tmp_path / "x.parquet", [giant(30_000, 30_000), png(), giant(9000, 9000), png()])
    with pytest.warns(UserWarning, match=r"row 0: more than 67,108,864 pixels, .*GCALIGN_IMAGE_PIXELS"):
        assert len(load("parquet", "all", root=path)) == 2
    monkeypatch.setenv("GCALIGN_IMAGE_PIXELS", "100")
    with pytest.raises(ValueError, match="more than 100 pixels"):
        load("parquet", "all", root=path)


def test_only_formats_of_pictures_are_opened(tmp_path):
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\nshowpage\n%%EOF\n"
    path = table(tmp_path / "x.parquet", [eps, png()])
    with pytest.warns(UserWarning, match="row 0: not an image of a known format"):
        assert len(load("parquet", "all", root=path)) == 1


@pytest.mark.parametrize("loose", [True, False])
def test_a_pipe_among_images_is_named_and_not_waited_for(tmp_path, loose):
    folder = tmp_path / "images"
    inside = folder if loose else folder / "cats"
    inside.mkdir(parents=True)
    for k in range(3):
        (inside / f"{k}.png").write_bytes(png(grey=k))
    os.mkfifo(inside / "x.png")
    with pytest.warns(UserWarning, match=r"x\.png is a pipe or a device"):
        assert len(load("folder", "all", root=folder)) == 3


def test_a_pipe_in_place_of_a_table_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"train\.parquet is not a readable parquet file \(it is a pipe"):
        load("parquet", "train", root=tmp_path)


def test_an_archive_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GCALIGN_ARRAY_BYTES", "100000")
    for stem, part in (("train-images-idx3", 10**6), ("train-labels-idx1", 10)):
        (tmp_path / f"{stem}-ubyte.gz").write_bytes(gzip.compress(bytes(part)))
    with pytest.raises(ValueError, match=r"train-images.* at most 100,000 .*GCALIGN_ARRAY_BYTES"):
        load("fashion-mnist", "train", root=tmp_path)


# arrays and tables of embeddings and pairs


def npz(path, stored, shape, kind="<f4"):
    """An npz file of one array `x`: a header with this shape, and so many bytes of zeros."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": kind, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("x.npy", head.getvalue() + bytes(stored))
    return path


def audit(capsys, *words):
    assert main(["audit", *words, "-o", "out.csv"]) == 2
    assert not Path("out.csv").exists()
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("gcalign: ")
    return said[-1]


@pytest.fixture
def sides(tmp_path, monkeypatch):
    """A folder with b.npy, the other side of an audit."""
    monkeypatch.chdir(tmp_path)
    np.save("b.npy", np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32))
    np.save("weights.npy", np.ones(40, np.float32))
    return tmp_path


def test_an_archive_is_measured_before_it_is_unpacked(sides, capsys, monkeypatch):
    monkeypatch.setenv("GCALIGN_ARRAY_BYTES", str(10**6))
    npz(sides / "a.npz", 4 * 10**6, (250_000, 4))
    assert "'x' of a.npz is 4,000,000, at most 1,000,000 " in audit(capsys, "a.npz", "b.npy")
    with pytest.raises(ValueError, match=r"at most 1,000,000 .*GCALIGN_ARRAY_BYTES"):
        load_columns("pairs", root=str(sides / "a.npz"), columns=["x", "x"])


@pytest.mark.parametrize(("shape", "said"), [((10**6, 4), "promises 16,000,000 bytes"), ((10**13, 64), "at most 2,1")])
def test_a_header_that_promises_more_than_there_is_is_refused(sides, capsys, shape, said):
    npz(sides / "a.npz", 64, shape)
    assert said in audit(capsys, "a.npz", "b.npy")
    with zipfile.ZipFile("a.npz") as packed:
        Path("a.npy").write_bytes(packed.read("x.npy"))
    Path("pairs.csv").write_text("left,right\n" + "a.npy,a.npy\n" * 20)
    with pytest.raises(ValueError, match=said):
        load_columns("pairs", root="pairs.csv", columns=["left", "right"])
    config = configured(["data=pairs", "data.root=pairs.csv", "data.columns=left,right", "pairs.weights=a.npy"])
    with pytest.raises(ValueError, match=said):
        weights_of_pairs(config.pairs, 20)


@pytest.mark.parametrize("dtype", [">f4", ">i8", "longdouble"])
def test_numbers_that_torch_cannot_hold_are_converted(sides, capsys, dtype):
    # torch refused them, without a remedy
    a = (100 * np.load("b.npy")).round()
    written = []
    for name, array in (("a.npy", a), ("odd.npy", a.astype(dtype))):
        np.save(name, array)
        assert main(["audit", name, "b.npy", "-o", "o.csv"]) == 0
        written.append((sides / "o.csv").read_text())
    assert written[0] == written[1]
    assert "o.csv" in capsys.readouterr().out


def test_a_folder_in_place_of_embeddings_is_called_so(sides, capsys):
    (sides / "a.npy").mkdir()
    assert "a.npy is a folder, a pipe or a device; give a .npy" in audit(capsys, "a.npy", "b.npy")


def test_objects_in_an_archive_are_not_unpickled(sides, capsys):
    np.savez("a.npz", x=np.array([{}], dtype=object))
    assert "would run code from the file" in audit(capsys, "a.npz", "b.npy")


def test_embeddings_that_unpack_a_thousandfold_are_refused(sides, capsys, monkeypatch):
    monkeypatch.setenv("GCALIGN_ARRAY_BYTES", str(10**6))
    pq.write_table(pa.table({"v": [np.zeros(10_000, np.float32)] * 40}), "a.parquet", compression="zstd")
    assert Path("a.parquet").stat().st_size < 10**5
    assert "the number of bytes of 'v' of a.parquet is 1,6" in audit(capsys, "a.parquet", "b.npy")
    pq.write_table(pa.table({f"f{k}": np.zeros(10**5, np.float32) for k in range(4)}), "a.parquet", compression="zstd")
    assert "'f0', 'f1', 'f2' of a.parquet is 1,6" in audit(capsys, "a.parquet", "b.npy")
    Path("ids.txt").write_text("x\n" * 10**6)
    monkeypatch.setenv("GCALIGN_TEXT_BYTES", "1000")
    assert "GCALIGN_TEXT_BYTES" in audit(capsys, "b.npy", "b.npy", "--ids", "ids.txt")


@pytest.mark.parametrize("nested", [False, True])
def test_a_text_that_is_stored_once_for_many_rows_is_one_object(tmp_path, nested):
    n, words = 50_000, ["a" * 10**6, "b"]
    column = pa.DictionaryArray.from_arrays(pa.array(np.arange(n, dtype=np.int32) % 2), pa.array(words))
    if nested:
        column = pa.ListArray.from_arrays(pa.array(np.arange(n + 1, dtype=np.int32)), column)
    pq.write_table(pa.table({"text": column}), tmp_path / "x.parquet", compression="zstd", store_schema=False)
    found = open_table(tmp_path / "x.parquet").values("text")
    assert len({id(value[0] if nested else value) for value in found}) < 100
    assert found[:2] == ([[word] for word in words] if nested else words)


@pytest.mark.parametrize("row", ['"x,y', '"x"z,y', f"{'x' * 200_000},y", "x", "\0,1,2"], ids=lambda row: row[:5])
def test_a_table_that_is_no_csv_is_refused_with_its_row(tmp_path, row):
    (tmp_path / "pairs.csv").write_text(f"a,b\n{row}\n")
    with pytest.raises(ValueError, match=r"pairs\.csv row 0 .*correct the row"):
        open_table(tmp_path)


# words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.size=100000"], r"data.size is 100,000, at most 2,048 are allowed; .*GCALIGN_IMAGE_SIDE"),
        (["precision=16-true"], "precision='16-true' is unknown; did you mean '32-true'"),
        (["precision=64-true"], "precision='64-true' is unknown; did you mean '32-true'"),
        (["optimizer.momentum=5"], "optimizer.momentum=5 must be a share between 0 and 1"),
        (["model.momentum=5"], "model.momentum=5 must be a share between 0 and 1"),
        (["optimizer.warmup=-1"], "optimizer.warmup=-1 must be a share between 0 and 1"),
        (["target.name=blocks", "target.alpha=-1"], "target.alpha=-1 must be at least 0"),
        (["target.alpha=0.5"], "has no effect without target.name=blocks"),
        (["optimizer.weight_decay=-1"], "weight_decay=-1 must be at least 0"),
        (["optimizer.final=2"], "optimizer.final=2 must be a share"),
        (["optimizer.lr=nan"], "optimizer.lr=nan must be a number"),
        (["model.width=0"], "model.width=0 must be > 0"),
        (["model.hidden=0"], "model.hidden=0 must be at least 1"),
        (["model.projector=mlp"], "did you mean 'mlp2'"),
        (["seed=-1"], "seed=-1 must be at least 0"),
        (["seed=99999999999999999999999"], r"must be below 2\^63"),
        (["workers=-1"], "workers=-1 must be at least 0"),
        (["data.limit=0"], "data.limit=0 must be at least 1"),
        (["data.on_error=stop"], "data.on_error='stop' is unknown"),
        (["epochs=[1,"], r"epochs=\[1, is not a value; write a number, a word, or a list"),
        (["epochs=1,2"], "epochs=1,2 is not a value"),
        (["method.eps={a: 1}"], "method.eps={a: 1} is not a value"),
        (["epochs=1.5"], "epochs=1.5 must be a whole number"),
        (["epochs=99999999999"], r"epochs is 99,9.*at most 1,000,000 .*GCALIGN_EPOCHS"),
        (["workers=100000"], r"workers is 100,000, at most 256 .*GCALIGN_WORKERS"),
        (["optimizer.lr=1e300"], r"optimizer.lr=1e\+300 must be at most 1e\+06"),
        (["optimizer.weight_decay=1e300"], r"weight_decay=1e\+300 must be at most 1e\+06"),
        (["target.name=blocks", "target.alpha=1e300"], r"target.alpha=1e\+300 must be at most 1e\+06"),
        (["batch_size=1"], "batch_size=1 must be at least 2 × devices=1 × accumulate=1"),
        (["batch_size=64", "accumulate=64"], "batch_size=64 must be at least 2 × devices=1 × accumulate=64"),
        (["log_every=99999999999999999999"], r"log_every=99999999999999999999 must be below 2\^63"),
        (["wait=maybe"], "wait='maybe' must be true or false"),
        (["+epoch=50"], "unknown key '.epoch'.*did you mean 'epochs'"),
        (["++epochs=50"], "did you mean 'epochs'"),
        (["+epochs=50"], "did you mean 'epochs'"),
        (["~epochs"], "must be key=value"),
        (["~epochs=1"], "did you mean 'epochs'"),
        (["method.name=byol"], "must be written method=byol"),
        (["data.name=cifar10"], "must be written data=cifar10"),
        (["hydra.run.dir=x"], "unknown key"),
        (["+method=byol"], "did you mean 'method'"),
        (["method.relax=3"], "unknown key"),
        (["model=small"], "unknown key"),
    ],
)  # fmt: skip
def test_words_out_of_range_or_unknown_are_refused(tmp_path, words, said):
    with pytest.raises(ValueError, match=said):
        configured([f"runs={tmp_path}/runs", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run=pixels", "protocol=knn", "k=[1,"], "k=[1, is not a value"),
        (["run=pixels", "protocol=knn", "k={"], "k={ is not a value"),
        (["run=pixels", "protocol=knn", "data.size=100000", "data=folder", "data.root=."], "at most 2,048"),
        (["run=pixels", "protocol=knn", "device=meta"], "device=meta cannot be used"),
        (["run=pixels", "protocol=knn", "k=99999999999999999999"], "must be below 2^63"),
        (["run=pixels", "model.width=2"], "has no effect on run=pixels"),
        (["run=pixels", "+k=3"], "did you mean 'k'"),
        (["run=pixels", "encoder=a:b"], "has no effect on run=pixels"),
    ],
)
def test_a_probe_refuses_words_without_a_traceback(words, said, capsys):
    assert main(["probe", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_launchers_option_without_a_launcher_is_refused(capsys):
    assert main(["reproduce", "fig-plans", "hydra.launcher.partition=x"]) == 2
    assert "say which with launcher=" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word",
    ["model.width=1e5", "model.width=1e300", "model.hidden=2000000000", "model.out=9999999999999999"],
)
@pytest.mark.parametrize("encoder", ["small", "resnet50"])
def test_a_network_that_no_machine_holds_is_refused(tmp_path, word, encoder):
    config = config_for(tmp_path / "runs", word, f"model.encoder={encoder}")
    with pytest.raises(ValueError, match=r"number of parameters is .*at most 1,073,741,824 .*MODEL_PARAMETERS"):
        train(config, images=pictures(), quiet=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("width", [1e5, 1e300])
def test_a_network_that_a_run_asks_for_is_refused_too(tmp_path, width, capsys):
    config = config_for(tmp_path)
    Run.of(config).start(config)
    content = json.loads(Run.of(config).config_file.read_text())
    content["model"]["width"] = width
    Run.of(config).config_file.write_text(json.dumps(content))
    assert main(["probe", "run=untrained", f"like={Run.of(config).path}", "protocol=knn", "data.limit=40"]) == 2
    assert "MODEL_PARAMETERS" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["eps", "iterations", "tol", "layout", "gradient", "block", "q", "lam", "scale",
                                    "relax", "w_kl", "w_robust"])  # fmt: skip
@pytest.mark.parametrize("value", ["-1", "nan", "-inf", "x", "true", "[0.1,x]"])
def test_options_of_a_method_are_refused_before_anything_is_written(tmp_path, option, value):
    config = config_for(tmp_path / "runs", "method=gca-uot", f"method.{option}={value}")
    with pytest.raises((ValueError, TypeError), match=rf"({option}|penalty|weight)=.* must|{option}=.* is unknown"):
        train(config, images=pictures(), quiet=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["iterations", "block"])
def test_a_number_that_torch_cannot_hold_is_refused(option):
    with pytest.raises(ValueError, match=rf"{option}=9+ must be below 2\^63"):
        gcalign.method("gca-uot", **{option: 99999999999999999999})


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", lambda path, other: pytest.fail(f"{other} was replaced"))
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    before = sorted(tmp_path.iterdir())
    for path in (*before, Path("/dev/full"), Path("/dev/null"), Path("/dev/stdout")):
        with pytest.raises(ValueError, match="is a folder, a pipe or a device, which a file would replace"):
            files.write(path, "x")
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "pipe.json").is_fifo()
    assert main(["verify", "--only", "thm:byol", "--cases", "2", "--json", str(tmp_path / "pipe.json")]) == 2


def test_a_switch_is_true_or_false():
    for value in ("x", 1, -0.5, [1]):
        with pytest.raises(TypeError, match=r"learnable=.* must be True or False"):
            gcalign.method("clip", learnable=value)


def test_a_batch_that_no_machine_holds_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GCALIGN_BATCH_BYTES", "1000")
    with pytest.raises(ValueError, match=r"batch_size=16 of images of tiny.*at most 1,000 .*GCALIGN_BATCH_BYTES"):
        train(config_for(tmp_path), images=pictures(), quiet=True)
    assert list(tmp_path.iterdir()) == []


# files of a run


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A run that has a checkpoint of step 4."""
    config = config_for(tmp_path / "a", "logger=none")
    real = runs.files.write
    monkeypatch.setattr(runs.files, "write", lambda path, content: _until_weights(real, path, content))
    with pytest.raises(KeyError):
        train(config, images=pictures(), quiet=True)
    monkeypatch.undo()
    return config, Run.of(config)


def _until_weights(write, path, content):
    if path.name == "weights.safetensors":
        raise KeyError
    write(path, content)


@pytest.mark.parametrize(
    "words", [("model.out=16",), ("optimizer.lr=2e-3",), ("method=byol",), ("optimizer.name=sgd",)]
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, stopped, words):
    other = config_for(tmp_path / "b", "logger=none", *words)
    Run.of(other).path.mkdir(parents=True)
    Run.of(other).checkpoint_file.write_bytes(stopped[1].checkpoint_file.read_bytes())
    with pytest.raises(ValueError, match=r"is not a checkpoint of this run .*; delete it to start this run again"):
        train(other, images=pictures(), quiet=True)


@pytest.mark.parametrize(
    "change", [{"step": -1}, {"step": "x"}, {"step": 99}, {"step": None}, {"scaler": 3}, {"scaler": {"scale": "x"}}]
)
def test_odd_metadata_of_a_checkpoint_is_an_error_with_a_remedy(stopped, change):
    config, run = stopped
    content, about = checkpoints.read(run.checkpoint_file)
    changed = {k: v for k, v in (about | change).items() if v is not None}
    checkpoints.save(run.checkpoint_file, content, changed)
    with pytest.raises(ValueError, match=r"delete it to start (the|this) run again"):
        train(config, images=pictures(), quiet=True)


@pytest.mark.parametrize(
    "about",
    [None, "{", "3", "{}", '{"config": {}, "shape": [3, 8, 8]}', '{"config": {"method": {"name": "x"}}, "shape": [3]}',
     '{"config": {"method": {"name": "x"}, "model": {"hidden": 1000000000000, "out": 1000000}}, "shape": [3, 12, 12]}',
     '{"config": {"method": {"name": "x"}, "model": {"width": 1e15}}, "shape": [3, 12, 12]}',
     '{"config": {"method": {"name": "x"}, "model": {"encoder": "resnet50"}}, "shape": [3, 12, 12]}',
     '{"config": {"method": {"name": "x"}}, "shape": [3, -1, 12]}'],
)  # fmt: skip
def test_weights_that_do_not_say_what_they_are_are_an_error_with_a_remedy(tmp_path, about):
    run = train(config_for(tmp_path), images=pictures(), quiet=True)
    content, _ = checkpoints.read(run.weights_file)
    content = {key.removeprefix("towers.0."): value for key, value in content.items()}  # as version 0.1 wrote them
    save_file(content, run.weights_file, {} if about is None else {"gcalign": about})
    with pytest.raises(ValueError, match=r"does not say what it holds.*(train the|start this) run again|does not fit"):
        load_whole(run.path)


def test_weights_of_another_type_are_refused(tmp_path):
    run = train(config_for(tmp_path), images=pictures(), quiet=True)
    content, about = checkpoints.read(run.weights_file)
    checkpoints.save(run.weights_file, {k: v.double() for k, v in content.items()}, about)
    with pytest.raises(ValueError, match=r"is torch\.float64, not torch\.float32"):
        gcalign.load(run.path)


# paths as they are typed

ODD = ["é à ü", "two words", "it's", 'say "so"', "a[b]{c}", "a=b", "~x", "a,b;(c)", "$HOME", "${name}", "back\\slash",
       "50%", "#1", "*", "😀", "-x", "a:b", "<b>"]  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_paths_work_as_they_are_typed(tmp_path, odd, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    images = tmp_path / odd / "cats"
    images.mkdir(parents=True)
    for k in range(40):
        (images / f"{k}.png").write_bytes(png(grey=6 * k))
    words = [word for word in TINY if not word.startswith(("data", "batch_size", "logger"))]
    words += ["batch_size=16", "views=plain"]
    places = ["data=folder", f"data.root={odd}", f"runs={odd}/runs"]
    assert main(["train", *words, *places]) == 0
    (run,) = (tmp_path / odd / "runs").iterdir()
    name = f"{odd}/runs/{run.name}"
    assert main(["embed", f"run={name}", "-o", f"./{odd}/f.parquet"]) == 0
    assert (tmp_path / odd / "f.parquet").is_file()
    assert main(["list", f"./{odd}/runs"]) == 0
    assert main(["report", f"./{odd}/runs", "-o", f"./{odd}/r.html", "--images", "8"]) == 0
    page = (tmp_path / odd / "r.html").read_text()
    assert "data:image/jpeg" in page
    assert Run(run).config().data.root == odd
    assert not [path for path in tmp_path.iterdir() if path.name != odd]
    assert main(["probe", f"run={name}", "protocol=knn"]) == 2  # one folder: no labels
    assert "has no labels" in capsys.readouterr().err


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY, "runs=~/runs"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert main(["probe", f"run=~/runs/{run.name}", "protocol=knn", "data.limit=40"]) == 0
    assert main(["list", "~/runs"]) == 0
    assert main(["embed", f"run=~/runs/{run.name}", "data.limit=9", "-o", "~/f.parquet"]) == 0
    assert (tmp_path / "f.parquet").is_file()
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("odd", ["é [1]", "a*b", "a=b"])
def test_large_tables_are_read_from_odd_paths_too(tmp_path, odd, monkeypatch):
    monkeypatch.setattr(sources, "MEMORY", 1)
    (tmp_path / odd).mkdir()
    for folder in ("é 1", "aXb"):  # what a pattern would match
        (tmp_path / folder).mkdir()
        table(tmp_path / folder / "x.parquet", [png(grey=200)] * 12)
    path = table(tmp_path / odd / "x.parquet", [png(grey=k) for k in range(12)])
    found = load("parquet", "all", root=path)
    assert [int(x) for x in found.get(torch.arange(12))[:, 0, 0, 0]] == list(range(12))


# numbers and output


def test_numpy_scalars_are_numbers(batch):
    z1, z2 = batch()
    for make in (np.float64, np.float32, np.float16):
        eps = make(0.5)
        assert torch.equal(gcalign.method("gca-ince", eps=eps)(z1, z2), gcalign.method("gca-ince", eps=0.5)(z1, z2))
        criterion = gcalign.method("gca-uot", eps=eps, relax=(eps, eps), iterations=np.int64(7), tol=make(0.0))
        assert torch.equal(
            criterion(z1, z2), gcalign.method("gca-uot", eps=0.5, relax=(0.5, 0.5), iterations=7, tol=0.0)(z1, z2)
        )
    assert repr(gcalign.Capacity(np.float32(0.5))) == repr(gcalign.Capacity(0.5))
    assert repr(gcalign.Rows(np.float64(0.2))) == "Rows(penalty=0.2)"
    gcalign.Blocks(np.float64(0.5), np.int32(0))
    pairs = torch.randn(2, 60, 8, generator=torch.Generator().manual_seed(0))
    audits = [gcalign.audit(*pairs, seed=seed) for seed in (3, np.int64(3))]
    assert torch.equal(audits[0].suspicion, audits[1].suspicion)
    with pytest.raises(TypeError, match="must be a number"):
        gcalign.method("gca-ince", eps=np.bool_(True))


def run_with(tmp_path, argv, **more):
    return command(tmp_path, *argv, **more)


def test_a_terminal_of_ascii_shows_what_it_can(tmp_path):
    config = config_for(tmp_path / "runs", "name=é–😀")
    Run.of(config).start(config)
    here = {"cwd": tmp_path}
    os.environ["PYTHONIOENCODING"] = "ascii"
    try:
        for argv in (["list", "runs"], ["verify", "--only", "thm:byol", "--cases", "2"]):
            done = command(tmp_path, *argv, **here)
            assert done.returncode == 0, done.stderr
            assert done.stdout.isascii()
    finally:
        del os.environ["PYTHONIOENCODING"]


@pytest.mark.parametrize("how", ["2>&1 | head -c 1 > /dev/null; exit ${PIPESTATUS[0]}", ">&-", ">&- 2>&-", "2>&-"])
def test_a_reader_that_is_gone_does_not_fail_a_finished_job(tmp_path, how):
    source = Path(gcalign.__file__).parents[1]
    words = " ".join(f"'{word}'" for word in [*TINY, f"runs={tmp_path}/runs"])
    script = f"PYTHONPATH='{source}' '{sys.executable}' -m gcalign train {words} {how}"
    done = subprocess.run(["bash", "-c", script], check=False, timeout=300)
    assert done.returncode == 0
    assert list(tmp_path.glob("runs/*/done"))


def test_left_over_parts_are_removed(tmp_path):
    config = config_for(tmp_path, "logger=none")
    run = Run.of(config)
    run.path.mkdir(parents=True)
    left = [f".weights.safetensors.{os.getpid()}.abcd.part", ".config.json.999999.ef01.part", ".done.1.77.part"]
    for name in left:
        (run.path / name).touch()
    train(config, images=pictures(), quiet=True)
    assert sorted(p.name for p in run.path.iterdir()) == [
        "config.json", "done", "lock", "results.jsonl", "weights.safetensors"
    ]  # fmt: skip
    dead, alive, others = (tmp_path / f".r.html.{tail}.part" for tail in ("4194400.a", f"{os.getpid()}.b", "x"))
    elsewhere = tmp_path / ".q.html.4194400.a.part"
    for path in (dead, alive, others, elsewhere):
        path.touch()
    files.write(tmp_path / "r.html", "x")
    assert not dead.exists()
    assert alive.exists()
    assert others.exists()
    assert elsewhere.exists()


def test_the_same_weights_are_the_same_bytes(tmp_path):
    made = [train(config_for(tmp_path / name), images=pictures(), quiet=True) for name in "ab"]
    assert made[0].weights_file.read_bytes() == made[1].weights_file.read_bytes()
    assert weights(made[0]).keys() == weights(made[1]).keys()
