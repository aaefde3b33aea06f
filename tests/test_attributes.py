"""Attributes exist after the constructor, so that no method can be called too early."""

from __future__ import annotations

import ast
from pathlib import Path

import trifold

PACKAGE = Path(trifold.__file__).parent
CONSTRUCTORS = {"__init__", "__new__", "__post_init__", "__enter__"}
# A linear layer of a built model becomes this one, and is adapted at once.
EXCEPTIONS = {"AdaptedLinear.adapt"}


def assigned_to_self(function: ast.FunctionDef) -> set[str]:
    """The attributes of `self` that a method assigns."""
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def methods_of(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [item for item in node.body if isinstance(item, ast.FunctionDef)]


def declared_in(node: ast.ClassDef) -> set[str]:
    """The attributes that the class or its constructor assigns."""
    names = set[str]()
    for item in node.body:
        targets = [item.target] if isinstance(item, ast.AnnAssign) else []
        if isinstance(item, ast.Assign):
            targets = item.targets
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    for method in methods_of(node):
        if method.name in CONSTRUCTORS:
            names |= assigned_to_self(method)
    return names


def test_methods_assign_attributes_of_the_constructor_only() -> None:
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in PACKAGE.rglob("*.py"))
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert len(nodes) > 400
    by_name = {node.name: node for node in nodes}

    def existing(node: ast.ClassDef) -> set[str]:
        names = declared_in(node)
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in by_name and base.id != node.name:
                names |= existing(by_name[base.id])
        return names

    late = {
        f"{node.name}.{method.name}"
        for node in nodes
        for method in methods_of(node)
        if not assigned_to_self(method) <= existing(node)
    }
    assert late == EXCEPTIONS
