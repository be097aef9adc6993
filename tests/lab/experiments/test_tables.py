"""Tables say what their records say: statistics against scipy, golden bytes, paired differences, what is missing."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pandas
import pytest
from scipy import stats

import gcalign
from gcalign.lab import paper
from gcalign.lab.experiments.engine import records, statistics, tables
from gcalign.lab.experiments.engine.experiment import named
from gcalign.lab.experiments.engine.records import Record, frame
from gcalign.lab.experiments.engine.statistics import Estimate
from gcalign.lab.experiments.engine.tables import Sheet
from gcalign.lab.experiments.paper import columns


def record(value, method="ince", seed=0, measure="linear-fast", setting="standard", data="cifar10", **more):
    labels = {"method": method, "data": data, "setting": setting}
    return Record("table1", more.pop("scale", "small"), measure, value, labels, seed, **more)


def drawn(name: str, values: list[Record], folder: Path) -> list[Path]:
    return named(name).draw(frame(values), folder)


def rows(**by_seed) -> pandas.DataFrame:
    """A table [row, seed]."""
    return pandas.DataFrame.from_dict(by_seed, orient="index")


# --- statistics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("df", [1, 2, 2.7, 4, 7.9, 30, 1e4])
def test_an_interval_is_students_t_times_the_error(df):
    _, high = Estimate(1.0, 0.5, df, 3).interval()
    assert high - 1 == pytest.approx(0.5 * stats.t.ppf(0.975, df), rel=1e-9)
    assert Estimate(1.0, 0.5, df, 3).interval(0.5)[1] - 1 == pytest.approx(0.5 * stats.t.ppf(0.75, df), rel=1e-9)


def test_a_paired_difference_has_the_interval_of_scipys_paired_test():
    a, b = {0: 0.54, 1: 0.55, 2: 0.54, 3: 0.56}, {3: 0.50, 2: 0.49, 1: 0.47, 0: 0.50}
    found = statistics.contrast(rows(a=a, b=b), {"a": 1, "b": -1})
    expected = stats.ttest_rel([a[s] for s in a], [b[s] for s in a]).confidence_interval(0.95)
    assert found.interval() == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert found.better
    assert not found.worse


def test_unpaired_groups_have_the_interval_of_welchs_test():
    a, b = [1.0, 2.0, 4.0, 3.5], [0.5, 1.0, 0.0]
    found = statistics.welch(Estimate.of(a), Estimate.of(b))
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert found.interval() == pytest.approx((expected.low, expected.high), rel=1e-9)


ROWS = {
    "a": {0: 0.54, 1: 0.55, 2: 0.52, 3: 0.56},
    "b": {3: 0.50, 2: 0.49, 1: 0.47, 0: 0.50},
    "c": {0: 0.51, 1: 0.56, 2: 0.50, 3: 0.55},
}


@pytest.mark.parametrize("weights", [{"a": 1, "b": -1}, {"a": 1, "b": 1, "c": -2}])
def test_the_pooled_error_is_that_of_least_squares_with_methods_and_seeds_as_effects(weights):
    names, seeds = list(ROWS), range(4)
    design, values = [], []
    for m in names:
        for s in seeds:
            design.append([float(m == name) for name in names] + [float(s == k) for k in list(seeds)[1:]])
            values.append(ROWS[m][s])
    x, y = numpy.array(design), numpy.array(values)
    fitted, (residual,), *_ = numpy.linalg.lstsq(x, y, rcond=None)
    w = numpy.array([weights.get(m, 0.0) for m in names] + [0.0] * 3)
    df = len(y) - x.shape[1]
    error = math.sqrt(residual / df * (w @ numpy.linalg.inv(x.T @ x) @ w))
    found = statistics.contrast(rows(**ROWS), weights, pooled=True)
    assert (found.mean, found.error, found.df) == (pytest.approx(w @ fitted), pytest.approx(error), df)
    assert found.p() == pytest.approx(2 * stats.t.sf(abs(found.mean) / error, df))


def test_of_two_rows_the_pooled_test_is_the_paired_one():
    expected = stats.ttest_rel([ROWS["a"][s] for s in range(4)], [ROWS["b"][s] for s in range(4)])
    for pooled in (False, True):
        estimate = statistics.contrast(rows(a=ROWS["a"], b=ROWS["b"]), {"a": 1, "b": -1}, pooled=pooled)
        assert estimate.p() == pytest.approx(expected.pvalue)
        oracle = expected.confidence_interval(0.95)
        assert estimate.interval() == pytest.approx((oracle.low, oracle.high))


def test_a_contrast_of_one_seed_or_none_says_nothing():
    for pooled in (False, True):
        alone = statistics.contrast(rows(a={0: 0.9}, b={0: 0.1}), {"a": 1, "b": -1}, pooled=pooled)
        assert alone.p() == 1.0
        assert math.isinf(alone.interval()[1])
    assert statistics.contrast(rows(a={0: 0.9}, b={1: 0.1}), {"a": 1, "b": -1}) is None
    assert statistics.contrast(rows(a={0: 0.9}), {"a": 1, "b": -1}) is None


def test_holms_p_values_are_those_of_the_definition():
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.6, 0.7]) == [1.0, 1.0]
    assert statistics.holm([]) == []


@pytest.mark.parametrize("m", [1, 3, 8])
def test_simultaneous_intervals_are_bonferronis(m):
    e = Estimate(1.0, 0.5, 7, 8)
    half = 0.5 * stats.t.ppf(1 - 0.05 / (2 * m), 7)
    assert e.interval(statistics.simultaneous(m)) == pytest.approx((1 - half, 1 + half))


def test_only_seeds_that_both_have_are_compared():
    found = statistics.contrast(rows(a={0: 1.0, 1: 2.0, 5: 9.0}, b={0: 0.5, 1: 1.0, 7: -9.0}), {"a": 1, "b": -1})
    assert (found.mean, found.n) == (0.75, 2)
    assert statistics.contrast(rows(a={0: 1.0}, b={1: 1.0}), {"a": 1, "b": -1}) is None


def test_one_seed_is_neither_better_nor_worse():
    found = statistics.contrast(rows(a={0: 0.9}, b={0: 0.1}), {"a": 1, "b": -1})
    assert found.mean == pytest.approx(0.8)
    assert not found.better
    assert not found.worse
    assert (found.df, found.half) == (0, 0.0)


def test_two_values_for_one_seed_are_an_error():
    with pytest.raises(ValueError, match=r"has linear-fast of .* with seed 0 twice"):
        records.by_seed(frame([record(0.5), record(0.6)]), "linear-fast", "method")


def test_a_label_of_none_selects_records_without_it():
    plain = Record("fig-time", "small", "seconds-per-epoch", 3.0, {"method": "gca-ince"}, 0)
    varied = Record("fig-time", "small", "seconds-per-epoch", 5.0, {"method": "gca-ince", "iterations": 10}, 0)
    both = frame([plain, varied])
    assert records.series(both, "seconds-per-epoch", method="gca-ince", iterations=None).to_dict() == {0: 3.0}
    assert records.series(both, "seconds-per-epoch", iterations=10).to_dict() == {0: 5.0}


def test_a_table_has_a_row_for_each_value_and_a_gap_for_what_was_not_measured():
    table = records.by_seed(frame([record(0.5), record(0.4, seed=1), record(0.3, "byol", 1)]), "linear-fast", "method")
    assert list(table.index) == ["byol", "ince"]
    assert table.loc["ince"].tolist() == [0.5, 0.4]
    assert math.isnan(table.loc["byol", 0])
    assert records.by_seed(frame([]), "knn", "method").empty


# --- tables ----------------------------------------------------------------------------------------------------


def few() -> list[Record]:
    values = {"ince": (0.50, 0.52, 0.51), "gca-ince": (0.52, 0.541, 0.529), "gca-uot": (0.53, 0.52, 0.54)}
    about = {"protocol": "linear-fast", "n_train": 5000, "n_test": 10000}
    return [
        record(
            value,
            method,
            seed,
            about=about,
            words=(f"method={method}", "epochs=6", f"method.eps={0.5 if method == 'ince' else 0.2}", f"seed={seed}"),
        )
        for method, by in values.items()
        for seed, value in enumerate(by)
    ]


GOLDEN = """\
# table1

