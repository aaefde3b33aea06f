"""A trigram language model: a baseline for `trifold demo write`, with the tokenizer of that run.

    trifold demo write
    python examples/trigram.py runs/demo-write

Interpolation after Witten & Bell, as in Chen & Goodman 1999 (section 2.4). With c(h) tokens seen
after the history h, t(h) of them distinct, and h' the history without its first token:

    P(w | h) = (c(h w) + t(h) P(w | h')) / (c(h) + t(h)),    P(w) is interpolated with 1 / V
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

import trifold
from trifold.data.embedded import load_rows
from trifold.data.stdlib import check_function


class Trigram:
    """A model fitted to documents of token ids below `vocab_size`; each begins and ends with a
    special token.
    """

    def __init__(self, documents: Sequence[Sequence[int]], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for ids in documents:
            for position in range(1, len(ids)):
                for length in range(min(2, position) + 1):
                    self.counts[tuple(ids[position - length : position])][ids[position]] += 1

    def probabilities(self, history: Sequence[int]) -> np.ndarray:
        """(V,) of the next token."""
        found = np.full(self.vocab_size, 1 / self.vocab_size)
        for length in range(min(2, len(history)) + 1):
            if counts := self.counts.get(tuple(history[len(history) - length :])):
                found *= len(counts)
                found[list(counts)] += list(counts.values())
                found /= counts.total() + len(counts)
        return found

    def loss(self, documents: Sequence[Sequence[int]]) -> float:
        """Mean negative log-likelihood per token, in nats; the first token of each document is not
        predicted.
        """
        losses = [
            -np.log(self.probabilities(ids[max(0, position - 2) : position])[ids[position]])
            for ids in documents
            for position in range(1, len(ids))
        ]
        return float(np.mean(losses))

    def sample(
        self, prompt: Sequence[int], *, end: int, max_new_tokens: int, temperature: float,
        top_k: int, rng: np.random.Generator,
    ) -> list[int]:  # fmt: skip
        """New tokens after the prompt, without the `end` token."""
        ids = list(prompt)
        while len(ids) < len(prompt) + max_new_tokens:
            probabilities = self.probabilities(ids)
            best = np.argsort(-probabilities, kind="stable")[:top_k]
            weights = (probabilities[best] / probabilities[best[0]]) ** (1 / temperature)
            token = int(rng.choice(best, p=weights / weights.sum()))
            if token == end:
                break
            ids.append(token)
        return ids[len(prompt) :]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Score a trigram model on the data of `trifold demo write`."
    )
    parser.add_argument(
        "run", nargs="?", default="runs/demo-write", help="the run whose tokenizer is used"
    )
    pipeline = trifold.load(parser.parse_args().run)
    end = pipeline.config.eos_id
    train, valid = (
        [
            [*ids, end]
            for ids in pipeline.read([row["text"] for row in load_rows("functions", split)])
        ]
        for split in ("train", "valid")
    )
    model = Trigram(train, pipeline.reader.vocab_size)
    signatures = list(dict.fromkeys(row["signature"] for row in load_rows("functions", "test")))[
        :100
    ]
    rng = np.random.default_rng(1)
    bodies = pipeline.reader.decode(
        [
            model.sample(prompt, end=end, max_new_tokens=160, temperature=0.4, top_k=40, rng=rng)
            for prompt in pipeline.read(signatures)
        ]
    )
    checks = [
        check_function(signature + body) for signature, body in zip(signatures, bodies, strict=True)
    ]
    print(f"loss on held-out functions: {model.loss(valid):.3f} nats per token")
    print(
        f"of {len(checks)} completions {sum(check.parses for check in checks)} parse and "
        f"{sum(check.does_something for check in checks)} do something"
    )


if __name__ == "__main__":
    main()
