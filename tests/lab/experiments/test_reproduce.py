"""`gcalign reproduce`: the jobs of each experiment, who does them, and what is left behind."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from gcalign.cli import main
from gcalign.lab import files
from gcalign.lab.data import catalogue
from gcalign.lab.data.sources import load
from gcalign.lab.data.table_sides import load_columns
from gcalign.lab.evaluation import domain_probe, extract
from gcalign.lab.experiments.engine import experiment, launch, measures, processes, records, search
from gcalign.lab.experiments.engine import jobs as engine_jobs
from gcalign.lab.experiments.engine.claims import Results
from gcalign.lab.experiments.engine.experiment import (
    SCALES,
    TINY,
    Experiment,
    Job,
    Search,
    joined,
    method_words,
    named,
    names,
)
from gcalign.lab.experiments.engine.jobs import Archive, command, config_of, do, finished, records_of, run_of
from gcalign.lab.experiments.paper.fig_ptgt import ALPHA_BETA
from gcalign.lab.experiments.studies import cone, labels, targets
from gcalign.lab.models import encoder
from gcalign.lab.paper import METHODS
from gcalign.lab.training.config import Data, configured
from gcalign.lab.training.module import collapse
from quick import WORDS, half_fail, quick

FIRST = Search()  # as experiments have it by default
RESULTS = Path(__file__).parents[3] / "docs" / "results"


def jobs(name: str, scale: str) -> list[Job]:
    own = named(name)
    return own.jobs(own.at(scale), search.first((*METHODS, "clip"), FIRST)) if own.jobs else []


# what is to be done


@pytest.mark.parametrize(
    ("name", "scale", "count"),
    [
        ("table1", "tiny", 9 * 4 * 2),
        ("table1", "small", 9 * 4 * 3),
        ("table1", "paper", 9 * (4 + 4 + 1 + 1) * 5),
        ("tableA-cifar10", "small", 9 * 4 * 3),
        ("tableA-cifar100", "small", 9 * 4 * 3),
        ("tableA-cifar10c", "paper", 9 * 4 * 5),
        ("fig-align-uniform", "small", 9 * 4 * 3),
        ("fig-noise", "small", 9 * 4 * 3),
        ("fig-noise", "paper", 9 * 7 * 5),
        ("fig-ptgt", "small", len(ALPHA_BETA) * 5),
        ("fig-plans", "small", 4),
        ("fig-same-eps", "small", 4 * 3 * 3),
        ("fig-mismatch", "small", 5 * 3 * 8),
        ("fig-mismatch-lambda", "small", 5 * 4),
        ("fig-cone", "small", 9 * 3 * 8),
        ("fig-extreme", "small", 5 * 3 * 12),
        ("fig-targets", "small", 6 * 5),
        ("fig-targets-window", "small", 4),
        ("scouts", "small", 3 * 4 * 2),
        ("table-labels", "small", 2 * 8),  # as long as both methods have one ε
        ("emoji-pairs", "small", 3 * 2 * 2 * 5),
        ("fig-epsilon", "small", 1),
    ],
)
def test_an_experiment_has_so_many_jobs(name, scale, count):
    assert len(jobs(name, scale)) == count


def test_a_method_and_its_gca_version_have_the_same_eps_and_differ_in_nothing_else():
    groups: dict[tuple[object, ...], set[frozenset[str]]] = {}
    for job in jobs("fig-same-eps", "small"):
        assert f"method.eps={job.labels['eps']}" in job.words
        group = groups.setdefault((job.labels["eps"], job.seed), set())
        group.add(frozenset(job.words) - {f"method={job.labels['method']}"})
    assert len(groups) == 3 * 3
    assert all(len(found) == 1 for found in groups.values())


def test_wrong_labels_are_compared_at_both_temperatures():
    scale = named("table-labels").at("small")
    chosen = {"ince": ("method.eps=0.2",), "gca-uot": ("method.eps=0.05", "method.relax=[1,1]")}
    found = labels.jobs(scale, chosen)
    same = [job for job in found if job.labels["setting"] == labels.SAME]
    assert (len(found), len(same)) == (3 * 8, 8)
    assert all({"method=ince", "method.eps=0.05", "target.noise=0.4"} < set(job.words) for job in same)


def test_the_cone_has_the_settings_of_e1_other_seeds_and_most_pairs_mismatched_first():
    found = jobs("fig-cone", "small")
    assert not {job.seed for job in jobs("fig-mismatch", "small")} & {job.seed for job in found}
    shares = [job.labels["noise"] for job in found]
    assert [*dict.fromkeys(shares)] == [0.6, 0.0, 0.3]
    assert shares == sorted(shares, key=[0.6, 0.0, 0.3].index)  # all seeds of one before the next
    e1 = named("fig-mismatch").at("small").search
    chosen = search.chosen(records.read(RESULTS / "small" / f"{e1.name}.jsonl"), e1)
    for method in ("ince", "rince", "gca-uot"):
        assert {*chosen[method]} <= {w for job in found if job.labels["method"] == method for w in job.words}
    plain, centred = (next(set(j.words) for j in found if j.labels["method"] == m) for m in ("ince", "ince centred"))
    assert centred - plain == {"center=true"}


def test_the_cosine_of_different_images_follows_from_the_spread_that_a_run_logs():
    z = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)) + 1
    x = torch.nn.functional.normalize(z)
    cosines = (x @ x.T)[~torch.eye(16, dtype=torch.bool)]
    lines = [{"kind": "train", "step": k, **{n: float(v) for n, v in collapse(z).items()}} for k in (10, 20, 24)]
    config = types.SimpleNamespace(batch_size=16, epochs=4)
    found = cone.cone(types.SimpleNamespace(config=config, run=types.SimpleNamespace(results=lambda: lines)))
    assert [(r.labels["epoch"], r.about["batches"]) for r in found if r.measure == "rank"] == [(4, 2)]
    (value,) = [r.value for r in found if r.measure == "negative-cosine"]
    assert value == pytest.approx(float(cosines.mean()), abs=1e-6)


def test_every_entry_can_be_run_and_those_of_the_paper_are_there():
    wanted = "table1 tableA-cifar10 tableA-cifar100 tableA-cifar10c table-methods fig-ptgt fig-time flops "
    wanted += "fig-align-uniform fig-plans fig-epsilon fig-sensitivity fig-q-lambda fig-prox"
    assert set(wanted.split()) < set(names())
    for name in names():
        assert named(name).jobs or named(name).compute or name in ("table-methods", "fig-prox"), name


def test_one_experiment_is_one_file_and_the_engine_names_none():
    folder = Path(experiment.__file__).parents[1]
    texts = {path: path.read_text() for path in folder.rglob("*.py")}
    for name in names():
        naming = {path for path, text in texts.items() if f'"{name}"' in text}
        assert not {path for path in naming if path.parent.name == "engine"}, name
        if name not in ("table1", "fig-time"):  # on whose records other claims fall back
            assert len(naming) == 1, (name, naming)


@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
def test_methods_of_one_seed_and_setting_differ_in_nothing_but_the_method(scale):
    own = {word for m in METHODS for word in method_words(m)} | {
        w for ws in search.first(METHODS, FIRST).values() for w in ws
    }
    groups: dict[tuple[object, ...], set[frozenset[str]]] = {}
    for job in jobs("table1", scale):
        group = groups.setdefault((job.labels["data"], job.labels["setting"], job.seed), set())
        group.add(frozenset(job.words) - own)
    assert all(len(words) == 1 for words in groups.values())


@pytest.mark.parametrize("name", ["table1", "fig-noise", "fig-ptgt", "fig-q-lambda", "fig-mismatch", "fig-targets"])
def test_jobs_go_seed_by_seed_so_that_a_sweep_cut_short_has_whole_grids(name):
    order = [job.seed for job in jobs(name, "paper")]
    assert order == sorted(order, key=[*dict.fromkeys(order)].index)


def test_experiments_share_their_runs():
    table = {job.words for job in jobs("table1", "small")}
    assert {job.words for job in jobs("tableA-cifar10", "small")} == table
    assert {job.words for job in jobs("fig-align-uniform", "small")} == table
    assert {job.words for job in jobs("fig-plans", "small")} < table
    clean = {job.words for job in jobs("fig-noise", "small") if job.labels["noise"] == 0}
    assert clean < table


def test_small_runs_are_those_whose_words_are_documented():
    job = next(j for j in jobs("table1", "small") if j.labels == {"method": "ince", "data": "cifar10", "setting": "C1"})
    words = "method=ince data=cifar10 data.limit=5000 model.width=0.5 model.hidden=512 "
    words += "batch_size=128 epochs=6 optimizer.lr=2e-3 method.eps=0.1 views=C1 seed=0"
    assert set(job.words) == set(words.split())


def test_words_given_for_every_run_go_over_the_scales_own():
    own = named("fig-ptgt")
    assert own.jobs is not None
    for job in own.jobs(own.at("small", ["data.root=elsewhere", "epochs=1"]), {}):
        assert {"data.root=elsewhere", "epochs=1"} < set(job.words)
        assert len({word.partition("=")[0] for word in job.words}) == len(job.words)
    assert joined(("a=1", "b=2"), ("a=3",)) == ("a=3", "b=2")
    table = named("emoji-pairs").at("small", ["data.root=elsewhere"]).images
    assert "data.root=elsewhere/emoji/pairs.parquet" in table  # a table in the folder of data sets


def test_the_window_is_chosen_with_a_seed_that_nothing_else_is_run_with():
    seen = {job.seed for job in jobs("fig-targets-window", "small")}
    assert len(seen) == 1
    for name in names():
        if name != "fig-targets-window":
            assert not seen & {job.seed for job in jobs(name, "small")}
    chosen = {job.words[:-3] for job in jobs("fig-targets-window", "small")}  # but for target and seed
    assert len(chosen) == 4


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_four_views_pass_as_many_images_through_the_encoder(scale):
    def images(job):
        config = config_of(job, "runs")
        return config.epochs * config.pairs.views  # of each image; a smaller batch has more steps

    found = {job.labels["setting"]: job for job in jobs("scouts", scale)}
    assert images(found["four views"]) == images(found["long tail"]) == images(found["noisy labels"])


def test_scouts_of_every_setting_run(tmp_path):
    scale = named("scouts").at("tiny")
    for job in jobs("scouts", "tiny"):
        if job.labels["method"] == "gca-uot" and job.seed == 0:
            words = joined(job.words, WORDS[2:], ("data.limit=128",))
            assert do(dataclasses.replace(job, words=words, measures=("knn",)), scale, str(tmp_path))


def test_a_run_is_measured_beside_the_weights_it_started_from_and_those_that_domains_make(tmp_path):
    words = (*WORDS, "method=gca-ince", "target.name=blocks", "target.alpha=0.0", "epochs=1", "seed=3")
    job = Job({"alpha": 0.0}, words, targets.EVERY, 3)
    assert do(job, TINY, str(tmp_path))
    found = {r.measure: r for r in records_of("fig-targets", job, TINY, str(tmp_path))}
    assert set(found) == set(job.measures)
    assert (found["domain"].about["batch_size"], found["domain"].about["domains"]) == (32, 4)
    config = config_of(job, str(tmp_path))
    whole = [measures.loaded(Data(name="scenes"), split) for split in ("train", "test")]
    body = encoder("small", shape=whole[0].shape, width=0.25, seed=3).eval()
    features = torch.cat([extract(body, images) for images in whole])
    domains, unseen = torch.cat([i.domains for i in whole]), torch.arange(len(features)) >= len(whole[0])
    assert config.seed == 3
    expected = domain_probe(features, domains, unseen=unseen, exact=True).accuracy
    assert found["domain-untrained"].value == pytest.approx(expected, abs=1e-12)
    assert len({found[name].value for name in job.measures if name.startswith("domain")}) == 3


# where the data are


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    """A folder of data sets that the environment names: CIFAR-10 of 20 images, and a table of pairs."""
    images = [{"bytes": _png(k), "path": None} for k in range(20)]
    for split in ("train", "test"):
        place = tmp_path / "sets" / "cifar10" / f"{split}.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"img": images, "label": [k % 10 for k in range(20)]}), place)
    (tmp_path / "sets" / "emoji").mkdir()
    rows = {
        "image": images,
        "name_en": [f"name {k}" for k in range(20)],
        "emoji": [chr(0x1F600 + k) for k in range(20)],
    }
    pq.write_table(pa.table(rows), tmp_path / "sets" / "emoji" / "pairs.parquet")
    monkeypatch.setenv("GCALIGN_DATA", str(tmp_path / "sets"))
    return tmp_path / "sets"


def _png(k: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), (k, 2 * k, 3 * k)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["table-mistakes", "fig-align"])
def test_a_study_without_its_data_says_how_to_get_them(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", name, "scale=small"]) == 2
    assert re.search(
        rf"{name} at scale=small found none of its data; .*data\.root=.*GCALIGN_DATA", capsys.readouterr().err
    )


def test_data_sets_are_found_by_name_in_the_configured_folder(data_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(load("cifar10", "train")) == 20
    assert len(load("cifar10", "train", root=data_folder)) == 20
    pairs = load_columns("pairs", root="emoji/pairs.parquet", columns=("image", "name_en"))
    assert len(pairs.groups) == 20
    assert catalogue.table_in(None, "emoji/pairs.parquet") == data_folder / "emoji" / "pairs.parquet"
    assert catalogue.table_in(None, "emoji/none.parquet") is None
    with pytest.raises(ValueError, match=r"needs data\.root="):
        load_columns("pairs", columns=("image", "name_en"))  # a user's own data is where its user says
    with pytest.raises(ValueError, match="root"):
        load("folder", "train")


def test_a_run_is_the_same_wherever_its_data_lie(tmp_path):
    words = ("method=ince", "data=cifar10", "seed=3")
    same = {configured((*words, *more)).hash for more in ((), ("data.root=a",), (f"data.root={tmp_path}",))}
    assert len(same) == 1
    own = ("method=ince", "data=parquet")  # which data these are, their root says
    assert configured((*own, "data.root=a")).hash != configured((*own, "data.root=b")).hash


# the search


def scored(trials: list[Job], score: Mapping[str, float]) -> list[records.Record]:
    """Records of a search in which a setting's validation accuracy is what `score` says, 0.3 where it says nothing."""
    return [
        records.Record(
            "search", "tiny", "validation", score.get(str(job.labels["knob"]), 0.3), dict(job.labels), job.seed
        )
        for job in trials
    ]


