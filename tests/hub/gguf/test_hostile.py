"""Damaged GGUF files: a sample of seeded mutations, and models that do not fit together."""

import json
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.faults.runs import forked
from tests.hub.gguf import hostile
from tests.hub.gguf.writing import CASES

from trifold.errors import CheckpointError, SettingsError, TrifoldError
from trifold.hub import load_model

FILES = 200  # `make faults` opens 10,000


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits its addresses")
def test_a_sample_of_damaged_files_has_no_faults(tmp_path: Path) -> None:
    """In a fork, which a file may stop."""
    out = tmp_path / "found.json"

    def work() -> int:
        with out.open("w", encoding="utf-8") as file, redirect_stdout(file):
            return hostile.run(["--files", str(FILES)])

    assert forked(work) == 0, out.read_text("utf-8")
    found = json.loads(out.read_text("utf-8"))
    assert found["faults"] == []
    assert sum(found["counts"].values()) == FILES
    assert found["counts"].keys() == {"read", "refused"}


# Changes of keys -> the error.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "head_count 0": (
        {"attention.head_count": 0},
        "llama.attention.head_count: 0 is not an integer",
    ),
    "head_count −1": ({"attention.head_count": -1}, "head_count: -1 is not an integer from 1"),
    "head_count 3": ({"attention.head_count": 3}, "head_count_kv: 2 does not divide 3 heads"),
    "head_count_kv 0": ({"attention.head_count_kv": 0}, "head_count_kv: 0 is not an integer"),
    "head_count_kv 3": ({"attention.head_count_kv": 3}, "head_count_kv: 3 does not divide 4 heads"),
    "layers that differ": ({"attention.head_count_kv": [2, 1]}, "differ between layers"),
    "heads of another width": ({"attention.head_count": 8}, "wrong shape"),
    "a text as a size": ({"embedding_length": "32"}, "embedding_length: '32' is not an integer"),
    "no layers": ({"block_count": 0}, "block_count: 0 is not an integer from 1"),
    "a layer more": ({"block_count": 3}, "missing: model.layers.2"),
    "a layer less": ({"block_count": 1}, "not known: 'model.layers.1"),
    "many layers": (
        {"block_count": 2**31 - 1},
        "block_count: 2147483647 is not an integer from 1 to 4,096",
    ),
    "many experts": ({"expert_count": 2**31 - 1}, "expert_count: 2147483647 is not an integer fr"),
    "another width": ({"embedding_length": 64}, "wrong shape"),
    "positions": ({"context_length": 0}, "context_length: 0 is not an integer from 1"),
    "epsilon of NaN": (
        {"attention.layer_norm_rms_epsilon": float("nan")},
        "is not a finite number",
    ),
    "another scaling": (
        {"rope.scaling.type": "evil"},
        "'evil' is not supported; known: none, line",
    ),
    "scaling without a factor": (
        {"rope.scaling.type": "linear"},
        "rope.scaling.factor: is missing",
    ),
    "part of a head": ({"rope.dimension_count": 4}, "0.5 is not supported"),
    "more than a head": ({"rope.dimension_count": 99}, "99 is more than 8, a head"),
    "values of another width": ({"attention.value_length": 4}, "differs from key_length, 8"),
    "experts that are not there": (
        {"expert_count": 3, "expert_used_count": 2},
        "not known: 'blk.0.",
    ),
    "more experts than there are": (
        {"expert_count": 2, "expert_used_count": 3},
        "3 is more than 2",
    ),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG.keys())
def test_metadata_that_does_not_fit_is_an_error(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    case = CASES["llama"]
    case = replace(case, keys=lambda config: CASES["llama"].keys(config) | changes)
    path = case.write(tmp_path / "a.gguf", CASES["llama"].model())
    with pytest.raises((CheckpointError, SettingsError), match=message) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


def test_other_architectures_and_types_of_files_are_refused_by_name(tmp_path: Path) -> None:
    case = CASES["llama"]
    model = case.model()
    for key, value, message in (
        ("general.architecture", "mamba", "'mamba' is not supported; known: llama, qwen2"),
        ("general.type", "adapter", "general.type: 'adapter' is no model"),
    ):
        path = tmp_path / "a.gguf"
        case.write(path, model)
        changed = path.read_bytes()
        if key == "general.architecture":
            changed = changed.replace(b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0mamba", 1)
        else:
            replace(case, keys=lambda c: case.keys(c) | {key: value}).write(path, model)  # noqa: B023
            changed = path.read_bytes()
        path.write_bytes(changed)
        with pytest.raises(TrifoldError, match=message):
            load_model(path)


def test_unknown_and_missing_tensors_are_listed(tmp_path: Path) -> None:
    case = CASES["llama"]
    evil = replace(case, state=lambda c, s: case.state(c, s) | {"evil.weight": torch.ones(4)})
    path = evil.write(tmp_path / "a.gguf", case.model())
    with pytest.raises(
        CheckpointError, match=r"do not fit the metadata\n  not known: 'evil.weight'"
    ):
        load_model(path)
    without = "model.layers.1.mlp.up_proj.weight"
    less = replace(
        case, state=lambda c, s: {k: v for k, v in case.state(c, s).items() if k != without}
    )
    path = less.write(tmp_path / "a.gguf", case.model())
    with pytest.raises(CheckpointError, match=f"missing: {without}"):
        load_model(path)
