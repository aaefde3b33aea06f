"""Two files of lines in, a translator out: train on them, then translate what is given on the command line.

    python examples/translate_your_own.py train.fr train.en "J'aime les chiens." --minutes 5

The settings are those of a recipe, written as Python values; docs/recipes.md explains every key.
"""

from __future__ import annotations

import argparse

import trifold


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small translator on two files of lines.")
    parser.add_argument("source", help="file of lines to translate from")
    parser.add_argument("target", help="file with their translations, line by line")
    parser.add_argument("texts", nargs="+", help="what to translate afterwards")
    parser.add_argument("--minutes", type=float, default=5.0, help="train no longer than this")
    parser.add_argument("--steps", type=int, default=1000, help="… and no more steps than these")
    parser.add_argument("--holdout", type=int, default=200, help="pairs to validate on")
    parser.add_argument(
        "--out", default="runs/your-own", help="the run folder; an unfinished run there is continued"
    )
    asked = parser.parse_args()

    recipe = trifold.Recipe.parse(
        {
            "name": "your-own",
            "data": {"train": [asked.source, asked.target], "holdout": asked.holdout},
            "tokenizer": {"kind": "byte-bpe", "vocab_size": 2000},
            "model": {"d_model": 128, "n_layers": 3, "n_heads": 4, "d_ff": 512, "max_positions": 256},
            "train": {
                "steps": asked.steps,
                "minutes": asked.minutes,
                "warmup": 200,
                "learning_rate": 0.003,
                "validate_every": 200,
                "save_every": 200,
            },
        }
    )
    outcome = trifold.train(recipe, out=asked.out, resume="auto")
    bleu = outcome.scores["bleu"]
    print(
        f"{outcome.steps} steps in {outcome.seconds:.0f} s, BLEU {bleu:.1f} on {asked.holdout} held-out pairs"
    )

    translator = trifold.load(outcome.folder)
    for text, translation in zip(asked.texts, translator.generate(asked.texts, num_beams=4), strict=True):
        print(f"{text}  →  {translation}")


if __name__ == "__main__":
    main()
