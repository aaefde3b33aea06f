"""Every law runs with the plain operations, and with the fast ones on small inputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.laws.kernels import count_kernels
from tests.laws.operations import lower_thresholds

from trifold import fast


@pytest.fixture(autouse=True, params=["plain", "fast"])
def operations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The operations that are installed: plain, or fast with thresholds lowered and calls counted."""
    if request.param == "plain":
        with fast.disabled():
            yield "plain"
        return
    request.getfixturevalue("interpreter")
    lower_thresholds(monkeypatch)
    count_kernels(monkeypatch)
    yield "fast"
