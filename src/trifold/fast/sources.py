"""The hash of modules of this package, by which compiled code on disk is found again."""

from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent
INT64_DIGITS = 14  # hexadecimal: a positive integer of 64 bits


def sources_digest(*names: str) -> str:
    """The hash of the sources of these modules, in hexadecimal."""
    key = sha256()
    for name in names:
        key.update((FOLDER / f"{name}.py").read_bytes())
    return key.hexdigest()


def source_hash(*names: str) -> int:
    """The same as an integer, which a compiled function can have in its closure."""
    return int(sources_digest(*names)[:INT64_DIGITS], 16)
