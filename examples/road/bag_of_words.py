"""A text as a vector of its words: counts, TF-IDF, and a linear classifier.

    bag of words   x_w = 1 if the word w occurs in the text, else 0; their order is lost
    TF-IDF         x_w = tf(w) · log((1 + N) / (1 + n_w)), divided by |x|: a word that occurs in few
                   of the N texts counts more                                  (Spärck Jones 1972)
    classifier     P(class | x) = softmax(W x + b), logistic regression with a small L2 penalty
                   that the validation texts choose

    python examples/road/bag_of_words.py
    python examples/road/bag_of_words.py reviews.tsv --test held-out.tsv

The texts are sentences of film reviews (SST-2, in $TRIFOLD_DATA) or a table with the columns
sentence and label; the last tenth of the texts to learn chooses the penalty. A linear model on
words is the result that a Transformer has to beat.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from words import RUNS, print_table

from trifold.errors import DataError
from trifold.look.plots import new_figure, save_figure

WORD = re.compile(r"[\w']+|[^\w\s]")
PENALTIES = (1e-6, 1e-5, 1e-4)


class Texts(NamedTuple):
    """Texts and the index of each one's class."""

    texts: list[str]
    labels: Tensor


def read(file: Path) -> tuple[list[str], list[str]]:
    """The columns sentence and label of a table, also `.gz`. Raises DataError."""
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    if not rows or not {"sentence", "label"} <= set(rows[0]):
        raise DataError(f"{file}: has no columns sentence and label; name them in its first line")
    return [row["sentence"] for row in rows], [row["label"] for row in rows]


class Vectors:
    """Texts as sparse rows over the words of the texts to learn."""

    def __init__(self, texts: Sequence[str], *, is_weighted: bool) -> None:
        documents = [self.words(text) for text in texts]
        frequency = Counter(word for words in documents for word in set(words))
        self.index = {word: n for n, word in enumerate(sorted(frequency))}
        self.is_weighted = is_weighted
        self.rarity = {
            word: math.log((1 + len(texts)) / (1 + count)) for word, count in frequency.items()
        }

    @staticmethod
    def words(text: str) -> list[str]:
        return WORD.findall(text.lower())

    def row(self, text: str) -> dict[int, float]:
        """The column and the value of each word of the text; words that were not learned have
        none.
        """
        counts = Counter(word for word in self.words(text) if word in self.index)
        if not self.is_weighted:
            return {self.index[word]: 1.0 for word in counts}
        values = {self.index[word]: count * self.rarity[word] for word, count in counts.items()}
        length = math.sqrt(sum(value * value for value in values.values()))
        return {column: value / (length or 1) for column, value in values.items()}

    def rows(self, texts: Sequence[str]) -> Tensor:
        """(texts, V), sparse."""
        entries = [(n, *entry) for n, text in enumerate(texts) for entry in self.row(text).items()]
        places = torch.tensor([[n, column] for n, column, _ in entries], dtype=torch.int64)
        values = torch.tensor([value for *_, value in entries])
        size = (len(texts), len(self.index))
        places = places.reshape(-1, 2).T
        rows = torch.sparse_coo_tensor(places, values, size, check_invariants=True)
        return rows.coalesce()


def fit(rows: Tensor, labels: Tensor, classes: int, penalty: float) -> nn.Linear:
    """Logistic regression by L-BFGS."""
    model = nn.Linear(rows.shape[1], classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(logits(model, rows), labels)
        loss = loss + penalty * model.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return model


def logits(model: nn.Linear, rows: Tensor) -> Tensor:
    """Sparse rows (N, V) -> (N, classes)."""
    return torch.sparse.mm(rows, model.weight.T) + model.bias


def accuracy(model: nn.Linear, rows: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return 100 * (logits(model, rows).argmax(1) == labels).double().mean().item()


def compare(
    learn: Texts, test: Texts, classes: int
) -> tuple[list[tuple[str, ...]], Vectors, nn.Linear]:
    """The rows of the table; the vectors and the classifier of TF-IDF."""
    cut = len(learn.texts) - len(learn.texts) // 10
    table = []
    for name, is_weighted in (("bag of words", False), ("TF-IDF", True)):
        vectors = Vectors(learn.texts, is_weighted=is_weighted)
        rows = vectors.rows(learn.texts)
        first = vectors.rows(learn.texts[:cut])
        last = vectors.rows(learn.texts[cut:])
        scores = {
            penalty: accuracy(
                fit(first, learn.labels[:cut], classes, penalty), last, learn.labels[cut:]
            )
            for penalty in PENALTIES
        }
        best = max(scores, key=scores.__getitem__)
        model = fit(rows, learn.labels, classes, best)
        score = accuracy(model, vectors.rows(test.texts), test.labels)
        size = sum(parameter.numel() for parameter in model.parameters())
        table.append((name, f"{size:,}", f"{best:g}", f"{score:.1f}"))
    return table, vectors, model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sst2 = Path(os.environ.get("TRIFOLD_DATA", "")) / "sst2"
    parser.add_argument("train", nargs="?", type=Path, default=sst2 / "train.tsv.gz")
    parser.add_argument("--test", type=Path, default=sst2 / "dev.tsv")
    parser.add_argument("--limit", type=int, help="texts to learn, at most")
    parser.add_argument("--out", type=Path, default=RUNS, help="folder of the picture")
    options = parser.parse_args()
    texts, labels = read(options.train)
    texts, labels = texts[: options.limit], labels[: options.limit]
    test_texts, test_labels = read(options.test)
    names = sorted(set(labels))
    index = {name: n for n, name in enumerate(names)}
    learn = Texts(texts, torch.tensor([index[label] for label in labels]))
    test = Texts(test_texts, torch.tensor([index.get(label, -1) for label in test_labels]))
    print(
        f"{len(texts):,} texts to learn, {len(test_texts):,} held out, classes {', '.join(names)}"
    )
    most = Counter(test_labels).most_common(1)[0][1]
    table, vectors, model = compare(learn, test, len(names))
    print_table(
        [("always the same class", "", "", f"{100 * most / len(test_labels):.1f}"), *table],
        heads=("vector", "learned", "penalty", "accuracy"),
    )
    words = sorted(vectors.index, key=vectors.index.__getitem__)
    weights = (model.weight[-1] - model.weight[0]).detach()
    order = weights.argsort().tolist()
    shown = [*order[:12], *order[-12:]]
    figure = new_figure(5, 5.5)
    axis = figure.add_subplot()
    axis.barh([words[n] for n in shown], weights[shown].tolist())
    axis.set_xlabel(f"weight for class {names[-1]} against {names[0]}")
    print(save_figure(figure, options.out / "words.png"))


if __name__ == "__main__":
    main()
