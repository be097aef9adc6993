"""Several processes are one run, and give what one process gives; a batch in parts is the whole batch."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from PIL import Image

import gcalign
from gcalign.cli import main
from gcalign.lab.data.sides import views_of
from gcalign.lab.training import runs
from gcalign.lab.training.config import configured
from gcalign.lab.training.module import Training
from gcalign.lab.training.owner import owned
from gcalign.lab.training.stream import Stream
from gcalign.lab.training.train import train
from processes import needs_gloo
from small_runs import StoppedError, config_for, pictures, stopping, weights

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|sync_dist|lightning|torch.jit).*")]
SOURCE = str(Path(gcalign.__file__).parents[1])
SGD = ("optimizer.name=sgd", "optimizer.lr=0.5", "optimizer.momentum=0.5", "optimizer.weight_decay=0")
# no BatchNorm and no random views: a process with the joined batch gives the same
WORDS = ["data=folder", "views=plain", "model.encoder=torch.nn:Flatten", "model.hidden=16", "model.out=8", "epochs=3",
         "batch_size=16", "pairs.noise=0.3", "log_every=1", "checkpoint_every=2", "accelerator=cpu", "logger=none",
         *SGD]  # fmt: skip


# --- a batch in parts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gca-uot", "clip", "supcon"])
def test_a_batch_in_parts_has_the_loss_and_the_gradient_of_the_whole_batch(tmp_path, method):
    views = "pairs.views=3" if method == "gca-uot" else "pairs.views=2"
    words = (f"method={method}", "model.encoder=torch.nn:Flatten", "model.width=1", views, *SGD)
    made = []
    for parts in (1, 4):
        config = config_for(tmp_path, f"accumulate={parts}", "log_every=1", *words)
        made.append(train(config, images=pictures(), quiet=True))
    whole, parts = made
    lines = [[line for line in run.results() if line["kind"] == "train"] for run in made]
    assert [line["step"] for line in lines[1]] == [1, 2, 3, 4, 5, 6]
    for a, b in zip(*lines, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5, abs=2e-6)  # of float32, after six steps
    for key, value in weights(whole).items():
        torch.testing.assert_close(weights(parts)[key], value, rtol=1e-4, atol=1e-5)


def test_batchnorm_sees_a_part_at_a_time_and_the_loss_all_parts(tmp_path):
    words = ("epochs=1", "batch_size=40", "optimizer.name=sgd", "optimizer.lr=1", "optimizer.momentum=0",
             "optimizer.weight_decay=0", "optimizer.schedule=constant", "optimizer.warmup=0")  # fmt: skip
    config, images = config_for(tmp_path, "accumulate=4", *words), pictures()
    run = train(config, images=images, quiet=True)
    # the oracle: one graph over the parts, each encoded on its own
    module = Training(config_for(tmp_path, *words), views_of(images), 1).train()
    (tower,) = module.towers
    batch = Stream.of(config, views_of(images))[0]
    x = [(items.float() / 255 - mean(images)) / std(images) for items in batch.items]
    z = [tower(torch.cat([view[k : k + 10] for view in x])).chunk(2) for k in range(0, 40, 10)]
    loss = module.criterion(*(torch.cat(view) for view in zip(*z, strict=True)))
    loss.backward()
    assert run.results()[0]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    trained = weights(run)
    for name, p in tower.named_parameters(prefix="towers.0"):
        torch.testing.assert_close(trained[name], (p - p.grad).detach(), rtol=1e-4, atol=1e-5)
    for name, value in tower.named_buffers(prefix="towers.0"):
        torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-5)


def mean(images):
    return torch.tensor(images.mean).view(-1, 1, 1)


def std(images):
    return torch.tensor(images.std).view(-1, 1, 1)


def test_pairs_of_texts_train_in_parts(tmp_path):
    words = ["data=shapes", "epochs=1", "batch_size=32", "model.hidden=16", "model.out=8", "accelerator=cpu",
             "logger=none", "log_every=1", "model.encoders=[torch.nn:Flatten,ngrams]", *SGD]  # fmt: skip
    losses = []
    for parts in (1, 2):
        run = train(configured([*words, f"runs={tmp_path}", f"accumulate={parts}"]), quiet=True)
        losses.append([line["loss"] for line in run.results()])
    assert len(losses[0]) > 3
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


# --- kill and resume --------------------------------------------------------------------------------------------


def interrupted(config, at):
    """Train until step `at`, stop, and train again."""
    with pytest.raises(StoppedError), stopping(at):
        train(config, images=pictures(), quiet=True)
    torch.manual_seed(12345)  # what else happens in the process must not matter
    return train(config, images=pictures(), quiet=True)


def test_the_scale_of_mixed_precision_is_continued(tmp_path, monkeypatch):
    real, made = lightning.Trainer, []

    def half(*, precision, plugins, **about):  # Lightning has float16 for GPUs alone, torch for CPUs too
        # the scale grows after each step until gradients overflow and a step is left out
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=1, growth_factor=64.0)
        made.append(scaler)
        return real(plugins=[*plugins, MixedPrecision("16-mixed", "cpu", scaler)], **about)

    monkeypatch.setattr(lightning, "Trainer", half)
    words = ("accumulate=2", "epochs=4")
    whole = train(config_for(tmp_path / "whole", *words), images=pictures(), quiet=True)
    parts = interrupted(config_for(tmp_path / "parts", *words), at=5)
    assert made[0].get_scale() == made[2].get_scale()
    assert made[0].get_scale() < 2.0**12 * 64.0**8  # a step was left out, so that the weights depend on the scale
    assert whole.weights_file.read_bytes() == parts.weights_file.read_bytes()


@pytest.mark.slow
def test_compiled_networks_train_as_others_do(tmp_path, capsys):
    made = [train(config_for(tmp_path, *SGD, *more), images=pictures()) for more in ((), ("compile=true",))]
    assert "compile=true: the first step compiles" in capsys.readouterr().out
    losses = [[line["loss"] for line in run.results()] for run in made]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert weights(made[0]).keys() == weights(made[1]).keys()


def test_channels_last_changes_the_layout_alone(tmp_path):
    words = ("model.encoder=resnet18", "method.eps=0.5", "epochs=1", *SGD)
    made = [train(config_for(tmp_path, *words, *more), images=pictures(), quiet=True)
            for more in ((), ("channels_last=true",))]  # fmt: skip
    for key, value in weights(made[0]).items():
        torch.testing.assert_close(weights(made[1])[key], value, rtol=1e-2, atol=1e-3)
    module = Training(config_for(tmp_path, *words, "channels_last=true"), views_of(pictures()), 1)
    assert module.towers[0].encoder.conv1.weight.is_contiguous(memory_format=torch.channels_last)


# --- words and processes ----------------------------------------------------------------------------------------


TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
SLURM = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_PROCID": "0",
         "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}  # fmt: skip


@pytest.mark.parametrize(
    ("around", "words", "said"),
    [
        (TORCHRUN, (), "devices=1 nodes=1 .*torchrun .*4, 2 .*devices=2 nodes=2.*--nnodes=1 --nproc-per-node=1"),
        (TORCHRUN, ("devices=4",), "devices=4 nodes=1 .*torchrun .*4, 2 "),
        (SLURM, ("devices=4",), "the cluster started 4.*srun --nodes=1 --ntasks-per-node=4 gcalign train"),
        ({**SLURM, "SLURM_NTASKS_PER_NODE": ""}, ("devices=4",), "does not say how many tasks.*--ntasks-per-node"),
        ({}, ("nodes=2",), "nodes=2 needs torchrun or srun.*torchrun --nnodes=2 --nproc-per-node=1"),
        ({}, ("devices=2", "sync_batchnorm=true"), "sync_batchnorm=true needs GPUs, and this run is on the CPU"),
        ({}, ("precision=16-mixed",), "precision=16-mixed needs a GPU.*; write precision=bf16-mixed"),
    ],
    ids=str,
)  # fmt: skip
def test_processes_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, monkeypatch, around, words, said):
    for key, value in around.items():
        monkeypatch.setenv(key, value) if value else monkeypatch.delenv(key, raising=False)
    config = config_for(tmp_path / "runs", *words)
    with pytest.raises(ValueError, match=said):
        train(config, images=pictures(), quiet=True)
    assert not (tmp_path / "runs").exists()


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.path.abspath("unpickled"),)


def test_one_task_of_slurm_trains_and_unpickles_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key, value in {**SLURM, "SLURM_NTASKS": "1"}.items():
        monkeypatch.setenv(key, value)
    with open("hpc_ckpt_1.ckpt", "wb") as file:
        pickle.dump(Bomb(), file)
    config = config_for(tmp_path / "runs")
    runs.Run.of(config).path.mkdir(parents=True)
    Path("hpc_ckpt_1.ckpt").rename(runs.Run.of(config).path / "hpc_ckpt_1.ckpt")
    assert train(config, images=pictures(), quiet=True).done
    assert not Path("unpickled").exists()


# --- several processes ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sixty images of two classes."""
    root = tmp_path_factory.mktemp("images")
    generator = torch.Generator().manual_seed(0)
    for k in range(60):
        (root / str(k % 2)).mkdir(exist_ok=True)
        pixels = torch.randint(0, 256, (12, 12, 3), generator=generator, dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(root / str(k % 2) / f"{k:02}.png")
    return root


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment():
    held = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    return {**held, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}


def torchrun(nodes, each, words):
    """The commands that start a run on machines of `each` processes, all of them this one."""
    port = free_port()
    return [
        [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={each}",
         f"--node-rank={k}", "--master-addr=127.0.0.1", f"--master-port={port}", "-m", "gcalign", "train", *words,
         f"devices={each}", f"nodes={nodes}"]
        for k in range(nodes)
    ]  # fmt: skip


def started(commands, said):
    with said.open("w") as file:
        return [subprocess.Popen(c, env=environment(), stdout=file, stderr=subprocess.STDOUT) for c in commands]


def run_all(commands, said):
    processes = started(commands, said)
    try:
        codes = [process.wait(400) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return codes


def the_run(folder):
    (file,) = folder.glob("*/config.json")
    return runs.Run(file.parent)


def same(run, alone):
    """The losses of each step and the last weights."""
    losses = [[line["loss"] for line in r.results() if line["kind"] == "train"] for r in (run, alone)]
    assert len(losses[1]) >= 4
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for key, value in weights(alone).items():
        torch.testing.assert_close(weights(run)[key], value, rtol=1e-4, atol=1e-5)


def alone(folder, tmp_path, *more):
    return train(configured([*WORDS, f"data.root={folder}", f"runs={tmp_path}/alone", *more]), quiet=True)


@needs_gloo
def test_two_processes_of_torchrun_are_one_run_and_equal_one_process(folder, tmp_path):
    words = [*WORDS, f"data.root={folder}", f"runs={tmp_path}/two"]
    assert run_all(torchrun(1, 2, words), tmp_path / "said") == [0], (tmp_path / "said").read_text()
    run = the_run(tmp_path / "two")
    same(run, alone(folder, tmp_path))
    said = (tmp_path / "said").read_text()
    assert said.count("done: ") == said.count("images of 3 × 12 × 12") == 1
    assert sorted(path.name for path in run.path.iterdir()) == [
        "config.json", "done", "lock", "results.jsonl", "weights.safetensors"
    ]  # fmt: skip


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "each", "more"),
    [
        (2, 1, ()),
        (2, 2, ()),
        (2, 2, ("accumulate=2", "method=clip")),
        (2, 1, ("precision=bf16-mixed",)),
    ],
    ids=str,
)
def test_several_machines_are_one_run_and_equal_one_process(folder, tmp_path, nodes, each, more):
    words = [*WORDS, f"data.root={folder}", f"runs={tmp_path}/many", *more]
    assert set(run_all(torchrun(nodes, each, words), tmp_path / "said")) == {0}, (tmp_path / "said").read_text()
    if "precision=bf16-mixed" in more:
        assert the_run(tmp_path / "many").done
    else:
        same(the_run(tmp_path / "many"), alone(folder, tmp_path, *more))