def test_every_method_is_searched_with_the_same_budget_and_with_seeds_that_nothing_is_tested_with():
    trials = search.jobs(TINY, METHODS)
    trials = search.jobs(TINY, METHODS, scored(trials, {}))
    assert [sum(job.labels["method"] == m for job in trials) for m in METHODS] == [9 * len(TINY.search.seeds)] * 9
    assert {job.measures for job in trials} == {("validation",)}
    searching = [named(name) for name in names() if named(name).searched]
    for own in (each.at(scale) for each in searching for scale in SCALES):
        if own.search.name != "search-1":  # the first search, which is kept as it was
            assert not set(own.search.seeds) & {*own.seeds, *own.domain_seeds}


def test_the_second_stage_of_the_search_starts_from_the_best_of_the_first():
    best = {"method.eps=0.05": 0.6}
    trials = search.jobs(TINY, ("ince", "gca-uot"), scored(search.jobs(TINY, ("ince", "gca-uot")), best))
    knobs = {m: {str(job.labels["knob"]) for job in trials if job.labels["method"] == m} for m in ("ince", "gca-uot")}
    assert {f"method.eps={value}" for value in (0.03, 0.04, 0.0625, 0.08)} < knobs["ince"]
    assert "method.eps=0.05 method.relax=[2,2]" in knobs["gca-uot"]


