"""Weights of 8 and 4 bits: predictions and vectors stay near those of full weights.

The published matrices of SmolLM2 (Q4_1) lie on a grid of 4 bits, to which types with offsets fit
without error. They are moved off it first, by up to half a step: to a model that could have been
published as this file. About 40 CPU seconds in all.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from trifold import load
from trifold.hub.fill import fill_model, named_matrices
from trifold.hub.gguf.blocks import dequantize
from trifold.hub.gguf.mixtures import BY_NAME
from trifold.hub.gguf.quantize import quantize
from trifold.nn import Inputs, Transformer
from trifold.objectives.divergence import compare_logits
from trifold.scores.divergence import CosineScore, DivergenceScore

pytestmark = pytest.mark.filterwarnings("default")

SENTENCES = 96
TEXTS, LENGTH = 3, 128  # that SmolLM2 reads
LAYERS = "decoder.blocks."  # the matrices that are in Q4_1


def sentences(datasets: Path, count: int) -> list[str]:
    """The first lines of newstest2013."""
    with gzip.open(datasets / "newstest_ende" / "newstest2013.en.gz", "rt", encoding="utf-8") as f:
        return f.read().split("\n")[:count]


def cosines(vectors: list[Tensor], expected: list[Tensor]) -> dict[str, float]:
    score = CosineScore()
    score.add(np.stack(vectors), np.stack(expected))
    return score.values()


def test_vectors_of_minilm_in_few_bits(minilm, datasets):
    texts = sentences(datasets, SENTENCES)
    expected = load(minilm).embed(texts)
    for weights, mean, minimum in (("int8", 0.9990, 0.995), ("int4", 0.980, 0.93)):
        found = cosines(load(minilm, weights=weights).embed(texts), expected)
        assert found["cosine"] >= mean
        assert found["cosine_minimum"] >= minimum


@torch.no_grad()
def test_predictions_of_a_decoder_in_few_bits(smollm2, datasets):
    pipeline = load(smollm2)
    model = pipeline.model
    move_off_the_grid(model)
    tokens = pipeline.tokenizer.encode([" ".join(sentences(datasets, 60))])[0]
    ids = torch.tensor(tokens[: TEXTS * LENGTH]).view(TEXTS, LENGTH)
    expected = logits(model, ids)
    scores = {}
    for stored in ("int8", "int4"):
        small = Transformer(model.config, initialize=False)
        fill_model(small, model.named_parameters(), torch.float32, "cpu", stored)
        scores[stored] = divergence(small.eval(), ids, expected)
    full = {name: matrix.clone() for name, matrix in named_matrices(model).items()}
    for kind, encode in (("bf16", in_bf16), ("q4_0", in_q4_0)):
        for name, matrix in named_matrices(model).items():
            matrix.copy_(encode(name, full[name]))
        scores[kind] = divergence(model, ids, expected)
    assert scores["int8"]["kl"] <= scores["bf16"]["kl"] + 0.002
    assert scores["int8"]["equal_top"] >= 97
    assert scores["int4"]["kl"] < 0.85 * scores["q4_0"]["kl"]
    assert scores["int4"]["equal_top"] > scores["q4_0"]["equal_top"] + 4


def move_off_the_grid(model: Transformer) -> None:
    """Add noise of up to half a step to the matrices in Q4_1."""
    generator = torch.Generator().manual_seed(1)
    for name, matrix in named_matrices(model).items():
        if name.startswith(LAYERS):
            blocks = matrix.view(-1, 32)
            step = (blocks.amax(1) - blocks.amin(1)) / 15
            blocks += (torch.rand(blocks.shape, generator=generator) - 0.5) * step[:, None]


def in_bf16(_: str, matrix: Tensor) -> Tensor:
    return matrix.bfloat16().float()


def in_q4_0(name: str, matrix: Tensor) -> Tensor:
    """As in a file of llama.cpp, but for the embeddings, which are Q8_0 there."""
    if not name.startswith(LAYERS):
        return matrix
    kind = BY_NAME["Q4_0"][1]
    return dequantize(torch.from_numpy(quantize(matrix, kind)), kind).view_as(matrix)


def logits(model: Transformer, ids: Tensor) -> Tensor:
    """(N, V) of all tokens."""
    assert model.lm_head is not None
    return model.lm_head(model(Inputs(ids))).flatten(0, 1)


def divergence(model: Transformer, ids: Tensor, expected: Tensor) -> dict[str, float]:
    """From the predictions of full weights."""
    score = DivergenceScore()
    labels = torch.zeros(len(expected), dtype=torch.int64)  # whose probabilities are not used
    score.add(*(column.numpy() for column in compare_logits(logits(model, ids), expected, labels)))
    return score.values()
