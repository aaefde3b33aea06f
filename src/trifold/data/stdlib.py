"""Functions and docstrings of the Python standard library, training data that needs no download.

Functions are stripped of decorators, docstrings and comments and printed by `ast.unparse`, so that a small model does
not have to learn formatting. The split of an example depends on its names and text only, so it is the same in every
version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from trifold.errors import DataError

EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
MIN_EXAMPLES = 1000  # an installation with fewer functions or docstrings has no usable sources
MIN_WORDS = 5  # of a docstring

Row: TypeAlias = dict[str, Any]  # a function (text, signature, module) or a docstring (text)
FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_EFFECTS = ast.Call | ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr
_DEFERRED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda  # their bodies do not run here
_EXITS = ast.Return | ast.Raise
_COMPOUND = (
    ast.Expr | ast.If | ast.For | ast.While | ast.With | ast.Try | ast.TryStar | ast.Match
    | ast.ExceptHandler | ast.match_case
)  # fmt: skip


class FunctionCheck(NamedTuple):
    """Whether a text parses as exactly one function, and whether the body of that function does something."""

    parses: bool
    does_something: bool


def library_folder() -> Path:
    """The folder of the standard library of this interpreter."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_modules(folder: Path) -> Iterator[tuple[str, ast.Module]]:
    """Name and tree of every module that can be parsed, without tests and installed packages, sorted by path."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if EXCLUDED_FOLDERS.isdisjoint(parts[:-1]) and (tree := _parse(path)) is not None:
            yield ".".join(parts), tree


def _parse(path: Path) -> ast.Module | None:
    """None if the file is not valid Python for this version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escape sequences
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError):
            return None


def _check_count(found: int, kind: str, folder: Path) -> None:
    if found < MIN_EXAMPLES:
        raise DataError(
            f"{folder}: found {found:,} {kind} in the sources of the standard library, at least {MIN_EXAMPLES:,} are "
            "needed: this Python was installed without source files; use one from python.org, uv or the full package "
            "of your system (Debian: libpython3-stdlib)"
        )


def _split(rows: Iterable[Row], key: Callable[[Row], str], test: int) -> dict[str, list[Row]]:
    """Rows by split, which depends on the hash of the key: of twenty, `test` are for test and one for validation."""
    splits: dict[str, list[Row]] = {"train": [], "valid": [], "test": []}
    for row in rows:
        digest = hashlib.sha256(key(row).encode("utf-8", "surrogatepass")).digest()
        bucket = int.from_bytes(digest[:8], "big") % 20
        splits["test" if bucket < test else "valid" if bucket == test else "train"].append(row)
    return splits


# --- functions --------------------------------------------------------------------------------------------


def read_functions(folder: Path) -> list[Row]:
    """Functions and methods whose body does something, without duplicates. Raises DataError if there are too few.

    The signature is the first line of the text, from `def` to the colon.
    """
    found: dict[str, Row] = {}
    for module, tree in read_modules(folder):
        for node in _definitions(tree.body):
            text = ast.unparse(_strip(node))
            if does_something(node):
                row = {"text": text, "signature": text.partition("\n")[0], "module": module}
                found.setdefault(text, row)
    _check_count(len(found), "functions", folder)
    return list(found.values())


def split_functions(functions: Iterable[Row]) -> dict[str, list[Row]]:
    """Split into train, valid and test by module. No signature of the test split occurs in the training split."""
    splits = _split(functions, itemgetter("module"), test=2)
    known = {row["signature"] for row in splits["train"]}
    splits["test"] = [row for row in splits["test"] if row["signature"] not in known]
    return splits


def _definitions(body: Iterable[ast.stmt]) -> Iterator[FunctionNode]:
    """Functions of a module and methods of its classes, without nested functions."""
    for statement in body:
        if isinstance(statement, FunctionNode):
            yield statement
        elif isinstance(statement, ast.ClassDef):
            yield from _definitions(statement.body)
        elif isinstance(statement, ast.If | ast.Try):
            yield from _definitions([*statement.body, *statement.orelse])


