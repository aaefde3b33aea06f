"""What ends an output: an end token, a stop string (which may be spread over several tokens), or the room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

MARGIN = (
    4  # characters at the cut end of a text that may read differently there: a lost space, half a character
)


Texts = Callable[[Tensor], Tensor]
"""Rows (n,) -> what each has generated so far (n, L)."""


class Codec(Protocol):
    """What a search needs of a tokenizer, where words or stop strings are given as text."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens."""

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence, without special tokens."""


class Hypothesis(NamedTuple):
    """One output: its tokens (no start, no end), its score, and whether it ended by itself or at the limit.

    The tokens of an output that a stop string ended are all that were generated, so its text holds that string.
    """

    tokens: list[int]
    score: float
    finish_reason: Literal["stop", "length"]


class Ends:
    """The ids and the strings that end an output. `cut_off` says that an end in the last place is a forced one."""

    def __init__(
        self,
        ids: Sequence[int],
        stop_strings: Sequence[str] = (),
        codec: Codec | None = None,
        *,
        cut_off: bool = False,
    ) -> None:
        assert codec is not None or not stop_strings, "stop strings are looked for in text"
        self.ids, self.cut_off = list(ids), cut_off
        self.strings, self._codec = list(stop_strings), codec
        self._longest = max(map(len, stop_strings), default=0)

    def by_id(self, tokens: Tensor) -> Tensor:
        """True where a token is an end token."""
        if len(self.ids) == 1:
            return tokens == self.ids[0]
        return torch.isin(tokens, torch.tensor(self.ids, dtype=tokens.dtype, device=tokens.device))

    def by_string(
        self, texts: Texts, tokens: Tensor, rows: Tensor | None = None, real: Tensor | None = None
    ) -> Tensor | None:
        """True where tokens (…) complete a stop string in the texts of rows (…); None where there is none to find.

        rows: None where each is its own. Only places where `real` is True are looked at.
        """
        if not self.strings:
            return None
        rows = torch.arange(len(tokens), device=tokens.device) if rows is None else rows
        found = torch.zeros(tokens.shape, dtype=torch.bool, device=tokens.device)
        looked = (torch.ones_like(found) if real is None else real).nonzero(as_tuple=True)
        written = texts(rows[looked]).tolist()
        whole = [[*text, token] for text, token in zip(written, tokens[looked].tolist(), strict=True)]
        found[looked] = torch.tensor(self.completed(whole), dtype=torch.bool, device=tokens.device)
        return found

    def completed(self, sequences: list[list[int]]) -> list[bool]:
        """Whether the last token of each completes a stop string."""
        return [any(string in tail for string in self.strings) for tail in self._tails(sequences)]

    def hypotheses(
        self, texts: Tensor, last: Tensor, scores: Tensor, stopped: Tensor | None, full: Tensor
    ) -> list[Hypothesis]:
        """Outputs of texts (n, L) and their last tokens (n,). stopped: by a string; full: there is no more room."""
        by_string = torch.zeros_like(full) if stopped is None else stopped
        columns = (column.tolist() for column in (texts, last, scores, by_string, full))
        return [self.hypothesis(*row) for row in zip(*columns, strict=True)]

    def hypothesis(self, text: list[int], last: int, score: float, stopped: bool, full: bool) -> Hypothesis:
        """The same for one."""
        if last in self.ids:
            return Hypothesis(text, score, "length" if full and self.cut_off else "stop")
        return Hypothesis([*text, last], score, "stop" if stopped else "length")

    def _tails(self, sequences: list[list[int]]) -> list[str]:
        """The end of each text: all of the last token, and enough before it for a stop string that it completes.

        Tokens that say nothing may stand anywhere, so that a tail that turns out too short is read again, longer.
        """
        assert self._codec is not None
        tails = [""] * len(sequences)
        pending, enough = list(range(len(sequences))), self._longest + MARGIN
        width = enough + 1
        while pending:
            cuts = [sequences[place][-width:] for place in pending]
            texts = self._codec.decode([*cuts, *(cut[:-1] for cut in cuts)])
            short = []
            for place, text, before in zip(pending, texts, texts[len(cuts) :], strict=False):
                if len(sequences[place]) <= width:
                    tails[place] = text
                elif len(before) >= enough:
                    tails[place] = text[MARGIN:]
                else:
                    short.append(place)
            pending, width = short, 2 * width
        return tails
