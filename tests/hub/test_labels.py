"""Class names are read and written by every family with classes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.models import ONE_LAYER

from trifold.errors import SettingsError
from trifold.hub import load_model, save_model
from trifold.hub.families import FAMILIES
from trifold.hub.labels import labels_to_ours, labels_to_theirs
from trifold.nn import ModelConfig, Transformer

NAMES = {"0": "good", "1": "bad", "2": "été"}


@pytest.mark.parametrize("heads", [("sequence",), ("pooler", "sequence"), ("token",)])
def test_every_family_reads_and_writes_class_names(heads: tuple[str, ...]) -> None:
    problem = "multi_label_classification"
    for model_type, family in FAMILIES.items():
        if model_type == "trifold":
            continue
        try:
            named = family.architecture(family.read({}).model_copy(update={"heads": heads}))
        except StopIteration:
            continue  # the family has no such class
        given = {"architectures": [named], "id2label": NAMES, "problem_type": problem}
        config = family.read(given)
        if config.chosen_heads != heads:
            continue
        labels = config.n_labels, config.labels, config.problem_type
        assert labels == (3, ("good", "bad", "été"), problem), model_type
        assert family.fits(config), model_type
        theirs = family.write(config)
        assert (theirs["id2label"], theirs["problem_type"]) == (NAMES, problem), model_type
        assert theirs["label2id"] == {"good": 0, "bad": 1, "été": 2}, model_type
        again = family.read({"architectures": [named], **theirs})
        assert again.labels == config.labels, model_type


@pytest.mark.slow
@given(
    st.lists(st.text(max_size=8), min_size=1, max_size=12),
    st.sampled_from(
        [None, "regression", "single_label_classification", "multi_label_classification"]
    ),
)
def test_written_values_are_read_back(names: list[str], problem: str | None) -> None:
    config = ModelConfig.parse(
        {"n_labels": len(names), "label_names": names, "problem_type": problem}
    )
    theirs = json.loads(json.dumps(labels_to_theirs(config)))
    loaded = ModelConfig.parse(labels_to_ours(theirs))
    assert (loaded.labels, loaded.n_labels, loaded.problem_type) == (
        tuple(names),
        len(names),
        problem,
    )


def test_default_names_are_not_stored() -> None:
    assert labels_to_ours({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}) == labels_to_ours(
        {"num_labels": 2}
    )
    assert labels_to_ours({}, usual=3) == {"n_labels": 3, "label_names": None, "problem_type": None}
    assert labels_to_ours({"id2label": {"1": 7, "0": "x"}})["label_names"] == ("x", "7")
    assert ModelConfig(n_labels=2).labels == ("LABEL_0", "LABEL_1")


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "a list": (
        {"id2label": ["a"]},
        r"id2label: an object of numbers and names is required, got \['a'\]",
    ),
    "a gap": ({"id2label": {"0": "a", "2": "b"}}, "id2label: its keys are not the numbers 0 to 1"),
    "twice": ({"id2label": {"0": "a", "00": "b"}}, "id2label: its keys"),
    "not a number": ({"id2label": {"zero": "a"}}, "id2label: its keys"),
    "below zero": ({"id2label": {"-1": "a"}}, "id2label: its keys"),
    "not a name": ({"id2label": {"0": {"a": 1}}}, r"id2label\.0: .* is not a class name"),
    "too many": ({"num_labels": 2**40}, "classes are too many"),
    "a problem": (
        {"problem_type": ["regression"]},
        "problem_type: .* is not known; known: regression",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_class_names_are_rejected(case: str) -> None:
    values, message = INVALID[case]
    with pytest.raises(SettingsError, match=message):
        labels_to_ours(values)


def test_names_and_number_must_agree() -> None:
    with pytest.raises(SettingsError, match="label_names gives 2 names to n_labels 3"):
        ModelConfig.parse({"n_labels": 3, "label_names": ["a", "b"]})


def test_the_native_form_keeps_class_names(tmp_path) -> None:
    values = ONE_LAYER | {"d_ff": 16, "shape": "encoder", "vocab_size": 20}
    model = Transformer(
        ModelConfig.parse(
            values | {"norm": "rms", "heads": ["token"], "n_labels": 2, "label_names": ["x", "y"]}
        )
    )
    save_model(tmp_path, model)
    assert json.loads((tmp_path / "config.json").read_text("utf-8"))["model_type"] == "trifold"
    loaded, _ = load_model(tmp_path)
    assert loaded.config == model.config
