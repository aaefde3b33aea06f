from __future__ import annotations

import functools
import random

import pytest
import torch
from tests.generate.models import UncachedModel, padded_batch, tiny_model, varied_model

from trifold import memory
from trifold.costs import Workload
from trifold.errors import DataError, UsageError
from trifold.generate import GenerationConfig, decoding, generate_tokens
from trifold.generate.decoding import DecodingState
from trifold.nn import Inputs, ModelConfig, Transformer

pytestmark = pytest.mark.slow

ROWS = [[5, 6, 7, 8, 2], [9, 2], [4, 4, 4, 2], [16, 3, 11, 12, 13, 14, 2]]
SEARCHES = {
    "greedy": GenerationConfig(max_new_tokens=14, min_new_tokens=4),
    "beams": GenerationConfig(
        max_new_tokens=14, min_new_tokens=4, num_beams=5, num_return_sequences=5
    ),
    "one long beam": GenerationConfig(max_new_tokens=14, num_beams=3, early_stopping="never"),
    "samples": GenerationConfig(
        max_new_tokens=14, min_new_tokens=4, temperature=1.5, seed=2, num_return_sequences=3
    ),
    "no repeats": GenerationConfig(
        max_new_tokens=14, num_beams=4, no_repeat_ngram_size=2, repetition_penalty=1.4
    ),
    "diverse": GenerationConfig(
        max_new_tokens=12,
        num_beams=6,
        num_beam_groups=3,
        diversity_penalty=0.7,
        num_return_sequences=6,
    ),
    "forced": GenerationConfig(
        max_new_tokens=12,
        num_beams=4,
        force_words_ids=[[7, 8], [[3], [4, 5]]],
        num_return_sequences=4,
    ),
    "contrastive": GenerationConfig(max_new_tokens=12, penalty_alpha=0.6, top_k=4),
    "penalties": GenerationConfig(
        max_new_tokens=12,
        presence_penalty=0.5,
        frequency_penalty=0.4,
        bad_words_ids=[[0], [5], [6, 7]],
    ),
    "typical": GenerationConfig(max_new_tokens=12, typical_p=0.7, seed=5, min_length=9),
    "uniform": GenerationConfig(max_new_tokens=12, top_k=4, top_k_form="uniform", seed=5),
    "several ends": GenerationConfig(max_new_tokens=12, num_beams=3, eos_token_id=[2, 9, 11]),
    "look-up": GenerationConfig(max_new_tokens=12, prompt_lookup_num_tokens=3),
    "cut off": GenerationConfig(
        max_length=11, num_beams=2, forced_eos_token_id=2, early_stopping=False
    ),
}
SHAPES = ("encoder-decoder", "decoder")


def assert_same(found, expected):
    for outputs, others in zip(found, expected, strict=True):
        assert [o.tokens for o in outputs] == [o.tokens for o in others]
        assert [o.score for o in outputs] == pytest.approx([o.score for o in others], abs=1e-4)


# Kinds of caches -> what a model must have for them to do something.
CACHES = {
    "growing": {},
    "static": {},
    "sliding": {"sliding_window": 3, "window_pattern": ("local", "global", 5), "n_layers": 3},
}


@functools.cache
def outputs_without_cache(shape, search, *, windows, left):
    sizes = CACHES["sliding"] if windows else {}
    model = UncachedModel(varied_model(shape, **sizes))
    return generate_tokens(model, padded_batch(ROWS, left=left), SEARCHES[search])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cache", [None, *CACHES])
def test_searches_with_a_cache_equal_searches_without(shape, cache):
    """With windows too: static and growing caches keep the keys outside of a window, a sliding one
    drops them. Each of these runs every search in one of the two shapes.
    """
    windows = cache is not None
    left = windows and shape == "decoder"
    model = varied_model(shape, **(CACHES["sliding"] if windows else {}))
    searches = list(SEARCHES.items())
    if windows:
        searches = searches[(SHAPES.index(shape) + list(CACHES).index(cache)) % 2 :: 2]
    for name, config in searches:
        cached = config.model_copy(update={"cache": cache})
        found = generate_tokens(model, padded_batch(ROWS, left=left), cached)
        assert_same(found, outputs_without_cache(shape, name, windows=windows, left=left))


