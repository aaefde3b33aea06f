"""Which token is taken: the likeliest, or one drawn at random from a distribution that filters have narrowed.

Shapes: R rows, V vocabulary. A sampler chooses among log-probabilities and does not change them: the score of an
output is what the model (and the processors) gave it, whatever the temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from trifold.generate.config import GenerationConfig

NEVER = float("-inf")
HEAD = 512  # tokens that are sorted first: they nearly always hold the mass that top_p asks for

Sampler = Callable[[Tensor, Tensor, int], Tensor]
"""(log-probabilities (R, V), number of each row (R,), tokens generated so far) -> tokens (R,)."""


def temperature(logits: Tensor, value: float) -> Tensor:
    """p^(1/T), renormalised: below 1 sharper, above 1 flatter."""
    return logits / value


def top_k(logits: Tensor, value: int) -> Tensor:
    """Only the k likeliest, and what equals the last of them (Fan et al. 2018)."""
    least = logits.topk(min(value, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < least, NEVER)


def top_p(logits: Tensor, value: float) -> Tensor:
    """Only the fewest likeliest tokens whose probabilities reach p together (Holtzman et al. 2020)."""
    probabilities = logits.softmax(-1)
    for count in (min(HEAD, logits.shape[-1]), logits.shape[-1]):
        ordered, tokens = probabilities.topk(count)
        before = ordered.cumsum(-1) - ordered
        if bool((before[:, -1] >= value).all()):
            break
    beyond = torch.ones_like(logits, dtype=torch.bool).scatter_(1, tokens, before >= value)
    return logits.masked_fill(beyond, NEVER)


def typical_p(logits: Tensor, value: float) -> Tensor:
    """Only the fewest tokens that hold p together, those first whose surprise is nearest to the entropy.

    Meister et al. 2023, equation 8; what is as near as the last of them stays too.
    """
    logs = logits.log_softmax(-1)
    probabilities = logs.exp()
    entropy = -(logs * probabilities).nansum(-1, keepdim=True)
    distance = (-logs - entropy).abs()
    near, order = distance.sort()
    mass = probabilities.gather(1, order).cumsum(-1)
    last = (mass < value).sum(1, keepdim=True).clamp(max=logits.shape[-1] - 1)
    return logits.masked_fill(distance > near.gather(1, last), NEVER)


def min_p(logits: Tensor, value: float) -> Tensor:
    """Only tokens at least `value` times as likely as the likeliest (Nguyen et al. 2024)."""
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < value * probabilities.amax(-1, keepdim=True), NEVER)


# Settings by name, in the order of application.
FILTERS: dict[str, Callable[..., Tensor]] = {
    "temperature": temperature,
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
    "typical_p": typical_p,
}

# How likely is what the filters kept: as it is, or all the same.
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "proportional": lambda logits: logits.softmax(-1),
    "uniform": lambda logits: (logits > NEVER).to(logits.dtype),
}


def likeliest(log_probs: Tensor, numbers: Tensor, generated: int) -> Tensor:
    """The greedy choice."""
    if log_probs.device.type == "cpu" and log_probs.dtype is torch.float32:  # numpy's is many times quicker
        return torch.from_numpy(log_probs.detach().numpy().argmax(-1))
    return log_probs.argmax(-1)


def drawn(
    config: GenerationConfig, keys: Sequence[tuple[int, int]], steps: int, device: torch.device
) -> Sampler:
    """Draws at random, by random numbers that are a function of the seed and a row's key, whatever stands beside it.

    keys: for each row (number of its input, number of the sample); steps: the most tokens a row may get.
    """
    seed = int(torch.randint(2**62, ())) if config.seed is None else config.seed
    streams = [np.random.default_rng((seed, *key)).random(steps, dtype=np.float32) for key in keys]
    uniform = torch.from_numpy(np.stack(streams)).to(device)
    filters = [(keep, value) for key, keep in FILTERS.items() if (value := getattr(config, key)) is not None]
    weights = FORMS[config.top_k_form]

    def choose(log_probs: Tensor, numbers: Tensor, generated: int) -> Tensor:
        for keep, value in filters:
            log_probs = keep(log_probs, value)
        mass = weights(log_probs).cumsum(-1)
        # In (0, total], so that the first token whose mass reaches it has a probability above 0.
        wanted = (1 - uniform[numbers, generated])[:, None] * mass[:, -1:]
        return torch.searchsorted(mass, wanted).squeeze(-1)

    return choose
