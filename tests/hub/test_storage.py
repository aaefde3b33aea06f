"""The bytes of weights are counted from a config and a file as they are when a model is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.hub.gguf.writing import CASES, Types
from tests.models import TWO_LAYERS
from torch import Tensor

from trifold.fast.block_layout import lay_out_before_steps
from trifold.fast.int8 import Int8Weight
from trifold.fast.quantized_weight import QuantizedWeight
from trifold.hub import load_model, read_config, save_model
from trifold.hub.fill import Stored
from trifold.hub.gguf.save import save_gguf
from trifold.hub.storage import Storage, storage_in_file, storage_in_memory
from trifold.nn import ModelConfig, Transformer

# Wide enough for blocks of 256.
SIZES = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 160}
DTYPES = (torch.float32, torch.bfloat16)
KINDS = (
    Types.F32,
    Types.F16,
    Types.BF16,
    Types.Q8_0,
    Types.Q5_1,
    Types.Q5_0,
    Types.Q4_1,
    Types.Q4_0,
)


def write_file(path: Path, kind: Types, **options: int) -> Path:
    case = CASES["llama"]
    wide = replace(case, options={**case.options, **SIZES, **options})
    return wide.write(path, wide.model(), kind)


def tensors_of(weight: QuantizedWeight) -> list[Tensor]:
    """Those that a weight is made of, without a product's sums."""
    if isinstance(weight, Int8Weight):
        return [weight.values, weight.scales]
    return [*weight.buffers()]


def loaded(folder: Path, dtype: torch.dtype, stored: Stored | None) -> tuple[int, int]:
    """The bytes of the weights of a model that decodes, and of them in the memory of its file."""
    model, _ = load_model(folder, dtype=dtype, stored=stored)
    lay_out_before_steps(model)
    weights = {id(m): m for m in model.modules() if isinstance(m, QuantizedWeight)}
    parts = [part for each in weights.values() for part in tensors_of(each)]
    parts += model.parameters()
    shared = sum(part.nbytes for part in parts if is_mapped(part, folder))
    return sum(part.nbytes for part in parts), shared


def is_mapped(tensor: Tensor, folder: Path) -> bool:
    """Whether the memory of a tensor is that of a file there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(each, 16) for each in line.split()[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return line.split()[-1].startswith(str(folder))
    return False


def assert_counted(folder: Path, dtype: torch.dtype, stored: Stored | None) -> list[Storage]:
    found = storage_in_memory(read_config(folder), dtype, stored, folder)
    size, shared = loaded(folder, dtype, stored)
    assert sum(each.bytes for each in found) == size
    assert sum(each.bytes for each in found if each.is_shared) == shared
    return found


pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="not Linux")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_a_gguf_file_are_counted_as_they_are_loaded(
    kind: Types, dtype: torch.dtype, tmp_path: Path
) -> None:
    path = write_file(tmp_path / "a.gguf", kind)
    in_file = storage_in_file(path)
    tensors = sum(each.bytes for each in in_file)
    size = path.stat().st_size
    assert 0.9 * size < tensors < size
    assert kind.name in {each.form for each in in_file}
    found = assert_counted(path, dtype, "file")
    assert sum(each.weights for each in found) <= sum(each.weights for each in in_file)
    assert_counted(path, dtype, None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types_of_256_values_are_counted_as_they_are_laid_out(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    path = tmp_path / "a.gguf"
    save_gguf(str(write_file(tmp_path / "full.gguf", Types.F32)), path, weights="q4_k_m")
    forms = {each.form: each.bits for each in storage_in_file(path)}
    assert forms["Q4_K"] == 4.5 and forms["Q6_K"] == 6.5625
    found = {each.form: each.bits for each in assert_counted(path, dtype, "file")}
    assert found["blocks of 4 bits with offsets"] == 5 and found["blocks of 8 bits"] == 8.5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stored", ["int8", "int4", "file", None])
@pytest.mark.parametrize("saved", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", ["decoder", "encoder", "encoder-decoder"])
def test_weights_of_a_folder_are_counted_as_they_are_loaded(
    shape: str, saved: torch.dtype, stored: Stored | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    sizes = {"shape": shape, "vocab_size": 53, "max_positions": 20}
    model = Transformer(ModelConfig.parse(TWO_LAYERS | sizes))
    save_model(tmp_path, model, dtype=saved)
    [in_file] = storage_in_file(tmp_path)
    assert in_file.bits == 8 * saved.itemsize
    assert_counted(tmp_path, dtype, stored)
