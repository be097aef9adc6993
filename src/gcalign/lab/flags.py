"""Two habits of typing options, `key=value` and `--key value`: every command takes both."""

from __future__ import annotations

import argparse


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
