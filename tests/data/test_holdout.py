"""Held-out rows: equal texts and groups stay on one side, labels keep their shares, and the latest
rows are held out.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trifold.data import DataSettings, Role, Rows, read_pairs, read_records, read_splits
from trifold.data.documents import read_documents
from trifold.data.holdout import Traits, divide, normalized, strata_of
from trifold.data.roles import check_text
from trifold.errors import DataError, SettingsError

ROLES = {
    "text": Role(("text",), check_text),
    "label": Role(("label",), check_text, identifies=False),
}
PLAIN = DataSettings()


def write(folder: Path, name: str, rows: list[tuple[Any, ...]], header: str = "text,label") -> str:
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / name)


def texts_of(rows: Rows) -> set[str]:
    return {normalized(text) for text in rows.columns["text"]}


def splits_of(seed: int = 0, **data: Any) -> tuple[Rows, Rows]:
    settings = DataSettings.parse(data)
    train, valid, _ = read_splits(
        settings, seed, lambda source, each, split: read_records(source, each, ROLES, split)
    )
    return train, valid


keys = st.lists(st.integers(0, 12), min_size=2, max_size=60)


@given(keys=keys, others=st.randoms(use_true_random=False), count=st.data(), seed=st.integers(0, 5))
def test_rows_with_an_equal_key_are_on_one_side(
    keys: list[int], others: random.Random, count: Any, seed: int
) -> None:
    groups = [others.choice([None, *range(9)]) for _ in keys]
    number = count.draw(st.one_of(st.integers(1, len(keys) - 1), st.sampled_from([0.1, 0.5])))
    try:
        found = divide(len(keys), number, seed, "rows", Traits([keys], groups))
    except DataError:  # all rows are connected
        return
    assert sorted(found.kept + found.held) == [*range(len(keys))]
    assert found.kept == sorted(found.kept) and found.held == sorted(found.held)
    for each in (keys, groups) if not found.known else (groups,):
        sides = [{each[row] for row in side} - {None} for side in (found.kept, found.held)]
        assert sides[0].isdisjoint(sides[1])
    assert found == divide(len(keys), number, seed, "rows", Traits([keys], groups))


@given(keys=keys, folds=st.integers(2, 9), seed=st.integers(0, 5))
def test_each_row_is_in_one_fold_of_a_seed(keys: list[int], folds: int, seed: int) -> None:
    for traits in (Traits(), Traits([keys]), Traits([keys], label=[key % 3 for key in keys])):
        if folds > len(keys):
            with pytest.raises(
                DataError, match=r"data\.holdout: \d folds of \d+ rows.*; use fewer"
            ):
                divide(len(keys), f"fold:1/{folds}", seed, "rows", traits)
            continue
        parts = [
            divide(len(keys), f"fold:{fold}/{folds}", seed, "rows", traits)
            for fold in range(1, folds + 1)
        ]
        assert sorted(row for part in parts for row in part.held) == [*range(len(keys))]
        if not traits.texts or folds > len({*keys}):
            sizes = {len(part.held) for part in parts}
            assert max(sizes) - min(sizes) <= 1
        for part in parts if traits.texts and folds <= len({*keys}) else ():
            assert {keys[row] for row in part.held}.isdisjoint(keys[row] for row in part.kept)


@given(labels=st.lists(st.sampled_from("aab"), min_size=10, max_size=80), seed=st.integers(0, 5))
def test_labels_have_their_shares_on_both_sides(labels: list[str], seed: int) -> None:
    for count in (0.2, "fold:2/5"):
        found = divide(len(labels), count, seed, "rows", Traits(label=labels))
        held, every = Counter(labels[row] for row in found.held), Counter(labels)
        size = len(found.held)
        assert abs(size - len(labels) / 5) < 1
        assert all(abs(held[name] - every[name] / 5) <= 1 for name in every)


def test_rows_without_equal_ones_are_drawn_as_before() -> None:
    order = [*range(30)]
    random.Random(7).shuffle(order)
    assert divide(30, 6, 7, "rows").held == sorted(order[-6:])
    assert divide(30, "fold:2/4", 7, "rows").held == sorted(order[1::4])
    assert divide(30, 6, 7, "rows").moved == 0


def test_no_held_out_text_is_in_training_and_the_moved_rows_are_counted(tmp_path: Path) -> None:
    drawn = random.Random(3)
    rows = [(f"Text {drawn.randrange(900)}", drawn.choice("ab")) for _ in range(1200)]
    rows = [
        (text.upper() if n % 7 == 0 else f" {text}  ", label)
        for n, (text, label) in enumerate(rows)
    ]
    file = write(tmp_path, "a.csv", rows)
    train, valid = splits_of(train=file, holdout=0.1)
    assert texts_of(train).isdisjoint(texts_of(valid))
    assert len(train) + len(valid) == 1200 and len(valid) == 120
    assert (
        f"{train.report.moved} moved between training and validation, so that equal ones stay together"
        in str(train.report)
    )
    assert 20 < train.report.moved < 100
    held = [{*splits_of(train=file, holdout=f"fold:{n}/4")[1].lines} for n in range(1, 5)]
    assert sum(map(len, held)) == 1200 == len(set().union(*held))


def test_rows_of_too_few_texts_are_on_both_sides_and_counted(tmp_path: Path) -> None:
    rows = [(f"text {n % 2}", "ab"[n % 3 > 0]) for n in range(40)]
    file = write(tmp_path, "a.csv", rows)
    _, valid = splits_of(train=file, holdout=0.1)
    assert len(valid) == 4 and "4 also in the training data" in str(valid.report)


def test_a_text_with_three_random_labels_is_not_held_out_in_part(tmp_path: Path) -> None:
    drawn = random.Random(1)
    rows = [(f"text {n}", drawn.choice("ab")) for n in range(200) for _ in range(3)]
    train, valid = splits_of(train=write(tmp_path, "a.csv", rows), holdout=0.1)
    assert texts_of(train).isdisjoint(texts_of(valid)) and len(valid) == 60


def test_texts_of_a_validation_file_that_are_in_training_are_counted(tmp_path: Path) -> None:
    train = write(tmp_path, "a.csv", [(f"text {n}", "ab"[n % 2]) for n in range(20)])
    valid = write(tmp_path, "b.csv", [("TEXT  3", "a"), ("new", "b"), ("text 7", "b")])
    _, found = splits_of(train=train, valid=valid)
    assert "2 also in the training data" in str(found.report)
    _, found = splits_of(train=train, valid=train)  # the same file on purpose
    assert "also in" not in str(found.report)
    pairs = read_splits(DataSettings(train="embedded:smoke", valid="embedded:smoke:train"))
    assert pairs.valid.report.known == len(pairs.train)


def test_pairs_and_documents_with_equal_texts_stay_together(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"s{n % 40}\tt{n}\n" for n in range(80)), "utf-8")
    pairs = read_pairs(str(tmp_path / "a.tsv"), PLAIN)
    train, held = pairs.hold_out(0.25, 1)
    assert {*train.sources}.isdisjoint(held.sources)
    assert len(held) == 20
    (tmp_path / "a.txt").write_text("".join(f"line {n % 40}\n" for n in range(80)), "utf-8")
    train, held = read_documents(str(tmp_path / "a.txt"), PLAIN).hold_out(0.25, 1)
    assert {*train.texts}.isdisjoint(held.texts) and len(held) == 20


def test_no_group_is_on_both_sides(tmp_path: Path) -> None:
    rows = [(f"text {n}", "ab"[n % 2], f"customer {n % 11}") for n in range(110)]
    file = write(tmp_path, "a.csv", rows, "text,label,customer")
    train, valid = splits_of(train=file, holdout=0.2, group="customer")
    sides = [{row % 11 for row in (line - 2 for line in side.lines)} for side in (train, valid)]
    assert sides[0].isdisjoint(sides[1]) and len(valid) == 20
    assert set(train.columns) == {"text", "label"}
    with pytest.raises(DataError, match="no column 'client'"):
        splits_of(train=file, holdout=0.2, group="client")


@pytest.mark.parametrize("form", ["{:.1f}", "2026-01-{:02.0f}", "2026-01-{:02.0f}T08:30:00Z"])
def test_the_latest_rows_are_held_out(tmp_path: Path, form: str) -> None:
    days = [*range(1, 29)]
    random.Random(2).shuffle(days)
    rows = [(f"text {day}", "ab"[day % 2], form.format(day)) for day in days]
    file = write(tmp_path, "a.csv", rows, "text,label,date")
    _, valid = splits_of(train=file, holdout=7, time="date")
    assert texts_of(valid) == {f"text {day}" for day in range(22, 29)}
    write(tmp_path, "a.csv", [*rows, ("text", "a", "yesterday")], "text,label,date")
    with pytest.raises(DataError, match=r"a\.csv:30: 'date' is 'yesterday', expected a number"):
        splits_of(train=file, holdout=7, time="date")


def test_settings_that_contradict_each_other_are_rejected() -> None:
    for values, message in (
        ({"group": "a"}, "set holdout too"),
        ({"time": "a", "valid": "b.csv"}, "set holdout instead of valid"),
        ({"time": "a", "holdout": "fold:1/2"}, "folds hold out rows of any time"),
        ({"group": "a", "holdout": 0.1, "cache": "c"}, "which have no cache"),
    ):
        with pytest.raises(SettingsError, match=message):
            DataSettings.parse({"train": "a.csv", **values})


@pytest.mark.parametrize("key", ["group", "time"])
@pytest.mark.parametrize("read", [read_pairs, read_documents])
def test_rows_without_groups_and_times_are_rejected(tmp_path: Path, key: str, read: Any) -> None:
    name = "a.tsv" if read is read_pairs else "a.txt"
    (tmp_path / name).write_text("".join(f"s{n}\tt{n}\n" for n in range(9)), "utf-8")
    settings = DataSettings.parse({"train": str(tmp_path / name), "holdout": 2, key: "1"})
    with pytest.raises(SettingsError, match=rf"data\.{key}: only the rows of labelled tasks"):
        read_splits(settings, read=read)


def test_no_later_row_than_a_held_out_one_is_trained_on() -> None:
    """Also if the rows of the latest time are more than are to be held out."""
    times = [1.0, 2.0, 3.0, *[4.0] * 6]
    found = divide(9, 3, 1, "rows", Traits(groups=[str(each) for each in times], time=times))
    assert found.held == [3, 4, 5, 6, 7, 8]
    with pytest.raises(DataError, match="leaves nothing to hold out"):
        divide(9, 2, 1, "rows", Traits(groups=[str(each) for each in times], time=times))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Good FOOD", "\uff27\uff4f\uff4f\uff44 \uff46\uff4f\uff4f\uff44"),  # full width
        ("caf\u00e9", "cafe\u0301"),  # composed, decomposed
        ("good food", "go\u200bod\u00a0food\ufeff"),  # without width
        ("fine", "\ufb01ne"),  # a ligature
        ("stra\u00dfe", "STRASSE"),
        ("1\u202fkg", "1 kg"),
    ],
)
def test_texts_that_read_the_same_are_equal(one: str, other: str) -> None:
    assert normalized(one) == normalized(other)
    assert normalized(one) != normalized(one + "n't")


@given(
    groups=st.lists(st.integers(1, 20), min_size=5, max_size=30),
    labels=st.integers(1, 12),
    seed=st.integers(0, 5),
)
def test_groups_are_held_out_though_each_label_has_few_rows(
    groups: list[int], labels: int, seed: int
) -> None:
    rows = [group for group, size in enumerate(groups) for _ in range(size)]
    names = [str(group % labels) for group in rows]
    size = max(groups)  # an average group is at most this
    if 2 * size >= len(rows):
        return
    held = divide(len(rows), size, seed, "rows", Traits(groups=rows, label=names)).held
    assert abs(len(held) - size) <= max(groups)


def test_a_group_is_held_out_though_it_is_larger_than_the_share_of_its_label() -> None:
    groups = [row // 10 for row in range(200)]
    labels = [str(group % 10) for group in groups]
    for seed in range(5):
        found = divide(200, 0.1, seed, "rows", Traits(groups=groups, label=labels))
        assert len(found.held) == 20 and len({groups[row] for row in found.held}) == 2


def test_folds_of_groups_have_about_equal_sizes() -> None:
    sizes = [40, 40, 40, 20, 20, 20, *[2] * 30]
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    for seed in range(5):
        parts = [
            divide(240, f"fold:{n}/3", seed, "rows", Traits(groups=groups)).held for n in (1, 2, 3)
        ]
        assert [len(part) for part in parts] == [80, 80, 80]
        assert sorted(row for part in parts for row in part) == [*range(240)]


def test_the_only_row_of_a_label_is_trained_on() -> None:
    labels = strata_of(["a"] * 50 + ["b"] * 48 + ["c", "d"])
    for seed in range(40):
        held = divide(100, 0.1, seed, "rows", Traits(label=labels)).held
        assert len(held) == 10 and {98, 99}.isdisjoint(held)
    parts = [divide(100, f"fold:{n}/5", 1, "rows", Traits(label=labels)).held for n in range(1, 6)]
    assert sorted(row for part in parts for row in part) == [*range(100)]


def test_the_rarest_of_several_labels_keeps_its_share() -> None:
    drawn = random.Random(1)
    labels = [drawn.sample("abcdef", drawn.randint(0, 3)) for _ in range(180)]
    labels += [["a", "rare", drawn.choice("bcdef")] for _ in range(20)] + [["a", "once"]]
    for seed in range(10):
        found = divide(201, 0.1, seed, "rows", Traits(label=strata_of(labels)))
        held = Counter(name for row in found.held for name in labels[row])
        assert held["rare"] == 2 and held["once"] == 0


def test_numbers_are_held_out_from_low_to_high() -> None:
    drawn = random.Random(1)
    numbers = [round(drawn.gauss(3, 1), 2) for _ in range(400)]
    low, high = sorted(numbers)[40], sorted(numbers)[-40]
    for form in (str, lambda number: str(number).replace(".", ",")):
        for seed in range(5):
            traits = Traits(label=strata_of([*map(form, numbers)]))
            held = [numbers[row] for row in divide(400, 0.1, seed, "rows", traits).held]
            assert len(held) == 40
            assert 3 <= sum(number < low for number in held) <= 5
            assert 3 <= sum(number > high for number in held) <= 5
    assert strata_of(["1", "2", "10"]) == ["1", "2", "10"]  # classes


def test_a_pair_and_the_swapped_one_stay_together(tmp_path: Path) -> None:
    roles = ROLES | {"pair": Role(("pair",), check_text)}
    rows = [(f"one {n}", f"two {n}", n % 2) for n in range(50)]
    rows += [(second.upper(), first, label) for first, second, label in rows]
    file = write(tmp_path, "a.csv", rows, "text,pair,label")
    train, valid = read_records(file, PLAIN, roles).hold_out(0.2, 1)
    sides = [{(line - 2) % 50 for line in side.lines} for side in (train, valid)]
    assert sides[0].isdisjoint(sides[1]) and len(valid) == 20


def test_a_text_with_other_questions_and_choices_stays_on_one_side(tmp_path: Path) -> None:
    from trifold.objectives.choose import ROLES as CHOOSE

    lines = [
        f'{{"article": "text {n % 30}", "question": "q {n}", "options": ["a {n}", "b"], '
        '"answer": "A"}'
        for n in range(90)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    train, valid = read_records(str(tmp_path / "a.jsonl"), PLAIN, CHOOSE).hold_out(0.2, 1)
    assert texts_of(train).isdisjoint(texts_of(valid)) and len(valid) == 18


def test_summaries_of_equal_texts_stay_together(tmp_path: Path) -> None:
    from trifold.objectives.summarize import SummarizeSettings

    rows = [(f"text {n % 30}", f"summary {n}", f"author {n % 6}") for n in range(90)]
    file = write(tmp_path, "a.csv", rows, "source,summary,author")
    for more in ({}, {"group": "author"}):
        settings = DataSettings.parse({"train": file, "holdout": 0.2, **more})
        train, valid, _ = read_splits(settings, 1, SummarizeSettings().read)
        assert {*train.sources}.isdisjoint(valid.sources) and 15 <= len(valid) <= 18


def test_equal_images_under_other_names_stay_together(tmp_path: Path) -> None:
    from PIL import Image

    from trifold.data.image_sets import read_images
    from trifold.data.images import ImageSettings

    for number in range(24):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), (number % 12 * 9, 7, 7)).save(folder / f"{number}.png")
    read = read_images(str(tmp_path), ImageSettings(size=(4, 4)), 3)
    train, valid = read.hold_out(0.25, 1)
    sides = [{image.tobytes() for image in side.columns["image"]} for side in (train, valid)]
    assert sides[0].isdisjoint(sides[1]) and len(valid) == 6


def json_rows(folder: Path, name: str, values: list[str]) -> str:
    lines = [
        f'{{"text": "text {n}", "label": "{n % 2}", "key": {value}}}'
        for n, value in enumerate(values)
    ]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / name)


def test_a_group_is_the_same_as_number_and_as_text(tmp_path: Path) -> None:
    forms = ["{0}", '"{0}"', "{0}.0", '" {0} "']
    values = [forms[n % 4].format(1 + n % 7) for n in range(84)]
    train, valid = splits_of(train=json_rows(tmp_path, "a.jsonl", values), holdout=12, group="key")
    sides = [{(line - 1) % 7 for line in side.lines} for side in (train, valid)]
    assert sides[0].isdisjoint(sides[1]) and len(valid) == 12
    names = ['"Jos\u00e9 P"', '"JOSE\u0301  P"', '"b"', '"B "', '"c"', '"C"', '"d"', '"D"']
    train, valid = splits_of(train=json_rows(tmp_path, "b.jsonl", names), holdout=2, group="key")
    assert valid.lines in ([1, 2], [3, 4], [5, 6], [7, 8])


@pytest.mark.parametrize("missing", ["null", "NaN", '""', '" "', '"nan"'])
@pytest.mark.parametrize("key", ["group", "time"])
def test_a_missing_group_or_time_is_an_error_with_its_line(
    tmp_path: Path, key: str, missing: str
) -> None:
    file = json_rows(tmp_path, "a.jsonl", ["1", "2", "3", missing, "4"])
    with pytest.raises(DataError, match=r"a\.jsonl:4: 'key'.* expected "):
        splits_of(train=file, holdout=2, **{key: "key"})


def test_a_blank_row_that_is_kept_has_no_time(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", [("a", "b", 1), ("c", "d", 2), ("e", "f", 3)], "text,label,t")
    Path(file).write_text(Path(file).read_text("utf-8").replace("c,d,2", ""), "utf-8")
    with pytest.raises(DataError, match=r"a\.csv:3: data\.time: a blank row has none"):
        splits_of(train=file, holdout=1, time="t", blank="keep")


def test_numbers_and_dates_are_not_mixed(tmp_path: Path) -> None:
    file = json_rows(tmp_path, "a.jsonl", ['"2024-05-01"', "20240502", '"2024-05-03"'])
    with pytest.raises(DataError, match=r"a\.jsonl:2: data\.time: numbers and dates are mixed"):
        splits_of(train=file, holdout=1, time="key")


def test_times_of_other_zones_are_compared_as_moments(tmp_path: Path) -> None:
    values = ['"2026-01-01T23:00-05:00"', '"2026-01-02T03:00Z"', '"2026-01-02"', '"2026-01-02T02"']
    _, valid = splits_of(train=json_rows(tmp_path, "a.jsonl", values), holdout=1, time="key")
    assert valid.lines == [1]


def test_groups_and_times_of_rows_in_memory() -> None:
    """As pandas, Polars and numpy give them."""
    from trifold.data.frames import name_frames

    def held(key: str, values: list[Any]) -> Any:
        rows = [{"text": f"t {n}", "label": "ab"[n % 2], key: x} for n, x in enumerate(values)]
        names = name_frames("data", {"train": rows})
        return splits_of(**names, holdout=2, **{key: key})[1].columns["text"]

    days = [*range(9, 0, -1)]
    for kind in (date, datetime):
        assert held("time", [kind(2026, 1, day) for day in days]) == ["t 0", "t 1"]
    assert held("time", [np.datetime64(f"2026-01-0{day}", "ns") for day in days]) == ["t 0", "t 1"]
    assert held("time", [np.float32(day) for day in days]) == ["t 0", "t 1"]
    with pytest.raises(DataError, match=r"'time' is .*, expected a number or a date"):
        held("time", [*days, np.datetime64("NaT")])
    assert held("group", [1.0, 1, np.int64(2), 2.0, 3, 3]) in (
        ["t 0", "t 1"],
        ["t 2", "t 3"],
        ["t 4", "t 5"],
    )
    with pytest.raises(DataError, match=r"'group' is None, expected the name or the number"):
        held("group", [1.0, 1.0, 2.0, 2.0, float("nan")])
