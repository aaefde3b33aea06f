"""Text to sentences by rules: no model, no download, and no character lost.

A sentence ends where one of its signs (. ! ? … and their kin in other scripts) stands, with the quotes and brackets
that close behind it, if white space follows; in Chinese and Japanese, also if none does. A point is none where it ends
an abbreviation, an initial or an ordinal, and nothing ends inside brackets or before a word that begins small. A blank
line always ends what is before it. After the heuristics of Grefenstette and Tapanainen (1994) and of Kiss and Strunk
(2006), with tables in place of their counts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from trifold.errors import SettingsError
from trifold.settings import nearest
from trifold.text.abbreviations import EVERY, HABITS, Habits

_WIDE = "。！？｡．"  # of scripts without spaces: no white space needs to follow
_SIGNS = ".!?…‽⁇⁈⁉؟۔।॥።။" + _WIDE
_CLOSERS = "\"'”’»›)]}」』）】〉》〕］｝*_"
_HIGH = "“‘«"  # close in German and Danish; in Chinese they open, and no white space need be before them
_END = re.compile(
    f"[{re.escape(_SIGNS)}]+(?:(?<=[{_WIDE}])[{re.escape(_CLOSERS)}]*"
    f"|(?<![{_WIDE}])[{re.escape(_CLOSERS + _HIGH)}]*(?:[^\\S\\n]»(?=\\s|\\Z))?)"
)
_GOES_ON = _SIGNS + ",;:、，；："
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*|\Z")
_BRACKETS = {")": "(", "]": "[", "）": "（", "】": "【", "〕": "〔", "］": "［"}
_BRACKET = re.compile("[" + re.escape("".join(_BRACKETS) + "".join(_BRACKETS.values())) + "]")
_LONGEST_INSERTION = 400  # characters in brackets; a longer one is a text of its own, or was never closed
_BEFORE = re.compile(r"[^\s(\[{\"“„«‘'’/,;:—–]*\Z")
_NEXT = re.compile(r"\s*[\"'“”„«»‘‚‹›(\[{¿¡*_—–-]*\s*")
_WORD = re.compile(r"\w+['’]?")
_INITIALS = re.compile(r"(?:[^\W\d_]\.-?)*[^\W\d_]\Z")
_ROMAN = re.compile(r"[IVX]+\Z")
_QUOTING = ("と", "って", "という")  # 「…。」 followed by one of these: the sentence that quotes goes on


def split_sentences(text: str, language: str | None = None) -> list[str]:
    """The sentences of a text, each with the white space behind it: joined they are the text again.

    `language` is one of those of `HABITS` (en, de, …); where it is not told, abbreviations of all of them count. Raises
    SettingsError for a language that is not known.
    """
    if language is not None and language not in HABITS:
        raise SettingsError(f"language: nothing is known of {language!r}{nearest(language, list(HABITS))}")
    habits = EVERY if language is None else HABITS[language]
    sentences, start = [], 0
    for end in _ends(text, habits):
        sentences.append(text[start:end])
        start = end
    return sentences


def _ends(text: str, habits: Habits) -> Iterator[int]:
    """Where sentences end, the white space behind them included; the last end is that of the text."""
    start = paragraph = 0  # of the sentence; white space before the first one belongs to it
    for border in _PARAGRAPH.finditer(text):
        stop = border.start()
        openings, closings = _insertions(text, paragraph, stop)
        for found in _END.finditer(text, paragraph, stop):
            inside = bisect_right(openings, found.start()) - 1
            if inside >= 0 and found.end() <= closings[inside]:
                continue
            if found.end() < stop and _is_end(text, start, found, stop, habits):
                start = _skip_space(text, found.end())
                if start < len(text):
                    yield start
        if start < stop and border.end() < len(text) and text[start:stop].strip():
            start = border.end()
            yield start
        paragraph = border.end()
    if text:
        yield len(text)


def _is_end(text: str, start: int, found: re.Match[str], stop: int, habits: Habits) -> bool:
    signs = found.group()
    after = text[found.end()]
    if after in _GOES_ON:
        return False
    wide = any(sign in _WIDE for sign in signs)
    if not after.isspace():
        return wide and not (signs[-1] in "」』" and text.startswith(_QUOTING, found.end()))
    begin = _NEXT.match(text, found.end(), stop)
    assert begin is not None
    following = text[begin.end()] if begin.end() < stop else ""
    if following.islower():
        return False
    sign = signs.rstrip(_CLOSERS + _HIGH + " \u00a0\u202f")
    if wide or sign[-1] not in ".…":
        return True
    word = _WORD.match(text, begin.end(), stop)
    starts = word is not None and word.group() in habits.starters and text[word.end() : word.end() + 1] != "."
    if len(sign) > 1 or sign == "…":  # words that trail off
        return not (following.isupper() and word is not None and word.group() in ("I", "I'"))
    if sign != signs:  # what a quote or a bracket closes behind the point was a whole
        return True
    before = _BEFORE.search(text, max(start, found.start() - 40), found.start())
    return _point_ends(
        before.group() if before else "", text, start, found.start(), following, starts, habits
    )


def _point_ends(
    before: str, text: str, start: int, place: int, following: str, starts: bool, habits: Habits
) -> bool:
    """Whether a point behind the word `before` ends a sentence when something that is not small follows."""
    word = before.lower()
    if word in habits.within:
        return False
    if word in habits.numbered and following.isdigit():
        return False
    if before.isdigit() or _ROMAN.match(before):
        if _skip_space(text, start) >= place - len(before):  # 1. as the number of an item
            return False
        if habits.ordinals and (len(before) <= 2 or not before.isdigit()):
            return starts
        return before.isdigit() or starts
    if word in habits.either or (_INITIALS.match(before) and following.isupper()):
        return starts
    return True


def _insertions(text: str, start: int, stop: int) -> tuple[list[int], list[int]]:
    """Where the outermost pairs of brackets open and close, long ones left out."""
    waiting: list[tuple[str, int]] = []
    pairs: list[tuple[int, int]] = []
    for found in _BRACKET.finditer(text, start, stop):
        sign = found.group()
        if sign not in _BRACKETS:
            waiting.append((sign, found.start()))
        elif waiting and waiting[-1][0] == _BRACKETS[sign]:
            opening = waiting.pop()[1]
            if found.start() - opening <= _LONGEST_INSERTION:
                while pairs and pairs[-1][0] > opening:
                    pairs.pop()
                pairs.append((opening, found.start()))
    return [opening for opening, _ in pairs], [closing for _, closing in pairs]


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place
