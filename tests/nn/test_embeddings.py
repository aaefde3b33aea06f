from __future__ import annotations

import math

import pytest
import torch
from tests.models import randomize
from torch.nn import functional as F

from trifold.nn import Inputs, ModelConfig
from trifold.nn.embeddings import Embeddings, TokenEmbedding
from trifold.nn.positions import sinusoids
from trifold.nn.variants.patches import PatchEmbeddings
from trifold.nn.variants.word_matches import MatchEmbeddings


def _parts(**values: object) -> tuple[ModelConfig, TokenEmbedding]:
    config = ModelConfig.parse(
        {"vocab_size": 11, "d_model": 8, "n_heads": 2, "max_positions": 6} | values
    )
    return config, TokenEmbedding(config.vocab_size, config.embedding_width)


def make(**values: object) -> Embeddings:
    return randomize(Embeddings(*_parts(**values)).eval())


TOKENS = torch.tensor([[1, 2, 1], [4, 4, 10]])


def test_embeddings_are_scaled_tokens_plus_positions() -> None:
    embeddings = make()
    rows = F.one_hot(TOKENS, 11).float() @ embeddings.tokens.weight
    torch.testing.assert_close(
        embeddings(Inputs(TOKENS)), rows * math.sqrt(8) + sinusoids(torch.arange(3), 8)
    )


def test_positions_follow_config_and_argument() -> None:
    learned, none = (make(positions=kind, scale_embeddings=False) for kind in ("learned", "none"))
    positions = torch.tensor([[5, 0, 2]])
    torch.testing.assert_close(
        learned(Inputs(TOKENS, positions=positions)),
        learned.tokens.weight[TOKENS] + learned.positions.weight[positions],
    )
    assert torch.equal(none(Inputs(TOKENS)), none.tokens.weight[TOKENS])


def test_start_shifts_positions() -> None:
    embeddings = make()
    later = embeddings(Inputs(TOKENS), start=3)
    torch.testing.assert_close(
        later, embeddings(Inputs(TOKENS, positions=torch.tensor([[3, 4, 5]])))
    )


@pytest.mark.parametrize("start", [0, 4])
def test_positions_beyond_the_last_are_rejected(start: int) -> None:
    tokens = torch.ones(1, 7 - start, dtype=torch.long)
    with pytest.raises(ValueError, match="7 tokens exceed max_positions = 6"):
        make()(Inputs(tokens), start=start)


def test_matches_add_a_vector_of_their_kind() -> None:
    embeddings = randomize(MatchEmbeddings(*_parts(shape="encoder", word_matches=True)).eval())
    matches = torch.tensor([[0, 2, 1], [1, 0, 0]])
    without = embeddings(Inputs(TOKENS))
    added = embeddings(Inputs(TOKENS, matches=matches)) - without
    table = embeddings.matches.weight
    torch.testing.assert_close(added, table[matches] - table[0])
    assert torch.equal(embeddings(Inputs(TOKENS, matches=torch.zeros_like(matches))), without)
    with pytest.raises(ValueError, match="does not use matches"):
        make()(Inputs(TOKENS, matches=matches))


def test_the_bf16_gradient_of_a_frequent_token_is_accurate() -> None:
    """A bf16 sum of ten thousand times 0.01 would stop growing at 4."""
    table = randomize(TokenEmbedding(3, 2)).bfloat16()
    tokens = torch.ones(1, 10_000, dtype=torch.long)
    (table(tokens) * 0.01).sum().backward()
    assert table.weight.grad is not None
    torch.testing.assert_close(
        table.weight.grad[1].float(), torch.full((2,), 100.0), rtol=0.01, atol=0
    )
    assert not table.weight.grad[[0, 2]].any()


@pytest.mark.parametrize("width", [6, 8])  # 8 is the model width: it has a projection too
def test_segments_norm_and_factorized_embeddings(width: int) -> None:
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
    torch.testing.assert_close(
        embeddings(Inputs(TOKENS, segments=segments)), expected, rtol=1e-4, atol=1e-5
    )
    first = Inputs(TOKENS, segments=torch.zeros_like(TOKENS))
    torch.testing.assert_close(embeddings(Inputs(TOKENS)), embeddings(first))


def test_segments_without_a_table_are_rejected() -> None:
    with pytest.raises(ValueError, match="n_token_types = 0"):
        make()(Inputs(TOKENS, segments=torch.zeros_like(TOKENS)))


def test_positions_count_real_tokens() -> None:
    embeddings = make()
    left = Inputs(TOKENS, torch.tensor([[False, True, True], [True, True, True]]))
    expected = embeddings(Inputs(TOKENS[:1, 1:]))
    torch.testing.assert_close(embeddings(left)[:1, 1:], expected)


def test_rotary_positions_have_no_maximum() -> None:
    assert make(positions="rotary")(Inputs(torch.ones(1, 9, dtype=torch.long))).shape == (1, 9, 8)


def test_patch_embeddings_are_a_class_token_and_a_convolution() -> None:
    config = ModelConfig(
        shape="encoder", d_model=8, n_heads=2, image_size=(6, 8), patch_size=(3, 2), n_channels=2,
        positions="learned", max_positions=9,
    )  # fmt: skip
    embeddings = randomize(PatchEmbeddings(config).eval())
    pixels = torch.randn(3, 2, 6, 8)
    kernel = embeddings.patches.weight.view(8, 2, 3, 2)
    patches = (
        F.conv2d(pixels, kernel, embeddings.patches.bias, stride=(3, 2)).flatten(2).transpose(1, 2)
    )
    x = (
        torch.cat([embeddings.class_token.expand(3, 1, 8), patches], 1)
        + embeddings.positions.weight
    )
    torch.testing.assert_close(embeddings(Inputs(pixels=pixels)), x, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"pixels of shape \(3, 2, 8, 6\)"):
        embeddings(Inputs(pixels=pixels.transpose(2, 3)))
    with pytest.raises(ValueError, match="no pixels"):
        embeddings(Inputs(TOKENS))
