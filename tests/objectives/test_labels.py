"""Labels: what is one, what is none, which problem they pose, and their order in a head."""

from __future__ import annotations

import json
from math import nan
from types import SimpleNamespace

import pytest
import torch
from tests.models import ONE_LAYER, add_noise
from tests.train.runs import RecordingView

import trifold
from trifold.data import DataSettings, Rows, read_records
from trifold.data.roles import MISSING
from trifold.errors import DataError
from trifold.nn import ModelConfig, Transformer
from trifold.objectives import choose, embed, tag
from trifold.objectives.labels import (
    ROLES,
    SEVERAL,
    check_commas,
    class_names,
    leave_out_unknown,
    order_labels,
    read_label,
    read_number,
    report_similar,
    write_whole_numbers,
)
from trifold.pipeline import Pipeline
from trifold.recipe import load_recipe
from trifold.text import TokenizerSettings, train_tokenizer
from trifold.train.data import load_data
from trifold.train.initial_weights import new_model

# --- one label, several, none ---------------------------------------------------------------------

NONE = (None, nan, "", "  ", "NaN", "nan", "null", "NULL", "<NA>", "#N/A")


@pytest.mark.parametrize("value", NONE)
def test_null_nan_and_blank_cells_are_no_label(value):
    assert read_label(value, "a.csv:1: 'label'") is MISSING


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (" good ", "good"),
        ("good\u00a0", "good"),
        ("None", "None"),  # names of classes in many files
        ("n/a", MISSING),
        ("-", "-"),
        (True, "True"),
        ("['a', 'b']", ["a", "b"]),
        ("['a' 'b c']", ["a", "b c"]),  # as numpy writes it
        ('["it\'s", "b"]', ["it's", "b"]),
        ("['it\\'s', \"b\"]", ["it's", "b"]),
        ("[]", []),
        ("set()", []),  # the empty set of Python
        ("[1, 2]", ["1", "2"]),
        ("[1. 2.]", ["1.0", "2.0"]),
        ([" a", "b ", ""], ["a", "b"]),
        ("('a', \"b c\")", ["a", "b c"]),
        ("{'a'}", ["a"]),
        ("(1, 2)", "(1, 2)"),
        ("(none)", "(none)"),
        ("[sic]", "[sic]"),
        ("[UNK] or [PAD]", "[UNK] or [PAD]"),
    ],
)
def test_a_cell_is_read_as_what_it_is(value, label):
    assert read_label(value, "a.csv:1: 'labels'") == label


@pytest.mark.parametrize(
    "value", [[["bad"]], '[["bad"]]', "[['bad']]", "[a, b]", "['a', b]", "array(['a'])"]
)
def test_lists_that_are_not_clear_are_refused_with_a_remedy(value):
    with pytest.raises(DataError, match=r"here is .*; write (it as JSON|one list of labels)"):
        read_label(value, "here")


ROWS = [("so good", "good"), ("so bad", " bad"), ("no word", None), ("fine", "good "), ("odd", nan)]


def write(folder, kind):
    """ROWS as a file of this format, as pandas writes it."""
    path, sign = folder / f"rows.{kind}", "\t" if kind == "tsv" else ","
    if kind == "jsonl":
        lines = [json.dumps({"text": text, "label": label}) for text, label in ROWS]
    else:
        cells = [(text, "" if label is None else str(label)) for text, label in ROWS]
        lines = [sign.join(row) for row in [("text", "label"), *cells]]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("blank", ["drop", "keep"])
def test_rows_without_a_label_are_left_out_and_counted_in_every_format(tmp_path, kind, blank):
    found = read_records(write(tmp_path, kind), DataSettings(blank=blank), ROLES)
    assert found.columns["label"] == ["good", "bad", "good"]
    assert found.columns["text"] == ["so good", "so bad", "fine"]
    assert "5 rows, 2 without a label (left out)" in str(found.report)
    assert str(found.report).endswith("; 3 used")


