"""A model predicts and is scored with exactly the files that trained it, in every task and format,
with the columns that its recipe names.
"""

from __future__ import annotations

import csv
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.readers import folder_of, pictures_folder
from tests.text.folders import WORDS

import trifold as library
from trifold import disk
from trifold.errors import UsageError

pytestmark = pytest.mark.slow

TEXTS = [" ".join(WORDS[n : n + 3 + n % 4]) for n in range(6)]
SECOND = [" ".join(WORDS[n + 5 : n + 9]) for n in range(6)]
TAGS = ["O", "B-PER", "I-PER", "B-LOC"]


def rows_of(**columns: list[Any]) -> list[dict[str, Any]]:
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def write(file: Path, rows: list[dict[str, Any]], *, header: bool = True) -> Path:
    """Rows in the format of the suffix."""
    if file.suffix in (".jsonl", ".json"):
        objects = [json.dumps(row) for row in rows]
        text = "".join(f"{row}\n" for row in objects)
        file.write_text(text if file.suffix == ".jsonl" else f"[{','.join(objects)}]", "utf-8")
    elif file.suffix == ".conll":
        sentences = [zip(*row.values(), strict=True) for row in rows]
        lines = ("".join("\t".join(fields) + "\n" for fields in each) for each in sentences)
        file.write_text("\n".join(lines) + "\n", "utf-8")
    else:
        with file.open("w", encoding="utf-8", newline="") as stream:
            kind = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
            table = csv.DictWriter(stream, [*rows[0]], **(kind if file.suffix == ".tsv" else {}))
            if header:
                table.writeheader()
            table.writerows(rows)
    return file


