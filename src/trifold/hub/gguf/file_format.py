"""Read the metadata and the table of tensors of a GGUF file. The file may come from others.

A file is a header, pairs of keys and values, the table of tensors, and the data. All of it is
mapped into memory. Every length, count and position is checked against the size of the file before
it is used, so that nothing outside of the file is read, and little more memory is taken than the
file has bytes.
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from trifold.errors import CheckpointError
from trifold.folders import UntrustedPath, open_file
from trifold.hub.gguf.blocks import READ, TYPES, UNREAD, BlockType
from trifold.hub.gguf.strings import FileStrings, find_strings
from trifold.hub.tensors import list_problems

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # of the same layout
ALIGNMENT = 32  # bytes, if a file does not name it
MAX_KEYS = 2**16  # files in use have fewer than 100
MAX_TENSORS = 2**17  # the largest files in use have about 2,000
MAX_STRING = 2**26  # bytes
MAX_STRINGS = 2**22  # of an array
MAX_KEY = 2**16 - 1  # bytes, as in the specification
MAX_NAME = 63  # bytes of the name of a tensor
MAX_AXES = 4
MANY_STRINGS = 2**10  # of an array; more are decoded when they are read
_COPY = "copy the file again"

Value: TypeAlias = bool | int | float | str | list[str] | np.ndarray[Any, Any]
ReadValue: TypeAlias = Value | FileStrings

# Number of a type of values -> its NumPy type. 8 is a string, and 9 an array.
_NUMBERS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4"},
    **{7: "?", 10: "<u8", 11: "<i8", 12: "<f8"},
}
_FLOAT32, _BOOL, _STRING, _ARRAY = 6, 7, 8, 9


class _Listed(NamedTuple):
    """An entry as it is in the file: the number of the type, the shape, and the position from the
    first tensor.
    """

    kind: int
    shape: tuple[int, ...]
    offset: int


class TensorEntry(NamedTuple):
    """An entry of the table: the shape in PyTorch's order, and the position in the file."""

    kind: BlockType
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass
class GGUFFile:
    """A file that is mapped into memory: metadata by key, and entries of tensors by name."""

    path: UntrustedPath
    memory: mmap.mmap
    metadata: Mapping[str, ReadValue]
    tensors: Mapping[str, TensorEntry]

    def map_again(self) -> None:
        """Leave the memory to the tensors that share it, which may be changed there. Raises
        CheckpointError if the file has another size now.
        """
        memory = _map(self.path)
        if len(memory) != len(self.memory):
            raise CheckpointError(
                f"{self.path}: was replaced while it was read; repeat the command"
            )
        self.memory = memory


def read_file(path: UntrustedPath) -> GGUFFile:
    """The metadata and the table of tensors of a file.

    Raises CheckpointError, which names the place in the file, if it is not a GGUF file or damaged,
    and if a tensor is of a type that is not read.
    """
    reader = _Reader(path, _map(path))
    tensors, pairs = reader.header()
    metadata = reader.metadata(pairs)
    return GGUFFile(path, reader.memory, metadata, reader.table(tensors, metadata))


def is_gguf(path: UntrustedPath) -> bool:
    """Whether a file begins as a GGUF file. Raises CheckpointError for what `open_file` refuses."""
    with open_file(path) as file:
        return file.read(len(MAGIC)) == MAGIC


def _map(path: UntrustedPath) -> mmap.mmap:
    """The file in memory."""
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise CheckpointError(f"{path}: an empty file; {_COPY}")
            # Copy-on-write, so that PyTorch takes it.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; copy all parts of the model") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None


