"""Named places in the model that can be read while it runs.

Every tensor worth looking at flows through a `Place`, an identity. `capture(model)` records what passes:

    with capture(model) as seen:
        model(inputs)
    seen["decoder.blocks.0.cross_attention.sublayer.pattern"]     # (B, H, T, S)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


class Place(nn.Module):
    """An identity with a name. `watched` is True while somebody reads it, and the fast kernels then give way."""

    watched = False

    def forward(self, x: Tensor) -> Tensor:
        return x


@contextmanager
def capture(model: nn.Module, ending: str = "") -> Iterator[dict[str, Tensor]]:
    """Record, detached, what flows through every place whose dotted name ends with `ending`."""
    seen: dict[str, Tensor] = {}
    places = {name: m for name, m in model.named_modules() if isinstance(m, Place) and name.endswith(ending)}
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
