"""What is seen is what the model does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trifold.errors import DataError, UsageError
from trifold.look import read_attention
from trifold.look.attention import KINDS, align_words, split_words

TEXT = "the quick fox."


def test_every_layer_and_head_is_recorded(pipeline):
    found = read_attention(pipeline, TEXT)
    assert [*found.patterns] == [*KINDS]
    for kind, layers in {"encoder": 2, "decoder": 3, "cross": 3}.items():
        rows, columns = found.labels(kind)
        assert found.patterns[kind].shape == (layers, 4, len(rows), len(columns))


def test_weights_sum_to_one_and_are_causal(pipeline):
    found = read_attention(pipeline, TEXT, target="Fuchs!")
    for weights in found.patterns.values():
        assert weights.min() >= 0
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert np.triu(found.patterns["decoder"], 1).max() == 0


def test_tokens_are_those_of_text_and_target(pipeline):
    found = read_attention(pipeline, TEXT, target="Fuchs!")
    assert "".join(found.source[:-1]).replace("▁", " ") == TEXT
    assert "".join(found.written[:-1]) == found.output == "Fuchs!"
    assert found.given == ["<s>", *found.written[:-1]]
    assert found.source[-1] == found.written[-1] == "</s>"


def test_target_defaults_to_the_output(pipeline):
    found = read_attention(pipeline, TEXT)
    assert found.output == pipeline.generate(TEXT)
    assert found.patterns["cross"].shape[2] == len(found.written)


def test_the_weights_are_softmax_of_the_scores_by_the_equation(pipeline):
    """Equation 1 by hand, for the first layer of the encoder."""
    from trifold.nn import Inputs

    found = read_attention(pipeline, TEXT, target="d")
    model, width = pipeline.model, pipeline.config.head_width
    ids = torch.tensor([[*pipeline.tokenizer.encode([TEXT])[0], pipeline.tokenizer.eos_id]])
    with torch.no_grad():
        x = model.encoder_embeddings(Inputs(ids))[0]
        attention = model.encoder.blocks[0].self_attention.sublayer
        q, k = (
            proj(x).unflatten(-1, (-1, width)).transpose(0, 1)
            for proj in (attention.q_proj, attention.k_proj)
        )
        expected = torch.softmax(q @ k.transpose(1, 2) / width**0.5, dim=-1)
    np.testing.assert_allclose(found.patterns["encoder"][0], expected, atol=1e-5)


def test_read_attention_does_not_change_the_model(pipeline):
    before = pipeline.generate(TEXT)
    pipeline.model.train()
    read_attention(pipeline, TEXT)
    assert pipeline.model.training
    pipeline.model.eval()
    assert pipeline.generate(TEXT) == before


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [("", None, "no tokens"), ("x" * 64, None, "at most 64"), ("x", "d" * 64, "65 tokens")],
)
def test_wrong_texts_are_refused(pipeline, text, target, message):
    with pytest.raises(DataError, match=message):
        read_attention(pipeline, text, target)


def test_weights_of_models_with_one_stack(one_stack):
    """A decoder looks back over its prompt and what it wrote; an encoder at its text."""
    from trifold.nn import Inputs, capture

    found, ids = read_attention(one_stack, TEXT), one_stack.read([TEXT])[0]
    shape = one_stack.config.shape
    if shape == "decoder":
        output = one_stack.hypotheses([TEXT])[0][0].tokens
        assert found.output == one_stack.generate(TEXT) and len(output) == 7
        assert found.written[-7:] == one_stack.writer.pieces(output)
        assert found.given[1:] == found.written[:-1] and found.source == []
        assert np.triu(found.patterns["decoder"], 1).max() == 0
        ids = [*ids, *output[:-1]]
    else:
        assert (found.output, found.given, found.written) == ("", [], [])
        with pytest.raises(UsageError, match="leave the target out"):
            read_attention(one_stack, TEXT, "fox")
    with torch.no_grad(), capture(one_stack.model, "pattern") as places:
        one_stack.model(Inputs(torch.tensor([ids])))
    (weights,) = found.patterns.values()
    for layer, mine in enumerate(weights):
        np.testing.assert_array_equal(
            mine, places[f"{shape}.blocks.{layer}.self_attention.sublayer.pattern"][0]
        )
    rows, columns = found.labels(shape)
    assert weights.shape == (2, 4, len(rows), len(columns))


class Pieces:
    """A tokenizer of given pieces; 0 is a special token."""

    def __init__(self, *pieces):
        self.pieces = ["", *pieces]

    def decode(self, ids):
        return ["".join(self.pieces[i] for i in row).lstrip() for row in ids]


def test_tokens_are_grouped_into_words_and_punctuation():
    tokenizer = Pieces(" I", " lo", "ve", " do", "gs", ".")
    words = split_words(tokenizer, [1, 2, 3, 4, 5, 6, 0])
    assert words.texts == ["I", "love", "dogs", "."]
    assert words.of_token == [0, 1, 1, 2, 2, 3, None]
    assert split_words(tokenizer, []) == ([], [])


def test_alignment_adds_source_tokens_and_averages_written_ones(pipeline):
    maps = read_attention(pipeline, "the fox.", target="der Fuchs!")
    assert maps.source_words.texts == ["the", "fox", "."]
    assert maps.written_words.texts == ["der", "Fuchs", "!"]
    aligned = align_words(maps)
    mean = maps.patterns["cross"].mean((0, 1))
    expected = np.zeros((3, 3))
    for row, written in enumerate(maps.written_words.of_token):
        for column, source in enumerate(maps.source_words.of_token):
            if written is not None and source is not None:
                expected[written, source] += mean[row, column]
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(aligned, expected, rtol=1e-5)


def test_the_alignment_picture_shows_words_and_names_its_axes(pipeline):
    pytest.importorskip("matplotlib")
    from trifold.look.attention import draw_alignment

    figure = draw_alignment(read_attention(pipeline, "the fox.", target="der Fuchs!"))
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["the", "fox", "."]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["der", "Fuchs", "!"]
    assert axis.get_xlabel() and axis.get_ylabel() and figure.get_suptitle()
