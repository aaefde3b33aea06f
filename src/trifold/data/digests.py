"""Which bytes a run learns from: a SHA-256 for every file that its settings name."""

from __future__ import annotations

import hashlib

from trifold.data.lines import STANDARD_INPUT, expand
from trifold.data.readers import files_of
from trifold.data.settings import DataSettings


def digests(settings: DataSettings) -> dict[str, str]:
    """SHA-256 (hexadecimal) of the training and validation files, by their names as the settings have them.

    What is no file (a dataset of the hub, embedded text, standard input) has none; nor has a file that is missing,
    which those who read it will say. Raises OSError, DataError.
    """
    found = {}
    for source in (settings.train, settings.valid):
        for name in [] if source is None else files_of(source):
            path = expand(name)
            if name != STANDARD_INPUT and path.is_file():
                with path.open("rb") as file:
                    found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
