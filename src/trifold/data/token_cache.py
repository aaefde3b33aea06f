"""Raw text as tokens on the disk: made once, opened at once, read at random, however large it is.

A cache is a folder whose name says of which text it is and ends in a hash of all that decides what is in it: the
source files, the settings of reading, the tokenizer.

    ids.bin         the tokens of all documents one after the other, uint16 or uint32
    starts.bin      where each document begins, and behind the last one its end, int64
    manifest.json   sizes, counts, SHA-256 of every part, and what the source files were

Files are known again by their size and by blocks spread over them, and are looked at whole where their times are not
what they were. So a file that is changed in place is noticed, unless its size and its time are put back as well.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from trifold import disk
from trifold.data.documents import DocumentReport, kept
from trifold.data.files import safe_name
from trifold.data.lines import expand
from trifold.data.mapped import Mapped
from trifold.data.parts import PART_BYTES, Corpus, SourceFile, content, documents_of, groups, survey
from trifold.data.settings import DataSettings
from trifold.data.token_build import FORMAT, IDS, MANIFEST, STARTS, Encoder, Job, build, read_json, write_json
from trifold.errors import DataError, SettingsError

Side = Literal["all", "train", "valid"]


@dataclass(frozen=True)
class TokenCache:
    """A corpus as tokens. ids (tokens,) and starts (documents + 1,) are indexed like arrays and lie on the disk.

    bytes: of UTF-8 text that the tokens stand for. empty: documents without a token, which are left out.
    """

    folder: Path
    ids: Mapped
    starts: Mapped
    bytes: int
    empty: int
    report: DocumentReport

    def __len__(self) -> int:
        """Documents."""
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) tokens of each document, in memory: 8 bytes a document."""
        lengths = np.diff(np.asarray(self.starts))
        self.starts.release()
        return lengths

    def document(self, number: int) -> NDArray[np.integer]:
        """The tokens of one document."""
        start, stop = self.starts[number : number + 2]
        tokens: NDArray[np.integer] = self.ids[start:stop]
        return tokens

    def verify(self) -> None:
        """Read everything. Raises DataError where a byte is not what was written."""
        manifest = read_json(self.folder / MANIFEST)
        place = 0
        for shard in manifest["shards"]:
            stop = place + shard["tokens"]
            if _digest(self.ids, place, stop) != shard["sha256"]:
                raise _damaged(
                    self.folder / IDS, f"tokens {place:,} to {stop:,} are not those that were written"
                )
            place = stop
        if _digest(self.starts, 0, len(self.starts)) != manifest["starts_sha256"]:
            raise _damaged(self.folder / STARTS, "it is not what was written")


def open_tokens(
    source: str | list[str],
    settings: DataSettings,
    encoder: Encoder,
    *,
    side: Side = "all",
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
    workers: int | None = None,
    part_bytes: int = PART_BYTES,
) -> TokenCache:
    """The cache of a source in the folder `settings.cache`; made where it is not there yet.

    With `settings.holdout`, a share, every document is by chance on the side "train" or "valid": by (seed, its text),
    so that equal documents are on one side. Of several processes that want one cache, one makes it and the others wait.
    Raises DataError for text that cannot be read, a damaged cache and where the disk refuses; SettingsError for what a
    cache cannot serve.
    """
    assert settings.cache is not None
    share = settings.holdout if side != "all" else 0.0
    if share and not isinstance(share, float):
        raise SettingsError(
            f"data.holdout: {share} documents cannot be counted out of a cache; give their share, such as 0.001"
        )
    corpus = survey(source, settings)
    key = _key(corpus, settings, encoder, (side, share, seed) if share else None)
    home = expand(settings.cache)
    folder = home / f"{safe_name(corpus.report.name)}-{key[:16]}"
    chosen = _chooser(side, float(share), seed)
    try:
        disk.make_folder(home)
        if found := _opened(folder, key, corpus):
            return found
        with _alone(home / f".{folder.name}.lock", say):
            if found := _opened(folder, key, corpus):  # somebody else has made it meanwhile
                return found
            aside = home / f".{folder.name}.partial"
            build(Job(corpus, settings, encoder, chosen, key), aside, say, workers, part_bytes)
            disk.remove(folder)  # what is there is of files that are no more
            disk.rename(aside, folder)
            disk.flush_folder(home)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(
            f"{home}: the cache cannot be written ({reason}); choose another data.cache"
        ) from None
    made = _opened(folder, key, corpus)
    assert made is not None
    return made