| Method | CIFAR-10 |
| --- | --- |
| INCE | 51.00 ± 1.00 |
| GCA-INCE | **53.00 ± 1.05** |
| Δ = GCA-INCE − INCE | +2.00 [+1.75, +2.25] ▲ |
| RINCE | – |
| GCA-RINCE | – |
| Δ = GCA-RINCE − RINCE | – |
| SimCLR | – |
| BYOL | – |
| IOT | – |
| IOT-uni | – |
| GCA-UOT | **53.00 ± 1.00** |

`tab:new_combine` of the paper at scale small: test accuracy in %, mean ± standard deviation over seeds 0, 1, 2. \
Probed by linear-fast (5000 training and 10000 test images).

The best of a column is in bold, the second in italics (LaTeX: underlined), whatever their spread. Δ is the difference \
paired by seed with its 95 % interval (Student t); ▲ and ▼ stand only where that excludes zero.

Not measured at this scale: CIFAR-100, SVHN, ImageNet-100, CIFAR-10 (Ex), CIFAR-100 (Ex), CIFAR-10C, CIFAR-10C (Ex).

All runs: `epochs=6`. Chosen for each method: INCE `method.eps=0.5`; GCA-INCE `method.eps=0.2`; \
GCA-UOT `method.eps=0.2`.
"""


def test_a_table_is_the_same_bytes_whatever_the_order_of_its_records(tmp_path):
    markdown, tex = drawn("table1", few(), tmp_path / "a")
    assert markdown.read_text() == GOLDEN.replace("| INCE | 51.00 ± 1.00 |", "| INCE | _51.00 ± 1.00_ |")
    records.write(tmp_path / "table1.jsonl", reversed(few()))
    again = drawn("table1", records.read(tmp_path / "table1.jsonl"), tmp_path / "b")
    assert [p.read_bytes() for p in again] == [markdown.read_bytes(), tex.read_bytes()]
    assert [p.name for p in again] == ["table1.md", "table1.tex"]


def test_latex_has_booktabs_groups_marks_and_no_bare_specials(tmp_path):
    values = [*few(), *(record(0.3, m, 0, setting=s) for m in ("ince", "byol") for s in ("C1", "C2", "C3"))]
    text = drawn("table1", values, tmp_path)[1].read_text()
    assert r"\multicolumn{1}{c}{Standard} & \multicolumn{1}{c}{Noisy} \\" in text
    assert r"\cmidrule(lr){3-3}" in text
    assert r"\textbf{53.00 $\pm$ 1.00}" in text
    assert r"\underline{51.00 $\pm$ 1.00}" in text
    assert r"+2.00 [+1.75, +2.25] $\uparrow$" in text
    assert r"\texttt{tab:new\_combine}" in text
    assert text.isascii()


def test_the_extreme_column_is_the_mean_of_three_settings_seed_by_seed():
    values = [record(x, "ince", seed, setting=s) for s, x in (("C1", 0.3), ("C2", 0.4), ("C3", 0.8)) for seed in (0, 1)]
    column = next(c for c in columns.NEW_COMBINE if c.name == "CIFAR-10 (Ex)")
    assert column.ours(frame(values)).loc["ince"].to_dict() == {0: pytest.approx(0.5), 1: pytest.approx(0.5)}
    assert column.ours(frame(values[:-1])).loc["ince"].dropna().to_dict() == {0: pytest.approx(0.5)}


def test_a_difference_is_marked_only_where_its_interval_excludes_zero():
    half = float(stats.t.ppf(0.975, 2))  # errors of an interval of that much
    assert tables.gap(Estimate(0.02, 0.01 / half, 2, 3)) == "+2.00 [+1.00, +3.00] ▲"
    assert tables.gap(Estimate(-0.02, 0.01 / half, 2, 3)) == "−2.00 [−3.00, −1.00] ▼"
    assert tables.gap(Estimate(0.02, 0.03 / half, 2, 3)) == "+2.00 [−1.00, +5.00]"
    assert tables.gap(Estimate(0.02, 0.0, 0, 1)) == "+2.00"
    assert tables.gap(None) == "–"


def test_one_seed_has_no_spread_and_no_interval(tmp_path):
    text = drawn("table1", [record(0.5, "ince"), record(0.6, "gca-ince")], tmp_path)[0].read_text()
    assert "| GCA-INCE | **60.00** |" in text
    assert "| Δ = GCA-INCE − INCE | +10.00 |" in text
    assert "over seed 0." in text


def test_a_cell_with_fewer_seeds_than_the_table_says_so(tmp_path):
    text = drawn("table1", [*few(), record(0.4, "byol", 0), record(0.4, "byol", 1)], tmp_path)[0].read_text()
    assert "| BYOL | 40.00 ± 0.00 (n = 2) |" in text


def test_at_tiny_scenes_stand_in_for_the_first_data_set(tmp_path):
    values = [record(0.5, m, s, data="scenes", scale="tiny") for m in ("ince", "gca-ince") for s in (0, 1)]
    values += [record(0.4, "ince", 0, "cifar10c", data="scenes", scale="tiny")]
    text = drawn("table1", values, tmp_path)[0].read_text()
    assert "| Method | scenes | scenesC |" in text
    assert "Not measured at this scale: CIFAR-100, SVHN" in text
    assert "| Method | Standard |" in drawn("tableA-cifar100", values, tmp_path)[0].read_text()


def test_appendix_tables_have_the_four_conditions(tmp_path):
    values = [record(0.5, "iot", 0, "cifar10c", s) for s in ("standard", "C1", "C2", "C3")]
    text = drawn("tableA-cifar10c", values, tmp_path)[0].read_text()
    assert "| Method | Standard | Erase (C1) | Crop (C2) | Brightness (C3) |" in text
    assert "`tab:cifar10c`" in text


@pytest.mark.parametrize(
    "name",
    ["table1", "tableA-cifar10", "flops", "scouts", "table-labels", "table-audit", "table-feedback", "emoji-pairs"],
)
def test_a_table_without_records_says_what_makes_them(name, tmp_path):
    with pytest.raises(ValueError, match=f"`gcalign reproduce {name}` makes them"):
        drawn(name, [], tmp_path)


def test_the_table_of_methods_is_what_the_methods_print(tmp_path):
    text = drawn("table-methods", [], tmp_path)[0].read_text()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines()[4:13]}
    assert list(rows) == [paper.NAMES[m] for m in paper.METHODS]
    for name, title in paper.NAMES.items():
        made = gcalign.method(name)
        for part in (made.kernel, made.divergence, made.target, *made.constraints):
            assert repr(part).replace("*", r"\*") in rows[title]
        assert f"| {made.layout} |" in rows[title]


def test_flops_stand_beside_the_papers(tmp_path):
    counts = {"ince": (100, 20), "gca-uot": (100, 80)}
    values = [
        Record("flops", "small", "mflops", float(x), {"method": m, "part": part}, about={"n": 512})
        for m, (products, rest) in counts.items()
        for part, x in (("matmul", products), ("elementwise", rest), ("total", products + rest))
    ]
    text = drawn("flops", values, tmp_path)[0].read_text()
    assert "| INCE | 100.00 | 20.00 | 120.00 | 1.00 | 6.31 | 1.00 |" in text
    assert "| GCA-UOT | 100.00 | 80.00 | 180.00 | 1.50 | 4.54 | 0.72 |" in text
    assert "n: 512" in text


def test_cells_escape_what_markdown_and_latex_would_read():
    sheet = Sheet("x", ["a|b"], [["1 * 2 | 3 % of x_y"]], ["`a_b` & c"])
    assert r"| 1 \* 2 \| 3 % of x_y |" in sheet.markdown()
    assert r"1 * 2 | 3 \% of x\_y \\" in sheet.tex()
    assert r"\texttt{a\_b} \& c" in sheet.tex()


# --- the paper's numbers ---------------------------------------------------------------------------------------


def test_the_papers_numbers_are_those_of_its_text():
    source = next(Path(__file__).parents[4].glob("shared/paper/*.txt"), None)
    if source is None:
        pytest.skip("the paper's text is not here")
    text = source.read_text().replace("{\\footnotesize ", "").replace(" ", "")
    for column in (*columns.NEW_COMBINE, *columns.CIFAR10, *columns.CIFAR100, *columns.CIFAR10C):
        assert len(column.mean) == len(column.std) == len(paper.METHODS)
        for mean, std in zip(column.mean, column.std, strict=True):
            assert f"{mean:.2f}±{std:.2f}" in text, (column.name, mean, std)
    for row in paper.DELTAS.values():
        assert all(f"&{x:+.2f}" in text for x in row)
    assert all(f"{x}MFlops" in text for x in paper.MFLOPS.values())
    assert all(f"{x}\\%" in text for x in paper.DOMAIN_ACCURACY)


def test_scouts_show_means_and_every_seeds_difference(tmp_path):
    found = [
        record(x, method, seed, measure, setting, scale="small")
        for setting in ("long tail", "four views")
        for measure in ("linear-fast", "knn")
        for method, by in {"ince": (0.40, 0.42), "gca-ince": (0.41, 0.40), "gca-uot": (0.45,)}.items()
        for seed, x in enumerate(by)
    ]
    page, _ = drawn("scouts", found, tmp_path)
    text = page.read_text()
    assert "| long tail, linear-fast | 41.00 | 40.50 | 45.00 | +1.00, −2.00 | +5.00 |" in text
    assert text.count("four views, ") == 2
    assert "exploratory" in text


def test_wrong_labels_show_both_differences_with_their_intervals(tmp_path):
    levels = {("ince", "chosen"): 0.40, ("ince", "ε of GCA-UOT"): 0.43, ("gca-uot", "chosen"): 0.44}
    found = [
        record(x + 0.01 * seed + (0.001 if (seed, method) == (1, "gca-uot") else 0), method, seed, "knn", setting)
        for (method, setting), x in levels.items()
        for seed in range(3)
    ]
    page, _ = drawn("table-labels", found, tmp_path)
    text = page.read_text()
    assert "| knn | 41.00 ± 1.00 | 44.00 ± 1.00 | 45.03 ± " in text
    assert "+4.03 [+3.89, +4.18]" in text
    assert "+1.03 [+0.89, +1.18]" in text
    assert "– |" in drawn("table-labels", found[:3], tmp_path)[0].read_text()  # what is not there yet
