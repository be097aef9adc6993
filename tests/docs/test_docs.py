"""The pages say what the code does: the call they follow, the picture they show, the examples they give."""

from __future__ import annotations

import importlib.util
import inspect
import io
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import gcalign
from gcalign import KL, Alignment, Columns, Cosine, Rows, cli, methods
from gcalign.lab.experiments.engine import experiment, launch, records

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "life-of-a-call.md"
PAGES = sorted(
    str(path.relative_to(DOCS).with_suffix("")) for folder in (DOCS, DOCS / "studies") for path in folder.glob("*.md")
)
OUTSIDE = ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")
TEXTS = {**{page: DOCS / f"{page}.md" for page in PAGES}, **{name: ROOT / f"{name}.md" for name in OUTSIDE}}
# A block runs unless the comment above it says why not:
#   not run             e.g. because it needs a cluster
#   run dry             words and options are checked, nothing is trained
#   after the commands  Python that reads what the commands of its page wrote: run with them, in the slow suite
BLOCK = re.compile(
    r"^(?: *<!-- (not run|run dry|after the commands): (.+?) -->\n\n)?( *)```(.*?)\n(.*?)^\3```$",
    re.DOTALL | re.MULTILINE,
)
RUN_BELOW = "add-your-own"  # its examples are run below, and compared with formulas
SHOWS = {
    "image-and-text": r"(?s)image → caption: R@1 [5-9]\d.*a large blue ring, right: a large blue ring, right"
}  # what the commands of a page must print
RUNNER = """
import json, subprocess, sys
names = {"__name__": "__main__"}
for language, code in json.load(sys.stdin):
    if language == "python":
        exec(code, names)
    else:
        subprocess.run(["bash", "-euo", "pipefail", "-c", code], check=True, stdin=subprocess.DEVNULL)
"""
FOLLOWED = """
import sys, torch, gcalign
z1, z2 = torch.randn(256, 64, requires_grad=True), torch.randn(256, 64)
criterion = gcalign.method("gca-uot", eps=0.2)
criterion(z1, z2).backward()
modules = set()
def follow(frame, event, arg):
    module = frame.f_globals.get("__name__", "")
    if event == "call" and module.startswith("gcalign."):
        modules.add(module.removeprefix("gcalign."))
sys.setprofile(follow)
criterion(z1, z2).backward()
sys.setprofile(None)
print(*modules)
"""


