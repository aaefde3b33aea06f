"""The operations of the model that may have a faster version, each with its plain definition.

Modules call them as `ops.linear(…)`, so a replacement takes effect at once. `trifold.fast.enable()`
installs the faster versions; each of those decides whether it suits its input and otherwise calls
the plain definition.

Shapes: B batch, T queries, S keys, H heads, D head size, E model width, V vocabulary; K and N:
inputs and outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn.cache import Cache
from trifold.nn.hooks import AttentionHooks
from trifold.nn.inputs import Inputs
from trifold.nn.masks import Mask, PairBias
from trifold.nn.precision import widened
from trifold.nn.rng import thread_rng

# --- embeddings and linear layers -----------------------------------------------------------------


def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """The rows of weight (V, E) at indices (…) -> (…, E)."""
    return F.embedding(indices, weight)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """x (…, K) times weight (N, K) transposed, plus bias (N,) -> (…, N) of type `dtype`, or that of
    x.
    """
    return F.linear(x, weight, bias).to(dtype or x.dtype)


def linears(x: Tensor, layers: Sequence[Any]) -> tuple[Tensor, ...]:
    """The outputs of several linear layers on one input."""
    return tuple(layer(x) for layer in layers)


def activation_linear(
    layer: nn.Module, activation: Callable[[Tensor], Tensor], x: Tensor, gated: Tensor | None = None
) -> Tensor:
    """layer(activation(x)), or layer(activation(x) · gated). A faster version may recompute the
    activation in the backward pass instead of saving it.
    """
    inner = activation(x)
    if gated is not None:
        inner = inner * gated
    return layer(inner)


def feed_forward(layer: Any, x: Tensor) -> Tensor:
    """A feed-forward network: x (B, T, E) -> (B, T, E); see `FeedForward.transform`."""
    return layer.transform(x)


# --- elementwise operations and norms -------------------------------------------------------------


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))           (Hendrycks & Gimpel 2016, section 2)."""
    return F.gelu(x, approximate="tanh")


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """(x − mean) / √(variance + ε) · weight + bias over the last dimension     (Ba et al. 2016)."""
    return F.layer_norm(x, weight.shape, weight, bias, epsilon)


def dropout(y: Tensor, p: float, x: Tensor | None = None) -> Tensor:
    """Zeroes each element with probability p and multiplies the others by 1 / (1 − p)
                                                                           (Srivastava et al. 2014).

    x: added to the result.
    """
    if x is None:
        return torch.where(_kept(y, p), y * (1 / (1 - p)), 0.0)
    return torch.add(x, torch.where(_kept(y, p), y, 0.0), alpha=1 / (1 - p))


def _kept(like: Tensor, p: float) -> Tensor:
    """A boolean mask, False with probability p: element j is kept where the hash of (seed, j) is at
    least p · 2³².

    One seed is drawn from the thread's generator. The hash is Wellons' "lowbias32" (2018), computed
    modulo 2³².
    """
    seed = int(torch.randint(2**32, (), generator=thread_rng()))
    low = 2**32 - 1
    x = (torch.arange(like.numel(), device=like.device) * 0x9E3779B1 + seed) & low
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & low
    x = ((x ^ (x >> 15)) * 0x846CA68B) & low
    return ((x ^ (x >> 16)) >= min(round(p * 2**32), low)).view(like.shape)


# --- attention ------------------------------------------------------------------------------------


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    bias: Tensor | PairBias | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    drop: Any = None,
    hooks: AttentionHooks | None = None,
) -> Tensor:
    """softmax(Q Kᵀ / √D + mask) V: q (B, H, T, D), k and v (B', H', S, D) -> (B, H, T, D)
                                                                              (Vaswani et al. 2017).

    H / H' heads share a head of keys and values, and B / B' consecutive rows share a row of them. A
    soft cap c turns scores s into c·tanh(s / c) (Gemma 2); then `bias` (B or 1, H, T or 1, S) is
    added. Sinks (H,) are scores of a key whose value is 0: the other weights sum to less than 1
    (Xiao et al. 2024). The weights pass through `drop`. A query that may attend to nothing gives 0.
    hooks: the layer, if its hook points `scores` and `pattern` are watched.
    """
    rows = q.shape[0]
    q, k, v = share_keys(q, k, v)
    scores = torch.matmul(q * (1 / math.sqrt(q.shape[-1])), k.transpose(-1, -2))
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    out = weigh_values(scores, v, mask, bias=bias, sinks=sinks, drop=drop, hooks=hooks)
    return unshare_keys(out, rows)


