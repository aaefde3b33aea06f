"""The side-by-side benchmark of training: batches use all pairs once, FLOPs and rows are correct."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.benchmarks.scripts import load
from torch.utils.flop_counter import FlopCounterMode

batches, report, setting, prepare = (
    load("train_translation", name) for name in ("batches", "report", "setting", "prepare")
)

lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=300)


@settings(max_examples=50, deadline=None)
@given(lengths, st.integers(60, 500), st.integers(0, 5))
def test_an_epoch_has_each_pair_once_in_bounded_batches(
    pairs: list[tuple[int, int]], budget: int, seed: int
) -> None:
    planned = batches.plan(pairs, budget, seed)
    assert sorted(i for batch in planned for i in batch) == list(range(len(pairs)))
    assert all(len(batch) * max(max(pairs[i]) for i in batch) <= budget for batch in planned)
    assert planned == batches.plan(pairs, budget, seed)


def test_pairs_of_similar_length_share_a_batch() -> None:
    pairs = [(n, n) for n in range(1, 41) for _ in range(200)]
    planned = batches.plan(pairs, 4096, seed=1)
    positions = sum(len(batch) * max(pairs[i][1] for i in batch) for batch in planned)
    assert 1 - sum(target for _, target in pairs) / positions < 0.05


@pytest.mark.slow
def test_flops_by_formula_equal_the_counted_ones() -> None:
    tiny = setting.Setting(vocab_size=50, d_model=16, d_ff=32, n_heads=2, n_layers=1)
    source, target = 7, 5
    d, ff = tiny.d_model, tiny.d_ff

    def linear(rows: int, inside: int, out: int) -> torch.Tensor:
        return torch.randn(rows, inside) @ torch.randn(inside, out)

    with FlopCounterMode(display=False) as counted:
        # queries, keys, values, output: of the encoder, of the decoder, and of the decoder over the
        # source
        for rows in (*[source] * 4, *[target] * 4, target, source, source, target):
            linear(rows, d, d)
        for rows in (source, target):
            linear(rows, d, ff)
            linear(rows, ff, d)
        linear(target, d, tiny.vocab_size)
        for queries, keys in ((source, source), (target, source)):
            linear(queries, d, keys)
            linear(queries, keys, d)
    causal_pairs = target * (target + 1) // 2
    forward = counted.get_total_flops() + 4 * d * causal_pairs
    assert setting.training_flops(tiny, [(source, target)]) == 3 * forward


@pytest.fixture
def lines() -> list[dict[str, object]]:
    def line(name: str, precision: str, speed: float) -> dict[str, object]:
        return {
            "name": name,
            "precision": precision,
            "target_tokens_per_s": speed,
            "padding_share": 0.05,
            "peak_rss_mb": speed / 10,
            "loss_first": 9.0,
            "loss_last": 7.0,
        }

    return [
        *(line("trifold", "bf16", speed) for speed in (900.0, 1200.0, 1000.0)),
        *(line("peer", "bf16", speed) for speed in (100.0, 300.0, 200.0)),
        *(line("peer", "fp32", speed) for speed in (150.0, 150.0, 150.0)),
    ]


MACHINE = [
    {"processor": "P", "torch": "2", "fp32 a": 1.0, "fp32 b": 2.0, "bf16 a": 4.0, "read": 40.0},
    {"processor": "P", "torch": "2", "fp32 a": 1.5, "fp32 b": 1.0, "bf16 a": 8.0, "read": 60.0},
]


def test_rows_have_medians_ratios_to_the_best_peer_and_shares_of_the_peak(
    lines: list[dict[str, object]],
) -> None:
    ours, best, other = report.summarise(lines, MACHINE, flops_per_target_token=1e6)
    assert (ours.name, ours.speed, ours.slowest, ours.fastest, ours.rounds) == (
        "trifold",
        1000,
        900,
        1200,
        3,
    )
    assert (ours.ratio, best.ratio, other.ratio) == (5.0, 1.0, 0.75)
    assert ours.bf16_share == pytest.approx(1000 * 1e6 / 8e9)
    assert ours.fp32_share == pytest.approx(1000 * 1e6 / 2e9)
    assert ours.peak_rss_mb == 120


def test_the_table_has_aligned_lines(lines: list[dict[str, object]]) -> None:
    table = report.markdown_table(report.summarise(lines, MACHINE, 1e6)).splitlines()
    assert len(table) == 2 + 3
    assert len({len(line) for line in table}) == 1
    assert "5.00×" in table[2] and "1.00×" in table[3]


def test_synthetic_pairs_are_reproducible_and_of_equal_length() -> None:
    first, second = (list(islice(prepare.write_synthetic(Path()), 50)) for _ in range(2))
    assert first == second
    assert all(len(source.split()) == len(target.split()) for source, target in first)
