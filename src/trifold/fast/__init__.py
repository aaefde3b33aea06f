"""Faster versions of the operations in `trifold.nn.ops`, by device and precision.

`enable()` installs them; `trifold.load` and `trifold.train` call it. With `import trifold.nn` alone the plain
operations run. Each version decides whether it suits its input and otherwise calls the plain definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from trifold.nn import ops

_blocked = False


@cache
def _versions() -> dict[str, Callable[..., Any]]:
    from trifold.fast.attention import attend, attention
    from trifold.fast.cross_entropy import cross_entropy
    from trifold.fast.decoding_step import decoding_step
    from trifold.fast.elementwise import add_dropout, dropout, gelu_tanh, layer_norm
    from trifold.fast.linear import activation_linear, linear, linears

    versions = (linear, linears, activation_linear, gelu_tanh, layer_norm, dropout, add_dropout)
    return {
        version.__name__: version for version in (*versions, attend, attention, cross_entropy, decoding_step)
    }


def enable() -> None:
    """Install the faster versions. Has no effect within `disabled()`."""
    if not _blocked:
        ops.install(_versions())


def enabled() -> bool:
    """Whether the faster versions are installed."""
    return ops.linear is not ops.PLAIN["linear"]


@contextmanager
def disabled() -> Iterator[None]:
    """Within this context, in all threads, the plain operations run."""
    global _blocked
    were_enabled, was_blocked = enabled(), _blocked
    _blocked = True
    ops.install({})
    try:
        yield
    finally:
        _blocked = was_blocked
        if were_enabled:
            enable()
