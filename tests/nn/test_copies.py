"""Layers that are copies of another are like those that are built."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
import torch
from tests.laws.configs import CONFIGS, config_of
from torch import Tensor, nn

from trifold.nn import ModelConfig, Transformer
from trifold.nn.copies import copy_of
from trifold.nn.layers import Linear
from trifold.nn.parts import AttentionPart, BlockPart, FeedForwardPart, part_of
from trifold.nn.stack import Block, all_parameters

PLACES = (AttentionPart, BlockPart, FeedForwardPart)


def built_alone(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> Transformer:
    """The model, of which no layer is a copy."""

    def layer_of(_self: Any, _config: Any, layer: int) -> Hashable:
        return layer

    with monkeypatch.context() as patched:
        for kind in {type(part_of(place, config)) for place in PLACES}:
            patched.setattr(kind, "kind_of_layer", layer_of)
        return Transformer(config, initialize=False)


def described(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module, with the names of modules and the sizes of tensors."""
    found = dict(vars(module))
    found["_modules"] = [*module._modules]
    for name in ("_parameters", "_buffers"):
        found[name] = {
            key: None if value is None else (value.shape, value.dtype, value.requires_grad)
            for key, value in found[name].items()
        }
    return {name: value for name, value in found.items() if not isinstance(value, Tensor)}


def text_of(attributes: dict[str, Any]) -> dict[str, str]:
    return {name: repr(value).partition(" at 0x")[0] for name, value in attributes.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_are_those_that_are_built(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(name)
    model = Transformer(config, initialize=False)
    expected = built_alone(config, monkeypatch)
    modules, others = dict(model.named_modules()), dict(expected.named_modules())
    assert [*modules] == [*others]
    for title, module in modules.items():
        assert type(module) is type(others[title])
        assert text_of(described(module)) == text_of(described(others[title])), title
    assert all_parameters(model).keys() == dict(model.named_parameters()).keys()
    parameters, built = dict(model.named_parameters()), dict(expected.named_parameters())
    assert [*parameters] == [*built]  # none is shared that was not
    for title, parameter in parameters.items():
        if title.endswith((".enter.weight", ".after.weight", "norm.weight", "norm.bias")):
            assert torch.equal(parameter, built[title])


def test_copies_share_nothing() -> None:
    config = ModelConfig.parse(
        {"shape": "decoder", "d_model": 8, "n_heads": 2, "d_ff": 8, "n_layers": 3}
    )
    blocks = Transformer(config).decoder.blocks  # type: ignore[union-attr]
    tensors = [each for block in blocks for each in block.parameters()]
    assert len({each.data_ptr() for each in tensors}) == len(tensors)
    collections = [
        value
        for block in blocks
        for module in block.modules()
        for value in vars(module).values()
        if isinstance(value, dict | set)
    ]
    assert len({*map(id, collections)}) == len(collections)


def test_modules_that_are_shared_in_a_module_stay_shared() -> None:
    layer = Linear(3, 3)
    tied = Linear(3, 3)
    tied.weight = layer.weight
    whole = nn.ModuleList([layer, layer, tied])
    whole.register_buffer("offset", torch.ones(2))
    copy = copy_of(whole)
    first, second, third = copy._modules.values()
    assert first is second is not layer
    assert isinstance(first, Linear) and isinstance(third, Linear)
    assert first.weight is third.weight is not layer.weight
    assert torch.equal(copy.offset, whole.offset) and copy.offset is not whole.offset


def test_one_block_is_built_of_layers_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    build = Block.__init__

    def counted(self: Block, config: Any, layer: int = 0, **more: Any) -> None:
        built.append(layer)
        build(self, config, layer, **more)

    monkeypatch.setattr(Block, "__init__", counted)
    sizes = {"shape": "decoder", "d_model": 8, "n_heads": 2, "d_ff": 8, "n_layers": 4}
    Transformer(ModelConfig.parse(sizes))
    assert built == [0]
    Transformer(ModelConfig.parse(sizes | {"attention_scale_by_layer": True}))
    assert built == [0, 0, 1, 2, 3]
