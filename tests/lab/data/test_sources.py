"""Every data set loads from files made here, alike each time, and says what is wrong when something is."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import time
import tracemalloc
import types
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from gcalign.lab.data import sources, stores
from gcalign.lab.data.catalogue import WNIDS
from gcalign.lab.data.decode import pixels_of
from gcalign.lab.data.images import InMemory, OnDemand, described
from gcalign.lab.data.sides import views_of
from gcalign.lab.data.sources import labels_of, load, names
from gcalign.lab.training.config import configured
from small_runs import png

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is absent")


def write_table(path: Path, images: list[bytes], image: str = "image", names: dict | None = None, **columns: list):
    """A parquet file as Hugging Face's `datasets` writes it; `names` are the classes of its columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = pa.array(
        [{"bytes": b, "path": None} for b in images], pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    )
    table = pa.table({image: cells, **columns})
    features = {image: {"_type": "Image"}} | {k: {"_type": "ClassLabel", "names": v} for k, v in (names or {}).items()}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=7)
    return path


def write_images(folder: Path, values: range | list[int], **options) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for value in values:
        (folder / f"{value:03}.png").write_bytes(png(value, **options))


def grey(images, indices=None) -> list[int]:
    """The grey level of each image."""
    return images.get(torch.arange(len(images)) if indices is None else indices)[:, 0, 0, 0].tolist()


@pytest.fixture
def cifar(tmp_path):
    labels = [k % 10 for k in range(40)]
    write_table(tmp_path / "cifar10" / "train.parquet", [png(k, (32, 32)) for k in range(40)], "img", label=labels)
    write_table(
        tmp_path / "cifar10" / "test.parquet", [png(k, (32, 32)) for k in range(100, 110)], "img", label=labels[:10]
    )
    return tmp_path


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there


# --- reading


def test_a_named_set_is_read_from_each_accepted_layout(cifar, tmp_path):
    expected = load("cifar10", "train", root=cifar)
    assert isinstance(expected, InMemory)
    assert expected.shape == (3, 32, 32)
    assert grey(expected) == list(range(40))
    assert expected.labels.tolist() == [k % 10 for k in range(40)]
    assert expected.classes[:2] == ("airplane", "automobile")
    assert expected.mean == (0.4914, 0.4822, 0.4465)
    images, labels = [png(k, (32, 32)) for k in range(40)], [k % 10 for k in range(40)]
    for k, layout in enumerate(("data/train-{}-of-2", "plain_text/train-{}-of-2", "train/{}", "cifar10/data/train-{}")):
        root = tmp_path / f"layout{k}"
        write_table(root / f"{layout.format(0)}.parquet", images[:25], "img", label=labels[:25])
        write_table(root / f"{layout.format(1)}.parquet", images[25:], "img", label=labels[25:])
        got = load("cifar10", "train", root=root)
        assert torch.equal(got.pixels, expected.pixels)
        assert torch.equal(got.labels, expected.labels)
    assert grey(load("cifar10", "train", root=cifar / "cifar10")) == list(range(40))


def test_threads_give_the_same_images_and_the_same_report(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, (900, 6, 6, 3), np.uint8)
    images = []
    for pixels in noise:
        Image.fromarray(pixels).save(buffer := io.BytesIO(), "PNG")
        images.append(buffer.getvalue())
    images[5], images[700] = b"x", b"y"
    file = write_table(tmp_path / "a.parquet", images)
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        with pytest.warns(UserWarning, match=r"2 unreadable image\(s\): .*row 5: .*row 700: "):
            got = load("parquet", "all", root=file)
        assert np.array_equal(got.pixels.permute(0, 2, 3, 1).numpy(), np.delete(noise, [5, 700], axis=0))


def test_imagenet_100_is_taken_out_of_a_whole_imagenet(tmp_path):
    for k, name in enumerate([*WNIDS, "n01440764"]):
        write_images(tmp_path / "train" / name, [k])
    write_images(tmp_path / "val" / WNIDS[0], [5])
    images = load("imagenet100", "train", root=tmp_path, size=8)
    assert grey(images) == list(range(100)) == images.labels.tolist()
    assert images.classes == WNIDS
    assert len(set(WNIDS)) == 100
    with pytest.raises(ValueError, match=r"99 of the 100 .*n01749939"):
        load("imagenet100", "test", root=tmp_path)


