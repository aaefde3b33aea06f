"""Names of version 0.1 find their replacements, with a warning."""

from __future__ import annotations

import importlib

import pytest

from trifold.data import DocumentReport
from trifold.deprecated import MODULES, NAMES
from trifold.text import TokenizerSettings, train_tokenizer

IN_MODULES = [(old, new) for old, new in NAMES.items() if old.startswith("trifold.")]


@pytest.mark.parametrize(
    ("old", "new"),
    [*IN_MODULES, ("trifold.tasks.Translate", "Translate"), ("trifold.data.readers.Row", "Row")],
)
def test_names_in_old_modules(old: str, new: str) -> None:
    module, _, name = old.rpartition(".")
    with pytest.warns(
        DeprecationWarning, match=rf"{old} is deprecated; use {MODULES[module]}\.{new}$"
    ) as warned:
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(importlib.import_module(MODULES[module]), new)
    assert warned[0].filename == __file__


def test_old_modules_can_be_imported() -> None:
    with pytest.warns(DeprecationWarning, match="use trifold.data.images.ImageSettings"):
        from trifold.data.pictures import PictureSettings
    assert PictureSettings.__name__ == "ImageSettings"
    with pytest.raises(ImportError, match="nothing"):
        from trifold.data.pictures import nothing  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"trifold\.data\.nothing"):
        importlib.import_module("trifold.data.nothing")


def test_attributes_of_objects() -> None:
    owners = {
        "Tokenizer": train_tokenizer(["a b"], TokenizerSettings(kind="char", vocab_size=20)),
        "DocumentReport": DocumentReport("a"),
    }
    for old, new in NAMES.items():
        owner, _, name = old.rpartition(".")
        if owner in owners:
            with pytest.warns(DeprecationWarning, match=rf"{old} is deprecated; use {owner}\.{new}"):
                assert getattr(owners[owner], name) == getattr(owners[owner], new)
    with pytest.raises(AttributeError, match="'Tokenizer' has no attribute 'nothing'"):
        owners["Tokenizer"].nothing  # noqa: B018
