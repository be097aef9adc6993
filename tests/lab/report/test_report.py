"""The report: what it says of runs and results, and that a reader can work it in a real browser."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import struct
import subprocess
import zlib
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

import gcalign
from browser import chromium
from gcalign.cli import main
from gcalign.lab.audit.page import rendered
from gcalign.lab.experiments.engine import records
from gcalign.lab.experiments.engine.claims import EmpiricalClaim, Family, Judgement
from gcalign.lab.pages import markdown
from gcalign.lab.pages.maps import maps
from gcalign.lab.pages.pack import figure, pixels, sprite, whole
from gcalign.lab.pages.page import Grid
from gcalign.lab.report import command, views
from gcalign.lab.report.accuracies import Bar, Bars, bars
from gcalign.lab.report.command import probe_commands, train_command
from gcalign.lab.report.page import Study, render
from gcalign.lab.report.runs import Entry, choose, embedded, goal, names, pairing_of, sample_of
from gcalign.lab.training.config import Config, Data, configured
from gcalign.lab.training.module import Training
from gcalign.lab.training.runs import Run
from gcalign.lab.training.train import train

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|lightning).*")]
in_browser = pytest.mark.skipif(chromium.found() is None, reason="needs playwright and chromium")
TINY = ["data=scenes", "data.limit=256", "epochs=1", "batch_size=64", "model.width=0.25", "model.hidden=32",
        "model.out=8", "accelerator=cpu", "log_every=1"]  # fmt: skip


def embeddings(n: int, *, dim: int = 16, wrong: int = 0) -> SimpleNamespace:
    """Random pairs near each other, of which `wrong` show another image: z1, z2, and h of the images as they are."""
    g = torch.Generator().manual_seed(0)
    labels, partners = torch.arange(n) % 4, torch.arange(n)
    partners[:wrong] = partners[:wrong].roll(1)
    h = torch.randn(n, dim, generator=g) + torch.randn(4, dim, generator=g)[labels]
    z1, z2 = (normalize(x + 0.3 * torch.randn(n, dim, generator=g), dim=1).half().float() for x in (h, h[partners]))
    domains = torch.arange(n) // 2 % 2
    return SimpleNamespace(z1=z1, z2=z2, h=normalize(h, dim=1), labels=labels, partners=partners, domains=domains)


def study(n: int, *, dim: int = 16, wrong: int = 0, name: str = "ince", domains: bool = True) -> Study:
    """Two runs that show these embeddings."""
    e = embeddings(n, dim=dim, wrong=wrong)
    pictures = torch.randint(0, 256, (n, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    of_step = {"sprite": sprite(pictures[torch.arange(6) % n]), "names": ["0 cat", "1 dog"]}
    of_step |= {"mismatched": [False, True]}
    curves = {"loss": {"x": [1, 2, 3], "y": [3.0, 2.0, 1.5]}, "alignment": {"x": [1, 2, 3], "y": [0.3, 0.2, 0.1]}}
    grouping = (e.domains, ("photo", "sketch")) if domains else (None, ())
    sample = sample_of("noise (test)", sprite(pictures), e.labels, ("cat", "dog", "ship", "frog"), *grouping)
    views = {"about": "Random.", "first": sprite(pictures), "second": sprite(pictures[e.partners])}
    pairing = {"sample": 0, **views, **pairing_of(sample, e.partners)}
    pairing |= dict(zip(("domains", "domainNames"), grouping, strict=True))
    shown = {"objective": "Alignment(…)", "curves": curves, **embedded(0, e.z1, e.z2, e.h)}
    ince = {"name": name, "method": "ince", "eps": 0.1, "iterations": 10, "mode": "rows", "lam": None, "seen": 0}
    uot = {"name": "gca-uot", "method": "gca-uot", "eps": 0.5, "iterations": 5, "mode": "relaxed", "lam": 0.2}
    claim = EmpiricalClaim(Family("Accuracy", 1), "label", name, lambda results: None, "where", "+1", exploratory=True)
    rows = [[name, "10", "61.5"], ["gca-uot", "9", "–"]]
    return Study(
        "A study",
        "Of random numbers.",
        Grid(["method", "seed", "knn"], rows),
        samples=[sample],
        pairings=[pairing],
        shown=[
            ince | shown | {"goal": goal(gcalign.Identity())},
            uot | shown | {"goal": None, "seen": None},
        ],
        planes={
            "the last batch": [
                {"name": "ince, 0", "method": "ince", "setting": "C0", "alignment": 0.3, "uniformity": -2.0},
                {"name": "iot, 0", "method": "iot", "setting": "C1", "alignment": 0.5, "uniformity": -3.0},
            ]
        },
        commands={"This page": ["gcalign report runs"]},
        bars=[
            Bars(
                "knn",
                "noise",
                [Bar("gca-uot", "gca-uot", 0.62, 0.5, 0.7, "3 seeds"), Bar(name, "ince", 0.5, None, None, "1")],
            )
        ],
        seen=[{"about": "noise (train)", "views": 2, "steps": [{"number": k, **of_step} for k in (1, 9)]}],
        claims=[Judgement("held", "+2 [1, 3]", 3, p=0.01, adjusted=0.02, claim=claim, scale="small")],
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
    assert '<th>a</th>\n<th class="text">b</th>' in html
    assert "<td><strong>1 ± 2</strong></td>" in html
    assert '<td class="text"><span class="second">x</span></td>' in html
    assert '<td>&lt;script&gt;</td>\n<td class="text"><code>c</code></td>' in html
    assert "<td>2 * 3 * 4</td>" in html
    assert "<p>A note.</p>" in html


def test_markdown_of_a_stranger_asks_for_nothing_from_elsewhere():
    html = markdown.html(
        "![x](https://a.b/c.png) [y](javascript:alert(1)) <img src=z onerror=alert(1)>\n\n<https://a.b>"
    )
    assert not {"<img", "<a "} & {part for part in ("<img", "<a ") if part in html}


def test_a_map_by_pca_keeps_the_shape_of_the_two_main_directions():
    from sklearn.decomposition import PCA

    h = torch.randn(60, 9, generator=torch.Generator().manual_seed(1)) * torch.arange(9, 0, -1)
    ((name, points),) = maps(h).items()
    oracle = PCA(2).fit(h.double().numpy())
    assert name == f"PCA ({oracle.explained_variance_ratio_.sum():.0%} of the variance)"
    wanted = torch.from_numpy(oracle.transform(h.double().numpy()))
    ours, theirs = (torch.cdist(x, x) for x in (points, wanted))
    torch.testing.assert_close(ours / ours.max(), theirs / theirs.max())
    assert points.min() >= 0
    assert points.max() <= 1


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_or_equal_images_have_a_map(n):
    for h in (torch.ones(n, 4), torch.eye(n, 4), torch.ones(n, 1)):
        for points in maps(h).values():
            assert points.shape == (n, 2)
            assert points.isfinite().all()


def probed(folder, method, seed, accuracy, **more):
    entry = finished(folder, method, seed)
    line = {"kind": "probe", "protocol": "linear-fast", "accuracy": accuracy, "n_test": 400, **more}
    return Entry(entry.run, entry.config, [line])


def test_bars_are_means_over_seeds_with_the_interval_of_student_or_of_wilson(tmp_path):
    values = (0.61, 0.64, 0.68)
    runs = [probed(tmp_path, "ince", seed, x) for seed, x in enumerate(values)]
    (panel,) = bars([*runs, probed(tmp_path, "iot", 0, 0.9)])
    alone, several = panel.bars
    mean, std = sum(values) / 3, math.sqrt(sum((x - sum(values) / 3) ** 2 for x in values) / 2)
    half = 4.302653 * std / math.sqrt(3)
    assert (several.mean, several.low, several.high) == pytest.approx((mean, mean - half, mean + half))
    assert several.basis == "3 seeds"
    z, n, p = 1.959964, 400, 0.9
    centre, half = (
        (p + z * z / 2 / n) / (1 + z * z / n),
        z * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n) / (1 + z * z / n),
    )
    assert (alone.low, alone.high) == pytest.approx((centre - half, centre + half))
    assert alone.basis == "one seed, 400 test images"


def test_bars_never_join_different_settings_and_leave_out_what_is_no_accuracy(tmp_path):
    one, two = probed(tmp_path / "a", "ince", 0, 0.5), probed(tmp_path / "b", "ince", 1, 0.6)
    other = Entry(two.run, configured(["method=ince", "epochs=3", "seed=1"]), two.results)
    assert [len(panel.bars) for panel in bars([one, two])] == [1]
    assert [len(panel.bars) for panel in bars([one, other])] == [2]
    assert bars([probed(tmp_path / "c", "ince", 0, x) for x in (float("nan"), 7.0, -1)]) == []
    assert bars([probed(tmp_path / "d", "ince", 0, 0.5, n_test="many")])[0].bars[0].low is None


def test_accuracies_with_different_numbers_of_labels_stand_apart(tmp_path):
    entry = probed(tmp_path, "ince", 0, 0.5)
    lines = [
        {**entry.results[0], "protocol": p, "labels_used": n} for p, n in (("few", 100), ("few", 200), ("all", 900))
    ]
    panels = bars([Entry(entry.run, entry.config, lines)])
    assert [panel.protocol for panel in panels] == ["few, 100 labels", "few, 200 labels", "all"]


def test_baselines_stand_beside_the_runs_of_their_protocol(tmp_path):
    entry = probed(tmp_path, "ince", 0, 0.5)
    lines = [
        *entry.results,
        *({**entry.results[0], "kind": "baseline", "of": of} for of in ("pixels", "untrained (x)")),
    ]
    (panel,) = bars([Entry(entry.run, entry.config, lines)])
    assert {(bar.name, bar.method) for bar in panel.bars} == {
        ("ince", "ince"),
        ("pixels (baseline)", None),
        ("untrained (baseline)", None),
    }
    assert "var(--soft)" in render(dataclasses.replace(study(8), bars=[panel]))


@pytest.mark.parametrize("where", ["device", "workers"])
def test_the_views_shown_are_those_that_training_saw(tmp_path, monkeypatch, where):
    saw, shown, honest = {}, [], Training.inputs
    monkeypatch.setattr(Training, "inputs", lambda self, batch: saw.setdefault(batch.step, honest(self, batch)))
    words = [*TINY, "data.limit=128", "pairs.noise=0.5", "views=C0", f"augment_in={where}", f"runs={tmp_path}"]
    config = configured(["method=ince", *words])
    run = train(config, quiet=True)
    monkeypatch.setattr(views, "sprite", lambda images, most: shown.append(images) or sprite(images, most))
    made = views.seen(run, config, ())
    assert [step["number"] for step in made["steps"]] == [1, 2]
    for step, pictures in zip((0, 1), shown, strict=True):
        first, second = pictures[8:16], pictures[16:]
        images = views.images_of(config.data, "train")
        for given, ours in zip(saw[step], (first, second), strict=True):
            assert torch.equal(pixels(given[:8], images.mean, images.std), ours)
    assert any(step["mismatched"][k] for step in made["steps"] for k in range(8))


def test_the_weights_that_a_foreign_run_names_are_not_read(tmp_path):
    config = configured(["method=ince", *TINY, f"runs={tmp_path}"])
    config.pairs.weights = "/etc/passwd"
    run = Run(tmp_path / "given")
    run.path.mkdir()
    run.config_file.write_text(json.dumps(config.as_dict()))
    with pytest.raises(ValueError, match="set by another user"):
        views.seen(run, config, ())


def test_a_batch_with_too_many_views_is_not_made_for_a_picture(tmp_path, monkeypatch):
    # pairs.views=1000000000 in the config of a given run kept `report` busy without end
    config = configured(["method=ince", *TINY, "pairs.views=3", f"runs={tmp_path}"])
    numbers = config.batch_size * torch.Size(views.images_of(config.data, "train").shape).numel()
    monkeypatch.setattr(views, "HEAVIEST", 2 * numbers)
    with pytest.raises(ValueError, match=f"a batch has {3 * numbers:,} numbers"):
        views.seen(Run(tmp_path / "given"), config, ())


def test_what_every_page_carries_is_small():
    assert len(render(study(8)).encode()) < 80_000


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


@pytest.mark.parametrize(
    ("data", "protocols", "options"),
    [
        (Data("scenes"), [], ["protocol=linear-fast"]),
        (Data("scenes"), ["knn"], ["protocol=knn"]),
        (Data("shapes"), [], ["protocol=retrieval"]),
        (Data("folder", root="pictures"), [], None),  # which may have no labels
        (Data("folder", root="pictures"), ["knn", "linear-fast"], ["protocol=linear-fast"]),
    ],
)
def test_the_command_that_measures_a_run_fits_its_data(tmp_path, data, protocols, options):
    config = Config({"name": "ince", "eps": 0.5}, data, runs=str(tmp_path))
    entry = Entry(Run.of(config), config, [{"kind": "probe", "protocol": name} for name in protocols])
    commands = [shlex.split(line) for line in probe_commands(entry)]
    assert commands == ([["gcalign", "probe", f"run={entry.run.path}", *options]] if options else [])


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
    by_name = {found.name: found for found in command.drawn_results(tmp_path, [])}
    assert "The numbers follow in a table." in next(iter(by_name["fig-time"].figures))
    assert [row[-2] for row in by_name["fig-time"].numbers.rows] == ["0.01", "0.02", "0.1"]
    assert next(iter(by_name["fig-prox"].figures)) == "fig-prox: what a proximal operator does."
    assert by_name["fig-prox"].numbers is None


def header(width, height):
    """A PNG of so many pixels, as its first bytes say."""
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", size), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")
    parts = [struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (EPS, "not an image of a known format"),
        (header(60_000, 60_000), "more than 67,108,864 pixels"),
        (header(16, 16), "cannot be decoded"),
        (b"", "no bytes"),
    ],
    ids=["EPS", "giant", "damaged", "empty"],
)
def test_a_figure_that_is_no_picture_is_refused_and_starts_no_program(monkeypatch, content, says):
    def started(*words, **_):
        raise AssertionError(f"{words} was started")

    for name in ("run", "check_call", "Popen"):
        monkeypatch.setattr(subprocess, name, started)
    with pytest.raises(ValueError, match=says):  # which a report names among what it left out
        figure(content)


@pytest.mark.slow
def test_a_report_holds_runs_results_and_what_was_left_out(made):
    page = made.read_text()
    assert "Left out:" in page
    assert "broken/config.json cannot be read" in page
    assert "ince-gone are left out" in page  # whose data no command of this user named
    assert "<td><strong>50.0</strong></td>" in page
    assert "<strong>table1</strong>" not in page
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
def browser():
    with chromium.Chromium() as found:
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
    browser = opened(study(40))
    browser.run(f"Object.assign(gcalign.heat, {{eps: {eps}, iterations: {iterations}, lam: 0.5}})")
    browser.pick("#mode", mode)
    log = torch.tensor(browser.run("Array.from(gcalign.heat.plan.log)")).view(40, 40)
    z1, z2 = (z.double() for z in (embeddings(40).z1, embeddings(40).z2))
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
def test_views_of_one_image_are_never_called_wrong(opened):
    browser = opened(study(64))
    assert browser.run("document.getElementById('suspects-title').innerText") == "Views that look least alike"
    assert "wrong" not in browser.run("document.getElementById('suspects').innerText")


@in_browser
@pytest.mark.slow
def test_the_page_opens_on_the_run_that_finds_most_mismatched_pairs(opened):
    page = study(64, wrong=10)
    first, second = page.shown
    blind = first["audit"] | {"ranking": whole(torch.arange(64).flip(0))}
    browser = opened(dataclasses.replace(page, shown=[first | {"audit": blind}, second]))
    assert browser.run("gcalign.heat.run.name") == "gca-uot"
    assert browser.run("document.getElementById('plan-run').value") == "1"


@in_browser
@pytest.mark.slow
def test_a_click_on_an_image_shows_its_neighbours_for_each_run(opened):
    h = embeddings(64).h
    browser = opened(study(64))
    browser.click("#image-5")
    assert browser.run("document.querySelector('#chosen b').innerText") == "5 dog"
    assert browser.run("document.querySelectorAll('.near').length") == 2
    shown = browser.run(
        "[...document.querySelectorAll('.near')[0].querySelectorAll('.tile')].map((t) => t.ariaLabel.split(' ')[0])"
    )
    assert [int(k) for k in shown] == (h @ h.T).fill_diagonal_(-2).topk(8).indices[5].tolist()
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
    assert browser.run("document.querySelectorAll('#curves .curve').length") == 4  # two runs, two measures
    browser.click("#curve-runs input")
    assert browser.run("document.querySelectorAll('#curves .curve').length") == 2
    assert "loss against step" in browser.run("document.querySelector('#curves svg').ariaLabel")
    browser.click("#curve-names button[value=alignment]")
    assert browser.run("document.querySelectorAll('#curves svg').length") == 1


@in_browser
@pytest.mark.slow
def test_an_image_pointed_at_in_a_map_is_marked_in_all_and_arrow_keys_move_on(opened):
    browser = opened(study(64))
    assert browser.run("document.querySelectorAll('#maps svg').length") == 2
    points = next(iter(maps(embeddings(64).h).values()))  # PCA, which is shown first
    k = int(points[:, 0].argmax())  # alone on its side
    browser.hover("#maps svg", 0.03 + 0.94 * float(points[k, 0]), 0.97 - 0.94 * float(points[k, 1]))
    said = "document.getElementById('map-said').innerText"
    assert f"image {k}" in browser.run(said)
    assert f"image {k}" in browser.run("document.querySelector('.tip').innerText")
    places = browser.run(
        "[...document.querySelectorAll('.ring')].map((r) => [r.getAttribute('cx'), r.getAttribute('cy')].map(Number))"
    )
    for x, y in places:
        assert (x, y) == pytest.approx((30 + 940 * float(points[k, 0]), 970 - 940 * float(points[k, 1])), abs=0.1)
    browser.run("document.querySelector('#maps svg').focus()")
    browser.press("ArrowLeft")
    assert f"image {k}" not in browser.run(said)
    browser.click("#map-key button:nth-child(2)")
    assert browser.run("document.querySelectorAll('.dots.faint').length") == 6
    browser.pick("#map-colour", "domain")
    assert browser.run("document.getElementById('map-key').innerText").split() == ["photo", "sketch"]


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize(
    "target", [gcalign.Identity(), gcalign.Labels(), gcalign.Blocks(0.5, 0.25)], ids=lambda x: type(x).__name__
)
def test_the_target_of_the_diagram_is_that_of_the_library(opened, target):
    page, e = study(16), embeddings(16)
    page = dataclasses.replace(page, shown=[page.shown[0] | {"goal": goal(target)}])
    browser = opened(page)
    target_of = "gcalign.targetOf(gcalign.heat.run, gcalign.data.pairings[0])"
    script = f"((t) => Array.from({{length: 256}}, (_, k) => t(k)))({target_of})"
    shown = torch.tensor(browser.run(script), dtype=torch.float32).view(16, 16)
    criterion = gcalign.method("ince", target=target, eps=0.1)
    known = {"labels": e.labels, "domains": e.domains}
    plan = criterion.plan(e.z1, e.z2, **{name: x for name, x in known.items() if name in target.reads})
    torch.testing.assert_close(shown, plan.target.dense())
    t, p = (x / x.sum(1, keepdim=True) for x in (plan.target.dense(), plan.matrix))
    wanted = (t * (t / p).log()).nan_to_num(0).sum() / 16
    said = browser.run("document.getElementById('flow-loss-said').innerText")
    assert float(said.split("= ")[1].split(" ")[0]) == pytest.approx(float(wanted), rel=0.01)


@in_browser
@pytest.mark.slow
def test_bars_zoom_and_the_views_of_another_step_are_shown(opened):
    browser = opened(study(16))
    fill = "document.querySelector('.fill').getBoundingClientRect().width"
    assert browser.run(fill) == pytest.approx(
        browser.run("0.62 * document.querySelector('.track').clientWidth"), abs=1.5
    )
    browser.click(".panel input")
    assert browser.run(fill) == pytest.approx(10)
    assert browser.run("document.querySelectorAll('#views li.wrong').length") == 1
    assert browser.run("document.querySelectorAll('#views .tile').length") == 6
    browser.click("#views-step button:nth-child(2)")
    assert browser.run("document.getElementById('views-said').innerText").startswith("Step 9")


@in_browser
@pytest.mark.slow
def test_suspects_follow_the_audit_or_the_plan(opened):
    e = embeddings(64, wrong=10)
    browser = opened(study(64, wrong=10))
    order = "[...document.querySelectorAll('#suspects li b')].map((b) => parseInt(b.innerText))"
    assert browser.run(order) == gcalign.audit(e.z1, e.z2).ranking[:24].tolist()
    browser.pick("#suspects-by", "plan")
    share = torch.tensor(browser.run("Array.from(gcalign.heat.plan.share)"))
    assert browser.run(order) == share.argsort()[:24].tolist()


NAMELESS = """[...document.querySelectorAll('canvas, svg, img, [role=img]')]
  .filter((e) => !e.closest('[aria-hidden=true]') && !e.getAttribute('aria-label') && !e.alt).map((e) => e.outerHTML)"""


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 768, 1280])
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
    assert browser.run("document.querySelectorAll('#views li .tile').length") == 24
    assert browser.run("document.querySelectorAll('#maps svg').length") == 2
    edge = "Math.max(...[...document.querySelectorAll('.claims .verdict')].map((v) => v.getBoundingClientRect().right))"
    assert 0 < browser.run(edge) <= width


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_of_an_audit_shows_its_pairs_whole_on_every_screen(opened, tmp_path, width):
    z = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    audit = gcalign.audit(z, z.roll(1, 0))
    pictures = list(torch.arange(20 * 8 * 8 * 3, dtype=torch.uint8).view(20, 8, 8, 3).numpy())
    path = tmp_path / "audit.html"
    path.write_text(rendered(audit, "An audit", first=["a long text " * 40] * 20, second=pictures, worst=10))
    browser = opened(path)
    browser.look(width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.querySelectorAll('li').length") == 10
    assert browser.run("[...document.images].every((i) => i.width === 72 && i.height === 72 && i.complete)")


@in_browser
@pytest.mark.slow
def test_a_report_prints(opened, made, tmp_path):
    browser = opened(made)
    assert browser.pdf(tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    browser.look(width=720, media="print")
    assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.run("document.documentElement.scrollWidth") <= 720
