"""Deprecated names of version 0.1: `trifold.tasks` is now `trifold.objectives` and `trifold.predict`."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

_RENAMED = {"Term": "LossTerm", "Translate": "Translate", "TranslateSettings": "TranslateSettings"}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module 'trifold.tasks' has no attribute {name!r}")
    new = _RENAMED[name]
    warnings.warn(
        f"trifold.tasks.{name} is deprecated; use trifold.objectives.{new}", DeprecationWarning, stacklevel=2
    )
    return getattr(importlib.import_module("trifold.objectives"), new)
