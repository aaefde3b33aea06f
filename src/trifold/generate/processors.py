"""Logits processors: penalize or forbid tokens before one is chosen. Every search applies the same ones.

Shapes: R rows (beams or samples), V vocabulary, L tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from trifold.errors import UsageError
from trifold.generate.config import GenerationConfig, end_ids
from trifold.generate.stopping import Codec, StoppingCriteria
from trifold.generate.streaming import REPLACEMENT
from trifold.nn import ModelConfig

ABSENT = -1  # in place of a token
NEVER = float("-inf")


class Context(NamedTuple):
    """The tokens before the next one.

    tokens: (R, L) prompt or start token, then generated tokens; ABSENT before shorter rows. generated: how many of
    them were generated. remaining: (R,) how many more each row may get.
    """

    tokens: Tensor
    generated: int
    remaining: Tensor


LogitsProcessor = Callable[[Tensor, Context], Tensor]
"""(logits (R, V), context) -> logits (R, V). It may modify the logits in place."""


class Setup(NamedTuple):
    """What the factories of processors need: the model, the ids that end an output, the tokenizer of the outputs."""

    model: ModelConfig
    ends: list[int]
    codec: Codec | None


def repetition_penalty(penalty: float, setup: Setup) -> LogitsProcessor:
    """Divide positive logits of tokens that occurred, and multiply negative ones (after Keskar et al. 2019)."""

    def process(logits: Tensor, context: Context) -> Tensor:
        occurred = _mask(logits, context.tokens)
        return torch.where(occurred, torch.where(logits > 0, logits / penalty, logits * penalty), logits)

    return process


def presence_penalty(penalty: float, setup: Setup) -> LogitsProcessor:
    """Subtract from the logit of each generated token, however often it occurred; the prompt does not count."""

    def process(logits: Tensor, context: Context) -> Tensor:
        return logits - penalty * _mask(logits, _generated(context))

    return process


def frequency_penalty(penalty: float, setup: Setup) -> LogitsProcessor:
    """Subtract from the logit of a token for each time it was generated; the prompt does not count."""

    def process(logits: Tensor, context: Context) -> Tensor:
        tokens = _generated(context)
        counts = torch.zeros_like(logits).scatter_add_(1, tokens, logits.new_ones(1).expand(tokens.shape))
        return logits - penalty * counts

    return process


def no_repeat_ngrams(size: int, setup: Setup) -> LogitsProcessor:
    """Forbid n-grams that occurred before (Paulus et al. 2018)."""

    def process(logits: Tensor, context: Context) -> Tensor:
        tokens = context.tokens
        if tokens.shape[1] < size:
            return logits
        ngrams = tokens.unfold(1, size, 1)
        prefix = tokens[:, tokens.shape[1] - size + 1 :]
        repeated = (ngrams[..., :-1] == prefix[:, None]).all(-1)
        return logits.masked_fill(_mask(logits, ngrams[..., -1].where(repeated, ABSENT)), NEVER)

    return process


def bad_phrases(phrases: Sequence[Sequence[int]], setup: Setup) -> LogitsProcessor:
    """Forbid the last token of each phrase where its other tokens precede.

    As in Hugging Face transformers, a phrase that is a single end token is ignored; use min_new_tokens for that.
    """
    by_length = groupby(
        sorted((list(p) for p in phrases if p[0] not in setup.ends or len(p) > 1), key=len), key=len
    )
    tables = {length: torch.tensor(list(group)) for length, group in by_length}

    def process(logits: Tensor, context: Context) -> Tensor:
        for length, table in tables.items():
            prefix, last = table[:, :-1].to(logits.device), table[:, -1].to(logits.device)
            if length == 1:
                logits[:, last] = NEVER
            elif length <= context.tokens.shape[1] + 1:
                matches = (context.tokens[:, None, 1 - length :] == prefix).all(-1)
                logits = logits.masked_fill(_mask(logits, last.where(matches, ABSENT)), NEVER)
        return logits

    return process


def bad_words(strings: Sequence[str], setup: Setup) -> LogitsProcessor:
    """Forbid tokens that complete one of these texts in the output, however it is tokenized."""
    assert setup.codec is not None, "bad_words needs a tokenizer"
    banned = BannedText(strings, setup.codec, setup.model.output_vocab_size)

    def process(logits: Tensor, context: Context) -> Tensor:
        rows, tokens = banned.completions(_generated(context).tolist())
        if rows:
            logits[rows, tokens] = NEVER
        return logits

    return process


def min_new_tokens(minimum: int, setup: Setup) -> LogitsProcessor:
    """Forbid end tokens before this many generated tokens."""

    def process(logits: Tensor, context: Context) -> Tensor:
        if context.generated < minimum:
            for end in setup.ends:  # one by one: ten times faster than indexing with the list
                logits[:, end] = NEVER
        return logits

    return process


def min_length(minimum: int, setup: Setup) -> LogitsProcessor:
    """Forbid end tokens before this many tokens, including the prompt or start token."""

    def process(logits: Tensor, context: Context) -> Tensor:
        short = (context.tokens != ABSENT).sum(1, keepdim=True) < minimum
        logits[:, setup.ends] = logits[:, setup.ends].masked_fill(short, NEVER)
        return logits

    return process


def forced_bos(token: int, setup: Setup) -> LogitsProcessor:
    """Allow only this token as the first one."""

    def process(logits: Tensor, context: Context) -> Tensor:
        return _only([token], logits) if context.generated == 0 else logits

    return process


def forced_eos(tokens: int | Sequence[int], setup: Setup) -> LogitsProcessor:
    """Allow only these tokens at the length limit."""
    allowed = [tokens] if isinstance(tokens, int) else list(tokens)

    def process(logits: Tensor, context: Context) -> Tensor:
        last = context.remaining == 1
        return torch.where(last[:, None], _only(allowed, logits), logits) if bool(last.any()) else logits

    return process


def _generated(context: Context) -> Tensor:
    return context.tokens[:, context.tokens.shape[1] - context.generated :]


def _only(tokens: Sequence[int], logits: Tensor) -> Tensor:
    masked = torch.full_like(logits, NEVER)
    masked[:, tokens] = 0.0
    return masked


def _mask(logits: Tensor, tokens: Tensor) -> Tensor:
    """(R, V) True at the tokens (R, n) of each row; ABSENT is ignored."""
    vocabulary = logits.shape[-1]
    mask = torch.zeros(logits.shape[0], vocabulary + 1, dtype=torch.bool, device=logits.device)
    return mask.scatter_(1, tokens.where(tokens != ABSENT, vocabulary), True)[:, :vocabulary]


# Setting -> factory of its processor, in the order of application.
PROCESSORS: dict[str, Callable[..., LogitsProcessor]] = {
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
FORBID_ENDS = frozenset({"min_new_tokens", "min_length"})
# Settings that may forbid every token.
MAY_FORBID_ALL = FORBID_ENDS | {"no_repeat_ngram_size", "bad_words_ids", "bad_words"}


def processor(config: GenerationConfig, model: ModelConfig, codec: Codec | None = None) -> LogitsProcessor:
    """Combine the processors of `config`; codec: the tokenizer of the outputs.

    Padding is forbidden unless `bad_words_ids` is set. If all tokens are forbidden, the end token is allowed; without
    an end token, UsageError is raised.
    """
    ends = end_ids(config, model)
    chosen = {key: value for key in PROCESSORS if (value := getattr(config, key)) not in (None, [])}
    steps = [PROCESSORS[key](value, Setup(model, ends, codec)) for key, value in chosen.items()]
    # The check for a remaining token reads the whole vocabulary at every step, so it is left out where possible.
    others_remain = chosen.keys() <= FORBID_ENDS and model.output_vocab_size > len({*ends, model.pad_id})
    may_forbid_all = not MAY_FORBID_ALL.isdisjoint(chosen) and not others_remain
    forbid_padding = config.bad_words_ids is None and model.pad_id not in ends

    def process(logits: Tensor, context: Context) -> Tensor:
        if forbid_padding:
            logits[:, model.pad_id] = NEVER
        for step in steps:
            logits = step(logits, context)
        if may_forbid_all:
            empty = logits.amax(-1) == NEVER
            if not bool(empty.any()):
                return logits
            if not ends:
                keys = ", ".join(key for key in chosen if key in MAY_FORBID_ALL)
                raise UsageError(f"{keys} forbid every token, and the model has no end token: forbid less")
            logits[:, ends[0]] = logits[:, ends[0]].masked_fill(empty, 0.0)
        return logits

    return process


# --- banned text -----------------------------------------------------------------------------------------


class BannedText:
    """Finds the tokens that would complete one of `strings`, however the text is tokenized.

    The text of a token may depend on its context (a space, half a character), so only decoding can tell. Decoding the
    whole vocabulary at every step is too slow: candidates are selected by the text that each token has after a letter,
    ignoring spaces, and only these are decoded in context.
    """

    def __init__(self, strings: Sequence[str], codec: Codec, vocabulary: int) -> None:
        self._codec, self._criteria = codec, StoppingCriteria([], strings, codec)
        self._texts = _token_texts(codec, vocabulary)
        self._stripped = [_without_spaces(text) for text in self._texts]
        self._strings = [(string, _without_spaces(string)) for string in strings]
        self._incomplete = [token for token, text in enumerate(self._texts) if REPLACEMENT in text]
        self._always = {token for pair in self._strings for token in self._containing(*pair)}
        self._by_first: dict[str, list[int]] = {}
        for token, text in enumerate(self._stripped):
            self._by_first.setdefault(text[:1], []).append(token)
        self._starting_with = cache(self._find_starting_with)

    def completions(self, sequences: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        """Rows of `sequences`, and tokens that would complete a banned string there."""
        rows: list[int] = []
        tokens: list[int] = []
        for row, text in enumerate(self._codec.decode(sequences)):
            candidates = sorted(self._candidates(text))
            rows += [row] * len(candidates)
            tokens += candidates
        if not rows:
            return rows, tokens
        extended = [[*sequences[row], token] for row, token in zip(rows, tokens, strict=True)]
        found = [index for index, hit in enumerate(self._criteria.end_with_string(extended)) if hit]
        return [rows[index] for index in found], [tokens[index] for index in found]

    def _candidates(self, text: str) -> set[int]:
        stripped = _without_spaces(text)
        found = set(self._always)
        for string, target in self._strings:
            for done in range(1, len(target)):
                if stripped.endswith(target[:done]):
                    found.update(self._starting_with(target[done:]))
            if string[-1:].isspace() and stripped.endswith(target):
                found.update(token for token, piece in enumerate(self._texts) if piece[:1].isspace())
        if text.endswith(REPLACEMENT):
            found.update(self._incomplete)
        return found

    def _containing(self, string: str, stripped: str) -> Iterable[int]:
        """Tokens whose text contains the whole string."""
        target, texts = (stripped, self._stripped) if stripped else (string, self._texts)
        return (token for token, text in enumerate(texts) if target in text)

    def _find_starting_with(self, rest: str) -> list[int]:
        return [token for token in self._by_first.get(rest[0], []) if self._stripped[token].startswith(rest)]


def _without_spaces(text: str) -> str:
    """Tokenizers add and remove spaces, so candidates are compared without them."""
    return "".join(text.split())


@lru_cache(maxsize=2)
def _token_texts(codec: Codec, vocabulary: int) -> list[str]:
    """The text of each token after a letter."""
    letter = codec.encode(["a"])[0][:1]
    before = codec.decode([letter])[0]
    texts = codec.decode([[*letter, token] for token in range(vocabulary)])
    return [text.removeprefix(before) for text in texts]
