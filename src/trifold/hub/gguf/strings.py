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
_USUAL = 24  # bytes of a string and its length, or fewer


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

    Then the zeros in their bytes are seven for each length, after its first byte.
    """
    window: Array = np.zeros(0, np.uint8)
    zeros: Array = window
    size = _USUAL * count
    while len(zeros) <= _ZEROS * count and len(window) < len(memory) - first:
        window = np.frombuffer(memory, np.uint8, min(size, len(memory) - first), first)
        zeros = np.flatnonzero(window == 0)
        size *= 2
    after = zeros[_ZEROS * count : _ZEROS * count + 1]
    zeros = zeros[: _ZEROS * count]
    lengths = zeros[::_ZEROS] - 1
    if len(zeros) < _ZEROS * count or lengths[0] != 0:
        return None
    sizes = window[lengths].astype(np.int64)
    ends = lengths + LENGTH + sizes
    are_lengths = zeros[_ZEROS - 1 :: _ZEROS] == lengths + _ZEROS
    if not are_lengths.all() or (ends[:-1] != lengths[1:]).any():
        return None
    if ends[-1] > len(window) or (after < ends[-1]).any():
        return None
    return FileStrings(memory[first : first + int(ends[-1])], sizes, not_text)
