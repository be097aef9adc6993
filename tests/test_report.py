"""The report: what it says of runs and results, and that a reader can work it in a real browser."""

from __future__ import annotations

import json
import shlex

import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

import gcalign
from browser import chromium
from gcalign.cli import main
from gcalign.lab.experiments import records, report
from gcalign.lab.experiments.report import train_command
from gcalign.lab.experiments.shown import Entry, choose, names
from gcalign.lab.report import markdown
from gcalign.lab.report.pack import sprite
from gcalign.lab.report.page import Cell, Grid
from gcalign.lab.report.study import Embedded, Pairing, Point, Sample, Shown, Study, render
from gcalign.lab.training.config import Config, Data, configured
from gcalign.lab.training.runs import Run
from gcalign.lab.training.train import train

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|lightning).*")]
in_browser = pytest.mark.skipif(chromium.found() is None, reason="no chromium, chromium-browser or google-chrome here")
HARD = float("inf")
TINY = ["data=scenes", "data.limit=256", "epochs=1", "batch_size=64", "model.width=0.25", "model.hidden=32",
        "model.out=8", "accelerator=cpu", "log_every=1"]  # fmt: skip


def study(n: int, *, dim: int = 16, wrong: int = 0, name: str = "ince", domains: bool = True) -> Study:
    """Random pairs near each other, of which `wrong` show another image."""
    g = torch.Generator().manual_seed(0)
    labels, partners = torch.arange(n) % 4, torch.arange(n)
    partners[:wrong] = partners[:wrong].roll(1)
    pictures = torch.randint(0, 256, (n, 3, 8, 8), generator=g, dtype=torch.uint8)
    z = torch.randn(n, dim, generator=g) + torch.randn(4, dim, generator=g)[labels]
    z1, z2 = (normalize(x + 0.3 * torch.randn(n, dim, generator=g), dim=1).half().float() for x in (z, z[partners]))
    cosines, near = (normalize(z, dim=1) @ normalize(z, dim=1).T).fill_diagonal_(-2).topk(8)
    embedded = Embedded(0, z1, z2, near, cosines)
    curves = {"loss": ([1, 2, 3], [3.0, 2.0, 1.5]), "alignment": ([1, 2, 3], [0.3, 0.2, 0.1])}
    first, second = sprite(pictures), sprite(pictures[partners])
    grouping = (torch.arange(n) // 2 % 2, ("photo", "sketch")) if domains else (None, ())
    rows = [[Cell(name), Cell("10"), Cell("61.5")], [Cell("gca-uot"), Cell("9"), Cell("–")]]
    return Study(
        "A study",
        "Of random numbers.",
        Grid(["method", "seed", "knn"], rows),
        samples=[Sample("noise (test)", first, labels, ("cat", "dog", "ship", "frog"))],
        pairings=[Pairing(0, "Random.", first, second, partners, *grouping)],
        shown=[
            Shown(name, "ince", "Alignment(…)", 0.1, 10, HARD, None, curves, embedded),
            Shown("gca-uot", "gca-uot", "Alignment(…)", 0.5, 5, 0.2, 0.2, curves, embedded),
        ],
        planes={"the last batch": [Point("ince, 0", "ince", "C0", 0.3, -2.0), Point("iot, 0", "iot", "C1", 0.5, -3.0)]},
        commands={"This page": ["gcalign report runs"]},
    )


def test_no_name_can_break_out_of_the_page():
    page = render(study(8, name="</script><script>alert(1)</script>"))
    assert "<script>alert" not in page
    assert page.count("</script>") == 2
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_markdown_tables_are_escaped_and_keep_what_is_bold():
    html = markdown.html(
        "# T\n\n| a | b |\n|---|--:|\n| **1 ± 2** | <u>x</u> |\n| <script> | `c` |\n| 2 \\* 3 \\* 4 | d |\n\nA note.\n"
    )
    assert '<th>a</th><th class="text">b</th>' in html
    assert "<td><b>1 ± 2</b></td>" in html
    assert '<td class="text"><span class="second">x</span></td>' in html
    assert '<td>&lt;script&gt;</td><td class="text"><code>c</code></td>' in html
    assert "<td>2 &#42; 3 &#42; 4</td>" in html
    assert "<p>A note.</p>" in html


@pytest.mark.parametrize(
    "words",
    [
        ["method=gca-uot", "data=cifar10", "data.root=../some data", "method.relax=[2.0,2.0]", "pairs.noise=0.3"],
        ["method=byol", "recipe=cifar", "data=cifar100", "seed=3", "views=C2", "runs=elsewhere"],
        ["method=gca-ince", "data=pacs", "target.name=blocks", "target.alpha=0.8", "method.iterations=5"],
    ],
    ids=lambda words: words[0],
)
def test_the_command_of_a_run_makes_the_same_run(words):
    config = configured(words)
    command = shlex.split(train_command(config))
    assert command[:2] == ["gcalign", "train"]
    again = configured(command[2:])
    assert (again.hash, again.runs) == (config.hash, config.runs)


def finished(folder, method, seed):
    """A run that is done as far as its folder tells."""
    config = Config({"name": method, "eps": 0.5}, Data("scenes"), seed=seed, runs=str(folder))
    run = Run.of(config)
    run.start(config)
    run.weights_file.touch()
    run.finish()
    return Entry(run, config, [])


def test_each_method_is_shown_before_any_is_shown_twice(tmp_path):
    runs = [finished(tmp_path, method, seed) for method in ("gca-uot", "ince", "iot") for seed in (0, 1)]
    assert names(choose(runs, 3)) == ["ince", "iot", "gca-uot"]
    assert names(choose(runs, 4)) == ["ince, seed 0", "ince, seed 1", "iot, seed 0", "gca-uot, seed 0"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{runs}", "-o", "page.txt"], "must be a .html file"),
        (["{runs}", "-o", "{runs}/r.html"], "has no runs; make one with"),
        (["{runs}", "-o", "{runs}/r.html", "--images", "5000"], "--images=5000 must be between 2 and 1024"),
    ],
)
def test_a_report_that_cannot_be_made_says_why(tmp_path, capsys, words, said):
    assert main(["report", *(word.format(runs=tmp_path) for word in words)]) == 2
    assert said in capsys.readouterr().err


