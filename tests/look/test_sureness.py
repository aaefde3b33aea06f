"""Pieces make up the text, and their probabilities are the model's."""

from __future__ import annotations

import pytest
import torch

from trifold.look import figures, sureness
from trifold.look.sureness import Piece
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer

TEXT = "def f(a):\n    return a + 1"


@pytest.fixture(scope="module")
def pipeline():
    tokenizer = train_tokenizer([TEXT] * 5, TokenizerSettings(kind="byte-bpe", vocab_size=280))
    torch.manual_seed(1)
    config = ModelConfig(
        shape="decoder",
        vocab_size=tokenizer.vocab_size,
        max_positions=64,
        d_model=16,
        n_layers=1,
        n_heads=2,
        d_ff=16,
    )
    return Pipeline(Transformer(config).eval(), tokenizer)


def test_pieces_are_the_text_and_sure_only_of_what_was_written(pipeline):
    prompt = [pipeline.reader.required("bos"), *pipeline.reader.encode(["def f(a):"])[0]]
    written = pipeline.reader.encode(["\n    return a + 1"])[0]
    found = sureness.pieces(pipeline, prompt, written)
    assert "".join(piece.text for piece in found) == TEXT
    assert [piece.probability is None for piece in found] == [True] * len(prompt) + [False] * len(written)
    before = torch.tensor([prompt])
    first = pipeline.logits(before)[0, -1].softmax(-1)[written[0]].detach()
    assert found[len(prompt)].probability == pytest.approx(float(first), rel=1e-4)


def test_a_sheet_is_as_large_as_its_texts_with_a_line_between():
    texts = [[Piece("def f():", None), Piece("\n  a", 0.5)], [Piece("x", None)]]
    assert sureness.size(texts) == (4, 8)


def test_what_does_not_fit_on_the_sheet_is_left_out():
    pytest.importorskip("matplotlib")
    axis = figures.new_figure(2, 2).subplots()
    sureness.draw(axis, [[Piece("abc", None), Piece("\nd", 0.25)], [Piece("e", 1.0)]], 2, 2)
    assert [text.get_text() for text in axis.texts] == ["a", "b", "d"]
