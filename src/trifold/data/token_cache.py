"""Token caches: a tokenized corpus of any size on disk, built once and memory-mapped afterwards.

A cache is a folder. Its name ends in a hash of everything that determines its content: the source
files, the settings of reading, the tokenizer.

    ids.bin         the tokens of all documents concatenated, uint16 or uint32
    starts.bin      the offset of each document and the total number of tokens, int64
    manifest.json   sizes, counts, SHA-256 of every part, and a description of the source files

A source file is recognized by its size and by blocks spread over it. If its modification time has
changed, it is read whole. So a change in place is detected, unless size and time are restored as
well.
"""

import hashlib
import json
import mmap
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import DTypeLike, NDArray

from trifold import disk
from trifold.data import token_build
from trifold.data.corpus import PART_BYTES, Corpus, group_parts, survey
from trifold.data.files import safe_file_name
from trifold.data.lines import expand_path
from trifold.data.reports import DocumentReport
from trifold.data.settings import DataSettings
from trifold.data.token_build import IDS, MANIFEST, STARTS, Encoder, Side
from trifold.disk import sha256_of_file
from trifold.errors import DataError
from trifold.folders import named, open_found
from trifold.jsonfiles import read_json_or_none

_MAX_RESIDENT_BYTES = 64 << 20
_READAHEAD_BYTES = 2 << 20  # upper bound of what the system maps around one access
_MAX_RUNS = _MAX_RESIDENT_BYTES // _READAHEAD_BYTES


class MappedArray:
    """A one-dimensional array in a memory-mapped file; indexing returns copies.

    Pages that were read count as memory of the process until the system needs them, which looks
    like a leak in a container with a memory limit. They are released after every 64 MB; reading
    them again is cheap. An index array is split into runs of nearby positions, because each run
    maps other pages.
    """

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        with open_found(path, DataError) as file:
            self._file = np.memmap(file, dtype, mode="r")
        self._array: NDArray[Any] = self._file.view(np.ndarray)  # indexing it is faster
        self._touched = 0

    def __len__(self) -> int:
        return len(self._array)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._array.dtype

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, np.ndarray):
            values = self._array[key]
            if isinstance(key, slice):
                values = values.copy()  # a view would read the pages again after their release
            return self._touch(values, runs=1)
        gaps = np.abs(np.diff(key)) * self.dtype.itemsize
        distant = np.flatnonzero(gaps > _READAHEAD_BYTES // 32) + 1
        if len(distant) < _MAX_RUNS:
            return self._touch(self._array[key], len(distant) + 1)
        parts = np.split(key, distant[_MAX_RUNS - 1 :: _MAX_RUNS])
        return np.concatenate([self._touch(self._array[part], _MAX_RUNS) for part in parts])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """The whole array, still memory-mapped."""
        return np.array(self._array, dtype=dtype, copy=copy)

    def release(self) -> None:
        """Release the memory of pages that were read, if the system supports it."""
        self._touched = 0
        if hasattr(mmap, "MADV_DONTNEED") and isinstance(self._file.base, mmap.mmap):
            self._file.base.madvise(mmap.MADV_DONTNEED)

    def _touch(self, values: Any, runs: int) -> Any:
        """Count the bytes that an access has mapped; release all pages above the limit."""
        self._touched += values.nbytes + runs * _READAHEAD_BYTES
        if self._touched > _MAX_RESIDENT_BYTES:
            self.release()
        return values


@dataclass(frozen=True)
class TokenCache:
    """A tokenized corpus: ids (tokens,), starts (documents + 1,).

    bytes: size of the text in UTF-8. empty: number of documents without tokens, which are left out.
    """

    folder: Path
    ids: MappedArray
    starts: MappedArray
    bytes: int
    empty: int
    report: DocumentReport

    def __len__(self) -> int:
        """The number of documents."""
        return len(self.starts) - 1

    def document(self, number: int) -> NDArray[np.integer]:
        """The tokens of a document."""
        start, stop = self.starts[number : number + 2]
        return np.asarray(self.ids[start:stop])

    def verify(self) -> None:
        """Compare all files with their digests. Raises DataError if they differ."""
        manifest = read_json_or_none(named(self.folder / MANIFEST))
        ids = np.asarray(self.ids)
        start = 0
        for shard in manifest["shards"]:
            stop = start + shard["tokens"]
            if hashlib.sha256(ids[start:stop].data).hexdigest() != shard["sha256"]:
                raise _damaged(
                    self.folder / IDS, f"tokens {start:,} to {stop:,} are not what was written"
                )
            self.ids.release()
            start = stop
        if sha256_of_file(self.folder / STARTS) != manifest["starts_sha256"]:
            raise _damaged(self.folder / STARTS, "the content is not what was written")


def open_tokens(
    source: str | list[str],
    settings: DataSettings,
    encoder: Encoder,
    *,
    side: Side = "all",
    seed: int = 0,
    report: Callable[[str], None] = lambda line: None,
    workers: int | None = None,
    part_bytes: int = PART_BYTES,
) -> TokenCache:
    """Open the cache of a source in the folder `settings.cache`; build it if it does not exist.

    With `settings.holdout`, a share, documents are split at random into the sides "train" and
    "valid". Of several processes that need the same cache, one builds it and the others wait.
    Raises DataError if the text cannot be read, the cache is damaged, or the disk fails;
    SettingsError if the settings cannot be used with a cache.
    """
    assert settings.cache is not None
    share = token_build.share_of_split(settings, side)
    corpus = survey(source, settings)
    key = _cache_key(corpus, settings, encoder, [side, share, seed] if share else None)
    parent = expand_path(settings.cache)
    folder = parent / f"{safe_file_name(corpus.report.name)}-{key[:16]}"
    try:
        disk.make_folder(parent)
        if cache := _open_cache(folder, key, corpus):
            return cache
        with _exclusive_lock(parent / f".{folder.name}.lock", report):
            cache = _open_cache(folder, key, corpus)  # another process may have built it meanwhile
            if cache is None:
                partial = parent / f".{folder.name}.partial"
                job = token_build.BuildJob(corpus, settings, encoder, side, seed, key)
                token_build.build(job, partial, report, workers, part_bytes)
                disk.remove(folder)  # it belongs to files that have changed
                disk.rename(partial, folder)
                disk.flush_folder(parent)
                cache = _open_cache(folder, key, corpus)
    except OSError as error:
        raise DataError(
            f"{parent}: the cache cannot be written ({error.strerror or error}); choose another "
            "data.cache"
        ) from None
    assert cache is not None
    return cache


def sample_documents(
    source: str | list[str],
    settings: DataSettings,
    characters: int,
    *,
    side: Side = "all",
    seed: int = 0,
    part_bytes: int = PART_BYTES,
) -> list[str]:
    """Documents of about `characters` in total, from the start of every part of a source, of one
    side of its split.

    Raises the errors of `open_tokens` for sources.
    """
    groups = group_parts(survey(source, settings), settings, part_bytes)
    texts: list[str] = []
    for parts in groups:
        remaining = characters // len(groups)
        for text in token_build.iter_side(parts, settings, side, seed, DocumentReport("")):
            texts.append(text)
            remaining -= len(text)
            if remaining <= 0:
                break
    return texts


def digests_in_caches(folder: str) -> dict[tuple[str, int, int], str]:
    """The SHA-256 of source files by (file, size, mtime_ns), as recorded in the caches of a
    folder.
    """
    known: dict[tuple[str, int, int], str] = {}
    for manifest in named(expand_path(folder)).glob(f"*/{MANIFEST}"):
        with suppress(KeyError, TypeError):
            for file in read_json_or_none(manifest)["sources"]:
                known[file["file"], file["size"], file["mtime_ns"]] = file["sha256"]
    return known


def _open_cache(folder: Path, key: str, corpus: Corpus) -> TokenCache | None:
    """The cache in a folder; None if there is none or the source has changed. Raises DataError if
    it is damaged.
    """
    path = folder / MANIFEST
    if not folder.exists():
        return None
    manifest = read_json_or_none(named(path))
    try:
        if manifest["format"] != token_build.FORMAT or manifest["key"] != key:
            raise KeyError("key")
        itemsize = np.dtype(manifest["dtype"]).itemsize
        sizes = {IDS: itemsize * manifest["tokens"], STARTS: 8 * (manifest["documents"] + 1)}
        sources = [(file["size"], file["mtime_ns"], file["sha256"]) for file in manifest["sources"]]
        notes = [*corpus.report.notes]
        report = DocumentReport(manifest["name"], **manifest["report"], notes=notes)
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, "it is not the manifest of this cache") from None
    for name, expected in sizes.items():
        file = folder / name
        size = file.stat().st_size if file.is_file() else 0
        if size != expected:
            raise _damaged(file, f"{size:,} bytes, expected {expected:,}")
    if not _is_same_text(path, manifest, sources, corpus):
        return None
    ids = MappedArray(folder / IDS, manifest["dtype"])
    starts = MappedArray(folder / STARTS, "<i8")
    if starts[0] != 0 or starts[len(starts) - 1] != len(ids):
        raise _damaged(folder / STARTS, "it does not match the tokens")
    return TokenCache(folder, ids, starts, manifest["bytes"], manifest["empty"], report)