def _strip(function: FunctionNode) -> FunctionNode:
    """Remove the decorators and all docstrings, those of nested definitions included."""
    function.decorator_list = []
    for node in ast.walk(function):
        if isinstance(node, FunctionNode | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return function


# --- docstrings -------------------------------------------------------------------------------------------


def read_docstrings(folder: Path) -> list[Row]:
    """Docstrings of at least MIN_WORDS words, without duplicates. Raises DataError if there are too few."""
    found: dict[str, None] = {}
    for _, tree in read_modules(folder):
        for node in ast.walk(tree):
            if isinstance(node, FunctionNode | ast.Module | ast.ClassDef) and (
                text := ast.get_docstring(node, clean=False)
            ):
                text = inspect.cleandoc(text).strip()
                if len(text.split()) >= MIN_WORDS:
                    found[text] = None
    _check_count(len(found), "docstrings", folder)
    return [{"text": text} for text in found]


def split_docstrings(docstrings: Iterable[Row]) -> dict[str, list[Row]]:
    """Split into train, valid and test by the letters only.

    Texts that differ in case, white space, digits or punctuation share a split.
    """
    return _split(docstrings, lambda row: "".join(filter(str.isalpha, row["text"].lower())), test=3)


# --- does a function do something? ------------------------------------------------------------------------


def check_function(text: str) -> FunctionCheck:
    """Check a generated function, given as source text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escape sequences, comparisons with literals
        try:
            body = ast.parse(text).body
            if len(body) != 1 or not isinstance(body[0], FunctionNode):
                return FunctionCheck(False, False)
            return FunctionCheck(True, does_something(body[0]))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return FunctionCheck(False, False)


def does_something(function: FunctionNode) -> bool:
    """Whether the body has a statement with an effect, or can return or raise in more than one way.

    Statements without an effect: pass, docstrings, constants, names, imports, bare annotations, `x = x`, `del x`,
    `assert True`, `return` of nothing, a name or a constant, `raise NotImplementedError`, and blocks, functions and
    classes that contain nothing else.
    """
    exits = (n for n, statement in enumerate(function.body, start=1) if isinstance(statement, _EXITS))
    reachable = function.body[: next(exits, None)]
    return not all(map(_is_noop, reachable)) or len(set(_exits(reachable))) > 1


def _is_noop(node: ast.AST) -> bool:
    match node:
        case ast.Pass() | ast.Break() | ast.Continue() | ast.Global() | ast.Nonlocal():
            return True
        case ast.Import() | ast.ImportFrom() | ast.AnnAssign(value=None):
            return True
        case ast.Return(value=value):
            return value is None or isinstance(value, ast.Name) or _is_constant(value)
        case ast.Raise(exc=ast.Name(id=name)) | ast.Raise(exc=ast.Call(func=ast.Name(id=name))):
            return name == "NotImplementedError"
        case ast.Assign(targets=targets, value=value):
            return {*map(ast.unparse, targets)} == {ast.unparse(value)} and not _has_effect(value)
        case ast.Delete(targets=targets):
            return all(isinstance(target, ast.Name) for target in targets)
        case ast.Assert(test=test):
            return isinstance(test, ast.Constant) and bool(test.value)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return not (node.decorator_list or _has_effect(node.args) or does_something(node))
        case ast.ClassDef():
            return not node.decorator_list and all(map(_is_noop, ast.iter_child_nodes(node)))
    if isinstance(node, _COMPOUND):
        return all(map(_is_noop, ast.iter_child_nodes(node)))
    return not (isinstance(node, ast.stmt) or _has_effect(node))


def _is_constant(value: ast.expr | None) -> bool:
    """`0`, `-1`, `[]`, `(None, {})` or `f''`. The key of `**a` in a dict display is None, which is not constant."""
    match value:
        case ast.UnaryOp(operand=operand):
            return _is_constant(operand)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) | ast.JoinedStr(values=parts):
            return all(map(_is_constant, parts))
        case ast.Dict(keys=keys, values=values):
            return all(map(_is_constant, [*keys, *values]))
    return isinstance(value, ast.Constant)


def _has_effect(node: ast.AST) -> bool:
    """Whether evaluating an expression calls, awaits, yields or assigns anything."""
    return any(
        isinstance(child, _EFFECTS)
        or (isinstance(child, ast.Attribute | ast.Subscript) and not isinstance(child.ctx, ast.Load))
        for child in _executed_nodes(node)
    )


def _exits(body: Iterable[ast.stmt]) -> Iterator[str]:
    """The source of every `return` and `raise`; reaching the end of the body counts as `return None`."""
    last = None
    for last in body:
        for node in _executed_nodes(last):
            if isinstance(node, _EXITS):
                text = ast.unparse(node)
                yield "return None" if text == "return" else text
    if not isinstance(last, _EXITS):
        yield "return None"


def _executed_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The node and its descendants, without the bodies of nested functions, lambdas and classes."""
    stack = [node]
    while stack:
        node = stack.pop()
        if not isinstance(node, _DEFERRED):
            yield node
            stack += ast.iter_child_nodes(node)