def make_run(
    folder: Path, head: str, task: dict[str, Any], data: dict[str, Any], **values: Any
) -> Path:
    """The folder of a run: a model, and a recipe with the settings of its data."""
    folder.mkdir()
    folder_of(head, folder / "model", **values)
    recipe = {"task": task, "data": {"train": "gone.csv", **data}, "train": {"steps": 1}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    return folder


def predict(trifold: Any, run: Path, table: Path, *more: str) -> list[dict[str, Any]]:
    out = table.with_name("out.jsonl")
    done = trifold("predict", str(run), str(table), "--out", str(out), "--overwrite", *more)
    assert done.code == 0, done.err
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


CLASSES = {"label_names": ["bad", "so so", "good"]}
# name -> head, task, data settings, columns of the table, suffix, columns of the model's texts
TRAINED: dict[str, tuple[Any, ...]] = {
    "own names": ("classify", {}, {"columns": {"text": "words", "label": "mood"}}, {"mood": ["bad"] * 6, "words": TEXTS}, ".csv", "words"),
    "a text in data.source": ("classify", {}, {"source": "say", "target": "is"}, {"is": ["bad"] * 6, "say": TEXTS}, ".tsv", "say"),
    "the name of another role": ("classify", {}, {"columns": {"text": "title"}}, {"text": SECOND, "title": TEXTS, "label": ["bad"] * 6}, ".csv", "title"),
    "a pair": ("classify", {}, {"columns": {"text": "a", "pair": "b", "label": "c"}}, {"c": ["bad"] * 6, "a": TEXTS, "b": SECOND}, ".jsonl", "a b"),
    "columns of predictions": ("classify", {}, {}, {"text": TEXTS, "prediction": ["x"] * 6, "score": ["0.1"] * 6, "label": ["bad"] * 6}, ".csv", "text"),
    "an array": ("classify", {}, {}, {"text": TEXTS, "label": ["bad"] * 6}, ".json", "text"),
    "no label": ("classify", {}, {"columns": {"text": "words", "label": "mood"}}, {"words": TEXTS}, ".csv", "words"),
    "answers": (
        "answer", {"kind": "answer"}, {"columns": {"question": "q", "context": "passage"}},
        {"q": TEXTS, "passage": [" ".join(WORDS[:12])] * 6, "answers": [[]] * 6}, ".jsonl", "q passage",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_the_table_of_the_training_is_predicted(trifold, tmp_path, name):
    head, task, data, columns, suffix, texts = TRAINED[name]
    kind = {"kind": head} | task
    run = make_run(tmp_path / "run", head, kind, {"train": "gone.csv", "test": "gone.csv", **data})
    rows = rows_of(**columns)
    found = predict(trifold, run, write(tmp_path / f"table{suffix}", rows))
    assert [{key: row[key] for key in columns} for row in found] == rows
    read = [columns[column] for column in texts.split()]
    added = [*found[0]][len(columns)]
    expected = library.load(run).predict(*read)
    for row, each in zip(found, expected, strict=True):
        if head == "classify":
            assert added == ("model_prediction" if "prediction" in columns else "prediction")
            assert row[added] == each[0].label
        else:
            assert [one["text"] for one in row[added]] == [one.text for one in each]


WORD_ROWS = rows_of(
    words=[text.split() for text in TEXTS], tags=[[TAGS[0]] * len(t.split()) for t in TEXTS]
)


@pytest.mark.parametrize("suffix", [".jsonl", ".conll"])
def test_a_tagger_gives_each_word_of_its_training_file_a_tag(trifold, tmp_path, suffix):
    run = make_run(tmp_path / "run", "tag", {"kind": "tag"}, {"train": "gone.conll"})
    table = write(tmp_path / f"table{suffix}", WORD_ROWS)
    found = predict(trifold, run, table)
    tags = library.load(run).tag([row["words"] for row in WORD_ROWS])
    assert found == [
        {**row, "prediction": [tag.label for tag in each]}
        for row, each in zip(WORD_ROWS, tags, strict=True)
    ]
    assert [len(each) for each in tags] == [len(row["words"]) for row in WORD_ROWS]
    out = tmp_path / "out.conll"
    assert trifold("predict", str(run), str(table), "--out", str(out)).code == 0
    sentences = [
        [line.split("\t") for line in sentence.splitlines()]
        for sentence in out.read_text("utf-8").strip().split("\n\n")
    ]
    assert sentences == [[list(each) for each in zip(*row.values(), strict=True)] for row in found]


def test_a_list_of_words_has_the_tags_of_its_text(tmp_path):
    pipe = library.load(folder_of("tag", tmp_path / "model"))
    words = [text.split() for text in TEXTS]
    tokens = pipe.tag(TEXTS, merge="none", ignore=())
    for row, text, own in zip(pipe.tag(words), TEXTS, tokens, strict=True):
        assert [text[one.start : one.end] for one in row] == text.split()
        first = {token.start: token for token in own}
        for one in row:
            assert one.label == first[one.start].label
            assert one.score == pytest.approx(first[one.start].score, abs=1e-6)


def test_choices_of_each_row(trifold, tmp_path):
    run = make_run(
        tmp_path / "run", "embed", {"kind": "choose"}, {"columns": {"text": "start"}},
        heads=["pooler", "choice"],
    )  # fmt: skip
    choices = [SECOND[: 2 + n % 3] for n in range(6)]
    rows = rows_of(start=TEXTS, endings=choices, label=[0] * 6)
    found = predict(trifold, run, write(tmp_path / "table.jsonl", rows))
    pipe = library.load(run)
    for row, text, own in zip(found, TEXTS, choices, strict=True):
        best = pipe.choose(text, own)[0]
        assert (row["prediction"], row["score"]) == (
            best.label,
            pytest.approx(best.score, abs=1e-5),
        )
    numbered = [
        {
            "start": text,
            **{f"choice{n}": own[n] if n < len(own) else "" for n in range(4)},
            "label": "0",
        }
        for text, own in zip(TEXTS, choices, strict=True)
    ]
    again = predict(trifold, run, write(tmp_path / "table.csv", numbered))
    assert [row["prediction"] for row in again] == [row["prediction"] for row in found]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_the_predicted_choice_is_as_it_is_written(trifold, tmp_path, suffix):
    run = make_run(
        tmp_path / "run", "embed", {"kind": "choose"}, {}, heads=["pooler", "choice"]
    )  # fmt: skip
    questions = [WORDS[n] for n in range(5)] + [""]
    columns = {"context": TEXTS, "question": questions, "label": [0] * 6}
    if suffix == ".csv":
        columns |= {"answerA": SECOND, "answerB": TEXTS[::-1]}
    else:
        columns["choices"] = [*map(list, zip(SECOND, TEXTS[::-1], strict=True))]
    found = predict(trifold, run, write(tmp_path / f"table{suffix}", rows_of(**columns)))
    pipe = library.load(run)
    for row, *choices in zip(found, SECOND, TEXTS[::-1], strict=True):
        best = pipe.choose(row["context"], choices, row["question"])[0]
        assert (row["prediction"], row["score"]) == (
            best.label,
            pytest.approx(best.score, abs=1e-5),
        )
        assert best.label in choices
        # The model reads the question before the choice.
        read = [f"{row['question']} {each}".strip() for each in choices]
        assert best.score == pytest.approx(pipe.choose(row["context"], read)[0].score, abs=1e-6)


def test_an_embedding_model_gives_the_similarity_of_a_scored_pair(trifold, tmp_path):
    columns = {"text": "one", "pair": "two", "score": "near"}
    run = make_run(tmp_path / "run", "embed", {"kind": "embed"}, {"columns": columns})
    rows = rows_of(near=["0.5"] * 6, one=TEXTS, two=SECOND)
    found = predict(trifold, run, write(tmp_path / "table.csv", rows))
    pipe = library.load(run)
    left, right = (pipe.embed(texts, normalise=True) for texts in (TEXTS, SECOND))
    cosines = [float(a @ b) for a, b in zip(left, right, strict=True)]
    assert [row["prediction"] for row in found] == pytest.approx(cosines, abs=1e-5)


def test_the_folder_of_pictures_of_the_training_is_predicted(trifold, tmp_path):
    images = pytest.importorskip("PIL.Image")
    run = tmp_path / "run"
    run.mkdir()
    pictures_folder(run / "model")
    recipe = {"task": {"kind": "images"}, "data": {"train": "gone"}, "train": {"steps": 1}}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    for number in range(4):
        folder = tmp_path / "pictures" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        images.new("RGB", (12, 8), (60 * number, 90, 200 - 40 * number)).save(
            folder / f"{number}.png"
        )
    found = predict(trifold, run, tmp_path / "pictures")
    files = [row["image"] for row in found]
    best = library.load(run).classify(files, top_k=1)
    assert [row["label"] for row in found] == [Path(file).parent.name for file in files]
    assert [row["prediction"] for row in found] == [each[0].label for each in best]
    assert len(files) == 4


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_all_tables_of_a_folder_or_an_archive_are_predicted(trifold, tmp_path, form):
    run = make_run(tmp_path / "run", "classify", {"kind": "classify"}, {})
    folder = tmp_path / "tables"
    folder.mkdir()
    write(folder / "a.csv", rows_of(text=TEXTS[:3], label=["bad"] * 3))
    write(folder / "b.jsonl", rows_of(text=TEXTS[3:], n=[1, 2, 3]))
    source = folder
    if form == "archive":
        source = Path(shutil.make_archive(str(tmp_path / "tables"), "zip", folder))
    out = tmp_path / "out.csv"
    done = trifold("predict", str(run), str(source), "--out", str(out))
    assert done.code == 0, done.err
    found = [*csv.DictReader(out.read_text("utf-8").splitlines())]
    assert [row["text"] for row in found] == TEXTS
    assert [*found[0]] == ["text", "label", "n", "prediction", "score"]
    best = library.load(run).classify(TEXTS, top_k=1)
    assert [row["prediction"] for row in found] == [each[0].label for each in best]


# --- probabilities and thresholds -----------------------------------------------------------------


def test_probabilities_of_all_classes_are_columns(trifold, tmp_path):
    run = make_run(tmp_path / "run", "classify", {"kind": "classify"}, {})
    table = write(tmp_path / "table.csv", rows_of(text=[*TEXTS, ""]))
    found = predict(trifold, run, table, "--probabilities")
    for row, each in zip(found, library.load(run).classify(TEXTS, top_k=None), strict=False):
        assert row["prediction"] == each[0].label
        scores = {f"p_{label}": pytest.approx(score, abs=1e-5) for label, score in each}
        assert {key: row[key] for key in row if key.startswith("p_")} == scores
        assert sum(row[key] for key in scores) == pytest.approx(1)
    assert found[-1]["p_bad"] is None and found[-1]["prediction"] is None


def test_thresholds(trifold, tmp_path):
    run = make_run(tmp_path / "run", "classify", {"kind": "classify"}, {})
    table = write(tmp_path / "table.csv", rows_of(text=TEXTS))
    every = library.load(run).classify(TEXTS, top_k=None)
    scores = [dict(each) for each in every]
    middle = sorted(each[0].score for each in every)[3]
    found = predict(trifold, run, table, "--threshold", f"{middle}")
    certain = [each[0].label if each[0].score >= middle else None for each in every]
    assert [row["prediction"] for row in found] == certain and certain.count(None) == 3
    least = sorted(each["bad"] for each in scores)[2]
    found = predict(trifold, run, table, "--threshold", f"bad={least}", "--probabilities")
    for row, own in zip(found, scores, strict=True):
        others = {label: score for label, score in own.items() if label != "bad"}
        best = "bad" if own["bad"] >= least else max(others, key=others.get)
        assert row["prediction"] == best
        assert row["score"] == row[f"p_{best}"] == pytest.approx(own[best], abs=1e-5)
    several = folder_of("classify", tmp_path / "several", problem_type="multi_label_classification")
    found = predict(trifold, several, table, "--threshold", "0.3")
    for row, each in zip(found, library.load(several).classify(TEXTS, top_k=None), strict=True):
        assert [one["label"] for one in row["prediction"]] == [a for a, p in each if p >= 0.3]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--threshold", "goood=0.5"], "threshold: 'goood' is not a label; did you mean 'good'?"),
        (["--threshold", "7"], "threshold: 7 is not between 0 and 1"),
        (["--threshold", "high"], "expected a probability such as 0.7, or LABEL=0.7"),
        (["--threshold", "0.5", "--threshold", "good=0.5"], "one number for all labels"),
    ],
)
def test_invalid_thresholds(trifold, tmp_path, given, words):
    model = folder_of("classify", tmp_path / "model")
    done = trifold("predict", str(model), TEXTS[0], *given)
    assert done.code == 2 and words in done.err.replace("\n    ", " ")


# --- two commands at once -------------------------------------------------------------------------


def test_a_second_command_does_not_write_the_same_output(trifold, tmp_path):
    run = make_run(tmp_path / "run", "classify", {"kind": "classify"}, {})
    table, out = write(tmp_path / "table.csv", rows_of(text=TEXTS)), tmp_path / "out.csv"
    leftover = tmp_path / ".out.csv.4194303.tmp"
    leftover.touch()
    with disk.exclusive(out):
        assert not leftover.exists()
        for command in ([str(table)], [TEXTS[0]]):
            done = trifold("predict", str(run), *command, "--out", str(out))
            assert done.code == 2 and "another process is writing it; wait" in done.err
    assert trifold("predict", str(run), str(table), "--out", str(out)).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "run", "table.csv"]


