"""Every objective learns the same with one rank and with two, sharded or not, in the precision of its
model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.slow
# Of the largest loss. The weights of bfloat16 are rounded after other sums.
TOLERANCES = {"float64": 1e-12, "bfloat16": 5e-3}


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, list]]:
    """(objective, precision) -> form -> the losses of its updates."""
    script = Path(__file__).with_name("ranked_objectives.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path_factory.mktemp("objectives"))],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[tuple[str, str], dict[str, list]] = {}
    for line in done.stdout.splitlines():
        name, precision, form, values = json.loads(line)
        found.setdefault((name, precision), {})[form] = values
    return found


@pytest.mark.parametrize("precision", TOLERANCES)
def test_ranks_and_sharding_change_no_objective(losses, precision):
    chosen = {name: forms for (name, kind), forms in losses.items() if kind == precision}
    assert len(chosen) == {"float64": 23, "bfloat16": 7}[precision]
    wrong = {}
    for name, forms in chosen.items():
        assert isinstance(forms["1"], list), f"{name}: {forms['1']}"
        expected = np.array(forms["1"])
        assert abs(expected[-1] - expected[0]) > 1e-3, f"{name} learns nothing"
        for form, values in forms.items():
            if isinstance(values, str):
                wrong[name, form] = values
                continue
            difference = np.abs(np.array(values) - expected).max() / expected.max()
            if difference > TOLERANCES[precision]:
                wrong[name, form] = f"{difference:.1e}"
    assert not wrong