def test_a_file_without_any_label_is_an_error_with_the_counts(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,\nb,NaN\n")
    with pytest.raises(DataError, match=r"no row is left \(2 read, 0 blank, 2 without a label\)"):
        read_records(str(tmp_path / "a.csv"), DataSettings(), ROLES)


def test_a_text_may_have_no_label_where_it_may_have_several(tmp_path):
    rows = [{"text": f"t{n}", "label": label} for n, label in enumerate(["a,b", "", [], None, "a"])]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    roles = ROLES | {"label": SEVERAL}
    found = read_records(str(tmp_path / "a.jsonl"), DataSettings(), roles)
    assert found.columns["label"] == ["a,b", "", [], "a"]
    assert "1 without a label (left out)" in str(found.report)


@pytest.mark.parametrize(
    ("roles", "rows", "kept"),
    [
        (tag.ROLES, [{"tokens": ["a"], "ner_tags": tags} for tags in (["O"], None, "['B-X ']")], 2),
        (
            choose.ROLES,
            [{"text": "a", "choices": ["b", "c"], "label": x} for x in (0, -1, None, "", "1")],
            2,
        ),
        (
            embed.COLUMNS,
            [{"text1": "a", "text2": "b", "score": x} for x in (0.5, "n/a", nan, "1,5")],
            2,
        ),
    ],
)
def test_other_tasks_leave_out_rows_without_a_label_too(tmp_path, roles, rows, kept):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_records(str(tmp_path / "a.jsonl"), DataSettings(), roles)
    assert len(found) == kept
    assert f"{len(rows) - kept:,} without a label (left out)" in str(found.report)
    if "tags" in roles:
        assert found.columns["tags"] == [["O"], ["B-X"]]


def records_of(labels, name="rows.csv", column="label"):
    rows = Rows(
        {
            "text": [f"text {n}" for n in range(len(labels))],
            "pair": [None] * len(labels),
            "label": list(labels),
        },
        list(range(2, len(labels) + 2)),
    )
    rows.report.name, rows.report.columns = name, {"label": column}
    return rows


@pytest.mark.parametrize(
    ("labels", "names", "left_out"),
    [
        (["0", "1", "2", "-1"], None, True),  # SNLI
        (["1", "5", "-1"], None, True),
        (["0.0", "2.0", "-1.0"], None, False),  # decimals
        (["-1", "0", "1"], None, False),  # negative, neutral, positive
        (["-1", "1"], None, False),
        (["-2", "-1", "0", "2"], None, False),
        (["-1", "good", "bad"], None, False),
        (["-1", "0", "1"], ["0", "1", "2"], True),  # a part of the rows of such a model
        (["-1", "0", "2"], ["-1", "0", "2"], False),
    ],
)
def test_minus_one_is_no_label_beside_numbers_from_zero(labels, names, left_out):
    lines, model = [], SimpleNamespace(problem_type=None, label_names=names)
    context = SimpleNamespace(model=model, report=lines.append)
    rows = records_of(labels)
    train, valid = leave_out_unknown(context, rows, records_of(["-1", "2", "-1"], "valid.csv"))
    expected = [label for label in labels if not (left_out and label == "-1")]
    assert train.columns["label"] == expected
    assert len(valid) == (1 if left_out else 3)
    assert train.report.columns == {"label": "label"}
    assert bool(lines) == left_out
    if left_out:
        assert lines[1] == ("valid.csv: 2 rows with the label -1, which stands for none: left out")


def test_rows_of_which_each_is_minus_one_are_refused():
    model = SimpleNamespace(problem_type=None, label_names=["0", "1", "2"])
    context = SimpleNamespace(model=model, report=print)
    with pytest.raises(DataError, match=r"test\.csv: the label of every row is -1"):
        leave_out_unknown(context, records_of(["0", "2"]), records_of(["-1", "-1"], "test.csv"))


@pytest.mark.slow
def test_minus_one_is_left_out_before_rows_are_held_out(report_of):
    """With this seed, a row without a label would be the only one that is held out."""
    rows = table("label", ["0", "1", "2", "-1", "-1", "0", "1", "2"])
    config, lines = report_of(rows, **{"data.valid": None, "data.holdout": 0.1})
    assert config.label_names == ("0", "1", "2")
    assert sum("2 rows with the label -1" in line for line in lines) == 1
    assert sum("held out of rows.csv: 1 row" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("column", "labels", "names"),
    [
        ("label", ["0.0", "1.0", ""], ("0", "1")),  # pandas, of whole numbers with a missing one
        ("label", ["0.0", "2.0", "1.0", "-1.0", "NaN"], ("0", "1", "2")),
        ("label", ["0.0", "1.0", "1.0"], ("0.0", "1.0")),
        ("label", ["0.0", "1", "1.0", "0"], ("0", "1")),  # the same numbers
        ("label", ["0.5", "1.0", ""], ("0.5", "1.0")),
        ("score", ["0.0", "1.0", ""], ("score",)),
    ],
)
def test_whole_numbers_beside_missing_ones_stay_whole(report_of, column, labels, names):
    assert report_of(table(column, labels))[0].label_names == names


def test_whole_numbers_of_two_files_are_the_same_classes():
    train, valid = records_of(["0", "1"]), records_of(["0.0", "1.0"], "valid.csv")
    write_whole_numbers(train, valid)
    assert train.columns["label"] == valid.columns["label"] == ["0", "1"]


def test_labels_that_differ_only_in_case_or_space_are_named():
    lines = []
    labels = ["Good", "bad", "good", "very  sad", "very sad", "caf\u00e9", "cafe\u0301", "fine"]
    report_similar(SimpleNamespace(report=lines.append), labels)
    assert [line.partition(" differ only")[0] for line in lines] == [
        "warning: the labels 'Good' and 'good'",
        "warning: the labels 'very  sad' and 'very sad'",
        "warning: the labels 'caf\u00e9' and 'cafe\u0301'",
    ]


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3,5", 3.5), ("-0,25", -0.25), (",5", 0.5), ("\N{MINUS SIGN}2.5", -2.5), ("1e-3", 0.001), ("7", 7),
        ("nan", None), ("inf", None), ("45%", None), ("1.234,5", None), ("3/5", None), ("", None), (["1"], None),
    ],
)  # fmt: skip
def test_numbers_are_read_with_a_point_or_a_comma(text, number):
    assert read_number(text) == number


