from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from math import nan

import pytest
import torch
from safetensors.torch import load_file
from tests.train.runs import random_state

from trifold.errors import CheckpointError
from trifold.train import checkpoint
from trifold.train.checkpoint import BestValidation, Checkpoint, TrainingProgress
from trifold.train.validate import mean_weights

TENSORS = ("weights.safetensors", "optimizer.safetensors")
FILES = (*TENSORS, "progress.json", "manifest.json")


def damage(path, name="weights.safetensors", place=-1):
    content = bytearray((path / name).read_bytes())
    content[place] ^= 1
    (path / name).write_bytes(content)


# --- files ----------------------------------------------------------------------------------------


def test_loaded_state_equals_saved_state(tmp_path):
    before = random_state()
    path = checkpoint.save(tmp_path, before)
    after = checkpoint.load(path)
    assert path.name == "step-00000007"
    assert after.progress == before.progress
    for ours, theirs in ((before.weights, after.weights), (before.optimizer, after.optimizer)):
        assert set(ours) == set(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    again = checkpoint.save(tmp_path / "again", after)
    assert {f.name: f.read_bytes() for f in path.iterdir()} == {
        f.name: f.read_bytes() for f in again.iterdir()
    }


def test_tensors_of_any_dtype_shape_and_stride_are_readable_by_safetensors(tmp_path):
    first, second = torch.arange(6.0).split([2, 4])
    tensors = {
        "strided": torch.arange(12.0).view(3, 4).t(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "bf16": torch.randn(3).bfloat16(),
        "integer": torch.tensor([2**40]),
        "view": first,
        "view of the same vector": second.view(2, 2),
    }
    path = checkpoint.save(tmp_path, Checkpoint(tensors, tensors, {"step": 1}))
    for file in TENSORS:
        found = load_file(path / file)
        assert found.keys() == tensors.keys()
        for name, value in tensors.items():
            assert found[name].dtype is value.dtype and torch.equal(found[name], value), name


def test_manifest_lists_every_other_file(save_checkpoints):
    (path,) = save_checkpoints(7)
    digests = json.loads((path / "manifest.json").read_text("utf-8"))["sha256"]
    assert {*digests, "manifest.json"} == {file.name for file in path.iterdir()} == set(FILES)


def test_snapshot_is_a_copy():
    current = random_state(3)
    snapshot = current.snapshot(current.gathered())
    before = {name: value.clone() for name, value in current.weights.items()}
    for value in current.weights.values():
        value.zero_()
    current.progress["step"] = 4
    assert snapshot.progress == {"step": 3}
    assert all(torch.equal(snapshot.weights[name], before[name]) for name in before)


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize("place", [0, 9, -1])
def test_flipped_bit_is_found_and_its_file_named(save_checkpoints, name, place):
    (path,) = save_checkpoints(7)
    damage(path, name, place)
    with pytest.raises(CheckpointError, match=rf"{name}: damaged"):
        checkpoint.load(path)


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize("length", [0, 10])
def test_truncated_file_is_found_and_named(save_checkpoints, name, length):
    (path,) = save_checkpoints(7)
    (path / name).write_bytes((path / name).read_bytes()[:length])
    with pytest.raises(CheckpointError, match=rf"{name}: damaged"):
        checkpoint.load(path)


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_named(save_checkpoints, name):
    (path,) = save_checkpoints(7)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[]",
        "{}",
        '{"format": "other", "sha256": {}}',
        '{"format": "trifold-checkpoint-1"}',
        '{"format": "trifold-checkpoint-1", "sha256": {"../outside": "0"}}',
    ],
)
def test_foreign_folder_is_rejected(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(manifest, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"not a checkpoint of trifold"):
        checkpoint.load(tmp_path)


def test_incomplete_manifest_is_rejected(save_checkpoints):
    (path,) = save_checkpoints(7)
    manifest = json.loads((path / "manifest.json").read_text("utf-8"))
    del manifest["sha256"]["weights.safetensors"]
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(CheckpointError):
        checkpoint.load(path)


def test_damaged_manifest_is_named(save_checkpoints):
    (path,) = save_checkpoints(7)
    text = (path / "manifest.json").read_text("utf-8")
    digest = json.loads(text)["sha256"]["weights.safetensors"]
    for changed in (text.replace(digest, digest[::-1]), text.replace("  ", " \t", 1), text + " "):
        assert changed != text
        (path / "manifest.json").write_text(changed, encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"manifest\.json: damaged"):
            checkpoint.load(path)


def test_weights_can_be_loaded_without_the_optimizer_state(save_checkpoints):
    (path,) = save_checkpoints(7)
    (path / "optimizer.safetensors").write_bytes(b"damaged")
    assert checkpoint.load(path, optimizer=False).optimizer == {}
    assert mean_weights([path])[0].keys() == {"a.weight", "b"}


# --- the newest intact checkpoint -----------------------------------------------------------------


def test_load_newest_skips_damaged_checkpoints_and_names_them(save_checkpoints, tmp_path):
    paths = save_checkpoints(1, 2, 3, 4)
    assert checkpoint.load_newest(tmp_path).path == paths[-1]
    damage(paths[3])
    (paths[2] / "manifest.json").unlink()
    path, loaded, rejected = checkpoint.load_newest(tmp_path)
    assert (path, loaded.progress) == (paths[1], {"step": 2})
    assert [paths[3].name in rejected[0], paths[2].name in rejected[1]] == [True, True]
    assert "weights.safetensors" in rejected[0] and "manifest.json" in rejected[1]


def test_load_newest_fails_if_no_checkpoint_is_intact(save_checkpoints, tmp_path):
    assert checkpoint.load_newest(tmp_path) is None
    for path in save_checkpoints(1, 2):
        damage(path, "progress.json")
    message = r"step-00000002(.|\n)*step-00000001(.|\n)*no intact checkpoint remains.*`out`"
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load_newest(tmp_path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("name", FILES)
def test_unreadable_file_is_named_and_its_checkpoint_skipped(
    save_checkpoints, tmp_path, make_unreadable, name, number
):
    paths = save_checkpoints(1, 2)
    make_unreadable(paths[1] / name, number)
    message = rf"{paths[1] / name}: cannot be read \({os.strerror(number)}\)"
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(paths[1])
    path, _, rejected = checkpoint.load_newest(tmp_path)
    assert path == paths[0] and re.match(message, rejected[0])
    if name != "optimizer.safetensors":  # which the mean does not need
        _, (rejected,) = mean_weights(paths)
        assert re.match(message, rejected)


def test_disk_error_while_a_file_is_read_skips_the_checkpoint(
    save_checkpoints, tmp_path, monkeypatch
):
    paths = save_checkpoints(1, 2)
    real = hashlib.file_digest

    def failing(stream, kind):
        if stream.name == str(paths[1] / "weights.safetensors"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))  # without a path, as errors of `read`
        return real(stream, kind)

    monkeypatch.setattr(hashlib, "file_digest", failing)
    path, _, rejected = checkpoint.load_newest(tmp_path)
    assert path == paths[0]
    assert rejected == [f"{paths[1] / 'weights.safetensors'}: cannot be read (Input/output error)"]


def test_folder_that_cannot_be_listed_is_an_error(save_checkpoints, tmp_path, make_unreadable):
    save_checkpoints(1)
    make_unreadable(tmp_path, errno.EIO)
    with pytest.raises(CheckpointError, match=rf"{tmp_path}: cannot be read"):
        checkpoint.load_newest(tmp_path)


@pytest.mark.parametrize(
    ("score", "loss", "better"),
    [(31, 9.0, True), (29, 0.1, False), (30, 1.9, True), (30, 2.0, False), (30, 2.1, False)],
)
def test_a_validation_is_better_by_its_score_then_by_its_loss(score, loss, better):
    assert BestValidation(30, 6, 1, 2.0).is_beaten(score, loss) == better
    assert BestValidation().is_beaten(score, loss)
    assert BestValidation(nan, 6, 1, 2.0).is_beaten(score, loss)
    assert not BestValidation(30, 6, 1, 2.0).is_beaten(nan, 0.1)
    assert not BestValidation(nan, 6, 1, 2.0).is_beaten(nan, 0.1)


def test_the_best_of_an_older_checkpoint_has_no_loss_and_keeps_a_tie():
    saved = json.loads(json.dumps({"step": 9, "best": [30, 6, 1]}))
    best = TrainingProgress.from_dict(saved).best
    assert best == BestValidation(30, 6, 1)
    assert not best.is_beaten(30, 0.1) and best.is_beaten(30.5, 9.0)
