"""BP-Transformer: attention to near tokens, and to spans of far ones    (Ye et al. 2019, section 3)

Span p of level l has the tokens p·2^l to (p + 1)·2^l − 1; a token is a span of level 0. The spans
of the levels 1, 2, … have states too, which are 0 before the first layer. In every layer

    a span attends to its tokens;
    a token attends to itself and, on each side (in a decoder only before it), to the nearest k
    tokens, then to the next k spans of level 1, and so on to the end of the text, with scores
    s_ij = q_i·k_j / √D + b[side, level, place].

If the k spans of a level end inside a span of the next level, its other half has the first place
there. So a token reads every other token once, and all of them k·n·log(n / k) keys. As in the
authors' program, far levels share their b; here b is a number per head, and not the product of the
query and a vector. Shapes: B batch, T tokens, M spans, E width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn import ops
from trifold.nn.attention import Attention, AttentionInputs
from trifold.nn.cache import Cache, GrowingKeys
from trifold.nn.config import CoreConfig
from trifold.nn.inputs import Request
from trifold.nn.masks import Mask, MaskPart, PairBias, PairTable, RealFirst, Rule
from trifold.nn.parts import ScoresPart, UnscoredPart, part_of
from trifold.nn.problems import Problems, defaults
from trifold.nn.stack import Stack
from trifold.nn.walk import LayerInputs
from trifold.settings import Conflict

LEVELS = 10  # this level and all above it share their b


def level_starts(tokens: int, k: int) -> tuple[int, ...]:
    """Where in a row of tokens and spans each level starts, and the last one ends. Every level
    covers all tokens; some token reads a span of the last one or of the one before it.
    """
    levels = max(tokens // k, 1).bit_length()
    whole = -(-tokens >> levels) << levels
    return (0, *(tokens + whole - (whole >> level) for level in range(levels + 1)))


def offset_rows(config: CoreConfig) -> int:
    """Sides, levels and places."""
    return (1 if config.shape == "decoder" else 2) * (LEVELS + 1) * (config.span_keys + 2)


def walk(tokens: Tensor, k: int, levels: int) -> Iterator[Tensor]:
    """For levels 0, 1, …, (3, T): a token reads the spans low ≤ p < high on its left; p has the
    place end − p.

    Its right side is the same with ~token and ~p, which are −1 − token and −1 − p.
    """
    high = end = tokens
    for _ in range(levels):
        rest = end - k
        low = rest >> 1 << 1
        yield torch.stack((low, high, end))
        high = low >> 1
        end = -(-rest >> 1)


class Spans(Rule):
    """Rows of the tokens x (B, T, E), or packed (1, N, E): the real ones first, and their M spans,
    level by level. As a rule, which of these keys a token reads.

    mask: which keys of a row are real, with this rule. all_levels: also spans that only later
    tokens read, for a cache.
    """

    blockwise = "spans"

    can_be_lifted = True
    may_forbid_all = False
    counts_real = False

    def __init__(self, mask: Mask, x: Tensor, k: int, *, all_levels: bool = False) -> None:
        count = mask.count(x)
        starts = level_starts(count, 1 if all_levels else k)
        tokens = torch.arange(count, device=x.device)
        sides = [tokens]
        if not mask.causal:
            sides.append(~tokens)
        self.k = k
        self.given = mask
        self.starts = starts
        keys = mask.real_keys(count, x.device)
        self.first = RealFirst(keys)
        self.bounds = torch.stack(
            [torch.stack([*walk(side, k, len(starts) - 1)], 1) for side in sides]
        )
        self.bounds[0, 1, 0] += 1  # a token reads itself, at place 0
        firsts = [
            torch.arange(stop - start) << level
            for level, (start, stop) in enumerate(pairwise(starts))
        ]
        real = torch.cat(firsts).to(x.device) < keys.sum(1, keepdim=True)
        self.mask = Mask(real, rules=(self,))
        self._blocks: dict[tuple[int, int], tuple[slice, Tensor]] = {}
        each = [
            span_slots(torch.tensor(level), first >> level) for level, first in enumerate(firsts)
        ]
        self.slots = torch.cat(each).clamp_max(2 * count - 1)[None].to(x.device)

    def rows(self, x: Tensor, spans: Tensor | None = None) -> Tensor:
        """The tokens, and states (B, M, E) of spans, by default 0 -> (B, T + M, E)."""
        x = self.first.move(self.given.grid(x))
        spans = (
            x.new_zeros(len(x), self.starts[-1] - self.starts[1], x.shape[2])
            if spans is None
            else spans
        )
        return torch.cat((x, spans), 1)

    def tokens(self, x: Tensor) -> Tensor:
        """(B, T + M, E) -> the tokens, where they were."""
        return self.given.flat(self.first.undo(x[:, : self.starts[1]]))

    def places(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The row of b for tokens (C, 1) and keys (…, 1, S) -> (…, C, S), -1 where a token does not
        read the key.
        """
        level = torch.bucketize(keys, torch.tensor(self.starts[1:], device=keys.device), right=True)
        span = keys - torch.tensor(self.starts, device=keys.device)[level]
        found = torch.full((), -1, device=keys.device)
        for side, bounds in enumerate(self.bounds):
            low, high, end = bounds[:, level, queries]
            mirrored = ~span if side else span  # see `walk`
            row = (side * (LEVELS + 1) + level.clamp_max(LEVELS)) * (self.k + 2) + end - mirrored
            found = row.where((low <= mirrored) & (mirrored < high), found)
        return found

    def bias(self, q: slice, k: slice | Tensor, offsets: Tensor) -> Tensor:
        """b for some tokens and keys; see `PairBias`."""
        part = MaskPart(self.mask, q, k, offsets.device)
        rows = self.places(part.query_numbers, part.key_numbers).clamp_min(0)
        return F.embedding(rows.view(1, *rows.shape[-2:]), offsets).permute(0, 3, 1, 2)

    @property
    def sentence(self) -> str:
        return f"the nearest {self.k} tokens, and spans of those farther away"

    def allowed(self, part: MaskPart) -> Tensor:
        return self.places(part.query_numbers, part.key_numbers) >= 0

    def reach(self, causal: bool) -> tuple[int, int]:
        return self.k, self.k * (len(self.bounds) - 1)

    def near(self, queries: slice, keys: int, causal: bool) -> slice:
        """The tokens that a block of tokens reads."""
        return self._block(queries)[0]

    def others(self, queries: slice, keys: int) -> tuple[Tensor, Tensor]:
        """The spans that a block of tokens reads."""
        spans = self._block(queries)[1]
        return spans, torch.ones_like(spans, dtype=torch.bool)

    def _block(self, queries: slice) -> tuple[slice, Tensor]:
        """The slice of tokens, and the spans of each higher level (1, 1, N), that a block of tokens
        reads.
        """
        if (queries.start, queries.stop) not in self._blocks:
            self._blocks[queries.start, queries.stop] = self._find_block(queries)
        return self._blocks[queries.start, queries.stop]

    def _find_block(self, queries: slice) -> tuple[slice, Tensor]:
        firsts = torch.tensor(self.starts)
        read = []
        for side, (low, high, _) in enumerate(self.bounds[..., queries].cpu()):
            first = low.amin(1)
            last = high.amax(1)
            if side:  # low ≤ ~p < high is −high ≤ p < −low
                first = -high.amax(1)
                last = -low.amin(1)
            first = first.clamp_min(0) + firsts[:-1]
            last = last.minimum(firsts.diff()) + firsts[:-1]
            pairs = torch.stack((first, last), 1).tolist()
            read += [torch.arange(*each) for each in pairs if each[0] < each[1]]
        keys = torch.cat(read).unique()
        tokens = keys[keys < firsts[1]].tolist()
        spans = keys[keys >= firsts[1]]
        return slice(tokens[0], tokens[-1] + 1), spans[None, None].to(self.bounds.device)