def test_commas_that_may_separate_thousands_are_refused():
    with pytest.raises(DataError, match=r"rows\.csv:2: '1,234' is 1234 or 1\.234; write numbers"):
        check_commas(records_of(["1,234", "12,500"]))
    check_commas(records_of(["1,234", "12,5"]))
    check_commas(records_of(["0,234", "2"]))


@pytest.fixture
def report_of(tmp_path):
    """The config and the reported lines of a classification of a file with this content."""

    def read(content, name="rows.csv", **changes):
        path, view = tmp_path / name, RecordingView()
        path.write_text(content, encoding="utf-8")
        files = {"data.train": str(path), "data.valid": str(path)}
        # The linear path is the subject of test_linear_path.py; it takes half of the time here.
        sizes = {"model.d_model": 16, "model.n_layers": 1, "tokenizer.min_frequency": 1}
        sizes |= {"model.linear_path": False}
        recipe = load_recipe("classify", sizes | files | changes)
        return load_data(recipe, tmp_path / "tokenizer", view).config, view.lines

    return read


def table(column, labels):
    cells = (f'"{label}"' if "," in label else label for label in labels)
    return f"text,{column}\n" + "".join(f"text {n},{cell}\n" for n, cell in enumerate(cells))


@pytest.mark.parametrize(
    "labels",
    [
        [f"{n // 10},{n % 10}" for n in range(40)],
        [f"{n / 10}" for n in range(40)] + ["NaN"],
        [f"{n}e-1" for n in range(1, 9)],
    ],
)
def test_scores_that_are_written_in_another_way_are_numbers(report_of, labels):
    config, lines = report_of(table("score", labels))
    assert (config.problem_type, config.n_labels) == ("regression", 1)
    assert any("'score' has decimals: regression" in line for line in lines)


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        (["0.5", "1.5", "much", "2.5"], "rows.csv:4: 'much' in 'score'"),
        (["45%", "50%", "7%"], "rows.csv:2: '45%' in 'score'"),
        (["3/5", "4/5"], "rows.csv:2: '3/5' in 'score'"),
        (["$3.99", "2.5"], r"rows.csv:2: '\$3.99' in 'score'"),
        (["1 234.5", "2.5", "3"], "rows.csv:2: '1 234.5' in 'score'"),
    ],
)
def test_scores_that_are_no_numbers_do_not_become_classes(report_of, labels, place):
    with pytest.raises(DataError, match=f"{place} is not a number that can be read; write it as"):
        report_of(table("score", labels))


