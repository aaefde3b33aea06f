"""Words as one-hot vectors, and tables of transitions: what a prediction looks up.

    one-hot    a word is a vector with a single 1; its product with a matrix is a row of it
    order 1    a row per word: P(next | last)                            (Markov 1913; Shannon 1948)
    order 2    a row per pair of words: P(next | last two)
    skips      a row per pair of the last word with any earlier one: each pair votes
    mask       only the pairs that tell something vote: a table of what to attend to

What follows "ran" depends on a word before it, which may be far away: a chain needs a row for every
history of that length. Pairs need no more rows than a chain of order 2, and one of them knows the
answer; but most pairs vote for both endings, and the mask removes their votes.

    python examples/road/word_tables.py
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from words import RUNS, print_table

from trifold.look.plots import new_figure, save_figure

REQUESTS = (
    "show me my folders please",
    "show me my folders please",
    "show me my files please",
    "show me my files please",
    "show me my files please",
    "show me my photos please",
)
ENDINGS = (
    "check whether the battery ran down please",
    "check whether the program ran please",
)


def split(sentences: Sequence[str]) -> list[list[str]]:
    return [sentence.split() for sentence in sentences]


def vocabulary(sentences: Sequence[Sequence[str]]) -> list[str]:
    """The words, in the order of the alphabet."""
    return sorted({word for sentence in sentences for word in sentence})


def one_hot(words: Sequence[str], known: Sequence[str]) -> Tensor:
    """(words, V): a 1 in the column of each word."""
    rows = torch.zeros(len(words), len(known))
    for row, word in enumerate(words):
        rows[row, known.index(word)] = 1
    return rows


def transitions(sentences: Sequence[Sequence[str]], known: Sequence[str]) -> Tensor:
    """(V, V): P(next | last); a row of 0 for a word that is always the last one."""
    counts = torch.zeros(len(known), len(known))
    for sentence in sentences:
        before = one_hot(sentence[:-1], known)
        after = one_hot(sentence[1:], known)
        counts += before.T @ after
    return counts / counts.sum(1, keepdim=True).clamp_min(1)


def second_order(sentences: Sequence[Sequence[str]]) -> dict[tuple[str, str], Counter[str]]:
    """How often each word follows two others."""
    found = defaultdict[tuple[str, str], Counter[str]](Counter)
    for sentence in sentences:
        for first, second, third in zip(sentence, sentence[1:], sentence[2:], strict=False):
            found[first, second][third] += 1
    return found


def votes(
    sentences: Sequence[Sequence[str]], history: Sequence[str]
) -> dict[tuple[str, str], dict[str, float]]:
    """For each pair (earlier word, last word) of the history, the share of each word that follows
    the last word somewhere after the earlier one.
    """
    *earlier, last = history
    found = {}
    for word in earlier:
        counts = Counter[str]()
        for sentence in sentences:
            for place, (each, after) in enumerate(pairwise(sentence)):
                if each == last and word in sentence[:place]:
                    counts[after] += 1
        found[word, last] = {each: count / counts.total() for each, count in counts.items()}
    return found


def masked(
    pairs: dict[tuple[str, str], dict[str, float]],
) -> dict[tuple[str, str], dict[str, float]]:
    """The pairs that vote for one word only."""
    return {pair: shares for pair, shares in pairs.items() if len(shares) == 1}


def total(pairs: dict[tuple[str, str], dict[str, float]]) -> Counter[str]:
    """The sum of the votes for each word."""
    sums = Counter[str]()
    for shares in pairs.values():
        sums.update(shares)
    return sums


def main(folder: Path = RUNS) -> None:
    requests = split(REQUESTS)
    known = vocabulary(requests)
    table = transitions(requests, known)
    print("one-hot vector of 'my' times the table of transitions = its row\n")
    row = one_hot(["my"], known) @ table
    assert torch.equal(row[0], table[known.index("my")])
    print_table(
        [
            (word, *(f"{value:.2f}" for value in values))
            for word, values in zip(known, table, strict=True)
        ],
        heads=("P(next | last)", *known),
    )
    endings = split(ENDINGS)
    history = ENDINGS[0].split()[:5]
    print(f"\n{' '.join(history)} …")
    histories = second_order(endings)
    print(f"order 2: {len(histories)} histories of two words, each with one ending here\n")
    pairs = votes(endings, history)
    rows = [
        (
            f"{earlier} … {last}",
            f"{shares.get('down', 0):.1f}",
            f"{shares.get('please', 0):.1f}",
            "votes" if (earlier, last) in masked(pairs) else "masked",
        )
        for (earlier, last), shares in pairs.items()
    ]
    everything = total(pairs)
    chosen = total(masked(pairs))
    rows += [
        ("all votes", f"{everything['down']:.1f}", f"{everything['please']:.1f}", ""),
        ("with the mask", f"{chosen['down']:.1f}", f"{chosen['please']:.1f}", ""),
    ]
    print_table(rows, heads=("pair", "down", "please", "mask"))
    figure = new_figure(5, 4.4)
    axis = figure.add_subplot()
    axis.imshow(table.numpy(), cmap="Blues", vmin=0, vmax=1)
    axis.set_xticks(range(len(known)), known, rotation=45, ha="right")
    axis.set_yticks(range(len(known)), known)
    axis.set_xlabel("next word")
    axis.set_ylabel("last word")
    print(save_figure(figure, folder / "transitions.png"))


if __name__ == "__main__":
    main()
