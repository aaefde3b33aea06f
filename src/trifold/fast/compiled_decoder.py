"""A stack written down as lines for step_loops.py: once for each cache, and then filled in at every step.

What changes from step to step: where the new keys go, how many there are, the offsets and angles of their position.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trifold.fast import instruction as line_of
from trifold.fast.instruction import (
    ATTENTION,
    FLOAT,
    FROM_BYTES,
    LAYER,
    LINE,
    NORM,
    PRODUCT,
    RMS,
    SET,
    TO_BYTES,
)
from trifold.fast.int8 import Int8
from trifold.fast.thread_pool import KINDS, deal, matrix_fields, work_off
from trifold.nn.attention import Attention
from trifold.nn.cache import Cache, LayerCache
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import FeedForward, Linear, Residual, RMSNorm
from trifold.nn.masks import Mask
from trifold.nn.rotary import Rotations

Aside: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""A product between two lines: bytes (R, K), weights (K, N), and where the sums go (R, N)."""


def parts(block: Any) -> list[Any]:
    """The residuals or branches of a block, in their order."""
    names = ("self_attention", "cross_attention", "feed_forward")
    return [getattr(block, name) for name in names if getattr(block, name, None) is not None]


class Program:
    """The lines of one stack, for at most so many rows, the memory they work in, and what they read, kept alive.

    whole: products are of bytes with bytes, and a library's; else they are lines as well.
    """

    def __init__(self, stack: Any, like: Tensor, most: int, *, whole: bool) -> None:
        self.most, self.whole = most, whole
        self.hook_points = [module for module in stack.modules() if isinstance(module, HookPoint)]
        self.kept: list[Tensor] = []
        self.rooms: dict[tuple[object, ...], Tensor] = {}
        self.asides: list[tuple[int, list[Aside]]] = []
        self.bytes_of: tuple[float, Tensor, Tensor] | None = (
            None  # what was rounded last, and has not changed since
        )
        self.written: list[dict[str, float]] = []
        self.own: list[int] = []  # the lines of self-attention, one a layer
        self.crossing: list[int] = []  # … and of cross-attention
        self.windows = stack.windows
        self.x, self.normed, self.exit = (
            self._room(name, like.shape[-1]) for name in ("x", "normed", "exit")
        )
        for number in stack.order:
            self._block(stack.blocks[number])
        self._norm(stack.final_norm, self.x, self.x)
        lines: Any = np.zeros(len(self.written), LINE)
        self.lines = lines
        for line, fields in zip(self.lines, self.written, strict=True):
            for name, value in fields.items():
                line[name] = value
        ops = self.lines["op"]
        heads = np.where(ops == ATTENTION, self.lines["kv_heads"], 1)
        self.units_of_a_row = np.where(ops == PRODUCT, 0, heads)
        self.at_own, self.at_crossing = np.array(self.own), np.array(self.crossing, dtype=np.int64)
        self.rows = 0
        self.seen: list[Tensor | None] = [None] * len(self.written)

    # --- writing the lines -----------------------------------------------------------------------------

    def _room(self, *name: object, dtype: torch.dtype = torch.float32) -> Tensor:
        """(most, the last of the name): the layers work one after the other in the same memory."""
        width = name[-1]
        assert isinstance(width, int)
        if name not in self.rooms:
            self.rooms[name] = torch.zeros(self.most, width, dtype=dtype)
        return self.rooms[name]

    def _write(self, **fields: float) -> int:
        if self.bytes_of is not None and self.bytes_of[0] == fields["out"]:
            self.bytes_of = None
        self.written.append({"waits": 1, **fields})
        return len(self.written) - 1

    def _code(self, name: str) -> int:
        """The number that stands for a way of writing or an activation."""
        return int(getattr(line_of, name.upper().replace("-", "_")))

    def _vector(self, vector: Tensor | None) -> int:
        """The address of a bias or a norm's weight in fp32; 0 where there is none."""
        if vector is None:
            return 0
        self.kept.append(wide := vector.detach().float().contiguous())
        return wide.data_ptr()

    def _norm(self, norm: Any, x: Tensor, out: Tensor, mode: str = "SET") -> Tensor:
        """Written where there is a norm; gives what holds the result."""
        if isinstance(norm, nn.Identity):
            return x
        self._write(
            op=NORM,
            norm=RMS if isinstance(norm, RMSNorm) else LAYER,
            **{"inputs": x.shape[1], "x": x.data_ptr(), "out": out.data_ptr()},
            weight=self._vector(norm.weight),
            bias=self._vector(getattr(norm, "bias", None)),
            epsilon=norm.epsilon,
            mode=self._code(mode),
        )
        return out

    def _product(
        self,
        layer: Linear,
        x: Tensor,
        out: Tensor,
        mode: str = "SET",
        activation: str = "none",
        waits: int = 1,
    ) -> Tensor:
        weight = layer.weight
        self.kept += [weight.values, weight.scales] if isinstance(weight, Int8) else [weight.detach()]
        finish: dict[str, float] = {"bias": self._vector(layer.bias), "activation": self._code(activation)}
        finish |= {"mode": self._code(mode), "out": out.data_ptr(), "waits": waits}
        if self.whole:
            assert isinstance(weight, Int8)
            self._aside(weight, x, out, finish)
        else:
            self._write(**matrix_fields(weight), x=x.data_ptr(), **finish)
        return out

    def _aside(self, weight: Int8, x: Tensor, out: Tensor, finish: dict[str, float]) -> None:
        """x as bytes, unless it lies there already; the library's product; the line that makes numbers of its sums.

        A product that waits for nothing is made together with the one before it.
        """
        outputs, inputs = weight.shape
        if self.bytes_of is None or self.bytes_of[0] != x.data_ptr():
            small = self._room("bytes", inputs, dtype=torch.int8)
            scales = self._room("scales", len(self.asides), 1)
            kind = {"op": TO_BYTES, "kind": FLOAT, "inputs": inputs, "x": x.data_ptr()}
            self._write(**kind, out=small.data_ptr(), scales=scales.data_ptr())
            self.bytes_of = x.data_ptr(), small, scales
        _, small, scales = self.bytes_of
        if finish["waits"]:
            self.asides.append((len(self.written), []))
        together = self.asides[-1][1]
        # Numbers may take the place of their sums, unless they are added to others.
        alone = finish["mode"] == SET
        sums = out.view(torch.int32) if alone else self._room("sums", outputs, dtype=torch.int32)
        together.append((small, weight.values.t(), sums))
        fields = {"op": FROM_BYTES, "kind": FLOAT, "outputs": outputs, "x": sums.data_ptr()}
        self._write(**fields, weight=scales.data_ptr(), scales=weight.scales.data_ptr(), **finish)

    def _block(self, block: Any) -> None:
        inside = parts(block)
        if isinstance(inside[0], Residual):
            for number, part in enumerate(inside):
                entered = self._norm(part.enter, self.x, self.normed)
                aside = not isinstance(part.exit, nn.Identity)
                out, mode = (self.exit, "SET") if aside else (self.x, "ADD")
                self._sublayer(part.sublayer, entered, out, mode, crosses=0 < number < len(inside) - 1)
                if aside:
                    self._norm(part.exit, out, self.x, "ADD")
                self._norm(part.after, self.x, self.x)
            return
        # Parallel: both read x before either adds to it.
        attention, feed_forward = inside
        first = self._norm(attention.enter, self.x, self.normed)
        second = self._norm(feed_forward.enter, self.x, self.exit)
        self._sublayer(attention.sublayer, first, self.x, "ADD", crosses=False)
        other = first if second is self.x else second
        self._sublayer(feed_forward.sublayer, other, self.x, "ADD", crosses=False)

    def _sublayer(self, layer: Any, x: Tensor, out: Tensor, mode: str, *, crosses: bool) -> None:
        if isinstance(layer, FeedForward):
            self._feed_forward(layer, x, out, mode)
        else:
            assert isinstance(layer, Attention)
            self._attention(layer, x, out, mode, crosses=crosses)

    def _feed_forward(self, layer: FeedForward, x: Tensor, out: Tensor, mode: str) -> None:
        inner = self._room("inner", layer.in_proj.weight.shape[0])
        if layer.gate_proj is None:
            self._product(layer.in_proj, x, inner, activation=layer.activation_name)
        else:
            self._product(layer.gate_proj, x, inner, activation=layer.activation_name)
            self._product(layer.in_proj, x, inner, "TIMES")
        self._product(layer.out_proj, inner, out, mode)

    def _attention(self, layer: Attention, x: Tensor, out: Tensor, mode: str, *, crosses: bool) -> None:
        width = layer.q_proj.weight.shape[0]
        kv_width = layer.k_proj.weight.shape[0]
        q, seen = self._room("q", width), self._room("seen", width)
        self._product(layer.q_proj, x, q)
        fields: dict[str, float] = {"x": q.data_ptr(), "out": seen.data_ptr(), "width": layer.head_width}
        fields |= {"heads": width // layer.head_width, "kv_heads": kv_width // layer.head_width}
        fields |= {"scale": layer.query_scale / math.sqrt(layer.head_width), "cap": layer.soft_cap or 0.0}
        if not crosses:
            projections = {"k": layer.k_proj, "v": layer.v_proj}
            new = [self._product(y, x, self._room(n, kv_width), waits=0) for n, y in projections.items()]
            fields |= {"new_keys": new[0].data_ptr(), "new_values": new[1].data_ptr()}
        line = self._write(op=ATTENTION, sharing=1, **fields)
        (self.crossing if crosses else self.own).append(line)
        self._product(layer.o_proj, seen, out, mode)

    # --- one step --------------------------------------------------------------------------------------

    def run(
        self,
        x: Tensor,
        mask: Mask,
        memory_mask: Mask | None,
        cache: Cache,
        bias: Tensor | None,
        rotary: Rotations | None,
    ) -> Tensor:
        """See `step`."""
        rows = x.shape[0]
        if rows != self.rows:
            self.rows, self.lines["rows"] = rows, rows
            self.lines["units"] = self.units_of_a_row * rows
            deal(self.lines)
        self.x[:rows] = x[:, 0]
        lineage = cache.current_beam_index()
        self.lines["lineage"][self.at_own] = 0 if lineage is None else lineage.data_ptr()
        self.lines["lineage_stride"][self.at_own] = 0 if lineage is None else lineage.shape[1]
        alive = [self._offsets(bias, rows), self._angles(rotary), self._marks(mask.keys, self.at_own)]
        if memory_mask is not None:
            alive.append(self._marks(memory_mask.keys, self.at_crossing))
        for place, (layer, window) in enumerate(zip(cache.layers, self.windows, strict=True)):
            self._own_keys(self.own[place], layer, window, bias)
            if self.crossing:
                self._memory_keys(self.crossing[place], layer, rows)
        start = 0
        for stop, together in self.asides:
            work_off(self.lines[start:stop])
            for small, weight, sums in together:
                torch._int_mm(small[:rows], weight, out=sums[:rows])
            start = stop
        work_off(self.lines[start:])
        for layer in cache.layers:
            layer.own.advance()
        del alive  # what the lines read by its address
        return self.x[:rows, None].to(x.dtype, copy=True)

    def _own_keys(self, line: int, layer: LayerCache, window: int | None, bias: Tensor | None) -> None:
        own = layer.own
        slot = own.next_slot()
        assert own.buffers is not None
        self._keys(line, own.buffers)
        fields = self.lines[line]
        fields["slot"], fields["length"] = slot, slot + 1
        if window is not None:
            fields["first"] = max(0, slot + 1 - window)
        if bias is not None and own.evicted:
            fields["offsets"] += 4 * own.evicted  # of the keys that are still there

    def _memory_keys(self, line: int, layer: LayerCache, rows: int) -> None:
        assert layer.memory.buffers is not None, "the prompt fills the keys of cross-attention"
        keys, values = layer.memory.buffers
        self._keys(line, (keys, values))
        self.lines[line]["length"], self.lines[line]["sharing"] = keys.shape[2], rows // keys.shape[0]

    def _keys(self, line: int, held: tuple[Tensor, Tensor]) -> None:
        """Where keys and values lie, said again where they have moved."""
        if self.seen[line] is held[0]:
            return
        keys, values = held
        assert keys.stride() == values.stride() and keys.stride(3) == 1 and keys.dtype in KINDS
        self.seen[line] = keys
        fields = self.lines[line]
        fields["keys"], fields["values"] = keys.data_ptr(), values.data_ptr()
        fields["row_stride"], fields["head_stride"], fields["key_stride"] = keys.stride()[:3]
        fields["kind"] = KINDS[keys.dtype]

    def _offsets(self, bias: Tensor | None, rows: int) -> Tensor | None:
        """(B or 1, H, 1, S)."""
        if bias is None:
            return None
        wide = bias.float().contiguous()
        self.lines["offsets"][self.at_own] = wide.data_ptr()
        self.lines["offsets_head"][self.at_own] = wide.stride(1)
        self.lines["offsets_row"][self.at_own] = wide.stride(0) if wide.shape[0] == rows > 1 else 0
        return wide

    def _angles(self, rotary: Rotations | None) -> list[Tensor]:
        """cos and sin (B or 1, 1, 1, R/2) of the new tokens."""
        if rotary is None:
            return []
        turn = rotary.queries
        cos, sin = (wave.float().contiguous() for wave in (turn.cos, turn.sin))
        lines = self.lines
        lines["cos"][self.at_own], lines["sin"][self.at_own] = cos.data_ptr(), sin.data_ptr()
        lines["turned"][self.at_own], lines["interleaved"][self.at_own] = 2 * cos.shape[-1], turn.interleaved
        lines["turn_stride"][self.at_own] = cos.shape[-1] if cos.shape[0] > 1 else 0
        return [cos, sin]

    def _marks(self, keys: Tensor | None, lines: NDArray[np.int64]) -> Tensor | None:
        """(B, S) which keys are real."""
        marks = None if keys is None else keys.contiguous()
        self.lines["allowed"][lines] = 0 if marks is None else marks.data_ptr()
        self.lines["allowed_stride"][lines] = 0 if marks is None else marks.shape[1]
        return marks