def sample_documents(
    source: str | list[str],
    settings: DataSettings,
    characters: int,
    *,
    side: Side = "all",
    seed: int = 0,
    part_bytes: int = PART_BYTES,
) -> list[str]:
    """Documents of about so many characters in all, from the beginning of every part of a source.

    Of the same side as `open_tokens` takes them from. Raises what that raises for sources.
    """
    work = groups(survey(source, settings), settings, part_bytes)
    chosen = _chooser(side, float(settings.holdout if side != "all" else 0), seed)
    texts: list[str] = []
    for parts in work:
        left = characters // len(work)
        mine = (one for one in documents_of(parts, settings) if chosen(one.text))
        for document in kept(mine, settings, DocumentReport("")):
            texts.append(document.text)
            left -= len(document.text)
            if left <= 0:
                break
    return texts


def _opened(folder: Path, key: str, corpus: Corpus) -> TokenCache | None:
    """None where there is none, or where the source has changed since. Raises DataError where it is damaged."""
    place = folder / MANIFEST
    if not folder.exists():
        return None
    manifest = read_json(place)
    try:
        if manifest["format"] != FORMAT or manifest["key"] != key:
            raise KeyError("key")
        size = np.dtype(manifest["dtype"]).itemsize
        sizes = {IDS: size * manifest["tokens"], STARTS: 8 * (manifest["documents"] + 1)}
        known = [
            SourceFile(**{field: file[field] for field in SourceFile._fields}) for file in manifest["sources"]
        ]
        report = DocumentReport(manifest["name"], **manifest["report"], passed_over=corpus.report.passed_over)
        contents = [file["sha256"] for file in manifest["sources"]]
    except (KeyError, TypeError, ValueError):
        raise _damaged(place, "it is not the manifest of this cache") from None
    for name, wanted in sizes.items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if found != wanted:
            raise _damaged(folder / name, f"{found:,} bytes long, not {wanted:,}")
    if not _same_sources(place, manifest, known, contents, corpus):
        return None
    ids, starts = Mapped(folder / IDS, manifest["dtype"]), Mapped(folder / STARTS, "<i8")
    if starts[0] != 0 or starts[len(starts) - 1] != len(ids):
        raise _damaged(folder / STARTS, "it does not fit the tokens")
    return TokenCache(folder, ids, starts, manifest["bytes"], manifest["empty"], report)


def _same_sources(
    place: Path, manifest: dict[str, Any], known: list[SourceFile], contents: list[str], corpus: Corpus
) -> bool:
    """Whether the files are those that were read; where one has another time, all are read to find out."""
    pairs = list(zip(known, corpus.files, strict=True))
    if all((then.size, then.mtime_ns) == (now.size, now.mtime_ns) for then, now in pairs):
        return True
    if any(content(now.file) != then for now, then in zip(corpus.files, contents, strict=True)):
        return False
    sources = zip(corpus.files, contents, strict=True)
    manifest["sources"] = [{**now._asdict(), "sha256": sha256} for now, sha256 in sources]
    with suppress(OSError):  # a cache that may only be read is compared each time
        write_json(place, manifest)
    return True


def _key(corpus: Corpus, settings: DataSettings, encoder: Encoder, side: tuple[Any, ...] | None) -> str:
    read = [settings.documents, settings.field, settings.blank, settings.max_line_bytes]
    files = [[file.kind, file.size, file.sample] for file in corpus.files]
    deciding = [FORMAT, files, read, side, encoder.key, encoder.vocab_size]
    return hashlib.sha256(json.dumps(deciding).encode("utf-8")).hexdigest()


def _chooser(side: Side, share: float, seed: int) -> Callable[[str], bool]:
    if not share:
        return lambda text: True
    key = struct.pack("<Q", seed % 2**64)
    limit = int(share * 2**64)

    def chosen(text: str) -> bool:
        drawn = hashlib.blake2b(text.encode("utf-8"), digest_size=8, key=key).digest()
        return (int.from_bytes(drawn, "little") < limit) == (side == "valid")

    return chosen


@contextmanager
def _alone(lock: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One process at a time; the system lets the lock go with a process that dies."""
    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        say(f"tokens: another process is making {lock.name.strip('.').removesuffix('.lock')}; waiting for it")
        held.acquire()
    except NotImplementedError:
        raise DataError(
            f"{lock.parent}: files cannot be locked there; choose a data.cache on a local disk"
        ) from None
    try:
        yield
    finally:
        held.release()


def _digest(numbers: Mapped, start: int, stop: int) -> str:
    digest = hashlib.sha256()
    for place in range(start, stop, 1 << 20):
        digest.update(numbers[place : min(stop, place + (1 << 20))].tobytes())
    return digest.hexdigest()


def _damaged(place: Path, what: str) -> DataError:
    return DataError(f"{place}: {what}; the cache is damaged: remove its folder, and it is made anew")
