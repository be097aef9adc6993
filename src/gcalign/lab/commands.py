"""Subcommands: a function declares the arguments of one and returns what runs on them. Nothing heavy is imported."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

Run = Callable[[argparse.Namespace], None]


class Parser(argparse.ArgumentParser):
    """A parser that reports bad usage as one line, with a remedy, and knows what a shell may complete."""

    def __init__(self, **options: Any) -> None:
        options |= {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**options)
        self.keys: dict[str, tuple[str, ...]] = {}  # of words key=value, with the values that are known
        self.names: tuple[str, ...] = ()  # that the first word can be

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")

    def takes(self, *words: str, nargs: str = "+", more: str = "") -> None:
        """Take words key=value; each is given as `key=` or `key=one|another`, and `more` ends their help."""
        for word in words:
            key, _, values = word.partition("=")
            self.keys[key] = tuple(values.split("|")) if values else ()
        self.add_argument("overrides", nargs=nargs, metavar="key=value", help=f"options: {', '.join(words)}{more}")


@dataclass(frozen=True)
class Command:
    """A subcommand; `declare` adds its arguments to a parser and returns what runs on them."""

    does: str
    example: str
    declare: Callable[[Parser], Run]


COMMANDS: dict[str, Command] = {}


def command(name: str, does: str, *, example: str) -> Callable[[Callable[[Parser], Run]], Callable[[Parser], Run]]:
    """Make a function a subcommand: it declares its arguments and returns the function that runs on them."""

    def add(declare: Callable[[Parser], Run]) -> Callable[[Parser], Run]:
        COMMANDS[name] = Command(does, example, declare)
        return declare

    return add


def add_subcommand(subparsers: Any, name: str, does: str, example: str) -> Parser:
    """A parser below another one, with its help."""
    about = {"help": does, "description": f"{does[0].upper()}{does[1:]}.", "epilog": f"example:\n  {example}"}
    parser: Parser = subparsers.add_parser(name, **about)
    return parser


def subcommands(whole: argparse.ArgumentParser) -> dict[str, Parser]:
    """The parser of each subcommand, by name."""
    action = next((action for action in whole._actions if isinstance(action, argparse._SubParsersAction)), None)
    return dict(action.choices) if action else {}


def elsewhere(parser: Parser) -> Run:
    """Arguments that the module `arguments` of the command's folder declares; it is light, too."""
    declare: Callable[[Parser], Run] = import_module(f"gcalign.lab.{parser.prog.split()[-1]}.arguments").declare
    return declare(parser)


def json_path(text: str) -> str:
    """The argument of `--json`, refused before the work if no file can be put there; `-` is standard output."""
    from gcalign.lab.files import writable

    try:
        return text if text == "-" else str(writable("", text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; - is standard output") from None


def output(payload: Callable[[], Any], to_json: str | None, show: Callable[[], None]) -> None:
    """Write JSON where it is asked for, and show the table unless standard output has the JSON."""
    from gcalign.lab.files import to_json_file

    if to_json is not None:
        to_json_file(to_json, payload())
    if to_json != "-":
        show()