def test_the_search_takes_the_best_mean_over_seeds_and_of_equals_the_first():
    methods = ("ince", "gca-uot", "byol")
    score = {"method.eps=0.2": 0.5, "method.eps=0.5": 0.5, "method.eps=0.2 method.relax=[1,1]": 0.7}
    trials = search.jobs(TINY, methods, scored(search.jobs(TINY, methods), score))
    assert search.chosen(scored(trials, score), TINY.search) == {
        "ince": ("method.eps=0.2",),
        "gca-uot": ("method.eps=0.2", "method.relax=[1,1]"),
        "byol": ("model.projector=mlp3-bn", "model.momentum=0.98"),
    }


def test_a_setting_without_all_of_its_seeds_is_not_chosen():
    scale = named("fig-extreme").at("small")
    found = scored(search.jobs(scale, ("ince",)), {})
    lucky = [r for r in found if r.labels["knob"] == "method.eps=0.5"][:1]
    found = [r for r in found if r.labels["knob"] != "method.eps=0.5"]
    found += [records.Record("search", "tiny", "validation", 0.9, r.labels, r.seed) for r in lucky]
    assert search.chosen(found, scale.search)["ince"] == ("method.eps=0.1",)


def test_the_first_search_is_three_values_of_one_option_with_one_seed_and_one_split():
    scale = named("table1").at("small")
    trials = search.jobs(scale, METHODS)
    assert len(trials) == 3 * len(METHODS)
    again = search.jobs(scale, METHODS, scored(trials, {}))
    assert again == trials  # no second stage
    assert {job.seed for job in trials} == {0}
    assert engine_jobs.key("validation", scale) == "validation"
    assert engine_jobs.key("validation", named("fig-extreme").at("small")) == "validation 5 splits"


