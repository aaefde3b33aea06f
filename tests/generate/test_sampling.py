from __future__ import annotations

import collections
import itertools
import math

import pytest
import torch
from hypothesis import given, strategies as st
from tests.generate.models import ScriptedModel, padded_batch, random_probabilities

from trifold.generate import GenerationConfig, generate_tokens, sampling
from trifold.generate.sampling import FILTERS, sampler

NEVER = float("-inf")
PROBABILITIES = torch.tensor([[0.4, 0.05, 0.3, 0.05, 0.2]])


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("top_k", 2, {0, 2}),
        ("top_k", 4, {0, 1, 2, 3, 4}),  # the fourth and the fifth are equally likely
        ("top_k", 99, {0, 1, 2, 3, 4}),
        ("top_p", 0.3, {0}),
        ("top_p", 0.5, {0, 2}),
        ("top_p", 0.85, {0, 2, 4}),
        ("top_p", 1.0, {0, 1, 2, 3, 4}),
        ("min_p", 0.5, {0, 2, 4}),
        ("min_p", 0.6, {0, 2}),
        ("min_p", 1.0, {0}),
        ("min_p", 0.0, {0, 1, 2, 3, 4}),
    ],
)
def test_filters_keep_the_expected_tokens(name, value, kept):
    logits = FILTERS[name](PROBABILITIES.log() + 3, value)
    assert {token for token in range(5) if logits[0, token] > NEVER} == kept


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20), st.floats(0.01, 1))
def test_top_p_keeps_the_fewest_sufficient_tokens(logits, share):
    probabilities = torch.tensor([logits]).softmax(-1)
    kept = FILTERS["top_p"](torch.tensor([logits]), share)[0] > NEVER
    chosen = probabilities[0][kept].sort(descending=True).values
    assert chosen.sum() >= share - 1e-5
    assert len(chosen) == 1 or chosen[:-1].sum() < share + 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"do_sample": True}, PROBABILITIES[0]),
        ({"temperature": 0.5}, PROBABILITIES[0] ** 2 / (PROBABILITIES[0] ** 2).sum()),
        ({"top_k": 3, "top_k_form": "uniform"}, torch.tensor([1 / 3, 0, 1 / 3, 0, 1 / 3])),
    ],
    ids=str,
)
def test_sample_frequencies_equal_the_probabilities(settings, expected):
    rows = 20_000
    config = GenerationConfig(seed=1, **settings)
    choose = sampler(config, [(row, 0) for row in range(rows)], 1, torch.device("cpu"))
    tokens = choose(PROBABILITIES.log().expand(rows, -1), torch.arange(rows), 0)
    found = torch.bincount(tokens, minlength=5) / rows
    assert (found - expected).abs().max() < 4 * math.sqrt(0.25 / rows)


def test_samples_depend_only_on_seed_and_number():
    model = ScriptedModel(random_probabilities(3, 9), 9)
    sources = [[4, 5], [6], [4, 5], [3, 3, 3]]
    config = GenerationConfig(temperature=1.2, top_k=6, seed=11, num_return_sequences=3)
    together = generate_tokens(model, padded_batch(sources), config)
    assert [len(outputs) for outputs in together] == [3, 3, 3, 3]
    assert together[0] != together[2], "equal inputs are drawn apart"
    for number, source in enumerate(sources):
        (alone,) = generate_tokens(model, padded_batch([source]), config, numbers=[number])
        assert alone == together[number]
        assert len({tuple(output.tokens) for output in alone}) > 1
        assert [o.score for o in alone] == sorted((o.score for o in alone), reverse=True)
    other = config.model_copy(update={"seed": 12})
    assert generate_tokens(model, padded_batch(sources), other) != together


def kept(probabilities: list[float], requested: dict) -> list[float]:
    """The filters one after the other, by definition."""
    p = [x ** (1 / requested.get("temperature", 1.0)) for x in probabilities]
    p = [x / sum(p) for x in p]
    if "top_k" in requested:
        least = sorted(p)[-requested["top_k"]]
        p = [x if x >= least else 0.0 for x in p]
        p = [float(x > 0) for x in p] if requested.get("top_k_form") == "uniform" else p
        p = [x / sum(p) for x in p]
    if "top_p" in requested:
        order = sorted(range(len(p)), key=lambda token: -p[token])
        before = itertools.accumulate((p[token] for token in order), initial=0.0)
        inside = {
            token for token, mass in zip(order, before, strict=False) if mass < requested["top_p"]
        }
        p = [x * (token in inside) for token, x in enumerate(p)]
        p = [x / sum(p) for x in p]
    if "min_p" in requested:
        p = [x * (x >= requested["min_p"] * max(p)) for x in p]
        p = [x / sum(p) for x in p]
    if "typical_p" in requested:
        entropy = -sum(x * math.log(x) for x in p if x)
        order = sorted(
            (t for t, x in enumerate(p) if x), key=lambda t: abs(-math.log(p[t]) - entropy)
        )
        before = itertools.accumulate((p[token] for token in order), initial=0.0)
        inside = {
            token
            for token, mass in zip(order, before, strict=False)
            if mass < requested["typical_p"]
        }
        p = [x * (token in inside) for token, x in enumerate(p)]
        p = [x / sum(p) for x in p]
    return p


