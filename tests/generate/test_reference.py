"""Generated tokens equal those of transformers, for every generative family.

Our model is loaded from the folder that transformers saved, with its settings. Intended differences
have tests of their
own: padding is not a token (it has no length and no position), and the default length is more than
20 tokens."""

from __future__ import annotations

import functools
import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.generate.families import DECODERS, FAMILIES, new_reference

from trifold.generate import Hypothesis, generate_tokens, resolve
from trifold.hub import load_model
from trifold.nn import Inputs

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]

LIMIT = 8
ENDS = [2, 9, 17, 25, 33, 41]
SEARCHES: dict[str, dict[str, Any]] = {
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
    """The model of transformers, our model loaded from its folder, and the settings in the folder."""
    reference = new_reference(family, **changes)
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        model, settings = load_model(Path(folder))
    return reference, model, settings


def inputs_for(family: str, lengths: tuple[int, ...] = (7, 3, 5)) -> Inputs:
    """Rows of random tokens: prompts padded on the left, sources on the right, as the reference
    requires.
    """
    pad = FAMILIES[family][2].get("pad_token_id", 1 if family in ("bart", "led") else 0)
    tokens = torch.randint(
        3, 60, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1)
    )
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    real = real.flip(1) if family in DECODERS else real
    return Inputs(tokens.where(real, pad), real)


def our_outputs(
    family: str, inputs: Inputs, changes: dict[str, Any], **requested: Any
) -> list[list[Hypothesis]]:
    _, model, settings = pair(family, **changes)
    return generate_tokens(model, inputs, resolve(settings, requested))


@torch.no_grad()
def reference_outputs(
    family: str, inputs: Inputs, changes: dict[str, Any], **requested: Any
) -> tuple[list[list[int]], Any]:
    """Each output with its end token, without start token and prompt; and the scores of beams."""
    model = pair(family, **changes)[0]
    if family == "led":  # the first token is global in ours
        requested["global_attention_mask"] = (
            torch.arange(inputs.tokens.shape[1]).eq(0).long().expand_as(inputs.tokens)
        )
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
    own_options: dict[str, Any] | None = None,
    **requested: Any,
) -> None:
    """All outputs of all rows, with the scores of beams; `own_options` are for our model only."""
    changes = changes or {}
    rows, scores = reference_outputs(family, inputs, changes, **requested)
    outputs = itertools.chain.from_iterable(
        our_outputs(family, inputs, changes, **requested | (own_options or {}))
    )
    end = requested.get("eos_token_id", pair(family, **changes)[1].config.eos_id)
    ends = set(end) if isinstance(end, list) else {end}
    for index, (output, row) in enumerate(zip(outputs, rows, strict=True)):
        assert output.tokens == list(itertools.takewhile(lambda token: token not in ends, row)), (
            index
        )
        if scores is not None:
            assert output.score == pytest.approx(scores[index].item(), rel=2e-5, abs=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_spread_enough_to_compare(family: str) -> None:
    """With uniform logits the comparisons would be trivial."""
    reference = pair(family)[0]
    inputs = inputs_for(family, (6, 6))
    more = {"decoder_input_ids": inputs.tokens} if reference.config.is_encoder_decoder else {}
    with torch.no_grad():
        assert reference(input_ids=inputs.tokens, **more).logits.std() >= 1


# The reference gives the padded rows of openai-gpt other positions: see below. Every other search
# with every family, so that each family has greedy searches and beams.
@pytest.mark.parametrize(
    ("family", "search"),
    [
        (family, search)
        for row, family in enumerate(name for name in FAMILIES if name != "openai-gpt")
        for column, search in enumerate(SEARCHES)
        if (row + column) % 2 == 0
    ],
)
def test_padded_rows_equal_the_reference(family: str, search: str) -> None:
    assert_same(family, inputs_for(family), max_new_tokens=LIMIT, **SEARCHES[search])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.7, "min_new_tokens": 4},
        {"num_beams": 4},
        {"num_beams": 4, "early_stopping": False},
        {"num_beams": 4, "early_stopping": "never", "length_penalty": 0.6},
        {"num_beams": 5, "early_stopping": False, "length_penalty": -0.5},
        {"num_beams": 3, "early_stopping": False, "length_penalty": 2.0, "num_return_sequences": 3},
        {"num_beams": 4, "no_repeat_ngram_size": 2, "min_new_tokens": 5, "num_return_sequences": 2},
        {"bad_words_ids": [[60], [5], [6, 7], [7, 6, 6]]},
        {"num_beams": 3, "bad_words_ids": [[60], [5], [6, 7], [16, 16]]},
        {"bad_words_ids": None},
        {"num_beams": 3, "bad_words_ids": None},
        {"num_beams": 4, "early_stopping": False, "num_return_sequences": 4},
        {"forced_bos_token_id": 9, "forced_eos_token_id": 2, "min_new_tokens": LIMIT - 1},
        {"num_beams": 4, "forced_bos_token_id": 9, "forced_eos_token_id": 2, "eos_token_id": 2},
        {"max_new_tokens": None, "max_length": 8, "min_length": 5, "num_beams": 2},
    ],
    ids=lambda options: ",".join(f"{key}={value}" for key, value in options.items()) or "greedy",
)
@pytest.mark.parametrize("renormalize", [False, True])
def test_options_of_searches_equal_the_reference(
    options: dict[str, Any], renormalize: bool
) -> None:
    usual = {
        "max_new_tokens": LIMIT,
        "early_stopping": True,
        "eos_token_id": ENDS,
        "bad_words_ids": [[60]],
    }
    requested = usual | options | {"renormalize_logits": renormalize}
    own_options = {"bad_words_ids": requested["bad_words_ids"] or []}  # our None bans padding
    inputs, changes = inputs_for("marian", (5, 2, 4, 6)), {"forced_eos_token_id": None}
    assert_same("marian", inputs, changes, own_options, **requested)
    if "num_beams" not in options:
        own_options["prompt_lookup_num_tokens"] = 3
        assert_same("marian", inputs, changes, own_options, **requested)


