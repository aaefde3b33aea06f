"""ViT against the reference: patches of pictures, a class token, no words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.loud import loud
from tests.hub.parity import check
from torch.nn import functional as F

from trifold.errors import CheckpointError
from trifold.hub import load_model, read_config
from trifold.nn import Inputs

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 12,
    "patch_size": 4,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "classes": ("ViTForImageClassification", {"num_labels": 5}),
    "no biases of queries, wide pictures": (
        "ViTForImageClassification",
        {"qkv_bias": False, "image_size": [8, 12], "patch_size": [4, 2], "num_labels": 10},
    ),
    "grey, tanh-gelu": (
        "ViTForImageClassification",
        {"num_channels": 1, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6, "num_labels": 3},
    ),
    "bare": ("ViTModel", {"num_hidden_layers": 2}),
    "bare, narrow relu pooler": ("ViTModel", {"pooler_output_size": 24, "pooler_act": "relu"}),
}


def tiny(name: str, **options: Any) -> Any:
    model = getattr(transformers, name)(transformers.ViTConfig(**SMALL | options))
    return loud(model)


def pictures(model: Any) -> torch.Tensor:
    size = model.config.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.randn(4, model.config.num_channels, height, width)


def norm_last(model: Any, inputs: Any, out: Any) -> None:
    """Its last state lacks the norm that closes the stack; ours has it, as those of all other families have."""
    body = getattr(model, "vit", model)
    out["hidden_states"] = (*out.hidden_states[:-1], body.layernorm(out.hidden_states[-1]))


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    model = tiny(name, **options)
    model.register_forward_hook(norm_last)
    ours = check(model, pixel_values=pictures(model))
    assert ours.family == "vit"


# Ours -> theirs in memory, where the names are not those of the file.
GRADIENTS = {
    "self_attention.sublayer.q_proj.weight": "attention.q_proj.weight",
    "self_attention.sublayer.v_proj.bias": "attention.v_proj.bias",
    "self_attention.sublayer.o_proj.weight": "attention.o_proj.weight",
    "feed_forward.sublayer.in_proj.weight": "mlp.fc1.weight",
    "feed_forward.sublayer.out_proj.bias": "mlp.fc2.bias",
}


def test_gradients_inside_the_layers(tmp_path: Path) -> None:
    model = tiny("ViTForImageClassification", num_labels=5)
    model.save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path)
    pixels, labels = pictures(model), torch.tensor([0, 3, 1, 4])
    F.cross_entropy(ours.head_outputs(Inputs(pixels=pixels))["sequence"], labels).backward()
    F.cross_entropy(model(pixels).logits, labels).backward()
    mine, theirs = dict(ours.named_parameters()), dict(model.named_parameters())
    for layer in range(3):
        for a, b in GRADIENTS.items():
            expected = theirs[f"vit.layers.{layer}.{b}"].grad
            gradient = mine[f"encoder.blocks.{layer}.{a}"].grad
            assert gradient is not None and expected.norm() > 0
            assert (gradient - expected).norm() <= 1e-3 * expected.norm()


@pytest.mark.parametrize("name", ["ViTForImageClassification", "ViTModel"])
def test_names_as_the_library_has_them_in_memory(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    model.save_pretrained(tmp_path / "disk")
    model.save_pretrained(tmp_path / "memory", save_original_format=False)
    disk, memory = (load_file(tmp_path / kind / "model.safetensors") for kind in ("disk", "memory"))
    assert set(disk) != set(memory)
    one, other = (load_model(tmp_path / kind)[0] for kind in ("disk", "memory"))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_what_other_trainings_left_is_passed_over(tmp_path: Path) -> None:
    tiny("ViTForImageClassification").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    left = {
        "vit.embeddings.mask_token": torch.zeros(1, 1, 32),
        "vit.pooler.dense.weight": torch.zeros(32, 32),
    }
    save_file(load_file(path) | left, path)
    load_model(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"patch_size": 5}, "does not divide image_size"),
        ({"patch_size": 0}, "patch_size: 0 is neither"),
        ({"image_size": [12, 12, 12]}, "image_size: .* is neither"),
        ({"image_size": "12"}, "image_size: "),
        ({"image_size": 2**40, "patch_size": 1}, "image_size: "),
        ({"pooler_act": "sine"}, "pooler_act: 'sine' is not known"),
        ({"architectures": ["ViTForMaskedImageModeling"]}, "architectures: .* is not known"),
    ],
)
def test_a_wrong_key(values: dict[str, object], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(SMALL | {"model_type": "vit"} | values), encoding="utf-8"
    )
    with pytest.raises(CheckpointError, match=message):
        read_config(tmp_path)
