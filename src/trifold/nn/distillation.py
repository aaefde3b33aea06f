"""Learning from a larger model: its probabilities, its states, who its tokens look at. All are sums over rows.

soft targets   τ² Σ_v p_v (log p_v − log q_v),  p = softmax(z_T / τ),  q = softmax(z_S / τ)        (Hinton et al. 2015)
states         1 − cos(h_S, h_T)                                          (Sanh et al. 2019, DistilBERT, section 3)
relations      1/A Σ_a KL( softmax(X_a Y_aᵀ / √d)_T ‖ the same of the student )        (Wang et al. 2020, MiniLM)

X and Y are queries, keys or values of one layer: q·k is its attention, v·v its value relation (MiniLM, section 3), and
q·q, k·k and v·v in A heads cut anew are those of its second version (Wang et al. 2021, section 3.2).

T and S mean teacher and student, but in shapes: B batch, T tokens, H heads, D head width, E model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.nn.attention import Attention, merge_heads, split_heads
from trifold.nn.hooks import ModuleCall
from trifold.nn.losses import CHUNK
from trifold.nn.masks import Mask
from trifold.nn.transformer import Transformer

# --- probabilities -------------------------------------------------------------------------------------


def soft_target_loss(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    teacher: Callable[[Tensor], Tensor],
    states: Tensor,
    temperature: float,
) -> Tensor:
    """The student's features (N, E), weight (V, E), bias (V,) or None; the teacher's states (N, E') and what makes
    logits (…, V) of them -> τ² · KL summed over the N rows, float32. The logits of neither are ever whole.
    """
    loss: Tensor = _SoftTargets.apply(features, weight, bias, teacher, states, temperature)  # type: ignore[no-untyped-call]
    return loss


class _SoftTargets(torch.autograd.Function):
    """Computes the gradients in the forward pass, while a chunk's probabilities are at hand: dKL/dz_S = (q − p) / τ."""

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
        d_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        d_bias = None if bias is None else torch.zeros(bias.shape, dtype=torch.float32, device=bias.device)
        loss = torch.zeros((), device=features.device)
        for start in range(0, len(features), CHUNK):
            rows = slice(start, start + CHUNK)
            log_p = (teacher(states[rows]).float() / temperature).log_softmax(-1)
            log_q = (F.linear(features[rows], weight, bias).float() / temperature).log_softmax(-1)
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
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_features, d_weight, d_bias = ctx.saved_tensors
        scale = gradients[0]
        d_bias = None if d_bias is None else (d_bias * scale).to(ctx.dtype)
        d_weight = (d_weight * scale).to(ctx.dtype)
        return d_features * scale.to(d_features.dtype), d_weight, d_bias, None, None, None


# --- states --------------------------------------------------------------------------------------------


def cosine_loss(states: Tensor, wanted: Tensor) -> Tensor:
    """Both (N, E) -> 1 − cosine, summed over the rows, float32."""
    return (1 - F.cosine_similarity(states.float(), wanted.float(), dim=-1)).sum()


# --- relations -----------------------------------------------------------------------------------------


class AttentionRelations(NamedTuple):
    """What attention made of its input: for each relation the two (B, H, T, D) that are multiplied, the offsets of its
    own scores, and who sees whom.
    """

    pairs: dict[str, tuple[Tensor, Tensor]]
    offsets: Tensor | None
    mask: Mask


def attention_relations(attention: Attention, entered: ModuleCall) -> AttentionRelations:
    """Of an attention that was called so."""
    (x, *_), mask = entered.args, entered.kwargs["mask"]
    q, k, v = attention.project(x, mask.packing)
    turns = entered.kwargs.get("rotary")
    turned, found = (q, k) if turns is None else (turns.queries(q), turns.keys(k))
    asking, offsets = attention.queries_and_bias(turned, entered.kwargs.get("bias"))
    pairs = {"attention": (asking, found), "queries": (q, q), "keys": (k, k), "values": (v, v)}
    return AttentionRelations(pairs, offsets, mask)


def relation_losses(
    student: AttentionRelations, teacher: AttentionRelations, names: Sequence[str], heads: int | None = None
) -> dict[str, Tensor]:
    """For each of these relations the divergence of the student from the teacher, a mean over heads, summed over the
    real tokens, float32.

    heads: how many the widths are cut into before they are compared; those of the models unless given, which must be
    as many in both. ScoreBias by position belong to a model's own heads: cut anew, they are left out.
    """
    values, _ = teacher.pairs["values"]
    rows, _, tokens, _ = values.shape
    allowed = teacher.mask.dense(tokens, tokens, values.device)
    real = _real(teacher.mask, rows, tokens, values.device)
    losses = {}
    for name in names:
        with torch.no_grad():
            log_p = _relation(teacher, name, heads, allowed)
        log_q = _relation(student, name, heads, allowed)
        apart = (log_p.exp() * (log_p - log_q)).sum(-1).mean(1)
        losses[name] = (apart * real).sum()
    return losses


def _relation(look: AttentionRelations, name: str, heads: int | None, allowed: Tensor | None) -> Tensor:
    """Its logarithm (B, A, T, T)."""
    x, y = (_cut(part.float(), heads) for part in look.pairs[name])
    scores = x @ y.transpose(-1, -2) / math.sqrt(x.shape[-1])
    if name == "attention" and heads is None and look.offsets is not None:
        scores = scores + look.offsets
    if allowed is not None:
        # Not -inf: what nobody may see has the probability 0 in both, and its logarithms must have a difference.
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.log_softmax(-1)


def _cut(x: Tensor, heads: int | None) -> Tensor:
    """(B, H, T, D) -> (B, A, T, H·D/A)."""
    return x if heads is None else split_heads(merge_heads(x), x.shape[1] * x.shape[3] // heads)


def _real(mask: Mask, rows: int, tokens: int, device: torch.device) -> Tensor:
    """(B, T) True at real tokens."""
    real = mask.keys if mask.packing is None else mask.packing.attend
    return torch.ones(rows, tokens, dtype=torch.bool, device=device) if real is None else real


# --- where a student begins ----------------------------------------------------------------------------


def evenly_spaced(student: int, teacher: int) -> tuple[int, ...]:
    """Which layer of the teacher each of the student's begins as: evenly from its first to its last.

    Six of twelve are 0, 2, 4, 7, 9, 11, those of DistilBERT's code.
    """
    if student == 1:
        return (0,)
    return tuple(round(layer * (teacher - 1) / (student - 1)) for layer in range(student))


@torch.no_grad()
def copy_layers(student: Transformer, teacher: Transformer, layers: Sequence[int]) -> None:
    """Give layer n of each of the student's stacks what layer `layers[n]` of the teacher's has learnt, and everything
    outside of the layers too.

    Raises ValueError that lists what the student has and the teacher has not, or in another shape.
    """
    for side in ("encoder", "decoder"):
        mine, theirs = getattr(student, side), getattr(teacher, side)
        if mine is not None and (len(mine.blocks) != len(layers) or max(layers) >= len(theirs.blocks)):
            raise ValueError(
                f"layers {tuple(layers)} of a {side} of {len(theirs.blocks)} do not fill one of {len(mine.blocks)}"
            )
    learnt = dict(teacher.named_parameters())
    sources = {name: learnt.get(_source(name, layers)) for name, _ in student.named_parameters()}
    problems = [
        f"{name} of shape {tuple(parameter.shape)}"
        for name, parameter in student.named_parameters()
        if (source := sources[name]) is None or source.shape != parameter.shape
    ]
    if problems:
        raise ValueError(f"the teacher has no {', '.join(problems[:3])}{' …' if len(problems) > 3 else ''}")
    for name, parameter in student.named_parameters():
        source = sources[name]
        assert source is not None
        parameter.copy_(source)


def _source(name: str, layers: Sequence[int]) -> str:
    """The teacher's name of what the student's parameter begins as."""
    side, _, rest = name.partition(".blocks.")
    number, _, inner = rest.partition(".")
    return f"{side}.blocks.{layers[int(number)]}.{inner}" if inner else name
