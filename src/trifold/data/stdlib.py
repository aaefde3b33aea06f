"""The standard library's own sources: text that every Python carries, found through the interpreter.

Functions are kept without decorators, docstrings and comments, written the way `ast.unparse` writes them, so that a
small model need not learn everybody's taste in white space. What is held out is held out by names and texts alone:
the same function or docstring falls on the same side in every version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from trifold.data.bodies import FunctionNode, does_something, is_docstring
from trifold.errors import DataError

OTHERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}  # folders left out
FEWEST = 1000  # functions (or docstrings) below which an installation has no sources worth the name
WORDS = 5  # of a docstring that says something
PACKAGES = 12  # with most docstrings, between which one is told

Owner: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """A file of the library by its dotted name, and by what it belongs to."""

    name: str
    package: str | None  # the folder at the top that it lies in, None of a file by itself
    tree: ast.Module


class Function(NamedTuple):
    """A function: its signature is one line, from `def` to the colon, and a prefix of its text."""

    module: str
    signature: str
    text: str


class Docstring(NamedTuple):
    """What a module, a class or a function says of itself."""

    package: str | None
    text: str


def home() -> Path:
    """The folder of the library, as this interpreter has it."""
    return Path(sysconfig.get_paths()["stdlib"])


# --- files ------------------------------------------------------------------------------------------------


def modules(folder: Path) -> Iterator[Module]:
    """Every module that can be read, in the order of names; tests and what others have installed are left out."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if OTHERS.isdisjoint(parts[:-1]) and (tree := _parsed(path)) is not None:
            yield Module(".".join(parts), parts[0] if len(parts) > 1 else None, tree)


def _parsed(path: Path) -> ast.Module | None:
    """None of a file that is kept for another Python, or is no Python at all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes that their authors will have to mend
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError):
            return None


def _enough(found: int, what: str, folder: Path) -> None:
    """Raises DataError where an installation has no sources."""
    if found < FEWEST:
        raise DataError(
            f"{folder}: {found:,} {what} in the standard library's sources, and {FEWEST:,} are needed: this Python "
            "was installed without them (as archives or compiled files only); use one from python.org, uv or your "
            "system's full package (Debian: libpython3-stdlib), which keeps .py files there"
        )


def _drawn(text: str, sides: int) -> int:
    """Which of so many equal shares a text falls into."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") % sides


# --- functions --------------------------------------------------------------------------------------------


def functions(folder: Path) -> list[Function]:
    """Functions and methods whose body does something, each text once. Raises DataError where there are too few."""
    found: dict[str, Function] = {}
    for module in modules(folder):
        for node in _defined(module.tree.body):
            text = ast.unparse(_bare(node))
            if does_something(node):
                found.setdefault(text, Function(module.name, text.partition("\n")[0], text))
    _enough(len(found), "functions", folder)
    return list(found.values())


def _defined(body: Iterable[ast.stmt]) -> Iterator[FunctionNode]:
    """Functions of a module and methods of its classes; not those inside functions, which belong to their texts."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        elif isinstance(statement, ast.ClassDef):
            yield from _defined(statement.body)
        elif isinstance(statement, ast.If | ast.Try):
            yield from _defined([*statement.body, *statement.orelse])


def _bare(function: FunctionNode) -> FunctionNode:
    """The function itself, without decorators, and without docstrings also of what it holds."""
    function.decorator_list = []
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and is_docstring(
            node.body[0]
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return function


def divided(found: Iterable[Function]) -> dict[str, list[Function]]:
    """The parts train, valid and test: whole modules. No signature of a test function is one of a training function."""
    parts: dict[str, list[Function]] = {"train": [], "valid": [], "test": []}
    for function in found:
        parts[{0: "test", 1: "test", 2: "valid"}.get(_drawn(function.module, 20), "train")].append(function)
    known = {function.signature for function in parts["train"]}
    parts["test"] = [function for function in parts["test"] if function.signature not in known]
    return parts


# --- docstrings -------------------------------------------------------------------------------------------


@cache
def docstrings(folder: Path) -> list[Docstring]:
    """Docstrings of some words' length, each text once: one that several packages share belongs to none of them.

    Raises DataError where there are too few.
    """
    found: dict[str, Docstring] = {}
    for module in modules(folder):
        for node in ast.walk(module.tree):
            if isinstance(node, Owner) and (text := ast.get_docstring(node, clean=False)):
                text = inspect.cleandoc(text).strip()
                if len(text.split()) < WORDS:
                    continue
                before = found.get(text)
                shared = before is not None and before.package != module.package
                found[text] = Docstring(None if shared else module.package, text)
    _enough(len(found), "docstrings", folder)
    return list(found.values())


def side(docstring: Docstring) -> str:
    """The part that it belongs to, train, valid or test, by its letters alone: texts that differ in case, white space,
    digits and punctuation only are on one side.
    """
    said = "".join(filter(str.isalpha, docstring.text.lower()))
    return {0: "test", 1: "test", 2: "test", 3: "valid"}.get(_drawn(said, 20), "train")


def packages(found: Iterable[Docstring]) -> list[str]:
    """Those with most docstrings, in the order of names."""
    counts = Counter(docstring.package for docstring in found if docstring.package is not None)
    return sorted(name for name, _ in sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:PACKAGES])