def weigh_values(
    scores: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    bias: Tensor | PairBias | None = None,
    sinks: Tensor | None = None,
    drop: Any = None,
    hooks: AttentionHooks | None = None,
) -> Tensor:
    """The softmax of scores (B, H, T, S) with bias and mask, times v (B, H, S, Y) -> (B, H, T, Y);
    see `attend`.
    """
    queries, keys = scores.shape[-2:]
    if bias is not None and not isinstance(bias, Tensor):
        bias = bias.dense(queries, keys)
    offsets = mask.additive(queries, keys, scores, bias)
    if offsets is not None:
        scores = scores + offsets
    if hooks is not None:
        scores = hooks.scores(scores)
    masked = None
    if offsets is not None and mask.has_fully_masked_rows(queries, keys, scores.device):
        # A softmax over -inf only would give NaN gradients, so fully masked rows become 0 before
        # it.
        masked = (offsets == float("-inf")).all(-1, keepdim=True)
        scores = scores.masked_fill(masked, 0.0)
    weights = torch.softmax(scores, dim=-1)
    if sinks is not None:
        # The sum of exp(s) without the sink, over the sum with it.
        weights = weights * torch.sigmoid(scores.logsumexp(-1, keepdim=True) - sinks[:, None, None])
    if masked is not None:
        weights = weights.masked_fill(masked, 0.0)
    if hooks is not None:
        weights = hooks.pattern(weights)
    if drop is not None:
        weights = drop(weights)
    return torch.matmul(weights, v)


def share_keys(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Repeat shared heads of keys and values, and turn the rows that share a row of keys into
    queries of one row: q (B, H, T, D) -> (B', H, B/B'·T, D), k and v (B', H', S, D) -> (B', H, S,
    D).
    """
    if k.shape[1] < q.shape[1]:
        k, v = (y.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for y in (k, v))
    if k.shape[0] < q.shape[0]:
        q = q.unflatten(0, (k.shape[0], -1)).transpose(1, 2).flatten(2, 3)
    return q, k, v


def unshare_keys(out: Tensor, rows: int) -> Tensor:
    """(B', H, B/B'·T, D) -> (B, H, T, D), with B = `rows`."""
    if out.shape[0] == rows:
        return out
    return out.unflatten(2, (rows // out.shape[0], -1)).transpose(1, 2).flatten(0, 1)


def attention(layer: Any, x: Tensor, memory: Tensor | None, inputs: Any) -> Tensor:
    """All heads of an attention layer, concatenated (B, T, H·D); see `Attention.attend`."""
    return layer.attend(x, memory, inputs)


# --- loss -----------------------------------------------------------------------------------------


def cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the logits of N rows, hidden (N, E) · weight (V, E)ᵀ + bias, with targets
    (N,), -1 where a row has none: sums over rows of the smoothed loss, and of the negative
    log-likelihood, which has no gradient.
    """
    logits = widened(F.linear(hidden, weight, bias))
    loss = F.cross_entropy(
        logits, targets, reduction="sum", label_smoothing=smoothing, ignore_index=-1
    )
    return loss, F.cross_entropy(logits, targets, reduction="sum", ignore_index=-1).detach()


# --- stacks ---------------------------------------------------------------------------------------


def layers(stack: Any, x: Tensor, inputs: Any) -> Tensor:
    """All layers of a stack and its final norm, without a cache: x (B, T, E) -> (B, T, E)."""
    return stack.run_layers(x, inputs)


def decoding_step(stack: Any, x: Tensor, inputs: Any, cache: Cache) -> Tensor:
    """All layers of a decoder with a cache: x (B, T, E) -> (B, T, E)."""
    return stack.run_layers(x, inputs, cache)


def next_logits(
    model: Any,
    head: Callable[[Tensor], Tensor],
    tokens: Tensor,
    attend: Tensor | None,
    memory: Any,
    cache: Cache,
) -> Tensor:
    """One more token of each row, tokens (R,), after those in the cache -> the logits (R, V) of the
    tokens after it.

    attend: (B, S), past and new tokens. See `Transformer.decode` and `LanguageModelHead`.
    """
    return head(model.decode(Inputs(tokens[:, None], attend), memory, cache)[:, -1])


def head_output(model: Any, inputs: Inputs, name: str) -> Tensor:
    """The output of one head, as `Transformer.head_outputs` has it."""
    return model.head_outputs(inputs, heads=[name])[name]


# --- the table ------------------------------------------------------------------------------------

_LINEAR = (embedding, linear, linears, activation_linear, feed_forward)
_LAYERS = (*_LINEAR, gelu_tanh, layer_norm, dropout)
_STEPS = (decoding_step, next_logits)
PLAIN: dict[str, Callable[..., Any]] = {
    operation.__name__: operation
    for operation in (*_LAYERS, attend, attention, cross_entropy, layers, *_STEPS, head_output)
}


def install(versions: dict[str, Callable[..., Any]]) -> None:
    """Replace the named operations by versions with the same signature; all others become plain."""
    assert versions.keys() <= PLAIN.keys(), (
        f"no such operations: {sorted(versions.keys() - PLAIN.keys())}"
    )
    globals().update(PLAIN | versions)
