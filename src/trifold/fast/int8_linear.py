"""Int8 weights times many rows of bf16, and feed-forward networks of such weights.

The rows are quantized too. On several threads, instructions of the interpreter do that before and
after the matmul, with symmetric ranges. A thread of its own (`thread_pool.map_on`) calls loops,
whose ranges may be asymmetric, which is more exact: they cost one subtraction more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trifold.fast import as_array, compiled_interpreter, compiled_loops, is_eager_cpu
from trifold.fast.instruction import BFLOAT16, DEQUANTIZE, QUANTIZE
from trifold.fast.int8 import Int8Weight
from trifold.fast.processor import has_int8_products
from trifold.fast.thread_pool import DTYPES, execute_one
from trifold.nn.layers import FeedForward, Linear

MIN_INT8_WEIGHTS = 2**16  # elements of a weight from which quantizing rows is worthwhile


def is_int8(layer: nn.Module) -> bool:
    """Whether a layer is nothing but the product with a matrix in int8: no adapter, no hook."""
    return type(layer) is Linear and isinstance(layer.weight, Int8Weight) and not has_hooks(layer)


def int8_weight(layer: Linear) -> Int8Weight:
    """The weight of a layer that `is_int8`."""
    weight: Any = layer.weight
    assert isinstance(weight, Int8Weight), "see `is_int8`"
    return weight


def has_hooks(layer: nn.Module) -> bool:
    """Whether functions are called before or after a layer."""
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    return any(hooks)


def supports_int8_linear(x: Tensor, weight: Int8Weight) -> bool:
    """Whether x (..., K) is bf16 and has no gradient, and the weight is not small."""
    return (
        x.dtype is torch.bfloat16
        and weight.shape[0] * weight.shape[1] >= MIN_INT8_WEIGHTS
        and not torch.is_grad_enabled()
        and is_eager_cpu(x)
        and compiled_interpreter() is not None
        and has_int8_products()
    )


def int8_linear(
    x: Tensor, weight: Int8Weight, bias: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    """x (..., K) · weight (N, K)ᵀ + bias (N,) -> (..., N) of `dtype`, by default that of x.

    x is quantized row by row, which costs about as much precision as the quantization of the
    weight.
    """
    if torch.get_num_threads() == 1 and compiled_loops() is not None:
        return int8_rows_linear(quantize_rows(x, weight.factors), weight, bias, dtype or x.dtype)
    x = weight.scaled(x).contiguous()
    outputs, inputs = weight.shape
    rows = x.numel() // inputs
    x_int8 = torch.empty(rows, inputs, dtype=torch.int8)
    x_scales = torch.empty(rows)
    sizes = {"rows": rows, "units": rows}
    execute_one(
        opcode=QUANTIZE, dtype=BFLOAT16, **sizes, inputs=inputs, x=x, out=x_int8, scales=x_scales
    )
    sums = torch._int_mm(x_int8, weight.values.t())
    dtype = dtype or x.dtype
    shape = (*x.shape[:-1], outputs)
    # fp32 results overwrite their int32 sums.
    out = (
        sums.view(dtype).view(shape) if dtype is torch.float32 else torch.empty(shape, dtype=dtype)
    )
    bias = None if bias is None else bias.float()
    fields = {"x": sums, "weight": x_scales, "scales": weight.scales, "bias": bias, "out": out}
    execute_one(opcode=DEQUANTIZE, dtype=DTYPES[out.dtype], **sizes, outputs=outputs, **fields)
    return out


class QuantizedRows(NamedTuple):
    """Rows (R, K) ≈ (values int8 - zeros) · scales, with scales and zeros (R,).

    shape: theirs before they became a matrix.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor
    shape: torch.Size

    @classmethod
    def empty(cls, shape: torch.Size) -> QuantizedRows:
        """Memory for rows."""
        values = torch.empty(shape, dtype=torch.int8).view(-1, shape[-1])
        scales = torch.empty(2, len(values))
        return cls(values, scales[0], scales[1], shape)

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """Values, scales and zeros, for the loops."""
        return [as_array(each) for each in self[:3]]


def quantize_rows(x: Tensor, factors: Tensor | None = None) -> QuantizedRows:
    """x (..., K) times the factors (K,), on this thread; the range of a row may be asymmetric."""
    rows = QuantizedRows.empty(x.shape)
    array = None if factors is None else as_array(factors)
    compiled_loops().quantize_rows(as_array(x).reshape(-1, x.shape[-1]), array, *rows.arrays)
    return rows


def int8_rows_linear(
    rows: QuantizedRows, weight: Int8Weight, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The rows (..., K) · weight (N, K)ᵀ + bias (N,) -> (..., N), on this thread."""
    out = torch.empty(*rows.shape[:-1], len(weight), dtype=dtype)
    fields = _products(rows, weight, bias)
    compiled_loops().dequantize_rows(*fields, as_array(out).reshape(-1, len(weight)))
    return out


def _products(rows: QuantizedRows, weight: Int8Weight, bias: Tensor | None) -> list[NDArray[Any]]:
    """The int32 sums (R, N) of rows and a weight, and what they are dequantized with."""
    sums = torch._int_mm(rows.values, weight.values.t())
    if bias is None:
        bias = torch.zeros(len(weight))
    factors = (rows.scales, rows.zeros, weight.scales, weight.sums, bias.float())
    return [as_array(each) for each in (sums, *factors)]


def feed_forward(layer: FeedForward, x: Tensor) -> Tensor:
    """See `nn.ops.feed_forward`. With int8 weights, the inner activations are written in int8."""
    if not supports_int8_feed_forward(layer, x):
        return layer.transform(x)
    return int8_feed_forward(layer, x)


def supports_int8_feed_forward(layer: FeedForward, x: Tensor) -> bool:
    """Whether one thread computes the layer, which is that of the paper with GELU and has int8
    weights that `int8_linear` supports.
    """
    if type(layer) is not FeedForward or layer.watched:
        return False
    if layer.gate_proj is not None or layer.activation_name != "gelu":
        return False
    weights = (layer.in_proj, layer.out_proj)
    if not all(is_int8(each) and supports_int8_linear(x, int8_weight(each)) for each in weights):
        return False
    return torch.get_num_threads() == 1  # not before: this call divides the graph of a block


def int8_feed_forward(layer: FeedForward, x: Tensor) -> Tensor:
    """x (..., E) -> (..., E)."""
    inner = int8_weight(layer.in_proj)
    fields = _products(quantize_rows(x, inner.factors), inner, layer.in_proj.bias)
    rows = QuantizedRows.empty(torch.Size((*x.shape[:-1], len(inner))))
    compiled_loops().requantize_gelu(*fields, *rows.arrays)
    return int8_rows_linear(rows, int8_weight(layer.out_proj), layer.out_proj.bias, x.dtype)
