"""Columns of a table as sides: what a table may hold, and a split that keeps groups together."""

from __future__ import annotations

import csv
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from gcalign.lab.data.sides import divided
from gcalign.lab.data.table_sides import base_emoji, load_columns
from gcalign.lab.data.tables import TextTable
from small_runs import png


@pytest.mark.parametrize(
    ("columns", "kinds", "shapes"),
    [
        (["image", "name"], ["image", "text"], [(3, 8, 8), ()]),
        (["name", "other"], ["text", "text"], [(), ()]),
        (["numbers", "image"], ["array", "image"], [(3,), (3, 8, 8)]),
        (["image", "name", "numbers"], ["image", "text", "array"], [(3, 8, 8), (), (3,)]),
    ],
)
def test_a_column_says_what_it_holds(table, columns, kinds, shapes):
    pairs = load_columns("pairs", root=table(), columns=columns)
    assert [side.kind for side in pairs.sides] == kinds
    assert [side.shape for side in pairs.sides] == shapes


def test_arrays_are_standardised_number_by_number(table):
    side = load_columns("pairs", root=table(), columns=["numbers", "name"]).sides[0]
    x = side.preprocessing(side.items)
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.tensor([1.0, 0.0, 1.0]))  # one is the same in each row


def test_lists_of_texts_and_joined_columns_are_several_right_answers(table):
    pairs = load_columns("pairs", root=table(), columns=["image", "name+other"])
    side = pairs.sides[1]
    assert [side.items[k] for k in side.of(torch.tensor([3, 0]))[0].tolist()] == [
        *("thing number 3", "ding 3", "sache 3"),
        *("thing number 0", "ding 0"),
    ]
    assert side.of(torch.tensor([3, 0]))[1].tolist() == [0, 0, 0, 1, 1]
    assert not side.single
    assert pairs.sides[0].single