class SpanStep(Spans):
    """Rows of one token more, for a decoder with a cache, and of the spans that end with it: (B, 1
    + L, E).

    own: (B or 1, 1) the position of the token in its row. read: (B or 1, N), where in the cache the
    token finds its keys, which of them exist, and their rows of b. Where fewer than L spans end,
    nothing reads the others.
    """

    def __init__(self, mask: Mask, x: Tensor, k: int) -> None:
        count = mask.offset + 1
        self.own = mask.positions(1, x.device)[:, -1:]
        ends = (self.own + 1) & -(self.own + 1)  # tokens of the longest span that ends
        self.levels = torch.arange(int(ends.max()).bit_length(), device=x.device)
        self.given = Mask()
        self.starts = (0, 1, len(self.levels))
        self.first = RealFirst(torch.ones_like(self.own[:1], dtype=torch.bool))
        done = (1 << self.levels <= ends) & (mask.keys is None or mask.keys[:, -1:])
        self.slots = span_slots(self.levels, self.own >> self.levels).where(done, 2 * count - 1)
        levels = torch.arange(len(level_starts(count, k)) - 1, device=x.device)[:, None]
        low, high, end = torch.stack([*walk(self.own, k, len(levels))], 2)  # (B or 1, levels, 1)
        high = high + (levels == 0)
        spans = high - 1 - torch.arange(k + 2, device=x.device)
        exist = spans >= low.clamp_min(0)
        rows = (levels.clamp_max(LEVELS) * (k + 2) + end - spans).where(exist, 0)
        slots = span_slots(levels, spans).where(exist, 0)
        self.read = slots.flatten(1), exist.flatten(1), rows.flatten(1)
        self.mask = Mask(rules=(self,))