def measured(experiment, value, **labels):
    seed = labels.pop("seed", 0)
    measure = labels.pop("measure", "knn")
    return records.Record(experiment, "tiny", measure, value, {"method": "ince", **labels}, seed)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs, one with mismatched pairs, another whose data is gone and one whose config is broken; results, too."""
    folder = tmp_path_factory.mktemp("report")
    runs = folder / "runs"
    for words in (["method=ince"], ["method=gca-uot", "pairs.noise=0.4"]):
        train(configured([*words, *TINY, f"runs={runs}"]), quiet=True)
    lost = Run(next(runs.iterdir()))
    gone = runs / "ince-gone"
    gone.mkdir()
    config = json.loads(lost.config_file.read_text())
    config["data"] |= {"name": "cifar10", "root": str(folder / "nowhere"), "limit": None}
    (gone / "config.json").write_text(json.dumps(config))
    for name in ("weights.safetensors", "results.jsonl", "done"):
        (gone / name).write_bytes((lost.path / name).read_bytes())
    broken = runs / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    results = folder / "tiny"
    noise = [measured("fig-noise", 0.5 + s / 10, noise=0.3, seed=s) for s in (0, 1)]
    plane = [
        measured("fig-align-uniform", v, measure=m, on="clean", setting="C1")
        for m, v in (("alignment", 0.25), ("uniformity", -1.5))
    ]
    records.write(results / "fig-noise.jsonl", noise)
    records.write(results / "fig-align-uniform.jsonl", plane)
    for name in ("fig-noise", "fig-noise-inset"):
        Image.new("RGB", (2400, 900), "white").save(results / f"{name}.png")
    (results / "table1.md").write_text("# table1\n\n| method | knn |\n|---|---|\n| ince | **50.0** |\n")
    path = folder / "report.html"
    assert main(["report", str(runs), "-o", str(path), "--results", str(results), "--images", "64"]) == 0
    return path


def test_a_figure_promises_a_table_only_where_one_follows_with_rows_in_order(tmp_path):
    counts = [measured("fig-time", n / 100, iterations=n, seed=0) for n in (10, 2, 1)]
    records.write(tmp_path / "fig-time.jsonl", counts)
    for name in ("fig-time", "fig-prox"):
        Image.new("RGB", (24, 9), "white").save(tmp_path / f"{name}.png")
    by_name = {found.name: found for found in report._results(tmp_path, [])}
    assert "The numbers follow in a table." in next(iter(by_name["fig-time"].figures))
    rows = [[cell.text for cell in row] for row in by_name["fig-time"].numbers.rows]
    assert [row[-2] for row in rows] == ["0.01", "0.02", "0.1"]
    assert next(iter(by_name["fig-prox"].figures)) == "fig-prox: what a proximal operator does."
    assert by_name["fig-prox"].numbers is None


@pytest.mark.slow
def test_a_report_holds_runs_results_and_what_was_left_out(made):
    page = made.read_text()
    assert "Left out:" in page
    assert "broken/config.json cannot be read" in page
    assert "was made by somebody else" in page  # a config that no command of this user wrote
    assert "<td><b>50.0</b></td>" in page
    assert "<b>table1</b>" not in page
    assert "<td>0.55 ± 0.071</td>" in page
    assert "gcalign reproduce fig-noise scale=tiny" in page
    assert "clean test images" in page
    assert page.index('alt="fig-noise: ') < page.index('alt="fig-noise-inset: ')
    assert "reproduce fig-noise-inset" not in page
    assert "method=gca-uot data=scenes" in page
    assert len(page) < 5_000_000


@pytest.mark.slow
def test_a_report_is_the_same_bytes_again(made):
    again = made.with_name("again.html")
    results = str(made.parent / "tiny")
    assert main(["report", str(made.parent / "runs"), "-o", str(again), "--results", results, "--images", "64"]) == 0
    assert again.read_text().replace("again.html", "report.html") == made.read_text()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium.Chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def opened(browser, tmp_path):
    """A page of a study, in a window of ordinary size; its console must stay silent."""

    def show(what):
        path = what if not isinstance(what, Study) else tmp_path / "page.html"
        if isinstance(what, Study):
            path.write_text(render(what))
        browser.look()
        browser.open(path)
        return browser

    browser.errors.clear()
    yield show
    assert browser.errors == []


def sums(browser):
    plan = "gcalign.heat.plan"
    return [torch.tensor(browser.run(f"Array.from({plan}.{side})")) for side in ("rowSums", "columnSums")]


@in_browser
@pytest.mark.slow
def test_a_page_with_a_plan_of_1024_rows_is_ready_within_two_seconds(opened):
    page = study(1024, dim=128)
    times = []
    for _ in range(3):
        browser = opened(page)
        times.append(browser.run("performance.getEntriesByName('ready')[0].startTime"))
    assert browser.run("document.getElementById('heat').width") == 1024
    assert min(times) < 2000


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("eps", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("iterations", [1, 10, 30])
@pytest.mark.parametrize(
    ("mode", "constraints"),
    [
        ("rows", (gcalign.Rows(),)),
        ("both", (gcalign.Rows(), gcalign.Columns())),
        ("relaxed", (gcalign.Rows(0.5), gcalign.Columns(0.5))),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_the_page_solves_the_plan_that_the_library_solves(opened, eps, iterations, mode, constraints):
    page = study(40)
    browser = opened(page)
    browser.run(f"Object.assign(gcalign.heat, {{eps: {eps}, iterations: {iterations}, lam: 0.5}})")
    browser.pick("#mode", mode)
    log = torch.tensor(browser.run("Array.from(gcalign.heat.plan.log)")).view(40, 40)
    z1, z2 = page.shown[0].embedded.z1.double(), page.shown[0].embedded.z2.double()
    plan = gcalign.solve((z1 @ z2.T - 1) / eps, constraints, gcalign.Entropic(eps), iterations=iterations, tol=0.0)
    torch.testing.assert_close(log.double(), plan.log, rtol=1e-5, atol=1e-4)


@in_browser
@pytest.mark.slow
def test_sliders_change_the_plan_and_the_sums_stay_what_the_constraint_says(opened):
    browser = opened(study(64))
    rows, columns = sums(browser)
    assert (rows - 1).abs().max() < 1e-6
    assert (columns - 1).abs().max() > 0.01
    before = browser.run("document.getElementById('heat').toDataURL()")
    browser.slide("#eps", -0.4)
    assert browser.run("document.getElementById('eps-said').textContent") == "0.398"
    assert browser.run("document.getElementById('heat').toDataURL()") != before
    rows, _ = sums(browser)
    assert (rows - 1).abs().max() < 1e-6
    browser.pick("#mode", "both")
    browser.slide("#iterations", 0)
    rows_after_one, columns = sums(browser)
    assert (columns - 1).abs().max() < 1e-6
    browser.slide("#iterations", 12)
    rows, columns = sums(browser)
    assert (rows - 1).abs().max() < 1e-4 < (rows_after_one - 1).abs().max()
    browser.click("#own")
    assert browser.run("gcalign.heat.mode + gcalign.heat.eps") == "rows0.1"


@in_browser
@pytest.mark.slow
def test_sorting_reorders_rows_and_columns_together(opened):
    browser = opened(study(64))
    seen = {}
    for name in ("data", "domain", "class"):
        browser.click(f"#sort button[value={name}]")
        assert browser.run(f"document.querySelector('#sort button[value={name}]').ariaPressed") == "true"
        order = browser.run("gcalign.heat.order")
        seen[name] = (order, browser.run("document.getElementById('heat').toDataURL()"))
        assert sorted(order) == list(range(64))
    assert seen["data"][0] == list(range(64))
    classes = [k % 4 for k in seen["class"][0]]
    assert classes == sorted(classes)
    assert [k // 2 % 2 for k in seen["domain"][0]] == [0] * 32 + [1] * 32
    assert len({picture for _, picture in seen.values()}) == 3
    edges = "(() => { const b = (id) => document.getElementById(id).getBoundingClientRect();"
    assert browser.run(f"{edges} return b('groups').height - b('heat').height; }})()") == pytest.approx(0, abs=1)
    assert browser.run("document.getElementById('groups').innerText.split('\\n').filter(Boolean)") == [
        "cat",
        "dog",
        "ship",
        "frog",
    ]


@in_browser
@pytest.mark.slow
def test_data_without_domains_offers_no_order_by_domain(opened):
    browser = opened(study(16, domains=False))
    assert browser.run("document.querySelector('#sort button[value=domain]').hidden")


@in_browser
@pytest.mark.slow
def test_pointer_and_keys_tell_the_pair_its_classes_and_its_mass(opened):
    browser = opened(study(64))
    browser.hover("#heat", 0.5 / 64, 2.5 / 64)  # row 2, column 0, by class: images 8 and 0, cats
    mass = browser.run("Math.exp(gcalign.heat.plan.log[8 * 64])")
    said = browser.run("document.getElementById('pair').innerText")
    assert "8 cat × 0 cat" in said
    assert float(said.split("mass ")[1].split(",")[0].replace("−", "-")) == pytest.approx(mass, rel=0.05)
    assert "not a pair" in said
    browser.run("document.getElementById('heat').focus()")
    browser.press("ArrowRight", 2)
    assert "8 cat × 8 cat" in browser.run("document.getElementById('pair').innerText")
    browser.press("ArrowDown")
    browser.press("Home")
    assert "12 cat × 12 cat" in browser.run("document.getElementById('pair').innerText")
    assert not browser.run("document.getElementById('cursor').hidden")


@in_browser
@pytest.mark.slow
def test_mismatched_pairs_rise_to_the_top_of_the_suspects(opened):
    browser = opened(study(64, wrong=10))
    wrong = browser.run("[...document.querySelectorAll('#suspects li')].map((li) => li.classList.contains('wrong'))")
    assert len(wrong) == 24
    assert sum(wrong[:12]) >= 8
    assert "10 of the 64 pairs were mismatched on purpose" in browser.run(
        "document.getElementById('suspects-said').innerText"
    )


@in_browser
@pytest.mark.slow
def test_a_click_on_an_image_shows_its_neighbours_for_each_run(opened):
    page = study(64)
    browser = opened(page)
    browser.click("#image-5")
    assert browser.run("document.querySelector('#chosen b').innerText") == "5 dog"
    assert browser.run("document.querySelectorAll('.near').length") == 2
    shown = browser.run(
        "[...document.querySelectorAll('.near')[0].querySelectorAll('.tile')].map((t) => t.ariaLabel.split(' ')[0])"
    )
    assert [int(k) for k in shown] == page.shown[0].embedded.near[5].tolist()
    browser.run("document.getElementById('gallery').focus()")
    browser.press("ArrowRight")
    assert browser.run("document.querySelector('#chosen b').innerText") == "6 ship"


@in_browser
@pytest.mark.slow
def test_tables_sort_and_curves_toggle(opened):
    browser = opened(study(16))
    first = "document.querySelector('table.runs tbody td').innerText"
    assert browser.run(first) == "ince"
    browser.click("table.runs th:nth-child(2) button")  # seeds 10 and 9: as numbers
    assert browser.run(first) == "gca-uot"
    browser.click("table.runs th:nth-child(3) button")  # the one without comes last
    assert browser.run(first) == "ince"
    assert browser.run("document.querySelectorAll('#curves .curve').length") == 2
    browser.click("#curve-runs input")
    assert browser.run("document.querySelectorAll('#curves .curve').length") == 1
    assert "loss against step" in browser.run("document.querySelector('#curves svg').ariaLabel")


NAMELESS = """[...document.querySelectorAll('canvas, svg, img, [role=img]')]
  .filter((e) => !e.closest('[aria-hidden=true]') && !e.getAttribute('aria-label') && !e.alt).map((e) => e.outerHTML)"""


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 768, 1100])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_real_report_fits_every_screen_and_everything_drawn_has_a_name(opened, made, width, dark):
    browser = opened(made)
    browser.look(width=width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(NAMELESS) == []
    assert browser.run("document.querySelector('figure img').naturalWidth") == 1200
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(22, 22, 24)" if dark else "rgb(253, 253, 252)")
    assert browser.run("document.querySelector('#plan-run').options.length") == 2
    assert browser.run("document.querySelectorAll('#suspects li').length") == 24


@in_browser
@pytest.mark.slow
def test_a_report_prints(opened, made, tmp_path):
    browser = opened(made)
    assert browser.pdf(tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    browser.look(width=720, media="print")
    assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.run("document.documentElement.scrollWidth") <= 720
