"""One more token of each row as one program, from tokens to logits; replaces `nn.ops.next_logits`.

The compiled decoder executes the layers of a stack, between operators for the embedding, the
positions, the masks and the logits. Each operator is fast, but its code and its values are no
longer in the caches of a processor that has just read all weights: together they take as long as
the layers of a small model. So a step of few rows without padding, after one that was compiled,
consists of the instructions of the layers, one before them that looks up the embeddings, and those
of the head.

The program is made again whenever something else happened to the cache: more memory, other rows,
removed tokens. The plain step runs for everything that is not supported (`supports_token_step`).
The results have the same bits.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.fast import instruction as ins, is_eager_cpu
from trifold.fast.beam_index import current_index
from trifold.fast.block_layout import lay_out_before_steps
from trifold.fast.block_weight import BlockWeight
from trifold.fast.compiled_decoder import UNLIMITED, CompiledDecoder, HookSearch
from trifold.fast.decoding_step import Translation, translation_of
from trifold.fast.layers import supports_few_row_linear
from trifold.fast.openmp import adapt_to_contention
from trifold.fast.thread_pool import (
    DTYPES,
    Array,
    Field,
    divide_into_tasks,
    execute,
    is_readable,
    matmul_fields,
    set_fields,
)
from trifold.nn.cache import Cache, GrowingKeys, StaticKeys
from trifold.nn.embeddings import Embeddings, TokenEmbedding
from trifold.nn.heads import LanguageModelHead
from trifold.nn.losses import soft_capped
from trifold.nn.masks import Mask
from trifold.nn.ops import next_logits as plain_next_logits
from trifold.nn.positions import LearnedPositions, NoPositions, SinusoidalPositions
from trifold.nn.rotary import LayerRotations, Rotary
from trifold.nn.stack import Stack
from trifold.nn.transformer import Transformer

POSITIONS = 64  # whose angles are computed at a time
Head = Callable[[Tensor], Tensor]


def next_logits(
    model: Any, head: Head, tokens: Tensor, attend: Tensor | None, memory: Any, cache: Cache
) -> Tensor:
    """See `nn.ops.next_logits`."""
    if not torch.is_grad_enabled():
        lay_out_before_steps(model)
    if attend is not None or memory is not None or torch.is_grad_enabled():
        return plain_next_logits(model, head, tokens, attend, memory, cache)
    known = _steps.get(cache)
    if isinstance(known, TokenStep) and known.can_run(model, head, tokens, cache):
        return known.run(tokens)
    logits = plain_next_logits(model, head, tokens, attend, memory, cache)
    _prepare_next(model, head, cache, known)
    return logits


class Unsupported(NamedTuple):
    """A translation for which there is no program."""

    translation: Translation


def _prepare_next(
    model: Any, head: Head, cache: Cache, known: "TokenStep | Unsupported | None"
) -> None:
    """Make the program of the next steps, if the last one was compiled."""
    translation = translation_of(cache)
    if translation is None or translation.decoder is None or current_index(cache) is not None:
        return
    if isinstance(known, Unsupported) and known.translation is translation:
        return
    decoder = translation.decoder
    if supports_token_step(model, head, cache, decoder):
        _steps[cache] = TokenStep(model, head, cache, decoder)
    else:
        _steps[cache] = Unsupported(translation)


# --- conditions -----------------------------------------------------------------------------------


def supports_token_step(model: Any, head: Any, cache: Cache, decoder: CompiledDecoder) -> bool:
    """Whether the embedding, the positions and the head have instructions, and no layer has a
    window or a bias.
    """
    return (
        type(model) is Transformer
        and model.encoder is None
        and model.projection is None
        and not decoder.matmuls
        and _has_plain_keys(cache)
        and _has_plain_embedding(model.decoder_embeddings)
        and _has_plain_positions(model.decoder, decoder)
        and _has_plain_head(head, decoder.rows)
    )


def _has_plain_keys(cache: Cache) -> bool:
    kinds = {type(layer.past) for layer in cache.layers}
    return cache.inputs is None and kinds <= {GrowingKeys, StaticKeys}


def _has_plain_embedding(embeddings: Any) -> bool:
    """Whether it looks up a row, scales it and adds a vector of the position."""
    if type(embeddings) is not Embeddings or type(embeddings.tokens) is not TokenEmbedding:
        return False
    others = (embeddings.norm, embeddings.token_types, embeddings.projection)
    if any(other is not None for other in others) or embeddings.drop.active:
        return False
    weight = embeddings.tokens.weight
    if not is_readable(weight) or weight.dtype not in DTYPES:
        return False
    table = _position_table(embeddings.positions)
    if table is None:
        return type(embeddings.positions) is NoPositions
    return table.dtype is weight.dtype and is_readable(table)


def _position_table(positions: Any) -> Tensor | None:
    """The vectors that are added by position."""
    if type(positions) is LearnedPositions:
        return positions.weight.detach()[positions.offset :]
    if type(positions) is SinusoidalPositions:
        return positions.table
    return None


def _has_plain_positions(stack: Any, decoder: CompiledDecoder) -> bool:
    """Whether scores depend on positions by rotations only, whose frequencies do not change."""
    if type(stack) is not Stack or stack.rules or stack.offsets is not None:
        return False
    if bool((decoder.windows != UNLIMITED).any()):
        return False
    if stack.rotary is None:
        return True
    return type(stack.rotary) is LayerRotations and all(
        type(rotary).frequencies is Rotary.frequencies and type(rotary).rotation is Rotary.rotation
        for rotary in stack.rotary.of_layer
        if rotary is not None
    )


def _has_plain_head(head: Any, rows: int) -> bool:
    """Whether it multiplies a few rows by one matrix, which is an instruction."""
    if type(head) is not LanguageModelHead or head.dense is not None:
        return False
    x = torch.empty(rows, head.weight.shape[1])
    return supports_few_row_linear(x, head.weight, head.bias)


# --- the program ----------------------------------------------------------------------------------


class TokenStep:
    """The program of the next steps of a cache, until its memory is full.

    rows: how many rows it has. length: tokens in the cache.
    """

    def __init__(self, model: Any, head: Any, cache: Cache, decoder: CompiledDecoder) -> None:
        embeddings = model.decoder_embeddings
        self.model = model
        self.head = head
        self.vocabulary: int = head.weight.shape[0]
        self.n_embeddings: int = embeddings.tokens.weight.shape[0]
        self.soft_cap = head.soft_cap
        self.decoder = decoder
        self.hooks = HookSearch(embeddings, head)
        self.rotary = model.decoder.rotary
        self.dtype: torch.dtype = embeddings.tokens.weight.dtype
        self.rows = decoder.rows
        self.past = [layer.past for layer in cache.layers]
        self.length = cache.length
        self.buffers = self.past[0].buffers
        assert self.buffers is not None
        self.last_length = min(self.buffers[0].shape[2], _positions_of(embeddings))
        self.table = _position_table(embeddings.positions)
        self.alive: list[Tensor] = []
        first = self._embedding(embeddings)
        last = self._logits(head)
        self.program: Array = np.concatenate([first, decoder.program, last])
        self.attention = decoder.self_attention + len(first)
        self.angles = [self._rotation(layers) for layers in decoder.rotated_alike]
        # The fields that change at every step.
        self.address_of_tokens = self.program["x"]
        self.address_of_logits = self.program["out"]
        self.address_of_position = self.program["bias"]
        self.slots = self.program["slot"]
        self.lengths = self.program["length"]

    def _instructions(self, *fields: dict[str, Field]) -> Array:
        """Instructions for all rows."""
        rounds = int(self.dtype is torch.bfloat16)
        program = np.zeros(len(fields), ins.INSTRUCTION)
        for number, each in enumerate(fields):
            shared: dict[str, Field] = {"rows": self.rows, "waits": 1, "rounds": rounds}
            set_fields(program, number, **shared, **each)
            self.alive += [value for value in each.values() if isinstance(value, Tensor)]
        divide_into_tasks(program)
        return program

    def _embedding(self, embeddings: Any) -> Array:
        """Tokens -> the states that the first layer reads."""
        weight = embeddings.tokens.weight
        fields = matmul_fields(weight)
        is_block = isinstance(weight, BlockWeight)
        fields["opcode"] = ins.BLOCK_EMBED if is_block else ins.EMBED
        fields["scale"] = embeddings.scale
        if embeddings.rounds_scale:
            fields["scale"] = float(torch.tensor(embeddings.scale, dtype=self.dtype))
        return self._instructions(fields | {"units": self.rows, "out": self.decoder.x})

    def _logits(self, head: Any) -> Array:
        """The states after the last layer -> logits."""
        x = torch.zeros(self.rows, head.weight.shape[1])
        bias = None if head.bias is None else head.bias.detach().float().contiguous()
        scaling: dict[str, Field] = {"opcode": ins.SCALE, "scale": head.scale, "inputs": x.shape[1]}
        scaling |= {"units": self.rows, "x": self.decoder.x, "out": x}
        return self._instructions(scaling, {**matmul_fields(head.weight), "x": x, "bias": bias})

    def _rotation(self, layers: list[int]) -> "_Angles":
        """The angles of some layers, from the current position on."""
        angles = _Angles(self.rotary.of_layer[layers[0]], self.dtype)
        shared = angles.interleaved, angles.width
        fields = dict(zip(("interleaved", "rotary_width"), shared, strict=True))
        addresses = {"cos": angles.cos.ctypes.data, "sin": angles.sin.ctypes.data}
        indices = self.attention[layers]
        set_fields(self.program, indices, **fields, **addresses, rotary_stride=0)
        return angles

    def can_run(self, model: Any, head: Head, tokens: Tensor, cache: Cache) -> bool:
        """Whether nothing has happened since the last step that this one does not know."""
        return (
            model is self.model
            and head is self.head
            and len(tokens) == self.rows
            and self.length == cache.length
            and self.length < self.last_length
            and self.past[0].buffers is self.buffers
            and current_index(cache) is None
            and is_eager_cpu(tokens)
            and self._has_rows(tokens)
            and not model.training
            and not (self.hooks.any() or self.decoder.is_observed())
        )

    def _has_rows(self, tokens: Tensor) -> bool:
        """Whether the table of embeddings has rows for the tokens; the instruction cannot check."""
        return all(0 <= token < self.n_embeddings for token in tokens.tolist())

    def run(self, tokens: Tensor) -> Tensor:
        """See `nn.ops.next_logits`."""
        adapt_to_contention()
        position = self.length
        logits = torch.empty(self.rows, self.vocabulary)
        tokens = tokens.contiguous()
        self.address_of_tokens[0] = tokens.data_ptr()
        self.address_of_logits[-1] = logits.data_ptr()
        if self.table is not None:
            self.address_of_position[0] = self.table[position].data_ptr()
        self.slots[self.attention] = position
        self.lengths[self.attention] = position + 1
        for angles in self.angles:
            angles.move(position)
        execute(self.program)
        for keys in self.past:
            keys.advance(1)
        self.length += 1
        return soft_capped(logits, self.soft_cap)


_steps: WeakKeyDictionary[Cache, TokenStep | Unsupported] = WeakKeyDictionary()


def _positions_of(embeddings: Embeddings) -> int:
    """How many tokens a row may have."""
    return embeddings.max_positions if embeddings.is_limited else UNLIMITED


class _Angles:
    """cos and sin (R/2,) of the angles of one position. They are computed for some at a time."""

    def __init__(self, rotary: Rotary, dtype: torch.dtype) -> None:
        self.rotary = rotary
        self.like = torch.empty(0, dtype=dtype)
        self.first = -POSITIONS
        self.table: tuple[NDArray[np.float32], NDArray[np.float32]]
        self._compute(0)
        self.cos, self.sin = (each[0].copy() for each in self.table)

    @property
    def width(self) -> int:
        """The dimensions that are rotated."""
        return 2 * len(self.cos)

    @property
    def interleaved(self) -> bool:
        """Whether neighbours are pairs."""
        return self.rotary.interleaved

    def move(self, position: int) -> None:
        """To the angles of this position."""
        if not self.first <= position < self.first + POSITIONS:
            self._compute(position)
        for own, table in zip((self.cos, self.sin), self.table, strict=True):
            own[:] = table[position - self.first]

    def _compute(self, first: int) -> None:
        self.first = first
        positions = torch.arange(first, first + POSITIONS)[None]
        rotation = self.rotary.rotation(positions, Mask(causal=True, offset=first), self.like)
        cos, sin = (each[0, 0].float().numpy() for each in (rotation.cos, rotation.sin))
        self.table = cos, sin