@needs_gloo
@pytest.mark.slow
def test_two_processes_that_lightning_starts_equal_one_process(folder, tmp_path):
    words = [*WORDS, f"data.root={folder}", f"runs={tmp_path}/two", "devices=2"]
    command = [sys.executable, "-m", "gcalign", "train", *words]
    assert run_all([command], tmp_path / "said") == [0], (tmp_path / "said").read_text()
    same(the_run(tmp_path / "two"), alone(folder, tmp_path))


@needs_gloo
@pytest.mark.slow
def test_a_script_of_ones_own_trains_with_two_processes_and_its_own_modules(tmp_path):
    (tmp_path / "beside.py").write_text("from torch.nn import Flatten as Net\n")
    words = [word.replace("torch.nn:Flatten", "beside:Net").replace("data=folder", "data=scenes") for word in WORDS]
    call = f"main({['train', *words, 'data.limit=64', 'runs=runs', 'devices=2']})"
    main_ = f'if __name__ == "__main__":\n    sys.exit({call})\n'
    (tmp_path / "script.py").write_text(f"import sys\nimport beside\nfrom gcalign.cli import main\n{main_}")
    env = {key: value for key, value in environment().items() if key != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert the_run(tmp_path / "runs").done


@needs_gloo
@pytest.mark.slow
def test_a_second_start_of_all_processes_is_refused_with_host_and_process(folder, tmp_path):
    words = [*WORDS, f"data.root={folder}", f"runs={tmp_path}/two"]
    config = configured([*words, "devices=2"])
    path = runs.Run.of(config).path
    path.mkdir(parents=True)
    with owned(path):
        assert 0 not in run_all(torchrun(1, 2, words), tmp_path / "said")
    said = (tmp_path / "said").read_text()
    assert said.count(f"is used by process {os.getpid()} on {socket.gethostname()} since") == 1
    assert [file.name for file in path.iterdir()] == ["lock"]


@needs_gloo
@pytest.mark.slow
def test_killed_processes_of_torchrun_continue_to_the_same_bytes(folder, tmp_path):
    words = [*WORDS, f"data.root={folder}", "epochs=200", "checkpoint_every=1"]
    assert run_all(torchrun(1, 2, [*words, f"runs={tmp_path}/whole"]), tmp_path / "whole.txt") == [0]
    (process,) = started(torchrun(1, 2, [*words, f"runs={tmp_path}/parts"]), tmp_path / "parts.txt")
    deadline = time.monotonic() + 200
    while not list((tmp_path / "parts").glob("*/checkpoint.safetensors")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)  # torchrun ends its processes
    assert process.wait(100) != 0
    assert not the_run(tmp_path / "parts").done
    # as many processes on two machines continue what one machine began
    assert run_all(torchrun(2, 1, [*words, f"runs={tmp_path}/parts"]), tmp_path / "again.txt") == [0, 0]
    assert (tmp_path / "again.txt").read_text().count("continues at step") == 1
    a, b = (the_run(tmp_path / part).weights_file.read_bytes() for part in ("whole", "parts"))
    assert a == b


def test_of_several_processes_one_shows_a_dry_run(monkeypatch, capsys):
    words = ["train", "devices=2", "dry=true"]
    monkeypatch.setenv("RANK", "1")
    assert main(words) == 0
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    assert main(words) == 0
    assert "devices=2" in capsys.readouterr().out