def test_pacs_is_split_by_domain_and_class(tmp_path):
    domains = [d for d in ("sketch", "photo", "cartoon", "art_painting") for _ in range(70)]
    labels = [k % 7 for k in range(280)]
    write_table(tmp_path / "pacs" / "train.parquet", [png(k % 256) for k in range(280)], label=labels, domain=domains)
    train, test = (load("pacs", split, root=tmp_path) for split in ("train", "test"))
    assert (len(train), len(test)) == (196, 84)
    assert train.shape == (3, 8, 8)
    assert train.domain_names == ("photo", "art_painting", "cartoon", "sketch")
    assert train.classes[-1] == "person"
    assert torch.equal(torch.bincount(test.domains * 7 + test.labels), torch.full((28,), 3))
    assert sorted(grey(train) + grey(test)) == sorted(grey(load("pacs", "all", root=tmp_path)))
    assert grey(load("pacs", "test", root=tmp_path, seed=5)) == grey(test)  # the seed of a run moves nobody across
    assert domains.index("photo") in torch.arange(280)[load("pacs", "all", root=tmp_path).domains == 0]


def test_cifar10c_is_read_by_severity(tmp_path):
    levels = np.arange(20, dtype=np.uint8)
    np.save(tmp_path / "fog.npy", levels[:, None, None, None] * np.ones((32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.tile(np.arange(4), 5))
    images = load("cifar10c", "test", root=tmp_path, corruption="fog", severity=3)
    assert grey(images) == [8, 9, 10, 11]
    assert images.labels.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="severity=6: cifar10c needs both"):
        load("cifar10c", "test", root=tmp_path, corruption="fog", severity=6)
    np.save(tmp_path / "labels.npy", np.arange(19))
    with pytest.raises(ValueError, match="as many labels, as published"):
        load("cifar10c", "test", root=tmp_path, corruption="fog", severity=3)
    np.save(tmp_path / "fog.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="not a readable"):
        load("cifar10c", "test", root=tmp_path, corruption="fog", severity=3)


def test_cifar10c_is_made_where_it_is_not_on_disk(cifar, monkeypatch):
    options = {"root": cifar, "corruption": "brightness", "severity": 5}
    made = load("cifar10c", "test", **options)
    clean = load("cifar10", "test", root=cifar)
    assert made.shape == (3, 32, 32)
    assert torch.equal(made.labels, clean.labels)
    assert (made.pixels.float().mean((1, 2, 3)) > clean.pixels.float().mean((1, 2, 3))).all()
    options["corruption"] = "gaussian_noise"
    noisy = load("cifar10c", "test", **options)
    assert torch.equal(noisy.pixels, load("cifar10c", "test", **options).pixels)
    assert not torch.equal(noisy.pixels, load("cifar10c", "test", seed=1, **options).pixels)
    monkeypatch.setattr(sources, "MEMORY", 100)
    lazy = load("cifar10c", "test", **options)
    assert torch.equal(lazy.get([7, 2]), noisy.get([7, 2]))
    with pytest.raises(ValueError, match="did you mean 'brightness'"):
        load("cifar10c", "test", root=cifar, corruption="brigthness", severity=5)


# --- a user's own


def test_a_folder_of_class_folders(tmp_path):
    for k, name in enumerate(("train", "bus", "tram")):  # one class happens to be called train
        write_images(tmp_path / name, range(50 * k, 50 * k + 10))
    (tmp_path / "bus" / "notes.txt").write_text("not an image")
    whole = load("folder", "all", root=tmp_path)
    assert whole.classes == ("bus", "train", "tram")
    assert whole.labels.bincount().tolist() == [10, 10, 10]
    train, test = (load("folder", split, root=tmp_path) for split in ("train", "test"))
    assert test.labels.bincount().tolist() == [3, 3, 3]
    assert sorted(grey(train) + grey(test)) == sorted(grey(whole))
    assert train.mean == test.mean  # of the training images, both times
    assert train.mean[0] == pytest.approx(train.pixels.double().mean().item() / 255)


def test_a_folder_of_splits_numbers_its_classes_alike(tmp_path):
    write_images(tmp_path / "train" / "a", [1])
    write_images(tmp_path / "train" / "b", [2])
    write_images(tmp_path / "val" / "b", [3, 4])
    images = load("folder", "test", root=tmp_path)
    assert (grey(images), images.labels.tolist(), images.classes) == ([3, 4], [1, 1], ("a", "b"))


def test_unlabelled_images_are_welcome(tmp_path):
    write_images(tmp_path, range(20))
    images = load("folder", "train", root=tmp_path, limit=7)
    assert images.labels is None
    assert images.classes == ()
    assert len(images) == 7
    with pytest.raises(ValueError, match=r"folder \(train\) .*labels.*a linear probe"):
        labels_of(images, "a linear probe")


def test_what_was_made_of_a_folder_is_said(tmp_path):
    for name in ("a", "b"):
        write_images(tmp_path / "classes" / name, range(10))
        write_images(tmp_path / "divided" / "train" / name, range(3))
        write_images(tmp_path / "divided" / "test" / name, range(3))
    (tmp_path / "classes" / "a" / "notes.txt").write_text("no image")
    (tmp_path / "classes" / ".hidden").write_text("not worth a word")
    write_images(tmp_path / "loose", range(10))
    write_images(tmp_path / "one" / "photos", range(10))
    expected = {
        "classes": (
            "labels: the folder that an image is in",
            "passed over: 1 file(s) with other endings (.txt)",
            "split: 14 of 20 images are for training; 30% of each class for testing",
        ),
        "divided": ("labels: the folder that an image is in", "split: what is stored as 'train'"),
        "loose": (
            "no labels: the images are not in folders of classes",
            "split: 7 of 10 images are for training; 30% of them for testing",
        ),
        "one": (
            "no labels: the images are in one folder",
            "split: 7 of 10 images are for training; 30% of them for testing",
        ),
    }
    for name, notes in expected.items():
        images = load("folder", "train", root=tmp_path / name)
        assert images.notes == notes
        assert (images.labels is None) == (name in ("loose", "one"))
        assert described(images).endswith("\n  ".join(("", *notes)))
    assert load("parquet", "all", root=write_table(tmp_path / "x.parquet", [png(1)] * 4, label=[0, 1, 0, 1])).notes == (
        "labels: the column 'label'",
    )


def test_a_parquet_file_of_plain_bytes_and_words(tmp_path):
    table = {"photo": [png(k) for k in range(10)], "label": ["dog", "cat"] * 5, "domain": ["x"] * 10}
    pq.write_table(pa.table(table), tmp_path / "mine.parquet")
    for root in (tmp_path, tmp_path / "mine.parquet"):
        images = load("parquet", "all", root=root)
        assert grey(images) == list(range(10))
        assert images.classes == ("cat", "dog")
        assert images.labels.tolist() == [1, 0] * 5
        assert images.domain_names == ("x",)
    assert load("parquet", "test", root=tmp_path).labels.tolist().count(0) == 2  # 30 % of each class


def test_withheld_labels_are_none(tmp_path):
    write_table(tmp_path / "test.parquet", [png(k) for k in range(3)], names={"label": ["a", "b"]}, label=[-1] * 3)
    assert load("parquet", "test", root=tmp_path).labels is None
    for labels in ([0, None, 1], [0.0, float("nan"), 1.0]):
        write_table(tmp_path / "test.parquet", [png(k) for k in range(3)], label=labels)
        with pytest.raises(ValueError, match=r"1 of 3 .*'label'"):
            load("parquet", "test", root=tmp_path)


def test_columns_are_found_by_what_they_hold_or_by_their_name(tmp_path):
    pictures, thumbs = [png(k) for k in range(4)], [png(9)] * 4
    named = {"names": {"fine": ["a", "b"], "coarse": ["c"]}, "fine": [0, 1, 0, 1], "coarse": [0] * 4}
    file = write_table(tmp_path / "a.parquet", pictures, **named, thumb=thumbs)
    with pytest.raises(ValueError, match=r"\(fine, coarse\).*'label'"):
        load("parquet", "all", root=file)
    labelled = write_table(tmp_path / "b.parquet", pictures, **named, thumb=thumbs, label=[1, 0, 0, 1])
    images = load("parquet", "all", root=labelled)
    assert images.labels.tolist() == [1, 0, 0, 1]
    assert grey(images) == [0, 1, 2, 3]  # of the column `image`
    table = pq.read_table(labelled).rename_columns(["photo", *pq.read_schema(labelled).names[1:]])
    pq.write_table(table, tmp_path / "c.parquet")
    with pytest.raises(ValueError, match=r"\(photo, thumb\).*'image'"):
        load("parquet", "all", root=tmp_path / "c.parquet")


# --- large sets


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_a_large_set_stays_on_disk_and_gives_the_same_images(tmp_path, monkeypatch, kind):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    root = tmp_path / "data"
    if kind == "folder":
        for k in range(2):
            write_images(root / "ab"[k], range(20 * k, 20 * k + 20), size=(9, 12))
    else:
        write_table(root / "all-0.parquet", [png(k, (9, 12)) for k in range(25)], label=[k // 20 for k in range(25)])
        write_table(root / "all-1.parquet", [png(k, (9, 12)) for k in range(25, 40)], label=[1] * 15)
    held = load(kind, "train", root=root, size=6)
    monkeypatch.setattr(sources, "MEMORY", 100)
    lazy = load(kind, "train", root=root, size=6)
    assert isinstance(lazy, OnDemand)
    assert len(lazy) == len(held) == 28
    assert torch.equal(lazy.labels, held.labels)
    assert (lazy.mean, lazy.std, lazy.shape, lazy.classes) == (held.mean, held.std, held.shape, held.classes)
    order = torch.randperm(28, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lazy.get(order), held.get(order))
    assert torch.equal(pickle.loads(pickle.dumps(lazy)).get([3, 3, 1]), held.get([3, 3, 1]))  # a spawned worker's copy


def test_an_unreadable_image_of_a_large_set_is_replaced_by_one_of_its_class(tmp_path, monkeypatch):
    for k in range(2):
        write_images(tmp_path / "ab"[k], range(20 * k, 20 * k + 5))
    (tmp_path / "b" / "024.png").write_bytes(b"nonsense")
    monkeypatch.setattr(sources, "MEMORY", 100)
    images = load("folder", "all", root=tmp_path)
    with pytest.warns(UserWarning, match=r"1 unreadable .*024\.png"):
        assert grey(images, [-1, 8, 0]) == [20, 23, 0]
    fatal = load("folder", "all", root=tmp_path, on_error="raise")
    with pytest.raises(ValueError, match=r"024\.png"):
        fatal.get([9])


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_memory_is_flat_in_the_number_of_images(tmp_path, monkeypatch, kind):
    """500 images and 4,000: what an image costs beyond its label and its place in the order is its name's bytes."""
    import datasets

    from gcalign.lab.training.stream import Stream

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(sources, "MEMORY", 0)
    monkeypatch.setattr(sources, "MEASURED", 100)
    (tmp_path / "one.png").write_bytes(png(7))
    held, peak = [], []
    for n in (200, 500, 4000):  # the first for what libraries keep
        root = tmp_path / str(n)
        if kind == "folder":
            for k in range(n):
                (folder := root / f"class{k % 10}").mkdir(parents=True, exist_ok=True)
                os.link(tmp_path / "one.png", folder / f"image-{k:07}.png")
        else:
            write_table(root / "train.parquet", [png(7)] * n, label=[k % 10 for k in range(n)])
        tracemalloc.start()
        images = load(kind, "train", root=root)
        stream = Stream(views_of(images), batch_size=32, epochs=2, seed=0)
        for step in (0, 1, len(stream) - 1):
            assert (stream[step].items[1] == 7).all()
        now, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        held.append(now + pa.total_allocated_bytes())
        peak.append(most)
        del images, stream
    assert held[2] - held[1] < 60 * 3500  # a name, a row, a label: a Path alone would be several hundred
    assert peak[2] - peak[1] < 400 * 3500


# --- subsets


def test_a_limit_balances_the_classes_and_nests(cifar):
    some, fewer = (load("cifar10", "train", root=cifar, limit=n, seed=3) for n in (20, 15))
    assert some.labels.bincount().tolist() == [2] * 10
    assert set(grey(fewer)) < set(grey(some))
    assert grey(some) == grey(load("cifar10", "train", root=cifar, limit=20, seed=3))
    assert grey(some) != grey(load("cifar10", "train", root=cifar, limit=20, seed=4))
    with pytest.raises(ValueError, match="limit=41 must be at most 40"):
        load("cifar10", "train", root=cifar, limit=41)


# --- bad input


def test_corrupt_images_are_named_and_skipped_or_fatal(tmp_path):
    images = [png(k, kind="JPEG") for k in range(12)]
    images[3], images[8], images[9] = images[3][: len(images[3]) // 2], b"", b"GIF89a"
    file = write_table(tmp_path / "x.parquet", images, label=[k // 6 for k in range(12)])
    with pytest.warns(UserWarning, match=r"3 unreadable .*x\.parquet row 3: .*row 8: .*row 9: "):
        got = load("parquet", "all", root=file)
    assert grey(got) == [0, 1, 2, 4, 5, 6, 7, 10, 11]
    assert got.labels.tolist() == [0] * 5 + [1] * 4
    with pytest.raises(ValueError, match=r"row 3.*on_error='skip'"):
        load("parquet", "all", root=file, on_error="raise")
    write_table(file, [b"nonsense"] * 2)
    with pytest.raises(ValueError, match=r"no readable image .*x\.parquet row \d"):
        load("parquet", "all", root=file)


def test_unknown_names_suggest_the_nearest(tmp_path):
    assert {"cifar10", "pacs", "cifar10c", "folder", "scenes"} <= set(names())
    with pytest.raises(ValueError, match=r"data='cifar01' is unknown; did you mean 'cifar10'\?"):
        load("cifar01", "train")
    with pytest.raises(ValueError, match=r"split='tets' is unknown; did you mean 'test'\?"):
        load("cifar10", "tets")
    with pytest.raises(ValueError, match="on_error='ignore' is unknown"):
        load("cifar10", "test", on_error="ignore")
    with pytest.raises(ValueError, match=r"limit=0 must be at least 1"):
        load("cifar10", "test", limit=0)
    with pytest.raises(ValueError, match="only data=cifar10c has them"):
        load("cifar10", "test", corruption="fog")
    with pytest.raises(ValueError, match="does not exist"):
        load("cifar10", "test", root=tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn", "imagenet100", "pacs", "someone/images"])
def test_without_files_and_network_the_error_says_what_to_download(tmp_path, offline, monkeypatch, name):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    begun = time.perf_counter()
    with pytest.raises(ValueError, match=rf"{name} was not found .*download.*datasets/.*<root>/{name}/<split>.parquet"):
        load(name, "train", root=tmp_path)
    assert time.perf_counter() - begun < 10


def test_cifar10c_tells_of_its_other_source(tmp_path):
    with pytest.raises(ValueError, match=r"CIFAR-10-C\.tar .*<root>/fog\.npy"):
        load("cifar10c", "test", root=tmp_path, corruption="fog", severity=1)


def test_an_endpoint_that_never_answers_is_given_up(monkeypatch):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(stores, "PATIENCE", 0.2)
        assert not stores.reachable()


def test_a_wrong_or_broken_table_is_refused(cifar, tmp_path):
    with pytest.raises(ValueError, match=r"'fine_label'.*img, label"):
        load("cifar100", "train", root=cifar / "cifar10")
    file = tmp_path / "cifar10" / "train.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"train\.parquet .*download it again"):
        load("cifar10", "train", root=tmp_path)
    write_table(file, [np.random.default_rng(0).bytes(5000)] * 3, "img", label=[0] * 3)
    data = bytearray(file.read_bytes())
    data[4:60] = b"\xff" * 56  # the first page's header
    file.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=r"train.parquet is not a readable parquet file"):
        load("cifar10", "train", root=tmp_path)
    write_table(file, [png(0)], "img", names={"label": ["a", "b"]}, label=[0])
    with pytest.raises(ValueError, match=r"'label' .*2 .*cifar10.* 10"):
        load("cifar10", "train", root=tmp_path)
    write_table(file, [png(0)], "img", label=[10])
    with pytest.raises(ValueError, match=r"spans 10..10; there are 10 names"):
        load("cifar10", "train", root=tmp_path)
    write_table(file, [], "img", label=pa.array([], pa.int64()))
    with pytest.raises(ValueError, match="holds no images"):
        load("cifar10", "train", root=tmp_path)
    pq.write_table(pa.table({"label": [1]}), tmp_path / "bare.parquet")
    with pytest.raises(ValueError, match=r"has 0 columns of images \(none\)"):
        load("parquet", "all", root=tmp_path / "bare.parquet")


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="root=None is not a folder"):
        load("folder", "train")
    with pytest.raises(ValueError, match="holds no images"):
        load("folder", "train", root=tmp_path)
    with pytest.raises(ValueError, match="data=parquet found nothing"):
        load("parquet", "train", root=tmp_path)
    write_images(tmp_path / "a", [1, 2])
    write_images(tmp_path, [3])
    with pytest.raises(ValueError, match=r"003\.png"):
        load("folder", "train", root=tmp_path)
    (tmp_path / "003.png").unlink()
    with pytest.raises(ValueError, match=r"'validation'.* all"):
        load("folder", "validation", root=tmp_path)


# --- real data


@needs_shared
def test_the_real_cifar10(tmp_path):
    images = load("cifar10", "test", root=SHARED, limit=500)
    assert images.labels.bincount().tolist() == [50] * 10
    mean = images.pixels.double().mean((0, 2, 3)) / 255
    assert torch.allclose(mean, torch.tensor(images.mean, dtype=torch.float64), atol=0.03)
    train = load("cifar10", "train", root=SHARED, limit=100)
    assert len(train) == 100


@needs_shared
def test_the_real_pacs():
    train, test = (load("pacs", split, root=SHARED, size=32, limit=560) for split in ("train", "test"))
    assert train.domains.bincount().tolist() == [140] * 4
    assert torch.bincount(test.domains * 7 + test.labels).tolist() == [20] * 28
    assert not {t.numpy().tobytes() for t in train.pixels} & {t.numpy().tobytes() for t in test.pixels}


def test_data_sets_known_by_name_are_found_in_the_folder_of_the_environment(cifar, tmp_path, monkeypatch):
    monkeypatch.setenv("GCALIGN_DATA", str(cifar))
    assert grey(load("cifar10", "test")) == list(range(100, 110))
    write_images(tmp_path / "own", range(10))
    monkeypatch.chdir("/")
    assert len(load("folder", "all", root="own")) == 10
    with pytest.raises(ValueError, match="root=None is not a folder"):
        load("folder", "all")  # a user's own images are where they say


# --- images: sizes, colours, turns


@pytest.mark.parametrize(
    ("sizes", "side", "left_out"),
    [
        ([(40, 40)] * 3, 40, None),
        ([(9, 9), *[(64, 48)] * 20, (300, 400)], 48, None),  # the first image does not decide
        ([(1, 1), *[(32, 32)] * 5, (4000, 3)], 32, r"2 unreadable .*000\.png: 1×1 .*at least 4"),
        ([(1, 1)] * 4, None, None),
    ],
)
@pytest.mark.filterwarnings("ignore:.*are all brought to")
def test_the_size_of_all_is_the_middle_one_and_absurd_images_are_left_out(tmp_path, sizes, side, left_out):
    for k, size in enumerate(sizes):
        (tmp_path / f"{k:03}.png").write_bytes(png(k, size))
    (tmp_path / "folder.png").mkdir()  # is called an image, and is none
    if side is None:
        for size in (None, 16):
            with pytest.raises(ValueError, match="no readable image"):
                load("folder", "all", root=tmp_path, size=size)
        return
    with pytest.warns(UserWarning, match=left_out) if left_out else contextlib.nullcontext():
        images = load("folder", "all", root=tmp_path)
    assert images.shape == (3, side, side)
    assert len(images) == len(sizes) - (2 if left_out else 0)
    if sizes[0] == (9, 9):
        with pytest.warns(UserWarning, match=r"9 to 300 .*48.*data\.size="):
            load("folder", "all", root=tmp_path)
        assert load("folder", "all", root=tmp_path, size=32).shape == (3, 32, 32)


def test_an_image_becomes_eight_bits_of_rgb_and_the_middle_square_of_its_size():
    wide = np.random.default_rng(0).integers(0, 256, (10, 30, 3), np.uint8)
    resized = Image.fromarray(wide).resize((15, 5), Image.Resampling.BILINEAR)
    assert np.array_equal(pixels_of(wide, 5), np.asarray(resized)[:, 5:10])
    assert np.array_equal(pixels_of(wide, 10), wide[:, 10:20])
    assert pixels_of(png(7, (4, 9)), 16).shape == (16, 16, 3)
    for mode in ("L", "LA", "RGBA", "P", "CMYK", "1"):
        Image.new("RGB", (6, 6), (255, 255, 255)).convert(mode).save(buffer := io.BytesIO(), "TIFF")
        assert (pixels_of(buffer.getvalue(), 6) == 255).all()
    Image.fromarray(np.full((4, 4), 128 * 256, np.uint16)).save(buffer := io.BytesIO(), "PNG")
    assert (pixels_of(buffer.getvalue(), 4) == 128).all()  # scaled, not clipped


@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
def test_a_photo_that_says_how_to_turn_it_is_turned(tmp_path, ending):
    upright = np.zeros((16, 16, 3), np.uint8)
    upright[:8] = 250  # light above, dark below
    turn = Image.Exif()
    turn[0x0112] = 6  # a quarter clockwise
    Image.fromarray(upright).transpose(Image.Transpose.ROTATE_90).save(tmp_path / f"x.{ending}", exif=turn)
    pixels = pixels_of(tmp_path / f"x.{ending}", 16).astype(float)
    assert pixels[:6].mean() > 230
    assert pixels[10:].mean() < 20


def test_data_describe_themselves():
    pixels = torch.zeros(6, 3, 8, 9, dtype=torch.uint8)
    names = ("a", "two\nlines", "c" * 10**6)
    some = InMemory(pixels, name="folder", split="train", labels=torch.arange(6) // 2, classes=names)
    assert described(some) == f"folder, train: 6 images of 3 × 8 × 9, 3 classes (a, two lines, {'c' * 39}…)"
    assert described(InMemory(pixels, name="folder", split="all")).endswith("no labels (training needs none)")


# --- the hub, and data sets of one's own


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub with one data set; `hub.asked` says what it was asked for, `hub.reachable` whether it answers."""
    import datasets

    kinds = {"picture": datasets.Image(), "species": datasets.ClassLabel(names=["cat", "dog"])}
    cells = {"picture": [{"bytes": png(k), "path": None} for k in range(10)], "species": [k % 2 for k in range(10)]}
    rows = datasets.Dataset.from_dict(cells, features=datasets.Features(kinds))
    hub = types.SimpleNamespace(asked=[], reachable=True)

    def load_dataset(name, config):
        hub.asked.append((name, config))
        if name != "someone/pets":
            raise datasets.exceptions.DatasetNotFoundError("no such repository")
        return datasets.DatasetDict({"train": rows, "validation": rows.select(range(4))})

    monkeypatch.setattr(stores, "reachable", lambda: hub.reachable)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    return hub


def test_any_data_set_of_the_hub_is_loaded_by_its_name(hub, tmp_path):
    images = load("someone/pets", "test")
    assert hub.asked == [("someone/pets", None)]
    assert grey(images) == list(range(4))
    assert (images.labels.tolist(), images.classes) == ([0, 1, 0, 1], ("cat", "dog"))
    with pytest.raises(ValueError, match=r"someone/cars .*no such repository"):
        load("someone/cars", "test")
    hub.asked, hub.reachable = [], False
    with pytest.raises(ValueError, match=r"someone/pets .*hub cannot be reached"):
        load("someone/pets", "test")
    assert not hub.asked
    (tmp_path / "someone___pets").mkdir()  # an earlier download
    assert len(load("someone/pets", "test")) == 4


def test_a_user_registers_a_data_set_with_one_decorator(monkeypatch):
    monkeypatch.setattr(sources, "MAKERS", dict(sources.MAKERS))
    try:

        @sources.register("stripes")
        def stripes(split, *, root, size, limit, seed):
            return InMemory(torch.zeros(limit, 3, size, size, dtype=torch.uint8), name="stripes", split=split)

        assert "stripes" in names()
        assert configured(["data=stripes"]).data.name == "stripes"
        assert load("stripes", "test", size=5, limit=2).shape == (3, 5, 5)
        with pytest.raises(ValueError, match="data='stripes' is already registered"):
            sources.register("stripes")(stripes)
    finally:
        del sources.DATA_SETS["stripes"]
