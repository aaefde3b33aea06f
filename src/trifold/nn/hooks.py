"""Hook points: named tensors that can be read and replaced while the model runs.

with capture(model) as captured:
    model(inputs)
captured["decoder.blocks.0.cross_attention.sublayer.pattern"]     # (B, H, T, S)

The number of a block in a name is that of the layer, also if several layers share a block.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor, nn

Kind = Literal["pattern", "state", "activation"]
Hook = Callable[[str, Tensor], Tensor | None]


class Hookable(nn.Module):
    """A module whose output is a hook point. While it is `watched`, so is the module that contains
    it, and operations that do not compute its output are not used.

    kind: "pattern" for attention weights, "state" for outputs of layers and embeddings,
    "activation" for all others.
    """

    watched = False
    kind: Kind = "activation"


class HookPoint(Hookable):
    """An identity with a name."""

    def __init__(self, kind: Kind = "activation") -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return x


class AttentionHooks(Protocol):
    """The hook points of the weights of an attention."""

    scores: HookPoint
    pattern: HookPoint


def hook_points(model: nn.Module) -> Iterator[tuple[Hookable, nn.Module, list[str]]]:
    """Every hook point, the module that contains it, and its dotted name in each of the layers that
    share it.
    """
    for name, point in model.named_modules():
        if isinstance(point, Hookable):
            container, _, _ = name.rpartition(".")
            yield point, model.get_submodule(container), _layer_names(model, name)


def _layer_names(model: nn.Module, name: str) -> list[str]:
    """The names of a module with the number of each layer that uses its block; its own name if it
    is in no block.
    """
    side, _, in_blocks = name.partition(".blocks.")
    block, _, inner = in_blocks.partition(".")
    if not inner:
        return [name]
    stack: Any = model.get_submodule(side)
    layers = [layer for layer, used in enumerate(stack.block_of_layer) if used == int(block)]
    return [f"{side}.blocks.{layer}.{inner}" for layer in layers]


@contextmanager
def hooked(
    model: nn.Module, hook: Hook, ending: str = "", kind: Kind | None = None
) -> Iterator[None]:
    """Call hook(name, tensor) at the hook points whose name ends with `ending`, of one kind or all;
    a tensor that it returns replaces that one.

    The hook may not change the tensor in place. Each layer passes its points once per forward pass,
    of which only one may run at a time.
    """

    def call(layers: Iterator[str], _module: nn.Module, _args: Any, out: Tensor) -> Tensor | None:
        return hook(next(layers), out)

    with ExitStack() as hooks:
        for point, container, names in hook_points(model):
            if names[0].endswith(ending) and kind in (None, point.kind):
                hooks.enter_context(point.register_forward_hook(partial(call, cycle(names))))
                for module in (point, container):
                    hooks.callback(setattr, module, "watched", getattr(module, "watched", False))
                    setattr(module, "watched", True)  # noqa: B010 (containers need not declare it)
        yield


@contextmanager
def capture(
    model: nn.Module, ending: str = "", *, kind: Kind | None = None
) -> Iterator[dict[str, Tensor]]:
    """Record, detached, what passes through the hook points whose name ends with `ending`, of one
    kind or all.
    """
    captured: dict[str, Tensor] = {}

    def record(name: str, x: Tensor) -> None:
        captured[name] = x.detach()

    with hooked(model, record, ending, kind):
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
        lambda _module, args, kwargs, out: recorded.append(ModuleCall(args, kwargs, out)),
        with_kwargs=True,
    ):
        yield recorded
