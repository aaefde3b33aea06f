"""Many rows of tokens through a search: those of like length go together, and the answers come back in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trifold.generate import GenerationConfig, Hypothesis, generate_tokens
from trifold.generate.config import DEFAULT_MAX_NEW_TOKENS
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.masks import padding
from trifold.ragged import Ragged


def write(
    model: Transformer,
    rows: Ragged,
    config: GenerationConfig,
    *,
    batch_tokens: int = 4096,
    first: int = 0,
    on_done: Callable[[int], None] | None = None,
    **more: Any,
) -> list[list[Hypothesis]]:
    """What follows each row (a source, or a prompt), best first; `more` goes to `generate_tokens` as it is.

    `first` is the place of rows[0] in the whole input, so that sampling in portions draws what one call would;
    `on_done` hears how many rows were finished.
    """
    answers: list[list[Hypothesis]] = [[] for _ in range(len(rows))]
    device = next(model.parameters()).device
    for chosen in alike(rows.lengths, batch_tokens, lambda longest: room(config, model.config, longest)):
        width = int(rows.lengths[chosen].max())
        attend = padding(torch.from_numpy(rows.lengths[chosen]), width)
        tokens = rows.padded(chosen, width, model.config.pad_id).to(device)
        inputs = Inputs(tokens, None if attend is None else attend.to(device))
        found = generate_tokens(model, inputs, config, numbers=(chosen + first).tolist(), **more)
        for row, hypotheses in zip(chosen, found, strict=True):
            answers[row] = hypotheses
        if on_done is not None:
            on_done(len(chosen))
    return answers


def room(config: GenerationConfig, model: ModelConfig, longest: int) -> int:
    """Tokens that a row of `longest` takes up while it is searched, in all the rows that a search makes of it.

    A decoder keeps its prompt and all that it may write. What an encoder-decoder reads is kept once, and what it
    writes is as a rule about as long: its source stands for both.
    """
    rows = max(config.num_beams, config.num_return_sequences, (config.penalty_alpha and config.top_k) or 1)
    if model.encoder_layers:
        return longest * rows
    most = config.max_length or longest + (config.max_new_tokens or DEFAULT_MAX_NEW_TOKENS)
    return max(longest, min(most, model.max_positions)) * rows


def alike(
    lengths: NDArray[np.int64], tokens: int, room: Callable[[int], int] = int
) -> list[NDArray[np.int64]]:
    """Rows of like length in batches of at most `tokens` padded tokens, the longest first.

    room: what a row of so many tokens counts for.
    """
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        rows = max(1, tokens // room(int(lengths[order[start]])))
        batches.append(order[start : start + rows])
        start += rows
    return batches
