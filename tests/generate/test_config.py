from __future__ import annotations

import pytest

from trifold.errors import UsageError
from trifold.generate import GenerationConfig, resolve


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"temperature": 0.7, "do_sample": False}, ("temperature 0.7", "do_sample false")),
        ({"min_p": 0.1, "do_sample": False}, ("min_p 0.1", "do_sample false")),
        ({"num_beams": 4, "top_k": 5}, ("num_beams 4", "top_k 5")),
        ({"num_beams": 4, "do_sample": True}, ("num_beams 4", "do_sample true")),
        ({"num_return_sequences": 3, "num_beams": 2}, ("num_return_sequences 3", "num_beams 2")),
        ({"min_new_tokens": 9, "max_new_tokens": 5}, ("min_new_tokens 9", "max_new_tokens 5")),
        ({"temperature": 0.0}, ("temperature 0.0", "do_sample")),
        ({"top_p": 0.0}, ("top_p", "0.0")),
        ({"top_p": 1.5}, ("top_p", "1.5")),
        ({"top_k": 0}, ("top_k", "0")),
        ({"num_beams": 0}, ("num_beams", "0")),
        ({"num_beams": "5"}, ("num_beams", "'5'")),
        ({"early_stopping": "sometimes"}, ("early_stopping", "'sometimes'")),
        ({"num_beam": 5}, ("num_beam", "'num_beams'")),
        ({"max_length": 5}, ("max_length", "unknown key")),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(asked, named):
    with pytest.raises(UsageError) as refusal:
        resolve({}, asked, at="generate")
    assert all(name in str(refusal.value) for name in (*named, "generate"))


def test_argument_before_stored_before_default():
    config = resolve({"num_beams": 5, "length_penalty": 0.6}, {"num_beams": 3})
    assert (config.num_beams, config.length_penalty, config.early_stopping) == (3, 0.6, True)
    assert resolve(config, {}) == config


@pytest.mark.parametrize("asked", [{"do_sample": True}, {"temperature": 0.8}])
def test_asking_for_samples_drops_stored_beams(asked):
    config = resolve({"num_beams": 5, "length_penalty": 0.6, "max_new_tokens": 7}, asked)
    assert config.samples
    assert (config.num_beams, config.length_penalty, config.max_new_tokens) == (1, 1.0, 7)


@pytest.mark.parametrize("asked", [{"do_sample": False}, {"num_beams": 4}])
def test_asking_for_no_samples_drops_stored_sampling(asked):
    config = resolve({"do_sample": True, "temperature": 0.8, "top_p": 0.9}, asked)
    assert not config.samples
    assert config.temperature is None


def test_a_seed_alone_does_not_make_it_sampling():
    assert not GenerationConfig(seed=3).samples
    assert GenerationConfig(top_p=1.0).samples


def test_asking_for_samples_outweighs_a_stored_refusal():
    assert resolve({"do_sample": False}, {"temperature": 0.8}).samples