@pytest.mark.parametrize("search", SEARCHES)
def test_padded_rows_of_openai_gpt_equal_the_reference_without_padding(search: str) -> None:
    """The reference counts positions from the first column; a row alone equals ours in its batch."""
    inputs = inputs_for("openai-gpt")
    together = our_outputs("openai-gpt", inputs, {}, max_new_tokens=LIMIT, **SEARCHES[search])
    for row, length in enumerate(inputs.attend.sum(1).tolist()):
        alone = Inputs(
            inputs.tokens[row : row + 1, -length:], torch.ones(1, length, dtype=torch.bool)
        )
        assert_same("openai-gpt", alone, max_new_tokens=LIMIT, **SEARCHES[search])
        ((*best,),) = our_outputs("openai-gpt", alone, {}, max_new_tokens=LIMIT, **SEARCHES[search])
        assert [output.tokens for output in best] == [output.tokens for output in together[row]]


@pytest.mark.parametrize("family", FAMILIES)
def test_lengths_are_counted_as_in_the_reference(family: str) -> None:
    """Rows without padding, because the reference counts padding before a prompt."""
    inputs = inputs_for(family, (5, 5))
    start = 5 if family in DECODERS else 1
    limits = {"min_length": start + 3, "max_length": start + 7}
    assert_same(family, inputs, **limits, num_beams=2, num_return_sequences=2, eos_token_id=ENDS)
    assert_same(family, inputs, **limits, eos_token_id=ENDS, repetition_penalty=2.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_end_token_is_reached(family: str) -> None:
    """The end token is the fifth token of the first row's output."""
    inputs = inputs_for(family, (6, 6))
    first = our_outputs(family, inputs, {}, max_new_tokens=LIMIT, repetition_penalty=1.5)[0][
        0
    ].tokens
    end = first[min(4, len(first) - 1)]
    (output,) = our_outputs(
        family, inputs, {}, max_new_tokens=LIMIT, repetition_penalty=1.5, eos_token_id=end
    )[0]
    assert output.finish_reason == "stop"
    assert len(output.tokens) < LIMIT
    for search in ({}, {"num_beams": 3, "num_return_sequences": 3}):
        assert_same(
            family, inputs, max_new_tokens=LIMIT, repetition_penalty=1.5, eos_token_id=end, **search
        )


@pytest.mark.parametrize("family", ["gpt2", "llama", "falcon, ALiBi"])
@pytest.mark.parametrize(
    "search", [{}, {"num_beams": 3}, {"min_new_tokens": 3, "no_repeat_ngram_size": 1}]
)
def test_model_without_end_token_generates_to_its_limit(
    family: str, search: dict[str, Any]
) -> None:
    """Rows of one length, because the reference penalizes padding as a generated token."""
    changes, inputs = {"eos_token_id": None}, inputs_for(family, (6, 6))
    for outputs in our_outputs(family, inputs, changes, max_new_tokens=LIMIT, **search):
        assert [(len(output.tokens), output.finish_reason) for output in outputs] == [
            (LIMIT, "length")
        ]
    assert_same(family, inputs, changes, max_new_tokens=LIMIT, **search)


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5", "bart"])
@pytest.mark.parametrize("search", [{}, {"num_beams": 3, "num_return_sequences": 2}])
@pytest.mark.parametrize(
    "options",
    [
        {"encoder_no_repeat_ngram_size": 1},
        {"encoder_no_repeat_ngram_size": 2, "begin_suppress_tokens": [2, 9, 17]},
        {"suppress_tokens": ENDS[1:], "begin_suppress_tokens": [5, 11], "forced_bos_token_id": 7},
    ],
)
def test_suppressed_tokens_and_sources_equal_the_reference(
    family: str, search: dict[str, Any], options: dict[str, Any]
) -> None:
    """Rows of one length, because the reference takes padding as a token of the source."""
    inputs = inputs_for(family, (6, 6, 6))
    assert_same(family, inputs, max_new_tokens=LIMIT, eos_token_id=ENDS, **search, **options)


@pytest.mark.parametrize("family", ["gpt2", "t5"])
@pytest.mark.parametrize("search", [{}, {"num_beams": 3}, {"penalty_alpha": 0.4, "top_k": 3}])
def test_ngrams_of_a_source_do_not_depend_on_its_batch(family: str, search: dict[str, Any]) -> None:
    options = {"encoder_no_repeat_ngram_size": 1, "max_new_tokens": LIMIT} | search
    inputs = inputs_for(family)
    assert inputs.attend is not None
    together = our_outputs(family, inputs, {}, **options)
    for row, outputs in enumerate(together):
        tokens = inputs.tokens[row][inputs.attend[row]]
        (alone,) = our_outputs(family, Inputs(tokens[None]), {}, **options)
        assert outputs[0].tokens == alone[0].tokens
        assert not set(tokens.tolist()).intersection(outputs[0].tokens)


@pytest.mark.parametrize("family", ["mistral", "gpt2", "t5"])
@pytest.mark.parametrize("cache", ["growing", "static", "sliding"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_caches_equal_the_reference(family: str, cache: str, chunk: int | None) -> None:
    own_options, inputs = (
        {"cache": cache, "prefill_chunk_size": chunk},
        inputs_for(family, (9, 4, 6)),
    )
    for search in ({}, {"num_beams": 3, "num_return_sequences": 3}):
        assert_same(
            family, inputs, None, own_options, max_new_tokens=14, repetition_penalty=1.5, **search
        )


@pytest.mark.parametrize("random", [1, 2])
def test_long_sources_in_blocks_equal_the_reference(random: int) -> None:
    """Rows of as many blocks: the last block of the reference is that of the batch."""
    tokens = torch.randint(3, 59, (2, 44), generator=torch.Generator().manual_seed(random))
    inputs = Inputs(tokens, torch.arange(44) < torch.tensor([44, 41])[:, None])
    tokens[1, 41:] = 0
    assert_same(
        "bigbird_pegasus",
        inputs,
        {"block_size": 4, "num_random_blocks": random},
        max_new_tokens=LIMIT,
    )
