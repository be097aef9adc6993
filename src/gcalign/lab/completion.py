"""Shell completion: the script of a shell asks `gcalign completion words LINE`, which reads the parser of a command."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable, Collection

from gcalign.lab.commands import COMMANDS, Parser, subcommands

# words come quoted, and no script quotes them again: the name of a folder may hold what a shell would run
BASH = r"""_gcalign() {
  local line="${COMP_LINE:0:COMP_POINT}" word typed=
  word="${line//\\ /_}" word="${word##* }"
  # bash takes what follows a = for a word of its own
  if [[ $word == *=* && $COMP_WORDBREAKS == *=* ]]; then typed="${word%=*}="; fi
  COMPREPLY=()
  while IFS= read -r word; do
    COMPREPLY+=("${word#"$typed"}")
  done < <(gcalign completion words "$line" 2>/dev/null)
  if [[ ${COMPREPLY[0]} == *[=/] ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _gcalign gcalign"""
ZSH = r"""autoload -Uz compinit && compinit
_gcalign() {
  local -a found=(${(f)"$(gcalign completion words "${(j: :)words[1,CURRENT]}" 2>/dev/null)"})
  compadd -Q -S '' -- ${(M)found:#*[=/]}
  compadd -Q -- ${found:#*[=/]}
  (( $#found )) || _files
}
compdef _gcalign gcalign"""
FISH = "complete -c gcalign -a '(gcalign completion words (commandline -cp) | string unescape)'"
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def candidates(parser_of: Callable[[Collection[str]], Parser], line: str) -> list[str]:
    """What the last word of a line can become, each quoted for a shell."""
    *before, word = _words(line)[1:] or [""]
    if before and before[0] not in COMMANDS:
        return []
    parser = parser_of(before[:1])
    for name in before:
        parser = subcommands(parser).get(name, parser)
    options = [option for option in parser._option_string_actions if option.startswith("--")]
    known = [*subcommands(parser), *options, *_keys_or_values(parser, word)]
    if len(before) == 1:
        known += parser.names
    return sorted({_quoted(each) for each in known if each.startswith(word) and each.isprintable()})


def _keys_or_values(parser: Parser, word: str) -> list[str]:
    key, equals, value = word.partition("=")
    if not equals:
        return [f"{name}=" for name in parser.keys]
    values = list(parser.keys.get(key, ()))
    if key in ("run", "like"):
        values += [path.rstrip("/") for path in glob.glob(f"{glob.escape(value)}*/" if value else "runs/*/")]
    return [f"{key}={each}" for each in values]


def _words(line: str) -> list[str]:
    """The words of a line as a shell reads them; the last one may lack its closing quote."""
    for end in ("", "'", '"'):
        try:
            words = shlex.split(line + end)
        except ValueError:
            continue
        return [*words, ""] if line.endswith(" ") and not line.endswith("\\ ") else words
    return line.split(" ")


def _quoted(word: str) -> str:
    """With a backslash before what bash, zsh or fish could take for more than a letter."""
    return re.sub(r"[^\w@%+=:,./-]", r"\\\g<0>", word)
