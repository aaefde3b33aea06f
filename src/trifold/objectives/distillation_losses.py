"""Losses of a student against its teacher, and the student's initial weights. All losses are sums
over rows.

soft targets   τ² Σ_v p_v (log p_v − log q_v),  p = softmax(z_T / τ),  q = softmax(z_S / τ)
                                                                                (Hinton et al. 2015)
states         1 − cos(h_S, h_T)                           (Sanh et al. 2019, DistilBERT, section 3)
relations      1/A Σ_a KL( softmax(X_a Y_aᵀ / √d)_T ‖ the same of the student )
                                                                          (Wang et al. 2020, MiniLM)

X and Y are queries, keys or values of one layer: q·k is its attention, v·v its value relation
(MiniLM, section 3). With the width split into A new heads, q·q, k·k and v·v are those of the second
version (Wang et al. 2021, section 3.2).

In the formulas T and S are teacher and student. Shapes: B batch, T tokens, H heads, D head size, E
width, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.nn.attention import Attention, merge_heads, split_heads
from trifold.nn.gradients import first_order
from trifold.nn.hooks import ModuleCall
from trifold.nn.losses import CHUNK
from trifold.nn.masks import Mask, PairBias
from trifold.nn.precision import wide_dtype, widened
from trifold.nn.transformer import Transformer


class _SoftTargets(torch.autograd.Function):
    """τ² · KL summed over N rows, float32 or float64, in chunks of logits.

    The student's features (N, E), weight (V, E) and bias (V,) or None; the teacher's states (N, E')
    and the function that computes its logits (…, V) from them. Computes the gradients in the
    forward pass, while a chunk's probabilities exist: dKL/dz_S = (q − p) / τ.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        teacher: Callable[[Tensor], Tensor],
        states: Tensor,
        temperature: float,
    ) -> Tensor:
        d_features = torch.empty_like(features)
        wide = wide_dtype(features)
        d_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device)
        d_bias = None
        if bias is not None:
            d_bias = torch.zeros(bias.shape, dtype=wide, device=bias.device)
        loss = torch.zeros((), dtype=wide, device=features.device)
        for start in range(0, len(features), CHUNK):
            rows = slice(start, start + CHUNK)
            log_p = (teacher(states[rows]).to(wide) / temperature).log_softmax(-1)
            log_q = F.linear(features[rows], weight, bias).to(wide)
            log_q = (log_q / temperature).log_softmax(-1)
            p = log_p.exp()
            loss = loss + (p * (log_p - log_q)).sum()
            d_logits = log_q.exp_().sub_(p).mul_(temperature)
            if d_bias is not None:
                d_bias += d_logits.sum(0)
            d_logits = d_logits.to(features.dtype)
            torch.mm(d_logits, weight, out=d_features[rows])
            d_weight += torch.mm(d_logits.t(), features[rows])
        ctx.save_for_backward(d_features, d_weight, d_bias)
        ctx.dtype = weight.dtype
        return loss * temperature**2

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_features, d_weight, d_bias = ctx.saved_tensors
        scale = gradients[0]
        if d_bias is not None:
            d_bias = (d_bias * scale).to(ctx.dtype)
        d_weight = (d_weight * scale).to(ctx.dtype)
        return d_features * scale.to(d_features.dtype), d_weight, d_bias, None, None, None


soft_target_loss: Callable[..., Tensor] = _SoftTargets.apply


