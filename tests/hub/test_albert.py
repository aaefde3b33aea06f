"""ALBERT against the reference: narrow embeddings, and blocks that work in several layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hub.loud import loud
from tests.hub.parity import check

from trifold.errors import CheckpointError
from trifold.hub import load_model, read_config
from trifold.hub.families import albert

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {
    "vocab_size": 61,
    "max_position_embeddings": 24,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "masked words, one block": ("AlbertForMaskedLM", {}),
    "two groups of two": (
        "AlbertForMaskedLM",
        {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2, "hidden_act": "gelu"},
    ),
    "groups of two sizes": ("AlbertForMaskedLM", {"num_hidden_layers": 5, "num_hidden_groups": 3}),
    "a block a layer": ("AlbertForMaskedLM", {"num_hidden_groups": 3}),
    "no block twice": (
        "AlbertModel",
        {"num_hidden_layers": 2, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    "embeddings as wide as the model": ("AlbertForMaskedLM", {"embedding_size": 32}),
    "embeddings wider than the model": ("AlbertForMaskedLM", {"embedding_size": 48, "hidden_act": "relu"}),
    "both trainings": ("AlbertForPreTraining", {"classifier_dropout_prob": 0.0}),
    "bare": ("AlbertModel", {"type_vocab_size": 1}),
    "sequence": ("AlbertForSequenceClassification", {"num_labels": 5}),
    "token": ("AlbertForTokenClassification", {"num_labels": 3, "hidden_dropout_prob": 0.1}),
    "span": ("AlbertForQuestionAnswering", {"pad_token_id": 3}),
}


def tiny(name: str, **options: Any) -> Any:
    return loud(getattr(transformers, name)(transformers.AlbertConfig(**SMALL | options)))


def order_as_next(model: Any, inputs: Any, out: Any) -> None:
    """The order of sentences stands where other families have the next one."""
    out.seq_relationship_logits = out.sop_logits


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    model = tiny(name, **options)
    if name == "AlbertForPreTraining":
        model.register_forward_hook(order_as_next)
    ours = check(model, token_type_ids=torch.randint(options.get("type_vocab_size", 2), (3, 9)))
    assert ours.family == "albert"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3))
def test_the_groups_are_found_again(rounds: int, groups: int, inner: int) -> None:
    groups = min(rounds, groups)
    values = SMALL | {
        "model_type": "albert",
        "num_hidden_layers": rounds,
        "num_hidden_groups": groups,
        "inner_group_num": inner,
    }
    config = albert.FAMILY.read(values)
    again = albert.groups_of(config)
    assert again is not None and albert.order(*again) == albert.order(rounds, groups, inner)
    if groups < rounds or inner == 1:  # else no block works twice, and several say the same
        assert again == (rounds, groups, inner)
    assert albert.FAMILY.read(albert.FAMILY.write(config)) == config


def test_no_group_says_an_order_of_another_kind() -> None:
    config = albert.FAMILY.read(SMALL)
    assert albert.FAMILY.fits(config)
    assert not albert.FAMILY.fits(config.model_copy(update={"block_of_layer": (0, 1, 0)}))


@pytest.mark.parametrize(
    "values", [{"num_hidden_groups": 4}, {"num_hidden_layers": 5_000, "inner_group_num": 3}]
)
def test_groups_without_layers(values: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(SMALL | {"model_type": "albert"} | values), encoding="utf-8"
    )
    with pytest.raises(CheckpointError, match="num_hidden_groups"):
        read_config(tmp_path)


def test_more_layers_than_tensors(tmp_path: Path) -> None:
    tiny("AlbertForTokenClassification", num_hidden_layers=40).save_pretrained(tmp_path)
    assert load_model(tmp_path)[0].config.n_layers == 40
