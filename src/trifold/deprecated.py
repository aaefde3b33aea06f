"""Names of version 0.1 that work for one more release, with a DeprecationWarning."""

import importlib
import sys
import warnings
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

MODULES = {
    "trifold.data.pictures": "trifold.data.images",
    "trifold.data.readers": "trifold.data.pairs",
    "trifold.look.differences": "trifold.look.comparison",
    "trifold.look.costs": "trifold.costs",
    "trifold.tasks": "trifold.objectives",
    "trifold.text.marks": "trifold.text.annotation",
}

# Old name, qualified by its old module or its class -> new name.
NAMES = {
    "trifold.batches.shares": "split_batch",
    "trifold.data.DocumentSplits": "Splits",
    "trifold.data.Row": "pairs.Row",
    "trifold.data.hold_out": "Pairs.hold_out",
    "trifold.data.hold_out_documents": "Documents.hold_out",
    "trifold.data.pictures.MOST_PIXELS": "MAX_PIXELS",
    "trifold.data.pictures.PictureSettings": "ImageSettings",
    "trifold.data.pictures.read_picture": "read_image",
    "trifold.generate.Limit": "OutputLimit",
    "trifold.generate.Speaker": "TextStreamer",
    "trifold.generate.limit": "output_limit",
    "trifold.generate.until_stop": "truncate_at_stop",
    "trifold.look.Seen": "AttentionMaps",
    "trifold.look.seen": "read_attention",
    "trifold.tasks.Term": "LossTerm",
    "trifold.text.marks.Marked": "AnnotatedTexts",
    "trifold.text.marks.mark": "annotate",
    "trifold.text.marks.sentence_starts": "find_sentence_starts",
    "trifold.text.marks.unknown": "count_unknown",
    "DocumentReport.passed_over": "skipped_files",
    "Tokenizer.knows_places": "has_offsets",
    "Tokenizer.reading": "encoding_digest",
    "Tokenizer.tells_segments": "has_token_types",
}

# Old name, which the module `deprecated` of its package defines -> new name, which has another
# signature.
REDEFINED = {
    "trifold.data.iter_documents": "read_documents",
    "trifold.data.iter_rows": "read_pairs",
    "trifold.data.read_document_splits": "read_splits",
    "trifold.data.read_lines": "iter_lines",
}


def find_spec(name: str) -> ModuleSpec | None:
    """What `import` needs to load a module under its old name; None for other names."""
    return ModuleSpec(name, _Loader()) if name in MODULES else None


class _Loader(Loader):
    """Makes a module that finds its names in the new module."""

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = importlib.import_module(MODULES[old])
        module.__getattr__ = lambda name: renamed(new, old, name)  # type: ignore[method-assign]


def add_old_names(package: str) -> None:
    """Give a package its old names too."""
    module = sys.modules[package]
    module.__getattr__ = lambda name: renamed(module, package, name)  # type: ignore[method-assign]


def has_old_names(cls: type[T]) -> type[T]:
    """Decorator: objects of the class have its old names too."""
    cls.__getattr__ = lambda self, name: renamed(self, cls.__name__, name)  # type: ignore[attr-defined]
    return cls


def renamed(owner: Any, old_owner: str, name: str) -> Any:
    """`__getattr__` of a module or object: the attribute whose old name is `old_owner.name`, else
    AttributeError.
    """
    old = f"{old_owner}.{name}"
    new = (NAMES | REDEFINED).get(
        old, name if old_owner in MODULES and not name.startswith("_") else None
    )
    if new is None or not hasattr(owner, new.partition(".")[0]):
        raise AttributeError(f"{old_owner!r} has no attribute {name!r}")
    place = MODULES.get(old_owner, old_owner)
    warnings.warn(f"{old} is deprecated; use {place}.{new}", DeprecationWarning, stacklevel=3)
    if old in REDEFINED:
        return getattr(importlib.import_module(f"{old_owner}.deprecated"), name)
    return attrgetter(new)(owner)
