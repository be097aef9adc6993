"""The options of a run as text: help and dry runs. Nothing heavy is imported, so help answers at once."""

from __future__ import annotations

import ast
from pathlib import Path

from gcalign.lab.training.config import COMMON, RECIPES, Config
from gcalign.lab.training.typed import About, Key, keys, written

_METHODS = Path(__file__).parents[2] / "methods.py"


def every() -> list[Key]:
    """The options of every run; those that choose a group come first."""
    groups = {
        "method": ("gca-ince", "loss; its options are below", tuple(options())),
        "data": ("scenes", "data set: scenes is built in; folder and parquet are your own files", ()),
        "recipe": ("default", "settings of the paper", tuple(RECIPES)),
    }
    chosen = [Key(name, (str,), choices, default, About(text)) for name, (default, text, choices) in groups.items()]
    return [*chosen, *keys(Config)]


def options() -> dict[str, list[tuple[str, str]]]:
    """The options of each method with their defaults, from the signatures in its source: that needs no torch."""
    methods = {}
    for node in ast.parse(_METHODS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            call = node.decorator_list[0]
            if isinstance(call, ast.Call) and isinstance(call.args[0], ast.Constant):
                own = zip(node.args.args, node.args.defaults, strict=True)
                methods[str(call.args[0].value)] = [(a.arg, written(ast.literal_eval(value))) for a, value in own]
    return methods


def meaning(key: Key) -> str:
    """The description of an option, with its choices."""
    few = key.choices if key.name != "method" else ()  # which are listed with their options
    return f"{key.about.text} ({'|'.join(few)})" if few else key.about.text


def help_text() -> str:
    """The options as text for a terminal of 100 columns."""
    known = every()
    wide = max(len(str(key)) for key in known) + 2
    lines = [f"  {key!s:{wide}}{meaning(key)}" for key in known]
    methods = [f"  {name:17} {'  '.join(f'method.{k}={v}' for k, v in own)}" for name, own in options().items()]
    common = f"  {'all methods':17} {'  '.join(f'method.{name}=' for name in COMMON)}"
    return "\n".join(["keys, with their defaults:", *lines, "", "options of the methods:", *methods, common])


def resolved(config: Config) -> str:
    """A run as its words, one to a line, and the folder that it would have."""
    content = config.as_dict()
    lines = [f"method={content['method'].pop('name')}"]
    lines += [f"method.{name}={written(value)}" for name, value in content["method"].items()]
    lines.append(f"data={config.data.name}")
    for key in keys(Config):
        value = content
        for part in key.name.split("."):
            value = value[part]
        lines.append(f"{key.name}={written(value)}")
    return "\n".join([*lines, f"folder: {Path(config.runs) / config.folder}", "dry=true: nothing was written"])
