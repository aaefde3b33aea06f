"""Functions of the Python standard library, training data that needs no download.

Functions are stripped of decorators, docstrings and comments and printed by `ast.unparse`, so that
a small model does not have to learn formatting. The split of an example depends on its names and
text only, so it is the same in every version of Python.
"""

import ast
import hashlib
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from trifold.errors import DataError
from trifold.folders import open_found

EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
MIN_FUNCTIONS = 1000  # an installation with fewer has no usable sources

Row: TypeAlias = dict[str, Any]  # a function: text, signature, module
_BUCKETS = 20  # of modules
_SPLIT_OF_BUCKET = {0: "test", 1: "test", 2: "valid"}  # the others are training data

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_EXITS = ast.Return | ast.Raise
_EFFECTS = (
    ast.Call | ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Assign
    | ast.AugAssign | ast.Assert | ast.Delete | ast.Raise
)  # fmt: skip


class FunctionCheck(NamedTuple):
    """Whether a text parses as exactly one function, and whether the body of that function does
    something.
    """

    parses: bool
    does_something: bool


def library_folder() -> Path:
    """The folder of the standard library of this interpreter."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_modules(folder: Path) -> Iterator[tuple[str, ast.Module]]:
    """Name and tree of every module that can be parsed, without tests and installed packages,
    sorted by path.
    """
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if EXCLUDED_FOLDERS.isdisjoint(parts[:-1]) and (tree := _parse(path)) is not None:
            yield ".".join(parts), tree


def _parse(path: Path) -> ast.Module | None:
    """None if the file is not valid Python for this version."""
    # The warnings are about invalid escape sequences.
    with (
        warnings.catch_warnings(action="ignore"),
        suppress(SyntaxError, ValueError, OSError, RecursionError),
        open_found(path, DataError) as file,
    ):
        return ast.parse(file.read())
    return None


# --- functions ------------------------------------------------------------------------------------


def read_functions(folder: Path) -> list[Row]:
    """Functions and methods whose body does something, without duplicates. Raises DataError if
    there are too few.

    The signature is the first line of the text, from `def` to the colon.
    """
    functions: dict[str, Row] = {}
    for module, tree in read_modules(folder):
        for node in _definitions(tree.body):
            text = ast.unparse(_strip(node))
            if does_something(node):
                row = {"text": text, "signature": text.partition("\n")[0], "module": module}
                functions.setdefault(text, row)
    if len(functions) < MIN_FUNCTIONS:
        raise DataError(
            f"{folder}: the sources of the standard library have {len(functions):,} functions, "
            f"fewer than {MIN_FUNCTIONS:,}: this Python was installed without source files; use "
            "one from python.org, uv or the full package of your system (Debian: libpython3-stdlib)"
        )
    return list(functions.values())


def split_functions(functions: Iterable[Row]) -> dict[str, list[Row]]:
    """Split into train, valid and test by module. No signature of the test split occurs in the
    training split.
    """
    splits: dict[str, list[Row]] = {"train": [], "valid": [], "test": []}
    for row in functions:
        digest = hashlib.sha256(row["module"].encode("utf-8", "surrogatepass")).digest()
        bucket = int.from_bytes(digest[:8], "big") % _BUCKETS
        splits[_SPLIT_OF_BUCKET.get(bucket, "train")].append(row)
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
        if (
            isinstance(node, FunctionNode | ast.ClassDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return function


# --- does a function do something? ----------------------------------------------------------------


def check_function(text: str) -> FunctionCheck:
    """Check a generated function, given as source text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escape sequences, comparisons with literals
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            match ast.parse(text).body:
                case [ast.FunctionDef() | ast.AsyncFunctionDef() as function]:
                    return FunctionCheck(True, does_something(function))
    return FunctionCheck(False, False)


def does_something(function: FunctionNode) -> bool:
    """Whether the body, up to its first return or raise, has an effect or a result that it
    computes.

    An effect is a call, an assignment, an assertion, a deletion, a `yield`, or an error other than
    NotImplementedError; a result that is computed is more than a name or constants.
    """
    body = enumerate(function.body, start=1)
    exits = (number for number, statement in body if isinstance(statement, _EXITS))
    stack: list[ast.AST] = [*function.body[: next(exits, None)]]
    while stack:
        match node := stack.pop():
            case (
                ast.Raise(exc=ast.Name(id=name)) | ast.Raise(exc=ast.Call(func=ast.Name(id=name)))
            ) if name == "NotImplementedError":
                continue
            case ast.Assign(targets=[target], value=value) if ast.unparse(target) == ast.unparse(
                value
            ):
                continue
            case ast.Assert(test=ast.Constant(value=True)):
                continue
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Name):
                if any(isinstance(child, ast.Name) for child in ast.walk(value)):
                    return True
        if isinstance(node, _EFFECTS) or (
            isinstance(node, ast.AnnAssign) and node.value is not None
        ):
            return True
        stack += ast.iter_child_nodes(node)
    return False
