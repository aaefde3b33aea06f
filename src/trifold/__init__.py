"""Train, run and inspect Transformers: encoder-decoders, encoders and decoders.

    import trifold

    trifold.train("multi30k-en-de", **{"train.steps": 2000})       # writes runs/multi30k-en-de
    translator = trifold.load("runs/multi30k-en-de")               # a run, a folder, or a hub id
    print(translator.generate("A dog runs."))

Importing this package is fast: each public name is imported when it is first used.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trifold.nn import ModelConfig, Transformer
    from trifold.pipeline import generate, load
    from trifold.recipe import Recipe
    from trifold.text import Tokenizer
    from trifold.train.loop import resume, train

__version__ = "0.2.0"

__all__ = ["ModelConfig", "Recipe", "Tokenizer", "Transformer", "__version__"]
__all__ += ["generate", "load", "resume", "train"]

_MODULES = {
    "ModelConfig": "trifold.nn",
    "Recipe": "trifold.recipe",
    "Tokenizer": "trifold.text",
    "Transformer": "trifold.nn",
    "generate": "trifold.pipeline",
    "load": "trifold.pipeline",
    "resume": "trifold.train.loop",
    "train": "trifold.train",
}


class _Package(ModuleType):
    """Keeps `trifold.train` and `trifold.generate` functions, although there are packages of the
    same names.

    Importing a subpackage binds its name in this module, so without this class the meaning of
    `trifold.train` would depend on earlier imports. `from trifold.train.loop import …` is not
    affected.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(
            f"module 'trifold' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    if _MODULES[name] == "trifold.nn":
        importlib.import_module("trifold.fast").enable()
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
