from __future__ import annotations

import errno
import hashlib
import json
import os
import pathlib
import re
import shutil

import pytest
import torch

from trifold import disk
from trifold.errors import CheckpointError
from trifold.train import checkpoint
from trifold.train.checkpoint import Checkpoint
from trifold.train.validate import mean_weights

FILES = ("weights.safetensors", "optimizer.safetensors", "progress.json", "manifest.json")


def state(step: int = 7, fill: float | None = None) -> Checkpoint:
    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(shape) if fill is None else torch.full(shape, fill)

    weights = {"a.weight": tensor(3, 5), "b": tensor(4)}
    return Checkpoint(weights, {"exp_avg.b": tensor(4), "step": torch.tensor([float(step)])}, {"step": step})


def test_what_is_saved_is_what_is_loaded(tmp_path):
    before = state()
    path = checkpoint.save(tmp_path, before)
    after = checkpoint.load(path)
    assert path.name == "step-00000007"
    assert after.progress == before.progress
    for ours, theirs in ((before.weights, after.weights), (before.optimizer, after.optimizer)):
        assert set(ours) == set(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_same_state_gives_the_same_bytes(tmp_path):
    before = state()
    one = checkpoint.save(tmp_path / "one", before)
    two = checkpoint.save(tmp_path / "two", checkpoint.load(one))
    assert {f.name: f.read_bytes() for f in one.iterdir()} == {f.name: f.read_bytes() for f in two.iterdir()}


def test_views_of_one_vector_are_saved_as_themselves(tmp_path):
    vector = torch.arange(6.0)
    first, second = vector.split([2, 4])
    path = checkpoint.save(tmp_path, Checkpoint({"x": first, "y": second.view(2, 2)}, {}, {"step": 1}))
    assert torch.equal(checkpoint.load(path).weights["y"], torch.tensor([[2.0, 3.0], [4.0, 5.0]]))


def test_the_manifest_lists_every_other_file(tmp_path):
    path = checkpoint.save(tmp_path, state())
    listed = json.loads((path / "manifest.json").read_text("utf-8"))["sha256"]
    assert {*listed, "manifest.json"} == {file.name for file in path.iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize("place", [0, 9, -1])
def test_a_flipped_bit_anywhere_is_found_and_its_file_named(tmp_path, name, place):
    path = checkpoint.save(tmp_path, state())
    content = bytearray((path / name).read_bytes())
    content[place] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name}: damaged"):
        checkpoint.load(path)


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize("length", [0, 10])
def test_a_truncated_file_is_found_and_named(tmp_path, name, length):
    path = checkpoint.save(tmp_path, state())
    (path / name).write_bytes((path / name).read_bytes()[:length])
    with pytest.raises(CheckpointError, match=rf"{name}: damaged"):
        checkpoint.load(path)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(tmp_path, name):
    path = checkpoint.save(tmp_path, state())
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
def test_a_foreign_folder_is_refused(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(manifest, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"not a checkpoint of trifold"):
        checkpoint.load(tmp_path)


def test_a_manifest_that_forgets_a_file_does_not_make_it_trusted(tmp_path):
    path = checkpoint.save(tmp_path, state())
    manifest = json.loads((path / "manifest.json").read_text("utf-8"))
    del manifest["sha256"]["weights.safetensors"]
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(CheckpointError):
        checkpoint.load(path)


def test_the_mean_of_weights_needs_no_moments(tmp_path):
    path = checkpoint.save(tmp_path, state())
    (path / "optimizer.safetensors").write_bytes(b"damaged")
    assert checkpoint.load(path, optimizer=False).optimizer == {}
    assert mean_weights([path])[0].keys() == {"a.weight", "b"}


# Every way in which the disk is written to, each failing at its n-th use.
def _refuse(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, use: int) -> None:
    real, uses = getattr(owner, name), 0

    def refusing(*arguments, **named):
        nonlocal uses
        uses += 1
        if uses == use:
            raise OSError(28, "No space left on device")
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, refusing)


WRITES = [
    (disk, "make_folder", 1),
    *((disk, "put", use) for use in (1, 2, 3, 4, 5, 6)),
    *((disk, "flush", use) for use in (1, 2, 3, 4)),
    *((os, "fsync", use) for use in (1, 4, 5)),
    (disk, "flush_folder", 1),
    (disk, "rename", 1),
]


@pytest.mark.parametrize("stands_already", [False, True])
@pytest.mark.parametrize(("owner", "name", "use"), WRITES)
def test_an_interrupted_save_leaves_nothing_half_written(
    tmp_path, monkeypatch, owner, name, use, stands_already
):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    if stands_already:
        checkpoint.save(folder, state(3, fill=1.0))
    before = sorted(path.name for path in folder.iterdir())
    with monkeypatch.context() as patch:
        _refuse(patch, owner, name, use)
        with pytest.raises(
            CheckpointError, match=r"step-00000007: could not be written .*free some disk space"
        ):
            checkpoint.save(folder, state(7))
    assert sorted(path.name for path in folder.iterdir()) == before
    assert [path.name for path in checkpoint.list_checkpoints(folder)] == before
    checkpoint.save(folder, state(7))
    assert checkpoint.load(checkpoint.list_checkpoints(folder)[-1]).progress == {"step": 7}


def test_a_save_that_is_killed_is_not_seen_and_swept_later(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", killed)
        with pytest.raises(Killed):
            checkpoint.save(tmp_path, state(7))
    assert checkpoint.list_checkpoints(tmp_path) == []
    checkpoint.save(tmp_path, state(8))
    checkpoint.prune(tmp_path, keep=5)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000008"]


def test_prune_keeps_the_newest(tmp_path):
    for step in (2, 10, 4, 100):
        checkpoint.save(tmp_path, state(step))
    checkpoint.prune(tmp_path, keep=2)
    assert [checkpoint.step_of(path) for path in checkpoint.list_checkpoints(tmp_path)] == [10, 100]


def test_what_an_interruption_saved_never_displaces_a_regular_checkpoint(tmp_path):
    kept = []
    for step in (10, 20, 23, 27, 30, 34):
        checkpoint.save(tmp_path, state(step))
        checkpoint.prune(tmp_path, keep=2, every=10)
        kept.append([checkpoint.step_of(path) for path in checkpoint.list_checkpoints(tmp_path)])
    assert kept == [[10], [10, 20], [10, 20, 23], [10, 20, 27], [20, 30], [20, 30, 34]]
    assert [checkpoint.step_of(path) for path in checkpoint.regular_checkpoints(tmp_path, 10)] == [20, 30]


def test_other_things_in_the_folder_are_no_checkpoints(tmp_path):
    checkpoint.save(tmp_path, state(5))
    (tmp_path / "step-00000009").mkdir()
    shutil.copytree(tmp_path / "step-00000005", tmp_path / "step-00000005-copy")
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == ["step-00000005"]


def test_the_mean_of_weights_is_the_mean(tmp_path):
    states = [state(step) for step in (1, 2, 3)]
    paths = [checkpoint.save(tmp_path, each) for each in states]
    mean, rejected = mean_weights(paths)
    assert rejected == []
    for name in states[0].weights:
        exact = torch.stack([each.weights[name].double() for each in states]).mean(0)
        assert mean[name].dtype is torch.float32
        assert torch.equal(mean[name], exact.float())


def test_a_damaged_checkpoint_is_left_out_of_the_mean(tmp_path):
    paths = [checkpoint.save(tmp_path, state(step)) for step in (1, 2, 3)]
    weights = paths[1] / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    mean, rejected = mean_weights(paths)
    assert [str(weights) in line for line in rejected] == [True]
    wanted, _ = mean_weights([paths[0], paths[2]])
    assert mean and all(torch.equal(value, wanted[name]) for name, value in mean.items())
    assert mean_weights([paths[1]])[0] == {}


# --- the newest sound one ---------------------------------------------------------------------------------


def damage(path, name="weights.safetensors"):
    content = bytearray((path / name).read_bytes())
    content[-1] ^= 1
    (path / name).write_bytes(content)


def test_the_load_newest_checkpoint_is_found_and_what_is_wrong_with_newer_ones(tmp_path):
    paths = [checkpoint.save(tmp_path, state(step)) for step in (1, 2, 3, 4)]
    assert checkpoint.load_newest(tmp_path).path == paths[-1]
    damage(paths[3])
    (paths[2] / "manifest.json").unlink()
    path, held, refused = checkpoint.load_newest(tmp_path)
    assert (path, held.progress) == (paths[1], {"step": 2})
    assert [paths[3].name in refused[0], paths[2].name in refused[1]] == [True, True]
    assert "weights.safetensors" in refused[0] and "manifest.json" in refused[1]


def test_where_there_is_none_nothing_is_found_and_where_none_is_sound_nothing_is_begun_anew(tmp_path):
    assert checkpoint.load_newest(tmp_path) is None
    for step in (1, 2):
        damage(checkpoint.save(tmp_path, state(step)), "progress.json")
    with pytest.raises(
        CheckpointError, match=r"step-00000002(.|\n)*step-00000001(.|\n)*no intact checkpoint remains.*--out"
    ):
        checkpoint.load_newest(tmp_path)


def test_damage_to_the_manifest_is_not_taken_for_damage_to_what_it_lists(tmp_path):
    path = checkpoint.save(tmp_path, state())
    text = (path / "manifest.json").read_text("utf-8")
    digest = json.loads(text)["sha256"]["weights.safetensors"]
    for changed in (text.replace(digest, digest[::-1]), text.replace("  ", " \t", 1), text + " "):
        assert changed != text
        (path / "manifest.json").write_text(changed, encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"manifest\.json: damaged"):
            checkpoint.load(path)


# --- what cannot be read ----------------------------------------------------------------------------------


@pytest.fixture
def unreadable(monkeypatch):
    """From now on the system refuses to open a file, or to list a folder. (Whoever is root may read everything.)"""
    refused: dict[str, int] = {}

    def guarded(real):
        def function(place, *more, **named):
            if str(place) in refused:
                number = refused[str(place)]
                raise OSError(number, os.strerror(number), str(place))
            return real(place, *more, **named)

        return function

    for name in ("open", "iterdir"):
        monkeypatch.setattr(pathlib.Path, name, guarded(getattr(pathlib.Path, name)))
    return lambda place, number=errno.EACCES: refused.update({str(place): number})


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("name", FILES)
def test_what_cannot_be_read_is_passed_over_like_damage_and_named(tmp_path, unreadable, name, number):
    paths = [checkpoint.save(tmp_path, state(step)) for step in (1, 2)]
    unreadable(paths[1] / name, number)
    said = rf"{paths[1] / name}: cannot be read \({os.strerror(number)}\)"
    with pytest.raises(CheckpointError, match=said):
        checkpoint.load(paths[1])
    path, _, refused = checkpoint.load_newest(tmp_path)
    assert path == paths[0] and re.match(said, refused[0])
    if name != "optimizer.safetensors":  # of which no mean is made
        _, (rejected,) = mean_weights(paths)
        assert re.match(said, rejected)


def test_a_disk_that_fails_while_a_file_is_read_is_passed_over_too(tmp_path, monkeypatch):
    paths = [checkpoint.save(tmp_path, state(step)) for step in (1, 2)]
    real = hashlib.file_digest

    def failing(stream, kind):
        if stream.name == str(paths[1] / "weights.safetensors"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))  # without a name, as `read` has it
        return real(stream, kind)

    monkeypatch.setattr(hashlib, "file_digest", failing)
    path, _, refused = checkpoint.load_newest(tmp_path)
    assert path == paths[0]
    assert refused == [f"{paths[1] / 'weights.safetensors'}: cannot be read (Input/output error)"]


def test_a_checkpoint_that_cannot_be_looked_into_is_none_of_ours_to_remove(tmp_path, unreadable):
    paths = [checkpoint.save(tmp_path, state(step)) for step in (1, 2, 3)]
    unreadable(paths[0])
    unreadable(paths[2])
    unreadable(paths[2] / "manifest.json")
    assert checkpoint.list_checkpoints(tmp_path) == paths
    assert checkpoint.load_newest(tmp_path).path == paths[1]
    checkpoint.prune(tmp_path, 1)
    assert all(path.is_dir() for path in paths)


def test_nothing_is_begun_anew_where_checkpoints_cannot_be_listed(tmp_path, unreadable):
    checkpoint.save(tmp_path, state(1))
    unreadable(tmp_path, errno.EIO)
    with pytest.raises(CheckpointError, match=rf"{tmp_path}: cannot be read"):
        checkpoint.load_newest(tmp_path)


# --- who stays --------------------------------------------------------------------------------------------


def steps(folder):
    return [checkpoint.step_of(path) for path in checkpoint.list_checkpoints(folder)]


def test_some_stay_for_ever_and_the_best_stays(tmp_path):
    for step in (10, 20, 30, 40, 50, 60, 70):
        checkpoint.save(tmp_path, state(step))
        checkpoint.prune(tmp_path, 1, 10, upto=step, keep_every=30, best=20)
    assert steps(tmp_path) == [20, 30, 60, 70]


def test_what_lies_beyond_the_present_step_neither_goes_nor_counts(tmp_path):
    for step in (3, 6, 90):
        checkpoint.save(tmp_path, state(step))
    checkpoint.prune(tmp_path, 1, upto=6)
    assert steps(tmp_path) == [6, 90]


def test_what_others_have_put_there_is_never_removed(tmp_path):
    paths = [checkpoint.save(tmp_path, state(step)) for step in (1, 2, 3)]
    (paths[0] / "remark.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "step-00000000").mkdir()
    (tmp_path / "step-00000000" / "model.pt").write_bytes(b"theirs")
    checkpoint.prune(tmp_path, 1)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "step-00000000",
        "step-00000001",
        "step-00000003",
    ]


def test_what_others_have_put_in_the_place_of_a_checkpoint_steps_aside(tmp_path):
    (tmp_path / "step-00000007").mkdir()
    (tmp_path / "step-00000007" / "model.pt").write_bytes(b"theirs")
    checkpoint.save(tmp_path, state(7))
    assert checkpoint.load(tmp_path / "step-00000007").progress == {"step": 7}
    assert (tmp_path / "step-00000007.foreign" / "model.pt").read_bytes() == b"theirs"


def test_what_is_damaged_again_and_again_steps_aside_every_time(tmp_path):
    for time in range(4):
        path = checkpoint.save(tmp_path, state(7))
        (path / "manifest.json").write_text(str(time), encoding="utf-8")
    checkpoint.save(tmp_path, state(7))
    aside = ("step-00000007.foreign", *(f"step-00000007.foreign-{number}" for number in (2, 3, 4)))
    assert [(tmp_path / name / "manifest.json").read_text("utf-8") for name in aside] == list("0123")
    assert checkpoint.load_newest(tmp_path).rejected == []


def test_a_removal_that_is_killed_leaves_no_half_of_a_checkpoint(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def dying(path):
        next(path.glob("manifest.json")).unlink()
        raise Killed

    for step in (1, 2, 3):
        checkpoint.save(tmp_path, state(step))
    with monkeypatch.context() as patch:
        patch.setattr(disk, "remove", dying)
        with pytest.raises(Killed):
            checkpoint.prune(tmp_path, 2)
    assert steps(tmp_path) == [2, 3]
    checkpoint.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def test_a_checkpoint_that_cannot_be_removed_stays_whole(tmp_path, monkeypatch):
    for step in (1, 2):
        checkpoint.save(tmp_path, state(step))
    with monkeypatch.context() as patch:
        _refuse(patch, disk, "rename", 1)
        checkpoint.prune(tmp_path, 1)
    assert [checkpoint.load(path).progress["step"] for path in checkpoint.list_checkpoints(tmp_path)] == [
        1,
        2,
    ]


def test_a_save_that_is_killed_while_it_replaces_is_undone(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    real = disk.rename

    def dying(old, new):
        if old.name.endswith(".partial"):
            raise Killed
        real(old, new)

    checkpoint.save(tmp_path, state(7, fill=1.0))
    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", dying)
        with pytest.raises(Killed):
            checkpoint.save(tmp_path, state(7, fill=2.0))
    assert steps(tmp_path) == []
    checkpoint.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000007"]
    assert checkpoint.load(tmp_path / "step-00000007").weights["b"][0] == 1.0


# --- what is in the files ---------------------------------------------------------------------------------


def test_tensors_of_any_type_shape_and_lie_come_back_and_others_can_read_them(tmp_path):
    from safetensors.torch import load_file

    moments = {
        "strided": torch.arange(12.0).view(3, 4).t(),
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 3),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "half": torch.randn(3).bfloat16(),
        "whole": torch.tensor([2**40]),
    }
    path = checkpoint.save(tmp_path, Checkpoint({}, moments, {"step": 1}))
    found = load_file(path / "optimizer.safetensors")
    assert found.keys() == moments.keys()
    for name, value in moments.items():
        assert found[name].dtype is value.dtype and torch.equal(found[name], value), name


def test_a_snapshot_stays_as_it_was():
    now = state(3)
    before = now.snapshot()
    kept = {name: value.clone() for name, value in now.weights.items()}
    for value in now.weights.values():
        value.zero_()
    now.progress["step"] = 4
    assert before.progress == {"step": 3}
    assert all(torch.equal(before.weights[name], kept[name]) for name in kept)


def test_text_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "note.json"
    disk.replace_text(path, "old\n")
    with monkeypatch.context() as patch:
        _refuse(patch, os, "fsync", 1)
        with pytest.raises(OSError, match="No space"):
            disk.replace_text(path, "new\n")
    assert path.read_bytes() == b"old\n"
    assert [each.name for each in tmp_path.iterdir()] == ["note.json"]
    disk.replace_text(path, "né\n")
    assert path.read_bytes() == "né\n".encode()


def test_what_a_killed_process_left_is_known_by_its_name(tmp_path):
    for name in (".recipe.yaml.123.tmp", ".mine.tmp", "a.1.tmp", ".recipe.yaml"):
        (tmp_path / name).touch()
    assert [path.name for path in disk.leftovers(tmp_path)] == [".recipe.yaml.123.tmp"]
