"""The sets, their sizes and the systems that are compared."""

from __future__ import annotations

from typing import NamedTuple

ALL = 20_000  # the most training rows; those of smaller sets are all rows
SIZES = (500, 2_000, ALL)
SEEDS = (0, 1, 2)  # of models from scratch and baselines
START_SEEDS = (0,)  # of models that begin with MiniLM
START_SIZES = (2_000, ALL)
VALIDATION_ROWS = 1_500  # at most; choices are made by them


class Set(NamedTuple):
    """A public set. task: the recipe that learns it. score: what `trifold eval` calls it.

    made_of: what the rows are, which decides about readers, baselines and scores. validation: the
    most validation rows, where each takes long.
    """

    title: str
    task: str
    made_of: str
    score: str
    validation: int = VALIDATION_ROWS


INSIDE = {
    "sst2": Set("SST-2", "classify", "texts", "accuracy"),
    "mrpc": Set("MRPC", "classify", "pairs", "accuracy"),
    "translations": Set("translations", "classify", "pairs", "accuracy"),
    "stsb": Set("STS-B", "classify", "numbers", "pearson"),
    "conll2003": Set("CoNLL-2003", "tag", "words", "f1"),
    "squad": Set("SQuAD subset", "answer", "questions", "f1"),
    "scitldr": Set("SciTLDR", "summarize", "summaries", "rougeL", validation=200),
    "mnist": Set("MNIST", "images", "images", "accuracy"),
    "cifar10": Set("CIFAR-10", "images", "images", "accuracy"),
}
# Sets of packages of PyPI (outside.py), measured where `TRIFOLD_OUTSIDE` has them.
OUTSIDE = {
    "bbc": Set("BBC news", "classify", "texts", "accuracy"),
    "posts": Set("Posts about products", "classify", "texts", "accuracy"),
    "chinese-reviews": Set("Chinese reviews", "classify", "texts", "accuracy"),
    "rated-posts": Set("Rated posts", "classify", "ratings", "pearson"),
    "rated-products": Set("Rated products", "classify", "ratings", "pearson"),
    "rated-films": Set("Rated films", "classify", "ratings", "pearson"),
    "rated-editorials": Set("Rated editorials", "classify", "ratings", "pearson"),
    "chinese-words": Set("Chinese words", "tag", "classes of words", "accuracy"),
    "small-digits": Set("Digits of 8 × 8", "images", "images", "accuracy"),
}
SETS = INSIDE | OUTSIDE
# Rows that transformers' examples for `Trainer` read, and this benchmark too.
STARTED = ("sst2", "mrpc", "stsb", "conll2003", "squad")

# Choices are made on these cells, in an hour on two cores, and by validation rows only.
SUBSET_SIZES = (500, 2_000)
SUBSET_SEEDS = (0,)

SYSTEMS = ("trifold", "baselines", "trifold-minilm", "trainer-minilm")


class Cell(NamedTuple):
    """One training of a system."""

    system: str
    set: str
    rows: int
    seed: int

    @property
    def name(self) -> str:
        return "-".join(map(str, self))


def sizes_of(rows: int, sizes: tuple[int, ...] = SIZES) -> list[int]:
    """The sizes of a set with this many training rows: those below it, and all rows."""
    smaller = [size for size in sizes if size < rows]
    if len(smaller) < len(sizes):
        smaller.append(rows)
    return smaller
