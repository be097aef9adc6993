"""Subcommands: a function declares the arguments of one and returns what runs on them. Nothing heavy is imported."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

Run = Callable[[argparse.Namespace], None]
COMMANDS: dict[str, Callable[[Any], None]] = {}


class Parser(argparse.ArgumentParser):
    """A parser that reports bad usage as one line, with a remedy."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def command(name: str, does: str, *, example: str) -> Callable[[Callable[[Parser], Run]], Callable[[Parser], Run]]:
    """Make a function a subcommand: it declares its arguments and returns the function that runs on them."""

    def add(declare: Callable[[Parser], Run]) -> Callable[[Parser], Run]:
        def build(subparsers: Any) -> None:
            parser = subparsers.add_parser(
                name,
                help=does,
                description=f"{does[0].upper()}{does[1:]}.",
                epilog=f"example:\n  {example}",
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
            parser.set_defaults(run=declare(parser))

        COMMANDS[name] = build
        return declare

    return add


def json_path(text: str) -> str:
    """The argument of `--json`, refused before the work if no file can be put there; `-` is standard output."""
    from gcalign.lab.files import writable

    try:
        return text if text == "-" else str(writable("", text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; - is standard output") from None


def subcommands(whole: argparse.ArgumentParser) -> dict[str, Parser]:
    """The parser of each subcommand, by name."""
    found = next(action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


def output(payload: Callable[[], Any], to_json: str | None, show: Callable[[], None]) -> None:
    """Write JSON where it is asked for, and show the table unless standard output has the JSON."""
    from gcalign.lab.files import to_json_file

    if to_json is not None:
        to_json_file(to_json, payload())
    if to_json != "-":
        show()


def elsewhere(parser: Parser) -> Run:
    """Arguments that the module `arguments` of the command's folder declares; it is light, too."""
    declare: Callable[[Parser], Run] = import_module(f"gcalign.lab.{parser.prog.split()[-1]}.arguments").declare
    return declare(parser)
