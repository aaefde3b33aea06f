"""Dynamic convolution instead of attention            (Wu et al. 2019, section 4 and equation 5)

    z = GLU(W x),   y_t = Σ_j softmax_j(W_h z_t)_j · z_(t+j−b),   out = W_o y

Each token predicts its weights of k near tokens from itself alone; a head h has weights of its own
for its channels. In a decoder the token is the last of the k (b = k − 1), in an encoder the middle
one (b = (k − 1) / 2). Tokens outside of the text are 0. The cost grows with k·n, and a cache holds
k tokens. Shapes: B batch, T tokens, H heads, D channels of a head, K taps, E model width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn.attention import AttentionInputs, AttentionLayer, merge_heads, split_heads
from trifold.nn.config import CoreConfig
from trifold.nn.formulas import FormulaRow, total
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import Dropout, Linear
from trifold.nn.parts import ScoresPart, UnscoredPart, group, part_of
from trifold.nn.problems import Problems, defaults
from trifold.settings import Conflict, Settings


class DynamicConvolution(Settings):
    """Convolutions whose weights each token predicts."""

    kernels: tuple[PositiveInt, ...] = Field(
        (3, 7, 15, 31),
        strict=False,
        min_length=1,
        description="tokens that a layer reads; the last number is that of all further layers",
    )

    def kernel(self, config: CoreConfig, block: int) -> int:
        """The taps of a block."""
        return self.kernels[min(block, len(self.kernels) - 1)]


class DynamicConvolutionLayer(AttentionLayer):
    """Hook points: `values` (B, T, E) is z; `pattern` (B, H, T, S) the weights of tokens."""

    formula = "W_o Σ_j softmax_j(W_h z_t)_j · z_(t+j−b), z = GLU(W x)"

    def __init__(self, config: CoreConfig, block: int = 0) -> None:
        super().__init__()
        width = config.d_model
        self.heads = config.n_heads
        self.kernel = settings_of(config).kernel(config, block)
        self.in_proj = Linear(width, 2 * width, bias=config.attention_bias)
        self.weight_proj = Linear(width, self.heads * self.kernel, bias=config.attention_bias)
        self.o_proj = Linear(width, width, bias=config.out_bias)
        self.drop = Dropout(config.attention_dropout)
        self.values = HookPoint()
        self.pattern = HookPoint("pattern")

    def attend(self, x: Tensor, memory: Tensor | None, inputs: AttentionInputs) -> Tensor:
        """See `AttentionLayer.attend`."""
        mask = inputs.mask
        assert memory is None and mask.has_only(), "a convolution reads the tokens beside its own"
        z = self.values(F.glu(self.in_proj(mask.grid(x))))
        tokens = z.shape[1]
        weights = self.weight_proj(z).unflatten(-1, (self.heads, self.kernel)).softmax(-1)
        weights = self.drop(weights).transpose(1, 2)
        if mask.keys is not None:
            z = z.masked_fill(~mask.keys[:, -tokens:, None], 0)
        if inputs.cache is not None:
            z = inputs.cache.past.update(z[:, None], z[:, None, :, :0])[0][:, 0]
        before = self.kernel - 1 if mask.causal else self.kernel // 2
        after = self.kernel - 1 - before
        missing = max(0, before + tokens - z.shape[1])
        near = F.pad(z[:, z.shape[1] - before - tokens + missing :], (0, 0, missing, after))
        values = split_heads(near, near.shape[2] // self.heads)  # (B, H, N, D)
        if self.watched:
            real = slice(missing, near.shape[1] - after)
            pattern = self.pattern(self._dense(weights, near.shape[1])[..., real])
            heads = pattern @ values[:, :, real]
        else:
            taps = values.unfold(2, self.kernel, 1)  # (B, H, T, D, K)
            heads = (taps @ weights[..., None])[..., 0]
        return mask.flat(merge_heads(heads))

    def _dense(self, weights: Tensor, count: int) -> Tensor:
        """The weights (B, H, T, K) of near tokens as weights (B, H, T, N) of all of so many."""
        places = torch.arange(weights.shape[2], device=weights.device)[:, None]
        places = places + torch.arange(self.kernel, device=weights.device)
        dense = weights.new_zeros(*weights.shape[:3], count)
        return dense.scatter(3, places.expand_as(weights), weights)


class DynamicConvolutionPart(UnscoredPart):
    """A convolution whose weights each token predicts."""

    value = "dynamic-convolution"
    keys = "dynamic_convolution"
    conflicts = "sliding_window latent recurrence"
    excludes = (
        "n_kv_heads d_head d_value qk_norm score_soft_cap attention_sinks attention_scale "
        "attention_scale_by_layer"
    )
    has_vectors = False

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return DynamicConvolutionLayer(config, layer)

    def problems(self, config: CoreConfig) -> Problems:
        choice = self.label(config)
        even = [kernel for kernel in settings_of(config).kernels if kernel % 2 == 0]
        if even and config.encoder_layers:
            yield (
                f"dynamic_convolution.kernels: an encoder reads as many tokens on each side: "
                f"choose an odd number, not {even[0]}"
            )
        if config.d_model % config.n_heads:
            yield f"{choice}: n_heads {config.n_heads} does not divide d_model {config.d_model}"
        if (scores := part_of(ScoresPart, config)).new_rotary(config) is not None:
            text = f"{choice} rotates no queries: choose other positions than {scores.value}"
            yield Conflict(text, defaults(config, scores.key, self.key))
        yield from super().problems(config)

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> FormulaRow:
        """With the weights of the taps of all blocks."""
        taps = sum(settings_of(config).kernel(config, block) for block in range(blocks))
        per_block = ["3·E·E"]
        per_tap = ["E·H"]
        if config.attention_bias:
            per_block.append("2·E")
            per_tap.append("H")
        if config.out_bias:
            per_block.append("E")
        formula = f"L·{total(per_block)} + {taps}·{total(per_tap)}"
        return FormulaRow(f"{side} self-attention", formula, {"L": blocks})

    def matrices(self, config: CoreConfig) -> int:
        """Without those of the weights, whose number differs between layers."""
        return 3 * config.d_model**2

    def score_elements(self, config: CoreConfig, side: str, keys: int, read: Sequence[int]) -> int:
        """Weights, and weighted sums."""
        return sum(_taps(config)) * config.d_model * (config.n_heads + 1)

    def window(self, config: CoreConfig, layer: int) -> int | None:
        """In a cache, the tokens that a convolution reads."""
        return _taps(config)[layer]

    def keys_read(self, config: CoreConfig, layer: int, keys: int, near: int, side: str) -> int:
        return min(keys, _taps(config)[layer])

    def cached_per_token(self, config: CoreConfig) -> int:
        return config.d_model

    def saved_weights(self, config: CoreConfig, kept: float, *, is_packed: bool) -> int:
        """Copies of the tokens that each token reads, and its weights."""
        return max(_taps(config)) * (config.d_model + 3 * config.n_heads)

    def held_scores(self, config: CoreConfig, keys: int) -> int:
        return max(_taps(config)) * (config.d_model + config.n_heads)

    def phrase(self, config: CoreConfig) -> str:
        return "dynamic convolutions instead of attention"

    def reach(self, config: CoreConfig, side: str) -> Iterator[str]:
        sizes = sorted(set(_taps(config)))
        shown = " to ".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1])))
        yield f"convolutions of {shown} tokens"


def settings_of(config: CoreConfig) -> DynamicConvolution:
    """The settings of dynamic convolutions."""
    return group(config, "dynamic_convolution", DynamicConvolution) or DynamicConvolution()


def _taps(config: CoreConfig) -> list[int]:
    """The taps of each layer."""
    blocks = config.block_of_layer or range(config.n_layers)
    return [settings_of(config).kernel(config, block) for block in blocks]


PARTS = (DynamicConvolutionPart(),)
