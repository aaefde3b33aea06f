"""The losses of routers in models with experts, as loss terms of an objective."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trifold.nn import Inputs, Transformer
from trifold.nn.packing import Packing
from trifold.nn.parts import FeedForwardPart, part_of
from trifold.objectives.batch import LossTerm


@dataclass(frozen=True)
class RouterLoss:
    """Loss terms of the routers of a model with experts, by the weights that are not 0.

    balance: X Σ_i f_i p_i of each row, which is least if all experts are chosen equally; a sum over
    layers (Fedus et al. 2022, equations 4 to 6). router_z: (log Σ exp logits)², a mean over tokens
    and layers (Zoph et al. 2022, equation 5).
    """

    weights: Mapping[str, float]
    layers: int

    def counts(self, packing: Packing) -> dict[str, int]:
        """The count of each term: rows; tokens of all layers."""
        counts = {"balance": packing.shape[0], "router_z": packing.n_real * self.layers}
        return {name: counts[name] for name in self.weights}

    def run(self, model: Transformer, inputs: Inputs) -> tuple[Tensor, dict[str, LossTerm]]:
        """The hidden states of packed inputs, and the terms. Routers are recorded in the forward
        pass only, so blocks that run again in the backward pass count once.
        """
        if not self.weights or not isinstance(inputs.packing, Packing):
            return model(inputs), {}
        part = part_of(FeedForwardPart, model.config)
        with part.record(model) as recorded:
            states = model(inputs)
        routings = [call.out for calls in recorded for call in calls]
        assert len(routings) == self.layers, "a block with experts was not recorded"
        packing = inputs.packing
        rows = packing.rows()
        sums = {
            name: torch.stack(
                [part.losses[name](routing, rows, packing.shape[0]) for routing in routings]
            )
            for name in self.weights
        }
        counts = self.counts(packing)
        return states, {
            name: LossTerm(sums[name].sum(), counts[name], weight)
            for name, weight in self.weights.items()
        }
