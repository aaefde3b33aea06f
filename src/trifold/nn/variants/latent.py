"""Multi-head latent attention: the keys and values of all heads are projections of one narrow
vector per token.

    c = norm(W^C x),   k_h = [W_h^K c; r],   v_h = W_h^V c,   r = rotate(W^R x)
                                                                     (DeepSeek-V2 2024, section 2.1)
    q_h = [W_h^Q x; rotate(W_h^P x)],  or from norm(W^D x) instead of x

The cache holds c and r, which all heads share. With a cache, W_h^K multiplies the query instead of
every key, and W_h^V the weighted sum of c, so that no cached token is expanded:
q·(W^K c) = (qᵀ W^K)·c. Shapes: R width of c, P of r.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from trifold.nn import formulas, ops
from trifold.nn.attention import AttentionInputs, AttentionLayer, merge_heads, split_heads
from trifold.nn.config import CoreConfig
from trifold.nn.formulas import FormulaRow
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import Dropout, Linear
from trifold.nn.norms import new_norm
from trifold.nn.parts import AttentionPart, used_group
from trifold.nn.problems import Problems
from trifold.settings import Settings


class Latent(Settings):
    """Multi-head latent attention: keys and values are projections of one narrow vector per token,
    which is cached.
    """

    width: int = Field(gt=0, description="of the vector of keys and values")
    query_width: int | None = Field(
        None, gt=0, description="of such a vector of queries; default: none"
    )
    d_rotary: int = Field(
        gt=0, description="rotated dimensions beside d_head, shared by the keys of heads"
    )
    d_value: int = Field(gt=0, description="width of a value")
    norm_epsilon: float | None = Field(
        None, gt=0, description="of the norms inside; default: norm_epsilon"
    )


class LatentAttention(AttentionLayer):
    """Self-attention with a compressed cache. The hook points are those of `Attention`."""

    def __init__(self, config: CoreConfig, layer: int = 0) -> None:
        super().__init__()
        latent = _latent(config)
        heads = config.n_heads
        bias = config.attention_bias
        self.d_key = config.head_width
        self.d_value = latent.d_value
        self.width = latent.width
        self.d_query = self.d_key + latent.d_rotary
        narrow = latent.query_width
        inside = config.model_copy(
            update={"norm_epsilon": latent.norm_epsilon or config.norm_epsilon}
        )
        self.q_down: Linear | None = None
        self.q_norm: nn.Module | None = None
        if narrow:
            self.q_down = Linear(config.d_model, narrow, bias=bias)
            self.q_norm = new_norm(inside, narrow)
        self.q_proj = Linear(narrow or config.d_model, heads * self.d_query, bias=False)
        self.kv_down = Linear(config.d_model, latent.width + latent.d_rotary, bias=bias)
        self.kv_norm = new_norm(inside, latent.width)
        self.kv_proj = nn.Parameter(torch.empty(heads * (self.d_key + self.d_value), latent.width))
        self.o_proj = Linear(heads * self.d_value, config.d_model, bias=config.out_bias)
        self.drop = Dropout(config.attention_dropout)
        self.queries = HookPoint()
        self.keys = HookPoint()
        self.values = HookPoint()
        self.scores = HookPoint()
        self.pattern = HookPoint("pattern")
        self.heads = HookPoint()
        self.scale = config.attention_scale or 1 / math.sqrt(self.d_query)

    def attend(self, x: Tensor, memory: Tensor | None, inputs: AttentionInputs) -> Tensor:
        """See `AttentionLayer.attend`."""
        mask = inputs.mask
        bias = inputs.bias
        rotary = inputs.rotary
        cache = inputs.cache
        assert memory is None, "latent attention reads its own input"
        assert bias is None or isinstance(bias, Tensor), "latent attention has no relative scores"
        # The shapes: content (B, H, T, D), rotated (B, H, T, P), c (B, 1, S, R), r (B, 1, S, P).
        x = mask.grid(x)
        q = split_heads(self.q_proj(self.compressed(x)), self.d_query)
        content, rotated = q.split([self.d_key, self.d_query - self.d_key], -1)
        c, r = self.kv_down(x)[:, None].split([self.width, self.d_query - self.d_key], -1)
        c = self.kv_norm(c)
        if rotary is not None:
            rotated = rotary(rotated)
            r = rotary(r)
        if cache is not None:
            c, r = cache.past.update(c, r)
        weight = self.kv_proj.unflatten(0, (-1, self.d_key + self.d_value))
        w_key, w_value = weight.split([self.d_key, self.d_value], 1)  # (H, D, R)
        is_narrow = cache is not None and not self.watched
        if is_narrow:
            q = torch.cat([content @ w_key, rotated], -1)
            k = torch.cat([c, r], -1)
            v = c
        else:
            q = torch.cat([content, rotated], -1)
            k = c @ w_key.mT
            v = c @ w_value.mT
            k = torch.cat([k, r.expand(-1, k.shape[1], -1, -1)], -1)
        q = q * (self.scale * math.sqrt(q.shape[-1]))  # `ops.attend` divides by √ of the width
        if self.watched:
            q = self.queries(q)
            k = self.keys(k)
            v = self.values(v)
        heads = ops.attend(
            q, k, v, mask, bias=bias, drop=self.drop, hooks=self if self.watched else None
        )
        heads = heads @ w_value.mT if is_narrow else self.heads(heads)
        return mask.flat(merge_heads(heads))

    def compressed(self, x: Tensor) -> Tensor:
        """x (B, T, E) in the width that queries are computed from."""
        if self.q_down is None or self.q_norm is None:
            return x
        narrow: Tensor = self.q_norm(self.q_down(x))
        return narrow


class LatentPart(AttentionPart):
    """Attention with a compressed cache."""

    key = "latent"
    needs: ClassVar = {"positions": ("rotary", "none")}
    has_sizes = True
    conflicts = "attention_scale_by_layer residual"
    excludes = "n_kv_heads d_value qk_norm rotary_width score_soft_cap attention_sinks"
    has_vectors = False

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return LatentAttention(config, layer)

    def rotated_width(self, config: CoreConfig) -> int:
        return _latent(config).d_rotary

    def rotary_problems(self, config: CoreConfig) -> Problems:
        yield from ()

    def problems(self, config: CoreConfig) -> Problems:
        if (width := _latent(config).d_rotary) % 2:
            yield f"latent needs an even latent.d_rotary, not {width}"

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> FormulaRow:
        row = super().parameters(config, side, blocks)
        return row._replace(letters={"L": blocks, **_letters(config)})

    def terms(self, config: CoreConfig) -> list[str]:
        """Matrices of queries, of the latent vector, of keys and values from it, and of the output;
        norms and biases.
        """
        vectors = "QR" if _latent(config).query_width else "R"
        terms = [*_matrices(config), *(formulas.norm(config, letter) for letter in vectors)]
        if config.attention_bias:
            terms.append("Q + R + Z")
        return [*terms, "E"] if config.out_bias else terms

    def matrices(self, config: CoreConfig) -> int:
        formula = formulas.total(_matrices(config))
        return formulas.evaluate(config, formula, _letters(config))

    def per_key(self, config: CoreConfig) -> int:
        latent = _latent(config)
        return config.n_heads * (config.head_width + latent.d_rotary + latent.d_value)

    def cached_per_token(self, config: CoreConfig) -> int:
        return _latent(config).width + _latent(config).d_rotary

    def held_scores(self, config: CoreConfig, keys: int) -> int:
        """No fused kernel reads values of another width than that of keys."""
        return 2 * config.n_heads * keys

    def phrase(self, config: CoreConfig) -> str:
        return f"keys and values from a latent vector of {_latent(config).width:,}"


def _latent(config: CoreConfig) -> Latent:
    return used_group(config, "latent", Latent)


def _matrices(config: CoreConfig) -> list[str]:
    queries = "E·Q + Q·H·(D+Z)" if _latent(config).query_width else "E·H·(D+Z)"
    return [queries, "E·(R+Z) + R·H·(D+Y) + H·Y·E"]


def _letters(config: CoreConfig) -> dict[str, int]:
    """Widths R of keys and values, Q of queries, Z of rotated dimensions, Y of a value."""
    latent = _latent(config)
    widths = latent.width, latent.query_width or 0, latent.d_rotary, latent.d_value
    return dict(zip("RQZY", widths, strict=True))


PARTS = (LatentPart(),)
