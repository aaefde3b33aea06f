"""Tokenising a corpus into a folder, in parts that are done side by side and survive whatever stops the work.

00000.ids  00000.lengths  00000.json     a group of parts; the last, written last, says that the group is done
ids.bin  starts.bin  manifest.json       all groups one after the other; then the folder gets its name
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trifold import disk
from trifold.data.documents import Document, DocumentReport, Part, kept
from trifold.data.lines import expand
from trifold.data.parts import Corpus, documents_of, groups, unchanged
from trifold.data.settings import DataSettings
from trifold.data.side_by_side import Stopped, Stopping, side_by_side
from trifold.errors import DataError

MANIFEST = "manifest.json"
FORMAT = "trifold-tokens-1"
IDS, STARTS = "ids.bin", "starts.bin"

_CHARACTERS = 1 << 20  # of text tokenised in one call
_TEXTS = 10_000
_COPIED = 1 << 22
_NEWS_SECONDS = 30.0


class Encoder(NamedTuple):
    """What turns texts into tokens: (ids one after the other, tokens of each text, bytes of text they stand for).

    key: whatever decides what comes out, such as the tokenizer's fingerprint. vocab_size: every id is below it.
    """

    encode: Callable[[Sequence[str]], tuple[NDArray[np.integer], NDArray[np.int64], int]]
    key: str
    vocab_size: int

    @property
    def dtype(self) -> str:
        """Little-endian, as small as the vocabulary allows."""
        return "<u2" if self.vocab_size <= 1 << 16 else "<u4"


class Job(NamedTuple):
    """What is built. chosen: the documents that belong in; key: what the folder's name is made of."""

    corpus: Corpus
    settings: DataSettings
    encoder: Encoder
    chosen: Callable[[str], bool]
    key: str


def build(job: Job, folder: Path, say: Callable[[str], None], workers: int | None, part_bytes: int) -> None:
    """Fill `folder`, in which an earlier attempt may have left groups that are done; they are checked and kept.

    What comes out depends on the files, the settings and the encoder, not on the number of workers or attempts. Raises
    DataError for text that cannot be read, for files that change meanwhile and where the disk refuses.
    """
    try:
        work = groups(job.corpus, job.settings, part_bytes)
        _same_work(folder, job, work)
        if not (folder / MANIFEST).is_file():
            found = _all_groups(job, work, folder, say, workers or _cores())
            if changed := [file.file for file in job.corpus.files if not unchanged(file)]:
                raise DataError(
                    f"{changed[0]}: it changed while it was read; start again when nobody writes to it"
                )
            write_json(folder / MANIFEST, _assembled(job, *found, folder))
        for number in range(len(work)):
            for file in _files(folder, number):
                disk.remove(file)
        for file in disk.leftovers(folder):
            disk.remove(file)
    except OSError as error:  # of writing: who reads the files says himself what is wrong with them
        remedy = "free the disk or choose another data.cache; what is done so far is kept"
        reason = error.strerror or error
        raise DataError(f"{folder.parent}: the cache cannot be written ({reason}); {remedy}") from None


def _same_work(folder: Path, job: Job, work: list[list[Part]]) -> None:
    """What an earlier attempt left is of use only if its files were the same and were cut at the same places."""
    flat = [
        [[part.file, part.kind, part.stretch.start, part.stretch.stop] for part in group] for group in work
    ]
    plan = {"key": job.key, "files": [list(file) for file in job.corpus.files], "groups": flat}
    place = folder / "plan.json"
    if place.is_file() and read_json(place) == plan:
        return
    disk.remove(folder)
    disk.make_folder(folder)
    write_json(place, plan)