def test_what_a_result_file_has_is_not_done_again_where_the_runs_are_gone(tmp_path):
    job, other = quick(), quick(seed=1)
    assert do(job, TINY, str(tmp_path / "runs"))
    here = Archive("some", tmp_path / "some.jsonl", TINY, str(tmp_path / "runs"))
    assert [j.seed for j in here.missing([job, other])] == [1]
    here.save([job, other])
    elsewhere = Archive("some", tmp_path / "some.jsonl", TINY, str(tmp_path / "none"))
    assert elsewhere.collect([job, other]) == here.collect([job])
    assert [j.seed for j in elsewhere.missing([job, other])] == [1]
    more = quick(measures=("knn", "linear-fast"))  # a measurement it does not have
    assert elsewhere.missing([more]) == [more]
    assert all(r.about["commit"] for r in here.collect([job]))
    moved = dataclasses.replace(job, words=(*job.words, "data.root=elsewhere"))
    assert elsewhere.collect([moved]) == here.collect([job])  # wherever its data lie


def test_the_search_never_looks_at_test_images(tmp_path, monkeypatch):
    seen = []
    honest = measures.loaded
    monkeypatch.setattr(measures, "loaded", lambda data, split: (seen.append(split), honest(data, split))[1])
    job = quick(measures=("validation",))
    assert do(job, TINY, str(tmp_path))
    (record,) = records_of("search", job, TINY, str(tmp_path))
    assert set(seen) == {"train"}
    assert 0 <= record.value <= 1


