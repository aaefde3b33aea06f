"""Text that must not be written, and the tokens that would complete it, however it is spelled.

What a token says may depend on what stands before it (a space, half a character), so that only decoding can tell.
Decoding the whole vocabulary at every step would take too long: suspects are found by what each token says after a
letter, spaces left out, and only they are decoded behind the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

from trifold.generate.ends import Codec, Ends

BROKEN = "\ufffd"  # what half a character decodes to


class Banned:
    """`strings` that no text may hold, for texts of these `vocabulary` tokens."""

    def __init__(self, strings: Sequence[str], codec: Codec, vocabulary: int) -> None:
        self._codec, self._ends = codec, Ends([], strings, codec)
        self._pieces = _pieces(codec, vocabulary)
        self._bare = [_bare(piece) for piece in self._pieces]
        self._strings = [(string, _bare(string)) for string in strings]
        self._broken = [token for token, piece in enumerate(self._pieces) if BROKEN in piece]
        self._always = {token for pair in self._strings for token in self._saying(*pair)}
        self._by_first: dict[str, list[int]] = {}
        for token, bare in enumerate(self._bare):
            self._by_first.setdefault(bare[:1], []).append(token)
        self._going_on = cache(self._beginning)

    def next(self, texts: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        """The rows of `texts` and the tokens that would complete a string there."""
        rows: list[int] = []
        tokens: list[int] = []
        for row, text in enumerate(self._codec.decode(texts)):
            suspects = sorted(self._suspects(text))
            rows += [row] * len(suspects)
            tokens += suspects
        if not rows:
            return rows, tokens
        wholes = [[*texts[row], token] for row, token in zip(rows, tokens, strict=True)]
        guilty = [place for place, found in enumerate(self._ends.completed(wholes)) if found]
        return [rows[place] for place in guilty], [tokens[place] for place in guilty]

    def _suspects(self, text: str) -> set[int]:
        bare = _bare(text)
        found = set(self._always)
        for string, wanted in self._strings:
            for done in range(1, len(wanted)):
                if bare.endswith(wanted[:done]):
                    found.update(self._going_on(wanted[done:]))
            if string[-1:].isspace() and bare.endswith(wanted):
                found.update(self._spaced())
        if text.endswith(BROKEN):
            found.update(self._broken)
        return found

    def _saying(self, string: str, wanted: str) -> Iterable[int]:
        """Tokens that hold the whole string."""
        said, pieces = (wanted, self._bare) if wanted else (string, self._pieces)
        return (token for token, piece in enumerate(pieces) if said in piece)

    def _beginning(self, rest: str) -> list[int]:
        """Tokens that begin with it."""
        return [token for token in self._by_first.get(rest[0], []) if self._bare[token].startswith(rest)]

    def _spaced(self) -> list[int]:
        return [token for token, piece in enumerate(self._pieces) if piece[:1].isspace()]


def _bare(text: str) -> str:
    """Without spaces, which tokenizers put and take as it suits them."""
    return "".join(text.split())


@lru_cache(maxsize=2)
def _pieces(codec: Codec, vocabulary: int) -> list[str]:
    """What each token says behind a letter."""
    letter = codec.encode(["a"])[0][:1]
    before = codec.decode([letter])[0]
    said = codec.decode([[*letter, token] for token in range(vocabulary)])
    return [text.removeprefix(before) for text in said]
