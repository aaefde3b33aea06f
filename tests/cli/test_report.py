"""`trifold eval --report` writes what the scores count: mistakes, confusion and calibration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.command_line import run_command

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.slow

TINY = (
    "model.d_model=16 model.n_heads=2 model.n_layers=1 model.d_ff=32 tokenizer.vocab_size=90 tokenizer.min_frequency=1 "
    "train.device=cpu train.precision=float32 train.steps=2 train.warmup=1 train.validate_every=2 train.save_every=2 "
    "model.dropout=0"
)
WORDS = ["sun", "rain", "fog", "snow", "hail"]
TEXTS = [f"{WORDS[n % 5]} and\t{WORDS[n // 5 % 5]}\u2028{n}" for n in range(70)]


def report(
    folder: Path, task: str, rows: list[dict], *settings: str
) -> tuple[dict, list[dict[str, str]]]:
    """The scores of a trained model on its rows, and its mistakes."""
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    data = [f"data.train={path}", f"data.valid={path}"]
    done = run_command("train", task, *data, *TINY.split(), *settings, "--out", str(folder / "run"))
    assert done.code == 0, done.err
    done = run_command("eval", str(folder / "run"), "--report", str(folder / "out"), "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)["scores"], read(folder / "out" / "mistakes.tsv")


def read(path: Path) -> list[dict[str, str]]:
    header, *lines = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    return [dict(zip(header, line, strict=True)) for line in lines]


def check_order(mistakes: list[dict[str, str]], column: str) -> None:
    numbers = [float(row[column]) for row in mistakes]
    assert numbers == sorted(numbers, reverse=True)
    assert [*mistakes[0]] == ["file", "line", "text", "expected", "predicted", column]
    assert {row["file"] for row in mistakes} == {"a.jsonl"}
    assert all(row["expected"] != row["predicted"] for row in mistakes)


def test_the_tables_of_a_classification_have_the_counts_of_its_scores(tmp_path):
    labels = [["good", "bad", "odd"][n * 7 // 5 % 3] for n in range(len(TEXTS))]
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    scores, mistakes = report(tmp_path, "classify", rows, "model.linear_path=false")
    confusion = read(tmp_path / "out" / "confusion.tsv")
    correct = sum(int(row[row["expected"]]) for row in confusion)
    assert sum(int(row[name]) for row in confusion for name in ("good", "bad", "odd")) == len(rows)
    assert scores["accuracy"] == pytest.approx(100 * correct / len(rows))
    assert len(mistakes) == min(50, len(rows) - correct)
    check_order(mistakes, "probability")
    for row in mistakes:
        assert row["expected"] == labels[int(row["line"]) - 1]
        assert row["text"] == TEXTS[int(row["line"]) - 1].replace("\t", " ").replace("\u2028", " ")
    bins = read(tmp_path / "out" / "calibration.tsv")
    assert sum(int(row["count"]) for row in bins) == len(rows)
    assert sum(int(row["count"]) * float(row["accuracy"]) for row in bins) == pytest.approx(
        correct, abs=0.01
    )
    assert all(float(row["from"]) < float(row["confidence"]) for row in bins)
    for name in ("confusion.png", "calibration.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


def test_mistakes_of_several_labels_ignore_their_order(tmp_path):
    rows = [{"text": text, "labels": [["b", "a"], []][n % 2]} for n, text in enumerate(TEXTS)]
    scores, mistakes = report(tmp_path, "classify", rows, "model.linear_path=false")
    check_order(mistakes, "probability")
    assert {row["expected"] for row in mistakes} <= {"a, b", ""}
    assert len(mistakes) == min(50, round(len(rows) * (1 - scores["subset_accuracy"] / 100)))


def test_mistakes_of_a_regression_have_errors(tmp_path):
    rows = [{"text": text, "score": n / 7} for n, text in enumerate(TEXTS)]
    _, mistakes = report(tmp_path, "classify", rows)
    check_order(mistakes, "error")
    for row in mistakes:
        assert float(row["error"]) == pytest.approx(
            abs(float(row["expected"]) - float(row["predicted"])), abs=1e-3
        )


def test_mistakes_of_tags_and_answers(tmp_path):
    (tmp_path / "tag").mkdir()
    tags = [["O"] * (n * 7 // 5 % 4) + ["B-X", "O", "O", "O"] for n in range(len(TEXTS))]
    rows = [
        {"tokens": text.split(), "tags": of_text[:4]}
        for text, of_text in zip(TEXTS, tags, strict=True)
    ]
    scores, mistakes = report(tmp_path / "tag", "tag", rows, "model.linear_path=false")
    check_order(mistakes, "probability")
    assert mistakes and scores["f1"] < 100
    context = " ".join(WORDS)
    rows = [
        {
            "question": f"{n}?",
            "context": context,
            "answers": [{"text": f"{word}", "answer_start": context.index(word)}],
        }
        for n, word in enumerate(WORDS * 2)
    ]
    scores, mistakes = report(tmp_path, "answer", rows)
    check_order(mistakes, "probability")
    assert len(mistakes) == round(len(rows) * (1 - scores["exact_match"] / 100))


def test_mistakes_of_multiple_choice(tmp_path):
    rows = [{"text": text, "choices": WORDS[:3], "label": n % 3} for n, text in enumerate(TEXTS)]
    scores, mistakes = report(tmp_path, "choose", rows)
    check_order(mistakes, "probability")
    assert len(mistakes) == round(len(rows) * (1 - scores["accuracy"] / 100)) > 0


def test_the_report_is_for_labelled_data(run, tmp_path):
    done = run_command("eval", str(run), "--report", str(tmp_path / "out"))
    assert (done.code, "--report is for labelled data" in done.err) == (2, True)
    assert not (tmp_path / "out").exists()


def test_a_task_without_labels_has_no_report(tmp_path):
    rows = [{"text": "a", "pair": "a b", "score": 1}, {"text": "b c", "pair": "a", "score": 0}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    data = [f"data.train={path}", f"data.valid={path}", "--out", str(tmp_path / "run")]
    assert run_command("train", "similarity", *data, *TINY.split()).code == 0
    done = run_command("eval", str(tmp_path / "run"), "--report", str(tmp_path / "out"))
    assert (done.code, "--report is for labelled data" in done.err) == (2, True)


def test_images_have_the_tables_of_a_classification(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for n in range(24):
        path = tmp_path / "images" / "abc"[n % 3] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.new("L", (8, 8), 10 * n).save(path)
    data = [f"data.{split}={tmp_path / 'images'}" for split in ("train", "valid")]
    tiny = [each for each in TINY.split() if not each.startswith("tokenizer")]
    done = run_command("train", "images", *data, *tiny, "--out", str(tmp_path / "run"))
    assert done.code == 0 and "vocabulary" not in done.err, done.err
    command = ("eval", str(tmp_path / "run"), "--json", "--report", str(tmp_path / "out"))
    done = run_command(*command)
    assert done.code == 0, done.err
    taken = run_command(*command)
    assert (taken.code, taken.out) == (2, "")
    assert "out: the folder exists and is not empty; name another folder, or add --ov" in taken.err
    assert run_command(*command, "--overwrite").code == 0
    confusion, mistakes = (
        read(tmp_path / "out" / f"{name}.tsv") for name in ("confusion", "mistakes")
    )
    correct = sum(int(row[row["expected"]]) for row in confusion)
    assert json.loads(done.out)["scores"]["accuracy"] == pytest.approx(100 * correct / 24)
    assert len(mistakes) == 24 - correct > 0
    for row in mistakes:
        assert Path(row["text"]).parent.name == row["expected"] != row["predicted"]
    assert sum(int(row["count"]) for row in read(tmp_path / "out" / "calibration.tsv")) == 24