def test_searches_with_a_decoder_of_other_sizes():
    sizes = {"d_decoder": 24, "n_decoder_heads": 6, "n_decoder_kv_heads": 2, "d_decoder_head": 6}
    model = varied_model(**sizes, target_vocab_size=23, **CACHES["sliding"], decoder_window=2)
    inputs = padded_batch(ROWS)
    for config in SEARCHES.values():
        expected = generate_tokens(UncachedModel(model), inputs, config)
        for cache in CACHES:
            cached = config.model_copy(update={"cache": cache})
            assert_same(generate_tokens(model, inputs, cached), expected)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("draft", [False, True])
def test_speculation_with_a_cache_equals_plain_search_without(cache, draft):
    model, inputs = varied_model("decoder", **CACHES["sliding"]), padded_batch(ROWS)
    config = GenerationConfig(
        max_new_tokens=20, min_new_tokens=20, num_assistant_tokens=4, cache=cache
    )
    plain = generate_tokens(UncachedModel(model), inputs, config)
    if draft:
        other = varied_model("decoder", seed=6, **CACHES["sliding"])
        assert_same(generate_tokens(model, inputs, config, draft=other), plain)
    else:
        look_up = config.model_copy(update={"prompt_lookup_num_tokens": 4})
        assert_same(generate_tokens(model, inputs, look_up), plain)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("search", ["beams", "samples", "contrastive"])
@pytest.mark.parametrize("cache", CACHES)
def test_chunked_prefill_is_equivalent(left, search, cache):
    model, config = varied_model("decoder", **CACHES[cache]), SEARCHES[search]
    inputs = padded_batch(ROWS, left=left)
    expected = generate_tokens(model, inputs, config)
    for chunk in (1, 2, 3, 6, 7, 50):
        chunked = config.model_copy(update={"prefill_chunk_size": chunk, "cache": cache})
        assert_same(generate_tokens(model, inputs, chunked), expected)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("chunk", [None, 2])
def test_cached_logits_equal_those_of_a_full_pass(cache, left, chunk):
    """Cached, chunked and padded logits equal those of one pass over each row alone."""
    model, inputs = varied_model("decoder", **CACHES[cache]), padded_batch(ROWS, left=left)
    state = DecodingState(model, inputs, GenerationConfig(prefill_chunk_size=chunk, cache=cache))
    texts = [list(row) for row in ROWS]
    with torch.no_grad():
        for _ in range(10):
            alone = [
                model.lm_head(model.decode(Inputs(torch.tensor([text]))))[0, -1] for text in texts
            ]
            assert torch.allclose(state.logits, torch.stack(alone), atol=1e-4)
            tokens = state.logits.argmax(-1)
            for text, token in zip(texts, tokens.tolist(), strict=True):
                text.append(token)
            state.advance(tokens)


