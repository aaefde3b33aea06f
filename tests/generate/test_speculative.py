"""Speculative decoding generates the tokens of plain greedy decoding or sampling."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.generate.models import ScriptedModel, padded_batch, varied_model
from tests.models import ONE_LAYER

from trifold.errors import UsageError
from trifold.generate import GenerationConfig, generate_tokens, stream_tokens
from trifold.generate.speculative import look_up
from trifold.nn import Inputs, ModelConfig, Transformer

pytestmark = pytest.mark.slow

SHAPES = ("encoder-decoder", "decoder")
rows = st.lists(st.lists(st.integers(3, 16), min_size=1, max_size=9), min_size=1, max_size=3)


def outputs_of(found):
    return [[(o.tokens, o.finish_reason) for o in outputs] for outputs in found]


SEARCHES = [
    {},
    {"min_new_tokens": 10},
    {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3},
    {"presence_penalty": 0.8, "frequency_penalty": 0.3},
    {"temperature": 1.3, "seed": 3},
    {"top_k": 5, "top_k_form": "uniform", "seed": 3, "num_return_sequences": 2},
    {"bad_words_ids": [[4], [5, 6]], "forced_eos_token_id": 2},
]


@settings(max_examples=25)
@given(
    rows=rows,
    shape=st.sampled_from(SHAPES),
    search=st.sampled_from(SEARCHES),
    count=st.integers(1, 6),
    limit=st.integers(1, 16),
    draft=st.sampled_from(["same", "other", "lookup"]),
)
def test_speculation_generates_the_same_tokens(rows, shape, search, count, limit, draft):
    model, inputs = varied_model(shape), padded_batch(rows)
    limit = max(limit, search.get("min_new_tokens", 0))
    config = GenerationConfig(max_new_tokens=limit, num_assistant_tokens=count, **search)
    plain = generate_tokens(model, inputs, config)
    if draft == "lookup":
        config = config.model_copy(
            update={"prompt_lookup_num_tokens": count, "max_matching_ngram_size": 3}
        )
        fast = generate_tokens(model, inputs, config)
    else:
        other = varied_model(shape, n_layers=1, seed=5 if draft == "same" else 6)
        fast = generate_tokens(model, inputs, config, draft=model if draft == "same" else other)
    assert outputs_of(fast) == outputs_of(plain)
    for ours, theirs in zip(fast, plain, strict=True):
        assert [o.score for o in ours] == pytest.approx([o.score for o in theirs], abs=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("search", [{}, {"temperature": 1.0, "seed": 4}])
def test_perfect_draft_saves_most_forward_passes(shape, search):
    model, passes = varied_model(shape), []
    decode = model.decode
    inputs = Inputs(torch.tensor([[5, 6, 7]]))
    config = GenerationConfig(
        max_new_tokens=24, min_new_tokens=24, num_assistant_tokens=5, **search
    )
    draft = varied_model(shape)  # the same weights
    model.decode = lambda *args: (passes.append(args[0].tokens.shape[1]), decode(*args))[1]
    generate_tokens(model, inputs, config, draft=draft)
    assert len(passes) == 1 + 4  # the prompt, then 1 + 5 tokens per pass
    assert max(passes[1:]) == 6


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_proposals_do_not_change_the_angles_of_rotary_positions(kind):
    scaling = {"kind": kind, "factor": 4.0, "original_positions": 9}
    if kind == "longrope":
        scaling |= {"short_factors": (1.0,) * 4, "long_factors": (1.0, 2.0, 5.0, 9.0)}
    model = varied_model("decoder", positions="rotary", rotary_scaling=scaling, n_heads=2)
    for row in range(4):
        inputs, config = (
            padded_batch([[3 + row, 7, 8, 3 + row]]),
            GenerationConfig(max_new_tokens=16),
        )
        plain = generate_tokens(model, inputs, config)
        for more in ({"prompt_lookup_num_tokens": 4}, {"prefill_chunk_size": 3}):
            assert outputs_of(
                generate_tokens(model, inputs, config.model_copy(update=more))
            ) == outputs_of(plain)
        draft = varied_model("decoder", seed=row)
        assert outputs_of(generate_tokens(model, inputs, config, draft=draft)) == outputs_of(plain)


def test_prompt_lookup_saves_forward_passes():
    def probabilities_of(source, prefix):
        return [0.0] * 3 + [0.9 if (len(prefix) % 4) == n else 0.1 / 3 for n in range(4)]

    model, passes = ScriptedModel(probabilities_of, 7), []
    decode = model.decode
    model.decode = lambda *args: (passes.append(args[0].tokens.shape[1]), decode(*args))[1]
    config = GenerationConfig(max_new_tokens=40, prompt_lookup_num_tokens=6)
    ((output,),) = generate_tokens(model, padded_batch([[3]]), config)
    assert output.tokens == [3, 4, 5, 6] * 10
    assert len(passes) < 14


def test_prompt_lookup_prefers_the_longest_and_latest_ngram():
    look = partial(look_up, [7, 8, 1, 9, 8, 2, 7, 8, 3], 2)
    assert look([7, 8], 2) == [3, 7]
    assert look([9, 8], 3) == [2, 7, 8]
    assert look([5, 1], 1) == [9]
    assert look([5], 3) == []
    assert look([7, 8], 0) == []
    assert look_up([4], 2, [4], 1) == [4]


def test_draft_may_have_fewer_positions():
    model, draft = varied_model("decoder"), varied_model("decoder", max_positions=10)
    config, inputs = GenerationConfig(max_new_tokens=20), padded_batch([[5, 6, 7], [8]])
    assert outputs_of(generate_tokens(model, inputs, config, draft=draft)) == outputs_of(
        generate_tokens(model, inputs, config)
    )


def test_wrong_drafts_are_refused():
    model, inputs = varied_model("decoder"), padded_batch([[5]])
    for config, draft, message in (
        (GenerationConfig(num_beams=2), model, "beam search cannot use a draft"),
        (
            GenerationConfig(penalty_alpha=0.5, top_k=3),
            model,
            "contrastive search cannot use a draft",
        ),
        (GenerationConfig(prompt_lookup_num_tokens=3), model, "leave one of them out"),
        (
            GenerationConfig(),
            varied_model("decoder", vocab_size=24),
            "vocab_size is 24, and the model's 23",
        ),
        (GenerationConfig(), varied_model(), "shape is encoder-decoder"),
    ):
        with pytest.raises(UsageError, match=message):
            generate_tokens(model, inputs, config, draft=draft)


@pytest.mark.parametrize("kind", ["elu", "favor", "lsh"])
def test_caches_that_cannot_remove_tokens_are_refused_before_the_first(kind):
    other, inputs = varied_model("decoder"), padded_batch([[5]])
    model, lookup = (
        varied_model("decoder", attention=kind),
        GenerationConfig(prompt_lookup_num_tokens=3),
    )
    plain = GenerationConfig(max_new_tokens=3)
    for reader, config, draft, option in (
        (model, lookup, None, "prompt_lookup_num_tokens"),
        (model, plain, other, "draft"),
        (other, plain, model, "draft"),
    ):
        with pytest.raises(
            UsageError, match=f"{option}: attention {kind} cannot remove .*; omit it"
        ):
            next(stream_tokens(reader, inputs, config, draft=draft))


@torch.no_grad()
def test_speculation_reaches_the_last_position():
    """The last token is generated, although no position is left to read it."""
    sizes = ONE_LAYER | {"d_ff": 16, "vocab_size": 6, "max_positions": 24}
    parts = {"shape": "decoder", "positions": "learned", "lm_head_bias": True, "eos_id": 6}
    torch.manual_seed(0)
    model = Transformer(ModelConfig.parse(sizes | parts)).eval()
    model.lm_head.bias[3] = 99.0  # repeats one token, so there is always a proposal
    prompt = Inputs(torch.tensor([[1, 2, 1, 2, 1, 2]]))
    options = {"max_new_tokens": 99, "bad_words_ids": []}
    plain = generate_tokens(model, prompt, GenerationConfig(**options))[0][0]
    assert len(plain.tokens) == 24 + 1 - 6
    for count in (1, 4, 30):
        got = generate_tokens(
            model, prompt, GenerationConfig(**options, prompt_lookup_num_tokens=count)
        )[0][0]
        assert got.tokens == plain.tokens
