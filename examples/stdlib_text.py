"""Write the source of the Python standard library as text for a language model, a document per
module.

    python examples/stdlib_text.py stdlib.jsonl
    trifold study examples/scaling-stdlib.yaml

Tests, installed packages and files that are not UTF-8 are left out.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from trifold.data.stdlib import EXCLUDED_FOLDERS


def read_sources(folder: Path) -> Iterator[str]:
    """The text of every module, sorted by path."""
    for path in sorted(folder.rglob("*.py")):
        if EXCLUDED_FOLDERS.isdisjoint(path.relative_to(folder).parts[:-1]):
            try:
                yield path.read_text("utf-8")
            except UnicodeDecodeError:
                continue


def main(target: str) -> None:
    sources = [text for text in read_sources(Path(sysconfig.get_path("stdlib"))) if text.strip()]
    lines = (json.dumps({"text": text}) + "\n" for text in sources)
    Path(target).write_text("".join(lines), encoding="utf-8", newline="\n")
    print(f"{target}: {len(sources):,} modules, {sum(map(len, sources)):,} characters")


if __name__ == "__main__":
    main(*sys.argv[1:])
