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
        raise cannot_write(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def naming(place: UntrustedPath | str) -> Iterator[None]:
    """Raise the SettingsError of the block as a CheckpointError whose lines name the file."""
    try:
        yield
    except SettingsError as error:
        raise CheckpointError(
            "\n".join(f"{place}: {line}" for line in str(error).splitlines())
        ) from None


def cannot_write(path: Path, error: OSError) -> CheckpointError:
    """The error for a file or a folder of a model that cannot be written."""
    reason = error.strerror or str(error)
    return CheckpointError(
        f"{path}: cannot be written ({reason}); free the disk or choose another folder"
    )
