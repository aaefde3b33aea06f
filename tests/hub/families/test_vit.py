"""Gradients, tensor names and unused tensors of ViT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.hub.checkpoints import equal, read, write
from tests.hub.parity import inputs_for, make
from torch.nn import functional as F

from trifold.hub import load_model
from trifold.nn import Inputs

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")


# Our names -> those of the reference in memory, which differ from those of the file.
IN_MEMORY = {
    "self_attention.sublayer.q_proj.weight": "attention.q_proj.weight",
    "self_attention.sublayer.v_proj.bias": "attention.v_proj.bias",
    "self_attention.sublayer.o_proj.weight": "attention.o_proj.weight",
    "feed_forward.sublayer.in_proj.weight": "mlp.fc1.weight",
    "feed_forward.sublayer.out_proj.bias": "mlp.fc2.bias",
}


def test_gradients_in_the_layers_equal_the_reference(tmp_path: Path) -> None:
    model = make("vit", "ForImageClassification", num_labels=5)
    model.save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path)
    pixels, labels = inputs_for(model)["pixel_values"], torch.tensor([0, 3, 1, 4])
    F.cross_entropy(ours.head_outputs(Inputs(pixels=pixels))["sequence"], labels).backward()
    F.cross_entropy(model(pixels).logits, labels).backward()
    got, reference = dict(ours.named_parameters()), dict(model.named_parameters())
    for layer in range(2):
        for a, b in IN_MEMORY.items():
            expected = reference[f"vit.layers.{layer}.{b}"].grad
            gradient = got[f"encoder.blocks.{layer}.{a}"].grad
            assert gradient is not None and expected.norm() > 0
            assert (gradient - expected).norm() <= 1e-3 * expected.norm()


@pytest.mark.parametrize("ending", ["ForImageClassification", "Model"])
def test_vit_files_may_have_the_names_in_memory(ending: str, tmp_path: Path) -> None:
    model = make("vit", ending)
    model.save_pretrained(tmp_path / "disk")
    model.save_pretrained(tmp_path / "memory", save_original_format=False)
    assert set(read(tmp_path / "disk")) != set(read(tmp_path / "memory"))
    assert equal(load_model(tmp_path / "disk")[0], load_model(tmp_path / "memory")[0])


def test_tensors_of_other_vit_classes_are_ignored(tmp_path: Path) -> None:
    make("vit").save_pretrained(tmp_path)
    unused = {
        "vit.embeddings.mask_token": torch.zeros(1, 1, 16),
        "vit.pooler.dense.weight": torch.zeros(16, 16),
        "vit.embeddings.position_ids": torch.arange(5),
    }
    write(tmp_path, read(tmp_path) | unused)
    load_model(tmp_path)
