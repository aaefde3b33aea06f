"""Plots of metrics, confusions and token probabilities."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from tests.models import ONE_LAYER

from trifold.errors import TrifoldError, UsageError
from trifold.look import plots
from trifold.look.attention import MAX_CELLS, Panel, draw_panels
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.scores.classification import reliability_table
from trifold.text import TokenizerSettings, train_tokenizer

numbers = st.lists(st.floats(-100, 100), min_size=1, max_size=30)


def test_read_metric_returns_one_key(tmp_path):
    lines = [
        {"step": 1, "train/loss": 3.0},
        {"step": 2, "valid/loss": 2.5},
        {"step": 3, "train/loss": 2.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert plots.read_metric(tmp_path, "train/loss") == ([1, 3], [3.0, 2.0])
    assert plots.read_metric(tmp_path, "valid/accuracy") == ([], [])


@pytest.mark.slow
@given(numbers)
def test_moving_average_stays_within_the_range_of_its_inputs(values):
    for index, mean in enumerate(plots.smooth(values)):
        averaged = values[: index + 1]
        assert min(averaged) - 1e-9 <= mean <= max(averaged) + 1e-9


@given(st.floats(-100, 100), st.integers(1, 20))
def test_the_moving_average_of_a_constant_is_the_constant(value, count):
    assert plots.smooth([value] * count) == pytest.approx([value] * count)


def test_confusions_show_their_values():
    pytest.importorskip("matplotlib")
    axis = plots.new_figure(3, 3).subplots()
    plots.draw_confusion(axis, np.array([[3, 0], [1, 2]]), ["a", "b"])
    assert sorted(text.get_text() for text in axis.texts) == ["1", "2", "3"]


def test_the_calibration_plot_shows_confidences_and_accuracies():
    pytest.importorskip("matplotlib")
    labels, predictions = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])
    table = reliability_table(labels, predictions, np.array([0.95, 0.99, 0.97, 0.5]))
    axis = plots.new_figure(3, 3).subplots()
    plots.draw_calibration(axis, table)
    bars = [(bar.get_x(), bar.get_height()) for bar in axis.patches]
    assert np.allclose(bars, [(7 / 15, 1), (14 / 15, 2 / 3)])
    diagonal, points = (np.transpose(line.get_data()) for line in axis.lines)
    assert (diagonal == [(0, 0), (1, 1)]).all()
    assert np.allclose(points, [(0.5, 1), (0.97, 2 / 3)])
    plots.draw_calibration(axis, np.zeros((15, 3)))  # nothing to draw


TEXT = "def f(a):\n    return a + 1"


@pytest.fixture(scope="module")
def pipeline():
    tokenizer = train_tokenizer([TEXT] * 5, TokenizerSettings(kind="byte-bpe", vocab_size=280))
    torch.manual_seed(1)
    sizes = ONE_LAYER | {"d_ff": 16, "max_positions": 64}
    config = ModelConfig(shape="decoder", vocab_size=tokenizer.vocab_size, **sizes)
    return Pipeline(Transformer(config).eval(), tokenizer)


def test_token_probabilities_cover_the_text(pipeline):
    prompt = [pipeline.reader.required("bos"), *pipeline.reader.encode(["def f(a):"])[0]]
    written = pipeline.reader.encode(["\n    return a + 1"])[0]
    found = plots.token_probabilities(pipeline, prompt, written)
    assert "".join(piece.text for piece in found) == TEXT
    assert [piece.probability is None for piece in found] == [True] * len(prompt) + [False] * len(
        written
    )
    before = torch.tensor([prompt])
    first = pipeline.logits(before)[0, -1].softmax(-1)[written[0]].detach()
    assert found[len(prompt)].probability == pytest.approx(float(first), rel=1e-4)


def rows_of(cells):
    found = [""] * (1 + max(cell.row for cell in cells))
    for cell in cells:
        assert len(found[cell.row]) == cell.column
        found[cell.row] += cell.character
    return found


def test_texts_are_separated_by_blank_rows():
    texts = [
        [plots.TokenText("def f():", None), plots.TokenText("\n  a", 0.5)],
        [plots.TokenText("x", None)],
    ]
    assert rows_of(plots.arrange(texts, 99)) == ["def f():", "  a", "", "x"]


def test_wrapped_text_fits_and_is_the_same_text():
    text = [plots.TokenText("def f():\n  abcd", None), plots.TokenText("efghijklmnop", 0.5)]
    wrapped = plots.arrange([text], 8)
    assert rows_of(wrapped) == ["def f():", "  abcdef", "ghijklmn", "op"]
    assert [cell.probability for cell in wrapped] == [None] * 14 + [0.5] * 12
    assert rows_of(plots.arrange([text], 99)) == ["def f():", "  abcdefghijklmnop"]


def test_the_legend_lies_above_the_curves(tmp_path):
    pytest.importorskip("matplotlib")
    # A curve that covers the axis, so that no place below it is free.
    lines = [
        {"step": n, f"{kind}/loss": 1.0 + n % 2} for n in range(200) for kind in ("train", "valid")
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    figure = plots.new_figure(4, 3)
    axis = figure.subplots()
    plots.draw_loss(axis, tmp_path)
    figure.draw_without_rendering()
    bottom = axis.transData.inverted().transform(axis.get_legend().get_window_extent())[0, 1]
    assert bottom > max(max(line.get_ydata()) for line in axis.lines)


def test_text_beyond_the_size_is_omitted():
    pytest.importorskip("matplotlib")
    axis = plots.new_figure(2, 2).subplots()
    first = [plots.TokenText("ab", None), plots.TokenText("\nd", 0.25)]
    plots.draw_probabilities(axis, plots.arrange([first, [plots.TokenText("e", 1.0)]], 2), 2, 2)
    assert [text.get_text() for text in axis.texts] == ["a", "b", "d"]


@pytest.mark.parametrize("ending", plots.FORMATS)
def test_the_picture_format_follows_the_file_name(tmp_path, ending):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / f"a{ending}"
    assert plots.save_figure(plots.new_figure(1, 1), path, 40) == path
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[ending])


def test_an_unwritable_path_is_named(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    with pytest.raises(TrifoldError, match="file"):
        plots.save_figure(plots.new_figure(1, 1), tmp_path / "file" / "a.png")
    with pytest.raises(UsageError, match=r"\.png"):
        plots.save_figure(plots.new_figure(1, 1), tmp_path / "a.txt")


def test_a_large_picture_has_fewer_dots_per_inch(monkeypatch, tmp_path):
    monkeypatch.setattr(plots, "MAX_SIDE", 300)
    monkeypatch.setattr(plots, "MAX_PIXELS", 20_000)
    for width, height, pixels in ((1, 1, 130 * 130), (10, 1, 300 * 30), (10, 10, 20_000)):
        content = plots.save_figure(plots.new_figure(width, height), tmp_path / "a.png")
        header = content.read_bytes()[16:24]
        size = [int.from_bytes(header[at : at + 4], "big") for at in (0, 4)]
        assert 0.95 * pixels <= size[0] * size[1] <= pixels and max(size) <= 300


def test_vector_formats_refuse_more_cells_than_a_program_can_show(tmp_path):
    tokens = 1 + int(plots.MAX_VECTOR_CELLS**0.5)
    figure = plots.new_figure(3, 3)
    figure.subfigures(1, 1).subplots().pcolormesh(np.zeros((tokens, tokens)))
    message = "100,489 cells are too many for this format (at most 100,000); write a .png"
    for name in ("a.svg", "a.PDF"):
        with pytest.raises(UsageError, match=re.escape(message)):
            plots.save_figure(figure, tmp_path / name)
    plots.save_figure(figure, tmp_path / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_too_many_weights_for_a_picture_are_refused():
    tokens = 1 + int(MAX_CELLS**0.5)
    panel = Panel(np.broadcast_to(0.5, (1, 1, tokens, tokens)), "a", "b", "title", [1], [1])
    message = (
        "2,099,601 attention weights are too many for a picture (at most 2,097,152); choose a "
        "layer and a head, or shorten the text"
    )
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        draw_panels([panel])