def class_target_loss(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """τ² · KL of the classes (B, C) of a student from those of a teacher, summed over the rows,
    float32 or float64.
    """
    log_p = (widened(targets) / temperature).log_softmax(-1)
    log_q = (widened(logits) / temperature).log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum() * temperature**2


def cosine_loss(states: Tensor, targets: Tensor) -> Tensor:
    """Both (N, E) -> 1 − cosine, summed over the rows, float32 or float64."""
    return (1 - F.cosine_similarity(widened(states), widened(targets), dim=-1)).sum()


# --- relations ------------------------------------------------------------------------------------


class AttentionRelations(NamedTuple):
    """The relations of one attention layer: two factors (B, H, T, D) each; the soft cap and the
    bias of its own scores; its mask.
    """

    factors: dict[str, tuple[Tensor, Tensor]]
    bias: Tensor | PairBias | None
    mask: Mask
    soft_cap: float | None = None


def attention_relations(attention: Attention, recorded: ModuleCall) -> AttentionRelations:
    """The relations of a recorded call of a self-attention."""
    x = recorded.args[0]
    mask = recorded.kwargs["mask"]
    q, k, v = attention.project(x, mask)
    rotary = recorded.kwargs.get("rotary")
    queries = q
    keys = k
    if rotary is not None:
        queries = rotary(q)
        keys = rotary(k)
    queries, bias = attention.queries_and_bias(queries, keys, recorded.kwargs.get("bias"))
    factors = {"attention": (queries, keys), "queries": (q, q), "keys": (k, k), "values": (v, v)}
    return AttentionRelations(factors, bias, mask, attention.soft_cap)


def relation_losses(
    student: AttentionRelations,
    teacher: AttentionRelations,
    names: Sequence[str],
    heads: int | None = None,
) -> dict[str, Tensor]:
    """The divergence of each named relation, averaged over heads and summed over real tokens,
    float32 or float64.

    heads: the number of heads that the widths are split into; by default each model's own, which
    must then be equal. The bias of scores belongs to a model's own heads and is left out after a
    new split.
    """
    values, _ = teacher.factors["values"]
    tokens = values.shape[2]
    allowed = teacher.mask.dense(tokens, tokens, values.device)
    real = teacher.mask.real
    losses = {}
    for name in names:
        with torch.no_grad():
            log_p = _log_relation(teacher, name, heads, allowed)
        log_q = _log_relation(student, name, heads, allowed)
        divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean(1)
        if real is not None:
            divergence = divergence * real
        losses[name] = divergence.sum()
    return losses


def _log_relation(
    relations: AttentionRelations, name: str, heads: int | None, allowed: Tensor | None
) -> Tensor:
    """(B, A, T, T)."""
    x, y = (_split_again(widened(factor), heads) for factor in relations.factors[name])
    scores = x @ y.transpose(-1, -2) / math.sqrt(x.shape[-1])
    if name == "attention" and heads is None:
        scores = _own_scores(scores, relations)
    if allowed is not None:
        # Not -inf: masked keys have probability 0 in both models, and their logarithms must have a
        # difference.
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.log_softmax(-1)


def _own_scores(scores: Tensor, relations: AttentionRelations) -> Tensor:
    """q·k / √D (B, H, T, T) -> the scores of the layer, without its mask; see `ops.attend`."""
    bias = relations.bias
    cap = relations.soft_cap
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if isinstance(bias, PairBias):
        bias = bias.dense(*scores.shape[-2:])
    if bias is None:
        return scores
    return scores + bias


def _split_again(x: Tensor, heads: int | None) -> Tensor:
    """(B, H, T, D) -> (B, A, T, H·D/A)."""
    if heads is None:
        return x
    width = x.shape[1] * x.shape[3]
    return split_heads(merge_heads(x), width // heads)


# --- initial weights of a student -----------------------------------------------------------------


def evenly_spaced(student: int, teacher: int) -> tuple[int, ...]:
    """The teacher's layer for each layer of the student, from the first to the last.

    6 of 12 are 0, 2, 4, 7, 9, 11, as in DistilBERT's code.
    """
    return tuple(round(layer * (teacher - 1) / max(student - 1, 1)) for layer in range(student))


@torch.no_grad()
def copy_layers(student: Transformer, teacher: Transformer, layers: Sequence[int]) -> None:
    """Copy layer `layers[n]` of the teacher's stacks into layer n of the student's, and all other
    parameters.

    Raises ValueError with the parameters that the teacher lacks or has in another shape.
    """
    for side in ("encoder", "decoder"):
        ours = getattr(student, side)
        theirs = getattr(teacher, side)
        if ours is not None and (
            len(ours.blocks) != len(layers) or max(layers) >= len(theirs.blocks)
        ):
            raise ValueError(
                f"cannot fill {len(ours.blocks)} layers of the student's {side} with layers "
                f"{tuple(layers)} of {len(theirs.blocks)} layers of the teacher's"
            )
    learned = dict(teacher.named_parameters())
    missing = []
    for name, parameter in student.named_parameters():
        source = learned.get(_source_name(name, layers))
        if source is not None and source.shape == parameter.shape:
            parameter.copy_(source)
        else:
            missing.append(f"{name} of shape {tuple(parameter.shape)}")
    if missing:
        more = " …" if len(missing) > 3 else ""
        raise ValueError(f"the teacher has no {', '.join(missing[:3])}{more}")


def _source_name(name: str, layers: Sequence[int]) -> str:
    """The teacher's name for a parameter of the student."""
    side, _, rest = name.partition(".blocks.")
    number, _, inner = rest.partition(".")
    return f"{side}.blocks.{layers[int(number)]}.{inner}" if inner else name
