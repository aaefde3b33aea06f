"""Folders of small encoders with a WordPiece tokenizer, written without transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.models import TWO_LAYERS, add_noise
from tests.text import folders

from trifold.hub import save_model
from trifold.nn import ModelConfig, Transformer
from trifold.text import read_tokenizer

BERT: dict[str, Any] = TWO_LAYERS | {
    "shape": "encoder",
    "max_positions": 48,
    "positions": "learned",
    "scale_embeddings": False,
    "embedding_norm": True,
    "attention_bias": True,
    "activation": "gelu",
    "n_token_types": 2,
}
HEADS: dict[str, dict[str, Any]] = {
    "fill-mask": {"heads": ["lm"], "lm_head_transform": "gelu", "lm_head_bias": True},
    "classify": {
        "heads": ["pooler", "sequence"],
        "classifier_input": "pooler",
        "n_labels": 3,
        "label_names": ["bad", "so so", "good"],
    },
    "tag": {
        "heads": ["token"],
        "n_labels": 5,
        "label_names": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    },
    "answer": {"heads": ["span"]},
    "next-sentence": {"heads": ["pooler", "next-sentence"]},
    "embed": {"heads": ["pooler"]},
    "features": {"heads": ["pooler"]},
    "both": {
        "heads": ["lm", "pooler", "next-sentence"],
        "lm_head_transform": "gelu",
        "lm_head_bias": True,
    },
}


def model_of(task: str, vocab_size: int = 400, **values: Any) -> Transformer:
    """A model with the heads for a task, every parameter random and large enough to matter."""
    torch.manual_seed(7)
    config = ModelConfig.parse(BERT | {"vocab_size": vocab_size} | HEADS[task] | values)
    model: Transformer = add_noise(Transformer(config), 0.4)
    return model


def folder_of(task: str, folder: Path, **values: Any) -> Path:
    """The folder of such a model and its tokenizer."""
    folders.bert(folder)
    save_model(folder, model_of(task, read_tokenizer(folder).vocab_size, **values))
    return folder


VIT: dict[str, Any] = TWO_LAYERS | {
    "shape": "encoder",
    "positions": "learned",
    "scale_embeddings": False,
    "norm_placement": "pre",
    "attention_bias": True,
    "activation": "gelu",
    "image_size": [8, 12],
    "patch_size": [4, 4],
    "max_positions": 7,
    "heads": ["sequence"],
    "n_labels": 3,
    "label_names": ["cat", "dog", "owl"],
}


def pictures_folder(folder: Path, **settings: Any) -> Path:
    """The folder of a small model of pictures."""
    torch.manual_seed(8)
    save_model(folder, add_noise(Transformer(ModelConfig.parse(VIT)), 0.4))
    folders.write(
        folder, preprocessor_config__json={"size": {"height": 8, "width": 12}, **settings}
    )
    return folder