def test_tables_beside_files_and_arrays_give_the_same_pairs(table, rows, tmp_path):
    known = rows
    for k, image in enumerate(known["image"]):
        (tmp_path / f"{k}.png").write_bytes(image["bytes"])
        np.save(tmp_path / f"{k}.npy", np.array(known["numbers"][k]))
    with (tmp_path / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "name", "numbers"])
        writer.writerows([f"{k}.png", known["name"][k], f"{k}.npy"] for k in range(12))
    lines = [{"image": f"{k}.png", "name": known["name"][k], "numbers": known["numbers"][k]} for k in range(12)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = ["image", "name", "numbers"]
    want = load_columns("pairs", root=table(), columns=columns)
    for place in ("metadata.csv", "x.jsonl"):
        found = load_columns("pairs", root=tmp_path / place, columns=columns)
        for mine, theirs in zip(found.sides, want.sides, strict=True):
            assert mine.kind == theirs.kind
            if mine.kind == "text":
                assert mine.items == theirs.items
            else:
                torch.testing.assert_close(mine.items, theirs.items)


@pytest.mark.parametrize(
    ("changed", "columns", "more", "said"),
    [
        ({}, ["image", "nam"], {}, "data.columns=nam: .* has no such column; did you mean 'name'"),
        ({}, ["image"], {}, "must name two columns or more"),
        ({}, ["name", "name"], {}, "names a column twice"),
        ({}, ["image+name", "numbers"], {}, "a side can hold one kind"),
        ({}, ["image", "name"], {"group": "famly"}, "data.group=famly: .* did you mean 'family'"),
        ({}, ["image", "name"], {"group": "family:kind"}, "the rule after data.group"),
        ({"family": [1] * 12}, ["image", "name"], {"group": "family"}, "has 1 group.s. in 12 pairs"),
        ({"name": ["a"] * 11 + [" "]}, ["image", "name"], {}, "1 of 12 pairs .* row 11: name is empty.*on_error=skip"),
        ({"name": ["a"] * 11 + [None]}, ["image", "name"], {}, "row 11: name is empty"),
        ({"numbers": [[1.0]] * 11 + [[1.0, 2.0]]}, ["numbers", "name"], {}, "different lengths, 1 in .* and 2 in"),
        ({"numbers": [[1.0]] * 11 + [[math.nan]]}, ["numbers", "name"], {}, "row 11: numbers has no numbers"),
        (
            {"image": [{"bytes": b"no image", "path": None}] * 12},
            ["image", "name"],
            {},
            "not an image of a known format",
        ),
        ({"family": [True] * 12}, ["image", "family"], {}, "holds='bool' is unknown"),
    ],
)
def test_a_table_with_a_fault_is_refused_with_value_rule_and_remedy(table, changed, columns, more, said):
    with pytest.raises(ValueError, match=said):
        load_columns("pairs", root=table(**changed), columns=columns, **more)


def test_pairs_with_a_fault_can_be_left_out(table):
    root = table(name=["a", "", *"cdefghijkl"])
    with pytest.warns(UserWarning, match="1 of 12 pairs cannot be used"):
        pairs = load_columns("pairs", root=root, columns=["image", "name"], on_error="skip")
    assert len(pairs) == 11
    assert pairs.sides[1].items == ("a", *"cdefghijkl")
    assert sum(len(pairs.rows(split)) for split in ("train", "validation", "test")) == 11


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "image,name\n../x.png,b\n", "is outside"),
        ("a.csv", "image,name\nx.png,b\n", "is missing in"),
        ("a.csv", "image,name\nx.png\n", "does not have one value for each column"),
        ("a.jsonl", '{"a": 1, "b": "x"}\n{"a": 2}\n', r"row 1 has 1 of 2 columns \(b missing\)"),
        ("a.csv", "a,name,a\nx,b,y\n", "has two columns called 'a'"),
        ("a.jsonl", '{"a": 1, "name": "x", "a": 2}\n', "line 1 is not JSON .*the key 'a' is there twice"),
        ("a.jsonl", "{\n", "line 1 is not JSON"),
        ("a.jsonl", "", "has no rows"),
        ("a.txt", "", "must end in .parquet"),
        ("a.parquet", "no", "not a readable parquet file"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=said):
        load_columns("pairs", root=tmp_path / name, columns=["image" if "image" in content else "a", "name"])


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0b"])
def test_a_text_may_hold_what_python_takes_for_the_end_of_a_line(tmp_path, odd):
    lines = [json.dumps({"a": f"text {k}{odd}more", "b": f"b {k}"}, ensure_ascii=False) for k in range(12)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    found = load_columns("pairs", root=tmp_path / "x.jsonl", columns=["a", "b"])
    assert found.sides[0].items[3] == f"text 3{odd}more"


def test_images_of_two_columns_on_one_side_get_one_size(table):
    small = [{"bytes": png((9, k, 9), (6, 6)), "path": None} for k in range(12)]
    found = load_columns("pairs", root=table(small=small), columns=["image+small", "name"])
    assert found.sides[0].items.shape == (24, 3, 6, 6)
    assert found.sides[0].items[1::2, 1, 0, 0].tolist() == list(range(12))


@pytest.mark.parametrize("fold", range(6))
def test_a_group_is_never_divided_and_the_shares_are_met(fold):
    generator = torch.Generator().manual_seed(fold)
    groups = torch.unique(torch.randint(0, 80, (400,), generator=generator), return_inverse=True)[1]
    part = divided(groups, (0.1, 0.2), fold, "x")
    assert all(len(part[groups == g].unique()) == 1 for g in groups.unique())
    assert 0.2 <= float((part == 2).double().mean()) < 0.25
    assert 0.1 <= float((part == 1).double().mean()) < 0.15
    again = divided(groups, (0.15, 0.2), fold, "x")
    assert torch.equal(part == 2, again == 2)  # what is tested does not depend on what is used for choosing


def test_three_groups_are_one_for_each_part():
    assert sorted(divided(torch.tensor([0, 1, 1, 1, 1, 2]), (0.1, 0.2), 0, "x").unique().tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("variants", "others"),
    [
        ("👍 👍🏻 👍🏿", "👎"),
        ("🧑‍🔧 👨🏽‍🔧 👩‍🔧", "🧑‍🎓"),
        ("🏃 🏃‍♀️ 🏃🏾‍♂️ 🏃‍➡️ 🏃‍♀️‍➡️", "🚶"),
        ("🧑 👨 👩🏼 👨‍🦰 🧑🏿‍🦲", "🧒"),
        ("👫 👬🏽 🧑🏻‍🤝‍🧑🏿 👩‍🤝‍👨", "🤝"),
        ("❤️ ❤", "🧡"),
        ("♀️ ♀", "♂"),
    ],
)
def test_variants_of_an_emoji_have_one_base(variants, others):
    assert len({base_emoji(emoji) for emoji in variants.split()}) == 1
    assert base_emoji(others) != base_emoji(variants.split()[0])


@pytest.mark.parametrize("cell", ["[" + "1" * 300_000, "1" * 300_000 + "x", "[" + "1, " * 100_000 + "x]"])
def test_the_kind_of_a_long_cell_is_told_at_once(cell):
    table = TextTable(Path("t.csv"), [{"a": cell}])
    start = time.process_time()
    assert table.kind("a") == "text"
    assert time.process_time() - start < 2  # of a pattern that goes back and forth: minutes
