"""Regular expressions of a stranger's tokenizer: refused before they can keep a processor busy for ever.

`tokenizers` runs them on a backtracking engine that cannot be stopped from outside. So a pattern is refused when
its shape can explode (a repetition inside a repetition, a reference back, a recursion), and when it is slow on
texts made to trip it up: those grow step by step, and the measuring ends with the first that takes too long.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from itertools import combinations

from tokenizers import Regex, normalizers

_LONGEST_PATTERN = 10_000  # characters; the longest in use has about 1,000
_MOST_REPEATS = 1_000
_MOST_CHOICES = 12  # places in one alternative that may match more or less; those in use have up to five
_LENGTHS = (
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    256,
    512,
    1024,
    2048,
    4096,
)  # what takes long must not take ages
_PATIENCE = (
    0.04  # seconds of processor time for any one of them; a linear pattern takes a millionth a character
)
_COMMON = " \n\ta0A!é日"

_COUNTED = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_GROUP = re.compile(r"\?(?:[imx-]*:|[=!>]|<[=!]|<\w+>|P<\w+>)")
_OPTIONS = re.compile(r"\?[imx-]+\)")
_ESCAPE = re.compile(
    r"\\(?:[pP]\{\^?\w+\}|x\{[0-9a-fA-F]{1,8}\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^\d\n])|\\0", re.DOTALL
)


class Refused(ValueError):
    """Why a pattern is not run."""


def panicked(error: BaseException) -> bool:
    """Whether the library's Rust failed in a way that its authors did not foresee (no Exception, by its type)."""
    return type(error).__name__ == "PanicException"


@lru_cache(maxsize=256)
def check_regex(pattern: str) -> None:
    """Raises Refused where the pattern could take more than about linear time, and where it is no pattern."""
    if len(pattern) > _LONGEST_PATTERN:
        raise Refused(f"{len(pattern):,} characters is too long; at most {_LONGEST_PATTERN:,} are read")
    end, _ = _alternatives(pattern, 0, 0)
    if end < len(pattern):
        raise Refused(f"an unmatched ) at character {end}")
    try:
        finder = normalizers.Replace(Regex(pattern), "")
    except Exception as error:  # the library raises plain Exception
        raise Refused(str(error)) from None
    for probe in _probes(pattern):
        _measure(finder, *probe)


def _alternatives(text: str, at: int, depth: int) -> tuple[int, int]:
    """Reads up to the closing bracket or the end; in how many places of what was read a match has a choice."""
    if depth > 50:
        raise Refused("brackets nested more than 50 deep")
    branches = [0]
    while at < len(text) and text[at] != ")":
        if text[at] == "|":
            branches.append(0)
            at += 1
            continue
        at, inner = _atom(text, at, depth)
        at, low, high = _quantifier(text, at)
        if inner and high > 1:
            raise Refused(f"a repetition of what may match in several ways, before character {at}")
        branches[-1] += inner + (low != high)
        if branches[-1] > _MOST_CHOICES:
            raise Refused(f"more than {_MOST_CHOICES} choices in a row, before character {at}")
    return at, max(branches) + (len(branches) > 1)


def _atom(text: str, at: int, depth: int) -> tuple[int, int]:
    if text[at] == "\\":
        found = _ESCAPE.match(text, at)
        if found is None or text[at + 1] in "kgKGRX":
            raise Refused(f"a reference back or an unknown escape at character {at}")
        return found.end(), 0
    if text[at] == "[":
        return _class_end(text, at), 0
    if text[at] != "(":
        return at + 1, 0
    options = _OPTIONS.match(text, at + 1)
    if options is not None:
        return options.end(), 0
    start = _GROUP.match(text, at + 1)
    if start is None and text[at + 1 : at + 2] in ("?", "*"):
        raise Refused(f"an unknown kind of group at character {at}")
    end, choices = _alternatives(text, at + 1 if start is None else start.end(), depth + 1)
    if end >= len(text):
        raise Refused(f"a bracket that is never closed, at character {at}")
    return end + 1, choices


def _class_end(text: str, at: int) -> int:
    start, at, depth = at, at + 1, 1
    at += text.startswith("^", at)
    at += text.startswith("]", at)
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        depth += (text[at] == "[") - (text[at] == "]")
        at += 1
        if not depth:
            return at
    raise Refused(f"a character class that is never closed, at character {start}")


def _quantifier(text: str, at: int) -> tuple[int, int, float]:
    """The end of the quantifiers at `at`, and the least and most times they allow."""
    low, high = 1, 1.0
    while at < len(text):
        counted = _COUNTED.match(text, at)
        if text[at] in "*+?":
            one_low, one_high, after = {"*": (0, float("inf")), "+": (1, float("inf")), "?": (0, 1.0)}[
                text[at]
            ] + (at + 1,)
        elif counted is not None and counted.group() not in ("{}", "{,}"):
            one_low = int(counted[1] or 0)
            one_high = float(one_low) if counted[2] is None else float(counted[2] or "inf")
            after = counted.end()
            if one_low > _MOST_REPEATS or _MOST_REPEATS < one_high < float("inf"):
                raise Refused(f"more than {_MOST_REPEATS:,} repeats, at character {at}")
        else:
            break
        if (low, high) != (1, 1.0) and text[at] not in "?+":  # a ? or + after a quantifier: lazy, possessive
            raise Refused(f"a repetition of a repetition at character {at}")
        if (low, high) == (1, 1.0):
            low, high = one_low, one_high
        at = after
    return at, low, high


def _probes(pattern: str) -> list[tuple[str, str]]:
    """(what is repeated, what ends it): the usual characters and those of the pattern, alone and in pairs.

    Every character of the pattern stands at the end, or the engine would see at once that there is no match.
    """
    own = [c for c in dict.fromkeys(pattern) if c not in "\\[](){}|*+?^$." and c not in _COMMON]
    alone = [*_COMMON, *own[:12]]
    end = "\x01" + "".join(dict.fromkeys([*own, *pattern]))
    pairs = [a + b for a, b in combinations(alone[:6], 2)]
    return [*((c, "") for c in alone), *((c, end) for c in [*alone, *pairs])]


def _measure(finder: normalizers.Replace, repeated: str, end: str) -> None:
    for length in _LENGTHS:
        text = repeated * (length // len(repeated)) + end
        taken = _seconds(finder, text)
        if taken > _PATIENCE and (taken > 10 * _PATIENCE or _seconds(finder, text) > _PATIENCE):
            raise Refused(
                f"too slow: {length} characters of {repeated!r} keep it busy for more than {_PATIENCE} s"
            )


def _seconds(finder: normalizers.Replace, text: str) -> float:
    """Processor time of this thread, which other programs on the machine do not lengthen."""
    before = time.thread_time()
    try:
        finder.normalize_str(text)
    except BaseException as error:  # the engine gives up after some million steps, and panics
        if not panicked(error):
            raise
        return float("inf")
    return time.thread_time() - before
