"""What is done with a run once it is there: probe, embed, list, and the demo."""

from __future__ import annotations

import math

import numpy
import pytest
from PIL import Image

from gcalign.cli import main
from gcalign.lab import files
from gcalign.lab.data.sides import views_of
from gcalign.lab.training import baselines
from gcalign.lab.training import probe as probes
from gcalign.lab.training.config import configured
from gcalign.lab.training.embed import embed
from gcalign.lab.training.module import Training
from gcalign.lab.training.probe import probe
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import images_of

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|lightning).*")]


@pytest.mark.parametrize("words", [["protocol=knn"], ["protocol=few-shot", "labels=50", "draws=2"], []], ids=str)
def test_a_probe_is_printed_and_recorded_with_its_protocol_split_seed_and_config(run, words):
    before = run.weights_file.read_bytes()
    result = probe([f"run={run.path}", *words])
    record = run.results()[-1]
    assert record["kind"] == "probe"
    assert record["accuracy"] == result.accuracy
    assert record["config"] == run.config().hash
    assert {"protocol", "split", "seed", "hyperparameters", "labels_used", "n_test"} <= record.keys()
    assert run.weights_file.read_bytes() == before


@pytest.mark.parametrize("protocol", ["domain", "across-domains"])
def test_domains_are_probed_as_the_paper_does(run, protocol):
    result = probe([f"run={run.path}", f"protocol={protocol}", "epochs=5", "lr=0.01"])
    assert 0 < result.accuracy < 1
    assert len(result.parts) == (1 if protocol == "domain" else 4)


def test_untrained_is_the_encoder_that_the_run_started_from(run):
    images = images_of(run.config().data, "train")
    start = Training(run.config(), views_of(images), 1).towers[0].encoder.state_dict()
    made = baselines.baseline_of("untrained", run, {})(images).state_dict()
    assert all(made[key].equal(value) for key, value in start.items())


@pytest.mark.parametrize("name", ["pixels", "untrained"])
def test_a_baseline_says_its_model_and_takes_the_data_of_the_run_it_is_like(run, name):
    lines = len(run.results())
    result = probe([f"run={name}", f"like={run.path}", "protocol=knn"])
    assert 0.05 < result.accuracy < 0.5
    assert (result.n_train, result.n_test) == (256, 500)  # as the run
    assert result.of == {"untrained": "untrained (encoder small, width 0.25, stem auto, seed 0)"}.get(name, name)
    assert [line["kind"] for line in run.results()[lines:]] == ["baseline"]  # for its report; no probe of the run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run={}", "like={}"], "like= goes with pixels and untrained"),
        (["run=untrained"], "like= goes with"),
        (["run=untrained", "like={}", "seed=1"], r"seed=1 cannot be combined with"),
        (["run=untrained", "like=nowhere"], "must be a folder with a config.json"),
        (["run=pixels", "like={}", "encoder=a:b"], "has no effect on run=pixels"),
    ],
)
def test_a_baseline_with_words_that_contradict_is_refused(run, words, said):
    with pytest.raises(ValueError, match=said):
        probe([word.format(run.path) for word in words])


