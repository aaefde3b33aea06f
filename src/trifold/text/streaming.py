"""Token ids to text: incremental decoding, spaces before punctuation."""

from collections.abc import Callable, Collection, Sequence

_WINDOW = 64  # maximum number of ids decoded per step; half of them are kept as context
REPLACEMENT = "\ufffd"  # decoded from bytes that do not (yet) form a character

Decode = Callable[[list[int]], str]


class TextStream:
    """Decode ids incrementally: the returned parts, followed by `end()`, are the text of all ids.

    Text that a later token may change is held back: incomplete characters; the last two words if
    the decoder removes spaces before punctuation (`closes_up`); and a run of `open` tokens, which
    stand for single bytes and are decoded together, or for no text.
    """

    def __init__(
        self, decode: Decode, *, closes_up: bool = False, open: Collection[int] = ()
    ) -> None:
        self._decode = decode
        self._closes_up = closes_up
        self._open = frozenset(open)
        self._ids: list[int] = []
        self._returned = 0  # characters of the window's text that have been returned

    def add(self, ids: Sequence[int] | int) -> str:
        """Text that these ids make final; may be empty."""
        self._ids += [ids] if isinstance(ids, int) else list(ids)
        text = self._decode(self._ids)
        final = self._final_length(text)
        new = text[self._returned : final]
        self._returned = max(self._returned, final)
        if len(self._ids) > _WINDOW:
            self._drop_old_ids(text)
        return new

    def end(self) -> str:
        """Text held back so far; resets the stream."""
        rest = self._decode(self._ids)[self._returned :]
        self._ids = []
        self._returned = 0
        return rest

    def _final_length(self, text: str) -> int:
        """The number of characters of the text that no later token changes."""
        closed = len(self._ids)
        while closed and self._ids[closed - 1] in self._open:
            closed -= 1
        if closed < len(self._ids):
            text = self._decode(self._ids[:closed])
        end = len(text.rstrip(REPLACEMENT))
        if self._closes_up:
            for _ in range(2):
                end = max(text.rfind(" ", 0, end), 0)
        return end

    def _drop_old_ids(self, text: str) -> None:
        """Drop ids before the window if the rest decodes to the same text, except for a leading
        space.
        """
        kept = self._ids[-_WINDOW // 2 :]
        tail = self._decode(kept)
        before = len(text) - len(tail)
        if REPLACEMENT not in tail[:8] and text.endswith(tail) and before <= self._returned:
            self._ids = kept
            self._returned = self._returned - before


def clean_up_spaces(text: str) -> str:
    """Remove spaces before punctuation, as `clean_up_tokenization_spaces` of `transformers`
    does.
    """
    for spaced in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(spaced, spaced.strip())
    return text
