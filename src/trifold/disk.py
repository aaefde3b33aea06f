"""All durable writes: files are flushed to disk before their names become visible. And the digest
of a file.

Every byte, flush and rename of a run passes through these functions. Callers write `disk.flush`,
never `from trifold.disk import flush`, so that tests can replace them to simulate a power cut, or a
full or slow disk.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from trifold.errors import UsageError
from trifold.folders import UntrustedPath, open_found

Bytes: TypeAlias = bytes | memoryview

# Remedies by errno. Other errors most likely mean that the disk is full.
REMEDIES = {
    errno.ENOENT: "put back what was moved or removed",
    errno.EACCES: "make it writable",
    errno.EPERM: "make it writable",
    errno.EROFS: "make the disk writable",
    errno.EIO: "check the disk for errors",
}


def remedy(error: OSError) -> str:
    """What the user can do about an error."""
    return REMEDIES.get(error.errno or 0, "free some disk space")


def write(path: Path, chunks: Iterable[Bytes]) -> str:
    """Write and flush a new file. Returns the SHA-256 (hexadecimal) of the intended content. Raises
    OSError.
    """
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in chunks:
            put(file, chunk)
            digest.update(chunk)
        flush(file)
    return digest.hexdigest()


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically. Raises OSError; then the old file is unchanged."""
    replace_bytes(path, text.encode("utf-8"))


def replace_bytes(path: Path, content: bytes) -> None:
    """Replace a file atomically, like `replace_text`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary, [content])
        rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def check_free(path: Path, *, overwrite: bool, is_folder: bool = False) -> None:
    """Raise UsageError for a path, named by the user for results, that holds something, unless it
    may be overwritten; and for a file in place of a folder, or the reverse.

    Empty files, empty folders, pipes and devices are free.
    """
    try:
        if path.is_dir():
            kind = "folder"
            is_taken = any(path.iterdir())
        else:
            kind = "file"
            is_taken = path.is_file() and path.stat().st_size > 0
        exists = path.exists()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror}); choose another place"
        ) from None
    wanted = "folder" if is_folder else "file"
    if exists and is_folder != (kind == "folder"):
        raise UsageError(f"{path}: is a {kind}; name a {wanted}")
    if not is_taken or overwrite:
        return
    if is_folder:
        remedy = "name another folder, or add --overwrite to replace its files"
        raise UsageError(f"{path}: the folder exists and is not empty; {remedy}")
    raise UsageError(
        f"{path}: the file exists; name another file, or add --overwrite to replace it"
    )


def sha256_of_file(path: Path | UntrustedPath) -> str:
    """SHA-256 (hexadecimal) of a file. Raises OSError, and CheckpointError for what `open_found`
    refuses.
    """
    with open_found(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def leftovers(folder: Path) -> list[Path]:
    """Temporary files in a folder left by processes that were killed while they replaced a file;
    see `replace_bytes` for their names.
    """
    return [path for path in folder.glob(".*.tmp") if path.name.split(".")[-2].isdigit()]


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Lock an output file or folder while it is written, and remove the temporary files that a
    killed process left of it.

    The lock is `.NAME.lock` next to it, which the system releases if the process ends. A file
    system without locks is used without one. Raises UsageError if another process holds the lock.
    """
    from filelock import FileLock, Timeout

    absolute = path.resolve()  # "." has no name
    if not absolute.parent.is_dir():  # the lock would create it
        reason = os.strerror(errno.ENOENT)
        raise UsageError(f"{path}: cannot be written ({reason}); choose another folder")
    lock = FileLock(absolute.with_name(f".{absolute.name}.lock"))
    with suppress(NotImplementedError):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UsageError(
                f"{path}: another process is writing it; wait until it ends, or choose another name"
            ) from None
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be written ({error.strerror}); choose another folder"
            ) from None
    try:
        # `trifold predict` keeps NAME.part.json beside an output that is not complete.
        replaced = (f".{absolute.name}", f".{absolute.name}.part.json")
        for leftover in leftovers(absolute.parent):
            if leftover.name.rsplit(".", 2)[0] in replaced:
                remove(leftover)
        yield
    finally:
        # A process that waits for the lock notices that its file is gone, and creates another.
        remove(Path(lock.lock_file))
        lock.release()


def put(file: BinaryIO, chunk: Bytes) -> None:
    """Append bytes."""
    file.write(chunk)


def flush(file: BinaryIO) -> None:
    """Wait until the content is on disk."""
    file.flush()
    os.fsync(file.fileno())


def flush_path(path: Path) -> None:
    """Flush a file that is already closed."""
    with path.open("rb+") as file:
        flush(file)


def flush_folder(path: Path) -> None:
    """Wait until the names in a folder are on disk."""
    if os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(old: Path, new: Path) -> None:
    """Rename atomically, replacing `new`."""
    os.replace(old, new)


def make_folder(path: Path) -> None:
    """Create a folder and its parents."""
    path.mkdir(parents=True, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file or a folder with its content; ignore errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