def test_one_of_many_writers_holds_the_lock(tmp_path):
    inside, most, refused = [0], [0], [0]

    def write_file() -> None:
        for _ in range(50):
            try:
                with disk.exclusive(tmp_path / "out"):
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    inside[0] -= 1
            except UsageError:
                refused[0] += 1

    threads = [threading.Thread(target=write_file) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and refused[0] < 200 and [*tmp_path.iterdir()] == []


def test_an_interrupted_output_keeps_the_old_file_and_the_results_so_far(trifold, tmp_path):
    model, out = folder_of("classify", tmp_path / "model"), tmp_path / "out.txt"
    out.write_text("old\n", "utf-8")
    lines = "\n".join([*TEXTS[:2], "fox " * 99, ""]).encode()
    options = ("--batch-size", "1", "--out", str(out), "--overwrite")
    done = trifold("predict", str(model), "-", *options, stdin=lines)
    assert done.code == 1 and f"{out}.part: has the results so far" in done.err.replace(
        "\n    ", " "
    )
    assert out.read_text("utf-8") == "old\n"
    assert len((tmp_path / "out.txt.part").read_text("utf-8").splitlines()) == 2


# --- the form of the file -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "first", "last"),
    [
        ("a.csv", '\ufefftext;n\n"a dog; runs";1\n', "\ufefftext;n;prediction;score", '"a dog; runs";1;'),
        ("a.csv", "sep=;\ntext;n\na dog;1\n", "text;n;prediction;score", "a dog;1;"),
        ("a.tsv", 'text\tn\n"a\tdog"\t1\na\t2\n', "text\tn\tprediction\tscore", "a\t2\t"),
        ("a.tsv", 'text\tn\na "dog\t1\n', "text\tn\tprediction\tscore", 'a "dog\t1\t'),
    ],
)  # fmt: skip
def test_a_table_is_written_as_it_is_read(trifold, tmp_path, name, content, first, last):
    model = folder_of("classify", tmp_path / "model")
    (tmp_path / name).write_text(content, "utf-8")
    out = tmp_path / f"out{Path(name).suffix}"
    done = trifold("predict", str(model), str(tmp_path / name), "--out", str(out))
    assert done.code == 0, done.err
    lines = out.read_text("utf-8").splitlines()
    assert lines[0] == first and lines[-1].startswith(last)
    assert ("separated by ';'" in done.err) == (";" in content)
    assert trifold("predict", str(model), str(out), "--out", str(tmp_path / "b.jsonl")).code == 0


def test_rows_that_are_no_data_are_left_out_of_predictions_and_counted(trifold, tmp_path):
    model = folder_of("classify", tmp_path / "model")
    (tmp_path / "a.csv").write_text("text,label\na dog,1\ntext,label\na cat,2\n", "utf-8")
    out = tmp_path / "b.csv"
    done = trifold("predict", str(model), str(tmp_path / "a.csv"), "--out", str(out))
    assert done.code == 0 and "a.csv: 1 repeated header skipped" in done.err.replace("\n    ", " ")
    rows = out.read_text("utf-8").splitlines()
    assert [row.split(",")[0] for row in rows] == ["text", "a dog", "a cat"]
