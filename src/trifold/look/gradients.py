"""Gradients by layer: how much the loss of one text changes with the states and the parameters."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from trifold.look.plots import HIGHLIGHT, MUTED, Figure, new_figure
from trifold.predict.trace import Trace

# Parameters of a block, by the beginning of their names, and all others.
PARTS = ("self_attention", "cross_attention", "feed_forward")


class LayerGradients(NamedTuple):
    """Norms of the gradients at a layer, from 1; 0 for the embeddings. states: of what it returns,
    for each token, and their mean. parameters: of each part of the block, and of all of it.
    """

    side: str
    layer: int
    tokens: list[float]
    states: float
    parameters: dict[str, float]


def layer_gradients(trace: Trace) -> list[LayerGradients]:
    """The gradients of the loss of a trace with gradients, layer after layer; without labels, of
    the best logit.
    """
    model: Any = trace.pipeline.model
    found = list[LayerGradients]()
    for side in model.config.stacks:
        stack = getattr(model, side)
        name = f"{side}_embeddings.output"
        found.append(_layer(side, 0, trace.gradients[name], {}))
        for layer, block in enumerate(stack.block_of_layer):
            state = trace.gradients[f"{side}.states.{layer}"]
            norms = _parameter_norms(trace, stack.blocks[block])
            found.append(_layer(side, layer + 1, state, norms))
    return found


def _layer(side: str, layer: int, state: Tensor, norms: dict[str, float]) -> LayerGradients:
    of_tokens = state.detach().float().norm(dim=-1)
    return LayerGradients(side, layer, of_tokens.tolist(), float(of_tokens.mean()), norms)


def _parameter_norms(trace: Trace, block: torch.nn.Module) -> dict[str, float]:
    """The norm of the gradients of each part of a block that has parameters, and of all."""
    named = [(name, each) for name, each in block.named_parameters() if each.requires_grad]
    gradients = trace.gradients_of([each for _, each in named])
    squares = dict[str, float]()
    for (name, _), gradient in zip(named, gradients, strict=True):
        part = next((part for part in PARTS if name.startswith(part)), "others")
        squares[part] = squares.get(part, 0.0) + float(gradient.float().square().sum())
    norms = {part: square**0.5 for part, square in squares.items()}
    return {**norms, "all": sum(squares.values()) ** 0.5}


def draw_gradients(layers: list[LayerGradients]) -> Figure:
    """The norms of the states and of the parameters, layer after layer, on a logarithmic axis."""
    figure = new_figure(6.4, 3.6)
    axis = figure.subplots()
    names = [f"{one.side[:3]} {one.layer}" for one in layers]
    axis.plot(names, [one.states for one in layers], "o-", color=HIGHLIGHT, label="states, mean")
    of_blocks = [one.parameters.get("all", float("nan")) for one in layers]
    axis.plot(names, of_blocks, "s--", color=MUTED, label="parameters")
    axis.set_yscale("log")
    axis.set_xlabel("layer (0: embeddings)")
    axis.set_ylabel("norm of the gradient")
    axis.tick_params(axis="x", labelrotation=90 if len(layers) > 8 else 0)
    axis.legend(frameon=False)
    return figure
