"""Parameters of the presets, and initialization."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trifold.nn import PRESETS, Inputs, ModelConfig, Transformer

Make = Callable[..., Transformer]

# --- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "count"), [("transformer-base", 63_045_632), ("transformer-big", 214_171_648)]
)
def test_presets_have_the_parameter_count_of_the_formula(preset: str, count: int) -> None:
    config = PRESETS[preset]
    with torch.device("meta"):
        model = Transformer(config)
    e, f, n = config.d_model, config.d_ff, config.n_layers
    attention, feed_forward, norm = 4 * e * e, 2 * e * f + e + f, 2 * e
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    assert config.vocab_size * e + n * (encoder + decoder) == count
    assert model.count_parameters() == count


def test_the_tiny_preset_has_at_most_2_7_million_parameters() -> None:
    assert Transformer(PRESETS["transformer-tiny"]).count_parameters() <= 2_700_000


def test_tied_embeddings_are_one_tensor(make_model: Make) -> None:
    shared, own = make_model(), make_model(target_vocab_size=17)
    assert (
        shared.encoder_embeddings.tokens.weight
        is shared.decoder_embeddings.tokens.weight
        is shared.lm_head.weight
    )
    assert own.encoder_embeddings.tokens.weight is not own.decoder_embeddings.tokens.weight
    assert own.decoder_embeddings.tokens.weight is own.lm_head.weight
    untied = make_model(tie_lm_head=False)
    assert untied.lm_head.weight is not untied.decoder_embeddings.tokens.weight


def test_initialization_is_xavier() -> None:
    """Uniform with variance 2 / (in + out); embeddings N(0, 1/d); norms 1; biases 0."""
    model = Transformer(
        ModelConfig(
            vocab_size=500, d_model=128, n_heads=4, d_ff=512, n_layers=1, attention_bias=True
        )
    )
    matrix = model.encoder.blocks[0].feed_forward.sublayer.in_proj.weight
    assert abs(matrix.var() * (128 + 512) / 2 - 1) < 0.02
    assert matrix.abs().max() <= (6 / (128 + 512)) ** 0.5
    assert abs(model.lm_head.weight.var() * 128 - 1) < 0.03
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert (parameter == (1 if name.endswith("weight") else 0)).all(), name


# --- states ---------------------------------------------------------------------------------------


def reached_tokens(model: Transformer, states: Tensor, tokens: Tensor) -> list[bool]:
    """Whether the gradient of the states for the embedding of each token is not 0."""
    embeddings = model.encoder_embeddings if model.decoder is None else model.decoder_embeddings
    (gradient,) = torch.autograd.grad(
        (states * torch.randn_like(states)).sum(), [embeddings.tokens.weight]
    )
    return (gradient[tokens].abs().sum(-1) > 0).tolist()


def test_an_encoder_state_depends_on_all_tokens(make_model: Make) -> None:
    model, tokens = make_model(shape="encoder"), torch.arange(8, 14)
    assert all(reached_tokens(model, model(Inputs(tokens[None]))[:, 2], tokens))


@torch.no_grad()
def test_a_separator_in_the_padding_divides_no_segments(make_model: Make) -> None:
    model = make_model(shape="encoder", n_token_types=2, separator_id=5)
    tokens = torch.tensor([[7, 8, 5, 9, 7]])
    padded = torch.cat([torch.full((1, 3), 5), tokens], 1)
    real = torch.arange(8)[None] >= 3
    torch.testing.assert_close(
        model(Inputs(padded, real))[:, 3:], model(Inputs(tokens)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "values", [{"attention": "elu"}, {"sliding_window": 3, "global_tokens": "first"}], ids=str
)
def test_an_order_is_rejected_where_tokens_ignore_it(
    make_model: Make, values: dict[str, object]
) -> None:
    model, tokens = make_model(shape="encoder", **values), torch.arange(6)[None]
    with pytest.raises(ValueError, match="an order of tokens needs a model without"):
        model(Inputs(tokens, order=tokens))
