"""What a Python function's body does, read from its syntax tree."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_ACTS = ast.Call | ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr
_LATER = (
    ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
)  # what is in them is not done here
_ENDS = ast.Return | ast.Raise


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
            if len(body) != 1 or not isinstance(body[0], ast.FunctionDef | ast.AsyncFunctionDef):
                return Verdict(False, False)
            return Verdict(True, does_something(body[0]))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return Verdict(False, False)


def does_something(function: FunctionNode) -> bool:
    """Whether a statement of the body is more than pass, a docstring, `...`, a bare value or name, an import, a bare
    annotation, `x = x`, `del x`, `assert True`, a `return` of nothing, of a bare name or of what holds constants only,
    or `raise NotImplementedError`; more than a block, a function or a class of such; or the body has several ends.
    """
    ends = next((n for n, one in enumerate(function.body, start=1) if isinstance(one, _ENDS)), None)
    body = function.body[:ends]  # what follows is never reached
    return not all(map(_is_idle, body)) or len({*_ends(body)}) > 1


def is_docstring(statement: ast.stmt) -> bool:
    """Whether that is a text by itself."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_idle(node: ast.AST) -> bool:
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
            return {*map(ast.unparse, targets)} == {ast.unparse(value)} and not _acts(value)
        case ast.Delete(targets=targets):
            return all(isinstance(target, ast.Name) for target in targets)
        case ast.Assert(test=test):
            return isinstance(test, ast.Constant) and bool(test.value)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return not (node.decorator_list or _acts(node.args) or does_something(node))
        case ast.ClassDef():
            return not node.decorator_list and all(map(_is_idle, ast.iter_child_nodes(node)))
        case (
            ast.Expr()
            | ast.If()
            | ast.For()
            | ast.While()
            | ast.With()
            | ast.Try()
            | ast.TryStar()
            | ast.Match()
        ):
            return all(map(_is_idle, ast.iter_child_nodes(node)))
        case ast.ExceptHandler() | ast.match_case():
            return all(map(_is_idle, ast.iter_child_nodes(node)))
    return not (isinstance(node, ast.stmt) or _acts(node))


def _is_constant(value: ast.expr | None) -> bool:
    """`0`, `-1`, `[]`, `(None, {})`, `f''`; not `**a`, which is a None among the keys of a display."""
    match value:
        case ast.UnaryOp(operand=operand):
            return _is_constant(operand)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) | ast.JoinedStr(values=parts):
            return all(map(_is_constant, parts))
        case ast.Dict(keys=keys, values=values):
            return all(map(_is_constant, [*keys, *values]))
    return isinstance(value, ast.Constant)


def _acts(node: ast.AST) -> bool:
    """Whether something is called, waited for or set in an expression."""
    return any(
        isinstance(one, _ACTS)
        or (isinstance(one, ast.Attribute | ast.Subscript) and not isinstance(one.ctx, ast.Load))
        for one in _done(node)
    )


def _ends(body: Iterable[ast.stmt]) -> Iterator[str]:
    """How one gets out of it: by what is returned or raised, and by its last line unless that is such."""
    last = None
    for last in body:
        for one in _done(last):
            if isinstance(one, _ENDS):
                text = ast.unparse(one)
                yield "return None" if text == "return" else text
    if not isinstance(last, _ENDS):
        yield "return None"


def _done(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all under it, but for what is done later."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, _LATER):
            yield node
            waiting += ast.iter_child_nodes(node)
