"""A decoder stack translated into instructions for interpreter.py: once per cache, then updated at
every step.

Each step updates the slot of the new keys, their number, and the position bias and rotary angles of
the new token. The translation follows Block.forward and ParallelBlock.forward, with dropout left
out.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trifold.fast import instruction as ins
from trifold.fast.beam_index import current_index
from trifold.fast.block_linear import quantized_bytes
from trifold.fast.block_weight import BlockWeight
from trifold.fast.matmul import repeated_linear
from trifold.fast.quantized_weight import QuantizedWeight, Weight
from trifold.fast.thread_pool import (
    DTYPES,
    Field,
    divide_into_tasks,
    execute,
    few_rows,
    matmul_fields,
    new_program,
    set_fields,
)
from trifold.nn.attention import Attention
from trifold.nn.cache import Cache, GrowingKeys
from trifold.nn.layers import FeedForward, Linear, Residual
from trifold.nn.masks import Mask
from trifold.nn.norms import RMSNorm
from trifold.nn.stack import Stack, all_modules
from trifold.nn.walk import StackInputs

UNLIMITED = 2**60  # tokens


def sublayers(block: Any) -> list[Any]:
    """The residuals or branches of a block in order."""
    names = ("self_attention", "cross_attention", "feed_forward")
    return [getattr(block, name) for name in names if getattr(block, name, None) is not None]


class Matmul(NamedTuple):
    """A matmul of a library: x (R, K) and weight (N, K) of one type, or a weight in 16 bits.

    finish: the instruction that reads its result.
    """

    finish: int
    x: Tensor
    weight: Weight

    def execute(self, rows: int) -> Tensor:
        """The products (R, N) of the first `rows` of x."""
        x = self.x[:rows]
        if isinstance(self.weight, QuantizedWeight):
            return self.weight.linear(x, None)
        return repeated_linear(x, self.weight)


class HookSearch:
    """Finds the hooks of modules and of all that they contain. A hook point that is watched has a
    hook.

    Hooks are numbered when they are added, in the whole process. Without a new number, no module
    has to be looked at.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self._hooks = [
            hooks
            for module in modules
            for each in all_modules(module)
            for hooks in (each._forward_hooks, each._forward_pre_hooks)
        ]
        self._searched = -1  # the number of the next hook at the last search, which found none

    def any(self) -> bool:
        """Whether there is one."""
        number = RemovableHandle.next_id
        if number == self._searched:
            return False
        found = any(self._hooks)
        if not found:
            self._searched = number
        return found