# doing it


def test_what_is_done_is_not_done_again(tmp_path, monkeypatch):
    job, runs = quick(), str(tmp_path)
    assert not finished(job, TINY, runs)
    do(job, TINY, runs)
    assert finished(job, TINY, runs)
    run = run_of(job, runs)
    before = {path.name: path.stat().st_mtime_ns for path in run.path.iterdir()}
    assert processes.sweep([job], TINY, runs) == []
    assert {path.name: path.stat().st_mtime_ns for path in run.path.iterdir()} == before
    more = dataclasses.replace(job, measures=("knn", "compactness"))
    assert not finished(more, TINY, runs)
    monkeypatch.setitem(measures.MEASURES, "knn", lambda of: pytest.fail("measured twice"))
    do(more, TINY, runs)
    assert [r.measure for r in records_of("x", more, TINY, runs)] == ["knn", "compactness"]


def test_no_image_is_corrupted_twice_so_that_none_is_on_both_sides_of_a_split():
    data = Data(name="scenes")
    assert TINY.corrupted
    pool = measures.corrupted(data, TINY.corrupted)
    assert len(pool.images) == len(pool.cell) == TINY.corrupted * len(measures.cells())
    assert pool.images.labels.equal(measures.loaded(data, "test").labels[: len(pool.cell)])
    with pytest.raises(ValueError, match="more than the 500 of scenes; take at most 5"):
        measures.corrupted(data, 6)


