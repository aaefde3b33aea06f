"""The models, their inputs and the batches of the peers."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 32  # of a batch of the peers
LONGEST = 256  # tokens of a text; sentence-transformers truncates to as many for MiniLM
MEASURED = 1500  # inputs of a call by default
# Batches, at most, of the inputs after these, for the static int8 of OpenVINO.
CALIBRATION = {"real": 50, "random": 5}
FILE = Path("newstest_ende", "newstest2013.en.gz")
VOCABULARY = 30522  # of the uncased tokenizer of BERT, which all models of texts share


@dataclass(frozen=True)
class Shape:
    """A model: its classes in transformers, and the sizes that differ from their defaults."""

    config: str
    model: str
    sizes: dict[str, Any]
    reads: str = "texts"


SMALL = {"hidden_size": 384, "intermediate_size": 1536}
SHAPES = {
    "minilm": Shape(
        "BertConfig",
        "BertModel",
        {"vocab_size": VOCABULARY, "num_hidden_layers": 6, "num_attention_heads": 12, **SMALL},
    ),
    "bert-base": Shape("BertConfig", "BertModel", {"vocab_size": VOCABULARY}),
    "mpnet": Shape(
        "MPNetConfig", "MPNetModel", {"vocab_size": VOCABULARY, "max_position_embeddings": 514}
    ),
    "t5-small": Shape("T5Config", "T5EncoderModel", {"vocab_size": VOCABULARY}),
    "vit-s": Shape("ViTConfig", "ViTModel", {"num_attention_heads": 6, **SMALL}, reads="images"),
}


def inputs(model: str, count: int, skipped: int = 0) -> list[Any]:
    """Sentences of newstest2013 after the first `skipped`, or random images (224, 224, 3) of bytes.

    Raises SystemExit if there is no file of sentences.
    """
    if SHAPES[model].reads == "images":
        draw = np.random.default_rng(skipped)
        return list(draw.integers(0, 256, (count, 224, 224, 3), np.uint8))
    file = Path(os.environ.get("TRIFOLD_DATA", "data")) / FILE
    if not file.is_file():
        raise SystemExit(f"{file} does not exist; set TRIFOLD_DATA to the folder of the data")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        found = [line.strip() for line in lines if line.strip()]
    return found[skipped : skipped + count]
