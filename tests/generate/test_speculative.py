"""Speculative decoding generates the tokens of plain greedy decoding or sampling."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st

from trifold.errors import UsageError
from trifold.generate import GenerationConfig, generate_tokens
from trifold.generate.speculative import look_up
from trifold.nn import Inputs, ModelConfig, Transformer

pytestmark = pytest.mark.slow

SHAPES = ("encoder-decoder", "decoder")
rows = st.lists(st.lists(st.integers(3, 16), min_size=1, max_size=9), min_size=1, max_size=3)


def texts(found):
    return [[(o.tokens, o.finish_reason) for o in outputs] for outputs in found]


WAYS = [
    {},
    {"min_new_tokens": 10},
    {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3},
    {"presence_penalty": 0.8, "frequency_penalty": 0.3},
    {"temperature": 1.3, "seed": 3},
    {"top_k": 5, "top_k_form": "uniform", "seed": 3, "num_return_sequences": 2},
    {"bad_words_ids": [[4], [5, 6]], "forced_eos_token_id": 2},
]


@settings(max_examples=40)
@given(
    rows=rows,
    shape=st.sampled_from(SHAPES),
    way=st.sampled_from(WAYS),
    ahead=st.integers(1, 6),
    limit=st.integers(1, 16),
    draft=st.sampled_from(["same", "other", "lookup"]),
)
def test_speculation_generates_the_same_tokens(kit, rows, shape, way, ahead, limit, draft):
    model, inputs = kit.lively(shape), kit.batch(rows)
    limit = max(limit, way.get("min_new_tokens", 0))
    config = GenerationConfig(max_new_tokens=limit, num_assistant_tokens=ahead, **way)
    plain = generate_tokens(model, inputs, config)
    if draft == "lookup":
        config = config.model_copy(update={"prompt_lookup_num_tokens": ahead, "max_matching_ngram_size": 3})
        fast = generate_tokens(model, inputs, config)
    else:
        other = kit.lively(shape, n_layers=1, seed=5 if draft == "same" else 6)
        fast = generate_tokens(model, inputs, config, draft=model if draft == "same" else other)
    assert texts(fast) == texts(plain)
    for ours, theirs in zip(fast, plain, strict=True):
        assert [o.score for o in ours] == pytest.approx([o.score for o in theirs], abs=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", [{}, {"temperature": 1.0, "seed": 4}])
def test_perfect_draft_saves_most_forward_passes(kit, shape, way):
    model, readings = kit.lively(shape), []
    decode = model.decode
    inputs = Inputs(torch.tensor([[5, 6, 7]]))
    config = GenerationConfig(max_new_tokens=24, min_new_tokens=24, num_assistant_tokens=5, **way)
    draft = kit.lively(shape)  # the same weights
    model.decode = lambda *args: (readings.append(args[0].tokens.shape[1]), decode(*args))[1]
    generate_tokens(model, inputs, config, draft=draft)
    assert len(readings) == 1 + 4  # the prompt, and 1 + 5 tokens a reading
    assert max(readings[1:]) == 6


def test_prompt_lookup_saves_forward_passes(kit):
    def probabilities_of(source, prefix):
        return [0.0] * 3 + [0.9 if (len(prefix) % 4) == n else 0.1 / 3 for n in range(4)]

    model, readings = kit.Scripted(probabilities_of, 7), []
    decode = model.decode
    model.decode = lambda *args: (readings.append(args[0].tokens.shape[1]), decode(*args))[1]
    config = GenerationConfig(max_new_tokens=40, prompt_lookup_num_tokens=6)
    ((output,),) = generate_tokens(model, kit.batch([[3]]), config)
    assert output.tokens == [3, 4, 5, 6] * 10
    assert len(readings) < 14


def test_lookup_prefers_the_longest_and_latest_ngram():
    look = partial(look_up, [7, 8, 1, 9, 8, 2, 7, 8, 3], 2)
    assert look([7, 8], 2) == [3, 7]
    assert look([9, 8], 3) == [2, 7, 8]
    assert look([5, 1], 1) == [9]
    assert look([5], 3) == []
    assert look([7, 8], 0) == []


def test_draft_may_have_fewer_positions(kit):
    model, draft = kit.lively("decoder"), kit.lively("decoder", max_positions=10)
    config, inputs = GenerationConfig(max_new_tokens=20), kit.batch([[5, 6, 7], [8]])
    assert texts(generate_tokens(model, inputs, config, draft=draft)) == texts(
        generate_tokens(model, inputs, config)
    )


def test_wrong_drafts_are_refused(kit):
    model, inputs = kit.lively("decoder"), kit.batch([[5]])
    for config, draft, message in (
        (GenerationConfig(num_beams=2), model, "beam search cannot use a draft"),
        (GenerationConfig(penalty_alpha=0.5, top_k=3), model, "contrastive search cannot use a draft"),
        (GenerationConfig(prompt_lookup_num_tokens=3), model, "leave one of them out"),
        (GenerationConfig(), kit.lively("decoder", vocab_size=24), "vocab_size is 24, and the model's 23"),
        (GenerationConfig(), kit.lively(), "shape is encoder-decoder"),
    ):
        with pytest.raises(UsageError, match=message):
            generate_tokens(model, inputs, config, draft=draft)


@torch.no_grad()
def test_speculation_at_the_last_position():
    """The last token is generated, although no position is left to read it."""
    sizes = {"vocab_size": 6, "max_positions": 24, "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16}
    parts = {"shape": "decoder", "positions": "learned", "lm_head_bias": True, "eos_id": 6}
    torch.manual_seed(0)
    model = Transformer(ModelConfig.parse(sizes | parts)).eval()
    model.lm_head.bias[3] = 99.0  # says one word only, so that there is always something to propose
    prompt = Inputs(torch.tensor([[1, 2, 1, 2, 1, 2]]))
    ways = {"max_new_tokens": 99, "bad_words_ids": []}
    plain = generate_tokens(model, prompt, GenerationConfig(**ways))[0][0]
    assert len(plain.tokens) == 24 + 1 - 6
    for count in (1, 4, 30):
        looked = generate_tokens(model, prompt, GenerationConfig(**ways, prompt_lookup_num_tokens=count))[0][
            0
        ]
        assert looked.tokens == plain.tokens
