"""Mixtures of experts: a router chooses a few feed-forward networks for each token.

y = Σ_i g_i FFN_i(x) over the k experts with the largest scores s, plus a shared one
                                                                   (Shazeer et al. 2017, equation 1)

    softmax   s = softmax(W x);  g = s, divided by the sum over the k experts if `normalize`
                                                                                 (Jiang et al. 2024)
    sigmoid   s = sigmoid(W x);  only the best groups of experts take part: those with the largest
              sums of the two best s + b. The correction b affects the choice, not g.
                                                              (DeepSeek-V3 2024, equations 12 to 16)

Every token passes all its experts: none has a capacity. Shapes: N tokens, X experts, k chosen ones.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn.config import ModelConfig
from trifold.nn.config_parts import Experts
from trifold.nn.hooks import ModuleCall, record_calls
from trifold.nn.layers import FeedForward


class Routing(NamedTuple):
    """logits and scores (N, X) of the router; weights and chosen (N, k): the factors and the
    numbers of the experts.
    """

    logits: Tensor
    scores: Tensor
    weights: Tensor
    chosen: Tensor


class Router(nn.Module):
    """Scores all experts in fp32 and chooses the best."""

    def __init__(self, config: ModelConfig, experts: Experts) -> None:
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts.count, config.d_model))
        self.bias = nn.Parameter(torch.empty(experts.count)) if experts.bias else None
        self.correction = nn.Parameter(torch.empty(experts.count)) if experts.correction else None

    def forward(self, x: Tensor) -> Routing:
        """x (N, E) -> the experts of each token."""
        experts, wide = self.experts, torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(wide)
        logits = F.linear(x.to(wide), self.weight.to(wide), bias)
        scores = logits.softmax(-1) if experts.score == "softmax" else logits.sigmoid()
        preferred = (
            scores.detach() if self.correction is None else (scores + self.correction).detach()
        )
        if experts.groups > 1:
            groups = preferred.unflatten(-1, (experts.groups, -1))
            best = (
                groups.topk(min(2, groups.shape[-1]))
                .values.sum(-1)
                .topk(experts.groups_per_token)
                .indices
            )
            outside = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter(-1, best, False)
            preferred = groups.masked_fill(outside[..., None], float("-inf")).flatten(-2)
        chosen = preferred.topk(experts.per_token).indices
        weights = scores.gather(-1, chosen)
        if experts.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return Routing(logits, scores, weights * experts.scale, chosen)


class MixtureOfExperts(nn.Module):
    """Takes the place of a FeedForward. A token's output does not depend on the other tokens."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.experts is not None, "the config has no experts"
        width = config.experts.d_ff or config.d_ff
        self.router = Router(config, config.experts)
        one = config.model_copy(update={"d_ff": width})
        self.experts = nn.ModuleList(FeedForward(one) for _ in range(config.experts.count))
        shared = config.model_copy(update={"d_ff": width * config.experts.shared})
        self.shared = FeedForward(shared) if config.experts.shared else None

    def forward(self, x: Tensor) -> Tensor:
        """x (…, E) -> (…, E)."""
        tokens = x.flatten(0, -2)
        *_, weights, chosen = self.router(tokens)
        weights = weights.to(x.dtype)
        out = torch.zeros_like(tokens)
        # Hook points in an expert have a batch axis, of size 1. In training all experts run, so
        # that one that no token chose has a gradient of 0.
        used = range(len(self.experts)) if torch.is_grad_enabled() else chosen.unique().tolist()
        for number in used:
            rows, slots = (chosen == number).nonzero(as_tuple=True)
            passed = self.experts[number](tokens[None, rows])[0] * weights[rows, slots, None]
            out = out.index_add(0, rows, passed)
        out = out.view(x.shape)
        return out if self.shared is None else out + self.shared(x)


# --- losses of routers ----------------------------------------------------------------------------


@contextmanager
def record_routers(model: nn.Module) -> Iterator[list[list[ModuleCall]]]:
    """The calls of each router of the model; the output of a call is a `Routing`."""
    routers = [module for module in model.modules() if isinstance(module, Router)]
    with ExitStack() as stack:
        yield [stack.enter_context(record_calls(router)) for router in routers]


def balance_loss(routing: Routing, rows: Tensor, count: int) -> Tensor:
    """The sum over rows of X Σ_i f_i p_i: f_i is the share of the row's choices that are expert i,
    p_i its mean score, after a token's scores were divided by their sum. It is 1 if all experts are
    chosen equally (Fedus et al. 2022, equations 4 to 6, for each row as in DeepSeek-V3 2024,
    equations 17 to 20, so that it does not depend on the other rows of a batch).

    rows: (N,) the row of each token, from 0 to count - 1; -1 for padding.
    """
    _, scores, _, chosen = routing
    real = rows >= 0
    rows, probabilities = rows[real], F.normalize(scores[real], p=1, dim=-1)
    lengths = torch.bincount(rows, minlength=count).clamp_min(1)[:, None]
    choices = (
        F.one_hot(chosen[real], scores.shape[-1]).sum(1).to(probabilities.dtype) / chosen.shape[-1]
    )
    shares, means = (
        probabilities.new_zeros(count, scores.shape[-1]).index_add(0, rows, x) / lengths
        for x in (choices, probabilities)
    )
    return scores.shape[-1] * (shares * means).sum()


def z_loss(routing: Routing, rows: Tensor) -> Tensor:
    """The sum over tokens of (log Σ exp logits)², which keeps logits small         (Zoph et al.
    2022, equation 5).
    """
    return routing.logits[rows >= 0].logsumexp(-1).square().sum()
