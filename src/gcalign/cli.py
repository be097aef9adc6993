"""The command `gcalign`: parses, then calls one function. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # `python -m` puts the current folder first, where a file would stand in for any module

import argparse
import os
import traceback

from gcalign.errors import one_of
from gcalign.lab.arguments import parser
from gcalign.lab.commands import COMMANDS, either, subcommands
from gcalign.lab.terminal import steady
from gcalign.lab.words import explanation, printable


def main(argv: list[str] | None = None) -> int:
    """Run a command. Returns 0 if it ran, 1 if runs that it started failed, 2 after an error, 130 if interrupted."""
    if argv is None:
        argv = sys.argv[1:]
        # processes that the command starts do not look in the current folder; those of a user's own script do
        os.environ.setdefault("PYTHONSAFEPATH", "1")
    with steady():
        return _run([word for word in argv if word != "--debug"], debug="--debug" in argv)


def _run(argv: list[str], *, debug: bool) -> int:
    try:
        args = _parsed(argv)
        args.run(args)
        sys.stdout.flush()  # what cannot be written is an error of the command
    except SystemExit as stop:  # argparse, after --help and --version
        return int(stop.code or 0)
    except (ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError) as error:
        if debug:
            traceback.print_exc()
        print(f"gcalign: {printable(explanation(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parsed(argv: list[str]) -> argparse.Namespace:
    at = next((k for k, word in enumerate(argv) if not word.startswith("-")), None)
    if at is None:
        return parser(()).parse_args(argv)
    name = one_of("command", argv[at], COMMANDS)
    whole = parser([name])
    return whole.parse_args([*argv[: at + 1], *either(subcommands(whole)[name], argv[at + 1 :])])


if __name__ == "__main__":
    sys.exit(main())
