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

    content: the strings, each after its length. sizes: (N,) uint8, their bytes. not_text: makes the
    error of strings that are not UTF-8.
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
        starts: Array = np.zeros(len(self._sizes) + 1, np.int64)
        np.cumsum(self._sizes + np.uint16(LENGTH), out=starts[1:])
        return starts[:-1]

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
    sizes: list[Array] = []
    found = end = 0
    for start in range(0, len(window), _CHUNK):
        places = start + _places_before_zeros(window[start : start + _CHUNK + _ZEROS])
        places = places[: count - found]
        own = window[places]
        following = places + LENGTH + own
        if len(places) == 0 or places[0] != end or (following[:-1] != places[1:]).any():
            return None
        sizes.append(own)
        found += len(places)
        end = int(following[-1])
        if found == count:
            break
    if found < count or end > len(window):
        return None
    if np.count_nonzero(window[:end]) != end - _ZEROS * count:
        return None
    return FileStrings(memory[first : first + end], np.concatenate(sizes), not_text)


def _places_before_zeros(window: Array) -> Array:
    """Where bytes other than 0 are before seven zeros."""
    zeros = window == 0
    pairs = zeros[:-1] & zeros[1:]
    fours = pairs[:-2] & pairs[2:]
    sevens = fours[:-3] & fours[3:]
    places: Array = np.flatnonzero(sevens[1:] & ~zeros[:-_ZEROS])
    return places
