"""Speculative decoding: verify several proposed tokens in one forward pass and keep those that
would have been chosen (Leviathan et al. 2023; prompt lookup: Saxena 2023).

Each token is chosen as in `token_search`, from the same logits and the same random number, so the
output is the same. Proposals only change the speed. Rows are decoded one by one, because they
accept different numbers of tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor

from trifold.errors import UsageError
from trifold.generate.decoding import DecodingState, Model, SearchSetup
from trifold.generate.processors import KnownContext
from trifold.generate.sampling import Sampler
from trifold.generate.token_search import SearchStep, initial_scores, log_probs_of, take_step
from trifold.nn import Inputs

Proposer = Callable[[Sequence[int], int], list[int]]
"""(all tokens of the output so far, count) -> at most `count` tokens that may follow."""


def speculative_search(
    state: DecodingState, setup: SearchSetup, choose: Sampler, propose: Proposer, count: int
) -> Iterator[SearchStep]:
    """The steps of one sentence, verifying proposals of `count` tokens at a time."""
    assert len(state.sentences) == 1, "rows accept different numbers of tokens"
    limit = int(state.limits[0])
    score = initial_scores(state, setup)
    logits = state.logits
    generated: list[int] = []
    proposed: list[int] = []
    while True:
        for index in range(len(logits)):
            processed = setup.process(logits[index : index + 1], state.context)
            token = choose(processed, state.sentences, state.generated)
            if setup.has_scores:
                score = score + log_probs_of(processed, token)
            step, _ = take_step(state, setup, token, score)
            generated.append(int(token))
            state.append(token)
            yield step
            if step.ended:
                return
            if index == len(proposed) or generated[-1] != proposed[index]:
                break
        # The cache has read all proposals, of which `index` were chosen.
        state.rollback(len(proposed) - index)
        proposed = propose(generated, min(count, limit - len(generated) - 1))
        tokens = torch.tensor([[generated[-1], *proposed]], device=token.device)
        if not state.is_prefix(tokens):
            proposed = []
            tokens = tokens[:, :1]
        logits = state.head(state.read(tokens)[0])


def draft_proposer(
    model: Model, inputs: Inputs, setup: SearchSetup, choose: Sampler, sentence: Tensor, limit: int
) -> Proposer:
    """Proposes the tokens that a smaller model with the same vocabulary would choose.

    sentence: (1,) index of the row's random stream. limit: maximum number of generated tokens.
    """
    config = setup.config.model_copy(update={"max_length": None, "max_new_tokens": limit})
    state = DecodingState(model, inputs, config)
    prompt = state.tokens
    read = list[int]()  # the tokens in the cache after the prompt

    def propose(generated: Sequence[int], count: int) -> list[int]:
        count = min(
            count, model.config.decoder_side.max_positions - prompt.shape[1] - len(generated)
        )
        if count < 1:
            return []
        # The last token is always read, because its logits are needed.
        same = takewhile(lambda pair: pair[0] == pair[1], zip(generated[:-1], read, strict=False))
        common = len([*same])
        state.rollback(len(read) - common)
        read[:] = generated
        new = torch.tensor([list(generated)[common:]], device=prompt.device)
        proposed: list[int] = []
        while True:
            logits = state.head(state.read(new)[:, -1])
            known = torch.tensor([[*generated, *proposed]], device=new.device)
            length = known.shape[1]
            remaining = torch.full((1,), count + 1, device=new.device)
            tokens = torch.cat([prompt, known], dim=1)
            context = KnownContext(tokens, length, remaining, state.sources)
            token = choose(setup.process(logits, context), sentence, length)
            proposed.append(int(token))
            if len(proposed) == count or proposed[-1] in setup.stopping.ids:
                return proposed
            read.append(proposed[-1])
            new = token[:, None]

    return propose


def look_up(
    prompt: Sequence[int], max_ngram: int, generated: Sequence[int], count: int
) -> list[int]:
    """Propose the tokens that followed the last n-gram at its previous occurrence in the prompt or
    the output.

    The longest n-gram is tried first, and its last occurrence is used.
    """
    known = np.array([*prompt, *generated])
    for size in range(min(max_ngram, len(known) - 1), 0, -1):
        ngrams = np.lib.stride_tricks.sliding_window_view(known[:-1], size)
        matches = np.flatnonzero((ngrams == known[-size:]).all(1))
        if len(matches):
            start = int(matches[-1]) + size
            return [int(token) for token in known[start : start + max(count, 0)]]
    return []


def check_draft(model: Model, draft: Model) -> None:
    """Raises UsageError for a draft model with another shape or vocabulary."""
    for key in ("shape", "vocab_size", "output_vocab_size", "eos_id", "pad_id", "start_id"):
        expected = getattr(model.config, key)
        found = getattr(draft.config, key)
        if expected != found:
            remedy = "use a draft with the same shape and vocabulary"
            raise UsageError(
                f"the draft model's {key} is {found}, and the model's {expected}: {remedy}"
            )
