"""The simplest models of each set, by scikit-learn, with fixed settings.

    python benchmarks/defaults/baselines.py SET ROWS SEED

It fits each model on the training rows of a cell and prints a line of JSON: the scores of each on
the validation and the test rows.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from rows import Row, draw, read
from scipy import sparse
from scoring import score
from setting import SETS
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from trifold.linear.overlap import Overlap
from trifold.scripts import unicode_words
from trifold.text.sentences import split_sentences

Predict: TypeAlias = Callable[[Sequence[Row]], Sequence[Any]]
Fit: TypeAlias = Callable[[Sequence[Row]], Predict]

STRENGTH = 10.0  # C of logistic regression on TF-IDF; better than 1 on 500 to 6,000 texts
ITERATIONS = 1_000
TAG_ITERATIONS = 100  # each word is a row


# --- texts, pairs and numbers ---------------------------------------------------------------------


def most_frequent_label(train: Sequence[Row]) -> Predict:
    ((label, _),) = Counter(row["label"] for row in train).most_common(1)
    return lambda rows: [label] * len(rows)


def texts_of(rows: Sequence[Row]) -> list[str]:
    """The text of each row, with its second text if it has one."""
    return [f"{row['text']} {row['pair']}" if "pair" in row else row["text"] for row in rows]


def linear_on_words(train: Sequence[Row]) -> Predict:
    return _on_texts(train, [_words()], *_classes_of(train))


def linear_on_words_and_characters(train: Sequence[Row]) -> Predict:
    return _on_texts(train, [_words(), _characters()], *_classes_of(train))


def ridge_on_words(train: Sequence[Row]) -> Predict:
    return _on_texts(train, [_words()], *_numbers_of(train))


def ridge_on_words_and_characters(train: Sequence[Row]) -> Predict:
    return _on_texts(train, [_words(), _characters()], *_numbers_of(train))


def _words() -> TfidfVectorizer:
    return TfidfVectorizer(ngram_range=(1, 2))


def _characters() -> TfidfVectorizer:
    return TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5))


def _classes_of(train: Sequence[Row]) -> tuple[Any, list[Any]]:
    """A model of classes, and those of the rows."""
    model = LogisticRegression(C=STRENGTH, max_iter=ITERATIONS)
    return model, [row["label"] for row in train]


def _numbers_of(train: Sequence[Row]) -> tuple[Any, list[Any]]:
    """A model of numbers, and those of the rows."""
    return Ridge(), [float(row["label"]) for row in train]


def _on_texts(
    train: Sequence[Row], kinds: list[TfidfVectorizer], model: Any, labels: list[Any]
) -> Predict:
    texts = texts_of(train)
    model.fit(sparse.hstack([kind.fit_transform(texts) for kind in kinds], format="csr"), labels)

    def predict(rows: Sequence[Row]) -> Sequence[Any]:
        features = [kind.transform(texts_of(rows)) for kind in kinds]
        predicted: Sequence[Any] = model.predict(sparse.hstack(features, format="csr")).tolist()
        return predicted

    return predict


def linear_on_overlap(train: Sequence[Row]) -> Predict:
    """Twelve features of what two texts share."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS))
    return _on_overlap(train, model, [row["label"] for row in train])


def ridge_on_overlap(train: Sequence[Row]) -> Predict:
    model = make_pipeline(StandardScaler(), Ridge())
    return _on_overlap(train, model, [float(row["label"]) for row in train])


def _on_overlap(train: Sequence[Row], model: Any, labels: list[Any]) -> Predict:
    overlap = Overlap.fit([text for row in train for text in (row["text"], row["pair"])])

    def features(rows: Sequence[Row]) -> Any:
        return overlap.features([row["text"] for row in rows], [row["pair"] for row in rows])

    model.fit(features(train), labels)

    def predict(rows: Sequence[Row]) -> Sequence[Any]:
        predicted: Sequence[Any] = model.predict(features(rows)).tolist()
        return predicted

    return predict


# --- words ----------------------------------------------------------------------------------------


def most_frequent_tag(train: Sequence[Row]) -> Predict:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in train:
        for word, tag in zip(row["words"], row["tags"], strict=True):
            counts[word][tag] += 1
    ((unknown, _),) = Counter(tag for row in train for tag in row["tags"]).most_common(1)
    tags = {word: count.most_common(1)[0][0] for word, count in counts.items()}
    return lambda rows: [[tags.get(word, unknown) for word in row["words"]] for row in rows]


