"""Parts from outside of the package. They are code, so only a user names them: with
`trifold.nn.register`, in a recipe file that the command line names (`model.parts`), or with the
option `--part`. A folder names the parts of its model, and imports nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from trifold.errors import UsageError
from trifold.nn import registry
from trifold.nn.parts import Part


def load_part(name: str) -> tuple[Part, ...]:
    """Import and register the parts of that name, once: of a module with PARTS
    (`my_package.my_module`), or an object of a module, a part or a class of parts
    (`my_package.MyPart`).

    Modules of the working directory are found. Raises UsageError.
    """
    loaded = registry._loaded
    if name not in loaded:
        loaded[name] = tuple(each() if isinstance(each, type) else each for each in _find(name))
        for part in loaded[name]:
            registry.register(part)
    return loaded[name]


def _find(name: str) -> Iterator[Any]:
    if "" not in sys.path:
        sys.path.append("")
    module, _, attribute = name.rpartition(".")
    found: Any
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name and not name.startswith(f"{error.name}."):
            raise
        if not module:
            raise UsageError(f"{name}: no such module; check the name and the directory") from None
        found = getattr(importlib.import_module(module), attribute, None)
    parts = getattr(found, "PARTS", ()) if isinstance(found, ModuleType) else (found,)
    if not parts or not all(isinstance(each, Part) or _is_class(each) for each in parts):
        raise UsageError(
            f"{name}: is no part; name a module with PARTS, a part, or a subclass of "
            "trifold.nn.parts.Part"
        )
    yield from parts


def _is_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Part)
