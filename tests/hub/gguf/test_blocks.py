"""Dequantized values equal those of the `gguf` package, bit for bit."""

import gguf
import numpy as np
import pytest
import torch

from trifold.hub.gguf.blocks import CHUNK, TYPES, UNREAD, BlockType, dequantize

QUANTIZED = {number: kind for number, kind in TYPES.items() if kind.values is not None}


def _random_blocks(kind: BlockType, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, kind.bytes), dtype=np.uint8)


def _reference(raw: np.ndarray, number: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(number)).reshape(-1)


@pytest.mark.parametrize("number", QUANTIZED, ids=[kind.name for kind in QUANTIZED.values()])
def test_values_of_any_bytes_equal_the_reference(number: int) -> None:
    kind = QUANTIZED[number]
    raw = _random_blocks(kind, 600, number)
    raw[0] = 0
    raw[1] = 255
    ours = dequantize(torch.from_numpy(raw).flatten(), kind).numpy()
    theirs = _reference(raw, number)
    finite = np.isfinite(theirs)
    assert finite.mean() > 0.7
    assert np.array_equal(ours.view(np.uint32)[finite], theirs.view(np.uint32)[finite])
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    assert np.array_equal(np.isposinf(ours), np.isposinf(theirs))


def test_every_exponent_of_mxfp4_equals_the_reference() -> None:
    kind = QUANTIZED[39]
    raw = np.tile(_random_blocks(kind, 1, 0), (256, 1))
    raw[:, 0] = np.arange(256)
    ours = dequantize(torch.from_numpy(raw).flatten(), kind).numpy()
    assert np.array_equal(ours.view(np.uint32), _reference(raw, 39).view(np.uint32))


def test_chunks_do_not_change_values() -> None:
    kind = QUANTIZED[2]
    raw = torch.from_numpy(_random_blocks(kind, CHUNK + 3, 1))
    raw[:, 1] &= 0x3F  # finite scales
    whole = dequantize(raw.flatten(), kind)
    assert torch.equal(whole[-3 * 32 :], dequantize(raw[-3:].flatten(), kind))


def test_the_tables_have_the_names_and_sizes_of_the_reference() -> None:
    for number, kind in TYPES.items():
        theirs = gguf.GGMLQuantizationType(number)
        assert theirs.name == kind.name
        assert gguf.GGML_QUANT_SIZES[theirs] == (kind.length, kind.bytes)
    for number, name in UNREAD.items():
        assert gguf.GGMLQuantizationType(number).name == name
