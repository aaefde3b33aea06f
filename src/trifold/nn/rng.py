"""The random generator of a thread, from which dropout draws, and recomputation, which repeats its
draws.

Workers that train side by side must not share a generator: the order of their draws would depend on
timing.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

_thread = threading.local()


def thread_rng() -> torch.Generator | None:
    """The generator of this thread; None where it uses the global one."""
    return getattr(_thread, "generator", None)


@contextmanager
def use_thread_rng(generator: torch.Generator | None) -> Iterator[None]:
    """Make `generator` the one of this thread."""
    before = thread_rng()
    _thread.generator = generator
    try:
        yield
    finally:
        _thread.generator = before


class ReplayThreadRng(AbstractContextManager[None]):
    """Records the state of this thread's generator when created; within the context, in any thread
    and as often as needed, the thread's generator starts from that state.

    Without a generator of the thread it does nothing: PyTorch restores the global generators.
    """

    def __init__(self) -> None:
        generator = thread_rng()
        self._state = None if generator is None else generator.get_state()
        self._before: torch.Generator | None = None

    def __enter__(self) -> None:
        self._before = thread_rng()
        if self._state is not None:
            _thread.generator = torch.Generator().set_state(self._state)

    def __exit__(self, *_: object) -> None:
        _thread.generator = self._before


def recompute(run: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """run(…), which saves only its inputs and runs again in the backward pass (Chen et al. 2016,
    section 4).

    The same bits as without, dropout included. The first input is a tensor.
    """
    # PyTorch restores the global generators, for all threads at once; needed only if this thread
    # has none of its own.
    uses_global_rng = thread_rng() is None or inputs[0].device.type != "cpu"
    contexts = nullcontext(), ReplayThreadRng()
    out: Tensor = checkpoint(
        run,
        *inputs,
        use_reentrant=False,
        preserve_rng_state=uses_global_rng,
        context_fn=lambda: contexts,
    )
    return out
