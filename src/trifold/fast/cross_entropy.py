"""Linear layer and cross-entropy in one function that never stores all logits; replaces
`nn.ops.cross_entropy`.

With logits z = h Wᵀ + b, target y, label smoothing ε (Szegedy et al. 2016) and V classes:

    loss     = log Σ exp z - (1 - ε) z_y - ε mean(z)
    dloss/dz = softmax(z) - (1 - ε) onehot(y) - ε / V

Only softmax(z) has rows × V elements. The one-hot part of the gradient is a look-up in W and the
uniform part has rank one, so both are added without a pass over the logits. The logits are computed
in chunks of rows. Used on every device; with Numba, one compiled loop replaces the softmax on a
CPU.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.fast import as_array, compiled_loops, is_autocast, is_eager_cpu, supports_loops
from trifold.fast.matmul import add_matmul, library, linear as float_linear, matmul
from trifold.fast.quantized_weight import QuantizedWeight
from trifold.nn.gradients import first_order
from trifold.nn.losses import CHUNK
from trifold.nn.ops import cross_entropy as plain_cross_entropy

# Nats; above it the probability is close to the smallest number of bf16 and fp32.
MAX_EXACT_NLL = 60.0


def cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """See `nn.ops.cross_entropy`. Exact in fp32; in bf16 the probabilities are rounded, but not the
    sums. float64, quantized weights and automatic casts use the plain operation.
    """
    is_plain = hidden.dtype is torch.float64 or isinstance(weight, QuantizedWeight)
    if is_plain or is_autocast(hidden):
        return plain_cross_entropy(hidden, weight, bias, targets, smoothing)
    if hidden.requires_grad or weight.requires_grad:
        return _LinearCrossEntropy.apply(hidden, weight, bias, targets, smoothing)  # type: ignore[no-any-return, no-untyped-call]
    return _without_gradient(hidden, weight, bias, targets, smoothing)


def _without_gradient(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """The sums from logits in fp32, since no buffer of probabilities is needed."""
    has_target = targets >= 0
    if not bool(has_target.all()):
        hidden = hidden[has_target]
        targets = targets[has_target]
    loss = nll = torch.zeros((), device=hidden.device)
    for rows, labels in zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True):
        log_probabilities = float_linear(rows, weight, bias).float().log_softmax(-1)
        picked = -log_probabilities.gather(-1, labels[:, None]).sum()
        nll = nll + picked
        loss = loss + (1 - smoothing) * picked - smoothing * log_probabilities.mean(-1).sum()
    return loss, nll


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the gradients in the forward pass, while the probabilities of a chunk are in the
    caches.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        has_target = (targets >= 0).float()
        labels = targets.clamp_min(0)
        rows = len(hidden)
        classes = weight.shape[0]
        d_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        d_bias = (
            None
            if bias is None
            else torch.zeros(classes, dtype=torch.float32, device=weight.device)
        )
        d_hidden = torch.empty_like(hidden)
        nll = uniform = d_weight.new_zeros(())
        mean_weight = weight.float().mean(0)
        hidden_sum = torch.zeros_like(mean_weight)
        # Matmuls are faster with chunks (classes, rows) than with their transposes. PyTorch's
        # library for fp32 also reads a transposed matrix in place; oneDNN copies it in each call.
        is_float32 = hidden.dtype is torch.float32
        weight_t = weight.t()
        if not is_float32 or (is_eager_cpu(hidden) and library() == "onednn"):
            weight_t = weight_t.contiguous()
        buffer = hidden.new_empty(classes * min(CHUNK, rows))
        for start in range(0, rows, CHUNK):
            chunk = slice(start, min(start + CHUNK, rows))
            h = hidden[chunk]
            real = has_target[chunk]
            label = labels[chunk]
            z = buffer[: classes * len(h)].view(classes, len(h))
            z = matmul(weight, h.t(), out=z)
            if bias is not None:
                z += bias[:, None]
            inverse_sum, picked = _softmax_in_place(z, h, targets[chunk], weight, bias)
            nll = nll + picked.sum()
            h32 = h.float() * real[:, None]  # h is the caller's memory
            if is_float32:
                add_matmul(d_weight, z, h32 * inverse_sum[:, None])
            else:
                _accumulate(d_weight, torch.mm(z, (h32 * inverse_sum[:, None]).to(hidden.dtype)))
            if d_bias is not None:
                d_bias += (z * inverse_sum).sum(1)
            d_hidden[chunk] = matmul(weight_t, z).t()
            # The one-hot part, a look-up, and the uniform part, which has rank one.
            label_weight = weight[label].float()
            d_h = d_hidden[chunk].float().mul_(inverse_sum[:, None])
            d_h.addcmul_(label_weight, real[:, None], value=smoothing - 1)
            d_weight.index_add_(0, label, h32, alpha=smoothing - 1)
            if d_bias is not None:
                d_bias.index_add_(0, label, real, alpha=smoothing - 1)
            if smoothing:
                d_h.addcmul_(mean_weight, real[:, None], value=-smoothing)
                hidden_sum += h32.sum(0)
                # log Σ exp z = z_y - log p_y and mean(z) = h · mean(W) + mean(b) need no pass over
                # the logits.
                difference = (h32 * label_weight).sum(-1) - h32 @ mean_weight
                if bias is not None and d_bias is not None:
                    difference += (bias[label].float() - bias.float().mean()) * real
                    d_bias -= (smoothing / classes) * real.sum()
                uniform = uniform + difference.sum()
            d_hidden[chunk] = d_h
        if smoothing:
            d_weight -= (smoothing / classes) * hidden_sum
        loss = nll + smoothing * uniform
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.dtype = weight.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        scale = gradients[0]
        d_bias = None if d_bias is None else (d_bias * scale).to(ctx.dtype)
        return (
            d_hidden * scale.to(d_hidden.dtype),
            (d_weight * scale).to(ctx.dtype),
            d_bias,
            None,
            None,
        )


def _softmax_in_place(
    z: Tensor, hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Replace logits z (V, N) by e, where e · inverse_sum = softmax(z) of each column; returns
    inverse_sum (N,) and -log p of the targets (N,), both 0 where there is no target.
    """
    if supports_loops(z):
        inverse_sum, nll = torch.empty(2, len(targets))
        compiled_loops().cross_entropy(*map(as_array, (z, targets, inverse_sum, nll)))
        return inverse_sum, nll
    torch.softmax(z, dim=0, out=z)
    has_target = targets >= 0
    labels = targets.clamp_min(0)
    nll = torch.where(has_target, -z.gather(0, labels[None]).float().squeeze(0).log(), 0.0)
    if bool((underflowed := nll > MAX_EXACT_NLL).any()):
        logits = F.linear(hidden[underflowed], weight, bias).float()
        nll[underflowed] = F.cross_entropy(logits, labels[underflowed], reduction="none")
    return has_target.float(), nll


def _accumulate(total: Tensor, x: Tensor) -> None:
    """total += x, without the fp32 copy that PyTorch makes of a bf16 x."""
    if x.dtype is torch.bfloat16 and supports_loops(x):
        compiled_loops().accumulate_columns(as_array(x).reshape(1, -1), as_array(total).reshape(-1))
    else:
        total += x
