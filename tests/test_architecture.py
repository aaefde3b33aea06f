"""The tables of docs/architecture.md that follow a sentence through the code: their functions run
in that order.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.count_train_files import trace_calls

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
TRAIN = (
    "train smoke data.train={0}/a,{0}/b data.valid=null data.test=null data.holdout=8 train.workers=1 train.steps=2 "
    "train.warmup=1 train.validate_every=2 --out {0}/run"
)


def read_tables() -> list[list[tuple[str, str]]]:
    """The files and functions of each table in the first section of the page."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## Packages and imports")[0]
    tables: list[list[tuple[str, str]]] = []
    for line in section.splitlines():
        if line.startswith("| | file"):
            tables.append([])
        elif line.startswith("| ") and line[2].isdigit():
            column = line.split("|")[2]
            found = re.findall(r"\[([\w/]+\.py)\]\(\.\./src/trifold/([\w/]+\.py)\) `(\w+)`", column)
            assert len(found) == column.count("](") > 0, (
                f"each file needs a link and a function: {line}"
            )
            assert all(name == target for name, target, _ in found), line
            tables[-1] += [(name, function) for name, _, function in found]
    return tables


def test_a_sentence_passes_through_the_files_in_the_order_of_the_tables(tmp_path: Path) -> None:
    tables = read_tables()
    assert [len(table) >= 8 for table in tables] == [True, True]
    for name in ("a", "b"):
        (tmp_path / name).write_text(
            "".join(f"{name} {n} x y\n" for n in range(40)), encoding="utf-8"
        )
    commands = [TRAIN.format(tmp_path).split(), ["generate", f"{tmp_path}/run", "a 3 x"]]
    for table, command in zip(tables, commands, strict=True):
        calls = trace_calls(command, ROOT / "src", until_step=False)
        expected = [f"trifold/{name} {function}" for name, function in table]
        missing = [call for call in expected if call not in calls]
        assert not missing, f"not called by `trifold {command[0]}`"
        assert expected == sorted(expected, key=calls.index), "not the order of first use"
