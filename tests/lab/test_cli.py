"""The command line: help, versions, errors that help, and files that are whole or absent."""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import termios
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from gcalign import cli
from gcalign.lab import files
from gcalign.lab.commands import command, either
from gcalign.lab.training import keys
from gcalign.lab.training.config import Config, configured
from gcalign.lab.training.runs import Run
from gcalign.lab.training.typed import written
from gcalign.lab.words import missing
from gcalign.methods import names

ROOT = Path(__file__).parents[2]


def test_help_lists_every_command_and_the_exit_codes(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(words in shown for words in (*cli.COMMANDS, "example:", "Exit codes: 0 ", "1 ", "2 ", "130 "))


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_help_with_an_example_of_itself(capsys, name):
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"example:\n  gcalign {name}" in shown
    tables = ("align", "audit", "bench", "claims", "demo", "list", "probe", "verify")
    assert "--json PATH" in shown or name not in tables


def test_help_and_completion_import_nothing_heavy_and_no_other_command():
    code = """
import sys
from gcalign.cli import COMMANDS, main
for words in (["train", "--help"], ["completion", "words", "gcalign train opt"], ["list", "--help"]):
    main(words)
others = [name for name in sys.modules if name.startswith(("gcalign.lab.experiments", "gcalign.lab.bench",
          "gcalign.lab.audit", "gcalign.lab.verify", "gcalign.lab.demo"))]
for name in COMMANDS:
    main([name, "--help"])
heavy = {"torch", "numpy", "hydra", "datasets", "lightning"} & set(sys.modules)
sys.exit(str([heavy, others]) if heavy or others else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_is_the_installed_one(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gcalign {version('gcalign')}\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gcalign ver", ["verify"]),
        ("gcalign list --", ["--help", "--json"]),
        ("gcalign bench laun", ["launches"]),
        ("gcalign bench losses --rep", ["--repeats"]),
        ("gcalign train optimizer.n", ["optimizer.name="]),
        (
            "gcalign train method=gca-",
            [
                "method=gca-ince",
                "method=gca-rince",
                "method=gca-uot",
                "method=gca-uot-paper",
                "method=gca-uot-published",
            ],
        ),
        ("gcalign reproduce table1 scale=", ["scale=paper", "scale=small", "scale=tiny"]),
        ("gcalign reproduce table1", ["table1"]),
        ("gcalign probe run=", ["run=runs/mine"]),
        ("gcalign nonsense ", []),
    ],
)
def test_the_shell_completes_what_a_command_takes(line, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["completion", "words", line]) == 0
    assert capsys.readouterr().out.split() == words


def test_bash_gets_the_part_of_a_word_that_it_replaces():
    script = f"""
gcalign() {{ {sys.executable} -m gcalign "$@"; }}
eval "$(gcalign completion bash)"
COMP_LINE="gcalign train method=gca-u" COMP_POINT=26
_gcalign
echo "${{COMPREPLY[@]}}"
"""
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["gca-uot", "gca-uot-paper", "gca-uot-published"]


HOSTILE = "x$(touch PWNED) `touch PWNED`;é"


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A folder of runs, one of which has a command in its name, another a line break."""
    for name in (HOSTILE, "y\n$(touch PWNED)"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", ["gcalign probe run=", "gcalign probe run=runs/x", r"gcalign probe run=runs/x\$\(to"])
def test_a_completed_folder_is_one_word_for_the_shell(hostile, capsys, line):
    assert cli.main(["completion", "words", line]) == 0
    (word,) = capsys.readouterr().out.splitlines()
    assert shlex.split(word) == [f"run=runs/{HOSTILE}"]
    assert cli.main(["completion", "words", f"gcalign probe run={hostile}/ru"]) == 0
    assert capsys.readouterr().out.split() == [f"run={hostile}/runs"]  # a folder elsewhere


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_no_shell_runs_the_name_of_a_folder(hostile, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    asked = {
        "bash": 'COMP_LINE="gcalign probe run=runs/x" COMP_POINT=24; _gcalign; word="run=${COMPREPLY[0]}"',
        "zsh": 'compadd() { (( $# )) && [[ ${@[-1]} == run=* ]] && word="${@[-1]}" }; '
        "words=(gcalign probe run=runs/x) CURRENT=3; _gcalign",
    }[shell]
    script = f"""
gcalign() {{ {sys.executable} -m gcalign "$@"; }}
compinit() {{ :; }}; compdef() {{ :; }}; autoload() {{ :; }}
eval "$(gcalign completion {shell})"
{asked}
eval "set -- $word"
printf %s "$1"
"""
    words = [shell, "-c", script] if shell == "bash" else [shell, "-f", "-c", script]
    shown = subprocess.run(words, capture_output=True, text=True, check=True)
    assert shown.stdout == f"run=runs/{HOSTILE}", shown.stderr
    assert not (hostile / "PWNED").exists()


# --- errors ---------------------------------------------------------------------------------------------------


def broken(*_, **__):
    return len(3)


@pytest.mark.parametrize("words", [["--debug", "list"], ["list", "--debug"], ["list"], ["train", "--debug"]])
def test_an_error_of_ours_is_one_line_and_debug_shows_where_it_was_raised(monkeypatch, capsys, words):
    for name in ("training.listing.show", "training.config.configured"):
        monkeypatch.setattr(f"gcalign.lab.{name}", broken)
    assert cli.main(words) == 2
    *trace, last = capsys.readouterr().err.splitlines()
    assert last.startswith("gcalign: object of type 'int' has no len()")
    assert "--debug" in last
    assert ("return len(3)" in "".join(trace)) == ("--debug" in words)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
@pytest.mark.parametrize("words", [["--json", "-"], []])
def test_a_full_standard_output_is_said_as_such(words):
    command = [sys.executable, "-m", "gcalign", "verify", "--only", "svhn-backbone", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "standard output" in done.stderr


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["verfy"], "did you mean 'verify'"),
        (["probe", "run=nowhere"], "run=nowhere must be a folder"),
        (["probe", "protcol=knn"], "did you mean 'protocol'"),
        (["probe", "protocol=knn"], "run= is missing"),
        (["embed", "run=x", "-o", "features.csv"], ".parquet, .npy file"),
        ([], "COMMAND"),
        (["verify", "--only", "thm:gcarinse"], "did you mean 'thm:gcarince'"),
        (["verify", "--cases", "0"], "must be at least 1"),
        (["verify", "--cases", "many"], "invalid int value: 'many'"),
        (["verify", "--case", "3"], "--only LABEL"),
        (["verify", "--only", "flops", "--case", "1"], "must be below 1"),
        (["verify", "--only", "thm:byol", "--case", "-1"], "must be at least 0"),
        (["verify", "--sed", "3"], "unrecognized arguments: --sed"),
        (["verify", "--json", "/does/not/exist.json"], "directory that exists"),
        (["probe", "run=pixels", "--json", "/"], "must be a file"),
        (["list", "/does/not/exist", "--json", "-"], "has no runs"),
    ],
)
def test_bad_usage_is_one_line_that_helps_and_exit_code_2(capsys, argv, says):
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gcalign: ")
    assert err.count("\n") == 1
    assert says in err


def test_a_claim_that_fails_is_a_finding_and_not_an_error(capsys):
    assert cli.main(["verify", "--only", "pacs-classes", "--only", "thm:byol", "--cases", "2"]) == 0
    out, err = capsys.readouterr()
    assert "fails" in out
    assert "holds" in out
    assert "gcalign verify --only pacs-classes --seed 0 --case 0" in out
    assert err == ""  # no progress where there is no terminal


def test_json_to_standard_output_is_alone_there_and_has_a_command_that_shows_its_numbers(capsys):
    assert cli.main(["verify", "--only", "thm:gcarince", "--cases", "12", "--seed", "7", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    written = json.loads(out)
    (verdict,) = written["verdicts"]
    assert (written["seed"], verdict["label"], verdict["cases"]) == (7, "thm:gcarince", 12)
    assert verdict["replay"].startswith("gcalign verify --only thm:gcarince --seed 7 --case ")
    assert cli.main(verdict["replay"].split()[1:]) == 0
    shown = capsys.readouterr().out
    assert all(repr(verdict["worst"][side]) in shown for side in ("left", "right"))
    assert cli.main([*verdict["replay"].split()[1:], "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["replays"] == {"thm:gcarince": verdict["worst"]}


def test_json_to_a_file_leaves_the_file_and_nothing_else(tmp_path, capsys):
    path = tmp_path / "verdicts.json"
    path.write_text("before")
    assert cli.main(["verify", "--only", "svhn-backbone", "--json", str(path)]) == 0
    assert json.loads(path.read_text())["verdicts"][0]["verdict"] == "fails"
    assert "svhn-backbone" in capsys.readouterr().out  # the table is still shown
    assert list(tmp_path.iterdir()) == [path]


def test_one_small_function_is_a_new_command(monkeypatch, capsys):
    shared = dict(cli.COMMANDS)
    for name in ("cli", "lab.commands", "lab.arguments"):
        monkeypatch.setattr(f"gcalign.{name}.COMMANDS", shared)

    @command("greet", "say hello", example="gcalign greet you")
    def greet(parser):
        parser.add_argument("who")
        return lambda args: print(f"hello {args.who}")

    assert cli.main(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"


# --- JSON and terminals ---------------------------------------------------------------------------------------


@pytest.fixture
def listed(tmp_path):
    """A folder with one run that was probed."""
    config = configured(["method=gca-uot", "data=scenes", "seed=3", "name=a-name-that-is-long", f"runs={tmp_path}"])
    run, probe = Run.of(config), {"kind": "probe", "protocol": "knn", "accuracy": 0.5}
    run.start(config)
    files.append_json_lines(run.results_file, [{"kind": "train", "step": 7, "loss": 1.0}, probe])
    return run


def test_runs_are_listed_as_json_with_numbers(listed, capsys, tmp_path):
    assert cli.main(["list", str(tmp_path), "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["accuracy"] == {"knn": 0.5}
    assert (row["method"], row["seed"], row["state"], row["run"]) == ("gca-uot", 3, "step 7", str(listed.path))
    assert cli.main(["list", str(tmp_path), "--json", str(tmp_path / "rows.json")]) == 0
    assert json.loads((tmp_path / "rows.json").read_text()) == [row]
    assert "knn 50.0 %" in capsys.readouterr().out  # the table is shown as well


def in_terminal(columns: int, *words: str, **env: str) -> str:
    """What a command prints in a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    wanted = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    program = [sys.executable, "-m", "gcalign", *words]
    child = subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL,
                             env={**wanted, "TERM": "xterm-256color", **env})  # fmt: skip
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux, once the other end is closed
            break
        if not part:
            break
        said += part
    os.close(ours)
    assert child.wait() == 0
    return said.decode()


def test_a_narrow_terminal_cuts_nothing_off(listed, tmp_path):
    shown = re.sub(r"\x1b\[[\d;]*m", "", in_terminal(40, "list", str(tmp_path)))
    assert max(map(len, shown.splitlines())) <= 40
    assert "…" not in shown
    assert str(listed.path) in shown.replace("\r\n", "")
    assert "method: gca-uot\r\n" in shown
    assert "accuracy: knn 50.0 %\r\n" in shown


@pytest.mark.slow
def test_every_table_fits_a_narrow_terminal():
    verify = ("verify", "--only", "thm:byol", "--cases", "2")
    for words in (verify, ("claims", str(ROOT / "docs" / "results")), ("bench", "losses", "--quick")):
        shown = re.sub(r"\x1b\[[\d;]*m", "", in_terminal(60, *words))
        assert max(map(len, shown.splitlines())) <= 60
        assert not [line for line in shown.splitlines() if re.search(r"\w…", line)], words


@pytest.mark.slow
def test_no_color_is_respected():
    words = ("verify", "--only", "thm:byol", "--only", "thm:gcarince", "--cases", "20")
    coloured = r"\x1b\[[\d;]*(?:3[0-7]|38|9[0-7])[\d;]*m"
    assert re.search(coloured, in_terminal(100, *words))
    assert not re.search(coloured, in_terminal(100, *words, NO_COLOR="1"))


# --- what a newcomer types first: help, dry runs, both habits of options, missing extras -----------------------------


def test_help_has_every_key_with_its_default_and_a_description(capsys):
    assert cli.main(["train", "--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    plain = dataclasses.asdict(Config())
    for name, value in [(k, v) for k, v in plain.items() if k not in ("method", "data", "logger_args")]:
        for part, inner in value.items() if isinstance(value, dict) else [("", value)]:
            key = f"{name}.{part}" if part else name
            (line,) = [line for line in shown if line.startswith(f"  {key}={written(inner)} ")]
            assert len(line.split()) >= 2


def test_help_has_the_options_of_every_method():
    assert tuple(keys.options()) == names()[: len(keys.options())]
    assert dict(keys.options()["gca-uot-paper"])["relax"] == "[0.2,0.2]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data=folder"], "data=folder needs data.root="),
        (["data=folder", "data.root=nowhere"], "root='nowhere' does not exist"),
        (["data=folder", "data.root=empty"], "empty holds no images"),
        (["data=folder", "data.root=file.txt"], "root=file.txt is not a folder"),
        (["data=parquet"], "data=parquet found nothing as no root= was given"),
        (["data=parquet", "data.root=empty"], "data=parquet found nothing in root='empty'"),
        (["data=pairs"], "data=pairs needs data.root="),
        (["data=pairs", "data.root=nowhere"], "data.root=nowhere does not exist"),
        (["data=cifar10", "data.root=nowhere"], "root='nowhere' does not exist"),
        (["data=scenes", "method.eps=nan"], "eps=nan must be > 0"),
        (["data=scenes", "method.eps=1e-400"], "eps=0 must be > 0"),
        (["data=scenes", "method=gca-rince", "method.q=2"], "q=2 must be"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_refuse(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("no image")
    for more in (["dry=true"], []):
        assert cli.main(["train", *words, *more]) != 0
        assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_shows_words_that_make_the_same_run(tmp_path, capsys):
    words = ["method=gca-uot", "epochs=3", "method.relax=[1.0,2.0]", f"runs={tmp_path}"]
    assert cli.main(["train", *words, "dry=true"]) == 0
    shown = capsys.readouterr().out.splitlines()
    again = configured(
        [line for line in shown if "=" in line and not line.startswith("dry=") and line != "logger_args={}"]
    )
    assert again == configured(words)
    assert f"folder: {tmp_path}/{again.folder}" in shown
    assert not list(tmp_path.iterdir())


def test_flags_are_understood_where_keys_are_usual_and_keys_where_flags_are(tmp_path, capsys):
    assert cli.main(["train", "--epochs", "3", "--batch-size=64", "--runs=", "--dry"]) == 0
    out = capsys.readouterr().out
    assert all(words in out for words in ("epochs=3", "batch_size=64", "folder: gca-ince-scenes-"))
    assert cli.main(["list", f"folder={tmp_path}"]) == 2
    assert f"gcalign: {tmp_path} has no runs" in capsys.readouterr().err
    parser = argparse.ArgumentParser()
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-o", "--output")
    assert either(parser, ["run=x", "--output", "a=b", "--k", "5"]) == ["--output", "a=b", "run=x", "k=5"]


def test_a_missing_extra_is_named():
    assert "'.[train]'" in missing(ModuleNotFoundError("No module named 'hydra'", name="hydra.core"))
    assert "No module named 'other'" in missing(ModuleNotFoundError("No module named 'other'", name="other"))


def test_a_command_without_its_extra_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lightning", None)
    for name in [name for name in sys.modules if name.startswith("gcalign.lab.training.train")]:
        monkeypatch.delitem(sys.modules, name)
    began = time.monotonic()
    assert cli.main(["train", "data=scenes"]) == 2
    assert "lightning" in capsys.readouterr().err
    assert time.monotonic() - began < 60
