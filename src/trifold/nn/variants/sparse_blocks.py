"""Attention to a few blocks of keys               (Zaheer et al. 2020, "BigBird", section 2)

A query attends to its own block, to those beside it, to the first, the last and random ones. The
random blocks are a function of the layer, and not of the batch.

Shapes: B batch, T queries, S keys, H heads, R random blocks, N blocks of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from trifold.nn.config import CoreConfig
from trifold.nn.masks import Mask, MaskPart, Rule
from trifold.nn.parts import EXAMPLE_TOKENS, RulePart, used_group
from trifold.nn.problems import Problems, excluded
from trifold.settings import Settings


class SparseBlocks(Settings):
    """Attention to a few blocks of keys (BigBird): the query's own, those beside it, the first, the
    last, random ones.

    The queries of the first and the last block attend to all.
    """

    size: int = Field(64, gt=0, description="tokens of a block")
    random: int = Field(3, ge=0, le=10_000, description="random blocks of a block of queries")
    only_in_training: bool = Field(
        False, description="outside of training, the first block counts in place of each random one"
    )


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

    blockwise = "blocks"

    size: int
    last: Tensor
    random: Tensor
    full: Tensor
    first_counts: int = 1

    can_be_lifted = True
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
        counts = -(-ends // size)
        device = ends.device
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
        queries = part.query_numbers
        keys = part.key_numbers
        assert queries.dim() == 2, "a query stream has no blocks"
        own_block = queries // self.size
        others = keys // self.size
        block = own_block[:, 0].clamp_max(self.random.shape[2] - 1)
        chosen = self.random[:, :, block]  # (B or 1, H, T, R)
        rules = [chosen[..., number, None] == others for number in range(chosen.shape[-1])]
        last = self.last[:, None, None, None]
        rules += [(own_block - others).abs() <= 1, others == 0, others == last]
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
        own_block = queries // self.size
        return (own_block == 0) | (own_block == self.last[:, None]) | self.full[:, None]


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


class SparseBlocksPart(RulePart):
    """The rule of sparse blocks, a function of the layer."""

    key = "sparse_blocks"
    needs: ClassVar = {"shape": ("encoder", "encoder-decoder")}
    conflicts = "attention latent sliding_window query_stream"
    ignores_orders = True
    differs_by_head = True

    def of_layer(
        self, config: CoreConfig, layer: int, mask: Mask, queries: int, *, training: bool
    ) -> Rule | None:
        sparse = used_group(config, self.key, SparseBlocks)
        sizes = queries, sparse.size, config.n_heads, sparse.random
        repeat = sparse.only_in_training and not training
        return BlockSparse.of(mask.keys, *sizes, seed=layer, repeat=repeat)

    def problems(self, config: CoreConfig) -> Problems:
        if config.kv_heads != config.n_heads:
            yield from excluded(config, self.key, "n_kv_heads")

    def keys_read(self, config: CoreConfig, layer: int, keys: int, side: str) -> int:
        """In training: its own block, two beside it, the first, the last and random ones; the
        queries of two blocks read all keys.
        """
        settings = used_group(config, self.key, SparseBlocks)
        is_full = keys <= (5 + 2 * settings.random) * settings.size
        return keys if is_full else min(keys, (7 + settings.random) * settings.size)

    def kept_keys(self, config: CoreConfig) -> int:
        settings = used_group(config, self.key, SparseBlocks)
        return 2 * settings.size

    def reach(self, config: CoreConfig, side: str) -> Iterator[str]:
        sparse = used_group(config, self.key, SparseBlocks)
        training = " in training" if sparse.only_in_training else ""
        yield f"sparse blocks of {sparse.size:,} tokens"
        yield f"{sparse.random:,} random ones{training}"

    def examples(self, given: Mapping[str, Mask]) -> Mapping[str, Mask]:
        sizes = {"size": 1, "heads": 1, "random": 1}
        blocks = BlockSparse.of(None, EXAMPLE_TOKENS, **sizes, seed=0, repeat=False)
        return {"blocks of one token, one of them random": Mask(rules=(blocks,))}


PARTS = (SparseBlocksPart(),)
