"""Scripts of texts, and the words that texts are compared by: a script without spaces between words
has characters instead.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

# Latin, others with spaces, Han, kana, and others without spaces.
Script = Literal["latin", "spaced", "han", "kana", "unspaced"]

STEM = 4  # letters by which words of one stem are known

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA = "\u3040-\u30ff"
_SOUTHEAST = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
UNSPACED = re.compile(f"[{_HAN}{_KANA}{_SOUTHEAST}]")

_HALF_WIDTH = "\uff66-\uff9f"
_TIBETAN = "\u0f00-\u0fff"
_CHARACTERS = f"{_HAN}{_KANA}{_SOUTHEAST}{_HALF_WIDTH}{_TIBETAN}"
_LATIN = "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff"
# A unit is a word of a script with spaces, or a character of one without.
_UNITS: dict[Script, re.Pattern[str]] = {
    "latin": re.compile(f"[{_LATIN}]+"),
    "spaced": re.compile(rf"[^\W\d_{_LATIN}{_CHARACTERS}]+"),
    "han": re.compile(f"[{_HAN}]"),
    "kana": re.compile(f"[{_KANA}{_HALF_WIDTH}]"),
    "unspaced": re.compile(f"[{_SOUTHEAST}{_TIBETAN}]"),
}
_JAPANESE = 0.05  # kana for each Han character from which a text is Japanese; Chinese has none
_WORDS = re.compile(rf"[{_CHARACTERS}]|[^\s{_CHARACTERS}]+")


def main_script(texts: Iterable[str]) -> Script:
    """The script of most units of the texts; `kana` for Japanese, which has Han too, and `latin`
    without a letter.
    """
    counts: dict[Script, int] = dict.fromkeys(_UNITS, 0)  # latin is first, and wins a tie
    for text in texts:
        scripts: Iterable[Script] = ["latin"] if text.isascii() else _UNITS
        for script in scripts:
            counts[script] += len(_UNITS[script].findall(text))
    if counts["kana"] > _JAPANESE * counts["han"]:
        counts["kana"] += counts.pop("han")
    return max(counts, key=counts.__getitem__)


def has_spaces(script: Script) -> bool:
    """Whether the script separates words by spaces."""
    return script in ("latin", "spaced")


def split_words(text: str) -> list[str]:
    """The words between white space; each character of a script without spaces is one."""
    return _WORDS.findall(text)


def unicode_words(text: str) -> list[str]:
    """`split_words` in lower case; all that is no letter, mark or number separates words."""
    return split_words(text.lower().translate(_SEPARATORS))


def word_spans(text: str) -> Iterator[tuple[str, int, int]]:
    """`unicode_words` with the first character of each in the text, and the one after its last."""
    lower = text.lower()
    plain = lower.translate(_SEPARATORS)
    # The character of the text that each character of `plain` is written for. Lower case is never
    # shorter and the table never longer, so equal lengths mean that every character is still one.
    places: Sequence[int] = range(len(text))
    if not len(text) == len(lower) == len(plain):
        of_lower = [place for place, letter in enumerate(text) for _ in letter.lower()]
        kept = zip(of_lower, lower, strict=True)
        places = [place for place, letter in kept if letter.translate(_SEPARATORS)]
    for match in _WORDS.finditer(plain):
        yield match[0], places[match.start()], places[match.end() - 1] + 1


class _Separators(dict[int, str]):
    """A table for `str.translate`: a space for each separator, nothing for a format character, such
    as the joiners of Persian and Hindi.
    """

    def __missing__(self, code: int) -> str:
        category = unicodedata.category(chr(code))
        if category[0] in "LMN":
            self[code] = chr(code)
        elif category == "Cf":
            self[code] = ""
        else:
            self[code] = " "
        return self[code]


_SEPARATORS = _Separators()
