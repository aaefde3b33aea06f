"""The folder of a demo, which the next one replaces, and no other."""

from __future__ import annotations

import shutil
from pathlib import Path

from trifold.errors import UsageError

MARKER = ".trifold-demo"  # in a folder that the demo made, and may therefore replace


def clear(folder: Path) -> None:
    """An empty folder with the marker in it. Raises UsageError rather than touch a folder that no demo made."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: a file, so it stays; choose another with --out")
    if folder.exists():
        if not (folder / MARKER).is_file() and any(folder.iterdir()):
            raise UsageError(
                f"{folder}: exists and was not made by the demo, so it stays; choose another with --out"
            )
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True)
        (folder / MARKER).write_text(
            "made by `trifold demo`, which replaces it\n", encoding="utf-8", newline="\n"
        )
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot be written ({error.strerror}); choose another with --out"
        ) from None
