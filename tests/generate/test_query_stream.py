"""A model with a query stream writes as the reference does."""

from __future__ import annotations

import pytest
import torch

from trifold.errors import UsageError
from trifold.generate.query_stream import QueryStreamWriter
from trifold.generate.search import generate_tokens
from trifold.generation_config import GenerationConfig
from trifold.hub import load_model
from trifold.nn import Inputs
from trifold.nn.masks import padding_mask

SIZES = {"d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 24, "vocab_size": 40}
PROMPT = torch.tensor([[7, 9, 11, 30, 8]])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A random XLNet of the reference, which computes in float32 only, and ours with its
    weights.
    """
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    theirs = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**SIZES)).eval()
    for parameter in theirs.parameters():  # far from uniform predictions
        parameter.data += 0.3 * torch.randn_like(parameter)
    folder = tmp_path_factory.mktemp("xlnet")
    theirs.save_pretrained(folder)
    ours, _ = load_model(folder)
    return theirs, ours.eval()


def test_logits_of_every_step_equal_the_reference(models):
    theirs, ours = models
    writer = QueryStreamWriter(ours)
    cache = writer.new_cache("growing", capacity=9, rollback=0)
    text = PROMPT
    new = PROMPT
    for _ in range(4):
        arguments = theirs.prepare_inputs_for_generation(text)
        with torch.no_grad():
            expected = theirs(**arguments).logits[:, 0]
            found = writer.lm_head(writer.decode(Inputs(new), cache=cache)[:, -1])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        new = expected.argmax(-1)[:, None]
        text = torch.cat([text, new], dim=1)
    assert cache.length == 8


def test_greedy_text_equals_the_reference(models):
    theirs, ours = models
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    expected = theirs.generate(PROMPT, use_mems=False, pad_token_id=5, **options)
    config = GenerationConfig(max_new_tokens=6, min_new_tokens=6)
    ((found,),) = generate_tokens(ours, Inputs(PROMPT), config)
    assert found.tokens == expected[0, PROMPT.shape[1] :].tolist()


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"do_sample": True, "seed": 3}, {"prefill_chunk_size": 2}]
)
def test_rows_of_other_lengths_do_not_change_the_tokens(models, options):
    _, ours = models
    config = GenerationConfig(max_new_tokens=5, **options)
    rows = torch.tensor([[7, 9, 11, 30, 8], [12, 13, 5, 5, 5], [31, 6, 14, 5, 5]])
    lengths = torch.tensor([5, 2, 3])
    together = generate_tokens(ours, Inputs(rows, padding_mask(lengths, 5)), config)
    for number, (row, length) in enumerate(zip(rows, lengths.tolist(), strict=True)):
        alone = generate_tokens(ours, Inputs(row[None, :length]), config, numbers=[number])
        assert [each.tokens for each in alone[0]] == [each.tokens for each in together[number]]
        assert alone[0][0].score == pytest.approx(together[number][0].score)


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        ({"penalty_alpha": 0.5, "top_k": 3}, {}, "leave out penalty_alpha"),
        ({"prompt_lookup_num_tokens": 2}, {}, "leave out prompt_lookup_num_tokens"),
        ({}, {"draft": "itself"}, "leave out draft"),
    ],
)
def test_searches_that_need_states_of_earlier_tokens_are_errors(models, options, more, message):
    _, ours = models
    config = GenerationConfig(max_new_tokens=3, **options)
    with pytest.raises(UsageError, match=f"has a state for the next token only; {message}"):
        generate_tokens(ours, Inputs(PROMPT), config, **dict.fromkeys(more, ours))
