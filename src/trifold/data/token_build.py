"""Tokenize a corpus into a folder, in groups of parts that are processed in parallel.

    00000.ids  00000.lengths  00000.json    one group; the JSON file is written last and marks it as
               complete
    ids.bin  starts.bin  manifest.json      all groups concatenated

An interrupted build continues with the groups that are complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trifold import disk
from trifold.data.corpus import Corpus, group_parts, iter_parts
from trifold.data.documents import FilePart, filter_documents
from trifold.data.lines import expand_path
from trifold.data.reports import DocumentReport
from trifold.data.settings import DataSettings
from trifold.data.threads import ShouldStop, Stopped, run_in_threads
from trifold.errors import DataError, SettingsError
from trifold.folders import named, open_found
from trifold.jsonfiles import read_json_or_none

MANIFEST = "manifest.json"
FORMAT = "trifold-tokens-1"
IDS = "ids.bin"
STARTS = "starts.bin"

_BATCH_CHARACTERS = 1 << 20  # of text tokenized in one call
_BATCH_TEXTS = 10_000
_READ_BYTES = 1 << 22
_REPORT_SECONDS = 30.0

Side = Literal["all", "train", "valid"]


class Encoder(NamedTuple):
    """Encodes texts as (ids of all texts concatenated, tokens per text, bytes of UTF-8 text).

    key: identifies everything that determines the ids, such as the tokenizer's fingerprint.
    vocab_size: bound of ids.
    """

    encode: Callable[[Sequence[str]], tuple[NDArray[np.integer], NDArray[np.int64], int]]
    key: str
    vocab_size: int

    @property
    def dtype(self) -> str:
        """The smallest little-endian type that holds every id."""
        return "<u2" if self.vocab_size <= 1 << 16 else "<u4"


def share_of_split(settings: DataSettings, side: Side) -> float:
    """The share of validation documents; 0 without a split. Raises SettingsError for a number or a
    fold.
    """
    if side == "all" or not settings.holdout:
        return 0.0
    if isinstance(settings.holdout, float):
        return settings.holdout
    raise SettingsError(
        f"data.holdout: a number of documents ({settings.holdout}) cannot be held out of a "
        "cache; give a share, such as 0.001"
    )


def iter_side(
    parts: Iterable[FilePart], settings: DataSettings, side: Side, seed: int, report: DocumentReport
) -> Iterator[str]:
    """The texts of a side that the settings keep; all documents of the side are counted in
    `report`.

    The split is random and depends on the text, so equal documents are on one side.
    """
    share = share_of_split(settings, side)
    key = (seed % 2**64).to_bytes(8, "little")

    def is_included(text: str) -> bool:
        digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8, key=key).digest()
        is_valid = int.from_bytes(digest, "little") < int(share * 2**64)
        return is_valid == (side == "valid")

    texts = iter_parts(parts, settings)
    if share:
        texts = filter(is_included, texts)
    return filter_documents(texts, settings, report)


class BuildJob(NamedTuple):
    """Everything that determines a cache; `key` is the hash in the name of its folder."""

    corpus: Corpus
    settings: DataSettings
    encoder: Encoder
    side: Side
    seed: int
    key: str


def build(
    job: BuildJob, folder: Path, report: Callable[[str], None], workers: int | None, part_bytes: int
) -> None:
    """Write the cache to `folder`, which may hold the complete groups of an interrupted build.

    The result depends on the job only, not on the number of workers or interruptions. Raises
    DataError if the text cannot be read, if a file changes meanwhile, or if the disk fails.
    """
    try:
        groups = group_parts(job.corpus, job.settings, part_bytes)
        _prepare_folder(folder, job, groups)
        if not (folder / MANIFEST).is_file():
            records, digests = _build_groups(job, groups, folder, report, workers or _count_cores())
            if changed := [file.file for file in job.corpus.files if not file.is_unchanged()]:
                raise DataError(f"{changed[0]}: the file changed while it was read; start again")
            write_json(folder / MANIFEST, _concatenate(job, records, digests, folder))
        files = [file for number in range(len(groups)) for file in _group_files(folder, number)]
        for file in (*files, *disk.leftovers(folder)):
            disk.remove(file)
    except OSError as error:  # while writing: errors of reading are DataErrors
        raise DataError(
            f"{folder.parent}: the cache cannot be written ({error.strerror or error}); free "
            "the disk or choose another data.cache; complete parts are kept"
        ) from None


def _count_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _prepare_folder(folder: Path, job: BuildJob, groups: list[list[FilePart]]) -> None:
    """Keep the groups of an earlier attempt only if it had the same files, divided at the same
    positions.
    """
    ranges = [[[part.file, part.kind, *part.range[:2]] for part in group] for group in groups]
    plan = {"key": job.key, "files": [list(file) for file in job.corpus.files], "groups": ranges}
    path = folder / "plan.json"
    if read_json_or_none(named(path)) == plan:
        return
    disk.remove(folder)
    disk.make_folder(folder)
    write_json(path, plan)


def _build_groups(
    job: BuildJob,
    groups: list[list[FilePart]],
    folder: Path,
    report: Callable[[str], None],
    workers: int,
) -> tuple[list[dict[str, Any]], list[str]]:
    """The record of every group, and the SHA-256 of every source file."""
    size = sum(file.size for file in job.corpus.files)
    done = sum(_read_record(job, folder, number) is not None for number in range(len(groups)))
    earlier = f", {done:,} of them already done" if done else ""
    name = job.corpus.report.name
    report(
        f"tokens: {name}, {_format_size(size)} in {len(groups):,} parts{earlier} → {folder.parent}"
    )
    started = last_report = time.monotonic()
    results: dict[int, Any] = {}
    tasks: list[Callable[[ShouldStop], Any]] = [
        *(partial(_build_group, job, parts, folder, number) for number, parts in enumerate(groups)),
        *(partial(_sha256, expand_path(file.file)) for file in job.corpus.files),
    ]
    with closing(run_in_threads(tasks, min(workers, len(groups)))) as batches:
        for finished in batches:
            results |= finished
            if time.monotonic() - last_report > _REPORT_SECONDS:
                last_report = time.monotonic()
                built = sum(number < len(groups) for number in results)
                report(f"tokens: {built:,} of {len(groups):,} parts")
    if done < len(groups):
        seconds = max(time.monotonic() - started, 1e-9)
        rate = size * (len(groups) - done) / len(groups) / seconds
        report(f"tokens: built in {seconds:,.0f} s, {_format_size(rate)} per second")
    ordered = [results[number] for number in range(len(tasks))]
    return ordered[: len(groups)], ordered[len(groups) :]


def _build_group(
    job: BuildJob, parts: list[FilePart], folder: Path, number: int, should_stop: ShouldStop
) -> dict[str, Any]:
    """Tokenize one group, unless its files are complete and undamaged."""
    ids_file, lengths_file, record_file = _group_files(folder, number)
    record = _read_record(job, folder, number)
    if record is not None:
        digests = [_sha256(file, should_stop) for file in (ids_file, lengths_file)]
        if digests == [record["sha256"], record["lengths_sha256"]]:
            return record
    disk.remove(record_file)
    counts = DocumentReport("")
    # Of each batch: tokens per document, bytes of text.
    sizes: list[tuple[NDArray[np.int64], int]] = []

    def encode() -> Iterator[bytes]:
        for texts in _batch_texts(iter_side(parts, job.settings, job.side, job.seed, counts)):
            if should_stop():
                raise Stopped
            ids, lengths, size = job.encoder.encode(texts)
            assert not len(ids) or ids.max() < job.encoder.vocab_size
            sizes.append((lengths, size))
            yield ids.astype(job.encoder.dtype).tobytes()

    sha256 = disk.write(ids_file, encode())
    lengths = np.concatenate([np.empty(0, np.int64), *(lengths for lengths, _ in sizes)])
    kept = lengths[lengths > 0]  # documents without tokens are left out
    record = {
        "documents": len(kept),
        "tokens": int(kept.sum()),
        "bytes": sum(size for _, size in sizes),
        "empty": len(lengths) - len(kept),
        "sha256": sha256,
        "lengths_sha256": disk.write(lengths_file, [kept.astype("<u4").tobytes()]),
        "report": {key: value for key, value in asdict(counts).items() if isinstance(value, int)},
    }
    write_json(record_file, record)
    return record


def _concatenate(
    job: BuildJob, records: list[dict[str, Any]], digests: list[str], folder: Path
) -> dict[str, Any]:
    """Write ids.bin and starts.bin from the files of the groups. Returns the manifest."""
    kinds = ("documents", "tokens", "bytes", "empty")
    totals = {kind: sum(record[kind] for record in records) for kind in kinds}
    name = job.corpus.report.name
    if not totals["tokens"]:
        read = sum(record["report"]["documents"] for record in records)
        raise DataError(f"{name}: no document is left ({read:,} read)")
    groups = [(record, *_group_files(folder, number)) for number, record in enumerate(records)]

    def starts() -> Iterator[bytes]:
        position = 0
        yield np.zeros(1, "<i8").tobytes()
        for record, _, lengths_file, _ in groups:
            for chunk in _read_verified(lengths_file, record["lengths_sha256"]):
                ends = position + np.cumsum(np.frombuffer(chunk, "<u4"), dtype="<i8")
                yield ends.tobytes()
                position = int(ends[-1])

    ids = (_read_verified(ids_file, record["sha256"]) for record, ids_file, *_ in groups)
    disk.write(folder / IDS, chain.from_iterable(ids))
    starts_sha256 = disk.write(folder / STARTS, starts())
    reports = [record["report"] for record in records]
    counts = {key: sum(report[key] for report in reports) for key in reports[0]}
    files = zip(job.corpus.files, digests, strict=True)
    return {
        "format": FORMAT,
        "key": job.key,
        "name": name,
        "dtype": job.encoder.dtype,
        **totals,
        "report": counts | {"files": len(digests)},
        "starts_sha256": starts_sha256,
        "shards": [{"tokens": record["tokens"], "sha256": record["sha256"]} for record in records],
        "sources": [{**file._asdict(), "sha256": sha256} for file, sha256 in files],
    }


# --- files ----------------------------------------------------------------------------------------


def _group_files(folder: Path, number: int) -> tuple[Path, Path, Path]:
    ids, lengths, record = (folder / f"{number:05d}.{kind}" for kind in ("ids", "lengths", "json"))
    return ids, lengths, record


def _read_record(job: BuildJob, folder: Path, number: int) -> dict[str, Any] | None:
    """The record of a complete group, None if its files do not have the recorded sizes."""
    ids, lengths, record_file = _group_files(folder, number)
    record = read_json_or_none(named(record_file))
    with suppress(OSError, KeyError, TypeError):
        ids_size = np.dtype(job.encoder.dtype).itemsize * record["tokens"]
        lengths_size = 4 * record["documents"]
        if (ids.stat().st_size, lengths.stat().st_size) == (ids_size, lengths_size):
            return dict(record)
    return None


def _batch_texts(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS or len(batch) >= _BATCH_TEXTS:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def _read_verified(file: Path, sha256: str) -> Iterator[bytes]:
    """The content of a file in chunks. Raises DataError at its end if it does not have this
    digest.
    """
    digest = hashlib.sha256()
    with open_found(file, DataError) as stream:
        while chunk := stream.read(_READ_BYTES):
            digest.update(chunk)
            yield chunk
    if digest.hexdigest() != sha256:
        raise DataError(
            f"{file}: damaged since it was written, by the disk or another program; start again"
        )


def _sha256(file: Path, should_stop: ShouldStop) -> str:
    """SHA-256 (hexadecimal) of a file that may be very large."""
    digest = hashlib.sha256()
    with open_found(file, DataError) as stream:
        while chunk := stream.read(_READ_BYTES):
            if should_stop():
                raise Stopped
            digest.update(chunk)
    return digest.hexdigest()


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Replace a JSON file atomically. Raises OSError."""
    disk.replace_text(path, json.dumps(values, indent=1) + "\n")


def _format_size(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
