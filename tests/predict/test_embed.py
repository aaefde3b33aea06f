"""Embeddings equal the pooled states of transformers."""

from __future__ import annotations

import pytest
import torch
from tests.predict.references import FAMILIES, TEXTS, both

from trifold.errors import UsageError

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_equal_those_of_transformers(family, tmp_path):
    pair = both(tmp_path, family, "Model")
    theirs = pair.pipeline("feature-extraction")
    states = [torch.tensor(one[0]) for one in theirs(TEXTS)]
    expected = {
        "mean": [one.mean(0) for one in states],
        "cls": [one[0] for one in states],
        "last": [one[-1] for one in states],
    }
    for pooling, vectors in expected.items():
        plain = pair.ours.embed(TEXTS, pooling=pooling)
        normalized = pair.ours.embed(TEXTS, pooling=pooling, normalise=True)
        for got, unit, vector in zip(plain, normalized, vectors, strict=True):
            torch.testing.assert_close(got, vector, rtol=0, atol=1e-4)
            torch.testing.assert_close(unit, vector / vector.norm(), rtol=0, atol=1e-4)


def test_the_pooler_equals_that_of_transformers(tmp_path):
    pair = both(tmp_path, "bert", "Model")
    for text, got in zip(TEXTS, pair.ours.embed(TEXTS, pooling="pooler"), strict=True):
        with torch.no_grad():
            expected = pair.theirs(**pair.tokenizer(text, return_tensors="pt")).pooler_output[0]
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_an_unknown_pooling_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="pooling: 'sum' is not known; known: mean, cls, last, max, pooler"):
        both(tmp_path, "bert", "Model").ours.embed("fox", pooling="sum")
