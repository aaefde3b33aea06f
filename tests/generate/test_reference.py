"""Compare generated tokens with transformers, for every generative family.

The folder that transformers saved is loaded with its settings. Intended differences have tests of their own: padding is
not a token (it counts for no length and has no position), and the default length is more than 20 tokens.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.generate.families import DECODERS, FAMILIES, made

from trifold.generate import Hypothesis, generate_tokens, resolve
from trifold.hub import load_model
from trifold.nn import Inputs

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]

LIMIT = 10
ENDS = [2, 9, 17, 25, 33, 41]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"repetition_penalty": 1.5, "eos_token_id": ENDS},
    "greedy, nothing twice": {"no_repeat_ngram_size": 2, "min_new_tokens": 4, "eos_token_id": ENDS},
    "beams": {"num_beams": 4, "num_return_sequences": 4, "eos_token_id": ENDS},
    "beams, early": {
        "num_beams": 3, "num_return_sequences": 2, "eos_token_id": ENDS, "early_stopping": True, "length_penalty": 2.0,
    },
    "beams, never": {
        "num_beams": 4, "num_return_sequences": 3, "eos_token_id": ENDS, "early_stopping": "never",
        "length_penalty": 0.6, "repetition_penalty": 1.3,
    },
    "beams, short": {
        "num_beams": 3, "eos_token_id": ENDS, "length_penalty": -0.5, "no_repeat_ngram_size": 2, "min_new_tokens": 5,
        "bad_words_ids": [[7], [11, 12], [5, 5]],
    },
    "beams that sum to 1": {
        "num_beams": 3, "num_return_sequences": 3, "eos_token_id": ENDS, "renormalize_logits": True,
        "bad_words_ids": [[7], [11]], "no_repeat_ngram_size": 2,
    },
}  # fmt: skip


@functools.cache
def pair(family: str, **changes: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The reference's model, ours from its folder, and the settings there."""
    theirs = made(family, **changes)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours, stored = load_model(Path(folder))
    return theirs, ours, stored


