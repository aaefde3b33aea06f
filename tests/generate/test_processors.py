from __future__ import annotations

import torch
from hypothesis import given, strategies as st

from trifold.generate import GenerationConfig
from trifold.generate.processors import ABSENT, Context, processor
from trifold.nn import ModelConfig

VOCABULARY, PAD, END = 7, 0, 2
MODEL = ModelConfig(vocab_size=VOCABULARY, d_model=4, n_heads=2)
LOGITS = torch.tensor([0.0, 1.0, -2.0, 0.5, -0.5, 2.0, -1.0])
NEVER = float("-inf")
words = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=12)


def after(
    written: list[int], *, absent: int = 0, generated: int | None = None, left: int = 9, **requested
) -> list[float]:
    rows = torch.tensor([[ABSENT] * absent + written])
    process = processor(GenerationConfig(**requested), MODEL)
    state = Context(rows, len(written) if generated is None else generated, torch.tensor([left]))
    return process(LOGITS[None].clone(), state)[0].tolist()


@given(words, st.integers(1, 4), st.integers(0, 3))
def test_no_ngram_repeats(written, size, absent):
    grams = {tuple(written[i : i + size]) for i in range(len(written) - size + 1)}
    got = after(written, no_repeat_ngram_size=size, absent=absent)
    expected = [
        NEVER if token == PAD or (len(written) >= size - 1 and (*written[len(written) - size + 1 :], token) in grams)
        else LOGITS[token].item()
        for token in range(VOCABULARY)
    ]  # fmt: skip
    if all(logit == NEVER for logit in expected):
        expected[END] = 0.0
    assert got == expected


@given(words, st.sampled_from([0.5, 1.0, 1.3, 2.0]), st.integers(0, 3))
def test_repetition_penalty(written, penalty, absent):
    got = after(written, repetition_penalty=penalty, absent=absent)
    for token in range(1, VOCABULARY):
        logit = LOGITS[token].item()
        changed = logit / penalty if logit > 0 else logit * penalty
        assert abs(got[token] - (changed if token in written else logit)) < 1e-6


def test_min_new_tokens_forbids_the_end():
    for generated in range(5):
        assert (after([3], min_new_tokens=3, generated=generated)[END] == NEVER) == (generated < 3)


def test_padding_is_forbidden_unless_it_is_the_end_token():
    assert after([3])[PAD] == NEVER
    both = ModelConfig(vocab_size=VOCABULARY, d_model=4, n_heads=2, pad_id=END)
    state = Context(torch.tensor([[3]]), 1, torch.tensor([9]))
    logits = processor(GenerationConfig(), both)(LOGITS[None].clone(), state)
    assert torch.equal(logits[0], LOGITS)


def test_end_is_allowed_if_everything_is_forbidden():
    got = after([1, 2, 3, 4, 5, 6], no_repeat_ngram_size=1, min_new_tokens=9)
    assert got == [NEVER, NEVER, 0.0, NEVER, NEVER, NEVER, NEVER]


@given(words, st.integers(0, 12), st.sampled_from([-0.5, 0.7, 1.5]), st.sampled_from([0.0, 0.4]))
def test_presence_and_frequency_penalties(written, new, once, each):
    new = min(new, len(written))
    got = after(written, generated=new, presence_penalty=once, frequency_penalty=each)
    ours = written[len(written) - new :]
    for token in range(1, VOCABULARY):
        expected = LOGITS[token].item() - once * (token in ours) - each * ours.count(token)
        assert abs(got[token] - expected) < 1e-5


@given(
    words,
    st.lists(st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=3), min_size=1, max_size=5),
    st.integers(0, 3),
)
def test_banned_phrases_are_forbidden(written, phrases, absent):
    got = after(written, bad_words_ids=phrases, absent=absent)
    completed = {
        phrase[-1]
        for phrase in phrases
        if phrase != [END] and (len(phrase) == 1 or written[1 - len(phrase) :] == phrase[:-1])
    }
    expected = [NEVER if token in completed else LOGITS[token].item() for token in range(VOCABULARY)]
    if all(logit == NEVER for logit in expected):
        expected[END] = 0.0
    assert got == expected


def test_bad_words_ids_replace_the_ban_of_padding():
    assert after([3], bad_words_ids=[])[PAD] == LOGITS[PAD].item()
    assert after([3], bad_words_ids=[[5]])[PAD] == LOGITS[PAD].item()
    assert after([3], bad_words_ids=[[PAD]])[PAD] == NEVER


@given(words, st.integers(0, 15), st.integers(0, 3))
def test_min_length_includes_the_prompt(written, least, absent):
    assert (after(written, min_length=least, absent=absent)[END] == NEVER) == (len(written) < least)


def test_min_new_tokens_applies_to_every_end_token():
    got = after([3], min_new_tokens=3, eos_token_id=[4, 6])
    assert [token for token in range(1, VOCABULARY) if got[token] == NEVER] == [4, 6]


def test_the_first_and_the_last_token_can_be_forced():
    def allowed(**requested):
        return [token for token, logit in enumerate(after([3], **requested)) if logit > NEVER]

    assert allowed(forced_bos_token_id=5, generated=0) == [5]
    assert allowed(forced_bos_token_id=5, generated=1) == [1, 2, 3, 4, 5, 6]
    assert allowed(forced_eos_token_id=END, left=1) == [END]
    assert allowed(forced_eos_token_id=[END, 4], left=1) == [END, 4]
    assert allowed(forced_eos_token_id=END, left=2) == [1, 2, 3, 4, 5, 6]
