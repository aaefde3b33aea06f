"""Logits to tokens.

A sentence goes through this room like this: `config` says what is asked for; `live` has the model read the source or
the prompt, and says after each token what may come next; `processors` reweigh or forbid; `samplers` take one token,
or `search` follows several beginnings at once; what has ended becomes a `Hypothesis` and leaves the batch.
`scoring` asks the reverse question: how likely is a given output?
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trifold.errors import UsageError
from trifold.generate.config import GenerationConfig, resolve
from trifold.generate.live import Live, Model, at_rest
from trifold.generate.processors import processor
from trifold.generate.samplers import Sampler, drawn, likeliest
from trifold.generate.scoring import TokenScores, score_tokens
from trifold.generate.search import Hypothesis, Watch, beam_search, one_by_one
from trifold.nn import Inputs

__all__ = [
    "GenerationConfig",
    "Hypothesis",
    "Model",
    "TokenScores",
    "generate_tokens",
    "resolve",
    "score_tokens",
]


@torch.inference_mode()
def generate_tokens(
    model: Model,
    inputs: Inputs,
    config: GenerationConfig,
    *,
    numbers: Sequence[int] | None = None,
    on_step: Watch | None = None,
) -> list[list[Hypothesis]]:
    """Write what follows each row of `inputs` (B, S): for each the `num_return_sequences` best outputs, best first.

    inputs: sources of an encoder-decoder, padded at the end, or prompts of a decoder, padded wherever `attend` says.
    numbers: who each row is when tokens are drawn at random (its place in the whole input, so that batching and
    sorting change nothing); 0, 1, … unless given. on_step: called with (tokens generated, sentences still open).
    A beam search may give fewer outputs where fewer exist. Raises DataError for a row with no tokens or too many.
    """
    rows = inputs.tokens.shape[0]
    numbers = range(rows) if numbers is None else numbers
    if len(numbers) != rows:
        raise UsageError(f"numbers has {len(numbers)} entries for {rows} rows of inputs: give one a row")
    if not rows:
        return []
    eos_id, process = model.config.eos_id, processor(config, model.config)
    with at_rest(model):
        live = Live(model, inputs, config.max_new_tokens)
        if config.num_beams > 1:
            found = beam_search(live, config, process, eos_id, on_step)
            return [outputs[: config.num_return_sequences] for outputs in found]
        choose: Sampler = likeliest
        each = config.num_return_sequences
        if config.samples:
            live.copy(each)
            keys = [(number, sample) for number in numbers for sample in range(each)]
            choose = drawn(config, keys, int(live.limits.max()), live.logits.device)
        flat = one_by_one(live, config, process, choose, eos_id, on_step)
        return [
            sorted(flat[start : start + each], key=lambda output: output.score, reverse=True)
            for start in range(0, len(flat), each)
        ]