def _all_groups(
    job: Job, work: list[list[Part]], folder: Path, say: Callable[[str], None], workers: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """The record of every group, made now or before, and the SHA-256 of every source file."""
    size = sum(file.size for file in job.corpus.files)
    done = sum(_record(job, folder, number) is not None for number in range(len(work)))
    before = f", {done:,} of them done before" if done else ""
    say(f"tokens: {job.corpus.report.name}, {_amount(size)} in {len(work):,} parts{before} → {folder.parent}")
    started = news = time.monotonic()

    def told(results: dict[int, Any]) -> None:
        nonlocal news
        if time.monotonic() - news > _NEWS_SECONDS:
            news = time.monotonic()
            say(f"tokens: {sum(number < len(work) for number in results):,} of {len(work):,} parts")

    found = side_by_side(
        [
            *(partial(_group, job, parts, folder, number) for number, parts in enumerate(work)),
            *(partial(_digest, expand(file.file)) for file in job.corpus.files),
        ],
        min(workers, len(work)),
        told,
    )
    if done < len(work):
        seconds = max(time.monotonic() - started, 1e-9)
        share = (len(work) - done) / len(work)
        say(f"tokens: made in {seconds:,.0f} s, {_amount(size * share / seconds)} a second")
    return found[: len(work)], found[len(work) :]


def _group(job: Job, parts: list[Part], folder: Path, number: int, stopping: Stopping) -> dict[str, Any]:
    """Tokenise one group, unless that is done and has kept well."""
    ids_file, lengths_file, record_file = _files(folder, number)
    old = _record(job, folder, number)
    if old and all(
        _digest(file, stopping) == old[name]
        for file, name in ((ids_file, "sha256"), (lengths_file, "lengths_sha256"))
    ):
        return old
    disk.remove(record_file)
    report = DocumentReport("")
    mine = (one for one in documents_of(parts, job.settings) if job.chosen(one.text))
    tokens = text_bytes = count = empty = 0
    with ids_file.open("wb") as ids_out, lengths_file.open("wb") as lengths_out:
        digests = hashlib.sha256(), hashlib.sha256()
        for texts in _bunches(kept(mine, job.settings, report)):
            if stopping():
                raise Stopped
            ids, lengths, size = job.encoder.encode(texts)
            assert not len(ids) or ids.max() < job.encoder.vocab_size
            empty += int(np.count_nonzero(lengths == 0))
            lengths = lengths[lengths > 0]  # without a token there is nothing to learn from
            _put(ids_out, ids.astype(job.encoder.dtype).tobytes(), digests[0])
            _put(lengths_out, lengths.astype("<u4").tobytes(), digests[1])
            tokens, count, text_bytes = tokens + len(ids), count + len(lengths), text_bytes + size
        for out in (ids_out, lengths_out):
            disk.flush(out)
    record = {
        "documents": count,
        "tokens": tokens,
        "bytes": text_bytes,
        "empty": empty,
        "sha256": digests[0].hexdigest(),
        "lengths_sha256": digests[1].hexdigest(),
        "report": {key: value for key, value in asdict(report).items() if isinstance(value, int)},
    }
    write_json(record_file, record)
    return record


def _assembled(job: Job, records: list[dict[str, Any]], contents: list[str], folder: Path) -> dict[str, Any]:
    """Write the groups one after the other; what the manifest says of them."""
    totals = {
        key: sum(record[key] for record in records) for key in ("documents", "tokens", "bytes", "empty")
    }
    name = job.corpus.report.name
    if not totals["tokens"]:
        read = sum(record["report"]["documents"] for record in records)
        raise DataError(f"{name}: no document is left ({read:,} read)")
    place = 0
    digest = hashlib.sha256()
    with (folder / IDS).open("wb") as ids_out, (folder / STARTS).open("wb") as starts_out:
        _put(starts_out, np.zeros(1, "<i8").tobytes(), digest)
        for number, record in enumerate(records):
            ids_file, lengths_file, _ = _files(folder, number)
            for piece in _checked(ids_file, record["sha256"]):
                disk.put(ids_out, piece)
            for piece in _checked(lengths_file, record["lengths_sha256"]):
                starts = place + np.cumsum(np.frombuffer(piece, "<u4"), dtype="<i8")
                _put(starts_out, starts.tobytes(), digest)
                place = int(starts[-1])
        for out in (ids_out, starts_out):
            disk.flush(out)
    counted = [record["report"] for record in records]
    report = {key: sum(one[key] for one in counted) for key in counted[0]} | {"files": len(contents)}
    files = zip(job.corpus.files, contents, strict=True)
    return {
        "format": FORMAT,
        "key": job.key,
        "name": name,
        "dtype": job.encoder.dtype,
        **totals,
        "report": report,
        "starts_sha256": digest.hexdigest(),
        "shards": [{"tokens": record["tokens"], "sha256": record["sha256"]} for record in records],
        "sources": [{**file._asdict(), "sha256": sha256} for file, sha256 in files],
    }


def _checked(file: Path, sha256: str) -> Iterator[bytes]:
    """The bytes of a file, which turn out at its end to be those that were written, or DataError is raised."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_COPIED):
            digest.update(piece)
            yield piece
    if digest.hexdigest() != sha256:
        raise DataError(f"{file}: damaged since it was written, by the disk or another program; start again")


def _record(job: Job, folder: Path, number: int) -> dict[str, Any] | None:
    """What a finished group said of itself, if its files are as long as it says."""
    ids, lengths, record_file = _files(folder, number)
    record = read_json(record_file)
    try:
        sizes = np.dtype(job.encoder.dtype).itemsize * record["tokens"], 4 * record["documents"]
        return record if (ids.stat().st_size, lengths.stat().st_size) == sizes else None
    except (OSError, KeyError, TypeError):
        return None


def _bunches(documents: Iterable[Document]) -> Iterator[list[str]]:
    texts: list[str] = []
    size = 0
    for document in documents:
        texts.append(document.text)
        size += len(document.text)
        if size >= _CHARACTERS or len(texts) >= _TEXTS:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


def _files(folder: Path, number: int) -> tuple[Path, Path, Path]:
    ids, lengths, record = (folder / f"{number:05d}.{kind}" for kind in ("ids", "lengths", "json"))
    return ids, lengths, record


def _digest(file: Path, stopping: Stopping) -> str:
    """SHA-256 (hexadecimal) of a file, which may be as large as a disk."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_COPIED):
            if stopping():
                raise Stopped
            digest.update(piece)
    return digest.hexdigest()


def _put(out: BinaryIO, piece: bytes, digest: Any) -> None:
    disk.put(out, piece)
    digest.update(piece)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write; the file is there whole, or not at all. Raises OSError."""
    disk.replace_text(path, json.dumps(values, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """What a file holds, None where it is not there or no JSON."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _amount(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
