from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from trifold.generate import GenerationConfig
from trifold.generate.processors import ABSENT, processor
from trifold.nn import ModelConfig

VOCABULARY, PAD, END = 7, 0, 2
MODEL = ModelConfig(vocab_size=VOCABULARY, d_model=4, n_heads=2)
LOGITS = torch.tensor([0.0, 1.0, -2.0, 0.5, -0.5, 2.0, -1.0])
NEVER = float("-inf")
words = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=12)


def after(written: list[int], *, absent: int = 0, generated: int | None = None, **asked) -> list[float]:
    rows = torch.tensor([[ABSENT] * absent + written])
    process = processor(GenerationConfig(**asked), MODEL)
    return process(LOGITS[None].clone(), rows, len(written) if generated is None else generated)[0].tolist()


@given(words, st.integers(1, 4), st.integers(0, 3))
def test_no_gram_is_written_twice(written, size, absent):
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
def test_repetition_makes_a_token_less_ready(written, penalty, absent):
    got = after(written, repetition_penalty=penalty, absent=absent)
    for token in range(1, VOCABULARY):
        logit = LOGITS[token].item()
        changed = logit / penalty if logit > 0 else logit * penalty
        assert abs(got[token] - (changed if token in written else logit)) < 1e-6


def test_no_end_before_the_least_length():
    for generated in range(5):
        assert (after([3], min_new_tokens=3, generated=generated)[END] == NEVER) == (generated < 3)


def test_padding_is_never_said_unless_it_is_also_the_end():
    assert after([3])[PAD] == NEVER
    both = ModelConfig(vocab_size=VOCABULARY, d_model=4, n_heads=2, pad_id=END)
    logits = processor(GenerationConfig(), both)(LOGITS[None].clone(), torch.tensor([[3]]), 1)
    assert torch.equal(logits[0], LOGITS)


def test_where_everything_is_forbidden_the_sentence_ends():
    got = after([1, 2, 3, 4, 5, 6], no_repeat_ngram_size=1, min_new_tokens=9)
    assert got == [NEVER, NEVER, 0.0, NEVER, NEVER, NEVER, NEVER]
