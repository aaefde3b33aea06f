"""What may be said next, and how readily: logits in, logits out. Every search applies the same ones.

Shapes: R rows (beams or samples), V vocabulary, L tokens written so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from trifold.errors import UsageError
from trifold.generate.banned import Banned
from trifold.generate.config import GenerationConfig, end_ids
from trifold.generate.ends import Codec
from trifold.nn import ModelConfig

ABSENT = -1
NEVER = float("-inf")


class Written(NamedTuple):
    """What stands before the next token.

    tokens: (R, L) the prompt or the start token, then what was generated; ABSENT where a shorter row has none yet.
    generated: how many of them the search wrote. left: (R,) how many more each row may get.
    """

    tokens: Tensor
    generated: int
    left: Tensor


Processor = Callable[[Tensor, Written], Tensor]
"""(logits (R, V), what is written) -> logits (R, V). It may write into the logits it is given."""


class About(NamedTuple):
    """What makers of processors know: the model, the ids that end an output, and the tokenizer of the outputs."""

    model: ModelConfig
    ends: list[int]
    codec: Codec | None


def repetition_penalty(penalty: float, about: About) -> Processor:
    """Logits of tokens already written: divided if positive, multiplied if not (after Keskar et al. 2019)."""

    def process(logits: Tensor, written: Written) -> Tensor:
        seen = _marked(logits, written.tokens)
        return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)

    return process


def presence_penalty(penalty: float, about: About) -> Processor:
    """So much off the logit of each token that was generated already, however often; the prompt does not count."""

    def process(logits: Tensor, written: Written) -> Tensor:
        return logits - penalty * _marked(logits, _generated(written))

    return process


def frequency_penalty(penalty: float, about: About) -> Processor:
    """So much off the logit of a token for each time it was generated; the prompt does not count."""

    def process(logits: Tensor, written: Written) -> Tensor:
        tokens = _generated(written)
        times = torch.zeros_like(logits).scatter_add_(1, tokens, logits.new_ones(1).expand(tokens.shape))
        return logits - penalty * times

    return process


def no_repeat_ngrams(size: int, about: About) -> Processor:
    """No n tokens in a row are written twice (Paulus et al. 2018)."""

    def process(logits: Tensor, written: Written) -> Tensor:
        tokens = written.tokens
        if tokens.shape[1] < size:
            return logits
        grams = tokens.unfold(1, size, 1)
        begun = tokens[:, tokens.shape[1] - size + 1 :]
        again = (grams[..., :-1] == begun[:, None]).all(-1)
        return logits.masked_fill(_marked(logits, grams[..., -1].where(again, ABSENT)), NEVER)

    return process


def bad_phrases(phrases: Sequence[Sequence[int]], about: About) -> Processor:
    """None of these phrases is written: the last token of each is forbidden where the others stand before it.

    As in the ecosystem, an end token alone is passed over: min_new_tokens is there for that.
    """
    by_length = groupby(
        sorted((list(p) for p in phrases if p[0] not in about.ends or len(p) > 1), key=len), key=len
    )
    tables = {length: torch.tensor(list(group)) for length, group in by_length}

    def process(logits: Tensor, written: Written) -> Tensor:
        for length, table in tables.items():
            before, last = table[:, :-1].to(logits.device), table[:, -1].to(logits.device)
            if length == 1:
                logits[:, last] = NEVER
            elif length <= written.tokens.shape[1] + 1:
                begun = (written.tokens[:, None, 1 - length :] == before).all(-1)
                logits = logits.masked_fill(_marked(logits, last.where(begun, ABSENT)), NEVER)
        return logits

    return process


def bad_words(strings: Sequence[str], about: About) -> Processor:
    """No output holds one of these texts, in whatever tokens it could be spelled; the prompt does not count."""
    assert about.codec is not None, "words are looked for in text"
    banned = Banned(strings, about.codec, about.model.output_vocab_size)

    def process(logits: Tensor, written: Written) -> Tensor:
        rows, tokens = banned.next(_generated(written).tolist())
        if rows:
            logits[rows, tokens] = NEVER
        return logits

    return process


def min_new_tokens(least: int, about: About) -> Processor:
    """No end before so many tokens."""

    def process(logits: Tensor, written: Written) -> Tensor:
        if written.generated < least:
            for end in about.ends:  # one by one costs a tenth of a list of them
                logits[:, end] = NEVER
        return logits

    return process


def min_length(least: int, about: About) -> Processor:
    """No end before so many tokens, those of the prompt (or the start token) among them."""

    def process(logits: Tensor, written: Written) -> Tensor:
        short = (written.tokens != ABSENT).sum(1, keepdim=True) < least
        logits[:, about.ends] = logits[:, about.ends].masked_fill(short, NEVER)
        return logits

    return process


def forced_bos(token: int, about: About) -> Processor:
    """The first token is this one."""

    def process(logits: Tensor, written: Written) -> Tensor:
        return _only([token], logits) if written.generated == 0 else logits

    return process


def forced_eos(tokens: int | Sequence[int], about: About) -> Processor:
    """The last token that there is room for is one of these."""
    allowed = [tokens] if isinstance(tokens, int) else list(tokens)

    def process(logits: Tensor, written: Written) -> Tensor:
        last = written.left == 1
        return torch.where(last[:, None], _only(allowed, logits), logits) if bool(last.any()) else logits

    return process


def _generated(written: Written) -> Tensor:
    return written.tokens[:, written.tokens.shape[1] - written.generated :]


def _only(tokens: Sequence[int], logits: Tensor) -> Tensor:
    alone = torch.full_like(logits, NEVER)
    alone[:, tokens] = 0.0
    return alone


def _marked(logits: Tensor, tokens: Tensor) -> Tensor:
    """(R, V) True at the tokens (R, n) of each row; ABSENT marks nothing."""
    vocabulary = logits.shape[-1]
    marks = torch.zeros(logits.shape[0], vocabulary + 1, dtype=torch.bool, device=logits.device)
    return marks.scatter_(1, tokens.where(tokens != ABSENT, vocabulary), True)[:, :vocabulary]


# The setting that asks for it -> its maker, in the order of application.
PROCESSORS: dict[str, Callable[..., Processor]] = {
    "repetition_penalty": repetition_penalty,
    "presence_penalty": presence_penalty,
    "frequency_penalty": frequency_penalty,
    "no_repeat_ngram_size": no_repeat_ngrams,
    "bad_words_ids": bad_phrases,
    "bad_words": bad_words,
    "min_new_tokens": min_new_tokens,
    "min_length": min_length,
    "forced_bos_token_id": forced_bos,
    "forced_eos_token_id": forced_eos,
}
# Those that may forbid all that there is.
SILENCING = frozenset({"no_repeat_ngram_size", "bad_words_ids", "bad_words", "min_new_tokens", "min_length"})
NO_END = {"min_new_tokens", "min_length"}  # those that forbid the ends alone


def processor(config: GenerationConfig, model: ModelConfig, codec: Codec | None = None) -> Processor:
    """All that `config` asks for, one after the other.

    Padding is not said unless `bad_words_ids` is given and leaves it out. Where everything is forbidden, the
    sentence may end; UsageError is raised where the model knows no end. codec: the tokenizer of the outputs.
    """
    ends = end_ids(config, model)
    asked = {key: value for key in PROCESSORS if (value := getattr(config, key)) not in (None, [])}
    made = [PROCESSORS[key](value, About(model, ends, codec)) for key, value in asked.items()]
    # Looking whether anything is left costs a pass over the vocabulary at every step.
    spared = asked.keys() <= NO_END and model.output_vocab_size > len({*ends, model.pad_id})
    may_silence = not SILENCING.isdisjoint(asked) and not spared
    silent_padding = config.bad_words_ids is None and model.pad_id not in ends

    def process(logits: Tensor, written: Written) -> Tensor:
        if silent_padding:
            logits[:, model.pad_id] = NEVER
        for each in made:
            logits = each(logits, written)
        if may_silence:
            silenced = logits.amax(-1) == NEVER
            if not bool(silenced.any()):
                return logits
            if not ends:
                said = ", ".join(key for key in asked if key in SILENCING)
                raise UsageError(f"{said} forbid every token, and the model has none that ends: forbid less")
            logits[:, ends[0]] = logits[:, ends[0]].masked_fill(silenced, 0.0)
        return logits

    return process
