from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from trifold.nn import Inputs, ModelConfig
from trifold.nn.embeddings import Embeddings, PatchEmbeddings, TokenEmbedding
from trifold.nn.positions import sinusoids


def make(**values: object) -> Embeddings:
    config = ModelConfig.parse({"vocab_size": 11, "d_model": 8, "n_heads": 2, "max_positions": 6} | values)
    table = TokenEmbedding(config.vocab_size, config.embedding_width)
    embeddings = Embeddings(config, table).eval()
    for parameter in embeddings.parameters():
        torch.nn.init.normal_(parameter)
    return embeddings


TOKENS = torch.tensor([[1, 2, 1], [4, 4, 10]])


def test_tokens_times_the_root_of_the_width_plus_positions() -> None:
    embeddings = make()
    rows = F.one_hot(TOKENS, 11).float() @ embeddings.tokens.weight
    torch.testing.assert_close(
        embeddings(Inputs(TOKENS)), rows * math.sqrt(8) + sinusoids(torch.arange(3), 8)
    )


def test_positions_by_config_and_by_argument() -> None:
    learned, none = (
        make(positions="learned", scale_embeddings=False),
        make(positions="none", scale_embeddings=False),
    )
    places = torch.tensor([[5, 0, 2]])
    torch.testing.assert_close(
        learned(Inputs(TOKENS, positions=places)),
        learned.tokens.weight[TOKENS] + learned.positions.weight[places],
    )
    assert torch.equal(none(Inputs(TOKENS)), none.tokens.weight[TOKENS])


def test_a_cache_moves_the_start() -> None:
    embeddings = make()
    later = embeddings(Inputs(TOKENS), start=3)
    torch.testing.assert_close(later, embeddings(Inputs(TOKENS, positions=torch.tensor([[3, 4, 5]]))))


@pytest.mark.parametrize("start", [0, 4])
def test_beyond_the_last_position(start: int) -> None:
    tokens = torch.ones(1, 7 - start, dtype=torch.long)
    with pytest.raises(ValueError, match="7 tokens exceed max_positions = 6"):
        make()(Inputs(tokens), start=start)


def test_the_gradient_of_a_frequent_token_does_not_drown_in_bf16() -> None:
    """Ten thousand times 0.01 added in bf16 would stop growing at 4."""
    table = TokenEmbedding(3, 2)
    torch.nn.init.normal_(table.weight)
    table.bfloat16()
    tokens = torch.ones(1, 10_000, dtype=torch.long)
    (table(tokens) * 0.01).sum().backward()
    assert table.weight.grad is not None
    torch.testing.assert_close(table.weight.grad[1].float(), torch.full((2,), 100.0), rtol=0.01, atol=0)
    assert not table.weight.grad[[0, 2]].any()


@pytest.mark.parametrize("width", [6, 8])  # narrow; and as wide as the model, with a matrix all the same
def test_segments_norm_and_a_factorised_table(width: int) -> None:
    embeddings = make(
        d_embedding=width,
        tie_lm_head=False,
        n_token_types=2,
        embedding_norm=True,
        positions="learned",
        position_offset=2,
    )
    segments = torch.tensor([[0, 1, 1], [0, 0, 1]])
    x = embeddings.tokens.weight[TOKENS] * math.sqrt(8) + embeddings.positions.weight[2:5]
    x = x + embeddings.token_types.weight[segments]
    x = F.layer_norm(x, (width,), embeddings.norm.weight, embeddings.norm.bias)
    expected = x @ embeddings.projection.weight.t() + embeddings.projection.bias
    torch.testing.assert_close(embeddings(Inputs(TOKENS, segments=segments)), expected, rtol=1e-4, atol=1e-5)
    first = Inputs(TOKENS, segments=torch.zeros_like(TOKENS))
    torch.testing.assert_close(embeddings(Inputs(TOKENS)), embeddings(first))


def test_segments_that_no_table_knows_are_refused() -> None:
    with pytest.raises(ValueError, match="n_token_types = 0"):
        make()(Inputs(TOKENS, segments=torch.zeros_like(TOKENS)))


def test_positions_count_real_tokens() -> None:
    """Padding on either side, and none, are the same to a token."""
    embeddings = make()
    left = Inputs(TOKENS, torch.tensor([[False, True, True], [True, True, True]]))
    expected = embeddings(Inputs(TOKENS[:1, 1:]))
    torch.testing.assert_close(embeddings(left)[:1, 1:], expected)


def test_rotary_positions_have_no_end() -> None:
    assert make(positions="rotary")(Inputs(torch.ones(1, 9, dtype=torch.long))).shape == (1, 9, 8)


def test_patches_are_a_convolution_behind_a_class_token() -> None:
    config = ModelConfig(
        shape="encoder", d_model=8, n_heads=2, image_size=(6, 8), patch_size=(3, 2), n_channels=2,
        positions="learned", max_positions=9,
    )  # fmt: skip
    embeddings = PatchEmbeddings(config).eval()
    for parameter in embeddings.parameters():
        torch.nn.init.normal_(parameter)
    pixels = torch.randn(3, 2, 6, 8)
    kernel = embeddings.patches.weight.view(8, 2, 3, 2)
    seen = F.conv2d(pixels, kernel, embeddings.patches.bias, stride=(3, 2)).flatten(2).transpose(1, 2)
    x = torch.cat([embeddings.class_token.expand(3, 1, 8), seen], 1) + embeddings.positions.weight
    torch.testing.assert_close(embeddings(Inputs(pixels=pixels)), x, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"images of shape \(2, 8, 6\)"):
        embeddings(Inputs(pixels=pixels.transpose(2, 3)))
    with pytest.raises(ValueError, match="no pixels"):
        embeddings(Inputs(TOKENS))
