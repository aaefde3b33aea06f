"""Quantized folders of other libraries are refused by name, wherever the method shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.checkpoints import edit, read, write
from tests.hub.tiny import TINY

import trifold
from trifold.errors import CheckpointError
from trifold.hub import load_model, read_config
from trifold.hub.convert import convert
from trifold.hub.quantized import FILES, REMEDY, check_unquantized_tensors

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

Saved = Callable[..., Path]

# quantization_config of published folders -> the method in the error.
CONFIGS: list[tuple[dict[str, Any] | str, str]] = [
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "AWQ (4 bits)"),
    ({"quant_method": "gptq", "bits": 4, "desc_act": True}, "GPTQ (4 bits)"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes (4 bits)"),
    ({"load_in_8bit": True, "llm_int8_threshold": 6.0}, "bitsandbytes (8 bits)"),
    ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "FP8"),
    ({"quant_method": "fbgemm_fp8"}, "fbgemm_fp8"),
    ({"quant_method": "mxfp4"}, "MXFP4"),
    ({"quant_method": "hqq"}, "HQQ"),
    ({"quant_method": "quanto", "weights": "int8"}, "quanto"),
    ({"quant_method": "torchao"}, "torchao"),
    ({"quant_method": "eetq"}, "EETQ"),
    ({"quant_method": "aqlm"}, "AQLM"),
    ({"quant_method": "vptq"}, "VPTQ"),
    ({"quant_method": "spqr", "bits": 3}, "SpQR (3 bits)"),
    ({"quant_method": "higgs", "bits": 4}, "HIGGS (4 bits)"),
    ({"quant_method": "bitnet"}, "BitNet"),
    ({"quant_method": "exl2", "bits": 5}, "EXL2 (5 bits)"),
    ({"quant_method": "a method of the future"}, "a method of the future"),
    ({"bits": 4}, "an unknown format (4 bits)"),
    ("int4", "int4"),
]


@pytest.mark.parametrize(("settings", "method"), CONFIGS)
def test_a_config_of_quantized_weights_is_refused(
    settings: dict[str, Any] | str, method: str, saved: Saved
) -> None:
    folder = saved("llama")
    edit(folder, quantization_config=settings)
    expected = f"{folder / 'config.json'}: quantization_config: weights in {method} are not"
    with pytest.raises(CheckpointError) as caught:
        read_config(folder)
    assert str(caught.value) == f"{expected} supported; {REMEDY}"


@pytest.mark.parametrize(
    ("key", "settings", "method"),
    [
        ("quantization", {"group_size": 64, "bits": 4}, "MLX (4 bits)"),
        ("compression_config", {"config_groups": {}, "format": "dense"}, "compressed-tensors"),
    ],
)
def test_other_keys_of_quantization_are_refused(
    key: str, settings: object, method: str, saved: Saved
) -> None:
    folder = saved("llama")
    edit(folder, **{key: settings})
    with pytest.raises(CheckpointError, match=f"{key}: weights in ") as caught:
        load_model(folder)
    assert f"weights in {method} are" in str(caught.value)


def test_empty_keys_of_quantization_are_accepted(saved: Saved, capsys: Any) -> None:
    folder = saved("llama")
    capsys.readouterr()
    edit(folder, quantization_config={}, compression_config=None)
    read_config(folder)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "content", "method"),
    [
        (
            "quantize_config.json",
            {"bits": 4, "group_size": 128, "desc_act": False},
            "GPTQ (4 bits)",
        ),
        ("quant_config.json", {"zero_point": True, "w_bit": 4, "version": "GEMM"}, "AWQ (4 bits)"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, "ModelOpt"),
        ("quanto_qmap.json", {"model.layers.0": {"weights": "qint8"}}, "quanto"),
        ("quantize_config.json", None, "GPTQ"),
    ],
)
def test_a_file_of_a_method_is_refused(
    name: str, content: object, method: str, saved: Saved
) -> None:
    folder = saved("llama")
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    for call in (read_config, load_model, trifold.load):
        with pytest.raises(CheckpointError) as caught:
            call(folder)
        assert str(caught.value).startswith(f"{folder / name}: weights in {method} are not")
    assert name in FILES


# Tensors that replace the weight of a matrix.
Q = "model.layers.0.self_attn.q_proj"
TENSORS: list[tuple[dict[str, torch.dtype], str]] = [
    (
        {
            ".qweight": torch.int32,
            ".qzeros": torch.int32,
            ".scales": torch.float16,
            ".g_idx": torch.int32,
        },
        "GPTQ",
    ),
    ({".qweight": torch.int32, ".qzeros": torch.int32, ".scales": torch.float16}, "AWQ"),
    ({".weight": torch.int8, ".SCB": torch.float32}, "bitsandbytes (8 bits)"),
    (
        {
            ".weight": torch.uint8,
            ".weight.absmax": torch.float32,
            ".weight.quant_state.bitsandbytes__nf4": torch.uint8,
        },
        "bitsandbytes (4 bits)",
    ),
    (
        {
            ".weight_packed": torch.int32,
            ".weight_scale": torch.bfloat16,
            ".weight_shape": torch.int64,
        },
        "compressed-tensors",
    ),
    ({".weight": torch.float32, ".weight_scale_inv": torch.float32}, "FP8"),
    ({".weight": torch.uint8, ".weight_scale": torch.float32}, "integers or FP8 with scales"),
    ({".W_q": torch.uint8, ".scale": torch.float16, ".zero": torch.float16}, "HQQ"),
    ({".weight._data": torch.int8, ".weight._scale": torch.float32}, "quanto"),
    ({".codes": torch.int8, ".codebooks": torch.float16, ".scales": torch.float16}, "AQLM"),
    ({".weight": torch.int8, ".weight_scales": torch.float16}, "EETQ"),
    ({".weight": torch.int32, ".scales": torch.float16, ".biases": torch.float16}, "MLX"),
]


@pytest.mark.parametrize(("parts", "method"), TENSORS)
def test_tensors_of_quantized_weights_are_refused(
    parts: dict[str, torch.dtype], method: str, saved: Saved, tmp_path: Path
) -> None:
    folder = saved("llama")
    tensors = read(folder)
    del tensors[f"{Q}.weight"]
    write(folder, tensors | {Q + end: torch.ones(4, dtype=kind) for end, kind in parts.items()})
    for call in (load_model, lambda folder: convert(folder, tmp_path / "new")):
        with pytest.raises(CheckpointError) as caught:
            call(folder)
        assert str(caught.value).startswith(f"{folder}: {Q}")
        assert f"weights in {method}" in str(caught.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("family", TINY)
def test_names_of_usual_tensors_are_no_marks(family: str, tiny_folder: Callable[..., Path]) -> None:
    check_unquantized_tensors(read(tiny_folder(family)), tiny_folder(family))


def test_eight_bit_floats_without_scales_are_refused(saved: Saved) -> None:
    folder = saved("llama")
    tensors = read(folder)
    write(folder, tensors | {f"{Q}.weight": tensors[f"{Q}.weight"].to(torch.float8_e4m3fn)})
    with pytest.raises(CheckpointError, match="F8_E4M3") as caught:
        load_model(folder)
    assert REMEDY in str(caught.value)


def test_a_folder_of_gguf_is_refused(saved: Saved) -> None:
    folder = saved("llama")
    (folder / "model.safetensors").rename(folder / "tiny-Q4_K_M.gguf")
    with pytest.raises(CheckpointError, match=r"give the GGUF file itself, .*tiny-Q4_K_M\.gguf"):
        load_model(folder)
