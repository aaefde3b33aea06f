"""`trifold predict` on tables: rows and their order are kept, and an interrupted output continues
to the same bytes.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from tests.cli.readers import HEADS, folder_of
from tests.text.folders import WORDS

import trifold as library
from trifold import disk
from trifold.cli.predict import _digests
from trifold.cli.predictor import Predictor
from trifold.cli.tables import open_table, print_once
from trifold.cli.terminal import check_not_read
from trifold.errors import UsageError
from trifold.recipe import load_recipe

pytestmark = pytest.mark.slow

TEXTS = [" ".join(WORDS[n : n + 2 + n % 5]) for n in range(9)] + [
    'a "quoted", text\nof two lines',
    "\u200b",
    " ",
]
ROWS = [{"id": str(n), "text": text, "label": "good"} for n, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("readers")
    found = {task: folder_of(task, root / task) for task in HEADS}
    for problem in ("regression", "multi_label_classification"):
        found[problem] = folder_of("classify", root / problem, problem_type=problem)
    found["regression"] = folder_of(
        "classify", root / "number", problem_type="regression", n_labels=1, label_names=["score"]
    )
    return found


def write(path: Path, rows: list[dict[str, str]] = ROWS) -> Path:
    """A table in the format of its suffix; TSV without tabs and line ends."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    elif path.suffix == ".parquet":
        arrow, parquet = (pytest.importorskip(each) for each in ("pyarrow", "pyarrow.parquet"))
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            dialect = (
                {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
                if path.suffix == ".tsv"
                else {}
            )
            table = csv.DictWriter(file, [*rows[0]], lineterminator="\n", **dialect)
            table.writeheader()
            table.writerows(rows)
    return path


def read(path: Path) -> list[dict[str, str]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    with path.open(encoding="utf-8-sig", newline="") as file:
        dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
        return [*csv.DictReader(file, **dialect)]


FORMATS = [
    ("a.csv", "b.csv"),
    ("a.csv", "b.jsonl"),
    ("a.jsonl", "b.csv"),
    ("a.tsv", "b.tsv"),
    ("a.parquet", "b.jsonl"),
]


@pytest.mark.parametrize(("source", "target"), FORMATS)
def test_rows_are_kept_in_order_with_their_predictions(trifold, models, tmp_path, source, target):
    rows = [row for row in ROWS if "\n" not in row["text"]] if ".tsv" in source else ROWS
    table, out = write(tmp_path / source, rows), tmp_path / target
    done = trifold(
        "predict", str(models["classify"]), str(table), "--out", str(out), "--batch-size", "4"
    )
    assert done.code == 0, done.err
    assert f"{source}: text 'text', label 'label'" in done.err.replace("\n    ", " ")
    assert f"2 of {len(rows)} lines are blank" in done.err
    assert done.err.count("new rows: ") == 1
    found = read(out)
    assert [{key: row[key] for key in ("id", "text", "label")} for row in found] == rows
    assert [*found[0]] == ["id", "text", "label", "prediction", "score"]
    best = library.load(models["classify"]).classify([row["text"] for row in rows[:-2]], top_k=1)
    assert [row["prediction"] for row in found] == [
        *(each[0].label for each in best),
        *[found[-1]["prediction"]] * 2,
    ]
    assert found[-1]["prediction"] in ("", None) and found[-1]["score"] in ("", None)
    scores = [each[0].score for each in best]
    assert [float(row["score"]) for row in found[:-2]] == pytest.approx(scores, abs=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source, target])


NAMED = ["data.columns.text=satz", "data.columns.label=urteil"]
# Header -> settings of the recipe, and the columns that are read. Rows differ in all columns.
COLUMNS = {
    "text,label": ([], "text 'text', label 'label'"),
    "satz,urteil": (NAMED, "text 'satz', label 'urteil'"),
    "id,satz,urteil": (NAMED, "text 'satz', label 'urteil'; kept: id"),
    "id,satz": (NAMED, "text 'satz'; no labels; kept: id"),
    "satz,Nr.": (NAMED, "text 'satz'; no labels; kept: Nr."),
    "kennung,satz": (NAMED, "text 'satz'; no labels; kept: kennung"),
    "kennung,text": ([], "text 'text'; no labels; kept: kennung"),
    "kennung,text,label": ([], "text 'text', label 'label'; kept: kennung"),
    "index,text": ([], "text 'text'; no labels; kept: index"),
    "text": ([], "text 'text'; no labels"),
}


@pytest.mark.parametrize("header", COLUMNS)
def test_a_number_of_rows_is_no_label(tmp_path, capsys, header):
    settings, message = COLUMNS[header]
    width = header.count(",") + 1
    rows = [",".join([f"value {row}"] * width) for row in range(30)]
    table = tmp_path / "a.csv"
    table.write_text("\n".join([header, *rows]) + "\n", "utf-8")
    recipe = load_recipe("classify", ["data.train=b.csv", *settings])
    next(open_table([str(table)], "classify", recipe).inputs())
    assert f"a.csv: {message}\n" in capsys.readouterr().err.replace("\n    ", " ")


def test_a_column_of_few_values_may_be_a_label(tmp_path, capsys):
    table = tmp_path / "a.csv"
    table.write_text("satz,art\n" + "".join(f"s {n},{n % 3}\n" for n in range(30)), "utf-8")
    recipe = load_recipe("classify", ["data.train=b.csv", *NAMED])
    next(open_table([str(table)], "classify", recipe).inputs())
    assert "text 'satz', label 'art'\n" in capsys.readouterr().err


@pytest.mark.parametrize("torn", [b"", b'7,"half of'])
@pytest.mark.parametrize("windows", [0, 1, 2])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_output_continues_to_the_same_bytes(
    trifold, models, tmp_path, monkeypatch, windows, torn, workers
):
    table = write(tmp_path / "a.csv")
    command = ["predict", str(models["classify"]), str(table), "--batch-size", "4", "--out"]
    assert trifold(*command, str(tmp_path / "whole.csv")).code == 0
    monkeypatch.setattr(Predictor, "workers", lambda self: workers)
    flushed, flush = [], disk.flush

    def interrupt(file):
        flush(file)
        if file.name.endswith(".part"):
            flushed.append(file)
            if len(flushed) > windows:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disk, "flush", interrupt)
        assert trifold(*command, str(tmp_path / "b.csv")).code == 130
    assert not (tmp_path / "b.csv").exists()
    with (tmp_path / "b.csv.part").open("ab") as file:
        file.write(torn)
    done = trifold(*command, str(tmp_path / "b.csv"))
    assert done.code == 0, done.err
    assert (f"continues after row {4 * windows}" in done.err) == (windows > 0)
    assert (tmp_path / "b.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.parametrize("task", ["classify", "tag", "embed", "answer"])
def test_workers_write_the_same_bytes_and_messages(trifold, models, tmp_path, monkeypatch, task):
    rows = [*ROWS[:9], *({**row, "text": f"{row['text']} ☃{row['id']}"} for row in ROWS[:9])]
    rows += ROWS[10:]
    if task == "answer":
        rows = [{"question": row["text"], "context": "the fox"} for row in rows[:18]]
    table = write(tmp_path / "a.jsonl", rows)
    outputs = []
    for workers in (1, 3):
        monkeypatch.setattr(Predictor, "workers", lambda self, workers=workers: workers)
        print_once.cache_clear()
        out = tmp_path / f"{workers}.jsonl"
        command = ["predict", str(models[task]), str(table), "--batch-size", "3"]
        done = trifold(*command, "--on-overflow", "truncate", "--out", str(out))
        assert done.code == 0, done.err
        outputs.append((out.read_bytes(), done.err))
    assert outputs[0] == outputs[1]


def test_workers_write_all_windows_before_a_text_that_is_too_long(
    trifold, models, tmp_path, monkeypatch
):
    monkeypatch.setattr(Predictor, "workers", lambda self: 3)
    rows = [*ROWS[:7], {**ROWS[0], "text": "fox " * 99}, *ROWS[:9]]
    table = write(tmp_path / "a.csv", rows)
    command = ["predict", str(models["classify"]), str(table), "--batch-size", "3"]
    done = trifold(*command, "--out", str(tmp_path / "b.csv"))
    assert done.code == 1 and "a.csv:9: 101 tokens" in done.err
    assert (tmp_path / "b.csv.part").read_text("utf-8").count("\n") == 1 + 6


@pytest.mark.parametrize("other", ["input", "model", "option"])
def test_an_output_of_another_command_is_not_continued(
    trifold, models, tmp_path, monkeypatch, other
):
    table, out, rename = write(tmp_path / "a.csv"), str(tmp_path / "b.csv"), disk.rename

    def interrupt(old, new):
        if old.suffix == ".part":
            raise KeyboardInterrupt
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", interrupt)
        assert trifold("predict", str(models["classify"]), str(table), "--out", out).code == 130
    if other == "input":
        write(table, ROWS[1:])
    model = models["regression" if other == "model" else "classify"]
    option = ["--batch-size", "3"] * (other == "option")
    before = (tmp_path / "b.csv.part").read_bytes()
    done = trifold("predict", str(model), str(table), "--out", out, *option)
    assert (
        done.code == 2 and "b.csv.part: has another input, model or option; name anot" in done.err
    )
    assert (tmp_path / "b.csv.part").read_bytes() == before
    done = trifold("predict", str(model), str(table), "--out", out, *option, "--overwrite")
    assert done.code == 0 and len(read(tmp_path / "b.csv")) == len(ROWS) - (other == "input")


@pytest.mark.parametrize("left", [0, 20])
def test_a_part_that_has_lost_its_end_is_not_continued(
    trifold, models, tmp_path, monkeypatch, left
):
    table, out, rename = write(tmp_path / "a.csv"), str(tmp_path / "b.csv"), disk.rename

    def interrupt(old, new):
        if old.suffix == ".part":
            raise KeyboardInterrupt
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", interrupt)
        assert trifold("predict", str(models["classify"]), str(table), "--out", out).code == 130
    part = tmp_path / "b.csv.part"
    part.write_bytes(part.read_bytes()[:left])
    done = trifold("predict", str(models["classify"]), str(table), "--out", out)
    assert done.code == 2 and "b.csv.part: is shorter than b.csv.part.json" in done.err
    assert part.stat().st_size == left and not Path(out).exists()


def test_an_output_through_a_link_is_written_where_it_leads(trifold, models, tmp_path):
    table, real = write(tmp_path / "a.csv"), tmp_path / "real" / "b.csv"
    real.parent.mkdir()
    real.write_text("old", "utf-8")
    (tmp_path / "link.csv").symlink_to(real)
    for inputs in ([str(table)], ["a text", "--text"]):
        done = trifold(
            *("predict", str(models["classify"]), *inputs),
            *("--out", str(tmp_path / "link.csv"), "--overwrite"),
        )
        assert done.code == 0, done.err
        assert (tmp_path / "link.csv").is_symlink()
        assert "prediction" in real.read_text("utf-8") or len(inputs) > 1
        assert [path.name for path in real.parent.iterdir()] == ["b.csv"]


@pytest.mark.parametrize("suffix", [".txt.gz", ".jsonl.ZST", ".csv.gz", ".zip"])
def test_an_output_has_no_compressed_name(trifold, models, tmp_path, suffix):
    out = tmp_path / f"b{suffix}"
    for text in ("a text", str(write(tmp_path / "a.csv"))):
        done = trifold("predict", str(models["classify"]), text, "--out", str(out))
        assert done.code == 2 and "name " in done.err and "--out" in done.err
        assert not out.exists()


def test_an_output_in_a_folder_of_pictures_does_not_change_what_is_read(tmp_path):
    (tmp_path / "model").mkdir()
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "a.png").write_text("one", "utf-8")
    key = [str(pictures), str(tmp_path / "model"), pictures / "out.csv"]
    before = _digests(*key)
    (pictures / "out.csv.part").write_text("some rows", "utf-8")
    (pictures / ".out.csv.lock").touch()
    assert _digests(*key) == before
    (pictures / "b.png").write_text("two", "utf-8")
    assert _digests(*key) != before


