from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from trifold.errors import TrifoldError, UsageError
from trifold.look import attention, plots, read_attention

ROWS, COLUMNS = ["J", "'", "aime", "$x$"], ["I", "love", "$y_1$", "dogs", "."]


def weights(layers, heads):
    numbers = np.random.default_rng(0).random((layers, heads, len(ROWS), len(COLUMNS)))
    return numbers / numbers.sum(-1, keepdims=True)


def grid(patterns, row_labels, column_labels, title):
    layers, heads = patterns.shape[:2]
    numbers = range(1, layers + 1), range(1, heads + 1)
    return attention.draw_panels([attention.Panel(patterns, row_labels, column_labels, title, *numbers)])


def panels(figure):
    return [axis for part in figure.subfigs for axis in part.axes if axis.get_title()]


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 3)])
def test_one_panel_per_layer_and_head(layers, heads):
    shown = weights(layers, heads)
    figure = grid(shown, ROWS, COLUMNS, "cross")
    found = panels(figure)
    titles = [f"layer {i + 1} head {j + 1}" for i in range(layers) for j in range(heads)]
    assert [axis.get_title() for axis in found] == titles
    for axis, expected in zip(found, shown.reshape(-1, len(ROWS), len(COLUMNS)), strict=True):
        image = axis.collections[0]
        np.testing.assert_array_equal(image.get_array(), expected)
        assert image.get_clim() == (0, 1)


def test_tokens_label_the_axes():
    found = panels(grid(weights(2, 3), ROWS, COLUMNS, "cross"))

    def labels(axis):
        return [[text.get_text() for text in side.get_ticklabels()] for side in (axis.yaxis, axis.xaxis)]

    assert labels(found[3]) == [ROWS, COLUMNS]
    assert labels(found[1]) == [[], []]
    assert not any(text.get_parse_math() for text in found[3].get_xticklabels())


def test_figure_size_grows_with_tokens_and_heads():
    def size(layers, heads, tokens):
        labels = ["token"] * tokens
        return grid(np.ones((layers, heads, tokens, tokens)) / tokens, labels, labels, "x").get_size_inches()

    assert (size(1, 2, 25) > size(1, 2, 5)).all()
    assert size(1, 8, 5)[0] > size(1, 4, 5)[0]
    assert size(4, 4, 5)[1] > size(1, 4, 5)[1]
    # Room for a label of 7.5 points at each of 25 tokens.
    assert (size(1, 1, 25) > 25 * 7.5 / 72).all()


def test_kinds_are_stacked_and_heads_can_be_selected(pipeline):
    found = read_attention(pipeline, "the fox.", "Fuchs")
    assert len(attention.draw_heads(found).subfigs) == 3
    chosen = panels(attention.draw_heads(found, ["cross"], layer=3, head=2))
    assert [axis.get_title() for axis in chosen] == ["layer 3 head 2"]
    np.testing.assert_array_equal(chosen[0].collections[0].get_array(), found.patterns["cross"][2, 1])
    with pytest.raises(UsageError, match="layers 1 to 3"):
        attention.draw_heads(found, ["cross"], layer=4)


@pytest.mark.parametrize("ending", plots.FORMATS)
def test_picture_format_follows_the_file_name(tmp_path, ending):
    path = tmp_path / "new" / f"a{ending}"
    assert plots.save_figure(grid(weights(1, 1), ROWS, COLUMNS, "cross"), path, 40) == path
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[ending])


def test_unwritable_path_is_named(tmp_path):
    (tmp_path / "file").touch()
    figure = grid(weights(1, 1), ROWS, COLUMNS, "cross")
    with pytest.raises(TrifoldError, match="file"):
        plots.save_figure(figure, tmp_path / "file" / "a.png")
    with pytest.raises(UsageError, match=r"\.png"):
        plots.save_figure(figure, tmp_path / "a.txt")
