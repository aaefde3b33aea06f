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

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.errors import plural
from trifold.nn import formulas
from trifold.nn.config import MAX_LAYERS, CoreConfig
from trifold.nn.explain import Steps
from trifold.nn.formulas import FormulaRow
from trifold.nn.hooks import ModuleCall, record_calls
from trifold.nn.layers import FeedForward
from trifold.nn.parts import FeedForwardPart, used_group
from trifold.nn.precision import wide_dtype
from trifold.nn.problems import Problems
from trifold.nn.walk import LayerInputs
from trifold.settings import Settings


class Experts(Settings):
    """A mixture of experts instead of the feed-forward network: a router chooses a few of them for
    each token.
    """

    count: int = Field(gt=1, le=MAX_LAYERS, description="experts of a layer")
    per_token: int = Field(gt=0, description="experts that a token passes")
    d_ff: int | None = Field(None, gt=0, description="inner width of an expert; default: d_ff")
    shared: int = Field(
        0, ge=0, description="experts that every token passes, as one of their total width"
    )
    score: Literal["softmax", "sigmoid"] = Field(
        "softmax", description="weight of an expert from its logit"
    )
    normalize: bool = Field(True, description="the weights of a token sum to 1")
    scale: float = Field(1.0, gt=0, description="factor of the weights")
    groups: int = Field(1, gt=0, description="groups of experts")
    groups_per_token: int = Field(1, gt=0, description="groups that a token's experts come from")
    correction: bool = Field(False, description="a bias that affects the choice of experts only")
    bias: bool = Field(False, description="bias of the router")
    dense_layers: int = Field(
        0, ge=0, description="first layers with a feed-forward network of width d_ff"
    )


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

    wide_parameters = ("correction",)  # in at least fp32 whatever the precision of the model

    def __init__(self, config: CoreConfig, experts: Experts) -> None:
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts.count, config.d_model))
        self.bias = nn.Parameter(torch.empty(experts.count)) if experts.bias else None
        self.correction = nn.Parameter(torch.empty(experts.count)) if experts.correction else None

    def forward(self, x: Tensor) -> Routing:
        """x (N, E) -> the experts of each token."""
        experts = self.experts
        wide = wide_dtype(x)
        bias = None if self.bias is None else self.bias.to(wide)
        logits = F.linear(x.to(wide), self.weight.to(wide), bias)
        scores = logits.softmax(-1) if experts.score == "softmax" else logits.sigmoid()
        corrected = scores if self.correction is None else scores + self.correction
        preferred = corrected.detach()
        if experts.groups > 1:
            groups = preferred.unflatten(-1, (experts.groups, -1))
            group_scores = groups.topk(min(2, groups.shape[-1])).values.sum(-1)
            best = group_scores.topk(experts.groups_per_token).indices
            outside = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter(-1, best, False)
            preferred = groups.masked_fill(outside[..., None], float("-inf")).flatten(-2)
        chosen = preferred.topk(experts.per_token).indices
        weights = scores.gather(-1, chosen)
        if experts.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return Routing(logits, scores, weights * experts.scale, chosen)


class MixtureOfExperts(nn.Module):
    """Takes the place of a FeedForward. A token's output does not depend on the other tokens."""

    has_fixed_shapes = False  # they depend on the experts that are chosen

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        experts = _experts(config)
        width = experts.d_ff or config.d_ff
        self.router = Router(config, experts)
        one = config.model_copy(update={"d_ff": width})
        self.experts = nn.ModuleList(FeedForward(one) for _ in range(experts.count))
        shared = config.model_copy(update={"d_ff": width * experts.shared})
        self.shared = FeedForward(shared) if experts.shared else None

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

    def explain(self, steps: Steps, x: Tensor, inputs: LayerInputs, name: str) -> Tensor:
        """See `nn.explain`."""
        weights = self.router(x.flatten(0, -2)).weights[None]
        return steps.add("experts", "Σ g_i · FFN_i(x)", self(x), x=x, g=weights)


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
    rows = rows[real]
    probabilities = F.normalize(scores[real], p=1, dim=-1)
    lengths = torch.bincount(rows, minlength=count).clamp_min(1)[:, None]
    choices = (
        F.one_hot(chosen[real], scores.shape[-1]).sum(1).to(probabilities.dtype) / chosen.shape[-1]
    )
    shares, means = (
        probabilities.new_zeros(count, scores.shape[-1]).index_add(0, rows, x) / lengths
        for x in (choices, probabilities)
    )
    return scores.shape[-1] * (shares * means).sum()


