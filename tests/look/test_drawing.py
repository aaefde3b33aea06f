from __future__ import annotations

import pytest

from trifold.look.drawing import draw_architecture
from trifold.nn import PRESETS, ModelConfig

CONFIGS = {
    "base": PRESETS["transformer-base"],
    "pre": ModelConfig(norm_placement="pre"),
    "sandwich, two vocabularies": ModelConfig(
        norm_placement="sandwich", target_vocab_size=900, tie_lm_head=False
    ),
    "encoder": ModelConfig(shape="encoder", positions="learned"),
    "decoder": ModelConfig(shape="decoder", n_kv_heads=2, d_ff=123_456),
    "blocks": ModelConfig(sparse_blocks={"size": 64, "random": 3}),
    "segments": ModelConfig(shape="decoder", positions="none", recurrence={"size": 8, "reach": 4}),
    "uneven": ModelConfig(n_layers=12, n_decoder_layers=1, positions="none"),
    "two widths": ModelConfig(
        d_decoder=256, n_decoder_kv_heads=2, d_decoder_head=16, target_vocab_size=900
    ),
}


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def test_every_box_is_closed(config):
    lines = draw_architecture(config).split("\n")
    canvas = [line.ljust(max(map(len, lines))) for line in lines]
    corners = [
        (row, left)
        for row, line in enumerate(canvas)
        for left, character in enumerate(line)
        if character == "┌"
    ]
    # A side is below the corner of a box. The memory arrow starts with a corner too, but on top of
    # a box.
    boxes = [(row, left) for row, left in corners if canvas[row + 1][left] == "│"]
    for row, left in boxes:
        right = canvas[row].index("┐", left)
        bottom = next(r for r in range(row + 1, len(canvas)) if canvas[r][left] == "└")
        assert canvas[bottom][left : right + 1] == "└" + "─" * (right - left - 1) + "┘"
        assert {canvas[r][right] for r in range(row + 1, bottom)} == {"│"}
        # The memory arrow crosses the side of the decoder once.
        assert [canvas[r][left] for r in range(row + 1, bottom)].count("│") >= bottom - row - 2
    stacks = bool(config.encoder_layers) + bool(config.decoder_layers)
    norms = 0 if config.norm_placement == "post" else stacks
    assert len(boxes) == 4 * stacks + norms + (config.decoder_layers > 0) + (
        config.shape == "encoder-decoder"
    )


def test_drawing_contains_every_size(config):
    text = draw_architecture(config)
    assert f"{config.d_model:,} → {config.d_ff:,}" in text
    assert f"{config.n_heads} heads of {config.head_width}" in text
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        assert (f"{side} × {layers}" in text) == (layers > 0)
    assert ("cross-attention" in text) == ("►" in text) == (config.shape == "encoder-decoder")
    assert ("causal" in text) == (config.decoder_layers > 0)
    for side in config.stacks.values():
        assert f"{side.d_model:,} → {side.d_ff:,} → {side.d_model:,}" in text
        assert f"× {side.embedding_width:,}, × √{side.d_model:,}" in text
        assert (f"{side.n_heads} heads of {side.head_width}") in text
        assert (f"{side.kv_heads} of keys and values" in text) == (side.kv_heads != side.n_heads)
    assert (
        f"{config.output_side.d_model:,} → {config.output_vocab_size:,}" in text
        or config.shape == "encoder"
    )


def test_arrow_from_encoder_to_cross_attention():
    lines = draw_architecture(CONFIGS["base"]).split("\n")
    [row] = [line for line in lines if "►" in line]
    assert "►│ cross-attention" in row


def test_the_box_of_attention_names_the_keys_it_reads():
    text = draw_architecture(
        ModelConfig(sliding_window=5, global_tokens="first", global_projections=True)
    )
    assert text.count("window of 5 tokens") == 2
    assert text.count("global first token") == text.count("own projections of global tokens") == 1
    assert draw_architecture(CONFIGS["blocks"]).count("sparse blocks of 64 tokens") == 1
    assert "segments of 8 tokens and 4 before" in draw_architecture(CONFIGS["segments"])


def test_the_convolution_is_named_below_the_boxes():
    text = draw_architecture(
        ModelConfig(shape="encoder", convolution={"kernel": 5, "activation": "tanh"})
    )
    assert "first block:  y ← norm(block(x) + tanh(conv5(x)))" in text
