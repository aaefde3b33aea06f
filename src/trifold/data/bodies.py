"""What a Python function's body does, read from its syntax tree."""

from __future__ import annotations

import ast
import warnings
from typing import NamedTuple, TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_ACTS = ast.Call | ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr


class Verdict(NamedTuple):
    """Of a text: is it exactly one function by the grammar, and does its body do something?"""

    parses: bool
    does: bool


def judge(text: str) -> Verdict:
    """Of a function's signature and the body that was written behind it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes and comparisons, which are allowed
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return Verdict(False, False)
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef | ast.AsyncFunctionDef):
        return Verdict(False, False)
    return Verdict(True, does_something(body[0]))


def does_something(function: FunctionNode) -> bool:
    """Whether a statement of the body is more than pass, a docstring, `...`, a bare value or name, an import, a
    `return` of nothing, of a constant or of a bare name, or `raise NotImplementedError`.
    """
    return not all(_is_idle(statement) for statement in function.body)


def is_docstring(statement: ast.stmt) -> bool:
    """Whether that is a text by itself."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_idle(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Global() | ast.Nonlocal() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=value):
            return not any(isinstance(node, _ACTS) for node in ast.walk(value))
        case ast.Return(value=value):
            return value is None or isinstance(value, ast.Constant | ast.Name)
        case ast.Raise(exc=ast.Name(id=name)) | ast.Raise(exc=ast.Call(func=ast.Name(id=name))):
            return name == "NotImplementedError"
    return False