def test_scores_of_words_are_classes(report_of):
    config, _ = report_of(table("score", ["high", "low", "high"]))
    assert config.label_names == ("high", "low")


# --- several labels in a cell ---------------------------------------------------------------------


def test_cells_of_a_column_of_labels_hold_several(report_of):
    config, lines = report_of(table("labels", ["a, b", "a", "b, c"]))
    assert config.problem_type == "multi_label_classification"
    assert config.label_names == ("a", "b", "c")
    assert any("',' separates labels in 'labels'" in line for line in lines)


def test_a_comma_in_the_name_of_a_class_is_part_of_it(report_of):
    config, lines = report_of(table("label", ["arts, crafts", "toys", "toys"]))
    assert config.label_names == ("arts, crafts", "toys")
    assert not any("several" in line for line in lines)


def test_cells_that_look_like_several_labels_are_named(report_of):
    config, lines = report_of(table("label", ["a, b", "a", "b"]))
    assert config.label_names == ("a", "a, b", "b")
    assert any("'a, b' may be several labels; model.problem_type=multi" in line for line in lines)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("labels", "warns"),
    [
        (["45 %", "1 %", "3 %"], True),
        (["$1", "$2.50", "$3"], True),
        (["4/5", "1/5"], True),
        (["1 star", "2 stars"], False),
        (["4", "1"], False),
    ],
)
def test_classes_that_look_like_numbers_are_named(report_of, labels, warns):
    config, lines = report_of(table("rating", labels))
    assert len(config.label_names) == len(labels)
    assert any("look like numbers and are classes" in line for line in lines) == warns


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("sign", [";", "|", "/"])
def test_another_sign_between_labels_is_named(report_of, sign):
    _, lines = report_of(table("labels", [f"a{sign}b", "a", "b"]))
    assert sum(f"task.label_separator={sign!r} separates them" in line for line in lines) == 1


@pytest.mark.parametrize(
    "labels",
    [
        ["[1, 0]", "[0, 1]"],
        ["[1.0, 0.0, 0.0]", "[0.0, 1.0, 1.0]"],
    ],
)
def test_zeros_and_ones_for_each_label_are_refused(report_of, labels):
    with pytest.raises(DataError, match=r"rows\.csv:2: .* has a 0 or a 1 for each label"):
        report_of(table("label", labels))


def test_numbers_of_classes_in_lists_are_several_labels(report_of):
    config, _ = report_of(table("label", ["[0, 1]", "[1]", "[0]"]))
    assert config.label_names == ("0", "1")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("column", ["tags", "topics", "genres"])
def test_a_column_of_several_labels_is_known_by_its_name(report_of, column):
    config, _ = report_of(table(column, ["['a', 'b']", "['a']", "['b']"]))
    assert config.label_names == ("a", "b")