@pytest.mark.parametrize(
    "requested",
    [
        {"do_sample": True},
        {"temperature": 0.6},
        {"temperature": 1.7, "top_p": 0.7},
        {"top_k": 2},
        {"top_k": 3, "top_k_form": "uniform"},
        {"top_p": 0.6},
        {"min_p": 0.41},
        {"typical_p": 0.5},
        {"temperature": 1.3, "top_k": 4, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8},
    ],
    ids=",".join,
)
def test_sample_frequencies_of_whole_outputs(requested):
    """Of all outputs of at most three tokens, in 3,000 samples from a table."""
    draws, table = 3000, {
        (): [0, 0, 0.1, 0.42, 0.3, 0.18],
        (3,): [0, 0, 0.35, 0.05, 0.4, 0.2],
        (4,): [0, 0, 0.2, 0.21, 0.09, 0.5],
    }  # fmt: skip

    def probabilities_of(source, prefix):
        return table.get(prefix, [0, 0, 0.5, 0.3, 0.15, 0.05])

    probability_of: dict[tuple, float] = {}

    def spread(prefix, probability):
        for token, p in enumerate(kept(probabilities_of((), prefix), requested)):
            text = prefix if token == 2 else (*prefix, token)
            if p and (token == 2 or len(text) == 3):
                probability_of[text, token == 2] = (
                    probability_of.get((text, token == 2), 0.0) + probability * p
                )
            elif p:
                spread(text, probability * p)

    spread((), 1.0)
    config = GenerationConfig(seed=5, max_new_tokens=3, num_return_sequences=draws, **requested)
    (outputs,) = generate_tokens(ScriptedModel(probabilities_of, 6), padded_batch([[3]]), config)
    found = collections.Counter((tuple(o.tokens), o.finish_reason == "stop") for o in outputs)
    assert set(found) <= set(probability_of)
    assert sum(probability_of.values()) == pytest.approx(1)
    for text, probability in probability_of.items():
        assert (
            abs(found[text] / draws - probability)
            < 4.5 * math.sqrt(probability * (1 - probability) / draws) + 1e-9
        )


@given(
    st.lists(st.integers(-400, 400).map(lambda n: n / 100), min_size=3, max_size=12, unique=True),
    st.floats(0.4, 2.5),
    st.integers(2, 9),
    st.floats(0.1, 0.95),
    st.floats(0.0, 0.6),
)
def test_filters_equal_the_reference_in_sequence(logits, temperature, k, top_p, min_p):
    transformers = pytest.importorskip("transformers")
    theirs = ours = torch.tensor([logits])
    for warper in (
        transformers.TemperatureLogitsWarper(temperature), transformers.TopKLogitsWarper(k),
        transformers.TopPLogitsWarper(top_p), transformers.MinPLogitsWarper(min_p),
    ):  # fmt: skip
        theirs = warper(None, theirs)
    for name, value in {
        "temperature": temperature,
        "top_k": k,
        "top_p": top_p,
        "min_p": min_p,
    }.items():
        ours = FILTERS[name](ours, value)
    assert torch.equal(ours, theirs)


def test_sampling_without_a_seed_uses_the_generator_of_torch():
    model = ScriptedModel(random_probabilities(3, 9), 9)
    config = GenerationConfig(do_sample=True, max_new_tokens=12)

    def outputs(seed):
        torch.manual_seed(seed)
        return generate_tokens(model, padded_batch([[4]] * 5), config)

    assert outputs(1) == outputs(1)
    assert outputs(1) != outputs(2)


def test_top_k_of_one_is_greedy():
    model = ScriptedModel(random_probabilities(8, 9), 9)
    inputs = padded_batch([[4, 5], [6]])
    greedy = generate_tokens(model, inputs, GenerationConfig(max_new_tokens=10))
    assert generate_tokens(model, inputs, GenerationConfig(top_k=1, max_new_tokens=10)) == greedy


def test_typical_p_equals_the_reference():
    transformers = pytest.importorskip("transformers")
    for share in (0.2, 0.5, 0.9):
        logits = torch.randn(50, 30) * 3
        theirs = transformers.TypicalLogitsWarper(mass=share)(None, logits)
        assert torch.equal(FILTERS["typical_p"](logits, share), theirs)


def test_top_p_equals_itself_beyond_the_presorted_tokens(monkeypatch):
    logits = torch.randn(40, 60)
    whole = FILTERS["top_p"](logits, 0.8)
    monkeypatch.setattr(sampling, "HEAD", 5)
    assert torch.equal(FILTERS["top_p"](logits, 0.8), whole)
    sharp = logits * 20
    assert torch.equal(
        FILTERS["top_p"](sharp, 0.3) > NEVER, sharp.argmax(-1, keepdim=True) == torch.arange(60)
    )


def test_top_p_reached_exactly_keeps_no_more_tokens():
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    assert (sampling.top_p(logits, 0.5) > float("-inf")).tolist() == [[True, False, False]]