@pytest.fixture(scope="module")
def met():
    """The modules that one call meets."""
    done = subprocess.run([sys.executable, "-c", FOLLOWED], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def script(name: str) -> ModuleType:
    """A script of the docs, as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def picture():
    return script("life_of_a_call")


def test_the_life_of_a_call_lists_the_modules_that_it_meets(met):
    count, listed = re.search(r"meets (\d+) modules: (.+)\.", PAGE.read_text()).groups()
    assert sorted(re.findall(r"`([\w.]+)`", listed)) == sorted(met)
    assert int(count) == len(met)


def test_the_picture_of_a_call_names_only_modules_that_it_meets(met, picture):
    short = {module.removeprefix("transport.") for module in met}
    named = {module for box in (*picture.FORWARD, *picture.BACKWARD) for module in box.modules}
    named |= {module for _, module, *_ in picture.OPERATORS}
    assert named <= short
    assert short - named == {"support"}  # they only carry


def test_the_picture_of_a_call_is_drawn_the_same_each_time(tmp_path, picture):
    pytest.importorskip("matplotlib")
    for name in ("one.png", "two.png"):
        picture.draw(tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


class Block(NamedTuple):
    mark: str
    reason: str
    language: str
    code: str


def blocks(page: str) -> list[Block]:
    """Every block of a page, in order."""
    found = BLOCK.findall(TEXTS[page].read_text(encoding="utf-8"))
    return [Block(mark, why, language, textwrap.dedent(code)) for mark, why, _, language, code in found]


def run_at_once(page: str) -> list[Block]:
    """The Python of a page that needs nothing but the blocks before it."""
    return [] if page == RUN_BELOW else [b for b in blocks(page) if b.language == "python" and not b.mark]


@pytest.mark.parametrize("page", TEXTS)
def test_every_block_says_what_it_is(page):
    text, found = TEXTS[page].read_text(encoding="utf-8"), blocks(page)
    assert 2 * len(found) == len(re.findall(r"^ *```", text, re.MULTILINE))
    assert text.count("<!-- not run") + text.count("<!-- run dry") + text.count("<!-- after the commands") == sum(
        bool(block.mark) for block in found
    ), "a mark stands above its block, with an empty line between them"
    for block in found:
        assert block.language in ("bash", "python", "text"), f"```{block.language} of:\n{block.code}"
        if block.language == "text" and page != "command-line":  # the examples of --help
            program = re.search(r"^(\$ |gcalign [a-z]|python |pip |make |import |from \w+ import)", block.code, re.M)
            assert not program, f"this is not text:\n{block.code}"


@pytest.mark.parametrize("page", [*filter(run_at_once, TEXTS)])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec("\n".join(block.code for block in run_at_once(page)), names)
    if "loss" in names:
        assert torch.isfinite(names["loss"]).all()
    shown, printed = re.compile(r"Plan\((.+?), mass=(.+?), (.+?)\)\n").search, capsys.readouterr().out
    if page == "README":  # the plan that the page shows; rounding may differ in the last digits
        assert shown(TEXTS[page].read_text()).groups()[:2] == shown(printed).groups()[:2]


DRY = [
    pytest.param(words, id=f"{page}: {' '.join(words)}")
    for page in TEXTS
    for block in blocks(page)
    if block.mark == "run dry"
    for line in block.code.replace("\\\n", " ").splitlines()
    if (words := shlex.split(line, comments=True))
]


def own_data(words):
    """Make the file or folder that a command names, with images in it, since also a dry run looks for it."""
    root = next((Path(word.partition("=")[2]) for word in words if word.startswith("data.root=")), None)
    if root is None:
        return
    image = Image.new("RGB", (8, 8))
    if not root.suffix:
        for name in ("a", "b"):
            (root / name).mkdir(parents=True)
            for k in range(10):
                image.save(root / name / f"{k}.png")
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    image.save(buffer := io.BytesIO(), "png")
    row = {"image": {"bytes": buffer.getvalue(), "path": "one.png"}, "name_en": "one", "emoji": "1"}
    pq.write_table(pa.Table.from_pylist([row] * 4), root)


@pytest.mark.parametrize("words", DRY)
def test_a_command_that_is_not_run_here_can_be_run_dry(words, tmp_path, monkeypatch, capsys):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    own_data(words)
    made = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(launch, "distribution", lambda plugin: plugin)  # the plugins of the launchers
    at = words.index("gcalign")
    if words[at + 1] not in ("train", "reproduce") or "--help" in words:
        cli.parser().parse_args(words[at + 1 :]) if "--help" not in words else cli.main(words[at + 1 :])
        return
    before = dict(word.lstrip("-").partition("=")[::2] for word in words[:at])
    assert cli.main([*words[at + 1 :], "dry=true"]) == 0
    shown = capsys.readouterr().out
    assert shown
    if {"nnodes", "nproc-per-node"} <= before.keys():  # of torchrun
        assert f"nodes={before['nnodes']}\n" in shown
        assert f"devices={before['nproc-per-node']}\n" in shown
    if {"nodes", "ntasks-per-node"} <= before.keys():  # of srun
        assert f"nodes={before['nodes']}\n" in shown
        assert f"devices={before['ntasks-per-node']}\n" in shown
    assert sorted(tmp_path.rglob("*")) == made


@pytest.mark.parametrize("table", ["table-mistakes-brief", "table-mistakes-shares"])
def test_the_tables_of_the_audit_page_are_those_of_the_result_files(table, tmp_path):
    result = records.frame(records.read(DOCS / "results" / "small" / "table-mistakes.jsonl"))
    experiment.named("table-mistakes").draw(result, tmp_path)
    drawn, page = ((folder / name).read_text() for folder, name in ((tmp_path, f"{table}.md"), (DOCS, "audit.md")))
    rows, shown = (re.findall(r"^\|[^-].+$", re.sub(r" *\| *", "|", text), re.MULTILINE) for text in (drawn, page))
    assert len(rows) > 4
    assert {*rows} <= {*shown}


def run_in_order(page: str) -> list[Block]:
    """Commands and code of a page that has commands to run."""
    found = [b for b in blocks(page) if b.language != "text" and b.mark not in ("not run", "run dry")]
    return found if any(block.language == "bash" for block in found) else []


@pytest.mark.slow
@pytest.mark.parametrize("page", [*filter(run_in_order, TEXTS)])
def test_the_commands_of_a_page_run_in_order_on_a_clean_clone(page, tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    clone, commands = tmp_path / "clone", tmp_path / "bin"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(clone)], check=True)
    commands.mkdir()
    for name, words in (
        ("gcalign", '-m gcalign "$@"'),
        ("torchrun", '-m torch.distributed.run "$@"'),
        ("python", '"$@"'),
    ):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}\n')
        (commands / name).chmod(stat.S_IRWXU)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(clone / "src"), "OMP_NUM_THREADS": "1"}
    said = json.dumps([(block.language, block.code) for block in run_in_order(page)])
    words = [sys.executable, "-c", RUNNER]
    done = subprocess.run(words, cwd=clone, env=env, input=said, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(SHOWS.get(page, ""), done.stdout)


# --- pages that follow from the code ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["command-line.md", "architecture.md", "architecture.svg"])
def test_a_generated_page_is_what_the_code_gives_now(name):
    made = script("generate").PAGES[name]()
    assert (DOCS / name).read_text(encoding="utf-8") == made, "run: make pages"


def test_the_pages_of_studies_are_what_their_files_and_results_give_now():
    made = script("generate").studies()
    by_hand = {"studies/paper-small.md"}
    assert made.keys() | by_hand == {f"studies/{path.name}" for path in (DOCS / "studies").iterdir()}
    for name, page in made.items():
        assert (DOCS / name).read_text(encoding="utf-8") == page, f"{name}: run: make pages"


def test_no_page_is_long():
    words = {page: len((DOCS / f"{page}.md").read_text(encoding="utf-8").split()) for page in PAGES}
    assert {page: count for page, count in words.items() if count > 2000} == {}


def test_the_picture_of_the_modules_has_every_import_or_implies_it():
    made = script("generate")
    graph = made.imports()
    assert "transport.sinkhorn" in graph["transport.gradients"] | graph["transport.operator"]
    assert "alignment" in graph["methods"]
    drawn = made.needed(graph)
    reached: dict[str, set[str]] = {box: set() for box in graph}
    for _ in graph:
        for a, b in drawn:
            reached[a] |= {b} | reached[b]
    assert all(graph[box] <= reached[box] for box in graph)
    assert all(not made.is_lab(b) or made.is_lab(a) for a, b in drawn)


@pytest.mark.filterwarnings("ignore")  # those of matplotlib
def test_the_figures_are_those_that_the_script_draws(tmp_path):
    pytest.importorskip("matplotlib")
    script("figures").draw(tmp_path / "figures")
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {path.name for path in (DOCS / "figures").iterdir()}
    texts = [(DOCS / f"{page}.md").read_text() for page in PAGES] + [(ROOT / "README.md").read_text()]
    shown = {name for text in texts for name in re.findall(r"figures/([\w-]+\.png)", text)}
    assert shown == drawn


def test_the_api_page_has_every_public_name():
    listed = set(re.findall(r"^::: ([\w.]+)", (DOCS / "reference.md").read_text(), re.MULTILINE))
    for name in gcalign.__all__:
        value = getattr(gcalign, name)
        where = value.__name__ if inspect.ismodule(value) else f"{value.__module__}.{value.__qualname__}"
        assert where in listed, f"docs/reference.md lacks ::: {where}"


# --- links and the site -----------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The anchors that mkdocs gives the headings of a page."""
    words = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", word).strip().lower()) for word in words}


@pytest.mark.parametrize("path", TEXTS.values(), ids=str)
def test_every_link_leads_somewhere(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), f"{path.name}: {link}"
        if anchor and target.suffix == ".md":
            ascii_only = {a.encode("ascii", "ignore").decode() for a in anchors(target.read_text())}
            assert anchor in anchors(target.read_text()) | ascii_only, f"{path.name}: {link}"


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r": ([\w/-]+\.(?:md|html))$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {f"{page}.md" for page in PAGES} <= listed
    assert all((DOCS / name).is_file() for name in listed)


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    if importlib.util.find_spec("material") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("mkdocs-material and mkdocstrings are not installed; make docs installs them")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 20
    assert (tmp_path / "site" / "search" / "search_index.js").is_file()  # search works without a server
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//', text), page
        assert not re.search(r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="(?:https?:)?//', text), page


# --- add-your-own.md ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def examples():
    """What the examples define, in a module of their own; the method is unregistered afterwards."""
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "add-your-own.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 9
    known, module = dict(methods._REGISTRY), ModuleType("docs_examples")
    sys.modules[module.__name__] = module  # where a dataclass looks for its annotations
    exec("\n".join(blocks), module.__dict__)
    yield module
    del sys.modules[module.__name__]
    methods._REGISTRY.clear()
    methods._REGISTRY.update(known)


def views(n=6, dim=4):
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(2, n, dim, dtype=torch.float64, generator=generator)
    return draw[0].requires_grad_(), draw[1].requires_grad_()


def checked(criterion):
    """The plan and the loss of a criterion whose gradient is that of finite differences."""
    z1, z2 = views()
    assert torch.autograd.gradcheck(lambda x, y: criterion(x, y), (z1, z2), atol=1e-6)
    return criterion.plan(z1, z2), criterion(z1, z2)


def test_the_example_of_a_constraint_holds(examples):
    plan, _ = checked(Alignment(Cosine(0.2), (Rows(), Columns(), examples.Floor(0.05)), KL(), iterations=500))
    assert plan.matrix.min() > 0.05 * (1 - 1e-4)
    assert plan.row_error < 1e-4


def test_the_example_of_a_penalty_scales_by_half_the_gap(examples):
    plan, _ = checked(Alignment(Cosine(0.5), (Rows(examples.Halfway()),), KL(penalties=False)))
    sums = (plan.log - plan.log_u[:, None]).exp().sum(1)
    torch.testing.assert_close(plan.u, sums**-0.5)


def test_the_examples_of_divergences_are_what_their_docstrings_say(examples):
    plan, loss = checked(Alignment(Cosine(0.5), (Rows(), Columns()), examples.Margin(0.9)))
    expected = (torch.tensor(0.9, dtype=torch.float64).log() - plan.log.diagonal()).clamp(min=0).mean()
    torch.testing.assert_close(loss, expected)
    plan, loss = checked(Alignment(Cosine(0.5), (Rows(0.2), Columns(0.2)), examples.RowMass()))
    torch.testing.assert_close(loss, (plan.matrix.sum(1) - 1).square().mean())
    each = Alignment(Cosine(0.5), (Rows(0.2), Columns(0.2)), examples.RowMass(), reduction="none")(*views())
    torch.testing.assert_close(each.mean(), loss)


def test_the_example_of_a_target_is_smoothed_pairs(examples):
    plan, loss = checked(Alignment(Cosine(0.5), (Rows(), Columns()), KL(), examples.Smoothed(0.3)))
    target = 0.7 * torch.eye(6, dtype=torch.float64) + 0.3 / 6
    torch.testing.assert_close(plan.target.dense(), target)
    torch.testing.assert_close(loss, (target * (target.log() - plan.log)).sum() / 6 + (plan.mass - 6) / 6)


def test_the_example_of_a_kernel_has_its_cost(examples):
    z1, z2 = views()
    plan, _ = checked(Alignment(examples.Laplace(0.5), (Rows(),), KL()))
    log_k = -(z1[:, None] - z2).abs().sum(2) / 0.5
    torch.testing.assert_close(plan.log, log_k.log_softmax(1))


def test_the_example_of_a_method_has_its_name_and_its_bound(examples):
    plan, _ = checked(gcalign.method("capped", eps=0.2, bound=0.4, iterations=500))
    assert plan.matrix.max() < 0.4 * (1 + 1e-4)
