"""The text of token ids that arrive one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

_WINDOW = 256  # ids that are decoded anew at each step, at most; half of them are context
_LOST = "\ufffd"  # what decoders write for bytes that are no character (yet)

Decode = Callable[[list[int]], str]


class TextStream:
    """Gives out text as ids are added: all that was given out, and the `end`, are the text of all ids.

    What a later token may still change is held back: bytes that are no whole character yet; where the decoder
    closes up spaces (`closes_up`), the last two words; and a run of `open` tokens, which stand for single bytes and
    are read together when it ends.
    """

    def __init__(self, decode: Decode, *, closes_up: bool = False, open: Collection[int] = ()) -> None:
        self._decode = decode
        self._closes_up = closes_up
        self._open = frozenset(open)
        self._ids: list[int] = []
        self._given = 0  # characters of the window's text that are out already

    def add(self, ids: Sequence[int] | int) -> str:
        """The text that these ids make certain; may be empty."""
        self._ids += [ids] if isinstance(ids, int) else list(ids)
        text = self._decode(self._ids)
        certain = self._certain(text)
        new = text[self._given : certain]
        self._given = max(self._given, certain)
        if len(self._ids) > _WINDOW:
            self._move_on(text)
        return new

    def end(self) -> str:
        """What was held back; the stream is empty and may be used again."""
        rest = self._decode(self._ids)[self._given :]
        self._ids, self._given = [], 0
        return rest

    def _certain(self, text: str) -> int:
        closed = len(self._ids)
        while closed and self._ids[closed - 1] in self._open:
            closed -= 1
        if closed < len(self._ids):
            text = self._decode(self._ids[:closed])
        end = len(text.rstrip(_LOST))
        if self._closes_up:
            for _ in range(2):
                end = max(text.rfind(" ", 0, end), 0)
        return end

    def _move_on(self, text: str) -> None:
        """Forget old ids, if the text of the others alone is the same but for a space at its beginning."""
        kept = self._ids[-_WINDOW // 2 :]
        tail = self._decode(kept)
        before = len(text) - len(tail)
        if _LOST not in tail[:8] and text.endswith(tail) and before <= self._given:
            self._ids, self._given = kept, self._given - before
