"""The models from Markov chains to the Transformer: laws of each, and one run of all."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from examples.trigram import Trigram

FOLDER = Path(__file__).parents[2] / "examples" / "road"
SIZE = 5
NAMES = (
    "Markov chain, order 1", "Markov chain, order 2", "skip-grams, all pairs", "skip-grams, masked",
    "embeddings, log-bilinear", "embeddings, feed-forward", "RNN encoder-decoder", "LSTM encoder-decoder",
    "LSTM with attention", "Transformer",
)  # fmt: skip


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """The scripts import each other as modules of their folder."""
    monkeypatch.syspath_prepend(str(FOLDER))


def make_ids(count=4000):
    """Each character is often the one three places before, and often the successor of the last one."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(SIZE, (count,), generator=generator)
    for place in range(3, count):
        draw = float(torch.rand((), generator=generator))
        if draw < 0.8:
            ids[place] = ids[place - 3] if draw < 0.5 else (ids[place - 1] + 1) % SIZE
    return ids


def make_model(name, ids, steps=3):
    import compare
    from characters import Budget

    torch.manual_seed(1)
    if name in compare.COUNTING:
        return compare.COUNTING[name](ids, SIZE)
    build, rate = compare.TRAINED[name]
    model = build(SIZE)
    model.fit(ids, Budget(None, steps), rate=rate, rows=8)
    return model.eval()


def test_every_model_is_listed():
    import compare

    assert (*compare.COUNTING, *compare.TRAINED) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_distributions_sum_to_one_and_the_future_does_not_leak(name):
    from characters import PREDICTED, READ, WINDOW

    ids = make_ids()
    model = make_model(name, ids)
    windows = ids[: 3 * WINDOW].view(3, WINDOW)
    found = model.log_probabilities(windows)
    assert found.shape == (3, PREDICTED, SIZE)
    assert torch.allclose(found.exp().sum(-1), torch.ones(()).to(found), atol=1e-4)
    changed = windows.clone()
    changed[:, READ + 20 :] = (changed[:, READ + 20 :] + 1) % SIZE
    torch.testing.assert_close(model.log_probabilities(changed)[:, :21], found[:, :21])


def test_a_chain_equals_a_plain_count():
    from markov import Markov

    ids = make_ids(300)
    chain, plain = Markov(ids, SIZE, 2), Trigram([ids.tolist()], SIZE)
    plain.counts[()][int(ids[0])] += (
        1  # a document of Trigram begins with a token that is not predicted
    )
    for a in range(SIZE):
        for b in range(SIZE):
            found = chain.probabilities(torch.tensor([a, b]))
            assert found.tolist() == pytest.approx(plain.probabilities([a, b]).tolist())


def test_skip_grams_count_pairs_at_a_distance():
    from markov import Markov
    from skip_grams import SkipGrams

    ids = make_ids(500)
    model, first = SkipGrams(ids, SIZE, keep=1), Markov(ids, SIZE, 1)
    a, b, distance = 1, 2, 3
    after = [
        int(ids[n]) for n in range(distance, len(ids)) if (ids[n - distance], ids[n - 1]) == (a, b)
    ]
    shorter = first.probabilities(torch.tensor([b]))
    expected = [
        (after.count(w) + len({*after}) * float(shorter[w])) / (len(after) + len({*after}))
        for w in range(SIZE)
    ]
    assert model.tables[distance - 2, a, b].tolist() == pytest.approx(expected, rel=1e-4)


def test_the_mask_finds_the_distance_that_tells_something():
    from characters import bits_per_character

    ids = make_ids()
    masked, whole = (make_model(f"skip-grams, {name}", ids) for name in ("masked", "all pairs"))
    assert bits_per_character(masked, ids) < bits_per_character(whole, ids) - 0.1


def test_a_row_of_a_table_is_a_product_with_a_one_hot_vector():
    from embeddings import look_up

    assert torch.equal(*look_up(torch.randn(SIZE, 7), torch.randint(SIZE, (3, 4))))


def test_additive_attention_ignores_padding():
    from recurrent import AdditiveAttention

    torch.manual_seed(3)
    attention, memory = AdditiveAttention(6), torch.randn(2, 5, 6)
    attend = torch.tensor([[True] * 5, [True, True, True, False, False]])
    context, weights = attention(torch.randn(2, 6), memory, attention.key(memory), attend)
    assert torch.allclose(weights.sum(1), torch.ones(2)) and (weights[1, 3:] == 0).all()
    torch.testing.assert_close(context, torch.einsum("bs,bse->be", weights, memory))


def test_padding_after_a_text_changes_no_state_of_the_encoder():
    from recurrent import EncoderDecoder

    torch.manual_seed(3)
    model = EncoderDecoder(SIZE, "lstm", width=8)
    source = torch.randint(SIZE, (1, 9))
    attend = torch.arange(9)[None] < 6
    states, last = model.encode(source, attend)
    short, same = model.encode(source[:, :6], attend[:, :6])
    torch.testing.assert_close(states[:, :6], short)
    torch.testing.assert_close(last, same)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_model_learns(name):
    from characters import bits_per_character

    ids = make_ids()
    assert bits_per_character(make_model(name, ids, 8), ids[-640:]) < math.log2(SIZE) - 0.02


@pytest.mark.slow
def test_the_comparison_prints_a_row_and_a_sample_of_each_model(tmp_path, monkeypatch, capsys):
    """The samples of trained models are short: each character is a pass over its window."""
    import compare

    long = compare.sample
    monkeypatch.setattr(
        compare,
        "sample",
        lambda model, prompt: long(model, prompt, 3 if isinstance(model, compare.Network) else 80),
    )
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 60, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["compare.py", "--steps", "1", str(text)])
    compare.main()
    printed = capsys.readouterr().out
    for name in NAMES:
        assert printed.count(f"\n{name}") == 2