def test_embeddings_are_a_table_of_features_with_labels(run, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    path = embed([f"run={run.path}", "split=test"], str(tmp_path / "features.parquet"))
    table = pq.read_table(path)
    assert table.num_rows == 500  # the whole split, whatever the run was limited to
    assert {"index", "label", "domain", "f0"} <= set(table.column_names)
    assert all(map(math.isfinite, table["f0"].to_pylist()))
    assert [p.name for p in tmp_path.iterdir()] == ["features.parquet"]


def test_a_folder_is_embedded_whole_and_by_name_but_for_images_that_cannot_be_read(run, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "pictures"
    folder.mkdir()
    for k in range(5):
        Image.new("RGB", (40, 30 + k), (50 * k, 0, 0)).save(folder / f"{k}.png")
    (folder / "2.png").write_bytes((folder / "2.png").read_bytes()[:60])
    words = [f"run={run.path}", "data=folder", f"data.root={folder}"]
    with pytest.warns(UserWarning, match=r"2\.png"):
        table = pq.read_table(embed(words, str(tmp_path / "features.parquet")))
    assert [name[-5:] for name in table["image"].to_pylist()] == ["0.png", "1.png", "3.png", "4.png"]
    assert "label" not in table.column_names
    with pytest.raises(ValueError, match=r"2\.png"):
        embed([*words, "data.on_error=raise"], str(tmp_path / "none.parquet"))
    assert not (tmp_path / "none.parquet").exists()
    with (
        pytest.warns(UserWarning, match="unreadable"),
        pytest.raises(ValueError, match="no labels, which protocol=knn"),
    ):
        probe([*words, "protocol=knn"])


def test_an_encoder_is_fine_tuned_on_a_copy(run):
    before = run.weights_file.read_bytes()
    result = probe([f"run={run.path}", "protocol=finetune", "epochs=1", "lr=[0.1,0.01]", "data.limit=60"])
    assert result.hyperparameters["lr"] in (0.1, 0.01)
    assert (result.n_train, result.n_test) == (60, 60)
    assert run.weights_file.read_bytes() == before


def test_a_run_is_fitted_on_what_it_was_trained_on_and_tested_on_all(run):
    result = probe([f"run={run.path}", "protocol=knn"])
    assert (result.n_train, result.n_test) == (256, 500)


def test_cifar10c_is_probed_in_every_cell(run, tmp_path, monkeypatch):
    monkeypatch.setattr(probes.corruptions, "names", lambda: ("fog", "frost"))
    for name in ("fog", "frost"):
        numpy.save(tmp_path / f"{name}.npy", numpy.random.default_rng(0).integers(0, 255, (200, 32, 32, 3), "uint8"))
    numpy.save(tmp_path / "labels.npy", numpy.arange(200) % 2)
    words = [f"run={run.path}", "data=cifar10c", f"data.root={tmp_path}"]
    result = probe([*words, "epochs=2"])
    assert sorted(result.parts) == sorted(f"{name} {k}" for name in ("fog", "frost") for k in range(1, 6))
    assert result.labels_used == 4  # a tenth of forty
    with pytest.raises(ValueError, match="protocol=cifar10c"):
        probe([*words, "protocol=knn"])


def test_a_result_that_cannot_be_recorded_is_not_sought(run, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "append", refused)
    with pytest.raises(ValueError, match=r"cannot record results .*make it writable"):
        probe([f"run={run.path}"])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("k=many", "k='many' must be a whole number"),
        ("seed=x", "seed='x' must be a whole number"),
        ("device=nowhere", "device=nowhere cannot be used .*device=cpu always can"),
        ("l2=0.1", "option of knn='l2' is unknown; known: k, temperature"),
        ("data.limit=0", "limit=0 must be at least 1|size=0 must be at least 1"),
    ],
)
def test_bad_words_of_a_probe_are_refused(run, word, said):
    with pytest.raises((ValueError, TypeError), match=said):
        probe([f"run={run.path}", "protocol=knn", word])


def test_an_unfinished_run_cannot_be_probed(tmp_path):
    config = configured(["data=scenes", f"runs={tmp_path}"])
    Run.of(config).start(config)
    with pytest.raises(ValueError, match="has no weights yet"):
        probe([f"run={Run.of(config).path}"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["k=[1,"], "k=[1, is not a value"),
        (["k={"], "k={ is not a value"),
        (["data.size=100000", "data=folder", "data.root=."], "at most 2,048"),
        (["device=meta"], "device=meta cannot be used"),
        (["k=99999999999999999999"], "must be below 2^63"),
        (["+k=3"], "did you mean 'k'"),
    ],
)
def test_a_probe_refuses_words_without_a_traceback(run, words, said, capsys):
    assert main(["probe", "run=pixels", f"like={run.path}", "protocol=knn", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
