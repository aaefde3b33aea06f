"""Weights of a file are copied into a model, in the requested precision or in int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.models import TWO_LAYERS

import trifold
from trifold.errors import CheckpointError, UsageError
from trifold.fast.block_weight import BlockWeight
from trifold.fast.half_weight import STORED, HalfWeight
from trifold.fast.huge_pages import HugeMemory
from trifold.fast.int8 import Int8Weight
from trifold.fast.quantized_weight import QuantizedWeight
from trifold.hub import fill, load_model, save_model
from trifold.hub.families import FAMILIES
from trifold.hub.weights import SINGLE
from trifold.nn import Inputs, ModelConfig, Transformer

TINY = TWO_LAYERS | {"vocab_size": 31, "max_positions": 20}
TOKENS = torch.tensor([[3, 7, 5, 11]])


@pytest.fixture(params=["decoder", "encoder-decoder"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    model = Transformer(ModelConfig.parse(TINY | {"shape": request.param}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    save_model(tmp_path / "model", model)
    return tmp_path / "model"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_parameters_are_aligned_and_equal_the_file(folder: Path, dtype: torch.dtype) -> None:
    exact_model, _ = load_model(folder)
    model, _ = load_model(folder, dtype=dtype)
    for (name, got), (other, exact) in zip(
        model.named_parameters(), exact_model.named_parameters(), strict=True
    ):
        assert name == other and got.dtype is dtype
        assert torch.equal(got, exact.to(dtype))
        assert got.data_ptr() % 64 == 0 and got.is_contiguous()


def test_all_parameters_are_in_memory_with_huge_pages(folder: Path, monkeypatch: Any) -> None:
    made: set[int] = set()

    empty = HugeMemory.empty

    def recorded(memory: HugeMemory, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        tensor = empty(memory, shape, dtype)
        made.add(tensor.data_ptr())
        return tensor

    monkeypatch.setattr(HugeMemory, "empty", recorded)
    monkeypatch.setattr(fill, "MIN_FOR_HUGE_PAGES", 0)
    model, _ = load_model(folder)
    assert made == {parameter.data_ptr() for parameter in model.parameters()}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copying_in_threads_gives_the_same_model(
    tmp_path: Path, dtype: torch.dtype, inference: bool, monkeypatch: Any
) -> None:
    sizes = {
        "vocab_size": 301,
        "n_positions": 20,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 24,
    }
    saved = Transformer(FAMILIES["gpt2"].read(sizes))
    saved.family = "gpt2"  # its matrices are stored transposed
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter.normal_(std=0.4)
    save_model(tmp_path, saved)
    assert "gpt2" in (tmp_path / "config.json").read_text(encoding="utf-8")
    single, _ = load_model(tmp_path, dtype=dtype)
    threads = torch.get_num_threads()
    monkeypatch.setattr("trifold.hub.fill.MIN_FOR_THREADS", 0)
    monkeypatch.setattr("trifold.hub.fill.MIN_FOR_POOL", 0)
    monkeypatch.setattr("trifold.hub.fill.CHUNK", 100)
    torch.set_num_threads(3)
    try:
        with torch.inference_mode(inference):
            threaded, _ = load_model(tmp_path, dtype=dtype)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    for (name, got), expected in zip(threaded.named_parameters(), single.parameters(), strict=True):
        assert torch.equal(got, expected), name


def test_int8_weights_equal_the_quantized_file(folder: Path) -> None:
    exact_model, _ = load_model(folder)
    quantized, _ = load_model(folder, stored="int8")
    int8_weights = {
        name: module
        for name, module in quantized.named_modules()
        if isinstance(module, BlockWeight)
    }
    assert len(int8_weights) > 10 and not any(
        p.dim() == 2 and "positions" not in n for n, p in quantized.named_parameters()
    )
    for name, matrix in int8_weights.items():
        expected = BlockWeight.quantize(exact_model.get_parameter(name), 8)
        assert torch.equal(matrix.values, expected.values) and torch.equal(
            matrix.scales, expected.scales
        )
    table = (quantized.decoder_embeddings or quantized.encoder_embeddings).tokens
    assert (
        quantized.lm_head is not None and quantized.lm_head.weight is table.weight
    )  # tied weights remain tied


def test_an_int8_pipeline_generates_and_cannot_be_saved(folder: Path, tmp_path: Path) -> None:
    pipe = trifold.load(folder, weights="int8")
    tokens = torch.randint(3, 31, (2, 6))
    assert [
        len(row) for row in pipe.generate_tokens(tokens, max_new_tokens=4, min_new_tokens=4)
    ] == [4, 4]
    exact = trifold.load(folder).logits(tokens).detach()
    assert float((pipe.logits(tokens).detach() - exact).std() / exact.std()) < 0.05
    with pytest.raises(UsageError, match="of 4 to 16 bits are for inference only"):
        pipe.save(tmp_path / "again")
    with pytest.raises(UsageError, match="int3"):
        trifold.load(folder, weights="int3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "is_tied"),
    [("decoder", True), ("decoder", False), ("encoder-decoder", True), ("encoder", True)],
)
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("width", [32, 20])
def test_matrices_have_scales_of_blocks_except_those_of_int8_encoders(
    shape: str, is_tied: bool, weights: Literal["int8", "int4"], width: int, tmp_path: Path
) -> None:
    sizes = {"d_model": width, "d_ff": 2 * width, "shape": shape, "tie_lm_head": is_tied}
    save_model(tmp_path, Transformer(ModelConfig.parse(TINY | sizes)))
    exact_model, _ = load_model(tmp_path)
    model, _ = load_model(tmp_path, stored=weights)
    found = dict[str, QuantizedWeight]()
    for name, module in model.named_modules():
        if isinstance(module, QuantizedWeight):
            found[name] = module
    assert len(found) > 10
    for name, module in found.items():
        matrix = exact_model.get_parameter(name)
        if (shape, weights) == ("encoder", "int8"):
            expected: QuantizedWeight = Int8Weight.quantize(matrix)
        else:
            is_head = model.lm_head is not None and model.lm_head.weight is module
            bits = 8 if weights == "int8" else bits_in_int4(name, shape, is_head=is_head)
            expected = BlockWeight.quantize(matrix, bits)
        assert type(module) is type(expected)
        assert torch.equal(module.dequantize(), expected.dequantize())


def bits_in_int4(name: str, shape: str, *, is_head: bool) -> int:
    """Those that docs/gguf.md states for a matrix."""
    if is_head or "v_proj" in name:
        return 6
    if "embeddings" in name:
        return 4
    is_of_attention = any(f"{part}_proj" in name and "attention" in name for part in "qko")
    return 5 if is_of_attention or shape == "encoder" else 4


def test_a_matrix_that_has_no_scale_is_named(tmp_path: Path) -> None:
    model = Transformer(ModelConfig.parse(TINY | {"d_model": 32, "shape": "decoder"}))
    with torch.no_grad():
        model.get_parameter("decoder.blocks.1.feed_forward.sublayer.in_proj.weight")[3, 4] = 1e9
    save_model(tmp_path, model)
    with pytest.raises(CheckpointError, match=r"blocks\.1\..*too large for 8 bits; load the model"):
        load_model(tmp_path, stored="int8")


def test_loaded_models_do_not_share_memory(folder: Path) -> None:
    first, _ = load_model(folder)
    second, _ = load_model(folder)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.zero_()
    assert all(bool(parameter.any()) for parameter in first.parameters())
    if first.encoder is None:
        assert bool(first(Inputs(torch.tensor([[3, 4]]))).any())


def mapped_places(folder: Path) -> list[range]:
    """The addresses at which the weights of a folder are mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines if line.endswith(f"{folder}/{SINGLE}")]
    return [range(int(first, 16), int(last, 16)) for first, last in spans]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="not Linux")
