"""The command line: help, versions, errors that help, and files that are whole or absent."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from gcalign import cli
from gcalign.lab.verify import command


def test_help_lists_every_command_with_an_example(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "example:" in shown
    assert all(name in shown for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_help_with_an_example_of_itself(capsys, name):
    assert cli.main([name, "--help"]) == 0
    assert f"example:\n  gcalign {name}" in capsys.readouterr().out


def test_help_does_not_wait_for_torch():
    code = "import sys; from gcalign.cli import main; main(['verify', '--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_version_is_the_installed_one(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gcalign {version('gcalign')}\n"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["verfy"], "did you mean 'verify'"),
        ([], "COMMAND"),
        (["verify", "--only", "thm:gcarinse"], "did you mean 'thm:gcarince'"),
        (["verify", "--cases", "0"], "must be at least 1"),
        (["verify", "--cases", "many"], "invalid int value: 'many'"),
        (["verify", "--case", "3"], "--only LABEL"),
        (["verify", "--only", "flops", "--case", "1"], "must be below 1"),
        (["verify", "--only", "thm:byol", "--case", "-1"], "must be at least 0"),
        (["verify", "--sed", "3"], "unrecognized arguments: --sed"),
        (["verify", "--json", "/does/not/exist.json"], "directory that exists"),
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


def test_a_write_that_fails_leaves_the_old_file_and_no_part(tmp_path, monkeypatch, capsys):
    path = tmp_path / "verdicts.json"
    path.write_text("before")

    def full(self, target):
        raise OSError("no space left")

    monkeypatch.setattr(command.Path, "replace", full)
    assert cli.main(["verify", "--only", "svhn-backbone", "--json", str(path)]) == 2
    assert "no space left" in capsys.readouterr().err
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_one_small_function_is_a_new_command(monkeypatch, capsys):
    monkeypatch.setattr(cli, "_COMMANDS", dict(cli.COMMANDS))

    @cli.command("greet", "say hello", example="gcalign greet you")
    def greet(parser):
        parser.add_argument("who")
        return lambda args: print(f"hello {args.who}")

    assert cli.main(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
