from __future__ import annotations

import pytest
import torch
from tests.generate.models import padded_batch, tiny_model, varied_model

from trifold.errors import DataError
from trifold.generate import GenerationConfig, generate_tokens, score_tokens, scoring
from trifold.nn import Inputs

ROWS = [[5, 6, 7, 8, 2], [9, 2], [4, 4, 4, 2]]
TARGETS = [[7, 2], [3, 4, 5, 6, 2], [2]]
SHAPES = ("encoder-decoder", "decoder")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("beams", "bans"),
    [
        (1, {"bad_words_ids": []}),
        (4, {"bad_words_ids": []}),
        (3, {"no_repeat_ngram_size": 2, "bad_words_ids": [[0], [7], [5, 5]], "min_new_tokens": 3}),
    ],
)
def test_score_equals_the_score_of_the_search(shape, beams, bans):
    """The scores of beams do not depend on bans."""
    model, inputs = varied_model(shape), padded_batch(ROWS)
    config = GenerationConfig(num_beams=beams, length_penalty=0.0, max_new_tokens=9, **bans)
    outputs = [best for (best,) in generate_tokens(model, inputs, config)]
    targets = [[*o.tokens, 2] if o.finish_reason == "stop" else o.tokens for o in outputs]
    scores = score_tokens(model, inputs, padded_batch(targets))
    assert scores.total.tolist() == pytest.approx([o.score for o in outputs], abs=1e-4)


def test_score_is_the_sum_of_the_chain_rule(monkeypatch):
    """Each row alone is the reference. Chunks of tokens end within rows."""
    monkeypatch.setattr(scoring, "CHUNK", 3)
    model = tiny_model()
    scores = score_tokens(model, padded_batch(ROWS), padded_batch(TARGETS))
    for row, (source, target) in enumerate(zip(ROWS, TARGETS, strict=True)):
        hidden = model(Inputs(torch.tensor([source])), Inputs(torch.tensor([[1, *target[:-1]]])))
        logits = model.lm_head(hidden)[0]
        expected = logits.log_softmax(-1)[torch.arange(len(target)), torch.tensor(target)]
        assert torch.allclose(scores.tokens[row, : len(target)], expected, atol=1e-5)
        assert not scores.tokens[row, len(target) :].any()
        assert scores.total[row].item() == pytest.approx(expected.sum().item(), abs=1e-4)


def test_invalid_rows_are_named():
    model = tiny_model(max_positions=8)
    with pytest.raises(DataError, match="3 inputs and 2 targets"):
        score_tokens(model, padded_batch(ROWS), padded_batch(TARGETS[:2]))
    with pytest.raises(DataError, match=r"row 1 is a target of 9 tokens; the maximum is 8"):
        score_tokens(model, padded_batch(ROWS), padded_batch([[3], [4] * 9, [5]]))
    with pytest.raises(DataError, match=r"row 2 is a target with zero tokens"):
        score_tokens(model, padded_batch(ROWS), padded_batch([[3], [4], []]))


def test_trailing_padding_changes_nothing():
    model, targets = tiny_model(max_positions=8), padded_batch(TARGETS)
    wide = Inputs(
        *(torch.nn.functional.pad(each, (0, 6)) for each in (targets.tokens, targets.attend))
    )
    narrow, padded = (score_tokens(model, padded_batch(ROWS), each) for each in (targets, wide))
    assert torch.equal(padded.total, narrow.total)
    assert padded.tokens.shape == wide.tokens.shape
