"""A window: a query attends to near keys only                    (Beltagy et al. 2020, section 3.1)

Layers may have windows of different sizes, or none (`CoreConfig.window`). Distances count real
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from trifold.nn.config import CoreConfig
from trifold.nn.masks import Mask, MaskPart, Rule
from trifold.nn.parts import RulePart
from trifold.nn.problems import Problems


@dataclass(frozen=True)
class Window(Rule):
    """A query attends to keys at a distance of less than `size` real keys."""

    blockwise = "near"

    size: int

    can_be_lifted = True
    may_forbid_all = False

    @property
    def window(self) -> int:  # type: ignore[override]
        return self.size

    @property
    def sentence(self) -> str:
        return f"a window of {self.size} tokens"

    def allowed(self, part: MaskPart) -> Tensor | None:
        if self._fits(part):
            return None
        own, others = part.at_pairs(part.positions)
        return (others - own).abs() < self.size

    def _fits(self, part: MaskPart) -> bool:
        """Whether no distance exceeds the window."""
        if isinstance(part.keys, Tensor):
            return False
        stop = part.keys.stop
        if isinstance(part.queries, slice):
            stop = max(stop, part.queries.stop)
        return bool(stop - part.keys.start <= self.size)

    def reach(self, causal: bool) -> tuple[int, int]:
        return self.size - 1, 0 if causal else self.size - 1


class WindowPart(RulePart):
    """Windows of the layers of a stack."""

    key = "sliding_window"
    keys = "window_pattern decoder_window"

    def of_layer(
        self, config: CoreConfig, layer: int, mask: Mask, queries: int, *, training: bool
    ) -> Rule | None:
        size = config.window(layer)
        return None if size is None else _window(size)

    def problems(self, config: CoreConfig) -> Problems:
        pattern = config.window_pattern
        if wrong := [own for own in pattern if isinstance(own, int) and own < 1]:
            yield (
                f"window_pattern: {wrong[0]} is neither local, global nor a positive number of keys"
            )
        if "local" not in pattern and {*pattern} != {"global"}:
            yield (
                "window_pattern has numbers, but no local layer, which has sliding_window: write "
                "local for one of them"
            )

    def keys_read(self, config: CoreConfig, layer: int, keys: int, side: str) -> int:
        window = config.window(layer) or keys
        return min(keys, 2 * window - 1 if side == "encoder" else window)

    def reach(self, config: CoreConfig, side: str) -> Iterator[str]:
        sizes = [size for layer in range(config.n_layers) if (size := config.window(layer))]
        if sizes:
            shown = " to ".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)}))
            some = " in some layers" if len(sizes) < config.n_layers else ""
            yield f"window of {shown} tokens{some}"

    def examples(self, given: Mapping[str, Mask]) -> Mapping[str, Mask]:
        rules = (Window(4),)
        return {
            "window of 4": Mask(rules=rules),
            "causal window of 4": Mask(causal=True, rules=rules),
        }


@cache
def _window(size: int) -> Window:
    """One value for each size, so that equal layers share a mask."""
    return Window(size)


PARTS = (WindowPart(),)
