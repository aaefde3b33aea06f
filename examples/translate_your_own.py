"""Train a small translator on two files of lines, then translate the texts given on the command
line.

    python examples/translate_your_own.py train.fr train.en "J'aime les chiens." --minutes 5

The settings are a recipe, written as Python values; docs/recipes.md explains every key.
"""

from __future__ import annotations

import argparse

import trifold


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small translator on two files of lines.")
    parser.add_argument("source", help="source file, one text per line")
    parser.add_argument(
        "target", help="target file: line n is the translation of line n of the source"
    )
    parser.add_argument("texts", nargs="+", help="texts to translate afterwards")
    parser.add_argument("--minutes", type=float, default=5.0, help="limit of the training time")
    parser.add_argument("--steps", type=int, default=1000, help="limit of the training steps")
    parser.add_argument("--holdout", type=int, default=200, help="number of validation pairs")
    parser.add_argument(
        "--out", default="runs/your-own", help="run folder; an unfinished run is continued"
    )
    options = parser.parse_args()

    recipe = trifold.Recipe.parse(
        {
            "name": "your-own",
            "data": {"train": [options.source, options.target], "holdout": options.holdout},
            "tokenizer": {"kind": "byte-bpe", "vocab_size": 2000},
            "model": {
                "d_model": 128,
                "n_layers": 3,
                "n_heads": 4,
                "d_ff": 512,
                "max_positions": 256,
            },
            "train": {
                "steps": options.steps,
                "minutes": options.minutes,
                "warmup": 200,
                "learning_rate": 0.003,
                "validate_every": 200,
                "save_every": 200,
            },
        }
    )
    outcome = trifold.train(recipe, out=options.out, resume="auto")
    bleu = outcome.scores["bleu"]
    print(
        f"{outcome.steps} steps in {outcome.seconds:.0f} s, BLEU {bleu:.1f} on "
        f"{options.holdout} held-out pairs"
    )

    translator = trifold.load(outcome.folder)
    for text, translation in zip(
        options.texts, translator.generate(options.texts, num_beams=4), strict=True
    ):
        print(f"{text}  →  {translation}")


if __name__ == "__main__":
    main()
