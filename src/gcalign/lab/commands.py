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


def calling(target: str, *, show: Callable[[Any], None] | None = None, **names: str) -> Run:
    """What imports `module:function` and calls it with a command's arguments, then shows the result.

    Arguments have the function's own names, except those in `names`.
    """

    def run(args: argparse.Namespace) -> None:
        module, _, function = target.partition(":")
        given = {names.get(key, key): value for key, value in vars(args).items() if key not in ("run", "debug")}
        result = getattr(import_module(module), function)(**given)
        if show is not None:
            show(result)

    return run


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


# --- two habits of typing options, `key=value` and `--key value`: every command takes both -------------------------


def either(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """The words of a command as its parser expects them."""
    if any(action.dest == "overrides" for action in parser._actions):
        return _as_keys(parser._option_string_actions, words)
    places = {action.dest for action in parser._actions if not action.option_strings and action.nargs != 0}
    return [flag for word in words for flag in _as_flags(parser._option_string_actions, places, word)]


def _as_keys(known: dict[str, argparse.Action], words: list[str]) -> list[str]:
    """Flags that the parser does not know as keys; those that it knows come first: argparse wants keys together."""
    keys, options, rest = [], [], list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in known:
            options.append(word)
            if not equals and known[name].nargs is None and rest:  # its value is no key
                options.append(rest.pop(0))
        elif not word.startswith("--") or word == "--":
            keys.append(word)
        else:
            if not equals:
                value = rest.pop(0) if rest and not rest[0].startswith("--") and "=" not in rest[0] else "true"
            keys.append(f"{name[2:].replace('-', '_')}={value}")
    return options + keys


def _as_flags(known: dict[str, argparse.Action], places: set[str], word: str) -> list[str]:
    """`mean=true` as `--mean`, `folder=runs` as `runs`; `mean=false` is nothing."""
    name, equals, value = word.partition("=")
    flag = f"--{name.replace('_', '-')}"
    if word.startswith("-") or not equals:
        return [word]
    if name in places:
        return [value]
    if flag not in known:
        return [word]
    if known[flag].nargs == 0:
        return [] if value == "false" else [flag]
    return [f"{flag}={value}"]
