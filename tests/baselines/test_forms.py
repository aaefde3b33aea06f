"""The linear model on forms of words: what it reads of a word, and what it learns from it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from trifold.baselines import forms
from trifold.baselines.baseline import LabelledRows
from trifold.data.rows import Rows
from trifold.linear.forms import shape_of
from trifold.linear.logistic import ignore

NAMES = ("Ada", "Ben", "Carla", "Dora")


def rows_of(sentences: list[list[str]], tags: list[list[str]]) -> LabelledRows:
    return LabelledRows(Rows({"words": sentences, "tags": tags}, range(len(sentences))), None)


def sentences() -> tuple[list[list[str]], list[list[str]]]:
    """Names have a capital letter, and are of streets before `Street`."""
    words, tags = [], []
    for name, other in zip(NAMES, ("dogs", "they", "cows", "all"), strict=True):
        words += [["so", name, "ran"], ["in", name, "Street", "."], ["so", other, "ran"]]
        tags += [["O", "B-PER", "O"], ["O", "B-LOC", "I-LOC", "O"], ["O", "O", "O"]]
    return words, tags


@pytest.mark.parametrize(
    ("word", "shape"), [("Ada", "Xx"), ("12-A", "d-X"), ("e.g.", "x.x."), ("", ""), ("№1", "№d")]
)
def test_a_shape_has_the_kinds_of_characters(word: str, shape: str) -> None:
    assert shape_of(word) == shape


def test_a_name_that_was_never_seen_is_known_by_its_form_and_neighbors() -> None:
    model = forms.FormModel.fit(SimpleNamespace(), rows_of(*sentences()), ignore)
    assert model is not None and model.rows == 12
    other = [["so", "Zoe", "ran"], ["in", "Zoe", "Street", "."], [], ["so", "hens", "ran"]]
    expected = [["O", "B-PER", "O"], ["O", "B-LOC", "I-LOC", "O"], [], ["O", "O", "O"]]
    assert model.predict(None, rows_of(other, other)) == expected
    again = forms.FormModel.restore(model.state())
    assert again.predict(None, rows_of(other, other)) == expected


def test_damaged_weights_are_an_error() -> None:
    model = forms.FormModel.fit(SimpleNamespace(), rows_of(*sentences()), ignore)
    assert model is not None
    state = model.state()
    for name in ("weights", "bias", "idf"):
        broken = {**state.tensors, name: torch.cat([state.tensors[name], state.tensors[name]])}
        with pytest.raises(ValueError, match=r"do(es)? not fit"):
            forms.FormModel.restore(state._replace(tensors=broken))


def test_long_data_is_read_from_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trifold.linear.forms.MOST_WORDS", 20)
    words, tags = sentences()
    model = forms.FormModel.fit(SimpleNamespace(), rows_of(words, tags), ignore)
    assert model is not None and model.rows == 6
    assert {"word Ada", "word all"} <= {*model.tfidf.names}  # of the first and the last sentence


def test_one_tag_needs_no_model() -> None:
    assert forms.FormModel.fit(SimpleNamespace(), rows_of([["a"]], [["O"]]), ignore) is None
