"""Next-sentence predictions equal those of transformers."""

from __future__ import annotations

import pytest
import torch
from tests.predict.references import TEXTS, both, close

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize(
    ("family", "suffix"), [("bert", "ForNextSentencePrediction"), ("albert", "ForPreTraining")]
)
def test_results_equal_those_of_transformers(family, suffix, tmp_path):
    pair = both(tmp_path, family, suffix)
    seconds = TEXTS[::-1]
    found = pair.ours.predict(TEXTS, seconds, task="next-sentence")
    for first, second, mine in zip(TEXTS, seconds, found, strict=True):
        with torch.no_grad():
            out = pair.theirs(**pair.tokenizer(first, second, return_tensors="pt"))
        expected = (out.logits if suffix.startswith("ForNext") else out.sop_logits).softmax(-1)[0, 0]
        assert close(mine.score, expected)
        assert mine.follows == bool(expected > 0.5)
    assert pair.ours.next_sentence(TEXTS, seconds) == found
