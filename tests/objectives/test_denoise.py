"""Denoising: sources and targets of both corruptions lose and invent no tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.objectives.common import eval_context, random_model
from tests.text.corruptions import restored

from trifold.errors import SettingsError
from trifold.nn import ModelConfig
from trifold.objectives.denoise import Denoise, DenoiseSettings, Noise, SpansSettings
from trifold.text import TokenizerSettings, make_tokenizer, read_tokenizer
from trifold.text.annotation import annotate, sentinel_ids

WIDTH = 16
WORDS = [f"w{number}" for number in range(40)]
# With several sentences and unknown words; some texts are longer than the model's width.
TEXTS = [
    "W1 w2 w3 w4. W5 w6 w7! W8 w9 strange w11 w12.",
    " ".join(WORDS),
    "W3 unheard w5 w6. W7 w8 w9.",
    "w39",
    "never seen",
]
EVERY = np.arange(7)
draws = st.integers(0, 2**64 - 1)
rates = st.sampled_from([0.0, 0.2, 0.5])
KINDS = ["denoise", "spans"]


@pytest.fixture(scope="module")
def tokenizer():
    known = [*WORDS, *(word.capitalize() for word in WORDS), ".", "!"]
    settings = TokenizerSettings(
        kind="word", vocab_size=200, min_frequency=1, special=("mask",), sentinels=12
    )
    return make_tokenizer([" ".join(known)], settings)


@pytest.fixture(scope="module")
def rows(tokenizer):
    return annotate(tokenizer, TEXTS)


def make_objective(tokenizer, kind, **values):
    """An objective of either kind, by default with the values of its paper."""
    settings = (DenoiseSettings if kind == "denoise" else SpansSettings).parse(values)
    return Denoise(settings, tokenizer, WIDTH, start_id=tokenizer.bos_id)


def sides(objective, examples, chosen, draw):
    """Text, source and target of each given example, without </s>."""
    pairs, found = objective.corrupt_rows(examples, chosen, draw=draw), []
    for place, row in enumerate(chosen.tolist()):
        both = []
        for side in (pairs.sources, pairs.targets):
            ids = side.ids[side.starts[place] : side.starts[place + 1]].tolist()
            assert ids.pop() == objective.tokenizer.eos_id and objective.tokenizer.eos_id not in ids
            both.append(ids)
        found.append((examples[row][0].tolist(), *both))
    return found


@pytest.mark.slow
@given(
    draws,
    st.fixed_dictionaries(dict.fromkeys(Noise.model_fields, rates)).filter(
        lambda r: any(r.values())
    ),
)
def test_noise_keeps_the_target_and_adds_only_masks(tokenizer, rows, draw, noise):
    objective = make_objective(tokenizer, "denoise", noise=noise)
    for text, source, target in sides(objective, objective.examples(rows), EVERY, draw):
        assert target == text
        new = Counter(source) - Counter(text)
        assert set(new) <= {tokenizer.mask_id}
        unknown = tokenizer.unk_id
        assert source.count(unknown) == text.count(unknown)  # special tokens stay
        assert max(len(source), len(target)) < WIDTH  # … and </s> has room


@given(draws, st.sampled_from([0.15, 0.3, 0.5]), st.sampled_from([1.0, 3.0]))
def test_source_and_spans_restore_the_text(tokenizer, rows, draw, rate, mean):
    objective, sentinels = (
        make_objective(tokenizer, "spans", rate=rate, mean_span=mean),
        sentinel_ids(tokenizer),
    )
    for text, source, target in sides(objective, objective.examples(rows), EVERY, draw):
        assert restored(np.array(source, np.int64), np.array(target, np.int64), sentinels) == text
        taken = len(target) - sum(token in sentinels for token in target)
        if len(text) > 1:  # unknown words are taken out like others
            assert taken == min(max(round(len(text) * rate), 1), len(text) - 1)
        assert max(len(source), len(target)) < WIDTH


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_contains_sources_and_targets(tokenizer, rows, kind):
    objective = make_objective(tokenizer, kind)
    examples, end = objective.examples(rows), tokenizer.eos_id
    batch, pairs = objective.batch(examples, EVERY, draw=3), sides(objective, examples, EVERY, 3)
    source = [token for _, source, _ in pairs for token in (*source, end)]
    asked = [token for _, _, target in pairs for token in (*target, end)]
    given = [token for _, _, target in pairs for token in (tokenizer.bos_id, *target)]
    assert batch.inputs.tokens[0, : len(source)].tolist() == source
    assert batch.labels[: len(asked)].tolist() == asked and (batch.labels[len(asked) :] == -1).all()
    assert batch.target.tokens[0, : len(asked)].tolist() == given
    assert objective.counts(batch) == {"tokens": len(asked)}


@pytest.mark.parametrize("kind", KINDS)
def test_written_limits_the_generated_texts(tokenizer, rows, kind):
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        max_positions=WIDTH,
        d_model=16,
        n_layers=1,
        n_heads=2,
        d_ff=16,
    )
    model, context = random_model(config), eval_context(60)
    for count in (0, 3):
        objective = make_objective(tokenizer, kind, written=count)
        one, again = (
            objective.evaluate(model, rows, objective.examples(rows), context) for _ in range(2)
        )
        assert one == again and len(one.samples) == count
        assert ("exact_match" in one.scores) == bool(count)


def test_too_few_sentinels_are_an_error(tokenizer):
    few = make_tokenizer(["a b c"], TokenizerSettings(kind="word", min_frequency=1, sentinels=7))
    with pytest.raises(SettingsError, match=r"have up to 8 spans.*set tokenizer\.sentinels=8"):
        make_objective(few, "spans", rate=0.5, mean_span=1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_saved_tokenizer_parses_holes_in_a_text(tokenizer, kind, tmp_path):
    make_objective(tokenizer, kind).save(tmp_path)
    saved, hole = read_tokenizer(tmp_path), {"denoise": "<mask>", "spans": "<extra_id_0>"}[kind]
    assert saved.parses_special
    (row,) = saved.rows([f"w1 {hole} w2"], special_in_text=True)
    expected = [saved.library.token_to_id(name) for name in ("▁w1", hole, "▁w2", "</s>")]
    assert row.ids == expected
    settings = DenoiseSettings() if kind == "denoise" else SpansSettings()
    (tmp_path / "model").symlink_to(tmp_path)
    assert settings.usage(tmp_path).endswith(f'"a text with a {hole}"')