def test_an_output_that_would_replace_what_is_read_is_refused(trifold, models, tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    write(folder / "a.csv")
    texts = folder / "corpus.txt"
    texts.write_text("a text\n" * 3, "utf-8")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    (tmp_path / "b.csv").mkdir()
    for inputs, out, message in (
        ([folder / "a.csv"], folder / ".." / "tables" / "a.csv", "is the file that is read"),
        (["a text", "--corpus", texts], texts, "is the file that is read"),
        ([folder / "a.csv"], tmp_path / "b.csv", "is a folder; name a file"),
    ):
        model = models["embed" if "--corpus" in inputs else "classify"]
        done = trifold("predict", str(model), *map(str, inputs), "--out", str(out))
        assert (done.code, message in done.err) == (2, True), done.err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    for name in ("a.csv", "new.csv"):
        with pytest.raises(UsageError, match="is in the folder that is read"):
            check_not_read(folder / name, str(folder))
    check_not_read(tmp_path / "new.csv", str(folder), "hub:name:train")


def predictions(
    trifold, model: Path, tmp_path: Path, rows: list[dict[str, str]], *more: str
) -> list[dict]:
    out = tmp_path / "out.jsonl"
    done = trifold(
        *("predict", str(model), str(write(tmp_path / "in.jsonl", rows)), *more),
        *("--out", str(out), "--overwrite"),
    )
    assert done.code == 0, done.err
    return [{key: row[key] for key in row if key not in rows[0]} for row in read(out)]


def test_each_task_has_its_columns(trifold, models, tmp_path):
    rows = [{"review": text} for text in TEXTS[:3]]
    for task, found in (("tag", library.load(models["tag"]).tag(TEXTS[:3])),):
        rows_of_task = predictions(trifold, models[task], tmp_path, rows)
        assert [row["prediction"] for row in rows_of_task] == [
            [{**tag._asdict(), "score": pytest.approx(tag.score)} for tag in tags] for tags in found
        ]
    vectors = predictions(trifold, models["embed"], tmp_path, rows)
    assert vectors[0]["prediction"] == pytest.approx(
        library.load(models["embed"]).embed(TEXTS[0]).tolist(), abs=1e-6
    )
    number = predictions(trifold, models["regression"], tmp_path, rows)
    assert number[1]["prediction"] == pytest.approx(
        library.load(models["regression"]).classify(TEXTS[1])[0].score, abs=1e-6
    )
    several = predictions(trifold, models["multi_label_classification"], tmp_path, rows)
    for row, text in zip(several, TEXTS, strict=False):
        labels = library.load(models["multi_label_classification"]).classify(text)
        assert [one["label"] for one in row["prediction"]] == [
            label for label, score in labels if score > 0.5
        ]
    best = predictions(trifold, models["classify"], tmp_path, rows, "--top-k", "2")
    assert [len(row["prediction"]) for row in best] == [2, 2, 2]


def test_pairs_are_read_from_two_columns_or_the_option(trifold, models, tmp_path):
    context = " ".join(WORDS[:12])
    rows = [{"question": text, "context": context} for text in TEXTS[:3]]
    both = predictions(trifold, models["answer"], tmp_path, rows)
    (first, *_) = both[0]["prediction"]
    assert context[first["start"] : first["end"]] == first["text"]
    alone = [{"question": row["question"]} for row in rows]
    assert predictions(trifold, models["answer"], tmp_path, alone, "--context", context) == both


def test_a_column_of_another_name_is_set(trifold, models, tmp_path):
    rows = [{"a": "x", "b": text, "c": "y"} for text in TEXTS[:3]]
    found = predictions(trifold, models["classify"], tmp_path, rows, "data.columns.text=b")
    assert found == predictions(
        trifold, models["classify"], tmp_path, [{"text": text} for text in TEXTS[:3]]
    )


def test_rows_keep_the_spelling_of_their_keys(trifold, models, tmp_path):
    rows = [{"Text": TEXTS[0], "id": 1}, {"text": TEXTS[1], "note": "x"}, {"text ": TEXTS[2]}]
    for name in ("a.jsonl", "a.json"):
        lines = [*map(json.dumps, rows)]
        text = "\n".join(lines) if name == "a.jsonl" else f"[{','.join(lines)}]"
        (tmp_path / name).write_text(text, "utf-8")
        out = tmp_path / f"{name}.out.jsonl"
        done = trifold("predict", str(models["classify"]), str(tmp_path / name), "--out", str(out))
        assert done.code == 0, done.err
        assert "'text' read as 'Text'" in done.err.replace("\n    ", " ")
        best = library.load(models["classify"]).classify(TEXTS[:3], top_k=1)
        expected = [
            {**row, "prediction": each[0].label} for row, each in zip(rows, best, strict=True)
        ]
        assert [{k: v for k, v in row.items() if k != "score"} for row in read(out)] == expected
    # As in Python.
    assert library.load(models["classify"]).predict(rows, top_k=1) == best


def test_a_table_of_one_column_keeps_blank_lines(trifold, models, tmp_path):
    (tmp_path / "a.csv").write_bytes(
        b"\xef\xbb\xbftext\n" + "\n".join([TEXTS[0], "", TEXTS[1]]).encode() + b"\n"
    )
    done = trifold(
        "predict",
        str(models["classify"]),
        str(tmp_path / "a.csv"),
        "--out",
        str(tmp_path / "b.csv"),
    )
    assert (done.code, [row["text"] for row in read(tmp_path / "b.csv")]) == (
        0,
        [TEXTS[0], "", TEXTS[1]],
    ), done.err


# content of a table, options, exit code, words of the message
BAD = {
    "no output": ("text\na b\n", [], 2, "--out: name a file (.csv, .tsv, .jsonl, .conll)"),
    "an output of another kind": ("text\na b\n", ["--out", "{here}/b.txt"], 2, "--out: name a file (.csv"),
    "no folder": ("text\na b\n", ["--out", "{here}/no/b.csv"], 2, "No such file or directory"),
    "a header only": ("text,label\n", ["--out", "{here}/b.csv"], 1, "the table has no row"),
    "an empty file": ("", ["--out", "{here}/b.csv"], 1, "a.csv: the file is empty"),
    "no column of texts": ("x,y\n1,2\n", ["--out", "{here}/b.csv"], 1, "set data.columns.text to names or numbers"),
    "an unknown role": ("text\na\n", ["data.columns.txt=a", "--out", "{here}/b.csv"], 2, "data.columns.txt: this task"),
    "a ragged row": ("text,id\na,1\nb\n", ["--out", "{here}/b.csv"], 1, "a.csv:3: 1 column where the first row has 2"),
    "an open quote": ('text,id\na,"1\n', ["--out", "{here}/b.csv"], 1, "a.csv:2: a quote is opened and not closed"),
    "a line end in TSV": ('text,id\na,"1\n2"\n', ["--out", "{here}/b.tsv"], 1, "a.csv:2: not possible in .tsv"),
    "a long text": ("text,id\n" + "fox " * 99 + ",1\n", ["--out", "{here}/b.csv"], 1, "a.csv:2: "),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_invalid_tables_name_the_place_and_leave_no_output(trifold, models, tmp_path, case):
    content, options, code, words = BAD[case]
    (tmp_path / "a.csv").write_text(content, "utf-8")
    options = [option.format(here=tmp_path) for option in options]
    done = trifold("predict", str(models["classify"]), str(tmp_path / "a.csv"), *options)
    assert done.code == code, done.err
    assert words in done.err.replace("\n    ", " ") and "Traceback" not in done.err
    assert not [*tmp_path.glob("b.csv")] and (case == "a long text" or not [*tmp_path.glob("b*")])


@pytest.mark.parametrize("source", ["tables", "tables/*.csv", "tables.zip"])
def test_several_tables_are_predicted_without_a_run(trifold, models, tmp_path, source):
    (tmp_path / "tables").mkdir()
    for number in range(2):
        write(tmp_path / "tables" / f"{number}.csv", ROWS[number : number + 1])
    shutil.make_archive(str(tmp_path / "tables"), "zip", tmp_path / "tables")
    command = ["predict", str(models["classify"]), str(tmp_path / source), "--out"]
    out = tmp_path / "out.csv"
    done = trifold(*command, str(out))
    assert done.code == 0, done.err
    assert [row["text"] for row in read(out)] == TEXTS[:2]
    if ".zip" not in source:
        done = trifold(*command, str(tmp_path / "tables" / "1.csv"))
        assert done.code == 2 and "1.csv: is " in done.err and " that is read" in done.err


def test_a_missing_table_is_no_text(trifold, models, tmp_path):
    done = trifold(
        "predict",
        str(models["classify"]),
        str(tmp_path / "no.csv"),
        "--out",
        str(tmp_path / "b.csv"),
    )
    assert (done.code, "no.csv: no such file" in done.err) == (1, True)


def test_the_input_is_not_overwritten(trifold, models, tmp_path, monkeypatch):
    table = write(tmp_path / "a.csv")
    before = table.read_bytes()
    monkeypatch.chdir(tmp_path)
    done = trifold(
        "predict", str(models["classify"]), "a.csv", "--out", str(tmp_path / "x/../a.csv")
    )
    assert done.code == 2 and "is the file that is read, " in done.err
    assert table.read_bytes() == before and [*tmp_path.iterdir()] == [table]


def test_an_output_that_stops_at_a_long_text_continues_with_texts_truncated(
    trifold, models, tmp_path
):
    rows = [{"text": text} for text in [*TEXTS[:5], "fox " * 99, TEXTS[0]]]
    command = [
        "predict",
        str(models["classify"]),
        str(write(tmp_path / "a.csv", rows)),
        "--batch-size",
        "4",
    ]
    assert trifold(*command, "--out", str(tmp_path / "b.csv")).code == 1
    truncate = [*command, "--on-overflow", "truncate", "--out"]
    done = trifold(*truncate, str(tmp_path / "b.csv"))
    assert done.code == 0 and "continues after row 4" in done.err
    assert trifold(*truncate, str(tmp_path / "c.csv")).code == 0
    assert (tmp_path / "b.csv").read_bytes() == (tmp_path / "c.csv").read_bytes()


@pytest.mark.parametrize("header", ["review,n", ",text", ",fold,review,label"])
def test_headers_with_one_known_name_or_an_index_are_recognized(trifold, models, tmp_path, header):
    columns = header.split(",")
    lines = [
        ",".join(TEXTS[n] if name in ("review", "text") else str(n) for name in columns)
        for n in range(3)
    ]
    (tmp_path / "a.csv").write_text("\n".join([header, *lines, ""]), "utf-8")
    done = trifold(
        "predict",
        str(models["classify"]),
        str(tmp_path / "a.csv"),
        "--out",
        str(tmp_path / "b.csv"),
    )
    assert done.code == 0, done.err
    assert (tmp_path / "b.csv").read_text("utf-8").splitlines()[0] == f"{header},prediction,score"
    assert len(read(tmp_path / "b.csv")) == 3


def test_a_corpus_is_a_table_and_results_are_json_lines(trifold, models, tmp_path):
    table, out = write(tmp_path / "a.csv", ROWS[:10]), tmp_path / "b.jsonl"
    done = trifold(
        "predict", str(models["embed"]), TEXTS[9], "--corpus", str(table), "--out", str(out)
    )
    assert done.code == 0, done.err
    (best, *_) = read(out)[0]["outputs"]
    assert (best["number"], best["text"]) == (10, TEXTS[9])


def test_a_table_of_queries_needs_an_output(trifold, models, tmp_path):
    table = write(tmp_path / "a.csv")
    done = trifold("predict", str(models["embed"]), str(table), "--corpus", str(table))
    assert done.code == 2 and f"the rows of the table {table}" in done.err.replace("\n    ", " ")


def test_the_texts_of_a_table_are_translated(trifold, run, tmp_path, monkeypatch):
    texts = ["one two", "", "two\nthree", "four", "three one two"]
    table = write(
        tmp_path / "a.csv", [{"id": "1", "source": text, "target": "x"} for text in texts]
    )
    command = ["predict", str(run), str(table), "--batch-size", "2", "--out"]
    done = trifold(*command, str(tmp_path / "whole.csv"))
    assert done.code == 0 and "1 of 5 lines are blank" in done.err
    found = read(tmp_path / "whole.csv")
    assert [row["source"] for row in found] == texts
    expected = library.load(run).generate([text for text in texts if text])
    assert [row["prediction"] for row in found] == [expected[0], "", *expected[1:]]
    flush, flushed = disk.flush, []

    def interrupt(file):
        flush(file)
        flushed.extend([file] if file.name.endswith(".part") else [])
        if len(flushed) > 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disk, "flush", interrupt)
        assert trifold(*command, str(tmp_path / "b.csv")).code == 130
    done = trifold(*command, str(tmp_path / "b.csv"))
    assert done.code == 0 and "continues after row 2" in done.err
    assert (tmp_path / "b.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_long_source_is_an_error_or_truncated(trifold, run, tmp_path):
    pipe = library.load(run)
    limit = pipe.config.max_positions
    long = "one two three " * limit
    table = write(tmp_path / "a.csv", [{"source": "one"}, {"source": long}])
    command = ["predict", str(run), str(table), "--out", str(tmp_path / "b.csv")]
    done = trifold(*command)
    assert done.code == 1 and "a.csv:3: " in done.err and "--on-overflow truncate" in done.err
    done = trifold(*command, "--on-overflow", "truncate")
    assert done.code == 0 and "1 text cut to fit" in done.err
    (ids,) = pipe.read([long], limit)
    assert ids == [*pipe.read([long])[0][: limit - 1], pipe.config.eos_id]


def test_commands_on_tables_that_do_not_fit_a_translator_are_rejected(trifold, run, tmp_path):
    table = write(tmp_path / "a.csv", [{"source": "one"}])
    done = trifold("generate", str(run), str(table))
    assert done.code == 2 and f"`trifold predict {run} {table} --out FILE.csv`" in done.err
    for option in (["--top-k", "2"], ["--pair", "x"]):
        done = trifold("predict", str(run), str(table), *option, "--out", str(tmp_path / "b.csv"))
        assert done.code == 2 and "not an option of a model that generates text" in done.err


@pytest.mark.parametrize("column", ["Sentence", "Review Text"])
def test_another_table_need_not_have_the_column_of_the_training(tmp_path, column):
    (tmp_path / "train.csv").write_text("opinion,label\na b,x\nb a,y\n", encoding="utf-8")
    settings = {"data.train": str(tmp_path / "train.csv"), "data.columns.text": "opinion"}
    recipe = load_recipe("classify", settings)
    (tmp_path / "a.csv").write_text(f"stars,{column}\n5,fine\n2,dull\n", encoding="utf-8")
    table = open_table([str(tmp_path / "a.csv")], "search", recipe, is_other=True)
    assert [item.text for item in table.inputs()] == ["fine", "dull"]
