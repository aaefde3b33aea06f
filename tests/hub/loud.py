"""Encoders whose heads are loud enough for their logits to tell something."""

from __future__ import annotations

from typing import Any

import torch
from tests.hub.parity import randomised

HEADS = ("cls.seq_relationship", "sop_classifier", "classifier", "qa_outputs")


def loud(model: Any) -> Any:
    """`randomised`; the last matrix of a head of few classes 3.5 times as large, the table of words twice."""
    with torch.no_grad():
        for name, parameter in randomised(model).named_parameters():
            if name.startswith(HEADS) and parameter.dim() == 2:
                parameter.mul_(3.5)
            elif "word_embeddings" in name:
                parameter.mul_(2)
    return model