def span_slots(levels: Tensor, spans: Tensor) -> Tensor:
    """Where a cache stores spans: in the order of their last tokens, the shorter one first."""
    last = (spans + 1 << levels) - 1
    return levels + sum(last >> level for level in range(int(last.max()).bit_length() + 1))


class SpanKeys(GrowingKeys):
    """Keys and values of tokens and of the spans that end with them: n tokens have
    less than 2·n.
    """

    slots_per_token = 2

    def put(
        self, slots: Tensor, keys: Tensor, values: Tensor, tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values (B, H, N, D) of so many tokens more at slots (B or 1, N); return
        all that are stored. The last slot, 2·n − 1, is for what nothing reads.
        """
        stored_keys, stored_values = self.reserve(tokens, (keys, values))
        self.advance(tokens)
        for buffer, new in ((stored_keys, keys), (stored_values, values)):
            buffer.scatter_(2, slots[:, None, :, None].expand(new.shape), new)
        return stored_keys[:, :, : self.filled], stored_values[:, :, : self.filled]


class SpanAttention(Attention):
    """Self-attention of rows of tokens and spans. `offsets` (rows, H) is b. Hook points show the
    queries of tokens.
    """

    stores_keys = False

    def __init__(self, config: CoreConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.offsets = nn.Parameter(torch.empty(offset_rows(config), config.n_heads))

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """See `Attention.weigh`."""
        mask = inputs.mask
        spans = inputs.mask.rule(Spans)
        assert spans is not None, "the stack adds the spans"
        if inputs.cache is not None:
            assert isinstance(inputs.cache.past, SpanKeys), "see `SpanPart.new_keys`"
            stored = inputs.cache.past.put(spans.slots, k, v, spans.starts[1])
            if isinstance(spans, SpanStep):
                return self._step(q, *stored, spans)
        assert mask.keys is not None, "see `Spans`"
        q, k, v = ops.share_keys(q, k, v)
        tokens = spans.starts[1]
        inputs = inputs._replace(bias=PairBias((self.offsets,), spans.bias))
        outs = [super().weigh(q[:, :, :tokens], k, v, inputs)]
        # Every span attends to its tokens. Each level covers 2 tokens for each span of level 1.
        padding = 2 * (spans.starts[2] - tokens) - tokens
        k, v = (F.pad(y[:, :, :tokens], (0, 0, 0, padding)).contiguous() for y in (k, v))
        real = F.pad(mask.keys[:, None, :tokens], (0, padding))
        for start, stop in pairwise(spans.starts[1:]):
            keys, values, allowed = (y.unflatten(2, (stop - start, -1)) for y in (k, v, real))
            # If the first token is padding, all are, and nothing reads the span.
            allowed = (allowed | ~allowed[..., :1])[..., None, :]
            scores = q[:, :, start:stop, None] * q.shape[-1] ** -0.5 @ keys.mT
            outs.append(
                (scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ values)[..., 0, :]
            )
        return torch.cat(outs, 2)

    def _step(self, q: Tensor, k: Tensor, v: Tensor, spans: SpanStep) -> Tensor:
        """`weigh` for one token and the spans that end with it: q (B, H, 1 + L, D), all stored keys
        and values.
        """
        slots, exist, rows = spans.read
        bias = F.embedding(rows, self.offsets).mT[:, :, None]
        inputs = AttentionInputs(Mask(rules=(PairTable(exist[:, None, None]),)), bias)
        outs = [super().weigh(q[:, :, :1], _at(k, slots), _at(v, slots), inputs)]
        for level in range(1, len(spans.levels)):
            tokens = (spans.own >> level << level) + torch.arange(1 << level, device=q.device)
            slots = span_slots(spans.levels[0], tokens.minimum(spans.own))
            outs.append(
                ops.attend(q[:, :, level : level + 1], _at(k, slots), _at(v, slots), Mask())
            )
        return torch.cat(outs, 2)


class SpanStack(Stack):
    """A stack whose layers read the tokens and the spans. Tokens that follow others in a cache are
    read one by one.
    """

    def run(self, x: Tensor, request: Request, cache: Cache | None) -> Tensor:
        """See `Stack.run`."""
        mask = request.mask
        if mask.offset and x.shape[1] > 1:
            return self._run_one_by_one(x, mask, cache)
        spans: Spans
        if mask.offset:
            spans = SpanStep(mask, x, self.config.span_keys)
        else:
            spans = Spans(mask, x, self.config.span_keys, all_levels=cache is not None)
        return spans.tokens(super().run(spans.rows(x), Request(spans.mask), cache))

    def _run_one_by_one(self, x: Tensor, mask: Mask, cache: Cache | None) -> Tensor:
        outs = []
        for number, token in enumerate(x.split(1, 1), mask.offset):
            keys = None if mask.keys is None else mask.keys[:, : number + 1]
            outs.append(self(token, replace(mask, keys=keys, offset=number), cache=cache))
        return torch.cat(outs, 1)

    def rows(self, x: Tensor, inputs: LayerInputs) -> Tensor:
        """See `Stack.rows`: the spans."""
        spans = inputs.mask.rule(Spans)
        assert spans is not None, "see `run`"
        return spans.rows(x)

    def leave(self, state: nn.Module, x: Tensor, inputs: LayerInputs) -> Tensor:
        """See `Stack.leave`. The hook point reads tokens only."""
        spans = inputs.mask.rule(Spans)
        assert spans is not None, "see `run`"
        if not state.watched:
            return x
        return spans.rows(state(spans.tokens(x)), x[:, spans.starts[1] :])


class SpanPart(UnscoredPart):
    """Attention to near tokens, and to spans of far ones."""

    value = "spans"
    keys = "span_keys"
    conflicts = "experts sliding_window latent"
    excludes = "score_soft_cap attention_sinks attention_dropout"
    has_vectors = False  # spans have queries of their own

    def problems(self, config: CoreConfig) -> Problems:
        choice = self.label(config)
        if config.shape == "encoder-decoder":
            yield Conflict(f"{choice} excludes shape: encoder-decoder", defaults(config, self.key))
        if (scores := part_of(ScoresPart, config)).new_rotary(config) is not None:
            text = f"{choice} excludes positions: {scores.value}"
            yield Conflict(text, defaults(config, scores.key, self.key))
        yield from super().problems(config)

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return SpanAttention(config, layer)

    def new_keys(self, usual: Callable[[], GrowingKeys]) -> GrowingKeys:
        return SpanKeys()

    def new_stack(self, config: CoreConfig) -> type[Stack]:
        return SpanStack

    def terms(self, config: CoreConfig) -> list[str]:
        return [*super().terms(config), f"{offset_rows(config)}·H"]

    def keys_read(self, config: CoreConfig, layer: int, keys: int, near: int, side: str) -> int:
        """Itself, and k of each level and side; every other level reads it once."""
        levels = len(level_starts(keys, config.span_keys)) - 1
        sides = 2 if side == "encoder" else 1
        return min(keys, sides * levels * config.span_keys + 1) + levels - 1

    def rows(self, config: CoreConfig, tokens: int) -> int:
        """Tokens and spans."""
        return level_starts(tokens, config.span_keys)[-1]

    def cached_tokens(self, config: CoreConfig, tokens: int) -> int:
        return 2 * tokens * config.n_layers

    def phrase(self, config: CoreConfig) -> str:
        return "attention to spans of tokens"


PARTS = (SpanPart(),)


def _at(x: Tensor, slots: Tensor) -> Tensor:
    """x (B, H, S, D) at slots (B or 1, N) -> (B, H, N, D)."""
    return x.gather(2, slots[:, None, :, None].expand(len(x), x.shape[1], -1, x.shape[3]))
