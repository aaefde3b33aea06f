"""Choose the next token: the most likely one, or one drawn from a filtered distribution.

A sampler chooses among the logits of a row and does not change them, so the score of an output is
independent of the temperature. Shapes: R rows, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from trifold.generate.decoding import refuse_nan, refuse_non_finite
from trifold.generate.processors import NEVER, array_of
from trifold.generation_config import GenerationConfig

HEAD = 512  # most likely tokens that top_p sorts first; they nearly always suffice

Sampler = Callable[[Tensor, Tensor, int], Tensor]
"""(logits (R, V), index of each row's random stream (R,), generated tokens so far) -> tokens (R,).

Raises TrifoldError for logits whose log-probabilities are NaN.
"""


def temperature(logits: Tensor, value: float) -> Tensor:
    """p^(1/T), renormalized: below 1 sharper, above 1 flatter."""
    return logits / value


def top_k(logits: Tensor, value: int) -> Tensor:
    """Keep the k most likely tokens and ties with the last of them (Fan et al. 2018)."""
    threshold = logits.topk(min(value, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < threshold, NEVER)


def top_p(logits: Tensor, value: float) -> Tensor:
    """Keep the fewest most likely tokens whose probabilities sum to p or more (Holtzman et al.
    2020).
    """
    probabilities = logits.softmax(-1)
    for count in (min(HEAD, logits.shape[-1]), logits.shape[-1]):
        ordered, tokens = probabilities.topk(count)
        before = ordered.cumsum(-1) - ordered
        if bool((before[:, -1] >= value).all()):
            break
    removed = torch.ones_like(logits, dtype=torch.bool).scatter_(1, tokens, before >= value)
    return logits.masked_fill(removed, NEVER)


def typical_p(logits: Tensor, value: float) -> Tensor:
    """Keep the fewest tokens whose probabilities sum to p or more, those with surprise nearest to
    the entropy first.

    Meister et al. 2023, equation 8; ties with the last token are kept.
    """
    logs = logits.log_softmax(-1)
    probabilities = logs.exp()
    entropy = -(logs * probabilities).nansum(-1, keepdim=True)
    distance = (-logs - entropy).abs()
    ordered, order = distance.sort()
    mass = probabilities.gather(1, order).cumsum(-1)
    last = (mass < value).sum(1, keepdim=True).clamp(max=logits.shape[-1] - 1)
    return logits.masked_fill(distance > ordered.gather(1, last), NEVER)


def min_p(logits: Tensor, value: float) -> Tensor:
    """Keep tokens at least `value` times as likely as the most likely one (Nguyen et al. 2024)."""
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < value * probabilities.amax(-1, keepdim=True), NEVER)


# Setting -> filter, in the order of application.
_FILTERS: tuple[Callable[..., Tensor], ...] = (temperature, top_k, top_p, min_p, typical_p)
FILTERS = {keep.__name__: keep for keep in _FILTERS}


def chosen_filters(config: GenerationConfig) -> dict[str, Callable[[Tensor], Tensor]]:
    """The filters that the settings select, in the order of application."""
    values = {key: getattr(config, key) for key in FILTERS}
    return {
        key: partial(FILTERS[key], value=value)
        for key, value in values.items()
        if value is not None
    }


def draw_weights(config: GenerationConfig) -> Callable[[Tensor], Tensor]:
    """log-probabilities (R, V) -> the weights (R, V) in proportion to which tokens are drawn."""
    filters = chosen_filters(config)
    is_uniform = config.top_k_form == "uniform"

    def weigh(log_probs: Tensor) -> Tensor:
        for keep in filters.values():
            log_probs = keep(log_probs)
        return (log_probs > NEVER).to(log_probs.dtype) if is_uniform else log_probs.softmax(-1)

    return weigh


def greedy(logits: Tensor, indices: Tensor, generated: int) -> Tensor:
    """The most likely token: the one with the largest logit, or with one that is NaN."""
    array = array_of(logits)
    if array is None:
        tokens = logits.argmax(-1)
        refuse_non_finite(logits.gather(1, tokens[:, None]), "NaN scores")
        return tokens
    best = array.argmax(-1)
    for row, token in zip(array, best.tolist(), strict=True):
        if not isfinite(row[token]):
            refuse_non_finite(torch.from_numpy(row[token : token + 1]), "NaN scores")
    return torch.from_numpy(best)


def sampler(
    config: GenerationConfig, keys: Sequence[tuple[int, int]], steps: int, device: torch.device
) -> Sampler:
    """Draw tokens with random numbers that are a function of the seed and a row's key, independent
    of other rows.

    keys: (index of the input, index of the sample) for each row. steps: the maximum number of
    tokens of a row.
    """
    seed = int(torch.randint(2**62, ())) if config.seed is None else config.seed
    streams = [np.random.default_rng((seed, *key)).random(steps, dtype=np.float32) for key in keys]
    uniform = torch.from_numpy(np.stack(streams)).to(device)
    weigh = draw_weights(config)

    def choose(logits: Tensor, indices: Tensor, generated: int) -> Tensor:
        log_probs = logits.log_softmax(-1)
        refuse_nan(log_probs[:, 0])  # a NaN logit makes all of its row NaN
        mass = weigh(log_probs).cumsum(-1)
        # In (0, total], so that the first token whose cumulative mass reaches it has a probability
        # above 0.
        target = (1 - uniform[indices, generated])[:, None] * mass[:, -1:]
        return torch.searchsorted(mass, target).squeeze(-1)

    return choose
