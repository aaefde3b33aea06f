"""Loads the object code of a function into this process: the work of a linker, for x86-64 on Linux.

LLVM does the same, but its library takes 50 MB of memory, and fifty times as long to be loaded as
this code. Object code that this module does not understand is left to LLVM.
"""

import ctypes
import mmap
import platform
import sys
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

# The ELF format (System V ABI, and its supplement for x86-64).
MACHINE = 62  # x86-64
SYMBOLS, RELOCATIONS, ZEROS = 2, 4, 8  # kinds of sections
WRITABLE, LOADED = 1, 2  # flags of sections
UNDEFINED = 0  # the number of the section of a symbol that is elsewhere
ABSOLUTE_64, RELATIVE_64 = 1, 24  # kinds of relocations
RELATIVE_32 = (2, 4)


def _record(*fields: str) -> np.dtype[Any]:
    """A type of entries with fields, each written as name:format."""
    pairs = [field.partition(":") for field in fields]
    return np.dtype([(name, kind) for name, _, kind in pairs])


HEADER = _record(
    *("identity:S16", "type:u2", "machine:u2", "version:u4", "entry:u8", "segments:u8"),
    *("sections:u8", "flags:u4", "size:u2", "segment_size:u2", "segment_count:u2"),
    *("section_size:u2", "section_count:u2", "names:u2"),
)
SECTION = _record(
    *("name:u4", "kind:u4", "flags:u8", "address:u8", "offset:u8", "size:u8", "link:u4"),
    *("info:u4", "alignment:u8", "entry_size:u8"),
)
SYMBOL = _record("name:u4", "info:u1", "other:u1", "section:u2", "value:u8", "size:u8")
RELOCATION = _record("offset:u8", "kind:u4", "symbol:u4", "addend:i8")


class UnsupportedCode(Exception):
    """The object code has something that this module does not know."""


class LoadedCode(NamedTuple):
    """The address of a function, and what owns its memory."""

    address: int
    memory: Any


def load(content: bytes, name: str) -> LoadedCode | None:
    """Load object code with a function of that name; None if LLVM must do it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        return _Loader(content).load(name)
    except (UnsupportedCode, OSError):
        return None


class _Loader:
    def __init__(self, content: bytes) -> None:
        self.content = content
        header = np.frombuffer(content, HEADER, 1)[0]
        if header["identity"][:4] != b"\x7fELF" or header["machine"] != MACHINE:
            raise UnsupportedCode("not an object file for this processor")
        count = int(header["section_count"])
        self.sections = np.frombuffer(content, SECTION, count, int(header["sections"]))
        tables = [section for section in self.sections if section["kind"] == SYMBOLS]
        if len(tables) != 1:
            raise UnsupportedCode("not one table of symbols")
        self.symbols = self._entries(tables[0], SYMBOL)
        names = self.sections[tables[0]["link"]]
        self.names = content[int(names["offset"]) : int(names["offset"] + names["size"])]
        self.starts: dict[int, int] = {}  # of each loaded section in the memory

    def load(self, name: str) -> LoadedCode:
        """Copy the sections to memory, connect them, and make the memory executable."""
        memory = mmap.mmap(-1, self._place())
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        array = np.frombuffer(memory, np.uint8)
        for number, start in self.starts.items():
            section = self.sections[number]
            if section["kind"] != ZEROS:
                array[start : start + int(section["size"])] = self._entries(section, np.uint8)
        for section in self.sections[self.sections["kind"] == RELOCATIONS]:
            changed = int(section["info"])
            if changed in self.starts:
                entries = self._entries(section, RELOCATION)
                self._relocate(entries, array, self.starts[changed], base)
        libc = ctypes.CDLL(None, use_errno=True)
        allowed = mmap.PROT_READ | mmap.PROT_EXEC
        if libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(len(memory)), allowed):
            raise OSError(ctypes.get_errno(), "this system forbids to execute new code")
        for symbol in self.symbols:
            if self._name(symbol) == name and symbol["section"] != UNDEFINED:
                return LoadedCode(self._address(symbol, base), memory)
        raise UnsupportedCode(f"no function {name}")

    def _place(self) -> int:
        """Choose where the sections begin; the size of all."""
        end = 0
        for number, section in enumerate(self.sections):
            if not section["flags"] & LOADED or not section["size"]:
                continue
            if section["flags"] & WRITABLE:
                raise UnsupportedCode("variables")
            alignment = max(1, int(section["alignment"]))
            start = -(-end // alignment) * alignment
            self.starts[number] = start
            end = start + int(section["size"])
        return end

    def _relocate(self, entries: Array, array: Array, start: int, base: int) -> None:
        """Write the addresses of symbols, or their distances, where the code reads them."""
        kinds = entries["kind"]
        if unknown := {*kinds.tolist()} - {ABSOLUTE_64, RELATIVE_64, *RELATIVE_32}:
            raise UnsupportedCode(f"relocations {unknown}")
        addresses = np.zeros(len(self.symbols), np.int64)
        for number in {*entries["symbol"].tolist()}:
            addresses[number] = self._address(self.symbols[number], base)
        places = start + entries["offset"].astype(np.int64)
        values = addresses[entries["symbol"]] + entries["addend"]
        values -= np.where(kinds == ABSOLUTE_64, 0, base + places)
        is_short = np.isin(kinds, RELATIVE_32)
        if (values != values.astype(np.int32))[is_short].any():
            raise UnsupportedCode("a distance of more than 32 bits")
        written = values.view(np.uint8).reshape(-1, 8)
        for size, chosen in ((8, ~is_short), (4, is_short)):
            array[places[chosen, None] + np.arange(size)] = written[chosen, :size]

    def _address(self, symbol: Any, base: int) -> int:
        """The address of a symbol of the code, or of a function of this process."""
        number = int(symbol["section"])
        if number in self.starts:
            return base + self.starts[number] + int(symbol["value"])
        if number != UNDEFINED:
            raise UnsupportedCode(f"a symbol in section {number}")
        try:
            function = getattr(ctypes.pythonapi, self._name(symbol))
        except AttributeError:
            raise UnsupportedCode(f"no function {self._name(symbol)}") from None
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def _name(self, symbol: Any) -> str:
        start = int(symbol["name"])
        return self.names[start : self.names.index(b"\0", start)].decode()

    def _entries(self, section: Any, dtype: Any) -> Array:
        """The content of a section."""
        count = int(section["size"]) // np.dtype(dtype).itemsize
        return np.frombuffer(self.content, dtype, count, int(section["offset"]))