def _is_same_text(
    path: Path, manifest: dict[str, Any], sources: list[tuple[int, int, str]], corpus: Corpus
) -> bool:
    """Whether the source files are unchanged. If a modification time differs, all files are read to
    find out.
    """
    pairs = list(zip(corpus.files, sources, strict=True))
    if all((file.size, file.mtime_ns) == (size, time) for file, (size, time, _) in pairs):
        return True
    if any(sha256_of_file(expand_path(file.file)) != digest for file, (_, _, digest) in pairs):
        return False
    manifest["sources"] = [{**file._asdict(), "sha256": digest} for file, (_, _, digest) in pairs]
    with suppress(OSError):  # the files of a read-only cache are compared each time
        token_build.write_json(path, manifest)
    return True


def _cache_key(
    corpus: Corpus, settings: DataSettings, encoder: Encoder, split: list[Any] | None
) -> str:
    reading = [settings.documents, settings.field, settings.blank, settings.max_line_bytes]
    files = [[file.kind, file.size, file.sample] for file in corpus.files]
    values = [token_build.FORMAT, files, reading, split, encoder.key, encoder.vocab_size]
    return hashlib.sha256(json.dumps(values).encode("utf-8")).hexdigest()


def _exclusive_lock(path: Path, report: Callable[[str], None]) -> AbstractContextManager[Any]:
    """A lock that the system releases when the process ends."""
    lock = FileLock(path)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        name = path.name.strip(".").removesuffix(".lock")
        report(f"tokens: another process is building {name}; waiting for it")
        return lock.acquire()
    except NotImplementedError:
        raise DataError(
            f"{path.parent}: this file system does not support locks; choose a data.cache on a "
            "local disk"
        ) from None


def _damaged(path: Path, what: str) -> DataError:
    return DataError(
        f"{path}: {what}; the cache is damaged: remove its folder, and it will be built again"
    )
