"""Contrastive search (Su et al. 2022, equation 5): of the k likeliest tokens, the one with the best

    (1 - α) · p(token)  -  α · max over what is written of cos(h_token, h_j)

where h are the model's hidden states. The k candidates of a sentence are its k rows: all of them are read, one stays.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.errors import DataError
from trifold.generate.config import GenerationConfig
from trifold.generate.ends import Ends, Hypothesis
from trifold.generate.live import Live
from trifold.generate.processors import ABSENT, Processor, Written
from trifold.generate.search.finished import NEVER, Watch, divisor, refuse_nan
from trifold.generate.search.single import Step, Steps


def contrastive_search(
    live: Live, config: GenerationConfig, process: Processor, ends: Ends, watch: Watch | None = None
) -> Steps:
    """One output a sentence; its score is log P, as of every search.

    Raises DataError for a prompt that fills all positions: candidates are read before one of them is said.
    """
    assert config.penalty_alpha is not None and config.top_k is not None, "asked for by these two"
    alpha, k = config.penalty_alpha, min(config.top_k, live.logits.shape[-1])
    _leave_room_to_read(live)
    outputs: dict[int, Hypothesis] = {}
    context, real = F.normalize(live.hidden, dim=-1), live.attend
    scores = live.logits.new_zeros(len(live.sentences))
    chosen = torch.arange(len(scores), device=scores.device) * k  # the row of each sentence that stayed
    live.branch(k)
    while True:
        length = live.generated + 1
        written = Written(live.tokens[chosen], live.generated, live.limits - live.generated)
        log_probs = process(live.logits[chosen], written).log_softmax(-1)
        candidates, names = log_probs.topk(k)
        refuse_nan(candidates)
        live.go_on(names.flatten(), chosen.repeat_interleave(k))

        hidden = F.normalize(live.hidden[:, -1].unflatten(0, (-1, k)), dim=-1)  # (B, k, E)
        likeness = hidden @ context.transpose(1, 2)  # (B, k, written)
        if real is not None:
            likeness = likeness.masked_fill(~real[:, None], NEVER)
        worth = (1 - alpha) * candidates.exp() - alpha * likeness.amax(-1)
        best = worth.masked_fill(candidates == NEVER, NEVER).argmax(-1)

        sentences = torch.arange(len(best), device=best.device)
        chosen, taken = sentences * k + best, names[sentences, best]
        scores = scores + candidates[sentences, best]
        context = torch.cat([context, hidden[sentences, best][:, None]], dim=1)
        real = None if real is None else torch.cat([real, real.new_ones(len(real), 1)], dim=1)

        yield Step(live.sentences, taken)
        ended = ends.by_id(taken) | (live.limits <= length)
        stopped = ends.by_string(lambda rows: live.texts(rows)[:, :-1], taken, chosen)
        if stopped is not None:
            ended |= stopped
        if watch is not None:
            watch(length, int((~ended).sum()))
        if not bool(ended.any()):
            continue
        places = ended.nonzero().squeeze(1)
        final = scores[places] / divisor(config, length)
        strings, full = None if stopped is None else stopped[places], live.limits[places] == length
        found = ends.hypotheses(live.texts(chosen[places])[:, :-1], taken[places], final, strings, full)
        outputs.update(zip(live.sentences[places].tolist(), found, strict=True))
        staying = (~ended).nonzero().squeeze(1)
        if not len(staying):
            return [outputs[number] for number in sorted(outputs)]
        context, real, scores = context[staying], None if real is None else real[staying], scores[staying]
        chosen = _kept(live, staying, chosen, k)


def _kept(live: Live, staying: Tensor, chosen: Tensor, k: int) -> Tensor:
    """Only these sentences go on, their k rows with them; -> (B,) the chosen row of each, counted anew."""
    rows = (staying[:, None] * k + torch.arange(k, device=staying.device)).flatten()
    live.keep(rows, staying)
    live.logits = live.logits[rows]
    return torch.arange(len(staying), device=staying.device) * k + chosen[staying] % k


def _leave_room_to_read(live: Live) -> None:
    most = live.max_positions - (live.tokens != ABSENT).sum(1)
    for row, room in enumerate(most.tolist()):
        if room < 1:
            raise DataError(
                f"row {row} is a prompt that fills all {live.max_positions} positions (max_positions): "
                "a contrastive search needs one more; shorten it"
            )
    live.limits = live.limits.minimum(most)
