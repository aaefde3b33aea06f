"""Download the files of a dataset: resumed, retried, verified, and stored only when they are
right.
"""

import gzip
import hashlib
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from filelock import FileLock

from trifold import disk
from trifold.data import conversions
from trifold.data.catalog import UNKNOWN, VARIABLE, Dataset, File, data_folder
from trifold.data.lines import is_compressed
from trifold.errors import DataError
from trifold.folders import open_found

ATTEMPTS = 5  # in a row that bring nothing new
BACK_OFF = 1.0  # seconds before the second attempt; doubles with each further one
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 16
# HTTP status codes.
PARTIAL = 206
NOT_SATISFIABLE = 416  # no byte is left in the requested range
RETRIED = (408, 425, 429)  # besides those from 500 on

Report: TypeAlias = Callable[[str], None]
# A progress bar: title -> a function of (all bytes, if known, and the new ones), or None.
Watch: TypeAlias = Callable[[str], AbstractContextManager[Callable[[int | None, int], None] | None]]


def download(dataset: Dataset, report: Report, watch: Watch) -> None:
    """Download the files of a dataset that are missing in the data folder, and verify the others.

    An interrupted download leaves NAME.part, which a later call continues. Raises DataError.
    """
    folder = data_folder()
    try:
        for file in dataset.present():
            if file.urls:
                _verify(file, folder)
        if missing := [file for file in dataset.files if not (folder / file.path).exists()]:
            disk.make_folder(folder)
            with FileLock(folder / f".{dataset.name}.lock"):
                for file in missing:
                    _obtain(file, report, watch)
    except OSError as error:
        raise DataError(
            f"{error.filename or folder}: cannot be written ({error.strerror or error}); "
            f"{disk.remedy(error)}, or set {VARIABLE} to another folder"
        ) from None


def _verify(file: File, folder: Path) -> None:
    """Raises DataError if a file in the data folder has another content than the published one."""
    if file.sha256 == UNKNOWN:
        return
    path = folder / file.path
    if _sha256(_convert("", [path], _limit(file))) != file.sha256:
        raise DataError(
            f"{path}: not the published content, whose SHA-256 is {file.sha256}; move the file "
            "away to download it"
        )


def _obtain(file: File, report: Report, watch: Watch) -> None:
    target = data_folder() / file.path
    if target.exists():  # another process has stored it meanwhile
        return
    disk.make_folder(target.parent)
    parts = [target.with_name(f"{target.name}{n or ''}.part") for n in range(len(file.urls))]
    is_resumed = any(part.exists() for part in parts)
    for url, part in zip(file.urls, parts, strict=True):
        _fetch(url, part, _limit(file), report, watch)
    content = _convert(file.conversion, parts, _limit(file))
    is_right = _sha256(content) == file.sha256
    if is_right and target.suffix == ".gz":
        disk.replace_bytes(target, gzip.compress(content, 6, mtime=0))
    elif is_right:
        disk.replace_bytes(target, content)
    for part in parts:
        part.unlink()
    if is_right:
        report(f"{file.path}: downloaded and verified")
    elif is_resumed:
        report(f"{file.path}: what an earlier download left does not fit; starting again")
        _obtain(file, report, watch)
    else:
        raise DataError(
            f"{' and '.join(file.urls)}: gives {len(content):,} bytes with the SHA-256 "
            f"{_sha256(content)}, and not {file.size:,} with {file.sha256}; nothing is stored. The "
            "file has changed at its source or on the way; try another network, or a newer trifold"
        )


def _convert(conversion: str, files: list[Path], limit: int) -> bytes:
    """The converted content of files, of which at most `limit` bytes are decompressed; empty if
    they do not fit.
    """
    sources: list[bytes] = []
    try:
        for file in files:
            with _open_content(file) as stream:
                sources.append(stream.read(limit))
        if not conversion:
            return sources[0]
        return bytes(getattr(conversions, conversion)(*sources))
    except (ValueError, LookupError, TypeError, EOFError, gzip.BadGzipFile, zlib.error):
        return b""


@contextmanager
def _open_content(file: Path) -> Iterator[Any]:
    """The decompressed bytes of a file."""
    with open_found(file, DataError) as content:
        if is_compressed(file):
            yield gzip.GzipFile(fileobj=content)
        else:
            yield content


def _limit(file: File) -> int:
    """The most bytes that are read of a file, and of each of the published ones that it is made
    from.
    """
    return 2 * file.size + CHUNK


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- one file over HTTP ---------------------------------------------------------------------------


class _Interrupted(Exception):
    """The server or the connection failed in a way that may pass."""


class _Redirects(HTTPRedirectHandler):
    """Follows redirects to addresses of the same scheme, which is https for all datasets."""

    def redirect_request(self, request: Any, *given: Any) -> Any:
        if urlsplit(given[-1]).scheme != request.type:
            raise DataError(
                f"{request.full_url}: is redirected to {given[-1]}, which is not {request.type}"
            )
        return super().redirect_request(request, *given)


def _fetch(url: str, part: Path, limit: int, report: Report, watch: Watch) -> None:
    """Download to `part`, or continue it, in several attempts. Raises DataError above `limit`
    bytes.
    """
    failures = 0
    most = _size(part)
    while True:
        try:
            return _attempt(url, part, limit, watch)
        except _Interrupted as error:
            if _size(part) > most:
                most = _size(part)
                failures = 0
            failures += 1
            if failures == ATTEMPTS:
                remedy = (
                    "check the network and repeat the command, which continues after "
                    f"{most:,} bytes"
                )
                raise DataError(f"{url}: {error}, {ATTEMPTS} times in a row; {remedy}") from None
            seconds = BACK_OFF * 2 ** (failures - 1)
            report(f"{part.stem}: {error}; trying again in {seconds:g} s")
            time.sleep(seconds)


def _attempt(url: str, part: Path, limit: int, watch: Watch) -> None:
    """Download to `part`, or continue it. Raises _Interrupted for what may pass, DataError for what
    does not.
    """
    response = _request(url, start=_size(part))
    if response is None:
        return
    with response, watch(part.stem) as advance:
        start = _size(part) if response.status == PARTIAL else 0
        length = response.length  # None if the server does not send it
        expected = start + (length or 0)
        size = start
        with part.open("ab" if start else "wb") as file:
            while max(size, expected) <= limit and (chunk := _next_chunk(response)):
                disk.put(file, chunk)
                size += len(chunk)
                if advance:
                    advance(length, len(chunk))
    if max(size, expected) > limit:
        part.unlink()
        raise DataError(
            f"{url}: more than {limit:,} bytes, so not the published file; nothing is stored"
        )
    if size < expected:
        raise _Interrupted(f"the connection ended after {size:,} of {expected:,} bytes")


def _request(url: str, start: int) -> Any:
    """The response with the bytes from `start` on; None if there are none. Raises as `_attempt`."""
    headers = {"User-Agent": "trifold"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        return build_opener(_Redirects).open(Request(url, headers=headers), timeout=TIMEOUT)
    except (OSError, HTTPException) as error:
        code = getattr(error, "code", 500)
        if code == NOT_SATISFIABLE and start:  # the digest shows whether the part is the whole file
            return None
        if code in RETRIED or code >= 500:
            raise _Interrupted(str(error)) from None
        raise DataError(
            f"{url}: {error}; it may have moved: see its source in `trifold data`"
        ) from None


def _next_chunk(response: Any) -> bytes:
    try:
        return bytes(response.read1(CHUNK))
    except (OSError, HTTPException) as error:
        raise _Interrupted(f"the connection broke ({error})") from None


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