@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_matrices_in_16_bits_stay_in_the_memory_of_their_file(
    folder: Path, dtype: torch.dtype
) -> None:
    model, _ = load_model(folder)
    save_model(folder, model, dtype=dtype)
    exact, _ = load_model(folder)
    found, _ = load_model(folder, stored="file")
    halves = {name: m for name, m in found.named_modules() if isinstance(m, HalfWeight)}
    assert len(halves) == len(fill.named_matrices(exact))
    for name, weight in halves.items():
        assert weight.values.dtype is dtype
        assert torch.equal(weight.dequantize(), exact.get_parameter(name))
        place = weight.values.data_ptr()
        is_mapped = any(place in places for places in mapped_places(folder))
        assert is_mapped or exact.config.encoder_layers  # the rules of Marian copy
    second = Inputs(TOKENS) if exact.config.shape == "encoder-decoder" else None
    with torch.no_grad():
        expected = exact(Inputs(TOKENS), second)
        assert (found(Inputs(TOKENS), second) - expected).abs().max() < 1e-5 * expected.abs().max()
    same, _ = load_model(folder, dtype=dtype, stored="file")
    assert not any(isinstance(module, QuantizedWeight) for module in same.modules())


def test_encoders_have_full_weights_of_a_file_in_16_bits(tmp_path: Path) -> None:
    model = Transformer(ModelConfig.parse(TINY | {"shape": "encoder"}))
    save_model(tmp_path, model, dtype=torch.float16)
    found, _ = load_model(tmp_path, stored="file")
    assert not any(isinstance(module, QuantizedWeight) for module in found.modules())


def test_transposed_matrices_in_16_bits_are_copied(tmp_path: Path) -> None:
    """Those of GPT-2."""
    config = FAMILIES["gpt2"].read({"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 31})
    model = Transformer(config)
    model.family = "gpt2"
    save_model(tmp_path, model, dtype=torch.float16)
    exact, _ = load_model(tmp_path)
    found, _ = load_model(tmp_path, stored="file")
    halves = {name: m for name, m in found.named_modules() if isinstance(m, HalfWeight)}
    assert len(halves) == len(fill.named_matrices(exact))
    for name, weight in halves.items():
        assert torch.equal(weight.dequantize(), exact.get_parameter(name))
