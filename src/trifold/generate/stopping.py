"""When an output ends: at an end token, at a stop string (which may span several tokens), or at its
length limit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from trifold.generation_config import DEFAULT_MAX_NEW_TOKENS, GenerationConfig
from trifold.nn import ModelConfig

# Characters at the start of a truncated text that may decode differently than within the whole
# text: a lost space, half a character.
MARGIN = 4

GeneratedTokens = Callable[[Tensor], Tensor]
"""Rows (n,) -> the tokens (n, L) generated in them so far."""


class Codec(Protocol):
    """The tokenizer interface that searches need for words and stop strings given as text."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens."""

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence, without special tokens."""

    @property
    def languages(self) -> Mapping[str, int]:
        """The codes of languages that have a token, and its id."""

    def __hash__(self) -> int:
        """Needed to cache the texts of its tokens."""


class Hypothesis(NamedTuple):
    """One output: its tokens (without start and end), its score, and why it ended.

    The tokens of an output that ended at a stop string include that string.
    """

    tokens: list[int]
    score: float
    finish_reason: Literal["stop", "length"]


class OutputLimit(NamedTuple):
    """The maximum number of tokens of an output, and whether a setting, the model or the default
    sets it.
    """

    tokens: int
    source: Literal["requested", "positions", "default"]


def output_limit(config: GenerationConfig, model: ModelConfig, length: int) -> OutputLimit:
    """The limit for a source or a prompt of `length` tokens; below 1 if the prompt exceeds
    max_length.

    The last token is generated but never read, so it needs no position.
    """
    prompt = 1 if model.encoder_layers else length
    positions = model.max_decoder_positions or model.max_positions  # as in `decoder_side`
    available = positions + 1 - prompt
    if config.max_length is not None:
        limit = OutputLimit(config.max_length - prompt, "requested")
    elif config.max_new_tokens is not None:
        limit = OutputLimit(config.max_new_tokens, "requested")
    else:
        continues = not model.encoder_layers and config.prompt is None
        source = 0 if continues else length
        limit = OutputLimit(source + DEFAULT_MAX_NEW_TOKENS, "default")
    return OutputLimit(available, "positions") if available < limit.tokens else limit


class StoppingCriteria:
    """The end ids and stop strings of a search.

    forced_eos: an end token at the length limit was forced there, so the output counts as cut off.
    """

    def __init__(
        self,
        ids: Sequence[int],
        strings: Sequence[str] = (),
        codec: Codec | None = None,
        *,
        forced_eos: bool = False,
    ) -> None:
        assert codec is not None or not strings, "stop strings need a tokenizer"
        self.ids = list(ids)
        self._ends = frozenset(ids)
        self.strings = list(strings)
        self.forced_eos = forced_eos
        self._codec = codec
        self._longest = max(map(len, strings), default=0)

    def is_end(self, tokens: Tensor) -> Tensor:
        if len(self.ids) == 1:  # without a copy to a GPU
            return tokens == self.ids[0]
        return torch.isin(tokens, torch.tensor(self.ids, dtype=tokens.dtype, device=tokens.device))

    def may_end(self, tokens: Tensor) -> bool:
        """Whether one of the tokens (n,) is an end token."""
        return not self._ends.isdisjoint(tokens.tolist())

    def completes_string(
        self,
        before: GeneratedTokens,
        tokens: Tensor,
        rows: Tensor | None = None,
        real: Tensor | None = None,
    ) -> Tensor:
        """True where tokens (…) complete a stop string in the output of rows (…).

        rows: default 0, 1, …. real: True at the tokens to check (default: all).
        """
        found = torch.zeros(tokens.shape, dtype=torch.bool, device=tokens.device)
        if not self.strings:
            return found
        rows = torch.arange(len(tokens), device=tokens.device) if rows is None else rows
        checked = (torch.ones_like(found) if real is None else real).nonzero(as_tuple=True)
        pairs = zip(before(rows[checked]).tolist(), tokens[checked].tolist(), strict=True)
        sequences = [[*ids, token] for ids, token in pairs]
        found[checked] = torch.tensor(
            self.end_with_string(sequences), dtype=torch.bool, device=tokens.device
        )
        return found

    def end_with_string(self, sequences: list[list[int]]) -> list[bool]:
        """Whether the last token of each sequence completes a stop string."""
        tails = map(self._tail, sequences)
        return [any(string in tail for string in self.strings) for tail in tails]

    def hypotheses(
        self, tokens: Tensor, last: Tensor, scores: Tensor, stopped: Tensor, full: Tensor
    ) -> list[Hypothesis]:
        """Outputs from tokens (n, L), last tokens (n,) and scores; stopped by a string, or at the
        limit (full).
        """
        columns = (column.tolist() for column in (tokens, last, scores, stopped, full))
        return [self.hypothesis(*row) for row in zip(*columns, strict=True)]

    def hypothesis(
        self, tokens: list[int], last: int, score: float, stopped: bool, full: bool
    ) -> Hypothesis:
        """The output of one row from its tokens and the last token."""
        if last in self.ids:
            return Hypothesis(tokens, score, "length" if full and self.forced_eos else "stop")
        return Hypothesis([*tokens, last], score, "stop" if stopped else "length")

    def _tail(self, tokens: list[int]) -> str:
        """The end of the text: its last token and enough before it for any stop string that the
        token completes.

        Tokens may decode to nothing, so a tail that is too short is decoded again with twice the
        tokens.
        """
        assert self._codec is not None
        enough = self._longest + MARGIN
        width = enough + 1
        while width < len(tokens):
            text, before = self._codec.decode([tokens[-width:], tokens[-width:-1]])
            if len(before) >= enough:
                return text[MARGIN:]
            width *= 2
        return self._codec.decode([tokens])[0]