def test_a_row_does_not_depend_on_its_batch():
    """Hundreds of rows, twice each: in another batch, order and cache, with other padding (on the
    other side). Every search in both shapes; caches change from case to case.
    """
    searches = list(SEARCHES.values())
    draw, rows_tested, caches = random.Random(7), 0, list(CACHES)
    short = {"max_new_tokens": 6, "min_new_tokens": None, "max_length": None, "min_length": None}
    for case in range(2 * len(searches)):
        shape, config = SHAPES[case % 2], searches[case // 2 % len(searches)]
        cache, other_cache = caches[case % 3], caches[(case + 1 + case // 3 % 2) % 3]
        config = config.model_copy(update={**short, "cache": cache})
        model = varied_model(shape, **CACHES["sliding" if case % 5 < 3 else "static"])
        rows = [[draw.randrange(3, 23) for _ in range(draw.randint(1, 7))] for _ in range(12)]
        order = draw.sample(range(12), 12)
        cut = draw.randint(1, 11)
        together = generate_tokens(model, padded_batch(rows), config)
        left = shape == "decoder"
        parts = [order[:cut], order[cut:]]
        for part in parts:
            inputs = padded_batch([rows[index] for index in part], left=left)
            other = config.model_copy(
                update={"cache": other_cache, "prefill_chunk_size": draw.choice([None, 2, 3])}
            )
            apart = generate_tokens(model, inputs, other, numbers=part)
            assert_same(apart, [together[index] for index in part])
        rows_tested += len(rows)
    assert rows_tested >= 300


def test_beams_are_reordered_in_these_tests():
    """Otherwise a cache that ignores reordering would pass them."""
    model, parents = tiny_model(), []
    cache_of = model.new_cache

    def spying_cache(*args, **named):
        cache = cache_of(*args, **named)
        reorder, select = cache.reorder, cache.select
        cache.reorder = lambda rows: (parents.append(rows.tolist()), reorder(rows))
        cache.select = lambda rows, sentences: (
            parents.append(rows.tolist()),
            select(rows, sentences),
        )
        return cache

    model.new_cache = spying_cache
    generate_tokens(model, padded_batch(ROWS), SEARCHES["beams"])
    assert sum(rows != sorted(rows) for rows in parents) >= 3


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("search", ["greedy", "beams", "no repeats"])
def test_padding_side_changes_nothing(shape, search):
    """An encoder counts positions from the first column, so only a decoder's prompts can be
    shifted.
    """
    model = tiny_model(shape, positions="sinusoidal" if shape == "decoder" else "none")
    assert_same(
        generate_tokens(model, padded_batch(ROWS, left=True), SEARCHES[search]),
        generate_tokens(model, padded_batch(ROWS), SEARCHES[search]),
    )


def test_trailing_padding_needs_no_positions():
    model, inputs = tiny_model(max_positions=8), padded_batch(ROWS)
    wide = Inputs(
        torch.nn.functional.pad(inputs.tokens, (0, 5)),
        torch.nn.functional.pad(inputs.attend, (0, 5)),
    )
    config = GenerationConfig(num_beams=2)
    assert_same(generate_tokens(model, wide, config), generate_tokens(model, inputs, config))


@pytest.mark.parametrize("shape", SHAPES)
def test_empty_row_is_named(shape):
    with pytest.raises(DataError, match=r"row 1 .* zero tokens"):
        generate_tokens(tiny_model(shape), padded_batch([[5, 2], [], [6]]), GenerationConfig())
    with pytest.raises(DataError, match=r"row 0 .* zero tokens"):
        generate_tokens(
            tiny_model(shape), Inputs(torch.zeros(2, 0, dtype=torch.long)), GenerationConfig()
        )


@pytest.mark.parametrize("shape", SHAPES)
def test_too_long_row_is_named(shape):
    model = tiny_model(shape, max_positions=8)
    with pytest.raises(DataError, match=r"row 2 .* 9 tokens.* at most 8 \(max_positions\)"):
        generate_tokens(model, padded_batch([[5, 2], [3] * 8, [6] * 9]), GenerationConfig())


def test_full_prompt_gets_one_token():
    model = tiny_model("decoder", max_positions=8)
    ((output,),) = generate_tokens(
        model, padded_batch([[5, 6, 7, 8, 9, 10, 11, 12]]), GenerationConfig(min_new_tokens=1)
    )
    assert len(output.tokens) == 1


def test_decoder_generates_fifty_tokens_by_default():
    ((output,),) = generate_tokens(
        tiny_model("decoder"), padded_batch([[5] * 7]), GenerationConfig(min_new_tokens=60)
    )
    assert (len(output.tokens), output.finish_reason) == (50, "length")


def test_encoder_cannot_generate():
    model = Transformer(
        ModelConfig(shape="encoder", vocab_size=9, d_model=8, n_heads=2, n_layers=1)
    )
    with pytest.raises(UsageError, match="shape encoder generates no text"):
        generate_tokens(model, padded_batch([[3]]), GenerationConfig())


def test_training_mode_is_restored_and_dropout_is_off():
    model, inputs = tiny_model(), padded_batch(ROWS)
    expected = generate_tokens(model, inputs, SEARCHES["beams"])
    model.train()
    assert generate_tokens(model, inputs, SEARCHES["beams"]) == expected
    assert all(module.training for module in model.modules())


def test_max_length_includes_the_prompt():
    config = GenerationConfig(max_length=9, min_length=9)
    found = generate_tokens(varied_model("decoder"), padded_batch(ROWS), config)
    assert [len(output.tokens) for (output,) in found] == [9 - len(row) for row in ROWS]
    found = generate_tokens(varied_model(), padded_batch(ROWS), config)
    assert {len(output.tokens) for (output,) in found} == {8}
    with pytest.raises(
        DataError, match=r"row 3 is a prompt of 7 tokens, and max_length 6 includes the prompt"
    ):
        generate_tokens(varied_model("decoder"), padded_batch(ROWS), GenerationConfig(max_length=6))


@pytest.mark.parametrize(
    ("window", "requested", "kind"),
    [
        (None, {"max_new_tokens": 20}, "StaticKeys"),
        (None, {"max_new_tokens": 90}, "StaticKeys"),
        (None, {"max_new_tokens": 500}, "GrowingKeys"),
        (4, {"max_new_tokens": 20}, "SlidingKeys"),
        (200, {"max_new_tokens": 20}, "StaticKeys"),
        (4, {"max_new_tokens": 20, "cache": "growing"}, "GrowingKeys"),
        (4, {"max_new_tokens": 20, "cache": "static"}, "StaticKeys"),
        (None, {"max_new_tokens": 500, "cache": "static"}, "StaticKeys"),
    ],
)
def test_cache_kind_is_chosen_by_model_and_length(window, requested, kind):
    model = varied_model("decoder", sliding_window=window, max_positions=1000)
    state = DecodingState(model, padded_batch(ROWS), GenerationConfig(**requested))
    keys = state.cache.layers[0].past
    assert type(keys).__name__ == kind
    if kind == "StaticKeys":
        assert keys.buffers[0].shape[2] == 7 + requested["max_new_tokens"]


def test_sliding_cache_bounds_memory():
    model = varied_model(
        "decoder",
        sliding_window=5,
        window_pattern=("local", "global"),
        max_positions=1000,
        positions="rotary",
    )
    config = GenerationConfig(
        max_new_tokens=300, min_new_tokens=300, cache="sliding", prefill_chunk_size=16
    )
    caches = []
    new_cache = model.new_cache
    model.new_cache = lambda *args, **named: caches.append(new_cache(*args, **named)) or caches[-1]
    inputs = Inputs(torch.randint(3, 23, (2, 200)))
    sliding = generate_tokens(model, inputs, config)
    local, full = (layer.past for layer in caches[0].layers)
    assert full.buffers[0].shape[2] >= local.length == 499
    assert local.buffers[0].shape[2] <= 2 * (5 + config.num_assistant_tokens)
    del model.new_cache
    assert_same(
        sliding, generate_tokens(model, inputs, config.model_copy(update={"cache": "growing"}))
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 50, "max_new_tokens": 4}, "num_beams 50: 50 rows"),
        (
            {"num_return_sequences": 50, "do_sample": True, "max_new_tokens": 4},
            "num_return_sequences 50: 50 rows",
        ),
        ({"penalty_alpha": 0.5, "top_k": 15, "max_new_tokens": 4}, "top_k 15: 15 rows"),
        (
            {"max_new_tokens": 2**30},
            r"max_new_tokens 1073741824: 1 rows of up to 1,073,741,8\d\d tokens",
        ),
        (
            {"max_length": 2**30},
            "max_length 1073741824: 1 rows of up to 1,073,741,824 tokens",
        ),
    ],
)
def test_a_search_that_exceeds_the_available_memory_is_rejected(options, named, monkeypatch):
    model, inputs = (
        tiny_model("decoder", positions="rotary", max_positions=2**31 - 1),
        padded_batch([[3, 4, 5]]),
    )
    monkeypatch.setattr(memory, "UNCHECKED", 10_000)
    monkeypatch.setattr(memory, "available_memory", lambda device: (20_000, "here"))
    assert generate_tokens(model, inputs, GenerationConfig(max_new_tokens=4))
    with pytest.raises(UsageError, match=rf"^{named}.* need \d.* available \(here\); lower it"):
        generate_tokens(model, inputs, GenerationConfig(**options))


@pytest.mark.parametrize(
    ("shape", "chunk", "expected"),
    [
        ("encoder-decoder", None, Workload(2, source=4, target=1, scored=1, cached=1 + 6)),
        ("decoder", None, Workload(2, source=0, target=4, scored=1, cached=4 + 6)),
        ("decoder", 3, Workload(2, source=0, target=3, past=1, scored=1, cached=4 + 6)),
    ],
)
def test_the_memory_of_the_prompt_is_estimated_from_what_is_read(
    shape, chunk, expected, monkeypatch
):
    estimated = []
    monkeypatch.setattr(
        decoding, "check_request", lambda model, work, what, remedy: estimated.append(work)
    )
    config = GenerationConfig(max_new_tokens=6, prefill_chunk_size=chunk)
    DecodingState(tiny_model(shape), padded_batch([[3, 4, 5, 2], [6, 2]]), config)
    assert estimated == [expected]
