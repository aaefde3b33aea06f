"""Text while it is generated: whole characters only, and nothing that a stop string may still remove."""

from __future__ import annotations

from collections.abc import Sequence

from trifold.generate.stopping import Codec

REPLACEMENT = "\ufffd"  # what an incomplete character decodes to


class TextStreamer:
    """Converts tokens to text as they arrive. The concatenated text equals `truncate_at_stop(decode(all tokens))`.

    Exception: after invalid UTF-8, some tokenizers decode earlier bytes differently, and these were already returned.

    A token may be half a character, or a word whose leading space depends on its context. Therefore the last tokens
    are decoded together with the new one, and the difference is returned.
    """

    def __init__(self, codec: Codec, stop_strings: Sequence[str] = ()) -> None:
        self._codec, self._stop_strings = codec, list(stop_strings)
        self._tokens: list[int] = []
        self._start = self._end = 0  # tokens [start:end] were returned and are the context of the next token
        self._held = ""
        self._stopped = False

    def push(self, token: int) -> str:
        """The text that is final after this token; often empty."""
        self._tokens.append(token)
        new = self._new_text()
        if not new or new.endswith(REPLACEMENT):
            return ""
        self._start, self._end = self._end, len(self._tokens)
        return self._release(new)

    def finish(self) -> str:
        """The remaining text after the last token, including incomplete characters."""
        text = self._release(self._new_text()) + ("" if self._stopped else self._held)
        self._held = ""
        return text

    def _new_text(self) -> str:
        context, whole = self._codec.decode(
            [self._tokens[self._start : self._end], self._tokens[self._start :]]
        )
        return whole[len(context) :]

    def _release(self, new: str) -> str:
        """The part of the held and the new text that no stop string can still remove."""
        if self._stopped:
            return ""
        text = self._held + new
        kept = truncate_at_stop(text, self._stop_strings)
        if len(kept) < len(text):
            self._stopped, self._held = True, ""
            return kept
        held = max(
            (n for s in self._stop_strings for n in range(1, len(s)) if text.endswith(s[:n])), default=0
        )
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def truncate_at_stop(text: str, stop_strings: Sequence[str]) -> str:
    """The text before the first stop string in it, or the whole text."""
    starts = [start for string in stop_strings if (start := text.find(string)) >= 0]
    return text[: min(starts, default=len(text))]
