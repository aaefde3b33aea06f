"""Text while it is generated: whole characters only, and nothing that a stop string may still
remove.
"""

from collections.abc import Iterable, Iterator, Sequence

from trifold.generate.stopping import Codec
from trifold.text.streaming import TextStream


class TextStreamer:
    """Converts tokens to text as they arrive. The concatenated text equals
    `truncate_at_stop(decode(all tokens))`.

    Exception: after invalid UTF-8, some tokenizers decode earlier bytes differently, and these were
    already returned.
    """

    def __init__(self, codec: Codec, stop_strings: Sequence[str] = ()) -> None:
        self._stream = TextStream(lambda ids: codec.decode([ids])[0])
        self._stop_strings = list(stop_strings)
        self._held = ""
        self._stopped = False

    def push(self, token: int) -> str:
        """The text that is final after this token; often empty."""
        new = self._stream.add(token)
        return self._release(new) if new else ""

    def finish(self) -> str:
        """The remaining text after the last token, including incomplete characters."""
        text = self._release(self._stream.end()) + ("" if self._stopped else self._held)
        self._held = ""
        return text

    def _release(self, new: str) -> str:
        """The part of the held and the new text that no stop string can still remove."""
        if self._stopped:
            return ""
        text = self._held + new
        kept = truncate_at_stop(text, self._stop_strings)
        if len(kept) < len(text):
            self._stopped = True
            self._held = ""
            return kept
        starts = (string[:n] for string in self._stop_strings for n in range(1, len(string)))
        held = max((len(start) for start in starts if text.endswith(start)), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def truncate_at_stop(text: str, stop_strings: Sequence[str]) -> str:
    """The text before the first stop string in it, or the whole text."""
    starts = [start for string in stop_strings if (start := text.find(string)) >= 0]
    return text[: min(starts, default=len(text))]


def without_first_space(parts: Iterable[str]) -> Iterator[str]:
    """The parts of a text, without the space at its beginning."""
    begins = True
    for part in parts:
        text = part.lstrip() if begins else part
        begins = begins and not text
        if text:
            yield text
