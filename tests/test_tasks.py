"""`trifold.tasks`, the deprecated name of the package of objectives."""

from __future__ import annotations

import pytest

from trifold import objectives, tasks


def test_public_names_of_the_previous_release_are_forwarded_with_a_warning():
    for old, new in (
        ("Term", "LossTerm"),
        ("Translate", "Translate"),
        ("TranslateSettings", "TranslateSettings"),
    ):
        with pytest.warns(
            DeprecationWarning, match=rf"trifold\.tasks\.{old} .* use trifold\.objectives\.{new}"
        ):
            assert getattr(tasks, old) is getattr(objectives, new)
    with pytest.raises(AttributeError, match="no attribute 'Causal'"):
        tasks.Causal  # noqa: B018
