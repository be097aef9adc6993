"""Two habits of typing options, `key=value` and `--key value`: every command takes both."""

from __future__ import annotations

import argparse


def either(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """The words of a command as its parser expects them."""
    known = parser._option_string_actions
    if any(action.dest == "overrides" for action in parser._actions):
        return _as_keys(known, words)
    places = {action.dest for action in parser._actions if not action.option_strings and action.nargs != 0}
    return [_as_flag(known, places, word) for word in words if not _is_off(known, word)]


def _as_keys(known: dict[str, argparse.Action], words: list[str]) -> list[str]:
    found, options, rest = [], [], list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in known:
            options.append(word)
            if not equals and known[name].nargs is None and rest:  # its value is no key
                options.append(rest.pop(0))
            continue
        if not word.startswith("--") or word == "--":
            found.append(word)
            continue
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") and "=" not in rest[0] else "true"
        found.append(f"{name[2:].replace('-', '_')}={value}")
    return options + found  # argparse wants its positional words together


def _flag(word: str) -> tuple[str, str, str]:
    name, equals, value = word.partition("=")
    return f"--{name.replace('_', '-')}", equals, value


def _as_flag(known: dict[str, argparse.Action], places: set[str], word: str) -> str:
    name, equals, value = _flag(word)
    if not word.startswith("-") and equals and name[2:] in places:
        return value  # `folder=runs` of `gcalign list runs`
    if word.startswith("-") or not equals or name not in known:
        return word
    return name if known[name].nargs == 0 else f"{name}={value}"


def _is_off(known: dict[str, argparse.Action], word: str) -> bool:
    """`plain=false`, which a flag says by its absence."""
    name, _, value = _flag(word)
    return not word.startswith("-") and name in known and known[name].nargs == 0 and value == "false"