def test_lists_in_cells_are_several_labels(report_of):
    config, _ = report_of(table("label", ["['a', 'b']", "['a']", "[]"]))
    assert (config.problem_type, config.label_names) == ("multi_label_classification", ("a", "b"))


@pytest.mark.parametrize("labels", [["['a', 'b']", "['a']", "['b']"], ["[]", "[]", "[]"]])
def test_lists_in_cells_need_no_header(report_of, labels):
    content = table("labels", labels).partition("\n")[2]
    if labels[0] == "[]":
        with pytest.raises(DataError, match=r"rows\.csv: no row has a label, and classification"):
            report_of(content)
    else:
        assert report_of(content)[0].label_names == ("a", "b")


# --- the head of the model that training starts from ----------------------------------------------

TEXTS = ["warm food", "cold food", "so good", "so bad", "warm", "cold"]
SIZES = ONE_LAYER | {
    "shape": "encoder", "max_positions": 16, "positions": "learned", "n_token_types": 2,
    "dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
HEADS = {"sequence": ("pooler", "sequence"), "token": ("token",)}


@pytest.fixture
def start(tmp_path):
    """Write a model with a head to start from, and return its folder."""

    def write(names, head="sequence", **more):
        settings = TokenizerSettings(kind="word", min_frequency=1, special=["cls", "sep", "mask"])
        tokenizer = train_tokenizer(TEXTS, settings)
        ids = {f"{name}_id": tokenizer.required(name) for name in ("pad", "bos", "eos")}
        values = {"vocab_size": tokenizer.vocab_size, "heads": HEADS[head], **ids, **more}
        reads = {"classifier_input": "pooler"} if head == "sequence" else {}
        names = names if names is None else tuple(names)
        config = ModelConfig.parse(SIZES | values | reads | {"label_names": names})
        torch.manual_seed(5)
        Pipeline(add_noise(Transformer(config), 0.3), tokenizer).save(tmp_path / "start")
        return tmp_path / "start"

    return write


@pytest.fixture
def continued(tmp_path):
    """The model before the first step of a run from a folder, and what is reported."""

    def load(folder, rows, task="classify", **changes):
        path, view = tmp_path / "rows.jsonl", RecordingView()
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        values = {"start_from": str(folder), "data.train": str(path), "data.valid": str(path)}
        data = load_data(load_recipe(task, values | changes), tmp_path / "tokenizer", view)
        return new_model(data), view.lines

    return load


def rows_with(labels, **keys):
    found = zip(TEXTS, labels * 6, strict=False)
    return [{"text": text, "label": label} for text, label in found]


def tagged(tags):
    return [{"tokens": text.split(), "tags": [*tags][: len(text.split())]} for text in TEXTS] + [
        {"tokens": ["warm"] * len(tags), "tags": [*tags]}
    ]


def head_of(model, head="sequence"):
    return model.heads[head].out_proj


def test_equal_labels_keep_the_order_and_the_predictions(start, tmp_path):
    folder, run, path = start(["good", "bad"]), tmp_path / "run", tmp_path / "rows.jsonl"
    rows = rows_with(["bad", "good"])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    few = {
        "train.steps": 1,
        "train.schedule": "constant",
        "train.warmup": 0,
        "train.validate_every": 1,
        "train.save_every": 1,
    }
    trifold.train(
        "classify", out=run, start_from=str(folder), view=RecordingView(),
        **few | {"train.learning_rate": 1e-9, "data.train": str(path), "data.valid": str(path)},
        **{"train.device": "cpu", "train.precision": "float32"},
    )  # fmt: skip
    before, after = (trifold.load(each) for each in (folder, run))
    assert after.config.labels == ("good", "bad")
    for old, new in zip(before.classify(TEXTS), after.classify(TEXTS), strict=True):
        assert [each.label for each in new] == [each.label for each in old]
        assert [each.score for each in new] == pytest.approx([each.score for each in old], abs=1e-6)


CASES = {
    "tags": (["B-X", "O", "I-X"], "token", {}, lambda names: tagged(sorted(names))),
    "several": (["z", "a", "m"], "sequence", {"problem_type": "multi_label_classification"},
                lambda names: rows_with([["a", "z"], ["m"], []])),
    "several in a cell": (["z", "a", "m"], "sequence", {"problem_type": "multi_label_classification"},
                          lambda names: rows_with(["a, z", "m", "a"])),
    "numbers": (None, "sequence", {}, lambda names: rows_with([1, 0])),
    "many numbers": (None, "sequence", {"n_labels": 12}, lambda names: [
        {"text": f"warm {n}", "label": n} for n in range(12)]),
    "numbers as tags": (None, "token", {"n_labels": 12}, lambda names: tagged([*map(str, range(12))])),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_heads_of_equal_labels_are_copied(start, continued, case):
    names, head, more, rows = CASES[case]
    folder = start(names, head, **{"n_labels": len(names or "ab"), **more})
    task = {"task.best_by": "accuracy"} if head == "token" else {}
    model, lines = continued(folder, rows(names), "tag" if task else "classify", **task)
    theirs = trifold.load(folder).model
    assert model.config.labels == class_names(theirs.config)[-1]
    assert torch.equal(head_of(model, head).weight, head_of(theirs, head).weight)
    assert torch.equal(head_of(model, head).bias, head_of(theirs, head).bias)
    assert not any("the head is new" in line for line in lines)


@pytest.mark.parametrize(
    ("names", "labels", "words"),
    [
        (["Good", "Bad"], ["good", "bad"], "its labels are 'Good', 'Bad', and here 'bad', 'good'; give the data"),
        (["good", "bad"], ["yes", "no"], "its labels are 'good', 'bad', and here 'no', 'yes'"),
        (["good", "bad", "odd"], ["bad", "good"], "its labels are 'good', 'bad', 'odd', and here 'bad', 'good'"),
        (["good", "bad"], ["bad", "good", "odd"], "and here 'bad', 'good', 'odd'"),
        (None, ["bad", "good"], "'LABEL_0', 'LABEL_1', and here 'bad', 'good'; name them in that order in model.la"),
        (None, ["1", "2"], "its labels are 'LABEL_0', 'LABEL_1', and here '1', '2'"),
    ],
)  # fmt: skip
def test_other_labels_get_a_new_head_and_it_is_said(start, continued, names, labels, words):
    folder = start(names, n_labels=len(names or "ab"))
    model, lines = continued(folder, rows_with(labels))
    theirs = trifold.load(folder).model
    assert model.config.labels == tuple(sorted(labels))
    new, old = head_of(model).weight, head_of(theirs).weight
    assert new.shape != old.shape or not torch.allclose(new, old, atol=1e-2)
    (line,) = (line for line in lines if "start_from: " in line)
    assert "the head is new, because " in line and words in line
    assert "2 new (heads.sequence.out_proj.bias" in line
    pooler = "pooler"  # is not of the labels
    assert torch.equal(model.heads[pooler].dense.weight, theirs.heads[pooler].dense.weight)


@pytest.mark.parametrize(("names", "order"), [(["good", "bad"], [1, 0]), (None, [0, 1])])
def test_names_in_the_recipe_decide_the_order(start, continued, names, order):
    folder = start(names)
    given = {"model.label_names": ["bad", "good"], "model.n_labels": 2}
    model, lines = continued(folder, rows_with(["bad", "good"]), **given)
    assert model.config.labels == ("bad", "good")
    theirs = trifold.load(folder).model
    assert torch.equal(head_of(model).weight, head_of(theirs).weight[order])
    assert not any("the head is new" in line for line in lines)


def test_the_order_is_that_of_the_model_with_the_same_labels():
    names = ModelConfig(label_names=("b", "a"))
    assert order_labels(names, ["a", "b"]) == ("b", "a")
    assert order_labels(names, ["a", "c"]) == ("a", "c")
    assert order_labels(None, ["b", "c"]) == ("b", "c")
