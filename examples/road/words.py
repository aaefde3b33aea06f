"""What the lessons on words share: the sentences, their words, and the table at the end.

The sentences are captions in English and German, 29,000 to learn, 1,014 to choose the best weights
and 1,000 held out (Multi30k, in $TRIFOLD_DATA); without them, English and French of the phrasebook
that is part of trifold. A word that occurs once is `<unk>`, and every sentence ends with `</s>`.

The score of a language model is its perplexity, exp(−mean log P(word | words before it)), over all
words and ends of the held-out sentences: the number of equally probable words that it chooses from.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import trifold
from trifold import Tokenizer
from trifold.data.embedded import load_rows
from trifold.nn import load_part
from trifold.text.training import TokenizerSettings, train_tokenizer

SPLITS = ("train", "valid", "test")
WORDS = {"kind": "word", "vocab_size": 12_000, "punctuation": False}  # of both languages
RUNS = Path("runs/road")
TIMED = 60  # updates
FOLDER = Path(__file__).parent


class Corpus(NamedTuple):
    """Sentences of two languages by split, and the settings with which a recipe reads them: pairs,
    or those of the first language.
    """

    name: str
    sources: dict[str, list[str]]
    targets: dict[str, list[str]]
    pairs: dict[str, Any]
    texts: dict[str, Any]


def load_corpus() -> Corpus:
    """The captions if they are there, else the phrasebook."""
    folder = Path(os.environ.get("TRIFOLD_DATA", "")) / "multi30k" / "tok"
    if not folder.is_dir():
        return _phrasebook()
    names = dict(zip(SPLITS, ("train", "val", "test_2016_flickr"), strict=True))
    files = {
        split: [str(folder / f"{name}.lc.norm.tok.{language}.gz") for language in ("en", "de")]
        for split, name in names.items()
    }
    return Corpus(
        "captions, English to German",
        {split: _lines(files[split][0]) for split in SPLITS},
        {split: _lines(files[split][1]) for split in SPLITS},
        dict(files),
        {split: files[split][0] for split in SPLITS},
    )


def _phrasebook() -> Corpus:
    rows = {split: load_rows("phrasebook", split) for split in SPLITS}
    embedded = dict.fromkeys(SPLITS, "embedded:phrasebook")
    return Corpus(
        "phrasebook, English to French",
        {split: [row["english"] for row in rows[split]] for split in SPLITS},
        {split: [row["french"] for row in rows[split]] for split in SPLITS},
        dict(embedded),
        {**embedded, "field": "english"},
    )


def _lines(file: str) -> list[str]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines]


def load_parts() -> None:
    """Register the parts of this folder, as `--part` and `model.parts` do."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    for name in ("convolution_parts", "recurrent_parts"):
        load_part(name)


def training(steps: int, rate: float, validations: int) -> dict[str, Any]:
    """The group `train` of a recipe: the same for every network of the lessons, except the rate."""
    return {
        "steps": steps,
        "warmup": steps // 20,
        "schedule": "linear",
        "optimizer": "adamw",
        "learning_rate": rate,
        "clip": 1.0,
        "validate_every": max(1, steps // validations),
    }


def updates_in(minutes: float, recipe: Callable[[int, int], trifold.Recipe]) -> int:
    """The updates for which a network has about so many minutes; recipe: of so many updates and
    validations. A few of a run that is discarded are timed, because the learning rate has to end
    with the last one. At least two, because a rate cannot end in a single one.
    """
    with tempfile.TemporaryDirectory() as folder:
        trifold.train(recipe(TIMED, 1), out=folder)
        lines = metrics(Path(folder))
    times = {line["step"]: line["seconds"] for line in lines if "train/tokens_per_second" in line}
    first, *_, last = times  # the first updates compile
    return max(2, int(60 * minutes * (last - first) / (times[last] - times[first])))


def mean_speed(run: Path) -> float:
    """The median of the training tokens per second."""
    speeds = [line.get("train/tokens_per_second") for line in metrics(run)]
    return float(np.median([speed for speed in speeds if speed] or [0.0]))


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of its log."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


class Vocabulary:
    """The words of the sentences to learn, as a run of the product on them has them."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.tokenizer: Tokenizer = train_tokenizer(sentences, TokenizerSettings(**WORDS))
        self.size = self.tokenizer.vocab_size
        self.end = self.tokenizer.library.token_to_id("</s>")

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The ids of the words of each sentence, then that of `</s>`."""
        return [[*ids, self.end] for ids in self.tokenizer.encode(sentences)]

    def word(self, index: int) -> str:
        return self.tokenizer.library.id_to_token(index).removeprefix("▁")

    def index(self, word: str) -> int | None:
        return self.tokenizer.library.token_to_id(f"▁{word}")


def print_table(rows: Sequence[Sequence[object]], *, heads: Sequence[str]) -> None:
    """Columns as wide as their longest value; the first one is at the left, others at the right."""
    lines = [[str(value) for value in row] for row in (heads, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        first, *others = line
        cells = [first.ljust(widths[0])]
        cells += [value.rjust(width) for value, width in zip(others, widths[1:], strict=True)]
        print("  ".join(cells).rstrip())
