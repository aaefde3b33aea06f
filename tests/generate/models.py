"""Models for the tests of searches: scripted probabilities, and real models without a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from trifold.nn import Inputs, Memory, ModelConfig, Transformer

PAD, START, END = 0, 1, 2


class TokenCache:
    """A cache of tokens: every step is computed again from the first token."""

    def __init__(self, kind="growing", **more):
        self.seen, self.inputs = None, None

    @property
    def length(self):
        return self.seen.tokens.shape[1]

    def truncate(self, length):
        old = self.seen
        self.seen = Inputs(
            old.tokens[:, :length],
            None if old.attend is None else old.attend[:, :length],
            None if old.positions is None else old.positions[:, :length],
        )

    def append(self, inputs: Inputs) -> Inputs:
        if self.seen is None:
            self.seen = inputs
        else:
            old = self.seen
            positions = (
                None if old.positions is None else torch.cat([old.positions, inputs.positions], 1)
            )
            self.seen = Inputs(torch.cat([old.tokens, inputs.tokens], 1), inputs.attend, positions)
        return self.seen

    def reorder(self, rows):
        old = self.seen
        self.seen = Inputs(
            old.tokens[rows],
            None if old.attend is None else old.attend[rows],
            None if old.positions is None else old.positions[rows],
        )

    def select(self, rows, sentences):
        self.reorder(rows)

    def expand(self, beams):
        self.reorder(torch.arange(len(self.seen.tokens)).repeat_interleave(beams))


def beams_of(memory: Memory, rows: int) -> torch.Tensor:
    """The row of the memory that each row reads."""
    return torch.arange(rows) // (rows // len(memory.hidden))


class ScriptedModel:
    """An encoder-decoder whose next-token probabilities are `probabilities_of(source, prefix)`."""

    def __init__(
        self,
        probabilities_of: Callable[[tuple, tuple], Sequence[float]],
        vocabulary: int,
        max_positions: int = 256,
    ):
        self.probabilities_of = probabilities_of
        self.config = ModelConfig(
            vocab_size=vocabulary, d_model=4, n_heads=2, n_layers=1, max_positions=max_positions
        )

    def new_cache(self, kind="growing", **more):
        return TokenCache()

    def encode(self, inputs):
        return Memory(inputs.tokens.float()[..., None], inputs.attend)

    def decode(self, inputs, memory=None, cache=None):
        new = inputs.tokens.shape[1]
        tokens = cache.append(inputs).tokens
        rows = []
        for row, sentence in zip(
            tokens.tolist(), beams_of(memory, len(tokens)).tolist(), strict=True
        ):
            source = memory.hidden[sentence, :, 0].long()
            if memory.attend is not None:
                source = source[memory.attend[sentence]]
            prefixes = [tuple(row[1:end]) for end in range(len(row) - new + 1, len(row) + 1)]
            rows.append(
                [self.probabilities_of(tuple(source.tolist()), prefix) for prefix in prefixes]
            )
        return torch.tensor(np.array(rows), dtype=torch.float32).log()

    def lm_head(self, hidden):
        return hidden.clone()


class UncachedModel:
    """A real model without a key/value cache."""

    def __init__(self, model: Transformer):
        self.model, self.config, self.lm_head, self.encode = (
            model,
            model.config,
            model.lm_head,
            model.encode,
        )

    def new_cache(self, kind="growing", **more):
        return TokenCache()

    def decode(self, inputs, memory=None, cache=None):
        new = inputs.tokens.shape[1]
        inputs = cache.append(inputs)
        if memory is not None:
            memory = memory.select(beams_of(memory, len(inputs.tokens)))
        return self.model.decode(inputs, memory)[:, -new:]


def random_probabilities(seed: int, vocabulary: int, sharpness: float = 1.5):
    """Pseudorandom probabilities as a function of source and prefix; 0 for padding."""

    def probabilities_of(source, prefix):
        logits = (
            np.random.default_rng([seed, *source, 10_000, *prefix]).normal(size=vocabulary)
            * sharpness
        )
        logits[PAD] = -np.inf
        return np.exp(logits) / np.exp(logits).sum()

    return probabilities_of


def padded_batch(rows: Sequence[Sequence[int]], left: bool = False) -> Inputs:
    """Rows of tokens, padded to the longest."""
    width = max(map(len, rows), default=0)
    pads = [[PAD] * (width - len(row)) for row in rows]
    tokens = [[*pad, *row] if left else [*row, *pad] for row, pad in zip(rows, pads, strict=True)]
    real = [[False] * len(pad) + [True] * len(row) for row, pad in zip(rows, pads, strict=True)]
    attend = torch.tensor(real if left else [row[::-1] for row in real], dtype=torch.bool)
    return Inputs(torch.tensor(tokens, dtype=torch.long), attend)


def tiny_model(shape: str = "encoder-decoder", **changes) -> Transformer:
    """A small random model with distinct logits that depend on the context."""
    torch.manual_seed(5)
    sizes = {
        "vocab_size": 17,
        "d_model": 16,
        "n_heads": 4,
        "n_layers": 2,
        "d_ff": 32,
        "max_positions": 128,
    }
    model = Transformer(ModelConfig(shape=shape, dropout=0.3, **{**sizes, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(4.0 if "tokens" in name else 1.5)
    return model


def varied_model(shape: str = "encoder-decoder", seed: int = 5, **changes) -> Transformer:
    """A small random model with long outputs that seldom repeat themselves."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 23,
        "d_model": 16,
        "n_heads": 4,
        "n_layers": 2,
        "d_ff": 32,
        "max_positions": 96,
    }
    model = Transformer(
        ModelConfig(shape=shape, norm_placement="pre", tie_lm_head=False, **{**sizes, **changes})
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight") or parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * (1.6 if "tokens" in name else 0.45))
    return model


class LetterCodec:
    """A tokenizer of characters (3 is a); the last tokens are `pieces`, all others decode to
    nothing.
    """

    def __init__(self, *pieces: str):
        self.pieces = pieces
        self.words = {3 + n: chr(97 + n) for n in range(10)} | {
            13 + n: p for n, p in enumerate(pieces)
        }

    def encode(self, texts):
        return [[ord(c) - 94 for c in text.replace(" ", "")] for text in texts]

    def decode(self, ids):
        return ["".join(self.words.get(token, "") for token in row) for row in ids]
