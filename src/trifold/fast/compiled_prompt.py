"""The tokens of a prompt through all layers as one program, as `compiled_decoder` computes one
token of each row.

The operators of a prompt, between which Python runs, each read and write all states; for short
prompts they take as long as the products. A prompt is translated each time that it is read: its
sizes differ from those of the last one, and the memory of its buffers is free afterwards.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.fast import instruction as ins
from trifold.fast.attention import product_type
from trifold.fast.block_weight import BlockWeight
from trifold.fast.compiled_decoder import CompiledDecoder
from trifold.fast.instruction_sets import has_panels
from trifold.fast.quantized_weight import Weight
from trifold.fast.thread_pool import (
    DTYPES,
    Field,
    divide_into_tasks,
    execute,
    matmul_fields,
    panel_fields,
)
from trifold.nn.attention import Attention
from trifold.nn.cache import Cache
from trifold.nn.walk import StackInputs


class CompiledPrompt(CompiledDecoder):
    """The instructions of a stack for new tokens x (B, T, E)."""

    rotations: NDArray[np.int64]

    def __init__(self, stack: Any, x: Tensor) -> None:
        self.shape = x.shape
        self.dtype = x.dtype
        super().__init__(stack, x, x.shape[0] * x.shape[1])

    def _prepare(self, stack: Any) -> None:
        program = self.program
        program["rows"] = self.max_rows
        self.self_attention = np.flatnonzero(program["opcode"] == ins.PROMPT_ATTENTION)
        self.rotations = np.flatnonzero(program["opcode"] == ins.ROTATE)
        divide_into_tasks(program)

    # --- translation ------------------------------------------------------------------------------

    def _buffer(self, name: str, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The buffer (rows, width) of that name, shared by all layers."""
        if (name, width) not in self.buffers:
            self.buffers[name, width] = torch.empty(self.max_rows, width, dtype=dtype)
        return self.buffers[name, width]

    def _add(self, out: Tensor, **fields: Field) -> None:
        units: dict[str, Field] = {"units": self.max_rows}
        if "heads" in fields and fields["opcode"] == ins.NORM:
            heads = fields["heads"]
            assert isinstance(heads, int)
            units["units"] = self.max_rows * heads
        super()._add(out, **{**units, **fields})

    def _add_matmul(self, weight: Weight, x: Tensor, out: Tensor, fields: dict[str, Field]) -> None:
        if isinstance(weight, BlockWeight):
            self._add_block_matmul(weight, x, out, fields)
        else:
            self._add(out, **self._many_row_fields(weight), x=x, **fields)

    def _many_row_fields(self, weight: Weight) -> dict[str, Field]:
        return panel_fields(weight) if has_panels() else matmul_fields(weight) | {"units": 0}

    def _add_attention(
        self, layer: Attention, x: Tensor, out: Tensor, mode: int, *, crosses: bool
    ) -> None:
        assert not crosses, "see `supports_prompt`"
        rows, tokens, _ = self.shape
        width = layer.head_width
        q_width = layer.q_proj.weight.shape[0]
        kv_width = layer.k_proj.weight.shape[0]
        products = product_type(self.dtype)
        q = self._add_linear(layer.q_proj, x, self._buffer("q", q_width))
        k = self._add_linear(layer.k_proj, x, self._buffer("k", kv_width), waits=0)
        v = self._add_linear(layer.v_proj, x, self._buffer("v", kv_width), waits=0)
        self._add_norm(layer.k_norm, k, k)
        self._add_norm(layer.q_norm, q, q, waits=0)
        rotated = self._buffer("rotated", q_width, products)
        attended = self._buffer("attended", q_width, products)
        heads = q_width // width
        fields: dict[str, Field] = {"dtype": DTYPES[self.dtype], "width": width, "heads": heads}
        fields |= {"kv_heads": kv_width // width, "queries": tokens}
        self._add(rotated, opcode=ins.ROTATE, x=q, new_keys=k, new_values=v, **fields)
        fields |= {"scale": layer.scale, "units": rows * heads * -(-tokens // ins.PROMPT_QUERIES)}
        self._add(attended, opcode=ins.PROMPT_ATTENTION, x=rotated, **fields)
        if attended.dtype is not torch.float32:
            wide = self._buffer("wide", q_width)
            self._add(wide, opcode=ins.CONVERT, dtype=ins.FLOAT32, inputs=q_width, x=attended)
            attended = wide
        self._add_linear(layer.o_proj, attended, out, mode)

    # --- the prompt -------------------------------------------------------------------------------

    def run(self, x: Tensor, inputs: StackInputs, cache: Cache) -> Tensor:
        """See `nn.ops.decoding_step`."""
        self.x[:] = x.reshape(self.max_rows, -1)
        self._set_angles(inputs)
        self._set_caches(cache)
        execute(self.program)
        for layer in cache.layers:
            layer.past.advance(self.shape[1])
        return self.x.view(self.shape).to(x.dtype)

    def _set_angles(self, inputs: StackInputs) -> None:
        """The angles (B or 1, 1, T, R/2) of the tokens in each layer."""
        for layers in self.rotated_alike:
            angles = inputs.rotations[layers[0]]
            assert angles is not None, "see `_layers_rotated_alike`"
            half = angles.cos.shape[-1]
            size = self.shape[0], self.shape[1], half
            cos, sin = (
                each[:, 0].float().expand(size).contiguous() for each in (angles.cos, angles.sin)
            )
            self._set(
                self.rotations[layers],
                cos=cos,
                sin=sin,
                interleaved=angles.interleaved,
                rotary_width=2 * half,
                rotary_stride=half,
            )

    def _set_caches(self, cache: Cache) -> None:
        """Where the layers store the new keys and values, and which they read."""
        rows, tokens, _ = self.shape
        sizes = self.program[self.rotations[0]]
        new = torch.empty(rows, int(sizes["kv_heads"]), 0, int(sizes["width"]), dtype=self.dtype)
        buffers = [layer.past.reserve(tokens, (new, new)) for layer in cache.layers]
        slot = cache.layers[0].past.filled
        for indices in (self.rotations, self.self_attention):
            self.program["keys"][indices] = [keys.data_ptr() for keys, _ in buffers]
            self.program["values"][indices] = [values.data_ptr() for _, values in buffers]
            self.program["slot"][indices] = slot
            self.program["length"][indices] = slot + tokens
            names = ("row_stride", "head_stride", "key_stride")
            for number, name in enumerate(names):
                self.program[name][indices] = [keys.stride(number) for keys, _ in buffers]
