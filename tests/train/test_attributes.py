"""Attributes exist after the constructor, so that no method can be called too early."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import trifold

FILES = sorted((Path(trifold.__file__).parent / "train").glob("*.py"))


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


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_methods_assign_attributes_of_the_constructor_only(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ClassDef):
            continue
        methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        existing = {
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        if "__init__" in methods:
            existing |= assigned_to_self(methods["__init__"])
        for name, method in methods.items():
            assert assigned_to_self(method) <= existing, f"{node.name}.{name}"
