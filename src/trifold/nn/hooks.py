"""Hook points: named identities through which tensors pass, so that they can be read while the model runs.

with capture(model) as captured:
    model(inputs)
captured["decoder.blocks.0.cross_attention.sublayer.pattern"]     # (B, H, T, S)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn


class HookPoint(nn.Module):
    """An identity with a name. While it is `watched`, fused kernels, which hide weights, are not used.

    kind: "pattern" for attention weights, "state" for outputs of layers and embeddings.
    """

    watched = False

    def __init__(self, kind: Literal["pattern", "state"] = "pattern") -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return x


@contextmanager
def capture(model: nn.Module, ending: str = "", *, kind: str | None = None) -> Iterator[dict[str, Tensor]]:
    """Record, detached, what passes through the hook points whose dotted name ends with `ending`, of one kind or all.

    A point that is passed more than once (in a block that several layers share) keeps the last tensor.
    """
    captured: dict[str, Tensor] = {}

    def record(name: str, _module: nn.Module, _args: Any, out: Tensor) -> None:
        captured[name] = out.detach()

    with ExitStack() as hooks:
        for name, point in model.named_modules():
            if isinstance(point, HookPoint) and name.endswith(ending) and kind in (None, point.kind):
                hooks.enter_context(point.register_forward_hook(partial(record, name)))
                hooks.callback(setattr, point, "watched", False)
                point.watched = True
        yield captured


class ModuleCall(NamedTuple):
    """The arguments and the output of one call of a module, with gradients."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any


@contextmanager
def record_calls(module: nn.Module) -> Iterator[list[ModuleCall]]:
    """Record every call of a module, which must not be shared with another thread meanwhile."""
    recorded: list[ModuleCall] = []
    with module.register_forward_hook(
        lambda _module, args, kwargs, out: recorded.append(ModuleCall(args, kwargs, out)), with_kwargs=True
    ):
        yield recorded