def linear_on_forms(train: Sequence[Row]) -> Predict:
    """The word, its ends and its shape, and the words beside it; each word on its own."""
    tfidf = TfidfVectorizer(analyzer=_as_they_are)
    features = tfidf.fit_transform([forms for row in train for forms in _forms(row)])
    model = LogisticRegression(C=STRENGTH, max_iter=TAG_ITERATIONS)
    model.fit(features, [tag for row in train for tag in row["tags"]])

    def predict(rows: Sequence[Row]) -> Sequence[Any]:
        forms = tfidf.transform([forms for row in rows for forms in _forms(row)])
        found = iter(model.predict(forms))
        return [[str(next(found)) for _ in row["words"]] for row in rows]

    return predict


def _as_they_are(forms: list[str]) -> list[str]:
    return forms


def _forms(row: Row) -> Iterator[list[str]]:
    words = ["", *row["words"], ""]
    for place in range(1, len(words) - 1):
        word = words[place]
        around = {"here": word, "before": words[place - 1], "after": words[place + 1]}
        yield [
            f"word {word}",
            *(f"end {word[-size:]}" for size in (2, 3)),
            *(f"start {word[:size]}" for size in (2, 3)),
            *(f"{side} {text.lower()}" for side, text in around.items()),
            *(f"{side}, shape {_shape(text)}" for side, text in around.items()),
        ]


def _shape(word: str) -> str:
    """The kinds of characters in turn: `Xx` of `Ada`, `d-X` of `12-A`."""
    classes = (
        "X" if c.isupper() else "d" if c.isdigit() else "x" if c.isalpha() else c for c in word
    )
    return "".join(kind for kind, _ in groupby(classes))


# --- questions and summaries ----------------------------------------------------------------------


def overlapping_sentence(train: Sequence[Row]) -> Predict:
    """The sentence of the context with the largest idf of words of the question."""
    overlap = Overlap.fit([*dict.fromkeys(row["context"] for row in train)])

    def answer(row: Row) -> str:
        asked = {*unicode_words(row["question"])}
        sentences = [sentence.strip() for sentence in split_sentences(row["context"])]
        return max(sentences, key=lambda each: overlap.weight(asked & {*unicode_words(each)}))

    return lambda rows: [answer(row) for row in rows]


def first_sentence(train: Sequence[Row]) -> Predict:
    return lambda rows: [row["source"][0] for row in rows]


# --- images ---------------------------------------------------------------------------------------


def linear_on_pixels(train: Sequence[Row]) -> Predict:
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=200))
    model.fit(_pixels(train), [row["label"] for row in train])

    def predict(rows: Sequence[Row]) -> Sequence[Any]:
        labels: Sequence[Any] = model.predict(_pixels(rows)).tolist()
        return labels

    return predict


def _pixels(rows: Sequence[Row]) -> Any:
    from PIL import Image

    def flat(image: Any) -> Any:
        if isinstance(image, bytes):
            image = np.asarray(Image.open(io.BytesIO(image)))
        return image.reshape(-1)

    return np.stack([flat(row["image"]) for row in rows]).astype(np.float32) / 255


BASELINES: dict[str, tuple[Fit, ...]] = {
    "texts": (most_frequent_label, linear_on_words, linear_on_words_and_characters),
    "pairs": (most_frequent_label, linear_on_words, linear_on_overlap),
    "numbers": (ridge_on_words, ridge_on_overlap),
    "ratings": (ridge_on_words, ridge_on_words_and_characters),
    "words": (most_frequent_tag, linear_on_forms),
    "classes of words": (most_frequent_tag, linear_on_forms),
    "questions": (overlapping_sentence,),
    "summaries": (first_sentence,),
    "images": (most_frequent_label, linear_on_pixels),
}


def measure(name: str, rows: int, seed: int, *, tested: bool) -> dict[str, Any]:
    """The scores of each baseline of a set, and its CPU seconds with predictions."""
    splits = read(name)
    train = draw(splits.train, rows, seed)
    made_of = SETS[name].made_of
    scores = {}
    for fit in BASELINES[made_of]:
        start = time.process_time()
        predict = fit(train)
        measured = {"valid": score(made_of, splits.valid, predict(splits.valid))}
        if tested:
            measured["test"] = score(made_of, splits.test, predict(splits.test))
        measured["cpu_s"] = time.process_time() - start
        scores[fit.__name__.replace("_", " ")] = measured
    return {"rows": len(train), "systems": scores}


def main() -> None:
    name, rows, seed, *rest = sys.argv[1:]
    print(json.dumps(measure(name, int(rows), int(seed), tested="--no-test" not in rest)))


if __name__ == "__main__":
    main()
