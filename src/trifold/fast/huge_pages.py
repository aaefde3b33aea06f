"""Memory of weights, in huge pages.

A decoding step reads all weights once. Processors prefetch what is read in order, but not beyond
the end of a page, and look up the address of each page. With pages of 2 MB instead of 4 KB, a
thread of a virtual machine on Zen 4 reads up to 1.7 times as fast. The system also provides them
several times as fast, when they are written first.
"""

import ctypes
import mmap
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from math import prod

import numpy as np
import torch
from torch import Tensor

PAGE_BYTES = 2**21
ALIGNMENT = 64  # bytes: a cache line
REGION_BYTES = 2**26
PROVIDED_BYTES = 2**22  # at a time, between which `provide` can be stopped
MADV_HUGEPAGE = 14  # of Linux

_files_read: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()  # by `read_ahead`


class HugeMemory:
    """Memory for tensors, one after the other, which share huge pages where the system has such.

    Each tensor has a storage of its own, whose pages are freed with it. size: of all of them, if it
    is known.
    """

    def __init__(self, size: int = REGION_BYTES) -> None:
        self._size = size
        self._memory: mmap.mmap | None = None
        self._next = self._end = 0
        self._provider: _Provider | None = None

    def provide(self, size: int) -> None:
        """Let the system provide so many bytes of the memory on another thread, until something
        else is written to it.
        """
        self._begin(size)
        assert self._memory is not None
        self._provider = _Provider(self._memory, self._next, self._end)

    def stop_providing(self) -> None:
        """Let nothing but the tensors be written from now on. Several threads may call it."""
        if self._provider is not None:
            self._provider.stop()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor that is not initialized."""
        self.stop_providing()
        return self.reserve(shape, dtype)

    def reserve(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor that may be written after `stop_providing`."""
        count = prod(shape)
        if count == 0:
            return torch.empty(tuple(shape), dtype=dtype)
        size = -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        if self._memory is None or self._end - self._next < size:
            self._begin(max(size, self._size))
        assert self._memory is not None
        part = _part(self._memory, self._next, count * dtype.itemsize)
        self._next += size
        return part.view(dtype).view(tuple(shape))

    def _begin(self, size: int) -> None:
        """Another region of memory."""
        self._memory = _map(size + PAGE_BYTES)
        self._next = -_address(self._memory) % PAGE_BYTES
        self._end = self._next + size


class _Provider:
    """A thread that writes to memory first. It can be stopped."""

    def __init__(self, memory: mmap.mmap, start: int, end: int) -> None:
        self._is_stopped = threading.Event()
        arguments = (memory, range(start, end, PROVIDED_BYTES), end)
        self._thread = threading.Thread(
            target=self._write, args=arguments, name="pages", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Return when nothing is written any more."""
        self._is_stopped.set()
        self._thread.join()

    def _write(self, memory: mmap.mmap, starts: Sequence[int], end: int) -> None:
        # Unlike advice to the system, this does not keep other threads from mapping memory. The
        # system provides a whole page when one byte of it is written.
        pages = np.frombuffer(memory, np.uint8)
        for start in starts:
            if self._is_stopped.is_set():
                return
            pages[start : min(start + PROVIDED_BYTES, end) : mmap.PAGESIZE] = 0


def _map(size: int) -> mmap.mmap:
    """Memory of zeros that has no pages yet."""
    if not sys.platform.startswith("linux"):
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _advise(memory, 0, size, MADV_HUGEPAGE)
    return memory


def _advise(memory: mmap.mmap, start: int, size: int, advice: int) -> None:
    """Advise the system about memory; a failure is no error, because nothing depends on it."""
    _madvise()(_address(memory) + start, size, advice)


@cache
def _madvise() -> Callable[[int, int, int], int]:
    """libc's own function, without a package and without Python's lock."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise


def read_ahead(memory: mmap.mmap) -> None:
    """Read a file that is mapped, on another thread, and map its pages."""
    _files_read.add(memory)
    if sys.platform.startswith("linux"):
        threading.Thread(target=_read_pages, args=(memory,), name="pages", daemon=True).start()


def _read_pages(memory: mmap.mmap) -> None:
    # Unlike advice to the system, this does not keep other threads from mapping memory.
    np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE].max()


def release_file(memory: mmap.mmap) -> None:
    """Let a file that is mapped take no memory until it is read again; on another thread, because
    this takes milliseconds.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        arguments = memory, 0, len(memory), mmap.MADV_DONTNEED
        threading.Thread(target=_advise, args=arguments, name="pages", daemon=True).start()


def release_parts(tensors: Sequence[Tensor]) -> None:
    """Let tensors in the memory of files that `read_ahead` read take no memory until they are read
    again; on another thread. Nothing may have been written to them. Tensors in other memory stay.
    """
    parts = []
    for memory in list(_files_read):
        firsts = [tensor.data_ptr() - _address(memory) for tensor in tensors]
        parts += [
            (memory, first, first + tensor.nbytes)
            for first, tensor in zip(firsts, tensors, strict=True)
            if 0 <= first < len(memory)
        ]
    if parts:
        threading.Thread(target=_release_parts, args=(parts,), name="pages", daemon=True).start()


def _release_parts(parts: Sequence[tuple[mmap.mmap, int, int]]) -> None:
    for part in parts:
        release_pages(*part)


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _part(memory: mmap.mmap, start: int, size: int) -> Tensor:
    view = memoryview(memory)[start : start + size]  # which lives as long as the tensor
    weakref.finalize(view, release_pages, memory, start, start + size).atexit = False
    return torch.frombuffer(view, dtype=torch.uint8)


def release_pages(memory: mmap.mmap, start: int, end: int) -> None:
    """Free the pages between two positions that have nothing else on them."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        _advise(memory, first, last - first, mmap.MADV_DONTNEED)
