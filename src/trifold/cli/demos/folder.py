"""The folder of a demo, which the next one replaces, and no other."""

from __future__ import annotations

import shutil
from pathlib import Path

from trifold.errors import UsageError

MARKER = ".trifold-demo"  # in a folder that the demo made, and may therefore replace


def clear(folder: Path) -> None:
    """An empty folder with the marker in it. Raises UsageError rather than touch a folder that no demo made, or one of
    whose runs another process is at.

    It is emptied and not removed, because it may be a link, or where the user is.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: a file, so it stays; choose another with --out")
    try:
        inside = list(folder.iterdir()) if folder.exists() else []
        if inside and not (folder / MARKER).is_file():
            raise UsageError(
                f"{folder}: exists and was not made by the demo, so it stays; choose another with --out"
            )
        if inside:
            _refuse_at_work(folder)
        for place in inside:
            if place.name == MARKER:
                continue
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).write_text(
            "made by `trifold demo`, which replaces it\n", encoding="utf-8", newline="\n"
        )
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot be written ({error.strerror}); choose another with --out"
        ) from None


def _refuse_at_work(folder: Path) -> None:
    """Of the demo that reads, each of three runs has a lock of its own."""
    from trifold.train.run_folder import LOCK, RunFolder

    for lock in folder.rglob(LOCK):
        RunFolder(lock.parent).check_unlocked()
