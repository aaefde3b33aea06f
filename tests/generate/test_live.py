from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trifold.errors import DataError, UsageError
from trifold.generate import GenerationConfig, generate_tokens
from trifold.nn import Inputs, ModelConfig, Transformer

ROWS = [[5, 6, 7, 8, 2], [9, 2], [4, 4, 4, 2], [16, 3, 11, 12, 13, 14, 2]]
WAYS = {
    "greedy": GenerationConfig(max_new_tokens=14, min_new_tokens=4),
    "beams": GenerationConfig(max_new_tokens=14, min_new_tokens=4, num_beams=5, num_return_sequences=5),
    "one long beam": GenerationConfig(max_new_tokens=14, num_beams=3, early_stopping="never"),
    "samples": GenerationConfig(
        max_new_tokens=14, min_new_tokens=4, temperature=1.5, seed=2, num_return_sequences=3
    ),
    "no repeats": GenerationConfig(
        max_new_tokens=14, num_beams=4, no_repeat_ngram_size=2, repetition_penalty=1.4
    ),
}
SHAPES = ("encoder-decoder", "decoder")


def assert_same(found, expected):
    for outputs, others in zip(found, expected, strict=True):
        assert [o.tokens for o in outputs] == [o.tokens for o in others]
        assert [o.score for o in outputs] == pytest.approx([o.score for o in others], abs=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
def test_with_a_cache_is_without(kit, shape, way):
    model, inputs = kit.tiny(shape), kit.batch(ROWS)
    assert_same(
        generate_tokens(model, inputs, WAYS[way]), generate_tokens(kit.Uncached(model), inputs, WAYS[way])
    )


def test_beams_do_swap_in_these_tests(kit):
    """Otherwise a cache that is never reordered would pass them."""
    model, parents = kit.tiny(), []
    cache_of = model.new_cache

    def spied():
        cache = cache_of()
        reorder, select = cache.reorder, cache.select
        cache.reorder = lambda rows: (parents.append(rows.tolist()), reorder(rows))
        cache.select = lambda rows, sentences: (parents.append(rows.tolist()), select(rows, sentences))
        return cache

    model.new_cache = spied
    generate_tokens(model, kit.batch(ROWS), WAYS["beams"])
    assert sum(rows != sorted(rows) for rows in parents) >= 3


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
def test_a_row_alone_is_the_row_in_its_batch(kit, shape, way):
    model = kit.tiny(shape)
    together = generate_tokens(model, kit.batch(ROWS), WAYS[way])
    for number, row in enumerate(ROWS):
        alone = generate_tokens(model, Inputs(torch.tensor([row])), WAYS[way], numbers=[number])
        assert_same(alone, [together[number]])


@settings(max_examples=15, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    rows=st.lists(st.lists(st.integers(3, 16), min_size=1, max_size=9), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_neighbours_and_their_order_change_nothing(kit, shape, rows, order):
    model = kit.tiny(shape)
    places = list(range(len(rows)))
    order.shuffle(places)
    config = WAYS["beams"]
    straight = generate_tokens(model, kit.batch(rows), config)
    shuffled = generate_tokens(model, kit.batch([rows[place] for place in places]), config)
    assert_same(shuffled, [straight[place] for place in places])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", ["greedy", "beams", "no repeats"])
def test_padding_may_stand_on_either_side(kit, shape, way):
    """An encoder counts positions from the row's first column, so that only a decoder's prompts can be moved."""
    model = kit.tiny(shape, positions="sinusoidal" if shape == "decoder" else "none")
    assert_same(
        generate_tokens(model, kit.batch(ROWS, left=True), WAYS[way]),
        generate_tokens(model, kit.batch(ROWS), WAYS[way]),
    )


def test_columns_of_padding_at_the_end_cost_no_positions(kit):
    model, inputs = kit.tiny(max_positions=8), kit.batch(ROWS)
    wide = Inputs(
        torch.nn.functional.pad(inputs.tokens, (0, 5)), torch.nn.functional.pad(inputs.attend, (0, 5))
    )
    config = GenerationConfig(num_beams=2)
    assert_same(generate_tokens(model, wide, config), generate_tokens(model, inputs, config))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_with_zero_tokens_is_named(kit, shape):
    with pytest.raises(DataError, match=r"row 1 .* zero tokens"):
        generate_tokens(kit.tiny(shape), kit.batch([[5, 2], [], [6]]), GenerationConfig())
    with pytest.raises(DataError, match=r"row 0 .* zero tokens"):
        generate_tokens(kit.tiny(shape), Inputs(torch.zeros(2, 0, dtype=torch.long)), GenerationConfig())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_with_too_many_tokens_is_named(kit, shape):
    model = kit.tiny(shape, max_positions=8)
    with pytest.raises(DataError, match=r"row 2 .* 9 tokens.* at most 8 \(max_positions\)"):
        generate_tokens(model, kit.batch([[5, 2], [3] * 8, [6] * 9]), GenerationConfig())


def test_a_prompt_that_fills_all_positions_still_gets_one_token(kit):
    model = kit.tiny("decoder", max_positions=8)
    ((output,),) = generate_tokens(
        model, kit.batch([[5, 6, 7, 8, 9, 10, 11, 12]]), GenerationConfig(min_new_tokens=1)
    )
    assert len(output.tokens) == 1


def test_a_decoder_writes_fifty_tokens_unless_told(kit):
    ((output,),) = generate_tokens(
        kit.tiny("decoder"), kit.batch([[5] * 7]), GenerationConfig(min_new_tokens=60)
    )
    assert (len(output.tokens), output.finish_reason) == (50, "length")


def test_an_encoder_writes_nothing(kit):
    model = Transformer(ModelConfig(shape="encoder", vocab_size=9, d_model=8, n_heads=2, n_layers=1))
    with pytest.raises(UsageError, match="shape encoder writes no text"):
        generate_tokens(model, kit.batch([[3]]), GenerationConfig())


def test_a_model_in_training_is_left_in_training_and_does_not_drop(kit):
    model, inputs = kit.tiny(), kit.batch(ROWS)
    at_rest = generate_tokens(model, inputs, WAYS["beams"])
    model.train()
    assert generate_tokens(model, inputs, WAYS["beams"]) == at_rest
    assert all(module.training for module in model.modules())
