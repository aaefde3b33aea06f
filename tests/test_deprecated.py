"""Names of version 0.1 find their replacements, with a warning."""

from __future__ import annotations

import importlib
from operator import attrgetter
from pathlib import Path

import pytest

from trifold import data
from trifold.data import DataSettings, DocumentReport
from trifold.deprecated import MODULES, NAMES, REDEFINED
from trifold.text import TokenizerSettings, train_tokenizer

IN_MODULES = [(old, new) for old, new in (NAMES | REDEFINED).items() if old.startswith("trifold.")]
# What the packages of version 0.1 exported.
EXPORTED = {
    "trifold": "ModelConfig Recipe Tokenizer Transformer __version__ generate load train",
    "trifold.batches": "BatchSettings Blocks ShuffledRows overlong padding_share plan_epoch shares",
    "trifold.data": "DataSettings DocumentReport DocumentSplits Documents Encoder Pairs Report Row Side Splits "
    "TokenCache hold_out hold_out_documents iter_documents iter_lines iter_rows open_tokens read_document_splits "
    "read_documents read_lines read_pairs read_splits sample_documents",
    "trifold.generate": "Codec GenerationConfig Hypothesis Limit Model Speaker TokenScores generate_tokens limit "
    "resolve score_tokens stream_text stream_tokens until_stop",
    "trifold.hub": "load_model read_config resolve save_model",
    "trifold.look": "Seen seen",
    "trifold.nn": "PRESETS Cache Inputs Mask Memory ModelConfig RotaryScaling Transformer capture",
    "trifold.scores": "SCORES Score bleu chrf exact_match",
    "trifold.tasks": "Term Translate TranslateSettings",
    "trifold.text": "Encoded TextStream Tokenizer TokenizerSettings make_tokenizer read_tokenizer report "
    "train_tokenizer",
    "trifold.train": "Outcome train",
}


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in EXPORTED.items() for name in names.split()],
)
def test_every_name_of_version_0_1_can_be_imported(module: str, name: str) -> None:
    package = importlib.import_module(module)
    if name in getattr(package, "__all__", ()):
        assert getattr(package, name) is not None
    else:
        with pytest.warns(
            DeprecationWarning, match=rf"^{module}\.{name} is deprecated; use trifold\.\S+$"
        ):
            assert getattr(package, name) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *IN_MODULES,
        ("trifold.tasks.Translate", "Translate"),
        ("trifold.data.readers.Row", "Row"),
        ("trifold.look.differences.differences", "differences"),
    ],
)
def test_names_in_old_modules(old: str, new: str) -> None:
    module, _, name = old.rpartition(".")
    place = MODULES.get(module, module)
    with pytest.warns(
        DeprecationWarning, match=rf"{old} is deprecated; use {place}\.{new}$"
    ) as warned:
        found = getattr(importlib.import_module(module), name)
    replacement = attrgetter(new)(importlib.import_module(place))
    assert found is replacement or old in REDEFINED
    assert warned[0].filename == __file__


def test_old_modules_can_be_imported() -> None:
    with pytest.warns(DeprecationWarning, match="use trifold.data.images.ImageSettings"):
        from trifold.data.pictures import PictureSettings
    assert PictureSettings.__name__ == "ImageSettings"
    with pytest.raises(ImportError, match="nothing"):
        from trifold.data.pictures import nothing  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"trifold\.data\.nothing"):
        importlib.import_module("trifold.data.nothing")


@pytest.mark.filterwarnings("ignore:trifold:DeprecationWarning")
def test_functions_with_their_old_signatures(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\na\nb\n\n \nc\n")
    (tmp_path / "a.tsv").write_text("a\tx\n\nb\ty\n")
    text, table = str(tmp_path / "a.txt"), str(tmp_path / "a.tsv")
    assert data.read_lines(text) == ["", "a", "b", "", " ", "c"]
    assert list(data.iter_rows(table, DataSettings())) == [
        ("a", "x", 1),
        ("", "", 2),
        ("b", "y", 3),
    ]
    for unit, expected in {
        "line": [("", 1), ("a", 2), ("b", 3), ("", 4), (" ", 5), ("c", 6)],
        "blank": [("a\nb", 2), ("c", 6)],
        "file": [("\na\nb\n\n \nc\n", 1)],
    }.items():
        found = data.iter_documents(text, DataSettings(documents=unit))
        assert [(one.text, one.line) for one in found] == expected
    (first, *_) = data.iter_documents("embedded:smoke", DataSettings(field="source"))
    assert (first.file, first.line) == ("embedded:smoke", 1)

    splits = data.read_document_splits(DataSettings(train=text, valid=text))
    assert isinstance(splits, data.DocumentSplits) and splits.test is None
    assert splits.train.texts == splits.valid.texts == ["a", "b", "c"]
    train, held = data.hold_out_documents(splits.train, 1, seed=0)
    assert sorted(train.texts + held.texts) == ["a", "b", "c"]
    train, held = data.hold_out(data.read_splits(DataSettings(train=table)).train, 1, 0)
    assert sorted(train.targets + held.targets) == ["x", "y"]


def test_attributes_of_objects() -> None:
    owners = {
        "Tokenizer": train_tokenizer(["a b"], TokenizerSettings(kind="char", vocab_size=20)),
        "DocumentReport": DocumentReport("a"),
    }
    for old, new in NAMES.items():
        owner, _, name = old.rpartition(".")
        if owner in owners:
            with pytest.warns(
                DeprecationWarning, match=rf"{old} is deprecated; use {owner}\.{new}"
            ):
                assert getattr(owners[owner], name) == getattr(owners[owner], new)
    with pytest.raises(AttributeError, match="'Tokenizer' has no attribute 'nothing'"):
        owners["Tokenizer"].nothing  # noqa: B018