class _Reader:
    """Reads values one after the other. Each method checks that what it reads is in the file."""

    def __init__(self, path: UntrustedPath, memory: mmap.mmap) -> None:
        self.path = path
        self.memory = memory
        self.size = len(memory)
        self.at = 0

    def error(self, what: str, remedy: str = _COPY) -> CheckpointError:
        """The error at the current position."""
        return CheckpointError(f"{self.path}: byte {self.at:,}: {what}; {remedy}")

    # --- values -----------------------------------------------------------------------------------

    def take(self, count: int, what: str) -> bytes:
        """The next bytes; `what` names them in the error if the file has fewer."""
        if count > self.size - self.at:
            left = self.size - self.at
            raise self.error(f"{what} has {count:,} bytes, but {left:,} follow")
        self.at += count
        return self.memory[self.at - count : self.at]

    def number(self, form: str, what: str) -> int:
        """The next integer; form: as in `struct`."""
        size = struct.calcsize(form)
        return int(struct.unpack(form, self.take(size, what))[0])

    def string(self, what: str, limit: int = MAX_STRING) -> str:
        """The next string, which is its length and UTF-8."""
        length = self.number("<Q", f"the length of {what}")
        if length > limit:
            raise self.error(f"{what} has {length:,} bytes; at most {limit:,} are read")
        return self._decode(self.take(length, what), what)

    def _decode(self, content: bytes, what: str) -> str:
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{what} is not UTF-8") from None

    def value(self, key: str) -> ReadValue:
        """The next value: its type and content."""
        what = f"the value of {key!r:.60}"
        kind = self.number("<I", f"the type of {key!r:.60}")
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _NUMBERS:
            raise self.error(f"{what} is of the unknown type {kind}")
        number = self._numbers(kind, 1, what)[0]
        if kind == _FLOAT32:
            return float(str(number))  # 1e-05 instead of 9.99999974737875e-06
        value: bool | int | float = number.item()
        return value

    def _array(self, key: str) -> ReadValue:
        """The next array: the type and number of its elements, and these."""
        what = f"the array of {key!r:.60}"
        kind = self.number("<I", what)
        count = self.number("<Q", what)
        if kind == _STRING:
            return self._strings(count, what)
        if kind not in _NUMBERS:
            nested = "arrays in an array" if kind == _ARRAY else f"elements of unknown type {kind}"
            raise self.error(f"{what} has {nested}")
        return self._numbers(kind, count, what)

    def _numbers(self, kind: int, count: int, what: str) -> np.ndarray[Any, Any]:
        dtype = np.dtype(_NUMBERS[kind])
        content = self.take(count * dtype.itemsize, what)
        if kind == _BOOL and content.strip(b"\0\1"):
            raise self.error(f"{what} has a byte that is no boolean, 0 or 1")
        return np.frombuffer(content, dtype)

    def _strings(self, count: int, what: str) -> list[str] | FileStrings:
        if count > MAX_STRINGS or count * 8 > self.size - self.at:
            left = self.size - self.at
            raise self.error(f"{what} claims {count:,} strings, but {left:,} bytes follow")
        if count >= MANY_STRINGS:
            not_text = partial(self.error, f"a string of {what} is not UTF-8")
            found = find_strings(self.memory, self.at, count, not_text)
            if found is not None:
                self.at += found.size
                return found
        # Hundreds of thousands: this loop avoids calls.
        memory = self.memory
        length_at = struct.Struct("<Q").unpack_from
        at = self.at
        last = self.size - 8
        strings: list[bytes] = []
        for _ in range(count):
            if at > last:
                break
            end = at + 8 + length_at(memory, at)[0]
            if end > self.size:
                break
            strings.append(memory[at + 8 : end])
            at = end
        if len(strings) < count:
            self.at = at
            raise self.error(f"string {len(strings):,} of {what} ends after the file")
        self.at = at
        return [self._decode(string, what) for string in strings]

    # --- parts of the file ------------------------------------------------------------------------

    def header(self) -> tuple[int, int]:
        """The number of tensors, and that of keys."""
        if self.memory[:4] != MAGIC:
            raise CheckpointError(
                f"{self.path}: not a GGUF file; give one, or the folder of a model"
            )
        self.at = 4
        version = self.number("<I", "the version")
        if version not in VERSIONS:
            raise CheckpointError(f"{self.path}: {_unread_version(version)}")
        tensors = self.number("<Q", "the number of tensors")
        keys = self.number("<Q", "the number of keys")
        for count, most, what in ((tensors, MAX_TENSORS, "tensors"), (keys, MAX_KEYS, "keys")):
            if count > most:
                raise self.error(f"claims {count:,} {what}; at most {most:,} are read")
        return tensors, keys

    def metadata(self, count: int) -> dict[str, ReadValue]:
        """The next pairs of keys and values."""
        found: dict[str, ReadValue] = {}
        for number in range(count):
            key = self.string(f"key {number}", MAX_KEY)
            if not key or key in found:
                raise self.error(f"key {number} is empty or occurs twice: {key!r:.60}")
            found[key] = self.value(key)
        return found

    def table(self, count: int, metadata: Mapping[str, ReadValue]) -> dict[str, TensorEntry]:
        """The entries of tensors, which follow the metadata."""
        alignment = metadata.get("general.alignment", ALIGNMENT)
        is_valid = type(alignment) is int and alignment > 0 and alignment & (alignment - 1) == 0
        if not is_valid or not isinstance(alignment, int) or alignment > 2**20:
            raise self.error(f"general.alignment: {alignment!r:.60} is not a power of two")
        entries: dict[str, _Listed] = {}
        for number in range(count):
            name = self.string(f"the name of tensor {number}", MAX_NAME)
            if not name or name in entries:
                raise self.error(f"the name of tensor {number} is empty or occurs twice: {name!r}")
            entries[name] = self._entry(name)
        if unread := [*_unread_types(entries)]:
            remedy = f"types that are read: {READ}; use the same model in one of them"
            raise list_problems(
                f"{self.path}: tensors of types that are not read; {remedy}", unread
            )
        first = self.at + -self.at % alignment
        return self._places(entries, first, alignment)

    def _entry(self, name: str) -> _Listed:
        """The next entry of the table."""
        what = f"tensor {name!r}"
        axes = self.number("<I", what)
        if not 1 <= axes <= MAX_AXES:
            raise self.error(f"{what} has {axes:,} axes; 1 to {MAX_AXES} are read")
        shape = tuple(self.number("<Q", what) for _ in range(axes))[::-1]
        kind = self.number("<I", what)
        offset = self.number("<Q", what)
        if 0 in shape or math.prod(shape) >= 2**63:
            raise self.error(f"{what} has the shape {shape}, which no tensor has")
        return _Listed(kind, shape, offset)

    def _places(
        self, entries: Mapping[str, _Listed], first: int, alignment: int
    ) -> dict[str, TensorEntry]:
        """The entries with their positions: tensors follow each other in the order of the table,
        each at the next multiple of the alignment.
        """
        found: dict[str, TensorEntry] = {}
        expected = 0
        for name, (number, shape, offset) in entries.items():
            kind = TYPES[number]
            what = f"{self.path}: tensor {name!r}"
            if shape[-1] % kind.length:
                raise CheckpointError(
                    f"{what}: rows of {shape[-1]:,} values are not whole blocks of {kind.name}, "
                    f"which have {kind.length}; {_COPY}"
                )
            size = math.prod(shape) // kind.length * kind.bytes
            if offset != expected:
                raise CheckpointError(
                    f"{what}: is at byte {offset:,} of the data instead of {expected:,}; {_COPY}"
                )
            start = first + offset
            if start + size > self.size:
                raise CheckpointError(
                    f"{what}: ends at byte {start + size:,} of a file of {self.size:,}; {_COPY}"
                )
            found[name] = TensorEntry(kind, shape, start, start + size)
            expected = offset + size + -size % alignment
        return found


def _unread_version(version: int) -> str:
    """Why a version is not read."""
    if version & 0xFFFF == 0:
        return "a GGUF file in big-endian order is not read; convert it with llama.cpp"
    if version == 1:
        return "GGUF version 1 is not read; convert the model with a newer llama.cpp"
    return f"GGUF version {version} is not known; known: 2 and 3"


def _unread_types(entries: Mapping[str, _Listed]) -> Iterator[str]:
    """A line for each type that is not read, with its first tensor."""
    seen = set(TYPES)
    for name, (number, _, _) in entries.items():
        if number not in seen:
            seen.add(number)
            yield f"{UNREAD.get(number, f'type {number}')}, such as {name!r}"
