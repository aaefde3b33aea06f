"""All families by `model_type`, in the order in which they are tried for a config that was made here.

Every `Family` in a file of this folder is found by itself: a new family is a new file.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from trifold.hub.family import Family


def found() -> dict[str, Family]:
    """The families in the files of this folder, `general` ones last."""
    families: dict[str, Family] = {}
    for file in sorted(module.name for module in iter_modules(__path__)):
        for family in vars(import_module(f"{__name__}.{file}")).values():
            if isinstance(family, Family):
                taken = families.setdefault(family.model_type, family)
                assert taken is family, f"{file}: the family {family.model_type} exists already"
    return dict(sorted(families.items(), key=lambda named: named[1].general))


FAMILIES = found()

__all__ = ["FAMILIES", "found"]
