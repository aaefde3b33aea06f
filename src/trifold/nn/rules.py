"""The rules of masks (`nn.masks.Rule`): which keys a query may attend to.

Window         keys at a distance of less than so many real tokens
Segment        keys of the own segment, and some before it
BlockSparse    a few blocks of keys
GlobalTokens   tokens that attend to all keys, and that all queries attend to
Summaries      further keys, each a summary of a block of tokens, that all queries attend to
Order          keys of no higher rank in a factorization order
Table          any pairs, as a dense table

`nn.spans.Spans` is a rule too. Shapes: B batch, T queries, S keys, H heads, N all keys of a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.nn.masks import Mask, MaskPart, Rule


@dataclass(frozen=True)
class Window(Rule):
    """A query attends to keys at a distance of less than `size` real keys."""

    size: int

    is_lifted = True
    may_forbid_all = False

    @property
    def sentence(self) -> str:
        return f"a window of {self.size} tokens"

    def allowed(self, part: MaskPart) -> Tensor | None:
        if self._fits(part):
            return None
        own, others = part.at_pairs(part.positions)
        return (others - own).abs() < self.size

    def _fits(self, part: MaskPart) -> bool:
        """Whether no distance exceeds the window."""
        if isinstance(part.keys, Tensor):
            return False
        stop = part.keys.stop
        if isinstance(part.queries, slice):
            stop = max(stop, part.queries.stop)
        return bool(stop - part.keys.start <= self.size)

    def reach(self, causal: bool) -> tuple[int, int]:
        return self.size - 1, 0 if causal else self.size - 1


@dataclass(frozen=True)
class Segment(Rule):
    """The real keys are divided into segments of `size`; a query of a causal mask attends to the
    keys of its own segment and to `before` keys before it.
    """

    size: int
    before: int

    is_lifted = True
    may_forbid_all = False

    @property
    def sentence(self) -> str:
        return f"segments of {self.size} tokens, and {self.before} tokens before each"

    @property
    def block(self) -> int:
        return self.size

    def allowed(self, part: MaskPart) -> Tensor:
        own, others = part.at_pairs(part.positions)
        return others >= own // self.size * self.size - self.before

    def reach(self, causal: bool) -> tuple[int, int]:
        reach = self.size + self.before
        return reach, 0 if causal else reach


@dataclass(frozen=True)
class GlobalTokens(Rule):
    """tokens: (B, N) boolean, the tokens that attend to all keys and that all queries attend to,
    whatever windows, segments and blocks say.
    """

    tokens: Tensor

    may_forbid_all = False

    @property
    def sentence(self) -> str:
        return "global tokens"

    def allowed(self, part: MaskPart) -> None:
        return None

    def lifts(self, part: MaskPart) -> Tensor:
        own, others = part.at_pairs(self.tokens)
        return others | own

    def others(self, queries: slice, keys: int) -> tuple[Tensor, Tensor]:
        index, valid = self._columns
        return index[:, None], valid[:, None]

    def reads_all(self, queries: slice, device: torch.device) -> Tensor:
        return self.tokens[:, queries]

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor]:
        return columns(self.tokens)


@dataclass(frozen=True)
class Summaries(Rule):
    """The last keys are summaries of blocks of real tokens, which all queries attend to. The tokens
    after the last whole block belong to it.

    blocks: (B or 1, T + G) the block of each of the T `tokens`, -1 for none; then the numbers of
        the G blocks.
    """

    blocks: Tensor
    tokens: int

    may_forbid_all = False

    @property
    def sentence(self) -> str:
        return "summaries of blocks of tokens"

    @property
    def count(self) -> int:
        """G."""
        return self.blocks.shape[1] - self.tokens

    def allowed(self, part: MaskPart) -> None:
        return None

    def lifts(self, part: MaskPart) -> Tensor:
        return part.key_numbers >= self.tokens

    def others(self, queries: slice, keys: int) -> tuple[Tensor, Tensor]:
        index = torch.arange(self.tokens, keys, device=self.blocks.device)[None, None]
        return index, torch.ones_like(index, dtype=torch.bool)

    def sums(self, x: Tensor) -> Tensor:
        """The sum of the tokens of each block: x (B, T, E) -> (B, G, E)."""
        index = self.blocks[:, : self.tokens, None].expand(*x.shape)
        # The last one is of tokens without a block.
        sums = x.new_zeros(len(x), self.count + 1, x.shape[2])
        return sums.scatter_add(1, index % (self.count + 1), x)[:, : self.count]


def with_summaries(mask: Mask, size: int, queries: int, device: torch.device) -> Mask:
    """The mask of self-attention with a summary of each block of `size` real tokens as further
    keys.
    """
    positions = mask.positions(queries, device)
    real = mask.keys if mask.packing is None else mask.packing.attend
    real = torch.ones_like(positions, dtype=torch.bool) if real is None else real
    counts = real.sum(1, keepdim=True) // size
    numbers = torch.arange(int(counts.max()), device=device)[None]
    blocks = (positions // size).minimum(counts - 1).where(real, -1)
    summaries = Summaries(torch.cat([blocks, numbers.expand(len(blocks), -1)], 1), queries)
    keys = torch.cat([real, numbers < counts], 1)
    rules = [
        GlobalTokens(F.pad(rule.tokens, (0, summaries.count)))
        if isinstance(rule, GlobalTokens)
        else rule
        for rule in mask.rules
    ]
    return replace(mask, keys=keys, rules=(*rules, summaries))


@dataclass(frozen=True)
class BlockSparse(Rule):
    """Blocks of `size` consecutive tokens (Zaheer et al. 2020, "BigBird", section 2): a query
    attends to its own block, the two beside it, the first, the last, and random ones; the queries
    of the first and the last block attend to all.

    last: (B or 1,) the last block of each row. random: (B or 1, H, N, R) the random blocks of each
    block of queries.
    full: (B or 1,) rows that are so short that every query attends to all.
    first_counts: how often the first block counts for the queries that do not attend to all.
    """

    size: int
    last: Tensor
    random: Tensor
    full: Tensor
    first_counts: int = 1

    is_lifted = True
    may_forbid_all = False
    counts_real = False

    @classmethod
    def of(
        cls,
        keys: Tensor | None,
        tokens: int,
        size: int,
        heads: int,
        random: int,
        *,
        seed: int,
        repeat: bool,
    ) -> BlockSparse:
        """Blocks of rows of `tokens` tokens, of which `keys` (B, S) are real, with `random` random
        blocks, which depend on the seed and the number of blocks of a row. repeat: the first block
        that often instead.

        Rows of at most 5 + 2·random blocks are full.
        """
        ends = torch.tensor([tokens])
        if keys is not None:
            numbers = torch.arange(1, keys.shape[1] + 1, device=keys.device)
            ends = (keys * numbers).amax(1).clamp_min(1)
        counts, device = -(-ends // size), ends.device
        full = ends <= (5 + 2 * random) * size
        drawn = 0 if repeat else random
        chosen = torch.zeros(len(ends), heads, int(counts.max()), drawn, dtype=torch.int64)
        for row, (count, every) in enumerate(zip(counts.tolist(), full.tolist(), strict=True)):
            if not every and not repeat:
                chosen[row, :, :count] = random_blocks(count, heads, random, seed)
        return cls(size, counts - 1, chosen.to(device), full, 1 + random if repeat else 1)

    @property
    def sentence(self) -> str:
        return f"near, first, last and random blocks of {self.size} tokens"

    @property
    def block(self) -> int:
        return self.size

    def allowed(self, part: MaskPart) -> Tensor:
        queries, keys = part.query_numbers, part.key_numbers
        assert queries.dim() == 2, "a query stream has no blocks"
        own, others = queries // self.size, keys // self.size
        block = own[:, 0].clamp_max(self.random.shape[2] - 1)
        chosen = self.random[:, :, block]  # (B or 1, H, T, R)
        rules = [chosen[..., number, None] == others for number in range(chosen.shape[-1])]
        last = self.last[:, None, None, None]
        rules += [(own - others).abs() <= 1, others == 0, others == last]
        return reduce(torch.logical_or, rules) | self._reads_all(queries[:, 0])[:, None, :, None]

    def added(self, part: MaskPart) -> Tensor | None:
        """log of how often the first block counts."""
        if self.first_counts == 1:
            return None
        some = ~self._reads_all(part.query_numbers[:, 0])[:, None, :, None]
        return (some & (part.key_numbers // self.size == 0)) * math.log(self.first_counts)

    def reach(self, causal: bool) -> tuple[int, int]:
        return self.size, self.size

    def others(self, queries: slice, keys: int) -> tuple[Tensor, Tensor]:
        """The first, the last and the random blocks."""
        number = min(queries.start // self.size, self.random.shape[2] - 1)
        random = self.random[:, :, number]
        rows = max(len(random), len(self.last))
        random = random.expand(rows, -1, -1)
        last = self.last[:, None, None].expand(*random.shape[:2], 1)
        chosen = torch.cat([torch.zeros_like(last), last, random], -1) * self.size
        index = (chosen[..., None] + torch.arange(self.size, device=chosen.device)).flatten(2)
        return index.clamp_max(keys - 1), index < keys

    def reads_all(self, queries: slice, device: torch.device) -> Tensor:
        return self._reads_all(torch.arange(queries.start, queries.stop, device=device))

    def _reads_all(self, queries: Tensor) -> Tensor:
        """queries (T,) -> (B or 1, T) whether they attend to all keys."""
        own = queries // self.size
        return (own == 0) | (own == self.last[:, None]) | self.full[:, None]


@lru_cache(maxsize=256)
def random_blocks(count: int, heads: int, chosen: int, seed: int) -> Tensor:
    """(H, count, chosen) blocks for each of `count` blocks: not itself, its neighbours, the first
    or the last.
    """
    scores = torch.rand(heads, count, count, generator=torch.Generator().manual_seed(seed))
    numbers = torch.arange(count)
    near = (numbers[:, None] - numbers).abs() <= 1
    excluded = near | (numbers == 0) | (numbers == count - 1)
    return scores.masked_fill(excluded, -1).topk(chosen).indices


@dataclass(frozen=True)
class Order(Rule):
    """ranks: (B, N) the rank of each key in a factorization order (Yang et al. 2019, "XLNet",
    section 2.2). A query attends to the keys up to its own rank; the query stream, which predicts
    its targets, to those of a lower rank.
    """

    ranks: Tensor

    @property
    def sentence(self) -> str:
        return "a factorization order"

    def allowed(self, part: MaskPart) -> Tensor:
        own, others = part.at_pairs(self.ranks)
        return others <= own if part.mask.queries is None else others < own


@dataclass(frozen=True)
class Table(Rule):
    """pairs: (B or 1, H or 1, T or 1, S) boolean, the pairs that are allowed."""

    pairs: Tensor

    @property
    def sentence(self) -> str:
        return "a table of pairs"

    def allowed(self, part: MaskPart) -> Tensor:
        assert isinstance(part.queries, slice), "a query stream has no table"
        pairs = self.pairs if self.pairs.shape[2] == 1 else self.pairs[:, :, part.queries]
        if isinstance(part.keys, slice):
            return pairs[..., part.keys]
        rows, heads = (max(pairs.shape[axis], part.keys.shape[axis]) for axis in (0, 1))
        shape = (rows, heads, pairs.shape[2], -1)
        return pairs.expand(shape).gather(3, part.keys[:, :, None].expand(shape))


def columns(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Boolean (B, S) -> the columns that are True in each row (B, N), and whether a row has so
    many.
    """
    counts = chosen.sum(1, keepdim=True)
    index = chosen.int().argsort(dim=1, descending=True, stable=True)[:, : int(counts.max())]
    return index, torch.arange(index.shape[1], device=chosen.device) < counts
