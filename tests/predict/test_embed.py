"""Embeddings equal the pooled states of transformers."""

from __future__ import annotations

import pytest
import torch
from tests.predict.references import FAMILIES, TEXTS, both

from trifold.errors import UsageError

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("family", FAMILIES)
def test_results_equal_those_of_transformers(family, tmp_path):
    pair = both(tmp_path, family, "Model")
    theirs = pair.pipeline("feature-extraction")
    states = [torch.tensor(one[0]) for one in theirs(TEXTS)]
    expected = {
        "mean": [one.mean(0) for one in states],
        "cls": [one[0] for one in states],
        "last": [one[-1] for one in states],
    }
    for pooling, vectors in expected.items():
        for mine, vector in zip(pair.ours.embed(TEXTS, pooling=pooling), vectors, strict=True):
            torch.testing.assert_close(mine, vector, rtol=0, atol=1e-4)
        for mine, vector in zip(
            pair.ours.embed(TEXTS, pooling=pooling, normalise=True), vectors, strict=True
        ):
            torch.testing.assert_close(mine, vector / vector.norm(), rtol=0, atol=1e-4)


def test_the_pooler_equals_that_of_transformers(tmp_path):
    pair = both(tmp_path, "bert", "Model")
    for text, mine in zip(TEXTS, pair.ours.embed(TEXTS, pooling="pooler"), strict=True):
        with torch.no_grad():
            expected = pair.theirs(**pair.tokenizer(text, return_tensors="pt")).pooler_output[0]
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-4)


def test_an_unknown_pooling_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="pooling: 'sum' is not known; known: mean, cls, last, pooler"):
        both(tmp_path, "bert", "Model").ours.embed("fox", pooling="sum")
