"""Write src/trifold/data/phrasebook.tsv.bz2, or compare it with what the generator produces.

    python tools/phrasebook/generate.py            write the file
    python tools/phrasebook/generate.py --check
                                             exit with 1 if the file differs from the generated text

The file holds pairs `English<TAB>French`, one per line, in three blocks separated by blank lines:
train, valid, test.
"""

from __future__ import annotations

import argparse
import bz2
import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.phrasebook import book  # noqa: E402 (the path is set above)

FILE = ROOT / "src" / "trifold" / "data" / "phrasebook.tsv.bz2"
SHA256 = (
    "ce6ccfd82adeab01d4b7e038c667a7b37f89afdf9fd1884fc6bc923b0a3ed76a"  # of the decompressed text
)
TRAIN_ROWS, TEST_ROWS, SEED = 45_000, 500, 0


def generate() -> str:
    """The text of the phrasebook."""
    blocks = book.split(TRAIN_ROWS, TEST_ROWS, SEED)
    return "\n".join("".join(f"{row.english}\t{row.french}\n" for row in block) for block in blocks)


def main() -> int:
    """Return 0 if the file was written or is up to date, 1 if it differs."""
    parser = argparse.ArgumentParser(description="Generate the phrasebook that trifold ships.")
    parser.add_argument(
        "--check", action="store_true", help="compare the file with the generated text"
    )
    options = parser.parse_args()
    text = generate().encode("utf-8")
    found = hashlib.sha256(text).hexdigest()
    if found != SHA256:
        print(
            f"the generated text has SHA-256 {found}; SHA256 in {__file__} is {SHA256}",
            file=sys.stderr,
        )
    if options.check:
        current = bz2.decompress(FILE.read_bytes()) if FILE.is_file() else b""
        print(f"{FILE}: {'up to date' if current == text else 'differs from the generated text'}")
        return int(current != text or found != SHA256)
    FILE.write_bytes(bz2.compress(text))
    print(f"{FILE}: {FILE.stat().st_size:,} bytes, {len(text.splitlines()):,} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
