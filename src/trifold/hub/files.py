"""Write files of a model folder atomically: each is complete or absent."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from trifold import disk
from trifold.errors import CheckpointError, SettingsError
from trifold.folders import UntrustedPath


def write_json(path: Path, values: Mapping[str, object] | Sequence[object]) -> None:
    """Write `values` atomically with sorted keys, in the layout of `transformers`."""
    text = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that replaces `path`, flushed to disk, when the block succeeds.

    Raises CheckpointError if writing fails; then `path` is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        disk.flush_path(temporary)
        disk.rename(temporary, path)
        disk.flush_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path`, flushed to disk, when the block succeeds.

    Raises CheckpointError if `path` exists and is not an empty folder, or if writing fails; then
    nothing is left. Raises UsageError if another process writes it.
    """
    absolute = path.resolve()  # "." has no name to derive another one from
    temporary = absolute.with_name(f".{absolute.name}.{os.getpid()}.tmp")
    try:
        _check_free(path)
        absolute.parent.mkdir(parents=True, exist_ok=True)
        with disk.exclusive(path):
            temporary.mkdir()
            yield temporary
            for written in temporary.rglob("*"):
                if written.is_dir():
                    disk.flush_folder(written)
                else:
                    disk.flush_path(written)
            disk.flush_folder(temporary)
            _check_free(path)
            if path.is_dir():
                path.rmdir()  # some systems do not replace even an empty folder
            disk.rename(temporary, absolute)
        disk.flush_folder(absolute.parent)
    except CheckpointError as error:  # may name a file in the temporary folder
        raise CheckpointError(str(error).replace(str(temporary), str(path))) from None
    except OSError as error:
        raise _cannot_write(path, error) from None
    finally:
        disk.remove(temporary)


@contextmanager
def naming(place: UntrustedPath | str) -> Iterator[None]:
    """Raise the SettingsError of the block as a CheckpointError whose lines name the file."""
    try:
        yield
    except SettingsError as error:
        raise CheckpointError(
            "\n".join(f"{place}: {line}" for line in str(error).splitlines())
        ) from None


def _cannot_write(path: Path, error: OSError) -> CheckpointError:
    reason = error.strerror or str(error)
    return CheckpointError(
        f"{path}: cannot be written ({reason}); free the disk or choose another folder"
    )


def _check_free(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        if any(path.iterdir()):
            raise CheckpointError(
                f"{path}: the folder exists and is not empty; choose another name"
            )
    elif path.exists() or path.is_symlink():
        raise CheckpointError(f"{path}: exists and is not a folder; choose another name")
