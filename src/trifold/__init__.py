"""One Transformer, three shapes: encoder-decoder, encoder, decoder, put together from one set of parts.

    import trifold

    trifold.train("multi30k-en-de", **{"train.steps": 2000})       # writes runs/multi30k-en-de
    translator = trifold.load("runs/multi30k-en-de")               # a run, a folder, or a hub id
    print(translator.generate("A dog runs."))

Importing this package imports nothing slow: each name below is fetched from its room when first used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trifold.nn import ModelConfig, Transformer
    from trifold.pipeline import generate, load
    from trifold.recipe import Recipe
    from trifold.text import Tokenizer
    from trifold.train import train

__version__ = "0.1.0"

__all__ = ["ModelConfig", "Recipe", "Tokenizer", "Transformer", "__version__", "generate", "load", "train"]

_ROOMS = {
    "ModelConfig": "trifold.nn",
    "Recipe": "trifold.recipe",
    "Tokenizer": "trifold.text",
    "Transformer": "trifold.nn",
    "generate": "trifold.pipeline",
    "load": "trifold.pipeline",
    "train": "trifold.train",
}


class _Face(ModuleType):
    """Keeps `train` and `generate` functions, though rooms have the same names.

    Importing a submodule binds it in its parent, so without this the meaning of `trifold.train` would depend
    on what ran before. `from trifold.train.loop import …` is not affected.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _ROOMS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'trifold' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = globals()[name] = getattr(importlib.import_module(_ROOMS[name]), name)
    if _ROOMS[name] == "trifold.nn":
        importlib.import_module("trifold.fast").enable()
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
