"""The hash of modules of this package, by which compiled code on disk is found again."""

from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent


def sources_digest(*names: str) -> str:
    """The hash of the sources of these modules, in hexadecimal."""
    key = sha256()
    for name in names:
        key.update((FOLDER / f"{name}.py").read_bytes())
    return key.hexdigest()


def source_hash(*names: str) -> int:
    """The same as an integer, which a compiled function can have in its closure."""
    return int(sources_digest(*names)[:14], 16)  # below 2**63