@pytest.mark.slow
def test_a_job_that_fails_or_dies_stops_no_other(tmp_path):
    some = [quick(seed=seed) for seed in range(5)]
    failures = processes.sweep(some, TINY, str(tmp_path), workers=1, work=half_fail)
    assert [failure.job.seed for failure in failures] == [1, 2]
    assert "seed=1 is unlucky" in failures[0].message
    assert "code 7" in failures[1].message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "3", "4"]


@pytest.mark.slow
@pytest.mark.parametrize(("allowed", "threads"), [("1", 1), ("2", 2)])
def test_a_worker_keeps_to_the_threads_that_the_user_allows(allowed, threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", allowed)
    worker = processes.Worker(2, None)
    assert worker.pool.submit(torch.get_num_threads).result() == threads
    worker.pool.shutdown()


@pytest.mark.slow
def test_workers_end_with_a_command_that_is_killed(tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); import quick as q\n"
        "from gcalign.lab.experiments.engine import experiment, processes\n"
        "some = [q.quick(seed=s) for s in (0, 1)]\n"
        f"processes.sweep(some, experiment.TINY, {str(tmp_path)!r}, workers=2, work=q.wait)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) as command:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.5)
        command.kill()
    workers = [path.name for path in tmp_path.iterdir()]
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert len(workers) == 2
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_failures_are_reported_with_their_command_and_code_1(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    broken = Job({"method": "ince"}, ("method=ince", *WORDS, "batch_size=4096", "epochs=1", "seed=0"), ("knn",), 0)
    own = Experiment("broken", named("fig-plans").draw, lambda scale, chosen: [broken])
    monkeypatch.setitem(sys.modules, "broken_experiment", types.SimpleNamespace(OWN=own))
    assert main(["reproduce", "broken_experiment:OWN", "jobs=1"]) == 1
    said = capsys.readouterr().err
    assert command(broken, "runs/tiny") in said
    assert "1 of 1 jobs failed" in said


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_a_signal_stops_every_worker_and_leaves_what_the_same_command_goes_on_from(how, tmp_path):
    words = [sys.executable, "-m", "gcalign.cli", "reproduce", "fig-ptgt", "jobs=2", "epochs=200"]
    # a shell has Ctrl-C ignored by what it puts in the background, and so perhaps by this process
    ctrl_c = functools.partial(
        signal.signal, signal.SIGINT, signal.SIG_IGN if how is signal.SIGTERM else signal.SIG_DFL
    )
    process = subprocess.Popen(
        words, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=ctrl_c
    )
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("runs/tiny/*/checkpoint.safetensors"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
    listed = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "spawn_main"], capture_output=True, text=True)
    workers = listed.stdout.split()
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(workers) == 2
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.glob("runs/tiny/*/done"))
    assert len(list(tmp_path.glob("runs/tiny/*/checkpoint.safetensors"))) == 2  # to go on from


# the command


