"""Rule-based sentence splitting that keeps every character.

A sentence ends at a terminator (. ! ? … and those of other scripts), including closing quotes and
brackets, if white space follows; Chinese and Japanese need none. A period after an abbreviation,
initial or ordinal does not end a sentence, and neither does a terminator in brackets or before a
lower-case word. A blank line always does. The rules follow Grefenstette and Tapanainen (1994) and
Kiss and Strunk (2006), with tables instead of counts.
"""

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from trifold.errors import SettingsError
from trifold.settings import nearest

_WIDE = "。！？｡．"  # need no white space after them
_TERMINATORS = ".!?…‽⁇⁈⁉؟۔।॥።။" + _WIDE
_CLOSERS = "\"'”’»›)]}」』）】〉》〕］｝*_"
_HIGH = "“‘«"  # closing quotes in German and Danish, opening quotes in Chinese
_END = re.compile(
    f"[{re.escape(_TERMINATORS)}]+(?:(?<=[{_WIDE}])[{re.escape(_CLOSERS)}]*"
    f"|(?<![{_WIDE}])[{re.escape(_CLOSERS + _HIGH)}]*(?:[^\\S\\n]»(?=\\s|\\Z))?)"
)
_CONTINUERS = _TERMINATORS + ",;:、，；："
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*|\Z")
_BRACKETS = {")": "(", "]": "[", "）": "（", "】": "【", "〕": "〔", "］": "［"}
_BRACKET = re.compile("[" + re.escape("".join(_BRACKETS) + "".join(_BRACKETS.values())) + "]")
_MAX_BRACKETED = 400  # characters; longer text in brackets can hold sentences, or was never closed
_BEFORE = re.compile(r"[^\s(\[{\"“„«‘'’/,;:—–]*\Z")
_NEXT = re.compile(r"\s*[\"'“”„«»‘‚‹›(\[{¿¡*_—–-]*\s*")
_WORD = re.compile(r"\w+['’]?")
_INITIALS = re.compile(r"(?:[^\W\d_]\.-?)*[^\W\d_]\Z")
_ROMAN = re.compile(r"[IVX]+\Z")
_QUOTING = ("と", "って", "という")  # after 「…。」 these continue the sentence


class Language(NamedTuple):
    """Words of one language, as described in abbreviations.toml."""

    within: frozenset[str]
    either: frozenset[str]
    numbered: frozenset[str]
    starters: frozenset[str]
    ordinals: bool


@cache
def read_language(name: str | None) -> Language:
    """The words of a language, or of all languages, where a word that may end a sentence in one may
    end one in all.
    """
    tables = tomllib.loads(Path(__file__).with_name("abbreviations.toml").read_text("utf-8"))
    if name is not None and name not in tables:
        raise SettingsError(f"language: {name!r} is not known{nearest(name, [*tables])}")
    chosen = tables.values() if name is None else [tables[name]]
    within, either, numbered, starters = (
        frozenset(word for table in chosen for word in table[kind].split())
        for kind in Language._fields[:4]
    )
    if name is None:
        return Language(within - either, either, numbered, starters, ordinals=False)
    return Language(within, either, numbered, starters, ordinals="ordinals" in tables[name])


def split_sentences(text: str, language: str | None = None) -> list[str]:
    """Split a text into sentences with the white space that follows each; concatenated they are the
    text.

    language: en, de, …; by default the abbreviations of all languages apply. Raises SettingsError
    if it is unknown.
    """
    return [
        text[start:end] for start, end in pairwise([0, *_find_ends(text, read_language(language))])
    ]


def _find_ends(text: str, rules: Language) -> Iterator[int]:
    """End positions of sentences, after the white space that follows; the last one is the end of
    the text.
    """
    start = paragraph = 0  # leading white space belongs to the first sentence
    for border in _PARAGRAPH.finditer(text):
        stop = border.start()
        openings, closings = _find_brackets(text, paragraph, stop)
        for found in _END.finditer(text, paragraph, stop):
            inside = bisect_right(openings, found.start()) - 1
            if inside >= 0 and found.end() <= closings[inside]:
                continue
            if found.end() < stop and _is_end(text, start, found, stop, rules):
                start = _skip_space(text, found.end())
                if start < len(text):
                    yield start
        if start < stop and border.end() < len(text) and text[start:stop].strip():
            start = border.end()
            yield start
        paragraph = border.end()
    if text:
        yield len(text)


def _is_end(text: str, start: int, found: re.Match[str], stop: int, rules: Language) -> bool:
    terminator = found.group()
    after = text[found.end()]
    if after in _CONTINUERS:
        return False
    wide = any(character in _WIDE for character in terminator)
    if not after.isspace():
        return wide and not (terminator[-1] in "」』" and text.startswith(_QUOTING, found.end()))
    begin = _NEXT.match(text, found.end(), stop)
    assert begin is not None
    following = text[begin.end()] if begin.end() < stop else ""
    if following.islower():
        return False
    sign = terminator.rstrip(_CLOSERS + _HIGH + " \u00a0\u202f")
    if wide or sign[-1] not in ".…":
        return True
    word = _WORD.match(text, begin.end(), stop)
    starts = (
        word is not None
        and word.group() in rules.starters
        and text[word.end() : word.end() + 1] != "."
    )
    if len(sign) > 1 or sign == "…":  # an ellipsis
        return not (following.isupper() and word is not None and word.group() in ("I", "I'"))
    if sign != terminator:  # a quote or bracket closes after the period
        return True
    before = _BEFORE.search(text, max(start, found.start() - 40), found.start())
    assert before is not None  # it may be empty
    return _period_ends(before.group(), text, start, found.start(), following, starts, rules)


def _period_ends(
    before: str, text: str, start: int, place: int, following: str, starts: bool, rules: Language
) -> bool:
    """Whether a period after the word `before` ends a sentence if the next word is not in lower
    case.
    """
    word = before.lower()
    if word in rules.within or (word in rules.numbered and following.isdigit()):
        return False
    if before.isdigit() or _ROMAN.match(before):
        if _skip_space(text, start) >= place - len(before):  # the number of a list item
            return False
        if rules.ordinals and (len(before) <= 2 or not before.isdigit()):
            return starts
        return before.isdigit() or starts
    if word in rules.either or (_INITIALS.match(before) and following.isupper()):
        return starts
    return True


def _find_brackets(text: str, start: int, stop: int) -> tuple[list[int], list[int]]:
    """Positions of the outermost opening and closing brackets, without those around long text."""
    opened: list[tuple[str, int]] = []
    pairs: list[tuple[int, int]] = []
    for found in _BRACKET.finditer(text, start, stop):
        sign = found.group()
        if sign not in _BRACKETS:
            opened.append((sign, found.start()))
        elif opened and opened[-1][0] == _BRACKETS[sign]:
            opening = opened.pop()[1]
            if found.start() - opening <= _MAX_BRACKETED:
                while pairs and pairs[-1][0] > opening:
                    pairs.pop()
                pairs.append((opening, found.start()))
    return [opening for opening, _ in pairs], [closing for _, closing in pairs]


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place
