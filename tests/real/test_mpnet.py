"""all-mpnet-base-v2: its embeddings are those of transformers, also in few bits.

About 30 CPU seconds in all.
"""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from trifold import load
from trifold.scores.divergence import CosineScore

pytestmark = pytest.mark.filterwarnings("default")

SENTENCES = 64
COMPARED = 12  # of them, with transformers


def test_embeddings_equal_those_of_transformers_and_stay_near_in_few_bits(mpnet, datasets):
    from transformers import AutoModel, AutoTokenizer

    file = datasets / "newstest_ende" / "newstest2013.en.gz"
    with gzip.open(file, "rt", encoding="utf-8") as opened:
        texts = opened.read().split("\n")[:SENTENCES]
    tokenizer = AutoTokenizer.from_pretrained(mpnet)
    theirs = AutoModel.from_pretrained(mpnet).eval()
    rows = tokenizer(texts[:COMPARED], padding=True, return_tensors="pt")
    with torch.no_grad():
        states = theirs(**rows).last_hidden_state
    shares = rows["attention_mask"] / rows["attention_mask"].sum(1, keepdim=True)
    expected = torch.nn.functional.normalize(torch.einsum("bt,bte->be", shares, states))
    vectors = torch.stack([*load(mpnet).embed(texts)])
    torch.testing.assert_close(vectors[:COMPARED], expected, rtol=0, atol=1e-5)
    for weights, mean, minimum in (("int8", 0.9990, 0.995), ("int4", 0.985, 0.97)):
        score = CosineScore()
        found = torch.stack([*load(mpnet, weights=weights).embed(texts)])
        score.add(np.asarray(found), np.asarray(vectors))
        assert score.values()["cosine"] >= mean
        assert score.values()["cosine_minimum"] >= minimum
