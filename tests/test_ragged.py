from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, strategies as st

from trifold.ragged import Ragged

SEQUENCES = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=9), min_size=1, max_size=12)


@given(SEQUENCES)
def test_a_ragged_contains_its_sequences(sequences):
    ragged = Ragged.of(sequences)
    assert len(ragged) == len(sequences)
    assert ragged.lengths.tolist() == [len(sequence) for sequence in sequences]
    assert [
        ragged.ids[a:b].tolist() for a, b in zip(ragged.starts, ragged.starts[1:], strict=False)
    ] == sequences


@given(SEQUENCES, st.data())
def test_padded_truncates_or_pads(sequences, data):
    rows = np.array(data.draw(st.lists(st.integers(0, len(sequences) - 1), min_size=1, max_size=8)))
    width, pad = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 5))
    table = Ragged.of(sequences).padded(rows, width, pad)
    assert table.dtype is torch.int64
    assert table.shape == (len(rows), width)
    assert table.tolist() == [(sequences[row] + [pad] * width)[:width] for row in rows]


def test_an_empty_ragged():
    assert len(Ragged.of([])) == 0
    assert Ragged.of([]).lengths.tolist() == []


@given(SEQUENCES, st.data())
def test_joined_concatenates_the_beginnings_of_rows(sequences, data):
    rows = np.array(data.draw(st.lists(st.integers(0, len(sequences) - 1), min_size=1, max_size=8)))
    lengths = np.array([data.draw(st.integers(0, len(sequences[row]))) for row in rows])
    expected = [
        token
        for row, length in zip(rows, lengths, strict=True)
        for token in sequences[row][:length]
    ]
    assert Ragged.of(sequences).joined(rows, lengths).tolist() == expected
