"""Logits processors: penalize or forbid tokens before one is chosen. Every search applies the same
ones.

Shapes: R rows (beams or samples), V vocabulary, L tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.errors import UsageError
from trifold.generate.stopping import Codec, StoppingCriteria
from trifold.generation_config import GenerationConfig, end_ids
from trifold.nn import ModelConfig
from trifold.text.streaming import REPLACEMENT

ABSENT = -1  # padding of rows of tokens; no token has this id
NEVER = float("-inf")  # logit of a forbidden token


class Context(Protocol):
    """The tokens before the next one. A search computes only what is read."""

    @property
    def tokens(self) -> Tensor:
        """(R, L) prompt or start token, then generated tokens; ABSENT before shorter rows."""

    @property
    def generated(self) -> int:
        """How many of the tokens were generated."""

    @property
    def remaining(self) -> Tensor:
        """(R,) how many more tokens each row may get."""

    @property
    def sources(self) -> Tensor | None:
        """(R, S) what an encoder read, if a processor needs it; ABSENT after shorter rows."""


class KnownContext(NamedTuple):
    """A context whose values are known."""

    tokens: Tensor
    generated: int
    remaining: Tensor
    sources: Tensor | None = None


LogitsProcessor = Callable[[Tensor, Context], Tensor]
"""(logits (R, V), context) -> logits (R, V). It may modify the logits in place."""


def repetition_penalty(penalty: float, ends: list[int], logits: Tensor, context: Context) -> Tensor:
    """Divide positive logits of tokens that occurred, and multiply negative ones (after Keskar et
    al. 2019).
    """
    occurred = _mask(logits, context.tokens)
    return torch.where(
        occurred, torch.where(logits > 0, logits / penalty, logits * penalty), logits
    )


def presence_penalty(penalty: float, ends: list[int], logits: Tensor, context: Context) -> Tensor:
    """Subtract from the logit of each generated token, however often it occurred; the prompt does
    not count.
    """
    return logits - penalty * _mask(logits, _generated(context))


def frequency_penalty(penalty: float, ends: list[int], logits: Tensor, context: Context) -> Tensor:
    """Subtract from the logit of a token for each time it was generated; the prompt does not
    count.
    """
    tokens = _generated(context)
    counts = torch.zeros_like(logits).scatter_add_(
        1, tokens, logits.new_ones(1).expand(tokens.shape)
    )
    return logits - penalty * counts


def no_repeat_ngram_size(size: int, ends: list[int], logits: Tensor, context: Context) -> Tensor:
    """Forbid n-grams that occurred before (Paulus et al. 2018)."""
    return _forbid_ngrams(size, context.tokens, logits, context)


def encoder_no_repeat_ngram_size(
    size: int, ends: list[int], logits: Tensor, context: Context
) -> Tensor:
    """Forbid n-grams of the source of an encoder-decoder, or of the prompt of a decoder."""
    read = context.sources
    if read is None:
        read = context.tokens[:, : context.tokens.shape[1] - context.generated]
    return _forbid_ngrams(size, read, logits, context)


def _forbid_ngrams(size: int, read: Tensor, logits: Tensor, context: Context) -> Tensor:
    """Forbid tokens that complete an n-gram of `read` (R, S)."""
    tokens = context.tokens
    if min(read.shape[1], tokens.shape[1] + 1) < size:
        return logits
    ngrams = read.unfold(1, size, 1)
    prefix = tokens[:, tokens.shape[1] - size + 1 :]
    repeated = (ngrams[..., :-1] == prefix[:, None]).all(-1)
    return logits.masked_fill(_mask(logits, ngrams[..., -1].where(repeated, ABSENT)), NEVER)


def bad_words_ids(
    tables: list[Tensor], ends: list[int], logits: Tensor, context: Context
) -> Tensor:
    """Forbid the last token of each phrase where its other tokens precede; a table (n, L) holds
    phrases of length L.
    """
    for table in tables:
        length = table.shape[1]
        prefix = table[:, :-1].to(logits.device)
        last = table[:, -1].to(logits.device)
        if length == 1:
            logits[:, last] = NEVER
        elif length <= context.tokens.shape[1] + 1:
            matches = (context.tokens[:, None, 1 - length :] == prefix).all(-1)
            logits = logits.masked_fill(_mask(logits, last.where(matches, ABSENT)), NEVER)
    return logits


def _phrase_tables(phrases: Sequence[Sequence[int]], ends: list[int]) -> list[Tensor]:
    """The phrases by length, without single end tokens, as in Hugging Face transformers: see
    min_new_tokens.
    """
    kept = sorted(
        (list(phrase) for phrase in phrases if phrase[0] not in ends or len(phrase) > 1), key=len
    )
    return [torch.tensor(list(group)) for _, group in groupby(kept, key=len)]


def bad_words(banned: BannedText, ends: list[int], logits: Tensor, context: Context) -> Tensor:
    """Forbid tokens that complete a banned text in the output, however it is tokenized."""
    for row, token in banned.completions(_generated(context).tolist()):
        logits[row, token] = NEVER
    return logits


def min_new_tokens(minimum: int, ends: list[int], logits: Tensor, context: Context) -> Tensor:
    """Forbid end tokens before this many generated tokens."""
    if context.generated < minimum:
        _forbid(logits, ends)
    return logits


def min_length(minimum: int, ends: list[int], logits: Tensor, context: Context) -> Tensor:
    """Forbid end tokens before this many tokens, including the prompt or start token."""
    short = (context.tokens != ABSENT).sum(1, keepdim=True) < minimum
    logits[:, ends] = logits[:, ends].masked_fill(short, NEVER)
    return logits


def forced_bos_token_id(token: int, ends: list[int], logits: Tensor, context: Context) -> Tensor:
    """Allow only this token after a text of one token: the start token, or a prompt of that
    length.
    """
    if context.generated:
        return logits
    alone = (context.tokens != ABSENT).sum(1, keepdim=True) == 1
    return torch.where(alone, _only(token, logits), logits)


def forced_eos_token_id(
    tokens: int | list[int], ends: list[int], logits: Tensor, context: Context
) -> Tensor:
    """Allow only these tokens at the length limit."""
    last = context.remaining == 1
    return torch.where(last[:, None], _only(tokens, logits), logits) if bool(last.any()) else logits


def suppress_tokens(tokens: list[int], ends: list[int], logits: Tensor, context: Context) -> Tensor:
    """Forbid these tokens, end tokens too."""
    logits[:, tokens] = NEVER
    return logits


class FirstTokens(NamedTuple):
    """Tokens that do not begin an output. after_forced: the first token of an output is forced in
    rows of one token, where they are not the next one.
    """

    tokens: list[int]
    after_forced: bool


def begin_suppress_tokens(
    first: FirstTokens, ends: list[int], logits: Tensor, context: Context
) -> Tensor:
    """Forbid tokens at the beginning of an output."""
    if context.generated > first.after_forced:
        return logits
    lengths = (context.tokens != ABSENT).sum(1, keepdim=True)
    starts = (lengths - context.generated == 1) & first.after_forced
    here = starts == bool(context.generated)
    logits[:, first.tokens] = logits[:, first.tokens].masked_fill(here, NEVER)
    return logits


def _generated(context: Context) -> Tensor:
    return context.tokens[:, context.tokens.shape[1] - context.generated :]


def _only(tokens: int | list[int], logits: Tensor) -> Tensor:
    masked = torch.full_like(logits, NEVER)
    masked[:, tokens] = 0.0
    return masked


def _mask(logits: Tensor, tokens: Tensor) -> Tensor:
    """(R, V) True at the tokens (R, n) of each row; ABSENT is ignored."""
    vocabulary = logits.shape[-1]
    mask = torch.zeros(logits.shape[0], vocabulary + 1, dtype=torch.bool, device=logits.device)
    return mask.scatter_(1, tokens.where(tokens != ABSENT, vocabulary), True)[:, :vocabulary]


_STEPS = (
    *(repetition_penalty, presence_penalty, frequency_penalty),
    *(no_repeat_ngram_size, encoder_no_repeat_ngram_size, bad_words_ids, bad_words),
    *(min_new_tokens, min_length, forced_bos_token_id, forced_eos_token_id),
    *(suppress_tokens, begin_suppress_tokens),
)
# Setting -> its processor, called with (value, end tokens, logits, context), in the order of
# application.
PROCESSORS: dict[str, Callable[..., Tensor]] = {step.__name__: step for step in _STEPS}
# Settings that may forbid every token.
MAY_FORBID_ALL = {
    "min_new_tokens",
    "min_length",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "bad_words",
    "suppress_tokens",
    "begin_suppress_tokens",
}


def processor(
    config: GenerationConfig, model: ModelConfig, codec: Codec | None = None
) -> LogitsProcessor:
    """Combine the processors of `config`; codec: the tokenizer of the outputs.

    Padding is forbidden unless `bad_words_ids` is set. If all tokens are forbidden, the end token
    is allowed; without an end token, UsageError is raised.
    """
    ends = end_ids(config, model)
    chosen = {key: value for key in PROCESSORS if (value := getattr(config, key)) not in (None, [])}
    if "bad_words_ids" in chosen:
        chosen["bad_words_ids"] = _phrase_tables(chosen["bad_words_ids"], ends)
    if "bad_words" in chosen:
        assert codec is not None, "bad_words needs a tokenizer"
        chosen["bad_words"] = BannedText(chosen["bad_words"], codec, model.output_vocab_size)
    if "begin_suppress_tokens" in chosen:
        is_forced = config.forced_bos_token_id is not None
        chosen["begin_suppress_tokens"] = FirstTokens(chosen["begin_suppress_tokens"], is_forced)
    steps = [partial(PROCESSORS[key], value, ends) for key, value in chosen.items()]
    may_forbid_all = not MAY_FORBID_ALL.isdisjoint(chosen)
    forbid_padding = config.bad_words_ids is None and model.pad_id not in ends

    def process(logits: Tensor, context: Context) -> Tensor:
        if forbid_padding:
            _forbid(logits, [model.pad_id])
        for step in steps:
            logits = step(logits, context)
        if may_forbid_all and not _every_row_has_a_token(logits):
            empty = logits.amax(-1) == NEVER
            if not bool(empty.any()):
                return logits
            if not ends:
                keys = ", ".join(key for key in chosen if key in MAY_FORBID_ALL)
                raise UsageError(
                    f"{keys} forbid every token, and the model has no end token: forbid less"
                )
            logits[:, ends[0]] = logits[:, ends[0]].masked_fill(empty, 0.0)
        return logits

    return process


# numpy takes a fraction of the time of PyTorch for operations on a few rows of logits.


def array_of(logits: Tensor) -> NDArray[np.float32] | None:
    """The memory of logits in fp32 on a CPU as an array."""
    if logits.is_cpu and logits.dtype is torch.float32:
        # Every operation takes tens of microseconds after a step, which has read all weights:
        # neither its code nor its data are in a cache.
        return logits.detach().numpy() if logits.requires_grad else logits.numpy()
    return None


def _forbid(logits: Tensor, tokens: Iterable[int]) -> None:
    """Forbid tokens in all rows, in place."""
    array = array_of(logits)
    columns: Any = logits if array is None else array
    for token in tokens:  # one by one: ten times faster than indexing with the list
        columns[:, token] = NEVER


def _every_row_has_a_token(logits: Tensor) -> bool:
    """Whether no row forbids all tokens, nor has NaN."""
    array = array_of(logits)
    if array is None:
        return bool((logits.amax(-1) > NEVER).all())
    if all(logit > NEVER for logit in array[:, array.shape[1] // 2].tolist()):
        return True  # without reading all logits: hardly any token is forbidden
    return bool(array.max(-1).min() > NEVER)


# --- banned text ----------------------------------------------------------------------------------


class BannedText:
    """Finds the tokens that would complete one of `strings`, however the text is tokenized.

    The text of a token may depend on its context (a space, half a character), so only decoding can
    tell. Decoding the whole vocabulary at every step is too slow: candidates are selected by the
    text that each token has after a letter, ignoring spaces, and only these are decoded in context.
    """

    def __init__(self, strings: Sequence[str], codec: Codec, vocabulary: int) -> None:
        self._codec = codec
        self._criteria = StoppingCriteria([], strings, codec)
        self._texts = _token_texts(codec, vocabulary)
        self._stripped = [_without_spaces(text) for text in self._texts]
        self._strings = [(string, _without_spaces(string)) for string in dict.fromkeys(strings)]
        self._incomplete = [token for token, text in enumerate(self._texts) if REPLACEMENT in text]
        self._always = {token for pair in self._strings for token in self._containing(*pair)}
        self._starting_with = cache(self._find_starting_with)

    def completions(self, sequences: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """Rows of `sequences`, each with a token that would complete a banned string there."""
        texts = enumerate(self._codec.decode(sequences))
        pairs = [(row, token) for row, text in texts for token in sorted(self._candidates(text))]
        complete = self._criteria.end_with_string(
            [[*sequences[row], token] for row, token in pairs]
        )
        return [pair for pair, is_complete in zip(pairs, complete, strict=True) if is_complete]

    def _candidates(self, text: str) -> set[int]:
        stripped = _without_spaces(text)
        found = set(self._always)
        for string, target in self._strings:
            for done in range(1, min(len(target), len(stripped) + 1)):
                if stripped.endswith(target[:done]):
                    found.update(self._starting_with(target[done:]))
            if string[-1:].isspace() and stripped.endswith(target):
                found.update(
                    token for token, piece in enumerate(self._texts) if piece[:1].isspace()
                )
        if text.endswith(REPLACEMENT):
            found.update(self._incomplete)
        return found

    def _containing(self, string: str, stripped: str) -> Iterable[int]:
        """Tokens whose text contains the whole string."""
        target, texts = (stripped, self._stripped) if stripped else (string, self._texts)
        return (token for token, text in enumerate(texts) if target in text)

    def _find_starting_with(self, rest: str) -> list[int]:
        return [token for token, text in enumerate(self._stripped) if text.startswith(rest)]


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
