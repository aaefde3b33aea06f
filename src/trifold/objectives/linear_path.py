"""The linear path of a classifier, which is fitted before its Transformer is trained.

The Transformer learns what the path lacks, so training rows carry logits of paths that were fitted
without them (`Fitted.logits`): five parts of the rows, each predicted by a fit on the other four.
Those of the path that has seen them would be too good, and nothing would be left to learn. All
other rows carry their features. The fit is a function of the rows; nothing is random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.linear.forms import chosen_sentences
from trifold.linear.hashed import SparseRows, hashed_ngrams
from trifold.linear.logistic import LinearModel, fit_classes, fit_labels
from trifold.linear.matrix import FeatureMatrix, dense, sparse
from trifold.linear.ridge import fit_ridge
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import MULTI, REGRESSION
from trifold.nn.inputs import RowFeatures
from trifold.nn.overlap import FIRST, ORDER_NUMBERS, PAIR_BLOCKS, SECOND, overlap_numbers
from trifold.nn.parts import FeatureColumns, LogitsPart, part_of
from trifold.predict.text_features import as_features, text_features
from trifold.predict.word_features import WordRows
from trifold.text.spans import Ids

STRENGTH = 10.0  # C of logistic regression on n-grams
STRENGTH_OF_FORMS = 10.0  # on the forms of words, as in the baseline
STRENGTH_OF_PAIRS = 1.0  # on the numbers of pairs, which are standardized
WORDS_OF_PAIRS = 2**16  # buckets
RIDGE = 1.0  # of the squared weights, for standardized numbers
PARTS = 5  # of the training rows
PARTS_OF_SENTENCES = 3  # fewer, because their fits take longer
MOST_FEATURES = 2**23  # of the rows that a path is fitted on, so that it takes seconds
USUAL_BUCKETS = 2**16  # of words and of characters, by default; more for many texts
MOST_BUCKETS = 2**19
MOST_WEIGHTS_OF_MORE = 2**22  # of more buckets than usual
MOST_WEIGHTS = 2**24
CHUNK = 10_000  # rows whose features are in memory at once
SMALLEST_WEIGHT = 1e-4  # of a class, whose logarithm is finite


@dataclass(frozen=True)
class PathRows:
    """What the path reads of N rows: their texts, or the logits (N, C) that it has for them."""

    texts: Sequence[str]
    logits: NDArray[np.float32] | None = None

    def features(self, config: ModelConfig, rows: Ids) -> RowFeatures | None:
        """The features of some of the rows."""
        if self.logits is not None:
            return RowFeatures.known(torch.from_numpy(self.logits[rows]))
        return text_features(config, [self.texts[row] for row in rows.tolist()])


@dataclass(frozen=True)
class PairRows:
    """What the path reads of N pairs: their counted words."""

    counted: SparseRows

    def features(self, config: ModelConfig, rows: Ids) -> RowFeatures:
        """The features of some of the rows."""
        return as_features(self.counted.select(rows, PAIR_BLOCKS))


@dataclass(frozen=True)
class Fitted:
    """A fitted path: weights (F, C), bias (C,).

    of_features: the parameters that make features, such as idf (F,), by name. logits (N, C): of the
    training rows, by fits without them; None if the Transformer learns without the path. rows: the
    number of rows that it is fitted on. head: that the path is part of.
    """

    weight: Tensor
    bias: Tensor
    of_features: Mapping[str, Tensor]
    logits: NDArray[np.float32] | None
    rows: int
    head: str = "sequence"

    @torch.no_grad()
    def copy_to(self, model: Transformer) -> None:
        """Begin training with the path alone: the last layer for the states of the Transformer is
        0.
        """
        head: Any = model.heads[self.head]
        path = head.path
        parameters = {"weight": self.weight, "bias": self.bias, **self.of_features}
        for name, value in parameters.items():
            getattr(path, name).copy_(value)
        path.scale.fill_(1.0)
        head.out_proj.weight.zero_()
        if head.out_proj.bias is not None:
            head.out_proj.bias.zero_()


def path_columns(config: ModelConfig) -> FeatureColumns:
    """The features that the path of a model reads; none without a path."""
    return part_of(LogitsPart, config).columns(config)


def has_path(config: ModelConfig) -> bool:
    """Whether a model has a linear path."""
    return any(path_columns(config))


def has_path_of_texts(config: ModelConfig) -> bool:
    """Whether a model has a linear path that reads texts."""
    return has_path(config) and not path_columns(config).filters


def without_path(config: ModelConfig) -> ModelConfig:
    """The config without a linear path."""
    return part_of(LogitsPart, config).with_columns(config, FeatureColumns())


def with_fitting_path(config: ModelConfig, characters: int = 0) -> ModelConfig:
    """The config with more buckets of the path, if it has the usual ones, for texts with so many
    characters, as far as there are few classes; and with fewer for very many classes.
    """
    columns = path_columns(config)
    more = min(MOST_BUCKETS, _power_of_two(characters), _buckets_of(MOST_WEIGHTS_OF_MORE, config))
    if columns.words == columns.characters == USUAL_BUCKETS < more:
        columns = columns._replace(words=more, characters=more)
    most = _buckets_of(MOST_WEIGHTS, config)
    columns = FeatureColumns(*(min(most, size) for size in columns))
    return part_of(LogitsPart, config).with_columns(config, columns)


def _buckets_of(weights: int, config: ModelConfig) -> int:
    """How many buckets of words, and as many of characters, have at most so many weights; a power
    of two.
    """
    return 1 << (weights // (2 * config.n_labels)).bit_length() - 1


def _power_of_two(number: int) -> int:
    """The smallest one that is not below a number."""
    return 1 << max(0, number - 1).bit_length()


def with_path_of_pairs(config: ModelConfig) -> ModelConfig:
    """The config with a path on what two texts share, if it has one. That of a regression reads no
    order, which misleads it on texts of another kind than the training texts.
    """
    if not has_path(config):
        return config
    columns = FeatureColumns(compared=WORDS_OF_PAIRS)
    if config.problem_type != REGRESSION:
        columns = columns._replace(order_numbers=ORDER_NUMBERS)
    return part_of(LogitsPart, config).with_columns(config, columns)


def fit_path(
    config: ModelConfig,
    texts: Sequence[str],
    labels: NDArray[Any],
    class_weights: Tensor | None = None,
) -> Fitted:
    """The path of training rows. labels: classes (N,), any number of labels (N, C), or numbers.

    class_weights (C,): factors of the loss by class, which shift the logits.
    """
    path = path_columns(config)
    problem = Problem(config, class_weights, STRENGTH)
    chosen = _chosen_rows(texts)
    counted = _count(texts, chosen, path)
    idf = _idf(counted, path, len(chosen))
    used = Used.of(idf)
    counted = counted._replace(ids=used.places[counted.ids])
    features = _matrix(counted, path, used.idf, len(chosen))
    fitted = problem.fit(features, labels[chosen])
    of_rows = np.zeros((len(texts), config.n_labels), np.float32)
    part_of_row = np.arange(len(chosen)) % PARTS
    for part in range(PARTS):
        inside = np.flatnonzero(part_of_row == part)
        outside = np.flatnonzero(part_of_row != part)
        model = fitted
        if len(outside):
            model = problem.fit(_rows_of(counted, path, used.idf, outside), labels[chosen[outside]])
        if len(inside):
            logits = model.logits(_rows_of(counted, path, used.idf, inside))
            of_rows[chosen[inside]] = logits.float().numpy()
    fitted = used.spread(fitted)
    others = np.setdiff1d(np.arange(len(texts)), chosen)
    for start in range(0, len(others), CHUNK):
        rows = others[start : start + CHUNK]
        found = hashed_ngrams([texts[row] for row in rows.tolist()], path.words, path.characters)
        of_rows[rows] = fitted.logits(_matrix(found, path, idf, len(rows))).float().numpy()
    return Fitted(
        fitted.weights.float(),
        fitted.bias.float(),
        {"idf": torch.from_numpy(idf.astype(np.float32))},
        of_rows,
        len(chosen),
    )


class Used(NamedTuple):
    """The buckets that training rows use. Others have no weight, and a fit without them is faster.

    buckets (U,), their idf (U,), and places (F,): the number of each bucket among those in use.
    """

    buckets: Ids
    idf: NDArray[np.float64]
    places: Ids

    @classmethod
    def of(cls, idf: NDArray[np.float64]) -> Used:
        """Those whose idf (F,) is not 0."""
        buckets = np.flatnonzero(idf)
        places = np.zeros(len(idf), np.int64)
        places[buckets] = np.arange(len(buckets))
        return cls(buckets, idf[buckets], places)

    def spread(self, model: LinearModel) -> LinearModel:
        """The model of all buckets, from that of those in use."""
        weights = model.weights.new_zeros(len(self.places), model.weights.shape[1])
        weights[torch.from_numpy(self.buckets)] = model.weights
        return LinearModel(weights, model.bias)


def fit_forms(config: ModelConfig, words: WordRows, labels: Sequence[Ids]) -> Fitted:
    """The path of training sentences, on the forms of their words; see `fit_path`. labels: the
    class of each word of each sentence. logits (W, C): of all words.
    """
    problem = Problem(config, None, STRENGTH_OF_FORMS)
    buckets = path_columns(config).forms
    sizes = np.array([*map(len, labels)])
    chosen = chosen_sentences(sizes)
    part_of_row = np.full(
        len(sizes), PARTS_OF_SENTENCES
    )  # those of no part are predicted by the last fit
    part_of_row[chosen] = np.arange(len(chosen)) % PARTS_OF_SENTENCES
    part_of_word = np.repeat(part_of_row, sizes)
    classes = np.concatenate(labels)
    fitted_on = part_of_word < PARTS_OF_SENTENCES
    idf = _idf_of_forms(words.forms[fitted_on], buckets)
    used = Used.of(idf)
    of_words = np.zeros((len(classes), config.n_labels), np.float32)
    for part in range(PARTS_OF_SENTENCES + 1):
        rows = np.flatnonzero(fitted_on & (part_of_word != part))
        if not len(rows):  # of one sentence
            rows = np.flatnonzero(fitted_on)
        model = problem.fit(_matrix_of_forms(words.forms[rows], idf, used), classes[rows])
        inside = np.flatnonzero(part_of_word == part)
        if len(inside):
            found = model.logits(_matrix_of_forms(words.forms[inside], idf, used))
            of_words[inside] = found.float().numpy()
    model = used.spread(model)
    weight, bias = model.weights.float(), model.bias.float()
    of_forms = torch.from_numpy(idf.astype(np.float32))
    return Fitted(weight, bias, {"idf": of_forms}, of_words, len(chosen), "token")


def _idf_of_forms(forms: Ids, buckets: int) -> NDArray[np.float64]:
    """(F,) ln((1 + N) / (1 + df)) + 1 of N words; 0 in buckets without forms."""
    _, ids, _ = _counted_forms(forms, buckets)
    frequencies = np.bincount(ids, minlength=buckets)
    return np.where(frequencies > 0, np.log((1 + len(forms)) / (1 + frequencies)) + 1, 0.0)


def _counted_forms(forms: Ids, buckets: int) -> tuple[Ids, Ids, Ids]:
    """The distinct (row, bucket) of forms (N, FORMS), and how often each occurs."""
    keys = np.arange(len(forms))[:, None] * buckets + forms
    found, counts = np.unique(keys, return_counts=True)
    rows, ids = np.divmod(found, buckets)
    return rows, ids, counts


def _matrix_of_forms(forms: Ids, idf: NDArray[np.float64], used: Used) -> FeatureMatrix:
    """The features (N, U) of forms (N, FORMS): idf, in rows of length 1 as the model computes it,
    which does not add equal buckets before it squares them. In float32.
    """
    lengths = np.sqrt((idf[forms] ** 2).sum(1))
    rows, ids, counts = _counted_forms(forms, len(idf))
    is_used = idf[ids] > 0
    rows, ids, counts = rows[is_used], ids[is_used], counts[is_used]
    values = counts * idf[ids] / np.where(lengths > 0, lengths, 1.0)[rows]
    shape = len(forms), len(used.buckets)
    return sparse(rows, used.places[ids], values.astype(np.float32), shape)


def fit_pairs(
    config: ModelConfig,
    counted: SparseRows,
    labels: NDArray[Any],
    class_weights: Tensor | None = None,
) -> Fitted:
    """The path of training rows with two texts, whose Transformer learns alone; see `fit_path`.
    counted: their words.
    """
    problem = Problem(config, class_weights, STRENGTH_OF_PAIRS)
    columns = path_columns(config)
    idf = torch.from_numpy(_idf_of_pairs(counted, columns.compared))
    values = overlap_numbers(as_features(counted), idf, columns.order_numbers)
    means = values.mean(0)
    deviations = values.std(0, correction=0)
    deviations[deviations == 0] = 1
    features = (values - means) / deviations
    fitted = problem.fit(dense(features), labels)
    weights = fitted.weights / deviations[:, None]
    bias = fitted.bias - means @ weights
    return Fitted(weights.float(), bias.float(), {"idf": idf.float()}, None, len(labels))


def _idf_of_pairs(counted: SparseRows, buckets: int) -> NDArray[np.float64]:
    """(F + 1,) ln((1 + N) / (1 + df)) + 1 in N texts, two of each row; 0 in buckets without words,
    and last that of a word in no text.
    """
    sizes = np.diff(counted.starts)
    block = np.repeat(np.arange(len(sizes)) % PAIR_BLOCKS, sizes)
    words = counted.ids[(block == FIRST) | (block == SECOND)]
    texts = 2 * len(sizes) // PAIR_BLOCKS
    frequencies = np.append(np.bincount(words, minlength=buckets), 0)
    idf = np.log((1 + texts) / (1 + frequencies)) + 1
    idf[:-1][frequencies[:-1] == 0] = 0.0
    return idf


@dataclass(frozen=True)
class Problem:
    """What the logits of a model mean, and how weights for them are found."""

    config: ModelConfig
    class_weights: Tensor | None
    strength: float

    def fit(self, features: FeatureMatrix, labels: NDArray[Any]) -> LinearModel:
        """The linear model of rows."""
        config = self.config
        targets = torch.from_numpy(labels)
        if config.problem_type == REGRESSION:
            return fit_ridge(features, targets, RIDGE)
        if config.problem_type == MULTI:
            return fit_labels(features, targets, self.strength)
        model = fit_classes(features, targets, config.n_labels, self.strength)
        weights, bias = (each[..., : config.n_labels] for each in (model.weights, model.bias))
        if self.class_weights is not None:
            bias = bias + self.class_weights.clamp_min(SMALLEST_WEIGHT).log().to(bias)
        return LinearModel(weights, bias)


def _chosen_rows(texts: Sequence[str]) -> Ids:
    """The rows that a path is fitted on: all, or as many from all parts of the data as have the
    most features.
    """
    some = [*texts[:: max(1, len(texts) // 200)]]
    mean = sum(map(len, some)) / max(1, len(some))
    most = int(MOST_FEATURES / max(1.0, 4 * mean))  # at most 4 n-grams begin at a character
    if len(texts) <= most:
        return np.arange(len(texts))
    return np.linspace(0, len(texts) - 1, max(most, 1)).astype(np.int64)


def _count(texts: Sequence[str], rows: Ids, path: FeatureColumns) -> SparseRows:
    """The n-grams of some of the texts, counted in chunks, whose occurrences need much memory."""
    chunks = []
    for start in range(0, len(rows), CHUNK):
        some = [texts[row] for row in rows[start : start + CHUNK].tolist()]
        chunks.append(hashed_ngrams(some, path.words, path.characters))
    sizes = np.concatenate([np.diff(chunk.starts) for chunk in chunks])
    ids, values = (np.concatenate(each) for each in zip(*(c[:2] for c in chunks), strict=True))
    return SparseRows(ids, values, np.cumsum([0, *sizes]))


def _idf(counted: SparseRows, path: FeatureColumns, rows: int) -> NDArray[np.float64]:
    """(F,) ln((1 + N) / (1 + df)) + 1; 0 in buckets without n-grams."""
    frequencies = np.bincount(counted.ids, minlength=path.words + path.characters)
    return np.where(frequencies > 0, np.log((1 + rows) / (1 + frequencies)) + 1, 0.0)


def _rows_of(
    counted: SparseRows, path: FeatureColumns, idf: NDArray[np.float64], rows: Ids
) -> FeatureMatrix:
    """The features of some of the counted rows."""
    blocks = (path.words > 0) + (path.characters > 0)
    return _matrix(counted.select(rows, blocks), path, idf, len(rows))


def _matrix(
    counted: SparseRows, path: FeatureColumns, idf: NDArray[np.float64], rows: int
) -> FeatureMatrix:
    """TF-IDF (N, F) of counts, in float32. idf (F,)."""
    blocks = (path.words > 0) + (path.characters > 0)
    places = np.repeat(np.arange(rows * blocks), np.diff(counted.starts))
    values = counted.values * idf[counted.ids]
    lengths = np.sqrt(np.bincount(places, values**2, minlength=rows * blocks))
    values = values / np.where(lengths > 0, lengths, 1.0)[places]
    shape = rows, len(idf)
    return sparse(places // blocks, counted.ids, values.astype(np.float32), shape)
