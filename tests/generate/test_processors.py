"""Logits processors by definition. Banned text is compared with decoding each text followed by each
token.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.generate.models import LetterCodec, ScriptedModel, padded_batch, random_probabilities
from tests.generate.test_stopping import PIECES, SEARCHES, VOCABULARY as LETTERS, stops
from tests.generate.test_streaming import CODECS

from trifold.errors import UsageError
from trifold.generate import GenerationConfig, generate_tokens
from trifold.generate.processors import ABSENT, BannedText, KnownContext, processor
from trifold.nn import ModelConfig

VOCABULARY, PAD, END = 7, 0, 2
MODEL = ModelConfig(vocab_size=VOCABULARY, d_model=4, n_heads=2)
LOGITS = torch.tensor([0.0, 1.0, -2.0, 0.5, -0.5, 2.0, -1.0])
FORBIDDEN = float("-inf")
words = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=12)


def after(
    prefix: list[int], *, absent: int = 0, generated: int | None = None, left: int = 9, **requested
) -> list[float]:
    rows = torch.tensor([[ABSENT] * absent + prefix])
    process = processor(GenerationConfig(**requested), MODEL)
    state = KnownContext(
        rows, len(prefix) if generated is None else generated, torch.tensor([left])
    )
    return process(LOGITS[None].clone(), state)[0].tolist()


@given(words, st.integers(1, 4), st.integers(0, 3))
def test_no_ngram_repeats(prefix, size, absent):
    grams = {tuple(prefix[i : i + size]) for i in range(len(prefix) - size + 1)}
    got = after(prefix, no_repeat_ngram_size=size, absent=absent)
    expected = [
        FORBIDDEN if token == PAD or (len(prefix) >= size - 1 and (*prefix[len(prefix) - size + 1 :], token) in grams)
        else LOGITS[token].item()
        for token in range(VOCABULARY)
    ]  # fmt: skip
    if all(logit == FORBIDDEN for logit in expected):
        expected[END] = 0.0
    assert got == expected


@given(words, st.sampled_from([0.5, 1.0, 1.3, 2.0]), st.integers(0, 3))
def test_repetition_penalty(prefix, penalty, absent):
    got = after(prefix, repetition_penalty=penalty, absent=absent)
    for token in range(1, VOCABULARY):
        logit = LOGITS[token].item()
        changed = logit / penalty if logit > 0 else logit * penalty
        assert abs(got[token] - (changed if token in prefix else logit)) < 1e-6


def test_min_new_tokens_forbids_the_end():
    for generated in range(5):
        assert (after([3], min_new_tokens=3, generated=generated)[END] == FORBIDDEN) == (
            generated < 3
        )


def test_padding_is_forbidden_unless_it_is_the_end_token():
    assert after([3])[PAD] == FORBIDDEN
    both = ModelConfig(vocab_size=VOCABULARY, d_model=4, n_heads=2, pad_id=END)
    state = KnownContext(torch.tensor([[3]]), 1, torch.tensor([9]))
    logits = processor(GenerationConfig(), both)(LOGITS[None].clone(), state)
    assert torch.equal(logits[0], LOGITS)


def test_end_is_allowed_if_everything_is_forbidden():
    got = after([1, 2, 3, 4, 5, 6], no_repeat_ngram_size=1, min_new_tokens=9)
    assert got == [FORBIDDEN, FORBIDDEN, 0.0, FORBIDDEN, FORBIDDEN, FORBIDDEN, FORBIDDEN]


@given(words, st.integers(0, 12), st.sampled_from([-0.5, 0.7, 1.5]), st.sampled_from([0.0, 0.4]))
def test_presence_and_frequency_penalties(prefix, new, once, each):
    new = min(new, len(prefix))
    got = after(prefix, generated=new, presence_penalty=once, frequency_penalty=each)
    ours = prefix[len(prefix) - new :]
    for token in range(1, VOCABULARY):
        expected = LOGITS[token].item() - once * (token in ours) - each * ours.count(token)
        assert abs(got[token] - expected) < 1e-5


@given(
    words,
    st.lists(
        st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=3), min_size=1, max_size=5
    ),
    st.integers(0, 3),
)
def test_banned_phrases_are_forbidden(prefix, phrases, absent):
    got = after(prefix, bad_words_ids=phrases, absent=absent)
    completed = {
        phrase[-1]
        for phrase in phrases
        if phrase != [END] and (len(phrase) == 1 or prefix[1 - len(phrase) :] == phrase[:-1])
    }
    expected = [
        FORBIDDEN if token in completed else LOGITS[token].item() for token in range(VOCABULARY)
    ]
    if all(logit == FORBIDDEN for logit in expected):
        expected[END] = 0.0
    assert got == expected


def test_bad_words_ids_replace_the_ban_of_padding():
    assert after([3], bad_words_ids=[])[PAD] == LOGITS[PAD].item()
    assert after([3], bad_words_ids=[[5]])[PAD] == LOGITS[PAD].item()
    assert after([3], bad_words_ids=[[PAD]])[PAD] == FORBIDDEN


@given(words, st.integers(0, 15), st.integers(0, 3))
def test_min_length_includes_the_prompt(prefix, least, absent):
    assert (after(prefix, min_length=least, absent=absent)[END] == FORBIDDEN) == (
        len(prefix) < least
    )


def test_min_new_tokens_applies_to_every_end_token():
    got = after([3], min_new_tokens=3, eos_token_id=[4, 6])
    assert [token for token in range(1, VOCABULARY) if got[token] == FORBIDDEN] == [4, 6]


def test_the_first_and_the_last_token_can_be_forced():
    def allowed(prefix=(3,), **requested):
        return [
            token for token, logit in enumerate(after([*prefix], **requested)) if logit > FORBIDDEN
        ]

    assert allowed(forced_bos_token_id=5, generated=0) == [5]
    assert allowed(forced_bos_token_id=5, generated=0, absent=2) == [5]
    assert allowed((3, 4), forced_bos_token_id=5, generated=0) == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]  # a prompt of a decoder
    assert allowed((3, 5), forced_bos_token_id=5, generated=1) == [1, 2, 3, 4, 5, 6]
    assert allowed(forced_eos_token_id=END, left=1) == [END]
    assert allowed(forced_eos_token_id=[END, 4], left=1) == [END, 4]
    assert allowed(forced_eos_token_id=END, left=2) == [1, 2, 3, 4, 5, 6]


rows_of = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=6), min_size=1, max_size=3)


def padded(rows: list[list[int]], *, left: bool) -> torch.Tensor:
    """The rows with ABSENT before or after shorter ones."""
    width = max(map(len, rows))
    padding = [[ABSENT] * (width - len(row)) for row in rows]
    pairs = zip(padding, rows, strict=True)
    return torch.tensor([pad + row if left else row + pad for pad, row in pairs])


@given(rows_of, st.integers(1, 3), st.integers(1, 3), st.data())
def test_no_ngram_of_the_source_or_prompt_is_generated(read, size, beams, data):
    """Each row of a batch, with its beams, equals the reference alone."""
    logits_process = pytest.importorskip("transformers").generation.logits_process
    encodes = data.draw(st.booleans())
    new = data.draw(st.lists(st.integers(1, 6), max_size=4))
    prompts = [[1]] * len(read) if encodes else read
    rows = [[*prompt, *new] for prompt in prompts for _ in range(beams)]
    sources = padded(read, left=False).repeat_interleave(beams, 0) if encodes else None
    tokens = padded(rows, left=True)
    context = KnownContext(tokens, len(new), torch.full((len(rows),), 9), sources)
    config = GenerationConfig(encoder_no_repeat_ngram_size=size, bad_words_ids=[])
    got = processor(config, MODEL)(LOGITS.repeat(len(rows), 1), context)
    for index, row in enumerate(rows):
        source = torch.tensor([read[index // beams]])
        reference = logits_process.EncoderNoRepeatNGramLogitsProcessor(size, source)
        expected = reference(torch.tensor([row]), LOGITS[None])
        assert torch.equal(got[index : index + 1], expected)


@pytest.mark.parametrize("forced", [None, 4])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("generated", [0, 1, 2])
def test_tokens_are_suppressed_at_the_beginning_as_in_the_reference(forced, width, generated):
    reference = pytest.importorskip("transformers").generation.logits_process
    tokens = torch.arange(1, width + generated + 1).repeat(2, 1)
    begin = width if width > 1 or forced is None else width + 1
    expected = LOGITS.repeat(2, 1)
    if forced is not None:
        expected = reference.ForcedBOSTokenLogitsProcessor(forced)(tokens, expected)
    first = reference.SuppressTokensAtBeginLogitsProcessor([2, 5], begin)
    expected = first(tokens, expected)
    config = GenerationConfig(
        begin_suppress_tokens=[2, 5], forced_bos_token_id=forced, bad_words_ids=[]
    )
    context = KnownContext(tokens, generated, torch.tensor([9, 9]))
    assert torch.equal(processor(config, MODEL)(LOGITS.repeat(2, 1), context), expected)


def test_prompts_of_one_token_in_a_batch_begin_after_the_forced_token():
    config = GenerationConfig(begin_suppress_tokens=[5], forced_bos_token_id=4, bad_words_ids=[])
    for generated, suppressed in ((0, [False, True]), (1, [True, False]), (2, [False, False])):
        tokens = padded([[1, *[6] * generated], [1, 1, *[6] * generated]], left=True)
        context = KnownContext(tokens, generated, torch.tensor([9, 9]))
        got = processor(config, MODEL)(LOGITS.repeat(2, 1), context)
        allowed = [4] if not generated else [5]  # the first row has no other token at first
        assert (got[0, allowed] > FORBIDDEN).all() == (not suppressed[0])
        assert (got[1, 5] == FORBIDDEN) == suppressed[1]


def test_suppressed_tokens_include_end_tokens():
    got = after([3], suppress_tokens=[END, 4])
    assert [token for token in range(1, VOCABULARY) if got[token] == FORBIDDEN] == [END, 4]
    everything = list(range(VOCABULARY))
    assert after([3], begin_suppress_tokens=everything, generated=0)[END] == 0.0


# --- banned text ----------------------------------------------------------------------------------


def contains(text: str, banned: list[str]) -> bool:
    return any(string in text for string in banned)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.sampled_from(list(CODECS)),
    st.lists(st.text("abnd é日🦜 ", min_size=1, max_size=4), min_size=1, max_size=3),
    st.text("abnd é日🦜 ", max_size=12),
    st.integers(0, 6),
)
def test_completions_of_banned_text_are_exact(name, banned, text, back):
    """For all tokens: words, parts of words and single bytes of a character, with and without a
    space.
    """
    codec = CODECS[name]
    (ids,) = codec.encode([text])
    ids = ids[: max(0, len(ids) - back)]  # the text may end within a character
    while contains(codec.decode([ids])[0], banned):
        ids = ids[:-1]
    vocabulary = range(codec.vocab_size)
    texts = codec.decode([[*ids, token] for token in vocabulary])
    expected = [
        token for token, decoded in zip(vocabulary, texts, strict=True) if contains(decoded, banned)
    ]
    found = BannedText(banned, codec, codec.vocab_size).completions([ids, ids])
    assert found == [(row, token) for row in (0, 1) for token in expected]


@pytest.mark.slow
@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    search=st.sampled_from(
        [name for name in SEARCHES if name != "forced"]
    ),  # forced phrases take precedence
    banned=stops,
    rows=st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_no_output_contains_a_banned_word(seed, search, banned, rows):
    codec = LetterCodec(*PIECES)
    config = GenerationConfig(
        bad_words=banned, max_new_tokens=10, min_new_tokens=8, **SEARCHES[search]
    )
    model = ScriptedModel(random_probabilities(seed, LETTERS), LETTERS)
    for outputs in generate_tokens(model, padded_batch(rows), config, codec=codec):
        for text in codec.decode([output.tokens for output in outputs]):
            assert not contains(text, banned)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6), search=st.sampled_from(["greedy", "beams", "samples"]), banned=stops
)
def test_banned_words_have_probability_zero(seed, search, banned):
    """And all other tokens keep theirs."""
    codec, probabilities_of = LetterCodec(*PIECES), random_probabilities(seed, LETTERS)

    def without(source, prefix):
        texts = codec.decode([[*prefix, token] for token in range(LETTERS)])
        return [
            0.0 if contains(text, banned) else p
            for p, text in zip(probabilities_of(source, prefix), texts, strict=True)
        ]

    config = GenerationConfig(max_new_tokens=8, renormalize_logits=True, **SEARCHES[search])
    inputs = padded_batch([[3], [4, 5]])
    expected = generate_tokens(ScriptedModel(without, LETTERS), inputs, config)
    banning = config.model_copy(update={"bad_words": banned})
    found = generate_tokens(ScriptedModel(probabilities_of, LETTERS), inputs, banning, codec=codec)
    for outputs, others in zip(found, expected, strict=True):
        assert [o.tokens for o in outputs] == [o.tokens for o in others]
        assert [o.score for o in outputs] == pytest.approx([o.score for o in others], abs=1e-4)


def test_bans_within_words_across_words_and_of_spaces():
    codec = CODECS["byte level"]
    banned = BannedText(["nd", " ", "d a"], codec, codec.vocab_size)

    def after(text: str) -> set[str]:
        found = banned.completions(codec.encode([text]))
        return set(codec.decode([[token] for _, token in found]))

    assert "d" in after("an") and "d" not in after("ad")
    assert {" a", " an", " and", " "} <= after("x")
    assert "a" not in after("x")


def test_banning_every_word_ends_the_output_or_is_refused():
    codec, model = LetterCodec(), ScriptedModel(lambda source, prefix: [0, 0, 0.1, 0.5, 0.4], 5)
    config = GenerationConfig(bad_words=["a", "b"], bad_words_ids=None, min_new_tokens=3)
    ((output,),) = generate_tokens(model, padded_batch([[3]]), config, codec=codec)
    assert (output.tokens, output.finish_reason) == ([], "stop")
    endless = ScriptedModel(model.probabilities_of, 5)
    endless.config = model.config.model_copy(update={"eos_id": 5})
    config = GenerationConfig(bad_words_ids=[[0], [1], [2], [3], [4]])
    with pytest.raises(
        UsageError, match="bad_words_ids forbid every token, and the model has no end token"
    ):
        generate_tokens(endless, padded_batch([[3]]), config)


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        (
            {"bad_words_ids": [[3, 99]]},
            "bad_words_ids: 99 is not a token id; the vocabulary has 18 tokens",
        ),
        (
            {"force_words_ids": [[[3], [18]]], "num_beams": 2},
            "force_words_ids: 18 is not a token id",
        ),
        ({"forced_bos_token_id": 40}, "forced_bos_token_id: 40 is not a token id"),
        ({"forced_eos_token_id": [2, 40]}, "forced_eos_token_id: 40 is not a token id"),
        ({"bad_words": ["a"]}, "bad_words is text: pass the tokenizer too"),
        ({"stop_strings": ["."]}, "stop_strings is text: pass the tokenizer too"),
    ],
)
def test_wrong_ids_and_text_without_a_tokenizer_are_refused(requested, message):
    model = ScriptedModel(random_probabilities(1, LETTERS), LETTERS)
    with pytest.raises(UsageError, match=message):
        generate_tokens(model, padded_batch([[3]]), GenerationConfig(**requested))


def test_end_id_outside_the_vocabulary_is_ignored():
    model = ScriptedModel(random_probabilities(1, LETTERS), LETTERS)
    for beams in (1, 3):
        config = GenerationConfig(
            eos_token_id=[18, 40], max_new_tokens=5, min_new_tokens=2, num_beams=beams
        )
        ((output,),) = generate_tokens(model, padded_batch([[3]]), config)
        assert (len(output.tokens), output.finish_reason) == (5, "length")
