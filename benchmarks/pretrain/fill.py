"""Accuracy of masked models and of a 5-gram model on one, two and three adjacent hidden words.

    python benchmarks/pretrain/fill.py runs/mlm-plain [runs/mlm-whole-word …] [--count 500] [--seed
    1]

The 5-gram model (ngram.py) is fitted to the training text of the first run, with the words of its
tokenizer. All models fill the same gaps in its validation text, in words of letters only. They see
both sides of a gap and the number of tokens of each hidden word: a masked model as the number of
masks, the 5-gram model by choosing among words of that many tokens. A masked model fills the mask
with the highest probability first, then reads the sentence again."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import yaml
from ngram import KneserNey

from trifold.data import DataSettings, read_documents
from trifold.nn import Inputs
from trifold.nn.masks import padding_mask
from trifold.pipeline import Pipeline, load
from trifold.text import Tokenizer
from trifold.text.annotation import annotate
from trifold.text.spans import example_rng, find_words

SIZES = {1: "word", 2: "pair", 3: "triple"}
Word = tuple[int, ...]  # token ids


class Gap(NamedTuple):
    """Words [first, first + size) of a sentence."""

    sentence: list[Word]
    first: int
    size: int

    @property
    def hidden(self) -> list[Word]:
        return self.sentence[self.first : self.first + self.size]


def split_words(tokenizer: Tokenizer, texts: list[str], max_tokens: int) -> list[list[Word]]:
    """Texts as lists of words, without texts that are too long for a model."""
    annotated = annotate(tokenizer, texts)
    found = []
    for start, end in zip(annotated.starts, annotated.starts[1:], strict=False):
        if end - start > max_tokens:
            continue
        ids = annotated.ids[start:end].tolist()
        bounds = find_words(np.ones(len(ids), np.bool_), annotated.word_starts[start:end]).tolist()
        found.append([tuple(ids[a:b]) for a, b in bounds])
    return found


def choose_gaps(
    tokenizer: Tokenizer, valid: list[list[Word]], size: int, count: int, seed: int
) -> list[Gap]:
    """At most one gap per sentence; at least size + 2 words of the sentence stay visible."""
    found = []
    for number in example_rng(seed, 0).permutation(len(valid)):
        sentence = valid[number]
        has_letters = [_is_alphabetic(tokenizer, word) for word in sentence]
        starts = [i for i in range(len(sentence) - size + 1) if all(has_letters[i : i + size])]
        if starts and len(sentence) >= 2 * size + 2:
            found.append(
                Gap(sentence, int(example_rng(seed, int(number) + 1).choice(starts)), size)
            )
        if len(found) == count:
            break
    return found


def _is_alphabetic(tokenizer: Tokenizer, word: Word) -> bool:
    return tokenizer.decode([list(word)])[0].strip().isalpha()


@torch.no_grad()
def fill_with_model(pipe: Pipeline, gaps: list[Gap], batch: int = 64) -> list[list[Word]]:
    """The words that a masked model predicts."""
    tokenizer, model = pipe.tokenizer, pipe.model
    mask = tokenizer.required("mask")
    row = tokenizer.rows(["a"])[0]
    own = [i for i, text in enumerate(row.texts) if text is not None]
    prefix, suffix = row.ids[: own[0]], row.ids[own[-1] + 1 :]
    answers: list[list[Word]] = []
    for start in range(0, len(gaps), batch):
        chunk = gaps[start : start + batch]
        rows, spans = [], []
        for gap in chunk:
            left = [token for word in gap.sentence[: gap.first] for token in word]
            right = [token for word in gap.sentence[gap.first + gap.size :] for token in word]
            masks = sum(map(len, gap.hidden))
            rows.append([*prefix, *left, *[mask] * masks, *right, *suffix])
            spans.append((len(prefix) + len(left), masks))
        lengths = torch.tensor([len(row) for row in rows])
        width = int(lengths.max())
        tokens = torch.tensor(
            [[*row, *[tokenizer.required("pad")] * (width - len(row))] for row in rows]
        )
        attend = padding_mask(lengths, width)
        while bool((masked := tokens == mask).any()):
            logits = model.lm_head(model(Inputs(tokens, attend))[masked])
            best = logits.softmax(-1).max(-1)
            confidence = torch.full(tokens.shape, -1.0)
            confidence[masked] = best.values
            guess = tokens.clone()
            guess[masked] = best.indices
            guess[guess == mask] = tokenizer.required("unk")
            open_rows = masked.any(1).nonzero()[:, 0]
            column = confidence.argmax(1)[open_rows]
            tokens[open_rows, column] = guess[open_rows, column]
        for gap, row, (first, _) in zip(chunk, tokens.tolist(), spans, strict=True):
            ends = np.cumsum([len(word) for word in gap.hidden]) + first
            answers.append(
                [
                    tuple(row[end - len(word) : end])
                    for word, end in zip(gap.hidden, ends, strict=True)
                ]
            )
    return answers


def fill_with_ngrams(train: list[list[Word]], gaps: list[Gap]) -> list[list[Word]]:
    """The words that a 5-gram model predicts; words that occur once in training are one unknown
    word.
    """
    counts = Counter(word for sentence in train for word in sentence)
    known = [word for word, count in counts.items() if count > 1]
    number = {word: at for at, word in enumerate(known, start=3)}
    model = KneserNey([[number.get(word, 2) for word in one] for one in train], len(known) + 3)
    of_size: dict[int, np.ndarray] = {}
    for word, at in number.items():
        of_size.setdefault(len(word), []).append(at)  # type: ignore[union-attr]
    of_size = {size: np.array(numbers) for size, numbers in of_size.items()}
    answers = []
    for gap in gaps:
        left = [number.get(word, 2) for word in gap.sentence[: gap.first]]
        right = [number.get(word, 2) for word in gap.sentence[gap.first + gap.size :]]
        allowed = [of_size.get(len(word), np.array([2])) for word in gap.hidden]
        answers.append([known[at - 3] if at > 2 else () for at in model.fill(left, right, allowed)])
    return answers


def accuracy(gaps: list[Gap], answers: list[list[Word]]) -> tuple[float, float]:
    """Percentage of gaps filled correctly, and of their words."""
    whole = [gap.hidden == answer for gap, answer in zip(gaps, answers, strict=True)]
    each = [
        a == b
        for gap, answer in zip(gaps, answers, strict=True)
        for a, b in zip(gap.hidden, answer, strict=True)
    ]
    return 100 * float(np.mean(whole)), 100 * float(np.mean(each))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=500, help="number of gaps of each size")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    recipe = yaml.safe_load((options.runs[0] / "recipe.yaml").read_text("utf-8"))
    data = DataSettings.parse(recipe["data"])
    pipes = {run.name: load(run) for run in options.runs}
    first = next(iter(pipes.values()))
    max_tokens = min(pipe.config.max_positions for pipe in pipes.values()) - 2
    train, valid = (
        split_words(first.tokenizer, read_documents(source, data).texts, max_tokens)
        for source in (data.train, data.valid)
    )
    gaps = {
        size: choose_gaps(first.tokenizer, valid, size, options.count, options.seed)
        for size in SIZES
    }
    everything = [gap for size in SIZES for gap in gaps[size]]
    table = {"5-gram": fill_with_ngrams(train, everything)}
    for name, pipe in pipes.items():
        if pipe.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise SystemExit(
                f"{name}: its tokenizer differs from that of {options.runs[0].name}; the runs "
                "cannot be compared"
            )
        table[name] = fill_with_model(pipe, everything)
    head = " | ".join(f"{name} ({len(gaps[size])})" for size, name in SIZES.items())
    print(f"| gaps filled correctly, % (words, %) | {head} |\n|---|" + "---:|" * len(SIZES))
    for name, answers in table.items():
        cells, start = [], 0
        for size in SIZES:
            whole, each = accuracy(gaps[size], answers[start : start + len(gaps[size])])
            cells.append(f"{whole:.1f}" + (f" ({each:.1f})" if size > 1 else ""))
            start += len(gaps[size])
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
