"""Attention whose cost grows with the length of a text and not with its square.

elu       out_i = φ(q_i)ᵀ S_i / φ(q_i)ᵀ z_i,   S_i = Σ_j φ(k_j) v_jᵀ,   z_i = Σ_j φ(k_j),
          φ(x) = elu(x) + 1, over all keys, or over j ≤ i
                                              (Katharopoulos et al. 2020, equations 5 to 7 and 9)
favor     the same with φ(x) = exp(W x − |x|² / 2) / √m: its products approximate exp(q·k / √D),
          because the rows of W are m normal vectors, orthogonal in groups of D
                                                       (Choromanski et al. 2021, lemma 1, FAVOR+)
low-rank  softmax(Q (E K)ᵀ / √D) F V: E and F (r, S) mix the keys and the values of all tokens
          into r                                                   (Wang et al. 2020, equation 7)

Shapes: B batch, T queries, H heads, D head size, M features. The sum z is the last column of S, as
the value 1.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn import ops
from trifold.nn.attention import Attention, AttentionInputs
from trifold.nn.cache import RunningSums
from trifold.nn.config import ModelConfig
from trifold.nn.masks import Mask
from trifold.nn.segments import scan

CHUNK = 64  # tokens whose products φ(q)·φ(k) are computed at once
SEGMENT = 256  # tokens whose chunks are computed again in the backward pass


class KernelAttention(Attention):
    """Self-attention with a feature map instead of the exponential (elu, favor). A cache holds S
    only.
    """

    directions: Tensor

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.kind = config.attention
        if self.kind == "favor":
            rows = orthogonal_directions(config.n_features, self.head_width, layer)
            self.register_buffer("directions", rows, persistent=False)

    def features(self, x: Tensor, *, is_query: bool) -> Tensor:
        """x (…, D) -> φ(x) (…, M) in fp32, 64-bit if x is."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.kind == "elu":
            return F.elu(x) + 1
        x = x * self.head_width**-0.25
        exponents = x @ self.directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2
        if is_query:  # a factor of all features of a query cancels
            exponents = exponents - exponents.amax(-1, keepdim=True).detach()
        return exponents.exp() * len(self.directions) ** -0.5

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """See `Attention.weigh`."""
        mask, cache = inputs.mask, inputs.cache
        assert mask.has_only(), "sums read every real key"
        q, k, v = ops.share_keys(q, k, v)
        real = (
            v.new_ones(1, 1, k.shape[2], 1)
            if mask.keys is None
            else mask.keys[:, None, -k.shape[2] :, None]
        )
        if self.watched:
            assert cache is None, "the weights of past keys are not stored"
            return self._dense(q, k, v, mask)
        sums = cache.own if cache is not None and isinstance(cache.own, RunningSums) else None
        state = None if sums is None else sums.state
        if state is None:
            width = len(self.directions) if self.kind == "favor" else self.head_width
            wide = torch.promote_types(v.dtype, torch.float32)
            state = v.new_zeros(*v.shape[:2], width, v.shape[3] + 1, dtype=wide)
        if mask.causal:
            out, state = scan(self._read_causally, SEGMENT, state, q, k, v, real)
        else:
            _, state = scan(self._add, SEGMENT, state, k, v, real)
            out, _ = scan(self._read, SEGMENT, state, q)
        if sums is not None:
            sums.add(state, k.shape[2])
        return out

    def _add(self, k: Tensor, v: Tensor, real: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """S after these keys: k and v (B, H, T, D), real (B, 1, T, 1), S (B, H, M, D + 1). There is
        no output.
        """
        state = state + self.features(k, is_query=False).mT @ _extended(v, real, state)
        return v[..., :0], state

    def _read(self, q: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, T, D) and S -> (B, H, T, D), and S."""
        return _normalized(self.features(q, is_query=True) @ state).to(q.dtype), state

    def _read_causally(
        self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query t reads S and the keys up to t: -> (B, H, T, D), and the S after all of them."""
        q, k = self.features(q, is_query=True), self.features(k, is_query=False)
        parts, outs = (q, k, _extended(v, real, state)), []
        for each_q, each_k, each_v in zip(*(x.split(CHUNK, 2) for x in parts), strict=True):
            outs.append((each_q @ each_k.mT).tril() @ each_v + each_q @ state)
            state = state + each_k.mT @ each_v
        return _normalized(torch.cat(outs, 2)).to(v.dtype), state

    def _dense(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """The definition, with all weights."""
        scores = self.scores(self.features(q, is_query=True) @ self.features(k, is_query=False).mT)
        allowed = mask.dense(q.shape[2], k.shape[2], q.device)
        scores = scores if allowed is None else scores * allowed
        sums = scores.sum(-1, keepdim=True)
        weights = self.pattern(scores / torch.where(sums > 0, sums, 1.0))
        return (weights @ v.to(weights.dtype)).to(v.dtype)


class LowRankAttention(Attention):
    """Self-attention of an encoder to r mixtures of all keys. `k_mix` and `v_mix` (r, positions)
    are E and F.
    """

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.k_mix = nn.Parameter(torch.empty(config.rank, config.max_positions))
        self.v_mix = nn.Parameter(torch.empty(config.rank, config.max_positions))

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """See `Attention.weigh`. Padding is left out of the mixtures, which count real tokens."""
        assert inputs.mask.has_only(), "mixtures read every real key"
        if (keys := inputs.mask.keys) is not None:
            order = keys.long().argsort(dim=1, descending=True, stable=True)[:, None, :, None]
            k, v = ((x * keys[:, None, :, None]).gather(2, order.expand(x.shape)) for x in (k, v))
        k, v = (
            mix[:, : x.shape[2]].to(x.dtype) @ x for mix, x in ((self.k_mix, k), (self.v_mix, v))
        )
        return super().weigh(q, k, v, AttentionInputs(Mask()))


def _extended(v: Tensor, real: Tensor, like: Tensor) -> Tensor:
    """v (B, H, T, D) with the value 1 as last column, 0 for padding: (B, H, T, D + 1)."""
    return (F.pad(v, (0, 1), value=1.0) * real).to(like.dtype)


def _normalized(out: Tensor) -> Tensor:
    """Sums (…, D + 1) -> (…, D), 0 for a query without keys."""
    total = out[..., -1:]
    has_keys = total > 0
    # Not a division by 0, whose gradient is NaN even where the result is not used.
    return torch.where(has_keys, out[..., :-1] / torch.where(has_keys, total, 1.0), 0.0)


def orthogonal_directions(count: int, width: int, seed: int) -> Tensor:
    """(count, width) normal vectors, orthogonal in groups of `width`. They are a function of the
    seed.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = -(-count // width)
    normal = torch.randn(groups, width, width, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(normal)
    # Without these signs, the directions are not uniformly distributed (Mezzadri 2007, section 5).
    rows = (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]).flatten(0, 1)[:count]
    norms = torch.randn(count, width, generator=generator, dtype=torch.float64).norm(
        dim=-1, keepdim=True
    )
    return (rows * norms).float()
