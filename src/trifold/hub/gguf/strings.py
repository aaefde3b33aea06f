"""Long arrays of strings in GGUF files, such as vocabularies: found by their lengths, and decoded
when they are read.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.errors import CheckpointError

Array = NDArray[Any]
LENGTH = 8  # bytes of the length before each string
_ZEROS = LENGTH - 1  # of them, of a string of 1 to 255 bytes
_CHUNK = 2**16  # bytes that are searched at a time: they stay in a cache


class FileStrings:
    """Strings of 1 to 255 bytes without NUL.

    content: the strings, each after its length. sizes: (N,) their bytes. not_text: makes the error
    of strings that are not UTF-8.
    """

    def __init__(
        self, content: bytes, sizes: Array, not_text: Callable[[], CheckpointError]
    ) -> None:
        self._content = content
        self._sizes = sizes
        self._not_text = not_text

    def __len__(self) -> int:
        return len(self._sizes)

    @cached_property
    def _lengths(self) -> Array:
        """The position of each length, from that of the first."""
        ends = np.cumsum(self._sizes + LENGTH)
        starts: Array = ends - (self._sizes + LENGTH)
        return starts

    @property
    def size(self) -> int:
        """The bytes of all, with their lengths."""
        return len(self._content)

    @cached_property
    def texts(self) -> list[str]:
        """All strings. Raises CheckpointError if one is not UTF-8."""
        content = bytearray(self._content)
        np.frombuffer(content, np.uint8)[self._lengths] = 0
        try:
            return content.decode("utf-8").split("\0" * LENGTH)[1:]
        except UnicodeDecodeError:
            raise self._not_text() from None

    def places(self, text: str) -> list[int]:
        """The numbers of the strings that equal the text."""
        expected = text.encode("utf-8")
        content = np.frombuffer(self._content, np.uint8)
        numbers = np.flatnonzero(self._sizes == len(expected))
        starts = self._lengths[numbers] + LENGTH
        for position, byte in enumerate(expected):
            is_equal = content[starts + position] == byte
            numbers = numbers[is_equal]
            starts = starts[is_equal]
        found: list[int] = numbers.tolist()
        return found


def find_strings(
    memory: mmap.mmap, first: int, count: int, not_text: Callable[[], CheckpointError]
) -> FileStrings | None:
    """So many strings from a position on; None if some are empty, longer, or have a NUL.

    Then seven zeros follow the first byte of each length, and there are no others.
    """
    window = np.frombuffer(memory, np.uint8, offset=first)
    lengths = _places_before_zeros(window, count)
    if len(lengths) < count or lengths[0] != 0:
        return None
    sizes = window[lengths].astype(np.int64)
    ends = lengths + LENGTH + sizes
    end = int(ends[-1])
    if (ends[:-1] != lengths[1:]).any() or end > len(window):
        return None
    if np.count_nonzero(window[:end]) != end - _ZEROS * count:
        return None
    return FileStrings(memory[first : first + end], sizes, not_text)


def _places_before_zeros(window: Array, count: int) -> Array:
    """The first places, at most so many, of bytes other than 0 before seven zeros."""
    found: list[Array] = []
    total = 0
    for start in range(0, len(window), _CHUNK):
        zeros = window[start : start + _CHUNK + _ZEROS] == 0
        pairs = zeros[:-1] & zeros[1:]
        fours = pairs[:-2] & pairs[2:]
        sevens = fours[:-3] & fours[3:]
        places = np.flatnonzero(sevens[1:] & ~zeros[:-_ZEROS])
        found.append(places + start)
        total += len(places)
        if total >= count:
            break
    return np.concatenate(found)[:count] if found else np.zeros(0, np.int64)
