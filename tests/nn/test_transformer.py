from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trifold.nn import PRESETS, Inputs, Memory, ModelConfig, Transformer

Make = Callable[..., Transformer]

VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "pre-norm, biases": {"norm_placement": "pre", "attention_bias": True, "lm_head_bias": True},
    "sandwich, few key heads": {"norm_placement": "sandwich", "n_kv_heads": 2, "positions": "learned"},
    "two vocabularies": {"target_vocab_size": 17, "n_decoder_layers": 1, "positions": "sinusoidal-halves"},
    "decoder": {"shape": "decoder", "positions": "learned", "activation": "gelu"},
}

LENGTHS = torch.tensor([7, 3, 1])


def batch() -> tuple[Inputs, Inputs]:
    """Three sources of different length, three targets of one length."""
    real = torch.arange(7) < LENGTHS[:, None]
    return Inputs(torch.randint(3, 17, (3, 7)).masked_fill(~real, 0), real), Inputs(
        torch.randint(3, 17, (3, 6))
    )


def hidden_of(model: Transformer, source: Inputs, target: Inputs) -> Tensor:
    return model(source, target) if model.encoder is not None else model(target)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# --- counts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "count"), [("transformer-base", 63_045_632), ("transformer-big", 214_171_648)]
)
def test_the_presets_have_the_parameters_of_the_formula(preset: str, count: int) -> None:
    config = PRESETS[preset]
    with torch.device("meta"):
        model = Transformer(config)
    e, f, n = config.d_model, config.d_ff, config.n_layers
    attention, feed_forward, norm = 4 * e * e, 2 * e * f + e + f, 2 * e
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    assert config.vocab_size * e + n * (encoder + decoder) == count
    assert model.count_parameters() == count


def test_the_tiny_preset_is_tiny() -> None:
    assert Transformer(PRESETS["transformer-tiny"]).count_parameters() <= 2_700_000


def test_tied_tables_are_one_tensor(make_model: Make) -> None:
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


def test_initialisation_is_xavier() -> None:
    """Uniform with variance 2 / (in + out); embeddings N(0, 1/d); norms 1; biases 0."""
    model = Transformer(
        ModelConfig(vocab_size=500, d_model=128, n_heads=4, d_ff=512, n_layers=1, attention_bias=True)
    )
    matrix = model.encoder.blocks[0].feed_forward.sublayer.in_proj.weight
    assert abs(matrix.var() * (128 + 512) / 2 - 1) < 0.02
    assert matrix.abs().max() <= (6 / (128 + 512)) ** 0.5
    assert abs(model.lm_head.weight.var() * 128 - 1) < 0.03
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert (parameter == (1 if name.endswith("weight") else 0)).all(), name


# --- what cannot change the result ---------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_a_row_does_not_depend_on_its_batch_or_its_padding(variant: str, make_model: Make) -> None:
    model = make_model(**VARIANTS[variant])
    source, target = batch()
    together = hidden_of(model, source, target)
    for row, length in enumerate(LENGTHS):
        alone = hidden_of(
            model, Inputs(source.tokens[row : row + 1, :length]), Inputs(target.tokens[row : row + 1])
        )
        close(alone, together[row : row + 1])


@torch.no_grad()
def test_what_stands_at_padding_does_not_matter(make_model: Make) -> None:
    model = make_model()
    source, target = batch()
    other = Inputs(torch.where(source.attend, source.tokens, torch.randint(3, 17, (3, 7))), source.attend)
    close(model(source, target), model(other, target))


@torch.no_grad()
def test_padding_on_the_right_of_a_decoder(make_model: Make) -> None:
    model = make_model(shape="decoder")
    source, _ = batch()
    together = model(source)
    for row, length in enumerate(LENGTHS):
        close(model(Inputs(source.tokens[row : row + 1, :length])), together[row : row + 1, :length])


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_future_does_not_leak(variant: str, make_model: Make) -> None:
    """The gradient of state t for the embeddings of later tokens is exactly 0, and for its own is not."""
    model = make_model(**VARIANTS[variant])
    source, _ = batch()
    source = Inputs(source.tokens.remainder(8), source.attend)
    tokens = torch.arange(8, 14).expand(3, 6)
    for t in range(6):
        weight = model.decoder_embeddings.tokens.weight
        states = hidden_of(model, source, Inputs(tokens))[:, t]
        (gradient,) = torch.autograd.grad((states * torch.randn_like(states)).sum(), [weight])
        assert gradient[8 : 9 + t].abs().sum(-1).gt(0).all()
        assert not gradient[9 + t : 14].any()


def test_an_encoder_sees_both_ways(make_model: Make) -> None:
    model = make_model(shape="encoder")
    weight = model.encoder_embeddings.tokens.weight
    states = model(Inputs(torch.arange(8, 14)[None]))[:, 2]
    (gradient,) = torch.autograd.grad((states * torch.randn_like(states)).sum(), [weight])
    assert gradient[8:14].abs().sum(-1).gt(0).all()