def test_help_lists_every_name_without_torch():
    code = "import sys; from gcalign.cli import main; main(['reproduce', '--help']); print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.rstrip().endswith("False")
    for name in names():
        assert f"  {name} " in shown


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["tabel1"], "did you mean 'table1'"),
        (["table1", "scale=huge"], "known: paper, small, tiny"),
        (["table1", "jobs=many"], "must be a whole number"),
        (["table1", "jobs=0"], "must be at least 1"),
        (["table1", "redraw=perhaps"], "must be true or false"),
        (["table1", "method=ince"], "decided by the experiment"),
        (["table1", "fast"], "must be key=value"),
        (["table1", "epocs=3"], "did you mean 'epochs'"),
        (["table1", "launcher=slurm"], "submitit_slurm"),
        (["table1", "launcher=ray"], "pip install hydra-ray-launcher"),
        (["fig-noise", "redraw=true"], "`gcalign reproduce fig-noise` writes it"),
        (["fig-plans", "partial=true"], "20 of 20 runs of the search are not finished"),
        (["tableA-cifar100", "scale=small", "data.root=nowhere"], "Say where it is with data.root="),
        (["nowhere:EXPERIMENT"], "experiment='nowhere:EXPERIMENT' cannot be imported"),
        (["pathlib:Path"], "must be a gcalign.lab Experiment"),
    ],
)
def test_errors_state_the_remedy(words, remedy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == 2
    assert remedy in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_dry_shows_the_commands_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "fig-ptgt", "scale=small", "dry=true"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert len(lines) == len(set(lines)) == len(ALPHA_BETA) * 5
    assert all(line.startswith("gcalign train method=gca-ince ") for line in lines)
    assert shown.err == "fig-ptgt: 30 different commands; finished: 0 of 30 in the experiment\n"
    assert main(["reproduce", "fig-prox", "dry=true"]) == 0
    assert capsys.readouterr() == ("", "fig-prox: no training runs, it is computed\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", names())
def test_every_entry_lists_its_runs_at_the_papers_scale(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine_jobs, "finished", lambda job, scale, runs: False)  # to know, every config is composed
    assert main(["reproduce", name, "scale=paper", "dry=true", "runs=mine"]) == 0
    shown = capsys.readouterr()
    own = named(name)
    wanted = {command(job, "mine") for job in jobs(name, "paper")}
    wanted |= {command(job, "mine") for job in search.jobs(own.at("paper"), own.searched)}
    assert set(shown.out.splitlines()) == wanted
    assert all(line.endswith(" runs=mine") for line in shown.out.splitlines())
    assert ("no training runs" in shown.err) == (not wanted)
    computed = ("table-methods", "flops", "fig-prox", "fig-align", "table-mistakes", "table-real-mistakes")
    assert wanted or name in (
        *computed,
        "table-wrong-pairs",
        "fig-targets-pretrained",
        "table-scale-scratch",
        "table-scale-pretrained",
    )
    assert not list(tmp_path.iterdir())


def test_configs_of_the_papers_scale_are_whole_and_have_its_encoders_and_batches():
    found: dict[tuple[str, ...], Job] = {}  # one job for each set of keys, data set and recipe
    for name in names():
        for job in jobs(name, "paper"):
            keys = sorted(w if w.startswith(("data=", "recipe=", "views=")) else w.partition("=")[0] for w in job.words)
            found.setdefault(tuple(keys), job)
    seen = set()
    for job in found.values():
        config = config_of(job, "runs")
        if job.labels.get("setting") == "standard":
            seen.add((config.data.name, config.model.encoder, config.model.width, config.batch_size, config.epochs))
    assert seen == {
        ("cifar10", "resnet18", 1.0, 512, 500),
        ("cifar100", "resnet18", 1.0, 512, 500),
        ("svhn", "resnet50", 1.0, 512, 500),
        ("imagenet100", "resnet50", 1.0, 512, 200),
        ("pacs", "resnet18", 1.0, 256, 1500),
        ("pairs", "small", 1.0, 256, 100),  # not in the paper
    }


def test_a_run_measured_before_gives_its_records_without_training(tmp_path):
    job = quick()
    run = run_of(job, str(tmp_path))
    run.start(config_of(job, str(tmp_path)))
    measured = {"measure": "knn", "value": 0.25, "labels": {"on": "clean"}, "about": {"n_test": 4}}
    line = {"kind": "measure", "key": "knn", "findings": [measured]}
    files.append_json_lines(run.results_file, [line])
    (record,) = records_of("table1", job, TINY, str(tmp_path))
    assert (record.value, record.labels) == (0.25, {"method": "ince", "on": "clean"})
    assert (record.run, record.words) == (run.path.name, job.words)
    assert not finished(job, TINY, str(tmp_path))  # measured, but never trained to the end


@pytest.mark.slow
def test_a_hydra_launcher_does_the_jobs_and_reports_what_failed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good, bad = quick(), quick(measures=("domain-of-nothing",), seed=1)
    (failure,) = launch.launch([good, bad], TINY, "runs", launcher="basic", title="two")
    assert failure.job is bad
    (log,) = (tmp_path / "runs/launch/two/1").glob("*.log")
    assert "domain-of-nothing" in log.read_text()
    assert finished(good, TINY, "runs")
    assert launch.launch([good], TINY, "runs", launcher="basic", title="again") == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the plugins
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "ray"])
def test_a_plugin_does_the_jobs(launcher, tmp_path, monkeypatch):
    try:
        launch.check(launcher)
    except ValueError as missing:
        pytest.skip(str(missing))
    monkeypatch.chdir(tmp_path)
    some = [quick(), quick(seed=1)]
    assert launch.launch(some, TINY, "runs", launcher=launcher, title=launcher) == []
    assert all(finished(job, TINY, "runs") for job in some)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_tiny_goes_all_the_way(name, place, monkeypatch):
    monkeypatch.chdir(place)  # entries share their runs
    assert main(["reproduce", name, "scale=tiny", "jobs=2", "runs=mine"]) == 0
    assert not Path("runs").exists()
    result = Path(f"results/tiny/{name}.jsonl")
    found = records.read(result)
    own = named(name)
    if own.jobs:
        scale = own.at("tiny")
        filed = Path(f"results/tiny/{scale.search.name}.jsonl")
        wanted = own.jobs(scale, search.chosen(records.read(filed), scale.search) if own.searched else {})
        assert {r.words for r in found if r.run} == {job.words for job in wanted}  # timings are of no run
    drawn = {path: path.read_bytes() for path in result.parent.iterdir() if path.stem == name}
    assert len(drawn) >= 3
    assert main(["reproduce", name, "scale=tiny", "redraw=true"]) == 0
    assert {path: path.read_bytes() for path in drawn} == drawn


