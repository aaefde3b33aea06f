from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from trifold.nn import Inputs, ModelConfig
from trifold.nn.embeddings import Embeddings, TokenEmbedding
from trifold.nn.positions import sinusoidal_table


def make(**values: object) -> Embeddings:
    config = ModelConfig.parse({"vocab_size": 11, "d_model": 8, "n_heads": 2, "max_positions": 6} | values)
    table = TokenEmbedding(config.vocab_size, config.d_model)
    embeddings = Embeddings(config, table).eval()
    for parameter in embeddings.parameters():
        torch.nn.init.normal_(parameter)
    return embeddings


TOKENS = torch.tensor([[1, 2, 1], [4, 4, 10]])


def test_tokens_times_the_root_of_the_width_plus_positions() -> None:
    embeddings = make()
    rows = F.one_hot(TOKENS, 11).float() @ embeddings.tokens.weight
    torch.testing.assert_close(embeddings(Inputs(TOKENS)), rows * math.sqrt(8) + sinusoidal_table(3, 8))


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
    with pytest.raises(ValueError, match="7 tokens do not fit max_positions = 6"):
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
