"""Laws of the texts that src prints, found in its templates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import trifold

SOURCES = Path(trifold.__file__).parent
# Word lists, and templates that align columns, are no sentences.
NO_SENTENCES = {"suggest.py"}
FAULTS = {
    "two spaces in a sentence": r"[a-z0-9}][,;.]?  +(?:[a-z]+ ){2}",
    "a word twice": r"(?<![\w-])(?!that\b)([a-z]{2,}) \1(?![\w-])",
    "an article before a vowel": r"\ba (?:archive|image|error|id|object|entry|integer|empty|unknown)\b",
    "a count of one with a plural": r"(?<!\{)\b1 (?:rows|columns|lines|texts|pairs|files|tokens|words)\b",
}
EXCEPTIONS = {"leave out --to to keep the native form", "demo demo-bf16"}


def templates(tree: ast.AST) -> Iterator[str]:
    """The texts of a module but its docstrings, with {} for values."""
    skipped = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield "".join(
                part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in skipped:
            yield node.value


def faults(text: str) -> list[str]:
    return [
        fault
        for fault, pattern in FAULTS.items()
        if "\n" not in text and re.search(pattern, text) is not None
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{}: no such file;  check the path", "two spaces in a sentence"),
        ("name the the file", "a word twice"),
        ("{} is not a archive", "an article before a vowel"),
        ("1 rows are left", "a count of one with a plural"),
    ],
)
def test_a_fault_is_found(text: str, fault: str) -> None:
    assert faults(text) == [fault]


def test_no_template_has_a_fault() -> None:
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        if path.name not in NO_SENTENCES:
            tree = ast.parse(path.read_text("utf-8"))
            for text in templates(tree):
                if not any(exception in text for exception in EXCEPTIONS):
                    found += [f"{path.name}: {fault}: {text:.80}" for fault in faults(text)]
    assert found == []
