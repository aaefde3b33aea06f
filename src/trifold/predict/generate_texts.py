"""Generation for many token sequences: sequences of similar length form batches, results keep the
input order.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trifold.generate.search import generate_tokens
from trifold.generate.stopping import Hypothesis
from trifold.generation_config import DEFAULT_MAX_NEW_TOKENS, GenerationConfig
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.masks import padding_mask
from trifold.nn.packing import round_up
from trifold.ragged import Ragged


def generate_rows(
    model: Transformer,
    rows: Ragged,
    config: GenerationConfig,
    *,
    batch_tokens: int = 4096,
    first: int = 0,
    on_done: Callable[[int], None] | None = None,
    poll: Callable[[], None] | None = None,
    **options: Any,
) -> list[list[Hypothesis]]:
    """Hypotheses for each row (a source or a prompt), best first; `options` go to
    `generate_tokens`.

    first: number of rows[0] in the whole input, so that sampling part by part draws the same as a
        single call.
    on_done: called with the number of rows that were finished. poll: called at each step.
    """
    if poll is not None:
        options["on_step"] = lambda _tokens, _open: poll()
    results: list[list[Hypothesis]] = [[] for _ in range(len(rows))]
    device = next(model.parameters()).device
    for chosen in batches_by_length(
        rows.lengths, batch_tokens, partial(search_tokens, config, model.config)
    ):
        inputs = pad_rows(rows, chosen, model.config.pad_id).to(device)
        numbers = (chosen + first).tolist()
        hypotheses_of_rows = generate_tokens(model, inputs, config, numbers=numbers, **options)
        for row, hypotheses in zip(chosen, hypotheses_of_rows, strict=True):
            results[row] = hypotheses
        if on_done is not None:
            on_done(len(chosen))
    return results


def pad_rows(rows: Ragged, chosen: NDArray[np.int64], pad: int) -> Inputs:
    """The chosen rows, padded to the longest."""
    lengths = rows.lengths[chosen]
    width = int(lengths.max())
    return Inputs(rows.padded(chosen, width, pad), padding_mask(torch.from_numpy(lengths), width))


def search_tokens(config: GenerationConfig, model: ModelConfig, longest: int) -> int:
    """The number of tokens that a search caches for a row of `longest` tokens, over all of its
    hypotheses.

    A decoder caches its prompt and its output. An encoder-decoder caches its source once; the
    output is usually of similar length, so the source counts for both.
    """
    candidates = 1
    if config.penalty_alpha and config.top_k:  # contrastive search runs its candidates together
        candidates = config.top_k
    hypotheses = max(config.num_beams, config.num_return_sequences, candidates)
    if model.encoder_layers:
        return longest * hypotheses
    added = DEFAULT_MAX_NEW_TOKENS
    if config.prompt is not None:
        added += longest
    most = config.max_length or longest + (config.max_new_tokens or added)
    return max(longest, min(most, model.max_positions)) * hypotheses


def packed_batches(lengths: NDArray[np.int64], tokens: int) -> list[NDArray[np.int64]]:
    """Rows of similar length in batches of about `tokens` tokens, the longest rows first.

    The tokens fill a packed row, which has a few more (`nn.packing.round_up`). A grid of the rows
    has at most twice as many cells.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    capacity = round_up(tokens) - 1
    batches = []
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        end = int(np.searchsorted(ends, ends[start] - longest + capacity, side="right"))
        end = min(max(end, start + 1), start + max(1, 2 * capacity // longest))
        batches.append(order[start:end])
        start = end
    return batches


def batches_by_length(
    lengths: NDArray[np.int64], tokens: int, cost: Callable[[int], int] = int
) -> list[NDArray[np.int64]]:
    """Rows of similar length in batches of at most `tokens` padded tokens, the longest rows first.

    cost: the tokens to count for a row of a given length.
    """
    order = np.argsort(-lengths, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        rows = max(1, tokens // cost(int(lengths[order[start]])))
        batches.append(order[start : start + rows])
        start += rows
    return batches