# --- the cache -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("chunks", [[1] * 6, [3, 1, 2], [6]])
@torch.no_grad()
def test_cached_is_uncached_at_every_step(variant: str, chunks: list[int], make_model: Make) -> None:
    model = make_model(**VARIANTS[variant])
    source, target = batch()
    memory = model.encode(source) if model.encoder is not None else None
    whole = model.decode(target, memory)
    cache = model.new_cache()
    for part, start in zip(
        target.tokens.split(chunks, dim=1), [sum(chunks[:i]) for i in range(len(chunks))], strict=True
    ):
        close(model.decode(Inputs(part), memory, cache), whole[:, start : start + part.shape[1]])
    assert cache.length == 6


@torch.no_grad()
def test_a_cached_decoder_with_padded_prompts(make_model: Make) -> None:
    """`attend` covers all keys so far; positions are given where padding stands on the left."""
    model = make_model(shape="decoder")
    real = torch.arange(7) >= 7 - LENGTHS[:, None]
    tokens = torch.randint(3, 17, (3, 9))
    attend = torch.cat([real, torch.ones(3, 2, dtype=torch.bool)], dim=1)
    positions = (attend.cumsum(-1) - 1).clamp_min(0)
    cache = model.new_cache()
    model.decode(Inputs(tokens[:, :7], real, positions[:, :7]), cache=cache)
    for t in (7, 8):
        step = model.decode(
            Inputs(tokens[:, t : t + 1], attend[:, : t + 1], positions[:, t : t + 1]), cache=cache
        )
        for row, length in enumerate(LENGTHS):
            alone = model(Inputs(tokens[row : row + 1, 7 - length : t + 1]))
            close(step[row, 0], alone[0, -1])


@torch.no_grad()
def test_beams_share_one_memory(make_model: Make) -> None:
    model = make_model(attention_bias=True)
    source, _ = batch()
    memory = model.encode(source)
    tokens = torch.randint(3, 17, (12, 5))
    repeated = Memory(memory.hidden.repeat_interleave(4, 0), memory.attend.repeat_interleave(4, 0))
    whole = model.decode(Inputs(tokens), repeated)
    cache = model.new_cache()
    for t in range(5):
        close(model.decode(Inputs(tokens[:, t : t + 1]), memory, cache)[:, 0], whole[:, t])


@torch.no_grad()
def test_reordered_selected_expanded_and_truncated_caches_go_on_as_if_they_had_read_it_so(
    make_model: Make,
) -> None:
    model = make_model()
    source, _ = batch()
    memory = model.encode(source)
    tokens = torch.randint(3, 17, (6, 5))  # two beams a sentence
    step = torch.randint(3, 17, (6, 1))

    def filled() -> Any:
        cache = model.new_cache()
        model.decode(Inputs(tokens), memory, cache)
        return cache

    parents = torch.tensor([1, 1, 2, 2, 5, 4])
    cache = filled()
    cache.reorder(parents)
    expected = model.decode(Inputs(torch.cat([tokens[parents], step], 1)), memory)[:, -1]
    close(model.decode(Inputs(step), memory, cache)[:, 0], expected)

    rows, kept = torch.tensor([0, 1, 4, 5]), torch.tensor([0, 2])
    cache = filled()
    cache.select(rows, kept)
    expected = model.decode(Inputs(torch.cat([tokens[rows], step[rows]], 1)), memory.select(kept))[:, -1]
    close(model.decode(Inputs(step[rows]), memory.select(kept), cache)[:, 0], expected)

    cache = filled()
    cache.truncate(2)
    expected = model.decode(Inputs(torch.cat([tokens[:, :2], step], 1)), memory)[:, -1]
    close(model.decode(Inputs(step), memory, cache)[:, 0], expected)

    cache = model.new_cache()
    model.decode(Inputs(tokens[::2]), memory, cache)
    cache.expand(2)
    expected = model.decode(Inputs(torch.cat([tokens[::2].repeat_interleave(2, 0), step], 1)), memory)[:, -1]
    close(model.decode(Inputs(step), memory, cache)[:, 0], expected)


def test_names_of_the_previous_release_work_with_a_warning() -> None:
    model = Transformer(
        ModelConfig(shape="decoder", vocab_size=9, d_model=8, n_heads=2, n_layers=1, d_ff=8, dropout=0.0)
    )
    inputs = Inputs(torch.arange(4)[None])
    with pytest.warns(DeprecationWarning, match="use head_outputs"):
        old = model.answer(inputs, heads=["lm"])["lm"]
    assert torch.equal(old, model.head_outputs(inputs)["lm"])
    with pytest.warns(DeprecationWarning, match="use capacity"):
        model.new_cache("static", room=5)
    with pytest.warns(DeprecationWarning, match="use order"):
        ranked = Inputs(inputs.tokens, ranks=inputs.tokens)
    assert ranked.order is inputs.tokens and ranked.to(torch.device("cpu")).order is not None
