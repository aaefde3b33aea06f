"""The next word of a sentence: from counting to the Transformer, with one score.

    python examples/road/next_words.py --minutes 10
    python examples/road/next_words.py --steps 300 --only "Transformer" "LSTM"

    unigram           P(w): how often a word occurs
    Markov chain      P(w | h): a row of a table for each history h of one word, or of two
                                                                       (Markov 1913, Shannon 1948)
    skips             a vote P(w | a, b) for each earlier word a with the last word b; with a mask,
                      only the vote that is surest
    window            tanh(W [x_(t−n+1); …; x_t]): a network that reads n words (Bengio et al. 2003)
    RNN, GRU, LSTM    a state instead of a window
    Transformer       every word reads all words before it

Chains and skips are interpolated with shorter histories (`examples/trigram.py` has the equation).
Networks are recipes of trifold with parts of this folder: data, batches, loop and score are those
of the product. The program prints the table and draws it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from words import (
    FOLDER,
    RUNS,
    WORDS,
    Corpus,
    Vocabulary,
    load_corpus,
    load_parts,
    mean_speed,
    print_table,
    training,
    updates_in,
)

import trifold
from trifold.look.plots import new_figure, save_figure

FARTHEST = 8  # words before the next one that vote


class Counts:
    """A chain of some order, fitted to sentences of ids below `size`."""

    def __init__(self, sentences: Sequence[Sequence[int]], size: int, order: int) -> None:
        self.size = size
        self.order = order
        self.followers = defaultdict[tuple[int, ...], Counter[int]](Counter)
        for ids in sentences:
            for position, word in enumerate(ids):
                for length in range(min(order, position) + 1):
                    self.followers[tuple(ids[position - length : position])][word] += 1

    @property
    def learned(self) -> int:
        """Counts that are not 0."""
        return sum(map(len, self.followers.values()))

    def probabilities(self, history: Sequence[int]) -> np.ndarray:
        """(V,) of the next word."""
        found = np.full(self.size, 1 / self.size)
        for length in range(min(self.order, len(history)) + 1):
            key = tuple(history[len(history) - length :])
            found = interpolate(self.followers.get(key), found)
        return found


def interpolate(counts: Counter[int] | None, shorter: np.ndarray) -> np.ndarray:
    """(c(w) + t P'(w)) / (c + t), with the counts c after a history, t of them distinct, and P' of
    the shorter history.
    """
    if not counts:
        return shorter
    mixed = shorter * len(counts)
    mixed[list(counts)] += list(counts.values())
    return mixed / (counts.total() + len(counts))


class Skips:
    """keep: the number of votes that count, those of lowest entropy; None for the mean of all."""

    def __init__(self, sentences: Sequence[Sequence[int]], size: int, keep: int | None) -> None:
        self.keep = keep
        self.last = Counts(sentences, size, 1)
        self.pairs = defaultdict[tuple[int, int, int], Counter[int]](Counter)
        for ids in sentences:
            for position in range(2, len(ids)):
                before = ids[position - 1]
                for distance in range(2, min(FARTHEST, position) + 1):
                    self.pairs[distance, ids[position - distance], before][ids[position]] += 1

    @property
    def learned(self) -> int:
        return self.last.learned + sum(map(len, self.pairs.values()))

    def votes(self, history: Sequence[int]) -> list[tuple[int, np.ndarray]]:
        """The distance of each earlier word that voted, and its vote P(w | a, b) (V,)."""
        shorter = self.last.probabilities(history)
        votes = []
        for distance in range(2, min(FARTHEST, len(history)) + 1):
            counts = self.pairs.get((distance, history[-distance], history[-1]))
            if counts:
                votes.append((distance, interpolate(counts, shorter)))
        return votes

    def probabilities(self, history: Sequence[int]) -> np.ndarray:
        votes = [vote for _, vote in self.votes(history)]
        if not votes:
            return self.last.probabilities(history)
        if self.keep is not None:
            votes = sorted(votes, key=entropy)[: self.keep]
        mean: np.ndarray = np.mean(votes, axis=0)
        return mean


def entropy(probabilities: np.ndarray) -> float:
    """In nats."""
    return float(-(probabilities * np.log(probabilities)).sum())


def perplexity(model: Counts | Skips, sentences: Sequence[Sequence[int]]) -> float:
    """See the head of words.py."""
    losses = [
        -math.log(model.probabilities(ids[:position])[word])
        for ids in sentences
        for position, word in enumerate(ids)
    ]
    return math.exp(sum(losses) / len(losses))


# --- networks -------------------------------------------------------------------------------------

WIDTH = 256
_ONE_LAYER = {"n_layers": 1, "n_heads": 1, "d_ff": 1, "positions": "none"}
NETWORKS: dict[str, tuple[dict[str, Any], float]] = {  # settings of the model, and the peak rate
    "window of 5 words": (
        _ONE_LAYER | {"parts": ["convolution_parts"], "options": {"window": {"words": 5}}},
        0.003,
    ),
    **{
        name.upper(): (
            _ONE_LAYER | {"parts": ["recurrent_parts"], "options": {"recurrent": {"cell": name}}},
            0.003,
        )
        for name in ("rnn", "gru", "lstm")
    },
    "Transformer": (
        {"n_layers": 2, "n_heads": 4, "d_ff": 512, "positions": "rotary", "norm_placement": "pre"},
        0.003,
    ),
}


def recipe(
    corpus: Corpus, model: dict[str, Any], rate: float, steps: int, validations: int = 10
) -> trifold.Recipe:
    """A language model on the first language of the corpus."""
    own = {"shape": "decoder", "d_model": WIDTH, "max_positions": 128, "dropout": 0.2}
    return trifold.Recipe.parse(
        {
            "name": "next-words",
            "task": {"kind": "causal"},
            "data": corpus.texts,
            "tokenizer": WORDS,
            "model": own | model,
            "batch": {"tokens": 2048},
            "train": training(steps, rate, validations),
        }
    )


def train(
    corpus: Corpus, folder: Path, name: str, steps: int, minutes: float | None
) -> tuple[int, int, float, float]:
    """Parameters, updates, tokens per second, and perplexity."""
    model, rate = NETWORKS[name]
    if minutes is not None:
        steps = updates_in(minutes, partial(recipe, corpus, model, rate))
    outcome = trifold.train(recipe(corpus, model, rate, steps), out=folder)
    size = trifold.load(outcome.folder).model.count_parameters()
    scores = evaluate(folder, model.get("parts", ()))
    return size, outcome.steps, mean_speed(folder), scores["scores"]["perplexity"]


def evaluate(run: Path, parts: Sequence[str]) -> dict[str, Any]:
    """What `trifold eval` prints about the held-out sentences; parts: modules of this folder."""
    command = [sys.executable, "-m", "trifold", "eval", str(run), "--json"]
    for part in parts:
        command += ["--part", part]
    places = os.pathsep.join([str(FOLDER), *sys.path])
    environment = os.environ | {"PYTHONPATH": places}
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    scores: dict[str, Any] = json.loads(printed.stdout)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, help="training time of each network")
    parser.add_argument(
        "--steps", type=int, default=2000, help="updates of each network, without --minutes"
    )
    parser.add_argument("--only", nargs="+", metavar="MODEL", help="names of the table")
    parser.add_argument("--out", type=Path, default=RUNS / "next-words", help="folder of the runs")
    options = parser.parse_args()
    load_parts()
    corpus = load_corpus()
    vocabulary = Vocabulary(corpus.sources["train"])
    learn, held_out = (vocabulary.encode(corpus.sources[split]) for split in ("train", "test"))
    print(f"{corpus.name}: {vocabulary.size:,} words; {len(held_out):,} sentences held out")
    counting = {
        "unigram": lambda: Counts(learn, vocabulary.size, 0),
        "Markov chain, 1 word": lambda: Counts(learn, vocabulary.size, 1),
        "Markov chain, 2 words": lambda: Counts(learn, vocabulary.size, 2),
        "skips, all votes": lambda: Skips(learn, vocabulary.size, None),
        "skips, masked": lambda: Skips(learn, vocabulary.size, 1),
    }
    rows: list[tuple[str, str, str, str, float]] = []
    for name in options.only or [*counting, *NETWORKS]:
        start = time.monotonic()
        if name in counting:
            counts = counting[name]()
            score = perplexity(counts, held_out)
            rows.append((name, f"{counts.learned:,}", "", "", score))
        else:
            folder = options.out / name.replace(" ", "-")
            size, steps, speed, score = train(corpus, folder, name, options.steps, options.minutes)
            rows.append((name, f"{size:,}", f"{steps:,}", f"{speed:,.0f}", score))
        print(f"{name}: perplexity {score:.1f} in {time.monotonic() - start:.0f} s", flush=True)
    print()
    print_table(
        [(*row[:4], f"{row[4]:.1f}") for row in rows],
        heads=("model", "learned", "updates", "tokens/s", "perplexity"),
    )
    figure = new_figure(7, 0.4 * len(rows) + 1)
    axis = figure.add_subplot()
    axis.barh([row[0] for row in rows], [row[4] for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("perplexity of held-out words (less is better)")
    print(save_figure(figure, options.out / "perplexity.png"))


if __name__ == "__main__":
    main()
