"""The plan explorer has the library's numbers, in node and in a real browser, and needs nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gcalign
from browser import chromium

PAGE = Path(__file__).parents[2] / "docs" / "explorer"
HARD, OFF = math.inf, None
SIDES = [(HARD, OFF), (OFF, HARD), (OFF, OFF), (HARD, HARD), (0.2, 0.2), (HARD, 0.5), (0.05, 2.0), (0.3, OFF)]
SETTINGS = list(itertools.product(("squared", "cosine"), SIDES, (0.05, 0.4), (1, 6, 30), ((0.0, 0.0), (0.2, 0.05))))
in_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
in_browser = pytest.mark.skipif(chromium.found() is None, reason="needs playwright and chromium")
ASKED = """
const { solve, blocks } = require(process.argv[1]);
const side = (lam) => (lam === "hard" ? Infinity : lam);
const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
const list = (a) => Array.from(a, (v) => (typeof v === "number" ? v : Array.from(v)));
console.log(JSON.stringify(asked.map((p) => {
  const target = blocks(p.groups, ...p.weights);
  const r = solve({ ...p, rows: side(p.rows), columns: side(p.columns), target });
  return { loss: r.loss, log: list(r.log), dx: list(r.dx), dy: list(r.dy), mass: r.mass, entropy: r.entropy,
    rowError: r.rowError, columnError: r.columnError };
})));
"""


def expected(problem: dict) -> tuple[Tensor, gcalign.Plan, Tensor, Tensor]:
    """Loss, plan and gradients by the library."""
    x, y = (torch.tensor(problem[key], dtype=torch.float64, requires_grad=True) for key in ("x", "y"))
    eps, (alpha, beta) = problem["eps"], problem["weights"]
    kernel = gcalign.Cosine(eps) if problem["kind"] == "cosine" else gcalign.SquaredEuclidean(eps, normalized=False)
    named = ((gcalign.Rows, problem["rows"]), (gcalign.Columns, problem["columns"]))
    sides = tuple(side(HARD if lam == "hard" else lam) for side, lam in named if lam is not OFF)
    target = gcalign.Blocks(alpha, beta) if alpha or beta else gcalign.Identity()
    known = {"domains": problem["groups"]} if alpha or beta else {}
    criterion = gcalign.Alignment(kernel, sides, gcalign.KL(), target, iterations=problem["iterations"], tol=0.0)
    loss = criterion(x, y, **known)
    loss.backward()
    return loss.detach(), criterion.plan(x.detach(), y.detach(), **known), x.grad, y.grad


def compare(found: dict, problem: dict, tolerance: float) -> None:
    loss, plan, dx, dy = expected(problem)
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(torch.tensor(found["loss"], dtype=torch.float64), loss, **close)
    torch.testing.assert_close(torch.tensor(found["log"], dtype=torch.float64).view(plan.shape), plan.log, **close)
    torch.testing.assert_close(torch.tensor(found["dx"], dtype=torch.float64), dx, **close)
    torch.testing.assert_close(torch.tensor(found["dy"], dtype=torch.float64), dy, **close)
    for key, value in {"mass": plan.mass, "entropy": plan.entropy}.items():
        torch.testing.assert_close(torch.tensor(found[key], dtype=torch.float64), value, **close)
    if problem["rows"] == "hard" == problem["columns"]:
        assert found["rowError"] == pytest.approx(float(plan.row_error), abs=tolerance)


@in_node
def test_the_numbers_of_the_explorer_are_those_of_the_library():
    generator = torch.Generator().manual_seed(0)
    problems = []
    for kind, (rows, columns), eps, iterations, weights in SETTINGS:
        x = torch.randn(7, 3, generator=generator, dtype=torch.float64)
        y = x + 0.5 * torch.randn(7, 3, generator=generator, dtype=torch.float64)
        rows, columns = ("hard" if lam == HARD else lam for lam in (rows, columns))
        problems.append({
            "x": x.tolist(), "y": y.tolist(), "kind": kind, "eps": eps, "rows": rows, "columns": columns,
            "iterations": iterations, "groups": [0, 0, 1, 1, 1, 2, 2], "weights": weights,
        })  # fmt: skip
    done = subprocess.run(
        ["node", "-e", ASKED, str(PAGE / "numerics.js")],
        input=json.dumps(problems),
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert len(found) == len(SETTINGS) == 192
    for answer, problem in zip(found, problems, strict=True):
        compare(answer, problem, 1e-8)


def test_the_explorer_loads_nothing_from_elsewhere_and_its_numbers_need_no_page():
    for path in PAGE.glob("*.*"):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//cdn|@import|fetch\(|type=.module", text), path.name
    assert "document" not in (PAGE / "numerics.js").read_text()
    used = set(re.findall(r'(?:src|href)="([\w.]+)"', (PAGE / "index.html").read_text()))
    assert used == {"numerics.js", "emoji.js", "page.js", "page.css"}
    assert all((PAGE / name).is_file() for name in used)


def test_the_emoji_are_those_that_the_script_trains():
    spec = importlib.util.spec_from_file_location("explorer_emoji", PAGE / "emoji.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (PAGE / "emoji.js").read_text(encoding="utf-8")
    stored = json.loads(text[text.index("{") : text.rindex("}") + 1])
    made = module.trained()
    assert {key: stored[key] for key in ("emoji", "names", "kind")} == {k: made[k] for k in ("emoji", "names", "kind")}
    for key in ("z1", "z2", "axes"):
        torch.testing.assert_close(torch.tensor(stored[key]), torch.tensor(made[key]), atol=2e-3, rtol=0)


# --- in a browser ---------------------------------------------------------------------------------------------

READ = """(() => { const r = explorer.result(), p = explorer.problem(), s = explorer.state;
  const list = (a) => Array.from(a, (v) => (typeof v === "number" ? v : Array.from(v)));
  const lam = (v) => (v === Infinity ? "hard" : v);
  return { found: { loss: r.loss, log: list(r.log), dx: list(r.dx), dy: list(r.dy), mass: r.mass, entropy: r.entropy, rowError: r.rowError },
    problem: { x: p.x, y: p.y, kind: p.kind, eps: p.eps, rows: lam(p.rows), columns: lam(p.columns), iterations: p.iterations,
      groups: explorer.groups(), weights: [s.alpha, s.beta] } }; })()"""


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium() as found:
        yield found


@pytest.fixture
def opened(browser):
    browser.look()
    browser.errors.clear()
    browser.open(PAGE / "index.html")
    browser.run("location.hash = ''")
    browser.settle()
    yield browser
    assert browser.errors == []


@in_browser
@pytest.mark.slow
def test_the_way_home_exists_in_a_checkout(opened):
    assert opened.run("document.getElementById('home').getAttribute('href')") == "../index.md"
    assert (PAGE / "../index.md").exists()


def facts(browser) -> dict[str, str]:
    script = "Object.fromEntries([...document.querySelectorAll('#facts div')].map((d) => [...d.children].map((c) => c.textContent)))"
    return browser.run(script)


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize(
    "address",
    [
        "",
        "#eps=0.02&iterations=100",
        "#data=emoji&share=0.25&eps=0.15",
        "#rows=0.2&columns=0.2&alpha=0.1&beta=0.02&eps=0.5&iterations=3",
        "#data=emoji&columns=off&alpha=0.3",
        "#rows=off&columns=off&n=36&seed=5",
        "#rows=0.05&columns=hard&iterations=1&n=6",
    ],
)
def test_the_page_shows_the_numbers_of_the_library(opened, address):
    opened.run(f"location.hash = {address!r}")
    opened.settle()
    read = opened.run(READ)
    compare(read["found"], read["problem"], 1e-4)
    loss, plan, *_ = expected(read["problem"])
    assert float(facts(opened)["loss"].replace("−", "-")) == pytest.approx(float(loss), rel=6e-3)
    assert float(facts(opened)["mass"]) == pytest.approx(float(plan.mass), rel=6e-3)


@in_browser
@pytest.mark.slow
def test_sliders_buttons_and_keys_work(opened):
    opened.slide("#eps", -1)
    assert opened.run("explorer.state.eps") == pytest.approx(0.1)
    opened.slide("#share", 0.3)
    wrong = opened.run("explorer.result().partner.filter((j, i) => j !== i).length")
    assert wrong == round(0.3 * 18)
    lit = opened.run("document.querySelectorAll('#plane .own.bad').length")
    assert lit >= 2
    opened.click("#presets button[value=ince]")
    assert opened.run("document.querySelector('#columns-said').textContent") == "off"
    assert opened.run("document.querySelector('#iterations').disabled")
    before = opened.run("explorer.result().loss")
    opened.click("#step")
    assert opened.run("explorer.result().loss") < before
    opened.run("document.querySelector('#plan').focus()")
    opened.press("ArrowRight", 2)
    opened.press("ArrowDown")
    assert "view 1 of 1 × view 2 of" in opened.run("document.querySelector('#pair').textContent")
    opened.press("Home")
    assert "not a pair" not in opened.run("document.querySelector('#pair').textContent")
    opened.run("document.querySelector('#plane').focus()")
    opened.press(".")
    place = opened.run("explorer.problem().x[0][0]")
    opened.press("ArrowRight")
    assert opened.run("explorer.problem().x[0][0]") == pytest.approx(min(1.3, place + 0.03))


@in_browser
@pytest.mark.slow
def test_an_address_restores_the_settings_and_nonsense_in_it_is_ignored(opened):
    opened.run("location.hash = '#eps=0.3&rows=0.2&alpha=NaN&share=7&n=7&data=<img>&iterations=4'")
    opened.settle()
    state = opened.run("({...explorer.state, rows: explorer.state.rows})")
    assert (state["eps"], state["rows"], state["iterations"]) == (0.3, 0.2, 4)
    assert (state["alpha"], state["share"], state["n"], state["data"]) == (0, 0.15, 18, "plane")
    assert opened.run("location.hash") == "#eps=0.3&iterations=4&rows=0.2"


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 768, 1200])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_explorer_fits_every_screen_and_everything_drawn_has_a_name(opened, width, dark):
    opened.look(width=width, dark=dark)
    assert opened.run("document.documentElement.scrollWidth") <= width
    nameless = "[...document.querySelectorAll('canvas, svg, input')].filter((e) => !e.ariaLabel && !e.labels?.length)"
    assert opened.run(f"{nameless}.length") == 0
    background = opened.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(22, 22, 24)" if dark else "rgb(253, 253, 252)")
