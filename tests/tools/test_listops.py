"""ListOps: the same seed writes the same bytes, and another evaluator finds the same labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from tools import listops

INNERMOST = re.compile(r"\[(\w+) ([\d ]+) \]")
RULES: dict[str, Callable[[list[int]], int]] = {  # of sorted values
    "MIN": lambda values: values[0],
    "MAX": lambda values: values[-1],
    "MED": lambda values: (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2,
    "SM": lambda values: int(str(sum(values))[-1]),
}


def evaluate(text: str) -> tuple[int, int, Counter[int]]:
    """The value, the levels of lists, and the numbers of arguments; lists are replaced from the
    inside.
    """
    levels, sizes = 0, Counter[int]()

    def value(match: re.Match[str]) -> str:
        values = sorted(map(int, match[2].split()))
        sizes[len(values)] += 1
        return str(RULES[match[1]](values))

    while "[" in text:
        text, levels = INNERMOST.sub(value, text), levels + 1
    return int(text), levels, sizes


def test_labels_lengths_and_shapes() -> None:
    limits = {"shortest": 16, "longest": 512, "arguments": 5, "depth": 10}
    rows = [*islice(listops.expressions(1, **limits), 500)]
    assert len({text for text, _ in rows}) == 500
    lengths = [len(text.split(" ")) for text, _ in rows]
    assert min(lengths) >= 16 and 256 < max(lengths) <= 512
    found = [evaluate(text) for text, _ in rows]
    assert [value for value, _, _ in found] == [value for _, value in rows]
    assert max(levels for _, levels, _ in found) == 9  # the tenth level has digits only
    assert {*sum((sizes for _, _, sizes in found), Counter[int]())} == {2, 3, 4, 5}
    labels = Counter(value for _, value in rows)
    assert len(labels) == 10 and max(labels.values()) < 150
    assert {text.split(" ")[0] for text, _ in rows} == {f"[{name}" for name in RULES}


def test_files_are_a_function_of_the_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        sizes = [
            "--shortest",
            "100",
            "--longest",
            "200",
            "--arguments",
            "10",
            "--rows",
            "8",
            "4",
            "4",
        ]
        listops.main([str(tmp_path / name), *sizes, "--seed", str(seed)])
    first, same, other = (
        [(tmp_path / name / f"{split}.tsv").read_bytes() for split in ("train", "valid", "test")]
        for name in "abc"
    )
    assert first == same and first != other
    texts = [line.split(b"\t") for file in first for line in file.splitlines()[1:]]
    assert len({text for text, _ in texts}) == 16, "an expression occurs twice"
    assert all(100 <= len(text.split(b" ")) <= 200 for text, _ in texts)
