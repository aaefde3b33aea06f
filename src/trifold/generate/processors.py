"""What may be said next, and how readily: logits in, logits out. Every search applies the same ones.

Shapes: R rows (beams or samples), V vocabulary, L tokens written so far. `written` (R, L) holds the prompt or the
start token, then what was generated; where a shorter row has no token yet it holds ABSENT.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trifold.generate.config import GenerationConfig
from trifold.nn import ModelConfig

ABSENT = -1
NEVER = float("-inf")

Processor = Callable[[Tensor, Tensor, int], Tensor]
"""(logits (R, V), written (R, L), tokens generated so far) -> logits (R, V)."""


def repetition_penalty(penalty: float, model: ModelConfig) -> Processor:
    """Logits of tokens already written: divided if positive, multiplied if not (after Keskar et al. 2019)."""

    def process(logits: Tensor, written: Tensor, generated: int) -> Tensor:
        seen = _marked(logits, written)
        return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)

    return process


def no_repeat_ngrams(size: int, model: ModelConfig) -> Processor:
    """No n tokens in a row are written twice (Paulus et al. 2018)."""

    def process(logits: Tensor, written: Tensor, generated: int) -> Tensor:
        if written.shape[1] < size:
            return logits
        grams = written.unfold(1, size, 1)
        begun = written[:, written.shape[1] - size + 1 :]
        again = (grams[..., :-1] == begun[:, None]).all(-1)
        return logits.masked_fill(_marked(logits, grams[..., -1].where(again, ABSENT)), NEVER)

    return process


def min_new_tokens(least: int, model: ModelConfig) -> Processor:
    """No end of sentence before so many tokens."""

    def process(logits: Tensor, written: Tensor, generated: int) -> Tensor:
        if generated < least:
            logits[:, model.eos_id] = NEVER
        return logits

    return process


def _marked(logits: Tensor, tokens: Tensor) -> Tensor:
    """(R, V) True at the tokens (R, n) of each row; ABSENT marks nothing."""
    vocabulary = logits.shape[-1]
    marks = torch.zeros(logits.shape[0], vocabulary + 1, dtype=torch.bool, device=logits.device)
    return marks.scatter_(1, tokens.where(tokens != ABSENT, vocabulary), True)[:, :vocabulary]


# The setting that asks for it -> its maker, in the order of application.
PROCESSORS: dict[str, Callable[..., Processor]] = {
    "repetition_penalty": repetition_penalty,
    "no_repeat_ngram_size": no_repeat_ngrams,
    "min_new_tokens": min_new_tokens,
}


def processor(config: GenerationConfig, model: ModelConfig) -> Processor:
    """All that `config` asks for, one after the other. It may write into the logits it is given.

    Padding is never said. Where everything else is forbidden, the sentence may end.
    """
    asked = [
        make(value, model) for key, make in PROCESSORS.items() if (value := getattr(config, key)) is not None
    ]

    def process(logits: Tensor, written: Tensor, generated: int) -> Tensor:
        if model.pad_id != model.eos_id:
            logits[:, model.pad_id] = NEVER
        for each in asked:
            logits = each(logits, written, generated)
        if asked:
            silenced = logits.amax(-1) == NEVER
            logits[:, model.eos_id] = logits[:, model.eos_id].masked_fill(silenced, 0.0)
        return logits

    return process
