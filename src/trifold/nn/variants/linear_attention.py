"""Attention whose cost grows with the length of a text and not with its square.

elu    out_i = φ(q_i)ᵀ S_i / φ(q_i)ᵀ z_i,   S_i = Σ_j φ(k_j) v_jᵀ,   z_i = Σ_j φ(k_j),
       φ(x) = elu(x) + 1, over all keys, or over j ≤ i
                                           (Katharopoulos et al. 2020, equations 5 to 7 and 9)
favor  the same with φ(x) = exp(W x − |x|² / 2) / √m: its products approximate exp(q·k / √D),
       because the rows of W are m normal vectors, orthogonal in groups of D
                                                    (Choromanski et al. 2021, lemma 1, FAVOR+)

Shapes: B batch, T queries, H heads, D head size, M features. The sum z is the last column of S, as
the value 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn import ops
from trifold.nn.attention import Attention, AttentionInputs
from trifold.nn.cache import GrowingKeys, RunningState
from trifold.nn.config import CoreConfig
from trifold.nn.masks import Mask
from trifold.nn.parts import UnscoredPart
from trifold.nn.precision import wide_dtype, widened
from trifold.nn.scan import scan

CHUNK = 64  # tokens whose products φ(q)·φ(k) are computed at once
SEGMENT = 256  # tokens whose chunks are computed again in the backward pass


class RunningSums(RunningState):
    """The sums S (B, H, M, D + 1) of linear attention."""


class KernelAttention(Attention):
    """Self-attention with the feature map elu(x) + 1 instead of the exponential. A cache holds S
    only.
    """

    stores_keys = False

    def __init__(self, config: CoreConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.n_features = self.head_width

    def features(self, x: Tensor, *, is_query: bool) -> Tensor:
        """x (…, D) -> φ(x) (…, M) in fp32, 64-bit if x is."""
        return F.elu(widened(x)) + 1

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """See `Attention.weigh`."""
        mask = inputs.mask
        cache = inputs.cache
        assert mask.has_only(), "sums read every real key"
        q, k, v = ops.share_keys(q, k, v)
        if self.watched:
            assert cache is None, "the weights of past keys are not stored"
            return self._dense(q, k, v, mask)
        real = v.new_ones(1, 1, k.shape[2], 1)
        if mask.keys is not None:
            real = mask.keys[:, None, -k.shape[2] :, None]
        sums = RunningSums()
        if cache is not None and isinstance(cache.past, RunningSums):
            sums = cache.past
        state = sums.state
        if state is None:
            state = v.new_zeros(*v.shape[:2], self.n_features, v.shape[3] + 1, dtype=wide_dtype(v))
        if mask.causal:
            out, state = scan(self._read_causally, SEGMENT, state, q, k, v, real)
        else:
            _, state = scan(self._add, SEGMENT, state, k, v, real)
            out, _ = scan(self._read, SEGMENT, state, q)
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
        q = self.features(q, is_query=True)
        k = self.features(k, is_query=False)
        parts = (q, k, _extended(v, real, state))
        outs = []
        for each_q, each_k, each_v in zip(*(x.split(CHUNK, 2) for x in parts), strict=True):
            outs.append((each_q @ each_k.mT).tril() @ each_v + each_q @ state)
            state = state + each_k.mT @ each_v
        return _normalized(torch.cat(outs, 2)).to(v.dtype), state

    def _dense(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """The definition, with all weights."""
        scores = self.scores(self.features(q, is_query=True) @ self.features(k, is_query=False).mT)
        allowed = mask.dense(q.shape[2], k.shape[2], q.device)
        if allowed is not None:
            scores = scores * allowed
        sums = scores.sum(-1, keepdim=True)
        weights = self.pattern(scores / torch.where(sums > 0, sums, 1.0))
        return (weights @ v.to(weights.dtype)).to(v.dtype)


class RandomFeatureAttention(KernelAttention):
    """The same with random features of the exponential (favor)."""

    directions: Tensor

    def __init__(self, config: CoreConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.n_features = config.n_features
        rows = orthogonal_directions(config.n_features, self.head_width, layer)
        self.register_buffer("directions", rows, persistent=False)

    def features(self, x: Tensor, *, is_query: bool) -> Tensor:
        """x (…, D) -> φ(x) (…, M) in fp32, 64-bit if x is."""
        x = widened(x) * self.head_width**-0.25
        exponents = x @ self.directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2
        if is_query:  # a factor of all features of a query cancels
            exponents = exponents - exponents.amax(-1, keepdim=True).detach()
        return exponents.exp() * len(self.directions) ** -0.5


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


class EluPart(UnscoredPart):
    """Attention with the feature map elu(x) + 1."""

    value = "elu"
    excludes = "score_soft_cap attention_sinks attention_dropout"
    can_truncate = False

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return KernelAttention(config, layer)

    def new_keys(self, usual: Callable[[], GrowingKeys]) -> GrowingKeys:
        return RunningSums()

    def features(self, config: CoreConfig) -> int:
        """M, the features of a head."""
        return config.head_width

    def map_elements(self, config: CoreConfig) -> int:
        """Elements of the feature maps of a query and a key of a head."""
        return 0

    def score_elements(self, config: CoreConfig, side: str, keys: int, read: Sequence[int]) -> int:
        """Into the sums, and out of them; the products of the chunk, and their sums of values."""
        features = self.features(config)
        chunk = 0
        if side == "decoder":
            chunk = min(keys, CHUNK)
        sums = (2 * features + chunk) * (config.value_width + 1) + chunk * features
        return config.n_layers * config.n_heads * (self.map_elements(config) + sums)

    def cached_elements(self, config: CoreConfig, tokens: int) -> int:
        """The sums, whose size does not depend on the tokens."""
        sums = self.features(config) * (config.value_width + 1)
        return config.n_layers * config.n_heads * sums

    def phrase(self, config: CoreConfig) -> str:
        return "linear attention (elu + 1)"


class FavorPart(EluPart):
    """Attention with random features of the exponential."""

    value = "favor"
    keys = "n_features"

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return RandomFeatureAttention(config, layer)

    def features(self, config: CoreConfig) -> int:
        return config.n_features

    def map_elements(self, config: CoreConfig) -> int:
        return 2 * config.n_features * config.head_width

    def phrase(self, config: CoreConfig) -> str:
        return "linear attention (random features)"


PARTS = (EluPart(), FavorPart())
