"""From Markov chains to the Transformer: every model of this folder on the same text with the same
budget.

    python examples/road/compare.py --seconds 30
    python examples/road/compare.py --steps 20 my-novel.txt

Models that only count take the time that they need. `learned` is the number of counts that are not
0, or of parameters."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from characters import READ, Budget, Model, Network, Text, bits_per_character, load_text, sample
from embeddings import FeedForward
from markov import Markov
from recurrent import EncoderDecoder
from skip_grams import SkipGrams
from transformer import TransformerModel

Counting = Callable[[torch.Tensor, int], Model]
COUNTING: dict[str, Counting] = {
    "Markov chain, order 1": lambda ids, size: Markov(ids, size, 1),
    "Markov chain, order 2": lambda ids, size: Markov(ids, size, 2),
    "skip-grams, all pairs": lambda ids, size: SkipGrams(ids, size, keep=None),
    "skip-grams, masked": lambda ids, size: SkipGrams(ids, size, keep=1),
}
TRAINED: dict[str, tuple[Callable[[int], Network], float]] = {  # and the peak learning rate
    "embeddings, log-bilinear": (lambda size: FeedForward(size, hidden=0), 3e-3),
    "embeddings, feed-forward": (FeedForward, 3e-3),
    "RNN encoder-decoder": (lambda size: EncoderDecoder(size, "rnn", attention=False), 3e-3),
    "LSTM encoder-decoder": (lambda size: EncoderDecoder(size, "lstm", attention=False), 3e-3),
    "LSTM with attention": (EncoderDecoder, 3e-3),
    "Transformer": (TransformerModel, 2e-3),
}


def compare(text: Text, budget: Budget) -> None:
    """Print the table, then a sample of each model."""
    size, samples = len(text.alphabet), {}
    print(
        f"{len(text.train):,} characters to learn, {len(text.held_out):,} held out; uniform "
        f"{math.log2(size):.3f} bits"
    )
    print(f"\n{'model':<26}{'learned':>10}{'steps':>8}{'seconds':>9}{'bits per character':>20}")
    for name in [*COUNTING, *TRAINED]:
        torch.manual_seed(1)
        start, steps = time.monotonic(), 0
        model: Model
        if name in COUNTING:
            model = COUNTING[name](text.train, size)
        else:
            build, rate = TRAINED[name]
            model = network = build(size)
            steps = network.fit(text.train, budget, rate=rate)
            network.eval()
        seconds = time.monotonic() - start
        score = bits_per_character(model, text.held_out)
        print(
            f"{name:<26}{model.size:>10,}{steps or '':>8}{seconds:>9.1f}{score:>20.3f}", flush=True
        )
        samples[name] = text.decode(sample(model, text.held_out[:READ]))
    for name, written in samples.items():
        print(f"\n{name}:\n{written}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "file",
        nargs="?",
        help="a text; by default tinyshakespeare in $TRIFOLD_DATA, or the phrasebook",
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of training, for each model")
    parser.add_argument("--steps", type=int, help="of 32 windows, instead of seconds")
    options = parser.parse_args()
    compare(load_text(options.file), Budget(options.seconds, options.steps))


if __name__ == "__main__":
    main()
