"""Text while it is being written: whole characters only, and nothing that a stop string may yet take back."""

from __future__ import annotations

from collections.abc import Sequence

from trifold.generate.ends import Codec

BROKEN = "\ufffd"  # what half a character decodes to


class Speaker:
    """Tokens in, text out; what it says, joined, is `until_stop` of the whole text (if that is valid UTF-8: of broken
    bytes, some tokenizers decode good ones before them anew, which have been said).

    A token may be half a character, or a word whose space depends on what stands before it: so the last tokens are
    decoded again together with the new one, and what is said is what that added.
    """

    def __init__(self, codec: Codec, stop_strings: Sequence[str] = ()) -> None:
        self._codec, self._stops = codec, list(stop_strings)
        self._tokens: list[int] = []
        self._before = self._after = 0  # tokens [before:after] have been said and are the context of the next
        self._held = ""
        self._stopped = False

    def push(self, token: int) -> str:
        """What can be said now that this token is there; often the empty text."""
        self._tokens.append(token)
        new = self._unsaid()
        if not new or new.endswith(BROKEN):
            return ""
        self._before, self._after = self._after, len(self._tokens)
        return self._released(new)

    def finish(self) -> str:
        """What is left when no more tokens come, halves of characters too."""
        said = self._released(self._unsaid()) + ("" if self._stopped else self._held)
        self._held = ""
        return said

    def _unsaid(self) -> str:
        context, all_of_it = self._codec.decode(
            [self._tokens[self._before : self._after], self._tokens[self._before :]]
        )
        return all_of_it[len(context) :]

    def _released(self, new: str) -> str:
        """The part of the held and the new text that no stop string can reach any more."""
        if self._stopped:
            return ""
        text = self._held + new
        said = until_stop(text, self._stops)
        if len(said) < len(text):
            self._stopped, self._held = True, ""
            return said
        keep = max((n for s in self._stops for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def until_stop(text: str, stop_strings: Sequence[str]) -> str:
    """The text before the first stop string in it; all of it where there is none."""
    places = [place for string in stop_strings if (place := text.find(string)) >= 0]
    return text[: min(places, default=len(text))]