class CompiledDecoder:
    """The instructions of one stack, their buffers for at most `max_rows` rows, and the tensors
    they read.

    Matmuls are instructions, too, except those of more than a few rows: a library multiplies them
    between the instructions, which is faster.
    """

    # What a step changes; `_prepare` finds it.
    hooks: HookSearch
    self_attention: NDArray[np.int64]
    cross_attention: NDArray[np.int64]
    units_per_row: NDArray[np.int64]
    rows: int
    # By attention instruction: the keys and values that it reads, and of which memory they are.
    read: dict[int, tuple[Tensor, Tensor]]
    memories: dict[int, Tensor]

    def __init__(self, stack: Any, like: Tensor, max_rows: int) -> None:
        self.max_rows = max_rows
        self.windows = np.array(
            [UNLIMITED if window is None else window for window in stack.windows]
        )
        self.rotated_alike = _layers_rotated_alike(stack)
        self.buffers: dict[tuple[str, int], Tensor] = {}
        self.fields: list[dict[str, Field]] = []  # of each instruction; keeps its tensors alive
        self.alive: list[Tensor] = []  # tensors of the current step
        # The matmuls of the library that are executed together, before the instruction that
        # finishes the first of them.
        self.matmuls: list[list[Matmul]] = []
        # The last x that was converted, and its copy in the type of the weights.
        self.converted: tuple[Tensor, Tensor] | None = None
        # The same for weights in blocks: x, the code of 0, and the quantized rows.
        self.quantized: tuple[Tensor, int, Tensor] | None = None
        self.x, self.normed, self.exit = (
            self._buffer(n, like.shape[-1]) for n in ("x", "normed", "exit")
        )
        for number in stack.block_of_layer:
            self._add_block(stack.blocks[number])
        self._add_norm(stack.final_norm, self.x, self.x)
        self.program = new_program(self.fields)
        self._prepare(stack)

    def _prepare(self, stack: Any) -> None:
        """Find the instructions that a step changes, and the hooks that prevent it."""
        self.hooks = HookSearch(stack)
        program = self.program
        attention = program["opcode"] == ins.ATTENTION
        matmul = np.isin(program["opcode"], (ins.MATMUL, ins.BLOCK_MATMUL))
        # The attention instructions, one of each kind per layer.
        self.self_attention = np.flatnonzero(program["new_keys"])
        self.cross_attention = np.flatnonzero(attention & (program["new_keys"] == 0))
        # Units: key heads of attention, heads of a norm, one for others; matmuls have none.
        heads = np.where(attention, program["kv_heads"], np.maximum(program["heads"], 1))
        self.units_per_row = np.where(matmul, 0, heads)
        self.rows = 0
        self.read = {}
        self.memories = {}

    # --- translation ------------------------------------------------------------------------------

    def _buffer(self, name: str, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The buffer (max_rows, width) of that name, shared by all layers."""
        if (name, width) not in self.buffers:
            self.buffers[name, width] = torch.zeros(self.max_rows, width, dtype=dtype)
        return self.buffers[name, width]

    def _add(self, out: Tensor, **fields: Field) -> None:
        """Append an instruction."""
        if self.converted is not None and self.converted[0] is out:
            self.converted = None
        if self.quantized is not None and self.quantized[0] is out:
            self.quantized = None
        self.fields.append({"waits": 1, "out": out, **fields})

    def _add_norm(
        self, norm: Any, x: Tensor, out: Tensor, mode: int = ins.SET, waits: int = 1
    ) -> Tensor:
        """Returns the buffer with the result, x if there is no norm. A narrow norm applies to each
        head of x.
        """
        if norm is None or isinstance(norm, nn.Identity):
            return x
        kind = ins.RMS_NORM if isinstance(norm, RMSNorm) else ins.LAYER_NORM
        weight = norm.factor if getattr(norm, "offset", 0) else norm.weight
        weight = torch.ones(norm.width) if weight is None else weight
        parameters = {"weight": _float(weight), "bias": _float(getattr(norm, "bias", None))}
        sizes = {"inputs": norm.width, "heads": x.shape[1] // norm.width, "epsilon": norm.epsilon}
        self._add(
            out, opcode=ins.NORM, norm=kind, x=x, mode=mode, waits=waits, **sizes, **parameters
        )
        return out

    def _add_linear(
        self,
        layer: Linear,
        x: Tensor,
        out: Tensor,
        mode: int = ins.SET,
        activation: str = "none",
        waits: int = 1,
    ) -> Tensor:
        code = ins.ACTIVATIONS[activation]
        fields: dict[str, Field] = {"activation": code, "mode": mode, "waits": waits}
        fields["bias"] = _float(layer.bias)
        self._add_matmul(layer.weight, x, out, fields)
        return out

    def _add_matmul(self, weight: Weight, x: Tensor, out: Tensor, fields: dict[str, Field]) -> None:
        if self.max_rows <= few_rows(weight):
            self._add(out, **matmul_fields(weight), x=x, **fields)
        elif isinstance(weight, BlockWeight):
            self._add_block_matmul(weight, x, out, fields)
        else:
            self._add_library_matmul(weight, x, out, fields)

    def _add_block_matmul(
        self, weight: BlockWeight, x: Tensor, out: Tensor, fields: dict[str, Field]
    ) -> None:
        """Multiply many rows, quantized by an instruction, unless they already are."""
        fields |= self._many_row_fields(weight)
        kind = fields["dtype"]
        assert isinstance(kind, int)
        zero = ins.ZERO_CODES[kind]
        width = x.shape[1]
        if self.quantized is None or self.quantized[0] is not x or self.quantized[1] != zero:
            rows = self._buffer("blocks", quantized_bytes(1, width), torch.int8)
            self._add(rows, opcode=ins.BLOCK_QUANTIZE, dtype=kind, inputs=width, x=x)
            self.quantized = x, zero, rows
            fields["waits"] = 1
        self._add(out, **fields, x=self.quantized[2])

    def _many_row_fields(self, weight: Weight) -> dict[str, Field]:
        """The fields of a matmul of many rows with a weight."""
        return matmul_fields(weight)

    def _add_library_matmul(
        self, weight: Weight, x: Tensor, out: Tensor, fields: dict[str, Field]
    ) -> None:
        """Multiply by the library, and finish its result.

        A matmul that does not wait runs together with the one before it, if that is of the library.
        """
        follows = bool(self.matmuls) and self.matmuls[-1][-1].finish == len(self.fields) - 1
        x = self._convert(x, weight)
        if fields["waits"] or not follows:
            self.matmuls.append([])
        fields |= {"opcode": ins.FINISH, "dtype": DTYPES[weight.dtype], "outputs": len(weight)}
        self.matmuls[-1].append(Matmul(len(self.fields), x, weight))
        self._add(out, **fields)

    def _convert(self, x: Tensor, weight: Weight) -> Tensor:
        """x in the type of a weight, unless it already is converted."""
        if weight.dtype is torch.float32:
            return x
        if self.converted is not None and self.converted[0] is x:
            return self.converted[1]
        width = x.shape[1]
        copy = self._buffer("bf16", width, torch.bfloat16)
        self._add(copy, opcode=ins.CONVERT, dtype=ins.BFLOAT16, inputs=width, x=x)
        self.converted = x, copy
        return copy

    def _add_block(self, block: Any) -> None:
        parts = sublayers(block)
        if isinstance(parts[0], Residual):
            for number, part in enumerate(parts):
                crosses = 0 < number < len(parts) - 1
                entered = self._add_norm(part.enter, self.x, self.normed)
                if isinstance(part.exit, nn.Identity):
                    self._add_sublayer(part.sublayer, entered, self.x, crosses=crosses)
                else:
                    self._add_sublayer(part.sublayer, entered, self.exit, ins.SET, crosses=crosses)
                    self._add_norm(part.exit, self.exit, self.x, ins.ADD)
                self._add_norm(part.after, self.x, self.x)
            return
        # A parallel block: both norms read x before either sublayer adds to it.
        attention, feed_forward = parts
        first = self._add_norm(attention.enter, self.x, self.normed)
        second = self._add_norm(feed_forward.enter, self.x, self.exit)
        # If they share a norm, feed_forward.enter is an identity, which returns x itself.
        self._add_sublayer(attention.sublayer, first, self.x)
        self._add_sublayer(feed_forward.sublayer, first if second is self.x else second, self.x)

    def _add_sublayer(
        self, layer: Any, x: Tensor, out: Tensor, mode: int = ins.ADD, *, crosses: bool = False
    ) -> None:
        if isinstance(layer, Attention):
            self._add_attention(layer, x, out, mode, crosses=crosses)
            return
        assert isinstance(layer, FeedForward)
        inner = self._buffer("inner", layer.in_proj.weight.shape[0])
        if layer.gate_proj is None:
            self._add_linear(layer.in_proj, x, inner, activation=layer.activation_name)
        else:
            self._add_linear(layer.gate_proj, x, inner, activation=layer.activation_name)
            self._add_linear(layer.in_proj, x, inner, ins.MULTIPLY)
        self._add_linear(layer.out_proj, inner, out, mode)

    def _add_attention(
        self, layer: Attention, x: Tensor, out: Tensor, mode: int, *, crosses: bool
    ) -> None:
        width = layer.q_proj.weight.shape[0]
        kv_width = layer.k_proj.weight.shape[0]
        q = self._buffer("q", width)
        attended = self._buffer("attended", width)
        self._add_linear(layer.q_proj, x, q)
        fields: dict[str, Field] = {"x": q, "width": layer.head_width, "beams": 1}
        fields |= {"heads": width // layer.head_width, "kv_heads": kv_width // layer.head_width}
        fields |= {
            "scale": layer.scale,
            "soft_cap": layer.soft_cap,
        }
        if not crosses:
            k = self._add_linear(layer.k_proj, x, self._buffer("k", kv_width), waits=0)
            v = self._add_linear(layer.v_proj, x, self._buffer("v", kv_width), waits=0)
            fields |= {"new_keys": self._add_norm(layer.k_norm, k, k), "new_values": v}
        self._add_norm(layer.q_norm, q, q, waits=int(crosses))  # together with the norm of the keys
        self._add(attended, opcode=ins.ATTENTION, **fields)
        self._add_linear(layer.o_proj, attended, out, mode)

    # --- one step ---------------------------------------------------------------------------------

    def run(self, x: Tensor, inputs: StackInputs, cache: Cache) -> Tensor:
        """See `nn.ops.decoding_step`."""
        bias = inputs.bias
        assert bias is None or isinstance(bias, Tensor), "relative scores are not supported"
        rows = x.shape[0]
        self.x[:rows] = x[:, 0]
        self.alive.clear()
        self._set_rows(rows)
        self._set_beam_index(cache)
        if bias is not None:
            self._set_bias(bias, rows)
        self._set_rotations(inputs)
        self._set_mask(self.self_attention, inputs.mask, rows)
        if inputs.memory_mask is not None:
            self._set_mask(self.cross_attention, inputs.memory_mask, self._memory_rows(cache))
        self._set_stored_keys(cache, has_bias=bias is not None)
        if len(self.cross_attention):
            self._set_memories(cache, rows)
        self._execute(rows)
        for layer in cache.layers:
            layer.past.advance(1)
        return self.x[:rows, None].to(x.dtype, copy=True)

    def _set_rows(self, rows: int) -> None:
        """The number of rows of all instructions, which decides how they are divided."""
        if rows == self.rows:
            return
        self.rows = rows
        self.program["rows"] = rows
        self.program["units"] = self.units_per_row * rows
        divide_into_tasks(self.program)

    def _set_beam_index(self, cache: Cache) -> None:
        """In which rows of the cache each beam finds its keys."""
        index = current_index(cache)
        stride = None if index is None else index.shape[1]
        self._set(self.self_attention, beam_index=index, beam_index_stride=stride)

    def _set_bias(self, bias: Tensor, rows: int) -> None:
        """The bias of the scores (B or 1, H, 1, S)."""
        bias = bias.float().contiguous()
        row_stride = bias.stride(0) if bias.shape[0] == rows > 1 else 0
        self._set(
            self.self_attention,
            score_bias=bias,
            score_bias_row=row_stride,
            score_bias_head=bias.stride(1),
        )

    def _set_rotations(self, inputs: StackInputs) -> None:
        """The angles (B or 1, 1, 1, R/2) of the new tokens in each layer."""
        for layers in self.rotated_alike:
            angles = inputs.rotations[layers[0]]
            assert angles is not None, "see `_layers_rotated_alike`"
            cos = angles.cos.float().contiguous()
            sin = angles.sin.float().contiguous()
            half = cos.shape[-1]
            self._set(
                self.self_attention[layers],
                cos=cos,
                sin=sin,
                interleaved=angles.interleaved,
                rotary_width=2 * half,
                rotary_stride=half if cos.shape[0] > 1 else 0,
            )

    def _set_mask(self, attention: NDArray[np.int64], mask: Mask, rows: int) -> None:
        """The keys (B, S) that are not padding, of so many rows of stored keys."""
        keys = mask.keys
        stride = None
        if keys is not None:
            keys = keys.expand(rows, -1).contiguous()
            stride = keys.shape[1]
        self._set(attention, mask=keys, mask_stride=stride)

    def _set_stored_keys(self, cache: Cache, *, has_bias: bool) -> None:
        """The stored keys and values that self-attention reads, and where it adds the new ones."""
        own = self.self_attention
        slots = np.array([_next_slot(layer.past) for layer in cache.layers])
        ends = slots + 1
        self.program["slot"][own] = slots
        self.program["length"][own] = ends
        self.program["first"][own] = np.maximum(0, ends - self.windows)
        for index, layer in zip(own.tolist(), cache.layers, strict=True):
            assert layer.past.buffers is not None
            self._set_keys(index, *layer.past.buffers)
            if has_bias:
                # The bias of the first key that is still stored.
                self.program["score_bias"][index] += 4 * layer.past.evicted

    def _set_memories(self, cache: Cache, rows: int) -> None:
        """The keys and values of the memory that cross-attention reads."""
        for index, layer in zip(self.cross_attention.tolist(), cache.layers, strict=True):
            assert layer.memory is not None, "the prompt fills the keys of cross-attention"
            shared, _, length, _ = layer.memory[0].shape
            self._set_memory(index, *layer.memory)
            self.program[index]["length"] = length
            self.program[index]["beams"] = rows // shared

    def _execute(self, rows: int) -> None:
        """All instructions, and the matmuls of the library between them."""
        start = 0
        for matmuls in self.matmuls:
            stop = matmuls[0].finish
            execute(self.program[start:stop])
            # Kept until the next instructions have read them.
            products = [matmul.execute(rows) for matmul in matmuls]
            for matmul, product in zip(matmuls, products, strict=True):
                self.program["x"][matmul.finish] = product.data_ptr()
            start = stop
        execute(self.program[start:])

    def is_observed(self) -> bool:
        """Whether something reads the values between instructions: hook points or hooks."""
        return self.hooks.any()

    def _memory_rows(self, cache: Cache) -> int:
        memory = cache.layers[0].memory
        assert memory is not None, "the prompt fills the keys of cross-attention"
        return len(memory[0])

    def _set(self, indices: NDArray[np.int64], **fields: Field) -> None:
        """Set fields of some instructions for this step."""
        self.alive += [value for value in fields.values() if isinstance(value, Tensor)]
        set_fields(self.program, indices, **fields)

    def _set_memory(self, index: int, keys: Tensor, values: Tensor) -> None:
        """Let cross-attention read the keys and values of a memory; copies if their layouts differ,
        as after a norm of the keys.
        """
        if self.memories.get(index) is keys:
            return
        self.memories[index] = keys
        if keys.stride() != values.stride() or keys.stride(3) != 1:
            keys = keys.contiguous()
            values = values.contiguous()
        self._set_keys(index, keys, values)

    def _set_keys(self, index: int, keys: Tensor, values: Tensor) -> None:
        """Let an attention instruction read these keys and values, of one layout."""
        if index in self.read and self.read[index][0] is keys:
            return
        assert keys.stride() == values.stride() and keys.stride(3) == 1
        assert keys.dtype is values.dtype and keys.dtype in DTYPES
        self.read[index] = keys, values
        strides = dict(
            zip(("row_stride", "head_stride", "key_stride"), keys.stride(), strict=False)
        )
        kind = DTYPES[keys.dtype]
        set_fields(self.program, index, keys=keys, values=values, dtype=kind, **strides)


def _next_slot(keys: GrowingKeys) -> int:
    """Where in the buffers the next token belongs."""
    assert keys.buffers is not None, "the first tokens are appended by update"
    keys.reserve(1, keys.buffers)
    return keys.filled


def _float(vector: Tensor | None) -> Tensor | None:
    """A bias or norm weight in fp32."""
    return None if vector is None else vector.detach().float().contiguous()


def _layers_rotated_alike(stack: Stack) -> list[list[int]]:
    """The layers of each of the rotations of a stack."""
    found = dict[Any, list[int]]()
    for layer, rotary in enumerate(() if stack.rotary is None else stack.rotary.of_layer):
        if rotary is not None:
            found.setdefault(rotary, []).append(layer)
    return [*found.values()]
