"""The tag that each word has most often."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from trifold.baselines.baseline import Baseline, LabelledRows, Poll, State
from trifold.baselines.files import decode_texts, encode_texts


@dataclass
class FrequentTags(Baseline):
    """The most frequent tag of each word, and of all words, which those that are not known get."""

    tags: dict[str, str]
    unknown: str
    name = "the most frequent tag of each word"

    @classmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> FrequentTags:
        counts = defaultdict[str, Counter[str]](Counter)
        words = chain.from_iterable(train.column("words"))
        tags = [*chain.from_iterable(train.column("tags"))]
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
        ((unknown, _),) = Counter(tags).most_common(1)
        return cls({word: of.most_common(1)[0][0] for word, of in counts.items()}, unknown)

    def predict(self, task: Any, rows: LabelledRows) -> list[list[str]]:
        sentences = rows.column("words")
        return [[self.tags.get(word, self.unknown) for word in words] for words in sentences]

    def state(self) -> State:
        names = [*dict.fromkeys(self.tags.values())]
        numbers = torch.tensor([*map(names.index, self.tags.values())], dtype=torch.int32)
        tensors = {"words": encode_texts([*self.tags]), "tags": numbers}
        return State({"names": names, "unknown": self.unknown}, tensors)

    @classmethod
    def restore(cls, state: State) -> FrequentTags:
        names = [*map(str, state.values["names"])]
        words = decode_texts(state.tensors["words"])
        numbers = state.tensors["tags"].tolist()
        tags = {word: names[number] for word, number in zip(words, numbers, strict=True)}
        return cls(tags, str(state.values["unknown"]))
