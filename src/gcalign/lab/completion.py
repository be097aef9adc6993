"""Shell completion: the script of a shell asks `gcalign completion words LINE`, which reads the help of a command."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from gcalign.lab.commands import Parser, Run, subcommands
from gcalign.lab.experiments.engine import experiment
from gcalign.lab.training import keys

_BASH = r"""_gcalign() {
  local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n'
  local word="${line##* }"
  COMPREPLY=($(gcalign completion words "$line" 2>/dev/null))
  # bash takes what follows a = for a word of its own
  if [[ $word == *=* && $COMP_WORDBREAKS == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}"); fi
  if [[ ${COMPREPLY[0]} == *[=/] ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _gcalign gcalign"""
_ZSH = r"""autoload -Uz compinit && compinit
_gcalign() {
  local -a found=(${(f)"$(gcalign completion words "${(j: :)words[1,CURRENT]}" 2>/dev/null)"})
  compadd -Q -S '' -- ${(M)found:#*[=/]}
  compadd -Q -- ${found:#*[=/]}
  (( $#found )) || _files
}
compdef _gcalign gcalign"""
_FISH = "complete -c gcalign -a '(gcalign completion words (commandline -cp))'"
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_KEY = re.compile(r"(?<![\w.-])([a-z_]+(?:\.[a-z_]+)*)=((?:[\w-]+\|)+[\w-]+)?")


def completion(whole: Callable[[], Parser], parser: Parser) -> Run:
    """The arguments of `gcalign completion`, and what runs on them."""
    parser.add_argument("shell", choices=[*_SCRIPTS, "words"], help="words: the possible last words of LINE")
    parser.add_argument("line", nargs="?", default="", metavar="LINE", help="the line as it is typed, up to the cursor")

    def run(args: argparse.Namespace) -> None:
        print(_SCRIPTS.get(args.shell) or "\n".join(_candidates(whole(), args.line)))

    return run


def _candidates(whole: argparse.ArgumentParser, line: str) -> list[str]:
    """What the last word of a line can become."""
    *before, word = re.split(r"\s+", line.lstrip())[1:] or [""]
    parser: argparse.ArgumentParser = whole
    for name in before:
        if parser._subparsers is not None:
            if name not in subcommands(parser):
                return []
            parser = subcommands(parser)[name]
    options = [option for option in parser._option_string_actions if option.startswith("--")]
    found = options if parser._subparsers is None else [*subcommands(parser), *options]
    command = before[0] if before else ""
    if command == "reproduce" and len(before) == 1:
        found = [*experiment.names(), *found]
    if any(action.dest == "overrides" for action in parser._actions):
        found += _words(parser.format_help(), command, word)
    return sorted({known for known in found if known.startswith(word)})


def _words(text: str, command: str, word: str) -> list[str]:
    """The keys that a help text names, or the values of the key that is typed."""
    key, equals, value = word.partition("=")
    values: dict[str, set[str]] = {}
    for name, known in _KEY.findall(text):
        values.setdefault(name, set()).update(known.split("|") if known else ())
    if not equals:
        return [f"{name}=" for name in values if name != "key"]
    known = values.get(key, set())
    if key == "method":
        known |= set(keys.options())
    if key in ("run", "like") and command != "train":
        known |= {str(path) for path in Path().glob(f"{value}*/" if value else "runs/*/")}
    return [f"{key}={each}" for each in known]
