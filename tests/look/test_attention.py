"""Recorded attention weights equal those of the model; words, alignments and their pictures."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from trifold.errors import DataError, TrifoldError, UsageError
from trifold.look import attention, read_attention
from trifold.look.attention import KINDS, align_words, split_words
from trifold.nn import Inputs, capture

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


def test_rows_of_cross_attention_name_what_is_read_and_written(pipeline):
    found = read_attention(pipeline, TEXT, target="d !")
    assert found.labels("cross") == (
        [
            "reads <s> → writes d",
            "reads d → writes ␣",
            "reads ␣ → writes !",
            "reads ! → writes </s>",
        ],
        found.source,
    )
    assert found.labels("decoder") == (found.given, found.given)
    assert found.labels("encoder") == (found.source, found.source)
    trace = pipeline.trace(TEXT, "d !")
    assert {kind: found.labels(kind)[0] for kind in KINDS} == trace.queries


def test_target_defaults_to_the_output(pipeline):
    found = read_attention(pipeline, TEXT)
    assert found.output == pipeline.generate(TEXT)
    assert found.patterns["cross"].shape[2] == len(found.written)


def test_damaged_weights_are_an_error(pipeline):
    with torch.no_grad():
        pipeline.model.encoder_embeddings.tokens.weight.fill_(float("nan"))
    with pytest.raises(TrifoldError, match="NaN or infinity: its weights are damaged"):
        read_attention(pipeline, TEXT, target="Fuchs!")


def test_weights_follow_equation_1(pipeline):
    """In the first layer of the encoder."""
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
def test_invalid_texts_are_rejected(pipeline, text, target, message):
    with pytest.raises(DataError, match=message):
        read_attention(pipeline, text, target)


def test_weights_of_one_stack_equal_captured_weights(one_stack):
    """A decoder attends to its prompt and its output, an encoder to its text."""
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
    with torch.no_grad(), capture(one_stack.model, "pattern") as captured:
        one_stack.model(Inputs(torch.tensor([ids])))
    (weights,) = found.patterns.values()
    for layer, got in enumerate(weights):
        np.testing.assert_array_equal(
            got, captured[f"{shape}.blocks.{layer}.self_attention.sublayer.pattern"][0]
        )
    rows, columns = found.labels(shape)
    assert weights.shape == (2, 4, len(rows), len(columns))


class Pieces:
    """A tokenizer with these pieces; 0 is a special token."""

    def __init__(self, *pieces):
        self.pieces = ["", *pieces]

    def decode(self, ids, *, keep_special=False):
        special = "</s>" if keep_special else ""
        return ["".join(self.pieces[i] or special for i in row).lstrip() for row in ids]


def test_tokens_are_grouped_into_words_and_punctuation():
    tokenizer = Pieces(" I", " lo", "ve", " do", "gs", ".")
    words = split_words(tokenizer, [1, 2, 3, 4, 5, 6, 0])
    assert words.texts == ["I", "love", "dogs", "."]
    assert words.of_token == [0, 1, 1, 2, 2, 3, None]
    assert split_words(tokenizer, []) == ([], [])
    # A space is a part of the word after it.
    spaced = Pieces(" ", "I", " ", "do", "g", ".", " ")
    assert split_words(spaced, [1, 2, 3, 4, 5, 6, 7, 0]).of_token == [0, 0, 1, 1, 1, 2, None, None]


def test_alignment_sums_over_source_tokens_and_averages_over_target_tokens(pipeline):
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
    figure = attention.draw_alignment(read_attention(pipeline, "the fox.", target="der Fuchs!"))
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["the", "fox", "."]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["der", "Fuchs", "!"]
    assert axis.get_xlabel() and axis.get_ylabel() and figure.get_suptitle()


# --- pictures -------------------------------------------------------------------------------------

needs_matplotlib = pytest.mark.skipif(
    not importlib.util.find_spec("matplotlib"), reason="needs matplotlib"
)
ROWS, COLUMNS = ["J", "'", "aime", "$x$"], ["I", "love", "$y_1$", "dogs", "."]


def random_weights(layers, heads):
    numbers = np.random.default_rng(0).random((layers, heads, len(ROWS), len(COLUMNS)))
    return numbers / numbers.sum(-1, keepdims=True)


def grid(patterns, row_labels, column_labels, title):
    layers, heads = patterns.shape[:2]
    numbers = range(1, layers + 1), range(1, heads + 1)
    return attention.draw_panels(
        [attention.Panel(patterns, row_labels, column_labels, title, *numbers)]
    )


def panels(figure):
    return [axis for part in figure.subfigs for axis in part.axes if axis.get_title()]


@needs_matplotlib
@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 3)])
def test_one_panel_per_layer_and_head(layers, heads):
    weights = random_weights(layers, heads)
    figure = grid(weights, ROWS, COLUMNS, "cross")
    found = panels(figure)
    titles = [f"layer {i + 1} head {j + 1}" for i in range(layers) for j in range(heads)]
    assert [axis.get_title() for axis in found] == titles
    for axis, expected in zip(found, weights.reshape(-1, len(ROWS), len(COLUMNS)), strict=True):
        image = axis.collections[0]
        np.testing.assert_array_equal(image.get_array(), expected)
        assert image.get_clim() == (0, 1)


@needs_matplotlib
def test_tokens_label_the_axes():
    found = panels(grid(random_weights(2, 3), ROWS, COLUMNS, "cross"))

    def labels(axis):
        return [
            [text.get_text() for text in side.get_ticklabels()] for side in (axis.yaxis, axis.xaxis)
        ]

    assert labels(found[3]) == [ROWS, COLUMNS]
    assert labels(found[1]) == [[], []]
    assert not any(text.get_parse_math() for text in found[3].get_xticklabels())


@pytest.mark.slow
@needs_matplotlib
def test_figure_size_grows_with_tokens_and_heads():
    def size(layers, heads, tokens):
        labels = ["token"] * tokens
        return grid(
            np.ones((layers, heads, tokens, tokens)) / tokens, labels, labels, "x"
        ).get_size_inches()

    assert (size(1, 2, 25) > size(1, 2, 5)).all()
    assert size(1, 8, 5)[0] > size(1, 4, 5)[0]
    assert size(4, 4, 5)[1] > size(1, 4, 5)[1]
    # Space for a label of 7.5 points at each of 25 tokens.
    assert (size(1, 1, 25) > 25 * 7.5 / 72).all()


@needs_matplotlib
@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (1, 4)])
@pytest.mark.parametrize("kind", attention.KINDS)
def test_titles_fit_into_the_figure(kind, layers, heads):
    figure = grid(random_weights(layers, heads), ROWS, COLUMNS, attention.KINDS[kind])
    figure.draw_without_rendering()
    (title,) = figure.subfigs[0].texts
    extent = title.get_window_extent()
    assert " ".join(title.get_text().split()) == attention.KINDS[kind]
    assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1
    assert extent.y1 <= figure.bbox.y1


@needs_matplotlib
def test_kinds_are_stacked_and_heads_can_be_selected(pipeline):
    found = read_attention(pipeline, "the fox.", "Fuchs")
    assert len(attention.draw_heads(found).subfigs) == 3
    chosen = panels(attention.draw_heads(found, ["cross"], layer=3, head=2))
    assert [axis.get_title() for axis in chosen] == ["layer 3 head 2"]
    np.testing.assert_array_equal(
        chosen[0].collections[0].get_array(), found.patterns["cross"][2, 1]
    )
    with pytest.raises(UsageError, match="layers 1 to 3"):
        attention.draw_heads(found, ["cross"], layer=4)
