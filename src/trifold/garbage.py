"""Pause the search for garbage of Python."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Within this context, or this function, Python does not look for garbage in cycles.

    Making many objects that stay lets it look through all objects of the process, which takes a
    tenth of a second with those of PyTorch, and seconds with the tokens of a large vocabulary.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