def padded(lengths: tuple[int, ...], *, left: bool, pad: int) -> Inputs:
    """Rows of random words."""
    words = torch.randint(3, 60, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    real = real.flip(1) if left else real
    return Inputs(words.where(real, pad), real)


def given(family: str, lengths: tuple[int, ...] = (7, 3, 5)) -> Inputs:
    """What goes in: prompts padded before, sources padded behind, as the reference wants them."""
    pad = FAMILIES[family][2].get("pad_token_id", 1 if family == "bart" else 0)
    return padded(lengths, left=family in DECODERS, pad=pad)


def ours_of(family: str, inputs: Inputs, changes: dict[str, Any], **requested: Any) -> list[list[Hypothesis]]:
    _, model, stored = pair(family, **changes)
    return generate_tokens(model, inputs, resolve(stored, requested))


@torch.no_grad()
def theirs_of(
    family: str, inputs: Inputs, changes: dict[str, Any], **requested: Any
) -> tuple[list[list[int]], Any]:
    """Each output without start, prompt and padding, its end included; and the scores of beams."""
    model = pair(family, **changes)[0]
    assert inputs.attend is not None
    out = model.generate(
        input_ids=inputs.tokens, attention_mask=inputs.attend.long(), do_sample=False,
        return_dict_in_generate=True, output_scores=True, **requested,
    )  # fmt: skip
    width = 1 if model.config.is_encoder_decoder else inputs.tokens.shape[1]
    return out.sequences[:, width:].tolist(), getattr(out, "sequences_scores", None)


def assert_same(
    family: str,
    inputs: Inputs,
    changes: dict[str, Any] | None = None,
    here: dict[str, Any] | None = None,
    **requested: Any,
) -> None:
    """All outputs of all rows, with the scores of beams; `here` are settings of ours alone."""
    changes = changes or {}
    rows, scores = theirs_of(family, inputs, changes, **requested)
    outputs = itertools.chain.from_iterable(ours_of(family, inputs, changes, **requested, **(here or {})))
    end = requested.get("eos_token_id", pair(family, **changes)[1].config.eos_id)
    ends = set(end) if isinstance(end, list) else {end}
    for place, (output, row) in enumerate(zip(outputs, rows, strict=True)):
        assert output.tokens == list(itertools.takewhile(lambda token: token not in ends, row)), place
        if scores is not None:
            assert output.score == pytest.approx(scores[place].item(), rel=2e-5, abs=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_spread_enough_to_compare(family: str) -> None:
    """Or every way of writing would be right."""
    theirs = pair(family)[0]
    inputs = given(family, (6, 6))
    more = {"decoder_input_ids": inputs.tokens} if theirs.config.is_encoder_decoder else {}
    with torch.no_grad():
        assert theirs(input_ids=inputs.tokens, **more).logits.std() >= 1


# Without positions from the mask, padded rows mean something else there: see below.
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "openai-gpt"])
@pytest.mark.parametrize("way", WAYS)
def test_padded_rows_equal_the_reference(family: str, way: str) -> None:
    assert_same(family, given(family), max_new_tokens=LIMIT, **WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_padded_rows_of_openai_gpt_equal_the_reference_without_padding(way: str) -> None:
    """It counts positions from the first column whatever the mask; alone, every row is as ours is in its batch."""
    inputs = given("openai-gpt")
    together = ours_of("openai-gpt", inputs, {}, max_new_tokens=LIMIT, **WAYS[way])
    assert inputs.attend is not None
    for row, length in enumerate(inputs.attend.sum(1).tolist()):
        alone = Inputs(inputs.tokens[row : row + 1, -length:], torch.ones(1, length, dtype=torch.bool))
        assert_same("openai-gpt", alone, max_new_tokens=LIMIT, **WAYS[way])
        ((*best,),) = ours_of("openai-gpt", alone, {}, max_new_tokens=LIMIT, **WAYS[way])
        assert [output.tokens for output in best] == [output.tokens for output in together[row]]


@pytest.mark.parametrize("family", FAMILIES)
def test_lengths_are_counted_as_in_the_reference(family: str) -> None:
    """Of rows without padding: the reference counts padding before a prompt too, we only its tokens."""
    inputs = given(family, (5, 5))
    start = 5 if family in DECODERS else 1
    least = {"min_length": start + 3, "max_length": start + 7}
    assert_same(family, inputs, **least, num_beams=2, num_return_sequences=2, eos_token_id=ENDS)
    assert_same(family, inputs, **least, eos_token_id=ENDS, repetition_penalty=2.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_end_token_is_reached(family: str) -> None:
    """The fifth word of what the first row would say."""
    inputs = given(family, (6, 6))
    first = ours_of(family, inputs, {}, max_new_tokens=LIMIT, repetition_penalty=1.5)[0][0].tokens
    end = first[min(4, len(first) - 1)]
    (output,) = ours_of(family, inputs, {}, max_new_tokens=LIMIT, repetition_penalty=1.5, eos_token_id=end)[0]
    assert output.finish_reason == "stop"
    assert len(output.tokens) < LIMIT
    for way in ({}, {"num_beams": 3, "num_return_sequences": 3}):
        assert_same(family, inputs, max_new_tokens=LIMIT, repetition_penalty=1.5, eos_token_id=end, **way)


@pytest.mark.parametrize("family", ["gpt2", "llama", "falcon, ALiBi"])
@pytest.mark.parametrize("way", [{}, {"num_beams": 3}, {"min_new_tokens": 3, "no_repeat_ngram_size": 1}])
def test_model_without_end_token_generates_to_its_limit(family: str, way: dict[str, Any]) -> None:
    """Of rows of one length: the reference takes padding for a word that was written, and would not write it again."""
    without, inputs = {"eos_token_id": None}, given(family, (6, 6))
    for outputs in ours_of(family, inputs, without, max_new_tokens=LIMIT, **way):
        assert [(len(output.tokens), output.finish_reason) for output in outputs] == [(LIMIT, "length")]
    assert_same(family, inputs, without, max_new_tokens=LIMIT, **way)


@pytest.mark.parametrize("family", ["mistral", "gpt2", "t5"])
@pytest.mark.parametrize("cache", ["growing", "static", "sliding"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_caches_equal_the_reference(family: str, cache: str, chunk: int | None) -> None:
    here, inputs = {"cache": cache, "prefill_chunk_size": chunk}, given(family, (9, 4, 6))
    for way in ({}, {"num_beams": 3, "num_return_sequences": 3}):
        assert_same(family, inputs, None, here, max_new_tokens=14, repetition_penalty=1.5, **way)
