"""Quantized weights of other libraries are refused by name: where config.json, another file or the
names of the tensors show them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trifold.errors import CheckpointError
from trifold.folders import UntrustedPath
from trifold.jsonfiles import read_json

REMEDY = "use the unquantized form of the same model, or its GGUF file"
# Keys of config.json. The second is that of old files of compressed-tensors, the third that of MLX.
KEYS = ("quantization_config", "compression_config", "quantization")
LIBRARIES = dict(zip(KEYS, ("", "compressed-tensors", "MLX"), strict=True))
# Files beside config.json -> the method, if they do not name it.
FILES = {
    "quantize_config.json": "GPTQ",
    "quant_config.json": "AWQ",
    "quanto_qmap.json": "quanto",
    "hf_quant_config.json": "ModelOpt",
}
# Names of methods in files -> as their authors write them; others are written as they are.
METHODS = {name.lower(): name for name in "AWQ GPTQ FP8 MXFP4 NVFP4 HQQ EETQ AQLM VPTQ".split()}
METHODS |= {"spqr": "SpQR", "higgs": "HIGGS", "bitnet": "BitNet", "exl2": "EXL2", "exl3": "EXL3"}
# How names of tensors end, all of them -> the method; the first one counts.
ENDINGS: tuple[tuple[set[str], str], ...] = (
    ({"SCB"}, "bitsandbytes (8 bits)"),
    ({"absmax"}, "bitsandbytes (4 bits)"),
    ({"qweight", "g_idx"}, "GPTQ"),
    ({"qweight", "qzeros"}, "AWQ"),
    ({"q_weight", "q_scale"}, "EXL2"),
    ({"weight_packed"}, "compressed-tensors"),
    ({"weight_scale_inv"}, "FP8"),
    ({"weight_scale_2"}, "NVFP4"),
    ({"weight_scales"}, "EETQ"),
    ({"weight_scale"}, "integers or FP8 with scales (compressed-tensors, FBGEMM or BitNet)"),
    ({"W_q"}, "HQQ"),
    ({"codes", "codebooks"}, "AQLM"),
    ({"_data", "_scale"}, "quanto"),
    ({"_blocks", "_scales"}, "MXFP4"),
    ({"centroids", "indices"}, "VPTQ"),
    ({"dense_weights", "row_offsets"}, "SpQR"),
    ({"tables", "tables2"}, "HIGGS"),
    ({"Qidxs"}, "QuIP#"),
    ({"scales", "biases"}, "MLX"),
    ({"qweight"}, "GPTQ or AWQ"),
)


def check_unquantized(values: Mapping[str, Any], place: UntrustedPath) -> None:
    """Raise CheckpointError for the config.json of quantized weights, whose content is `values`,
    and for one beside the file of a method.
    """
    for key in KEYS:
        if values.get(key):
            method = _method(values[key], LIBRARIES[key])
            raise _refusal(f"{place}: {key}", method)
    for name, usual in FILES.items():
        if (place.parent / name).exists():
            raise _refusal(str(place.parent / name), _method(_read(place.parent / name), usual))


def check_unquantized_tensors(names: Iterable[str], folder: Path | UntrustedPath) -> None:
    """Raise CheckpointError for names of tensors that only quantized weights have."""
    endings: dict[str, str] = {}
    for name in names:
        last = name.rpartition(".")[2]
        endings.setdefault(last, name)
        endings.setdefault(f"_{last.rpartition('_')[2]}", name)
    for marks, method in ENDINGS:
        if marks <= endings.keys():
            examples = ", ".join(sorted({endings[mark] for mark in marks}))
            raise _refusal(f"{folder}: {examples:.200}", method)


def _refusal(place: str, method: str) -> CheckpointError:
    return CheckpointError(f"{place}: weights in {method} are not supported; {REMEDY}")


def _read(file: UntrustedPath) -> object:
    """The content of a file; None for an invalid one, whose presence is enough."""
    try:
        return read_json(file)
    except CheckpointError:
        return None


def _method(settings: object, usual: str) -> str:
    """The name of a method and its bits, as far as the settings tell."""
    if not isinstance(settings, Mapping):
        return usual or f"{settings!s:.40}"
    name = settings.get("quant_method") or settings.get("quant_algo")
    bits = settings.get("bits") or settings.get("w_bit")
    for size in (4, 8):
        if settings.get(f"load_in_{size}bit"):
            name = name or "bitsandbytes"
            bits = size
    method = METHODS.get(str(name).lower(), f"{name!s:.40}") if name else usual
    if isinstance(bits, int) and bits is not True:
        return f"{method or 'an unknown format'} ({bits} bits)"
    return method or "an unknown format"