def z_loss(routing: Routing, rows: Tensor, count: int) -> Tensor:
    """The sum over tokens of (log Σ exp logits)², which keeps logits small (Zoph et al. 2022,
    equation 5).
    """
    return routing.logits[rows >= 0].logsumexp(-1).square().sum()


# --- the part -------------------------------------------------------------------------------------


class ExpertsPart(FeedForwardPart):
    """Experts instead of the network, in all layers but the first dense ones."""

    key = "experts"
    needs: ClassVar = {"residual": ("sequential",)}
    losses = {"balance": balance_loss, "router_z": z_loss}  # noqa: RUF012

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        experts = _experts(config)
        return FeedForward(config) if layer < experts.dense_layers else MixtureOfExperts(config)

    def problems(self, config: CoreConfig) -> Problems:
        experts = _experts(config)
        if experts.count % experts.groups:
            yield f"experts.groups {experts.groups} does not divide experts.count {experts.count}"
        if experts.groups_per_token > experts.groups:
            yield (
                f"experts.groups_per_token {experts.groups_per_token} exceeds experts.groups "
                f"{experts.groups}"
            )
        if experts.per_token > (most := experts.count // experts.groups * experts.groups_per_token):
            yield (
                f"experts.per_token {experts.per_token} exceeds {most}, the experts that a token "
                "can reach"
            )

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> Iterator[FormulaRow]:
        """X experts of width J, and K shared ones; then the dense layers."""
        experts = _experts(config)
        dense = min(blocks, experts.dense_layers)
        router = f"E·X{' + X' * (experts.bias + experts.correction)}"
        every = formulas.feed_forward(config, "J")
        shared = f" + {formulas.feed_forward(config, 'K·J')}" if experts.shared else ""
        letters = {"X": experts.count, "J": experts.d_ff or config.d_ff, "K": experts.shared}
        formula = f"L·({router} + X·{every}{shared})"
        yield FormulaRow(f"{side} experts", formula, letters | {"L": blocks - dense})
        yield from super().parameters(config, side, dense)

    def elements(self, config: CoreConfig, layer: int) -> int:
        """Of its experts only, and the router."""
        experts = _experts(config)
        if layer < experts.dense_layers:
            return super().elements(config, layer)
        matrices = (3 if config.gated else 2) * config.d_model
        width = (experts.per_token + experts.shared) * (experts.d_ff or config.d_ff)
        return matrices * width + config.d_model * experts.count

    def recorded_layers(self, config: CoreConfig) -> int:
        """Layers of all stacks with experts."""
        experts = _experts(config)
        blocks = (
            config.block_of_layer or range(stack.n_layers) for stack in config.stacks.values()
        )
        return sum(block >= experts.dense_layers for order in blocks for block in order)

    def record(self, model: nn.Module) -> AbstractContextManager[list[list[ModuleCall]]]:
        return record_routers(model)

    def saved(self, config: CoreConfig) -> tuple[int, int]:
        """With the inputs of the experts."""
        experts = _experts(config)
        width = (experts.per_token + experts.shared) * (experts.d_ff or config.d_ff)
        return width, 2 * experts.per_token

    def differences(self, config: CoreConfig) -> Iterator[str]:
        experts = self._of_layers(config)
        if experts is None:
            return
        yield f"{experts.per_token} of {experts.count:,} experts"
        if experts.groups > 1:
            yield f"{experts.groups_per_token} of {experts.groups} groups"
        if experts.shared:
            yield plural(experts.shared, "shared expert")
        if experts.dense_layers:
            yield f"{plural(experts.dense_layers, 'dense layer')} first"

    def inner_width(self, config: CoreConfig, stack: CoreConfig) -> int:
        experts = self._of_layers(config)
        return stack.d_ff if experts is None else experts.d_ff or stack.d_ff

    def box(self, config: CoreConfig, stack: CoreConfig, lines: Sequence[str]) -> Sequence[str]:
        experts = self._of_layers(config)
        if experts is None:
            return lines
        title = f"{experts.per_token} of {experts.count:,} experts"
        shared = [f"and {experts.shared} shared"] if experts.shared else []
        return (title, self.sizes(config, stack), *lines[2:], *shared)

    def _of_layers(self, config: CoreConfig) -> Experts | None:
        """The settings, if some layer has experts."""
        return _experts(config) if self.recorded_layers(config) else None


def _experts(config: CoreConfig) -> Experts:
    return used_group(config, "experts", Experts)


PARTS = (ExpertsPart(),)
