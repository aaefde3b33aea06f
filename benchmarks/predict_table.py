"""Rows per second of `trifold predict MODEL TABLE` in this source tree and in another, in turn.

    python benchmarks/predict_table.py --reference 7f1b03bd      a commit, or a folder with src/

The model has the size that `trifold train classify` chooses for 5,452 questions (two layers of 128,
six classes); the texts are phrases of SST-2 of 6 to 16 words, drawn with repetition. The rate is
that of the second half of the windows, after imports and the check of the table; the seconds are
those of the whole command.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from compare_reference import sources_of  # noqa: E402

TRAINING = "train.steps=4 train.warmup=0"
CLASSES = ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        trees = {"reference": sources_of(options.reference, folder), "here": ROOT / "src"}
        write_tables(folder, options.rows)
        command = ["train", "classify", "data.train=train.csv", "--out", "run", *TRAINING.split()]
        # The older tree trains: it may not know the settings of a newer run.
        start(trees["reference"], folder, command).wait()
        rates: dict[str, list[float]] = {name: [] for name in trees}
        for _ in range(options.runs):
            for name, source in trees.items():
                seconds, rate = predict(source, folder, f"{name}.csv")
                rates[name].append(rate)
                print(f"{name:9} {seconds:6.2f} s {rate:8,.0f} rows/s", flush=True)
        ratios = [b / a for a, b in zip(*rates.values(), strict=True)]
        same = [read_predictions(folder / f"{name}.csv") for name in trees]
        print(f"here / reference: {statistics.median(ratios):.2f} ({min(ratios):.2f} to ", end="")
        print(f"{max(ratios):.2f}); equal predictions: {same[0] == same[1]}")


def write_tables(folder: Path, rows: int) -> None:
    """A table of labelled texts, and one of texts with further columns."""
    source = Path(os.environ["TRIFOLD_DATA"]) / "sst2" / "train.tsv.gz"
    with gzip.open(source, "rt", encoding="utf-8") as file:
        texts = [line.split("\t")[0] for line in file][1:]
    texts = [text for text in texts if 6 <= len(text.split()) <= 16]
    draw = random.Random(0)
    with (folder / "train.csv").open("w", encoding="utf-8", newline="") as file:
        labelled = [[text, draw.choice(CLASSES)] for text in draw.sample(texts, 5452)]
        csv.writer(file).writerows([["text", "label"], *labelled])
    with (folder / "table.csv").open("w", encoding="utf-8", newline="") as file:
        further = ([number, draw.choice(texts), "a, b"] for number in range(rows))
        csv.writer(file).writerows([["id", "text", "source"], *further])


def start(source: Path, folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
    """Start a command of a source tree."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-m", "trifold", *words]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=quiet, stderr=quiet)


def predict(source: Path, folder: Path, out: str) -> tuple[float, float]:
    """The seconds of the command, and the rows per second of the second half of the windows."""
    begin = time.perf_counter()
    process = start(source, folder, ["predict", "run", "table.csv", "--out", out, "--overwrite"])
    windows: list[tuple[float, int]] = []
    while process.poll() is None:
        time.sleep(0.005)
        with suppress(OSError, ValueError):
            rows = json.loads((folder / f"{out}.part.json").read_text("utf-8"))["rows"]
            if not windows or windows[-1][1] != rows:
                windows.append((time.perf_counter(), rows))
    seconds = time.perf_counter() - begin
    half = [window for window in windows if 2 * window[1] >= windows[-1][1]]
    return seconds, (half[-1][1] - half[0][1]) / (half[-1][0] - half[0][0])


def read_predictions(file: Path) -> list[str]:
    with file.open(encoding="utf-8", newline="") as table:
        return [row["prediction"] for row in csv.DictReader(table)]


if __name__ == "__main__":
    main()
