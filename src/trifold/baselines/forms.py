"""A linear model on the form of each word and of the words beside it: logistic regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from trifold.baselines.baseline import Baseline, LabelledRows, Poll, State
from trifold.baselines.files import decode_texts, encode_texts
from trifold.linear.forms import Place, chosen_sentences, forms_of, places_of
from trifold.linear.logistic import LinearModel, fit_classes
from trifold.linear.ngrams import Terms, numbered
from trifold.linear.tfidf import Tfidf

STRENGTH = 10.0  # C; on 500 sentences, 100 and 1,000 are equal
MOST_WEIGHTS = 2**22  # rare forms are left out until there are so few


def word_forms(places: Sequence[Place]) -> Terms:
    """The forms of each place: the word, its shape, ends and starts, and its neighbors."""
    names, ids, starts = numbered([*forms_of(place)] for place in places)
    return Terms(names, ids, np.repeat(np.arange(len(places)), np.diff(starts)), len(places))


@dataclass
class FormModel(Baseline):
    """The forms of the training words, and their weights for each tag."""

    tfidf: Tfidf
    model: LinearModel
    tags: list[str]
    name = "a linear model on the form of words"

    @classmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> FormModel | None:
        train = train.select(chosen_sentences(np.array([*map(len, train.column("words"))])))
        places = places_of(train.column("words"))
        tags = [*chain.from_iterable(train.column("tags"))]
        known = [*dict.fromkeys(tags)]
        if len(known) < 2:
            return None
        labels = torch.tensor([*map(known.index, tags)])
        tfidf, features = Tfidf.fit(word_forms, places, MOST_WEIGHTS // len(known))
        fitted = cls(tfidf, fit_classes(features, labels, len(known), STRENGTH, poll), known)
        fitted.rows = len(train)
        return fitted

    def predict(self, task: Any, rows: LabelledRows) -> list[list[str]]:
        sentences = rows.column("words")
        found = self.model.logits(self.tfidf.transform(places_of(sentences))).argmax(1).tolist()
        tags = iter(found)
        return [[self.tags[next(tags)] for _ in words] for words in sentences]

    def state(self) -> State:
        tensors = {
            "names": encode_texts(self.tfidf.names),
            "idf": torch.from_numpy(self.tfidf.idf),
            "weights": self.model.weights.float(),
            "bias": self.model.bias,
        }
        return State({"tags": self.tags}, tensors)

    @classmethod
    def restore(cls, state: State) -> FormModel:
        tensors = state.tensors
        names = decode_texts(tensors["names"])
        tags = [*map(str, state.values["tags"])]
        idf = tensors["idf"].numpy()
        weights, bias = (tensors[name].double() for name in ("weights", "bias"))
        if idf.shape != (len(names),) or weights.shape != (len(names), len(tags)):
            raise ValueError("the shapes of the weights do not fit")
        if bias.shape != (len(tags),):
            raise ValueError("the shape of the bias does not fit")
        return cls(Tfidf(word_forms, names, np.asarray(idf)), LinearModel(weights, bias), tags)
