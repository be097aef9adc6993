"""Every example in a docstring runs, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import gcalign
from gcalign.lab.training.config import configured
from gcalign.lab.training.train import train

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FORMULA = r"\b(Eq\.|Theorem|Definition|Section|Table) [\dA]|[=‖Σ]"
WITHOUT_FORMULA = {
    "Audit": "what `audit` returns",
    "GCAEncoder": "a wrapper around any method",
    "Objective": "what all criteria have in common",
    "Queue": "holds embeddings",
    "Side": "holds embeddings",
    "Sides": "holds embeddings",
    "cached_backward": "does not change the loss",
    "load": "reads files",
    "methods.names": "lists names",
    "metrics.collapse": "a sentence",
    "methods.options": "lists names",
    "methods.register": "adds a name",
    "register": "adds a name",
}
RUN = ("data=scenes", "data.limit=64", "epochs=1", "batch_size=64", "model.width=0.1", "model.hidden=8", "model.out=8",
       "accelerator=cpu", "logger=none", "name=first")  # fmt: skip


def library_modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(gcalign.__path__, "gcalign.") if ".lab" not in module.name]
    found.remove("gcalign.__main__")  # importing it runs the command
    return [*found, "gcalign.lab.training.load", "gcalign.lab.training.encoder", "gcalign.lab.estimator"]


def public_objects() -> dict[str, object]:
    """Classes and functions by the name under which a user finds them; a submodule counts by its functions."""
    objects = {name: getattr(gcalign, name) for name in (*gcalign.__all__, "load", "GCAEncoder")}
    for name, module in [item for item in objects.items() if inspect.ismodule(item[1])]:
        del objects[name]
        functions = inspect.getmembers(module, inspect.isfunction)
        objects |= {
            f"{name}.{key}": f for key, f in functions if f.__module__ == module.__name__ and not key.startswith("_")
        }
    return objects


PUBLIC = public_objects()


@pytest.mark.parametrize("name", library_modules())
def test_examples_run_and_print_what_they_show(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if name == "gcalign.lab.training.load":  # its example loads a run
        train(configured(RUN), quiet=True)
    monkeypatch.setattr(gcalign.methods, "_REGISTRY", dict(gcalign.methods._REGISTRY))  # an example registers a method
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    report: list[str] = []
    for example in doctest.DocTestFinder().find(importlib.import_module(name)):
        runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_what_it_does_and_shows_it(name):
    text = vars(PUBLIC[name]).get("__doc__") if inspect.isclass(PUBLIC[name]) else PUBLIC[name].__doc__
    assert text, f"{name} has no docstring of its own"
    summary = text.partition("\n\n")[0]
    assert summary.rstrip().endswith("."), f"the docstring of {name} must start with a sentence"
    examples = [e for e in doctest.DocTestParser().get_examples(text) if doctest.SKIP not in e.options]
    assert examples, f"{name} must have an example"


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in WITHOUT_FORMULA])
def test_a_public_name_has_its_equation(name):
    about = re.split(r"\n\s*(?:Args|Example|Returns|Raises):", PUBLIC[name].__doc__)[0]
    assert re.search(FORMULA, re.sub(r"`[^`]*`", "", about)), f"{name} needs its equation, or a reason in this file"


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isfunction(PUBLIC[name])])
def test_a_public_function_describes_its_arguments(name):
    text = PUBLIC[name].__doc__
    section = text.partition("Args:\n")[2].partition("\n\n")[0] if "Args:" in text else text
    if name.startswith("methods."):  # which describes `eps` and `common` once
        section += gcalign.methods.__doc__
    for argument in inspect.signature(PUBLIC[name]).parameters:
        assert argument in section, f"{name} does not describe {argument}"


def test_a_public_property_or_method_of_a_plan_says_what_it_is():
    members = [(key, value) for key, value in vars(gcalign.Plan).items() if not key.startswith("_")]
    described = [
        key for key, value in members if callable(value) or hasattr(value, "func") or isinstance(value, property)
    ]
    assert len(described) > 20
    for key in described:
        assert getattr(vars(gcalign.Plan)[key], "__doc__", None), f"Plan.{key} has no docstring"
