"""Which tensor of a GGUF file gets which type, as llama.cpp chooses (`llama_tensor_get_type`).

Vectors, norms, positions, token types and routers stay in float32. The table of tokens, if it is
the output layer, and matrices that errors pass through more easily get more bits.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf

from torch import Tensor

from trifold.hub.gguf.blocks import TYPES, BlockType

# Names of types of a file -> the type of its matrices, and its number in `general.file_type`.
WEIGHTS = {
    "f32": ("F32", 0),
    "f16": ("F16", 1),
    "bf16": ("BF16", 32),
    "q8_0": ("Q8_0", 7),
    "q4_0": ("Q4_0", 2),
    "q4_k_m": ("Q4_K", 15),
}
BY_NAME = {kind.name: (number, kind) for number, kind in TYPES.items()}
# A type whose blocks do not divide the rows -> the one in its place.
_SMALLER_BLOCKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
# Matrices that stay in float32.
_PLAIN = re.compile(r"_norm\.weight$|ffn_gate_inp|position_embd|token_types|attn_rel_b")
_VALUES = ("attn_v.weight", "attn_qkv.weight")
_TABLE, _OUTPUT = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class Sizes:
    """What the choice depends on besides names and shapes."""

    layers: int
    experts: int = 0
    shares_heads: bool = False  # eight heads of queries use one of values, as in the models of 70 B


def tensor_types(
    weights: str, shapes: Mapping[str, Tensor], sizes: Sizes
) -> dict[str, tuple[int, BlockType]]:
    """The number and the type of each tensor of a file of `weights`, a key of WEIGHTS."""
    default = WEIGHTS[weights][0]
    chosen = dict.fromkeys(shapes, "F32")
    matrices = {name: shape for name, shape in shapes.items() if _is_matrix(name, shape)}
    chosen |= dict.fromkeys(matrices, default)
    if weights == "q4_k_m":
        chosen |= _with_more_bits(matrices, sizes)
    if BY_NAME[default][1].values is not None:
        if sizes.experts == 8:  # beside which these are small
            small = [name for name in matrices if name.endswith(("attn_k.weight", *_VALUES))]
            chosen |= dict.fromkeys(small, "Q8_0")
        chosen |= {name: _fitting(chosen[name], shape) for name, shape in matrices.items()}
        output = _OUTPUT if _OUTPUT in shapes else _TABLE
        if output in matrices:
            chosen[output] = _of_output(default, matrices[output])
    return {name: BY_NAME[kind] for name, kind in chosen.items()}


def _is_matrix(name: str, shape: Tensor) -> bool:
    """Whether a tensor may have fewer bits than 32."""
    has_rows = any(size > 1 for size in shape.shape[:-1])
    return has_rows and name.endswith("weight") and not _PLAIN.search(name)


def _fitting(kind: str, shape: Tensor) -> str:
    """The type, or one with smaller blocks if its blocks do not divide the rows."""
    for each in (kind, _SMALLER_BLOCKS.get(kind, kind)):
        if shape.shape[-1] % BY_NAME[each][1].length == 0:
            return each
    return "F16"


def _of_output(default: str, shape: Tensor) -> str:
    """The type of the output layer."""
    if default == "Q8_0" or shape.shape[-1] % BY_NAME[default][1].length:
        return _fitting("Q8_0", shape)
    return _fitting("Q6_K", shape)


# --- Q4_K_M ---------------------------------------------------------------------------------------


def _uses_more_bits(number: int, count: int) -> bool:
    """Whether the matrix of this number gets more bits: the first and last eighth, and every third
    one between.
    """
    is_outer = number < count // 8 or number >= 7 * count // 8
    return is_outer or (number - count // 8) % 3 == 2


def _with_more_bits(names: Collection[str], sizes: Sizes) -> dict[str, str]:
    """The types of matrices that are not Q4_K."""
    ordered = sorted(names, key=_place)
    values = [name for name in ordered if name.endswith(_VALUES)]
    downs = [name for name in ordered if "ffn_down" in name]
    chosen = {}
    for number, name in enumerate(values):
        if _uses_more_bits(number, len(values)):
            chosen[name] = "Q6_K"
        elif sizes.shares_heads:
            chosen[name] = "Q5_K"
    for number, name in enumerate(downs):
        layer = number
        if sizes.experts > 1:
            layer = int(_place(name)[0])
        if _uses_more_bits(layer, sizes.layers):
            chosen[name] = "Q6_K"
    if sizes.experts == 8:
        chosen |= {name: "Q5_K" for name in ordered if name.endswith("attn_output.weight")}
    return chosen


def _place(name: str) -> tuple[float, str]:
    """The order of llama.cpp: names without a layer first, then by layer."""
    found = re.match(r"blk\.(\d+)\.", name)
    return (int(found[1]) if found else -inf, name)
