"""Named places in the model that can be read while it runs.

Every tensor worth looking at flows through a `Place`, an identity. `capture(model)` records what passes:

    with capture(model) as seen:
        model(inputs)
    seen["decoder.blocks.0.cross_attention.sublayer.pattern"]     # (B, H, T, S)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn


class Place(nn.Module):
    """An identity with a name. `watched` is True while somebody reads it; fast kernels give way to watched patterns.

    kind: "pattern" for attention weights, "state" for what a layer or the embeddings give.
    """

    watched = False

    def __init__(self, kind: Literal["pattern", "state"] = "pattern") -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return x


class Entered(NamedTuple):
    """What a part was called with, and what it gave; gradients flow."""

    args: tuple[Any, ...]
    named: dict[str, Any]
    out: Any


@contextmanager
def calls(part: nn.Module) -> Iterator[list[Entered]]:
    """Record every call of a part while it runs. What it goes through must not be shared with another thread."""
    seen: list[Entered] = []
    hook = part.register_forward_hook(
        lambda _module, args, named, out: seen.append(Entered(args, named, out)), with_kwargs=True
    )
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def capture(model: nn.Module, ending: str = "", *, kind: str | None = None) -> Iterator[dict[str, Tensor]]:
    """Record, detached, what flows through every place whose dotted name ends with `ending`, of one kind or all.

    Of a place that is passed more than once (a block that several layers share) the last is kept.
    """
    seen: dict[str, Tensor] = {}
    places = {
        name: place
        for name, place in model.named_modules()
        if isinstance(place, Place) and name.endswith(ending) and kind in (None, place.kind)
    }
    hooks = [
        place.register_forward_hook(
            lambda _module, _args, out, name=name: seen.__setitem__(name, out.detach())
        )
        for name, place in places.items()
    ]
    for place in places.values():
        place.watched = True
    try:
        yield seen
    finally:
        for place in places.values():
            place.watched = False
        for hook in hooks:
            hook.remove()
