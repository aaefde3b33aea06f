"""From what the model says next to whole outputs: one token after the other (greedy, sampling), or beam search.

One step: processors -> log-softmax -> choose -> retire what has ended -> the rest goes on, tokens and cache together.
Sentences that are finished leave the batch. Shapes: B sentences, K beams, R = B·K rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trifold.errors import TrifoldError
from trifold.generate.config import GenerationConfig
from trifold.generate.live import Live
from trifold.generate.processors import NEVER, Processor
from trifold.generate.samplers import Sampler

Watch = Callable[[int, int], None]
"""(tokens generated so far, sentences still being written), called after each step."""


class Hypothesis(NamedTuple):
    """One output: its tokens (no start, no end), its score, and whether it ended by itself or at the limit."""

    tokens: list[int]
    score: float
    finish_reason: Literal["stop", "length"]


# score = log P / divisor(n, α), with n the tokens generated, the end-of-sentence token among them.
LENGTH_PENALTIES: dict[str, Callable[[float, float], float]] = {
    "power": lambda n, alpha: float(n**alpha),
    "gnmt": lambda n, alpha: float(((5 + n) / 6) ** alpha),  # Wu et al. 2016, equation 14
}


def one_by_one(
    live: Live,
    config: GenerationConfig,
    process: Processor,
    choose: Sampler,
    eos_id: int,
    watch: Watch | None = None,
) -> list[Hypothesis]:
    """Each sentence takes the token that `choose` gives, until its end: one output a sentence."""
    outputs: dict[int, Hypothesis] = {}
    scores = live.logits.new_zeros(len(live.sentences))
    while True:
        length = live.generated + 1
        log_probs = process(live.logits, live.written, live.generated).log_softmax(-1)
        tokens = choose(log_probs, live.sentences, live.generated)
        scores = scores + log_probs.gather(1, tokens[:, None]).squeeze(1)
        _refuse_nan(scores)
        ended = (tokens == eos_id) | (live.limits <= length)
        if watch is not None:
            watch(length, int((~ended).sum()))
        if not bool(ended.any()):
            live.go_on(tokens)
            continue
        rows = ended.nonzero().squeeze(1)
        divisor = LENGTH_PENALTIES[config.length_penalty_form](length, config.length_penalty)
        outputs.update(_retired(live, rows, rows, tokens[rows], scores[rows] / divisor, eos_id))
        staying = (~ended).nonzero().squeeze(1)
        if not len(staying):
            return [outputs[number] for number in sorted(outputs)]
        scores = scores[staying]
        live.go_on(tokens[staying], staying, staying)


def beam_search(
    live: Live, config: GenerationConfig, process: Processor, eos_id: int, watch: Watch | None = None
) -> list[list[Hypothesis]]:
    """The K likeliest beginnings of each sentence side by side; its finished outputs, best first, at most K.

    Of the 2K best continuations, ends among the first K are retired with their final score, and the K best that have
    not ended go on: at most K can end, so there are always K. What has ended at rank K+1 or worse is forgotten.
    The ways to stop are those of the ecosystem's `early_stopping`.
    """
    beams = config.num_beams
    finished: list[list[Hypothesis]] = [[] for _ in live.sentences]
    live.branch(beams)
    # All beams are the same at first, so that only one of them may be continued.
    scores = live.logits.new_full((len(finished), beams), NEVER)
    scores[:, 0] = 0
    while True:
        length = live.generated + 1
        log_probs = process(live.logits, live.written, live.generated).log_softmax(-1)
        best, parents, tokens = _best_continuations(log_probs, scores, 2 * beams)
        _refuse_nan(best)
        ended = (tokens == eos_id) | (live.limits <= length)[:, None]

        ends = ended[:, :beams] & (best[:, :beams] > NEVER)
        sentences, ranks = ends.nonzero().unbind(1)
        if len(sentences):
            divisor = LENGTH_PENALTIES[config.length_penalty_form](length, config.length_penalty)
            final = best[sentences, ranks] / divisor
            rows, last = parents[sentences, ranks], tokens[sentences, ranks]
            for number, output in _retired(live, sentences, rows, last, final, eos_id):
                finished[number] = _best_first([*finished[number], output])[:beams]

        scores, chosen = best.masked_fill(ended, NEVER).topk(beams)
        staying = _unfinished(live, finished, scores, config)
        if watch is not None:
            watch(length, len(staying))
        if not len(staying):
            return finished
        rows, tokens = parents.gather(1, chosen), tokens.gather(1, chosen)
        if len(staying) == len(scores):
            live.go_on(tokens.flatten(), rows.flatten())
        else:
            scores = scores[staying]
            live.go_on(tokens[staying].flatten(), rows[staying].flatten(), staying)


def _best_continuations(log_probs: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """log_probs (R, V), scores (B, K) -> the best (B, count): scores, rows they come from, tokens; best first."""
    sentences, beams = scores.shape
    vocabulary = log_probs.shape[-1]
    total = log_probs.add_(scores.view(-1, 1)).view(sentences, beams * vocabulary)
    best, places = total.topk(count)
    first_rows = torch.arange(0, sentences * beams, beams, device=scores.device)[:, None]
    return best, first_rows + places // vocabulary, places % vocabulary


def _unfinished(
    live: Live, finished: list[list[Hypothesis]], scores: Tensor, config: GenerationConfig
) -> Tensor:
    """Positions of the sentences that go on; `scores` (B, K) are those of the beams that have not ended."""
    divisor = LENGTH_PENALTIES[config.length_penalty_form]
    length, alpha = live.generated + 1, config.length_penalty

    def goes_on(number: int, limit: int, best: float) -> bool:
        if best == NEVER:
            return False
        if len(finished[number]) < config.num_beams:
            return True
        if config.early_stopping is True:
            return False
        # log P only falls; a positive α makes most of it at the greatest length.
        reach = limit if config.early_stopping == "never" and alpha > 0 else length
        return best / divisor(reach, alpha) > finished[number][-1].score

    open_sentences = zip(live.sentences.tolist(), live.limits.tolist(), scores[:, 0].tolist(), strict=True)
    staying = [place for place, sentence in enumerate(open_sentences) if goes_on(*sentence)]
    return torch.tensor(staying, dtype=torch.long, device=scores.device)


def _retired(
    live: Live, sentences: Tensor, rows: Tensor, last: Tensor, scores: Tensor, eos_id: int
) -> list[tuple[int, Hypothesis]]:
    """(n,) positions, rows and last tokens of what has ended -> (number of the sentence, its output)."""
    columns = (live.sentences[sentences], live.texts(rows), last, scores)
    return [
        (
            number,
            Hypothesis(text, score, "stop")
            if token == eos_id
            else Hypothesis([*text, token], score, "length"),
        )
        for number, text, token, score in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _best_first(outputs: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(outputs, key=lambda output: output.score, reverse=True)


def _refuse_nan(scores: Tensor) -> None:
    if bool(scores.isnan().any()):
        raise TrifoldError(
            "the model gives scores that are not numbers: its weights are damaged, or its training diverged; "
            "use an earlier checkpoint"
        )
