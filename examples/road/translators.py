"""Translators: from the recurrent encoder-decoder to the Transformer, on the same sentences with
the same budget.

    python examples/road/translators.py --minutes 10
    python examples/road/translators.py --steps 1000 --only "GRU" "GRU, additive" "Transformer"

    RNN, GRU, LSTM        the decoder knows the source from the last states of the encoder only
                                                         (Sutskever et al. 2014; Cho et al. 2014)
    GRU, additive         before each word, it looks at all states (Bahdanau et al. 2015)
    LSTM, multiplicative  after each step (Luong et al. 2015)
    Transformer           no recurrence (Vaswani et al. 2017)

All are recipes of trifold, with the parts of recurrent_parts.py. The program prints BLEU of the
held-out sentences by their length, and of two, three and four of them joined, which are longer than
all that was learned; it draws both, and the weights of one sentence.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from words import (
    RUNS,
    WORDS,
    Corpus,
    load_corpus,
    load_parts,
    mean_speed,
    print_table,
    training,
    updates_in,
)

import trifold
from trifold.look.attention import draw_alignment, read_attention
from trifold.look.plots import new_figure, save_figure
from trifold.scores.bleu import bleu

WIDTH = 256
LONGEST = (9, 12, 15, 1000)  # words of a source sentence, for each column
JOINED = (1, 2, 3, 4)


def recurrent(cell: str, attention: str) -> dict[str, Any]:
    """The settings of an encoder-decoder of one layer each."""
    return {
        "parts": ["recurrent_parts"],
        "options": {"recurrent": {"cell": cell, "attention": attention}},
        "positions": "none",
        "n_layers": 1,
        "n_heads": 1,
        "d_ff": 1,
    }


# Settings of the model, and the peak of the learning rate.
MODELS: dict[str, tuple[dict[str, Any], float]] = {
    "RNN": (recurrent("rnn", "none"), 0.001),
    "GRU": (recurrent("gru", "none"), 0.003),
    "LSTM": (recurrent("lstm", "none"), 0.003),
    "GRU, additive": (recurrent("gru", "additive"), 0.003),
    "LSTM, additive": (recurrent("lstm", "additive"), 0.003),
    "GRU, multiplicative": (recurrent("gru", "multiplicative"), 0.003),
    "LSTM, multiplicative": (recurrent("lstm", "multiplicative"), 0.003),
    "Transformer": (
        {"n_layers": 2, "n_heads": 4, "d_ff": 512, "norm_placement": "pre"},
        0.003,
    ),
}


def recipe(
    corpus: Corpus, model: dict[str, Any], rate: float, steps: int, validations: int = 5
) -> trifold.Recipe:
    """A translator with one vocabulary of words for both languages."""
    own = {"shape": "encoder-decoder", "d_model": WIDTH, "max_positions": 256, "dropout": 0.2}
    return trifold.Recipe.parse(
        {
            "name": "translators",
            "task": {"kind": "translate", "tokenize": "none", "best_by": "loss"},
            "data": corpus.pairs,
            "tokenizer": WORDS,
            "model": own | model,
            "batch": {"tokens": 2048},
            "train": training(steps, rate, validations),
        }
    )


def joined(sentences: Sequence[str], count: int) -> list[str]:
    """Neighbouring sentences, so many in one text."""
    return [" ".join(sentences[n : n + count]) for n in range(0, len(sentences), count)]


def by_length(sources: Sequence[str]) -> Iterator[list[int]]:
    """For each column, the sentences whose length falls into it."""
    shortest = 0
    for longest in LONGEST:
        yield [n for n, text in enumerate(sources) if shortest < len(text.split()) <= longest]
        shortest = longest


def score(outputs: Sequence[str], references: Sequence[str], rows: Sequence[int]) -> float:
    """BLEU of these rows; 0 if there are none."""
    if not rows:
        return 0.0
    chosen = ([texts[row] for row in rows] for texts in (outputs, references))
    return bleu(*chosen, tokenize="none").value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, help="training time of each model")
    parser.add_argument(
        "--steps", type=int, default=2000, help="updates of each model, without --minutes"
    )
    parser.add_argument("--only", nargs="+", choices=MODELS, metavar="MODEL", help="of the table")
    parser.add_argument("--sentences", type=int, default=1000, help="held-out sentences to score")
    parser.add_argument("--out", type=Path, default=RUNS / "translators", help="folder of the runs")
    options = parser.parse_args()
    load_parts()
    corpus = load_corpus()
    sources = corpus.sources["test"][: options.sentences]
    references = corpus.targets["test"][: options.sentences]
    print(f"{corpus.name}: {len(corpus.sources['train']):,} pairs, {len(sources):,} held out")
    rows = []
    curves: dict[str, list[float]] = {}
    for name in options.only or MODELS:
        model, rate = MODELS[name]
        folder = options.out / name.replace(", ", "-")
        steps = options.steps
        if options.minutes is not None:
            steps = updates_in(options.minutes, partial(recipe, corpus, model, rate))
        outcome = trifold.train(recipe(corpus, model, rate, steps), out=folder)
        translator = trifold.load(outcome.folder)
        lengths = list(by_length(sources))
        curve = []
        for count in JOINED:
            texts = joined(sources, count)
            outputs = translator.generate(texts, num_beams=1)
            targets = joined(references, count)
            if count == 1:
                columns = [score(outputs, targets, column) for column in lengths]
            curve.append(score(outputs, targets, range(len(texts))))
        curves[name] = curve
        size = translator.model.count_parameters()
        rows.append(
            (
                name,
                f"{size:,}",
                f"{outcome.steps:,}",
                f"{mean_speed(folder):,.0f}",
                *(f"{value:.1f}" for value in (curve[0], *columns, *curve[1:])),
            )
        )
        print(f"{name}: BLEU {curve[0]:.1f}", flush=True)
        if any("cross_attention" in part for part, _ in translator.model.named_modules()):
            picture = options.out / f"{folder.name}.png"
            print(save_figure(draw_alignment(read_attention(translator, sources[0])), picture))
    limits_of_columns = [f"to {longest}" for longest in LONGEST[:-1]] + ["longer"]
    print()
    print_table(
        rows,
        heads=(
            *("model", "learned", "updates", "tokens/s", "BLEU"),
            *limits_of_columns,
            *(f"{count} joined" for count in JOINED[1:]),
        ),
    )
    figure = new_figure(6, 4)
    axis = figure.add_subplot()
    for name, curve in curves.items():
        axis.plot(JOINED, curve, marker="o", label=name)
    axis.set_xticks(JOINED)
    axis.set_xlabel("sentences in one text")
    axis.set_ylabel("BLEU")
    axis.legend()
    print(save_figure(figure, options.out / "lengths.png"))


if __name__ == "__main__":
    main()
