"""The linear path: its logits, features of rows, and what it leaves as it was."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from tests.models import randomize

from trifold.costs import count_parameters
from trifold.errors import CheckpointError, SettingsError
from trifold.fast.one_state import output_of_one_state, reads_one_state
from trifold.hub import load_model, save_model
from trifold.hub.convert import convert
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.inputs import RowFeatures
from trifold.nn.packing import Packing
from trifold.nn.variants import LinearPath
from trifold.objectives import plans
from trifold.predict.text_features import text_features

SIZES = {
    "shape": "encoder", "vocab_size": 31, "max_positions": 16, "d_model": 16, "n_layers": 2, "n_heads": 2,
    "d_ff": 24, "dropout": 0.0, "n_labels": 3, "heads": ("pooler", "sequence"), "classifier_input": "pooler",
}  # fmt: skip
PATH = {"words": 40, "characters": 60}
WORDS = {"heads": ("token",), "classifier_input": "first"}
IMAGES = {"image_size": (4, 4), "patch_size": (2, 2), "max_positions": 5}
TEXTS = ["good and fine", "", "bad", "so bad it is good"]


def model_with(path: object, **more: object) -> Transformer:
    """A model with random weights; idf are not negative, and some are 0."""
    model = randomize(Transformer(ModelConfig.parse(SIZES | {"linear_path": path} | more)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("path.idf"):
                parameter.relu_()
    return model.eval()


def dense_logits(model: Transformer, texts: list[str]) -> torch.Tensor:
    """s · (x W + b) in full."""
    path, blocks = model.heads["sequence"].path, 2
    features = text_features(model.config, texts)
    x = torch.zeros(len(texts), path.weight.shape[0], dtype=torch.float64)
    for row in range(len(texts)):
        for block in range(blocks):
            start, end = features.starts[row * blocks + block :][:2]
            ids = features.ids[start:end]
            values = features.values[start:end].double() * path.idf.double()[ids]
            x[row, ids] = values / (values.norm() if values.any() else 1.0)
    return path.scale.double() * (x @ path.weight.double() + path.bias.double())


def inputs_of(texts: list[str], features: RowFeatures | None) -> Inputs:
    """Packed rows of tokens, one for each text, with features."""
    packing = Packing.of(torch.arange(3, 3 + len(texts)))
    tokens = torch.randint(5, 31, (1, packing.length), generator=torch.Generator().manual_seed(1))
    return Inputs(tokens, packing=packing, features=features)


@torch.no_grad()
def test_logits_are_those_of_tf_idf_in_each_block():
    model = model_with(PATH)
    features = text_features(model.config, TEXTS)
    alone = model.head_outputs(inputs_of(TEXTS, None), heads=["sequence"])["sequence"]
    both = model.head_outputs(inputs_of(TEXTS, features), heads=["sequence"])["sequence"]
    torch.testing.assert_close(
        (both - alone).double(), dense_logits(model, TEXTS), rtol=1e-4, atol=1e-5
    )
    assert (both - alone)[1].ne(0).any()  # the bias of an empty text
    for row, text in enumerate(TEXTS):  # a batch of one is a batch of many
        one = model.heads["sequence"].path(text_features(model.config, [text]))
        assert torch.equal(one[0], model.heads["sequence"].path(features)[row])


@torch.no_grad()
def test_given_numbers_are_used_as_they_are():
    path = model_with({"words": 0, "characters": 0, "given": 5}).heads["sequence"].path
    x = torch.tensor([[1.0, 0, -2, 0, 3], [0.5, 1, 0, 0, 0]])
    rows, ids = x.nonzero().T
    starts = torch.tensor([0, 3, 5])
    found = path(RowFeatures(ids, x[rows, ids], starts))
    torch.testing.assert_close(found, path.scale * (x @ path.weight + path.bias))
    assert path.idf.numel() == 0
    # Beside n-grams, whose lengths do not change them.
    path = model_with({"words": 3, "characters": 0, "given": 2}).heads["sequence"].path
    both = RowFeatures(torch.tensor([0, 2, 4]), torch.tensor([2.0, 1, -7]), torch.tensor([0, 2, 3]))
    words = path.idf[[0, 2]] * torch.tensor([2.0, 1])
    words = words / (words.norm() if words.any() else 1.0)
    expected = words @ path.weight[[0, 2]] - 7 * path.weight[4] + path.bias
    torch.testing.assert_close(path(both)[0], path.scale * expected)


def test_known_logits_take_the_place_of_features_and_only_the_scale_learns():
    model = model_with(PATH)
    known = torch.randn(4, 3)
    alone, both = (
        model.head_outputs(inputs_of(TEXTS, given), heads=["sequence"])["sequence"]
        for given in (None, RowFeatures.known(known))
    )
    path = model.heads["sequence"].path
    assert torch.equal(both, alone + path.scale * known)
    both.square().sum().backward()
    learned = {name for name, each in path.named_parameters() if each.grad is not None}
    assert learned == {"scale"}


@torch.no_grad()
def test_the_loop_for_one_state_adds_the_path():
    model = model_with(PATH, positions="learned", activation="gelu")
    inputs = inputs_of(TEXTS, text_features(model.config, TEXTS))
    assert reads_one_state(model, inputs, "sequence")
    fast = output_of_one_state(model, inputs, "sequence")
    whole = model.head_outputs(inputs, heads=["sequence"])["sequence"]
    torch.testing.assert_close(fast, whole, rtol=1e-4, atol=1e-5)
    assert not torch.equal(fast, output_of_one_state(model, inputs_of(TEXTS, None), "sequence"))


def test_a_model_without_the_path_is_the_model_of_before():
    torch.manual_seed(3)
    before = Transformer(ModelConfig.parse(SIZES)).state_dict()
    torch.manual_seed(3)
    off = Transformer(ModelConfig.parse(SIZES | {"linear_path": False})).state_dict()
    assert off.keys() == before.keys() and all(torch.equal(off[name], before[name]) for name in off)
    assert ModelConfig.parse(SIZES | {"linear_path": False}) == ModelConfig.parse(SIZES)
    path = ModelConfig.parse(SIZES | {"linear_path": True})
    assert path.linear_path.words == path.linear_path.characters == 2**16


def test_a_new_path_adds_nothing_and_is_counted():
    model = Transformer(ModelConfig.parse(SIZES | {"linear_path": PATH})).eval()
    inputs = [inputs_of(TEXTS, each) for each in (None, text_features(model.config, TEXTS))]
    outputs = [model.head_outputs(each, heads=["sequence"])["sequence"] for each in inputs]
    assert torch.equal(*outputs)
    assert model.count_parameters() == count_parameters(model.config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_path": {"words": 0, "characters": 0}}, "no columns; set linear_path: true or null"),
        ({"linear_path": True, **WORDS}, 'sequence in heads; set linear_path: {"forms": 65536} or null'),
        ({"linear_path": {"forms": 5}}, "token in heads; set linear_path: true or null"),
        ({"linear_path": {"filters": 5}}, "reads texts; set linear_path: true or null"),
        ({"linear_path": {"filters": 5}, **WORDS}, 'set linear_path: {"forms": 65536} or null'),
        ({"linear_path": True, **IMAGES}, 'images; set linear_path: {"filters": 100} or null'),
        ({"linear_path": {"forms": 5}, **IMAGES}, 'set linear_path: {"filters": 100} or null'),
        ({"linear_path": True, **WORDS, "heads": ("span",)}, "sequence in heads; set linear_path: null"),
    ],
)  # fmt: skip
def test_a_path_that_does_not_fit_names_the_one_that_does(changes, message):
    with pytest.raises(SettingsError, match=f"{re.escape(message)}$"):
        ModelConfig.parse(SIZES | changes)
    fitting = re.search("linear_path: ({.*}|true)", message)
    if fitting is not None:
        ModelConfig.parse(SIZES | changes | {"linear_path": json.loads(fitting[1])})


@pytest.mark.parametrize("columns", ["compared", "filters", "forms"])
def test_columns_that_exclude_others_have_no_ngrams_by_default(columns):
    path = LinearPath.parse({columns: 5})
    assert path == LinearPath.parse({"words": 0, "characters": 0, columns: 5})
    assert LinearPath.parse({columns: 0}).words == 2**16


def test_the_path_that_a_message_names_is_the_default_of_the_task():
    assert plans.FORMS_BY_DEFAULT == {"linear_path": {"forms": 65536}}
    assert plans.PATH_OF_IMAGES == {"linear_path": {"filters": 100}}


def test_a_saved_path_is_loaded_and_only_trifold_reads_it(tmp_path):
    model = model_with(PATH)
    save_model(tmp_path / "a", model)
    loaded, _ = load_model(tmp_path / "a")
    features = text_features(model.config, TEXTS)
    paths = [each.heads["sequence"].path for each in (model, loaded)]
    assert torch.equal(paths[0](features), paths[1](features))
    assert not any(p.requires_grad for name, p in paths[1].named_parameters() if name != "scale")
    with pytest.raises(CheckpointError, match=r"linear_path.*null|no Hugging Face family"):
        convert(tmp_path / "a", tmp_path / "b", to="hugging-face")
    assert not (tmp_path / "b").exists()
    convert(tmp_path / "a", tmp_path / "c", dtype=torch.bfloat16)
    half, _ = load_model(tmp_path / "c")
    close = half.heads["sequence"].path(features)
    np.testing.assert_allclose(close.detach(), paths[0](features).detach(), rtol=0.05, atol=0.05)
