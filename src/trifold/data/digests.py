"""Which bytes a run learns from: a SHA-256 for every file that its settings name."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from trifold.data.files import find
from trifold.data.settings import DataSettings
from trifold.errors import TrifoldError

NO_FILES = ("hub:", "embedded:")


def digests(settings: DataSettings) -> dict[str, str]:
    """SHA-256 (hexadecimal) of the training and validation files, by their paths.

    What is no file (a dataset of the hub, embedded text, standard input) has none; nor has what cannot be found or
    read, which those who read it will say.
    """
    found = {}
    for source in (settings.train, settings.valid):
        if source is None or (isinstance(source, str) and source.startswith(NO_FILES)):
            continue
        try:
            files = find(source).files
        except TrifoldError:
            continue
        for name in files:
            if Path(name).is_file():
                with suppress(OSError), Path(name).open("rb") as file:
                    found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
