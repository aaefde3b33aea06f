"""What baselines keep in files: texts as tensors of bytes, the idf of words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trifold.baselines.baseline import State
from trifold.linear.overlap import Overlap


def encode_texts(texts: Sequence[str]) -> Tensor:
    """Texts as the bytes of a JSON list."""
    content = json.dumps(texts, ensure_ascii=True, separators=(",", ":")).encode()
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def decode_texts(content: Tensor) -> list[str]:
    """The texts of `encode_texts`. Raises ValueError or TypeError for anything else."""
    texts = json.loads(content.numpy().tobytes())
    if not isinstance(texts, list):
        raise TypeError("not a list of texts")
    return [*map(str, texts)]


def overlap_state(overlap: Overlap) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The idf of words."""
    idf = torch.tensor([*overlap.idf.values()], dtype=torch.float64)
    return {"texts": overlap.texts}, {"words": encode_texts([*overlap.idf]), "idf": idf}


def overlap_of(state: State) -> Overlap:
    """The overlap of `overlap_state`."""
    words = decode_texts(state.tensors["words"])
    idf = state.tensors["idf"].tolist()
    return Overlap(dict(zip(words, idf, strict=True)), int(state.values["texts"]))
