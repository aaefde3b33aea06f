"""Small models of natural size, every parameter random."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trifold import fast


@pytest.fixture(autouse=True)
def _plain_operations() -> Iterator[None]:
    with fast.disabled():
        yield
