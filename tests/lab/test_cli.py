"""The command line: help, versions, errors that help, and files that are whole or absent."""

from __future__ import annotations

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
from importlib.metadata import version
from pathlib import Path

import pytest

from gcalign import cli

ROOT = Path(__file__).parents[2]


def test_help_lists_every_command_with_an_example(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "example:" in shown
    assert all(name in shown for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_help_with_an_example_of_itself(capsys, name):
    assert cli.main([name, "--help"]) == 0
    assert f"example:\n  gcalign {name}" in capsys.readouterr().out


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
        ("gcalign list --", ["--help", "--json", "--mean"]),
        ("gcalign bench laun", ["launches"]),
        ("gcalign bench losses --rep", ["--repeats"]),
        ("gcalign train optimizer.n", ["optimizer.name="]),
        (
            "gcalign train method=gca-",
            ["method=gca-ince", "method=gca-rince", "method=gca-uot", "method=gca-uot-published"],
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
    assert shown.stdout.split() == ["gca-uot", "gca-uot-published"]


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


def test_a_folder_outside_is_completed(hostile, capsys):
    assert cli.main(["completion", "words", f"gcalign probe run={hostile}/ru"]) == 0
    assert capsys.readouterr().out.split() == [f"run={hostile}/runs"]


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


@pytest.mark.parametrize("words", [["--debug", "list"], ["list", "--debug"], ["train", "--debug"]])
def test_debug_shows_where_an_error_was_raised(monkeypatch, capsys, words):
    for name in ("training.listing.show", "training.config.configured"):
        monkeypatch.setattr(f"gcalign.lab.{name}", broken)
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert "return len(3)" in err
    assert err.splitlines()[-1].startswith("gcalign: object of type 'int' has no len()")


def test_an_error_of_ours_is_one_line_that_names_debug(monkeypatch, capsys):
    monkeypatch.setattr("gcalign.lab.training.listing.show", broken)
    assert cli.main(["list"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--debug" in err


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
        (["train", "epcohs=3"], "did you mean 'epochs'"),
        (["embed", "run=x", "-o", "features.csv"], ".parquet file"),
        ([], "COMMAND"),
        (["verify", "--only", "thm:gcarinse"], "did you mean 'thm:gcarince'"),
        (["verify", "--cases", "0"], "must be at least 1"),
        (["verify", "--cases", "many"], "invalid int value: 'many'"),
        (["verify", "--case", "3"], "--only LABEL"),
        (["verify", "--only", "flops", "--case", "1"], "must be below 1"),
        (["verify", "--only", "thm:byol", "--case", "-1"], "must be at least 0"),
        (["verify", "--sed", "3"], "unrecognized arguments: --sed"),
        (["verify", "--json", "/does/not/exist.json"], "directory that exists"),
        (["list", "--json", "/does/not/exist.json"], "directory that exists"),
        (["probe", "run=pixels", "--json", "/"], "must be a file"),
        (["demo", "--json", "/does/not/exist.json"], "directory that exists"),
        (["audit", "a.npy", "b.npy", "-o", "out.csv", "--json", "/does/not/exist.json"], "directory that exists"),
        (["claims", "--json", "/does/not/exist.json"], "directory that exists"),
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


def test_json_to_standard_output_is_alone_there(capsys):
    assert cli.main(["verify", "--only", "thm:gcarince", "--cases", "12", "--seed", "7", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    written = json.loads(out)
    assert err == ""
    assert written["seed"] == 7
    (verdict,) = written["verdicts"]
    assert verdict["label"] == "thm:gcarince"
    assert verdict["cases"] == 12
    assert verdict["replay"].startswith("gcalign verify --only thm:gcarince --seed 7 --case ")


def test_the_replay_command_prints_the_two_sides_and_their_violation(capsys):
    assert cli.main(["verify", "--only", "thm:gcarince", "--cases", "12", "--json", "-"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert cli.main(verdict["replay"].split()[1:]) == 0
    shown = capsys.readouterr().out
    assert repr(verdict["worst"]["left"]) in shown
    assert repr(verdict["worst"]["right"]) in shown
    assert "violated" in shown
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
    for name in ("cli", "lab.commands"):
        monkeypatch.setattr(f"gcalign.{name}.COMMANDS", shared)

    @cli.command("greet", "say hello", example="gcalign greet you")
    def greet(parser):
        parser.add_argument("who")
        return lambda args: print(f"hello {args.who}")

    assert cli.main(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"


# --- JSON and terminals ---------------------------------------------------------------------------------------


@pytest.fixture
def listed(tmp_path):
    """A folder with one run that was probed twice."""
    from gcalign.lab import files
    from gcalign.lab.training.config import configured
    from gcalign.lab.training.runs import Run

    config = configured(["method=gca-uot", "data=scenes", "seed=3", "name=a-name-that-is-long", f"runs={tmp_path}"])
    run = Run.of(config)
    run.start(config)
    probes = [{"kind": "probe", "protocol": "knn", "accuracy": value} for value in (0.25, 0.5)]
    files.append_json_lines(run.results_file, [{"kind": "train", "step": 7, "loss": 1.0}, *probes])
    return run


def test_runs_are_listed_as_json_with_numbers(listed, capsys, tmp_path):
    assert cli.main(["list", str(tmp_path), "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["accuracy"] == {"knn": 0.5}  # the last one measured
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


@pytest.mark.parametrize("name", ["audit", "bench", "claims", "demo", "list", "probe", "verify"])
def test_every_command_that_prints_a_table_can_write_it_as_json(name, capsys):
    assert cli.main([name, "--help"]) == 0
    assert "--json PATH" in capsys.readouterr().out


def test_the_help_states_the_exit_codes(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for words in ("Exit codes: 0 it ran", "1 some runs", "2 an error", "130 interrupted"):
        assert words in shown
