"""The best of very many continuations, without sorting them all."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64  # tokens whose maximum is looked at first
MANY = 4096  # a vocabulary from which on that pays


def best_continuations(log_probs: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """log_probs (B, K, V) + scores (B, K) -> the best `count` of each sentence: values, beams, tokens; best first.

    Of a large vocabulary, only the `count` chunks with the largest maxima are looked into: the best are among them.
    A maximum is found at the speed of memory, and a library's top-k of the whole is many times slower.
    """
    vocabulary = log_probs.shape[-1]
    chunks = vocabulary // CHUNK
    if vocabulary < MANY or chunks < count:
        values, places = (log_probs + scores[..., None]).flatten(1).topk(count)
        return values, places // vocabulary, places % vocabulary

    whole = log_probs[..., : chunks * CHUNK].unflatten(-1, (chunks, CHUNK))
    _, where = (whole.amax(-1) + scores[..., None]).flatten(1).topk(count)
    sentences = torch.arange(len(scores), device=scores.device)[:, None]
    beams, starts = where // chunks, where % chunks * CHUNK
    within = torch.arange(CHUNK, device=scores.device)
    rest = torch.arange(chunks * CHUNK, vocabulary, device=scores.device)

    # Candidates: the tokens of those chunks, and what is left over at the end of each beam's vocabulary.
    tokens = (starts[..., None] + within).flatten(1)
    beams = beams.repeat_interleave(CHUNK, dim=1)
    all_beams = torch.arange(scores.shape[1], device=scores.device).repeat_interleave(len(rest))
    beams = torch.cat([beams, all_beams.expand(len(scores), -1)], dim=1)
    tokens = torch.cat([tokens, rest.repeat(scores.shape[1]).expand(len(scores), -1)], dim=1)
    values, places = (log_probs[sentences, beams, tokens] + scores.gather(1, beams)).topk(count)
    return values, beams.gather(1, places), tokens.gather(1, places)
