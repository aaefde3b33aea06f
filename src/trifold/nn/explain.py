"""How modules are explained step by step (`trifold look`).

A block has a method `explain`, and another module of a place may have one: it computes the output
of the module with the methods of `Steps`, each of which records a step. A module without it is one
step, whose formula is its attribute `formula`, or else the name of its class.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from trifold.nn.layers import Residual
from trifold.nn.walk import LayerInputs


class Steps(Protocol):
    """The steps of a forward pass of one row, and the modules that are explained by several. All
    methods return the result of the last step.

    name: of the hook point whose tensor the result equals, or with which those inside begin.
    """

    def add(
        self, title: str, formula: str, y: Tensor, hook: str | None = None, /, **operands: Any
    ) -> Tensor:
        """One step: its result y, and its operands by their names in the formula."""
        ...

    def equals(self, hook: str) -> None:
        """State the hook point of the last step."""
        ...

    def norm(self, title: str, module: Any, x: Tensor, hook: str | None = None) -> Tensor:
        """A norm; none if it is an identity."""
        ...

    def residual(
        self,
        module: Residual,
        x: Tensor,
        inputs: LayerInputs,
        name: str,
        onto: Tensor | None = None,
    ) -> Tensor:
        """A sub-layer with its residual connection; onto: what is added to, if not x."""
        ...

    def attention(self, layer: nn.Module, x: Tensor, inputs: LayerInputs, name: str) -> Tensor:
        """Attention, without its residual connection."""
        ...

    def feed_forward(self, layer: nn.Module, x: Tensor, inputs: LayerInputs, name: str) -> Tensor:
        """A feed-forward network, without its residual connection."""
        ...


def formula_of(module: nn.Module) -> str:
    """The formula of a module that is one step."""
    return getattr(module, "formula", type(module).__name__)
