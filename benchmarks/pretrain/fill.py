"""How often are one, two and three adjacent hidden words guessed, by a masked model and by a 5-gram model?

    python benchmarks/pretrain/fill.py runs/mlm-plain [runs/mlm-whole-word …] [--count 500] [--seed 1]

The 5-gram model (ngram.py) learns from the training text of the first run, the words being those of its tokenizer; the
gaps lie in its validation text, words of letters alone, the same for everybody. Who guesses sees both sides, and of how
many tokens each hidden word consists: a masked model by the number of masks, the 5-gram model by choosing among words
of as many tokens. A masked model fills the mask first that it is most certain of, and reads again.
"""

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
Word = tuple[int, ...]  # its tokens


class Gap(NamedTuple):
    """Words [first, first + size) of a sentence."""

    sentence: list[Word]
    first: int
    size: int

    @property
    def hidden(self) -> list[Word]:
        return self.sentence[self.first : self.first + self.size]


def sentences(tokenizer: Tokenizer, texts: list[str], longest: int) -> list[list[Word]]:
    """Texts as words of tokens, those that a model can read."""
    marked = annotate(tokenizer, texts)
    found = []
    for start, end in zip(marked.starts, marked.starts[1:], strict=False):
        if end - start > longest:
            continue
        ids = marked.ids[start:end].tolist()
        bounds = find_words(np.ones(len(ids), np.bool_), marked.word_starts[start:end]).tolist()
        found.append([tuple(ids[a:b]) for a, b in bounds])
    return found


def gaps(tokenizer: Tokenizer, dev: list[list[Word]], size: int, count: int, seed: int) -> list[Gap]:
    """One gap a sentence, in sentences that leave as many words to be seen at least."""
    found = []
    for number in example_rng(seed, 0).permutation(len(dev)):
        sentence = dev[number]
        plain = [_letters(tokenizer, word) for word in sentence]
        places = [at for at in range(len(sentence) - size + 1) if all(plain[at : at + size])]
        if places and len(sentence) >= 2 * size + 2:
            found.append(Gap(sentence, int(example_rng(seed, int(number) + 1).choice(places)), size))
        if len(found) == count:
            break
    return found


def _letters(tokenizer: Tokenizer, word: Word) -> bool:
    return tokenizer.decode([list(word)])[0].strip().isalpha()


@torch.no_grad()
def filled_by_model(pipe: Pipeline, found: list[Gap], batch: int = 64) -> list[list[Word]]:
    """The words that a masked model puts into the gaps."""
    tokenizer, model = pipe.tokenizer, pipe.model
    mask = tokenizer.required("mask")
    around = tokenizer.rows(["a"])[0]
    own = [at for at, text in enumerate(around.texts) if text is not None]
    before, behind = around.ids[: own[0]], around.ids[own[-1] + 1 :]
    answers: list[list[Word]] = []
    for start in range(0, len(found), batch):
        some = found[start : start + batch]
        rows, places = [], []
        for gap in some:
            left = [token for word in gap.sentence[: gap.first] for token in word]
            right = [token for word in gap.sentence[gap.first + gap.size :] for token in word]
            masks = sum(map(len, gap.hidden))
            rows.append([*before, *left, *[mask] * masks, *right, *behind])
            places.append((len(before) + len(left), masks))
        lengths = torch.tensor([len(row) for row in rows])
        width = int(lengths.max())
        tokens = torch.tensor([[*row, *[tokenizer.required("pad")] * (width - len(row))] for row in rows])
        attend = padding_mask(lengths, width)
        while bool((open_ := tokens == mask).any()):
            logits = model.lm_head(model(Inputs(tokens, attend))[open_])
            best = logits.softmax(-1).max(-1)
            sure = torch.full(tokens.shape, -1.0)
            sure[open_] = best.values
            guess = tokens.clone()
            guess[open_] = best.indices
            guess[guess == mask] = tokenizer.required("unk")
            rows_left = open_.any(1).nonzero()[:, 0]
            column = sure.argmax(1)[rows_left]
            tokens[rows_left, column] = guess[rows_left, column]
        for gap, row, (first, _) in zip(some, tokens.tolist(), places, strict=True):
            ends = np.cumsum([len(word) for word in gap.hidden]) + first
            answers.append(
                [tuple(row[end - len(word) : end]) for word, end in zip(gap.hidden, ends, strict=True)]
            )
    return answers


def filled_by_ngrams(train: list[list[Word]], found: list[Gap]) -> list[list[Word]]:
    """The words that a 5-gram model puts there; words seen once in training are one unknown word to it."""
    counts = Counter(word for sentence in train for word in sentence)
    known = [word for word, count in counts.items() if count > 1]
    number = {word: at for at, word in enumerate(known, start=3)}
    model = KneserNey([[number.get(word, 2) for word in one] for one in train], len(known) + 3)
    of_size: dict[int, np.ndarray] = {}
    for word, at in number.items():
        of_size.setdefault(len(word), []).append(at)  # type: ignore[union-attr]
    of_size = {size: np.array(numbers) for size, numbers in of_size.items()}
    answers = []
    for gap in found:
        left = [number.get(word, 2) for word in gap.sentence[: gap.first]]
        right = [number.get(word, 2) for word in gap.sentence[gap.first + gap.size :]]
        allowed = [of_size.get(len(word), np.array([2])) for word in gap.hidden]
        answers.append([known[at - 3] if at > 2 else () for at in model.fill(left, right, allowed)])
    return answers


def accuracy(found: list[Gap], answers: list[list[Word]]) -> tuple[float, float]:
    """Percent of the gaps that are right as a whole, and of their words."""
    whole = [gap.hidden == answer for gap, answer in zip(found, answers, strict=True)]
    each = [
        a == b
        for gap, answer in zip(found, answers, strict=True)
        for a, b in zip(gap.hidden, answer, strict=True)
    ]
    return 100 * float(np.mean(whole)), 100 * float(np.mean(each))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=500, help="gaps of each size")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    recipe = yaml.safe_load((asked.runs[0] / "recipe.yaml").read_text("utf-8"))
    data = DataSettings.parse(recipe["data"])
    pipes = {run.name: load(run) for run in asked.runs}
    first = next(iter(pipes.values()))
    longest = min(pipe.config.max_positions for pipe in pipes.values()) - 2
    train, dev = (
        sentences(first.tokenizer, read_documents(source, data).texts, longest)
        for source in (data.train, data.valid)
    )
    found = {size: gaps(first.tokenizer, dev, size, asked.count, asked.seed) for size in SIZES}
    everything = [gap for size in SIZES for gap in found[size]]
    table = {"5-gram": filled_by_ngrams(train, everything)}
    for name, pipe in pipes.items():
        if pipe.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise SystemExit(
                f"{name}: its tokenizer is another one than that of {asked.runs[0].name}: not comparable"
            )
        table[name] = filled_by_model(pipe, everything)
    head = " | ".join(f"{name} ({len(found[size])})" for size, name in SIZES.items())
    print(f"| right as a whole, % (words, %) | {head} |\n|---|" + "---:|" * len(SIZES))
    for name, answers in table.items():
        cells, start = [], 0
        for size in SIZES:
            whole, each = accuracy(found[size], answers[start : start + len(found[size])])
            cells.append(f"{whole:.1f}" + (f" ({each:.1f})" if size > 1 else ""))
            start += len(found[size])
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
