"""Multi-head latent attention: the keys and values of all heads are projections of one narrow
vector per token.

    c = norm(W^C x),   k_h = [W_h^K c; r],   v_h = W_h^V c,   r = rotate(W^R x)
                                                                     (DeepSeek-V2 2024, section 2.1)
    q_h = [W_h^Q x; rotate(W_h^P x)],  or from norm(W^D x) instead of x

The cache holds c and r, which all heads share. With a cache, W_h^K multiplies the query instead of
every key, and W_h^V the weighted sum of c, so that no cached token is expanded:
q·(W^K c) = (qᵀ W^K)·c. Shapes: R width of c, P of r.
"""

import math

import torch
from torch import Tensor, nn

from trifold.nn import ops
from trifold.nn.attention import Memo, merge_heads, split_heads
from trifold.nn.cache import LayerCache
from trifold.nn.config import ModelConfig
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import Dropout, Linear, new_norm
from trifold.nn.masks import Mask
from trifold.nn.relative import ScoreBias
from trifold.nn.rotary import Rotation


class LatentAttention(nn.Module):
    """Self-attention with a compressed cache. The hook points are those of `Attention`."""

    watched = False

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__()
        assert config.latent is not None, "the config has no latent attention"
        latent, heads, bias = config.latent, config.n_heads, config.attention_bias
        self.d_key, self.d_value, self.width = config.head_width, latent.d_value, latent.width
        self.d_query = self.d_key + latent.d_rotary
        narrow = latent.query_width
        inside = config.model_copy(
            update={"norm_epsilon": latent.norm_epsilon or config.norm_epsilon}
        )
        self.q_down = Linear(config.d_model, narrow, bias=bias) if narrow else None
        self.q_norm = new_norm(inside, narrow) if narrow else None
        self.q_proj = Linear(narrow or config.d_model, heads * self.d_query, bias=False)
        self.kv_down = Linear(config.d_model, latent.width + latent.d_rotary, bias=bias)
        self.kv_norm = new_norm(inside, latent.width)
        self.kv_proj = nn.Parameter(torch.empty(heads * (self.d_key + self.d_value), latent.width))
        self.o_proj = Linear(heads * self.d_value, config.d_model, bias=config.out_bias)
        self.drop = Dropout(config.attention_dropout)
        self.queries, self.keys, self.values = HookPoint(), HookPoint(), HookPoint()
        self.scores, self.pattern, self.heads = HookPoint(), HookPoint("pattern"), HookPoint()
        self.scale = config.attention_scale or 1 / math.sqrt(self.d_query)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask,
        bias: ScoreBias | None = None,
        rotary: Rotation | None = None,
        cache: LayerCache | None = None,
        memo: Memo | None = None,
    ) -> Tensor:
        """x (B, T, E) -> (B, T, E), or packed (1, N, E) -> (1, N, E) if the mask has a packing."""
        assert memory is None, "latent attention reads its own input"
        assert bias is None or isinstance(bias, Tensor), "latent attention has no relative scores"
        # The shapes: content (B, H, T, D), rotated (B, H, T, P), c (B, 1, S, R), r (B, 1, S, P).
        x = x if mask.packing is None else mask.packing.grid(x)
        narrow = x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x))
        q = split_heads(self.q_proj(narrow), self.d_query)
        content, rotated = q.split([self.d_key, self.d_query - self.d_key], -1)
        c, r = self.kv_down(x)[:, None].split([self.width, self.d_query - self.d_key], -1)
        c = self.kv_norm(c)
        if rotary is not None:
            rotated, r = rotary(rotated), rotary(r)
        if cache is not None:
            c, r = cache.own.update(c, r)
        weight = self.kv_proj.unflatten(0, (-1, self.d_key + self.d_value))
        w_key, w_value = weight.split([self.d_key, self.d_value], 1)  # (H, D, R)
        is_narrow = cache is not None and not self.watched
        if is_narrow:
            q = torch.cat([content @ w_key, rotated], -1)
            k, v = torch.cat([c, r], -1), c
        else:
            q, k, v = torch.cat([content, rotated], -1), c @ w_key.mT, c @ w_value.mT
            k = torch.cat([k, r.expand(-1, k.shape[1], -1, -1)], -1)
        q = q * (self.scale * math.sqrt(q.shape[-1]))  # `ops.attend` divides by √ of the width
        if self.watched:
            q, k, v = self.queries(q), self.keys(k), self.values(v)
        heads = ops.attend(
            q, k, v, mask, bias=bias, drop=self.drop, hooks=self if self.watched else None
        )
        merged = merge_heads(heads @ w_value.mT if is_narrow else self.heads(heads))
        return self.o_proj(merged if mask.packing is None else mask.packing.flat(merged))
