"""Fixtures that make the fast operations run on small inputs."""

from __future__ import annotations

import pytest

from trifold.fast import attention, decoding_step, int8_linear, layers


@pytest.fixture(autouse=True)
def _compiled_once(interpreter: None) -> None:
    """Whichever test is the first that needs it."""


@pytest.fixture
def no_minimum_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations use instructions for every size."""
    monkeypatch.setattr(attention, "MIN_PACKED_TOKENS", 0)
    monkeypatch.setattr(attention, "MIN_WIDTH", 0)
    monkeypatch.setattr(layers, "MIN_WEIGHTS", 0)
    monkeypatch.setattr(int8_linear, "MIN_INT8_WEIGHTS", 0)
    monkeypatch.setattr(decoding_step, "MIN_WEIGHTS", 0)