def test_a_job_meets_few_modules_on_its_way_to_a_verdict(tmp_path):
    """One comparison of fig-mismatch, followed by the profiler: a reader can walk it."""
    own = named("fig-mismatch")
    met = set()

    def follow(frame, event, arg):
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("gcalign.lab.experiments."):
            met.add(module.removeprefix("gcalign.lab.experiments."))

    before = sys.getprofile()
    sys.setprofile(follow)
    try:
        scale = own.at("tiny")
        made = own.jobs(scale, search.first(own.searched, scale.search))
        some = [j for j in made if j.labels["noise"] == 0.6 and j.labels["method"] in ("ince", "gca-uot")]
        some = [dataclasses.replace(j, words=joined(j.words, WORDS[1:]), measures=("knn", "mismatch")) for j in some]
        archive = Archive(own.name, tmp_path / "tiny" / "fig-mismatch.jsonl", scale, str(tmp_path / "runs"))
        for job in some:
            assert do(job, scale, archive.runs)
        archive.save(some)
        judgement = next(iter(own.claims())).judged(Results.read(tmp_path, "tiny"))
    finally:
        sys.setprofile(before)
    assert (judgement.n, judgement.scale) == (2, "tiny")
    assert len(met) <= 8, sorted(met)


# an experiment of the user's own


@pytest.fixture
def batches(tmp_path, monkeypatch):
    """The experiment of docs/add-your-own.md, in the current folder."""
    page = (Path(__file__).parents[3] / "docs" / "add-your-own.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(\"\"\"Does .*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "batches.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("batches", None)


def test_an_experiment_of_ones_own_is_named_by_its_module(batches, capsys):
    assert main(["reproduce", "batches:EXPERIMENT", "dry=true"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2 * 2 * 2
    assert "batches" not in names()
    assert next(iter(named("batches").claims())).judged(Results("tiny", {})).word == "not measured"


@pytest.mark.slow
def test_an_experiment_of_ones_own_is_one_file(batches, capsys):
    assert main(["reproduce", "batches:EXPERIMENT", "jobs=1", "runs=mine", "data.limit=64"]) == 0
    assert "drawn: results/tiny/batches.png" in capsys.readouterr().out
    found = records.read(Path("results/tiny/batches.jsonl"))
    assert {(r.measure, r.labels["batch"]) for r in found} == {(m, n) for m in ("knn", "spread") for n in (32, 64)}
    assert len(found) == 2 * 2 * 2 * 2
    assert main(["claims", "results", "--scale", "tiny", "--experiment", "batches:EXPERIMENT", "--json", "-"]) == 0
    judged = [c for c in json.loads(capsys.readouterr().out)["claims"] if c["section"] == "Batches"]
    assert [c["label"] for c in judged] == ["batches of 32", "batches of 64"]
    assert all((c["n"], c["verdict"]) != (None, "not measured") for c in judged)
    assert main(["reproduce", "batches:EXPERIMENT", "redraw=true"]) == 0
