"""Tiny models of all families; see tiny.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Tiny(NamedTuple):
    """A family in tiny.yaml."""

    stem: str
    sizes: dict[str, Any]
    cases: dict[str, tuple[str, dict[str, Any]]]
    prefix: str = ""
    buffer: str = ""
    config: str = ""

    @property
    def config_class(self) -> str:
        """The name of the configuration class of transformers."""
        return self.config or f"{self.stem}Config"

    @property
    def bare(self) -> str:
        """The end of the name of the class without heads."""
        return next(ending for ending, _ in self.cases.values() if ending in ("Model", "TextModel"))


_TEXT = Path(__file__).with_name("tiny.yaml").read_text(encoding="utf-8")
# The loader in C, which not every build of PyYAML has, is ten times as fast.
_TABLE = yaml.load(_TEXT, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
TINY = {family: Tiny(**values) for family, values in _TABLE.items()}
