"""Damaged files, full disks, power failures, and data that changes between sessions."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from unittest import mock

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file
from tests.faults.runs import TINY, Box, forked, training

from trifold import disk
from trifold.errors import CheckpointError
from trifold.recipe import TrainSettings
from trifold.train import checkpoint
from trifold.train.checkpoint import Checkpoint, load_newest, step_of


def damage_is_rejected(box: Box) -> None:
    """Bytes changed, removed, zeroed or added in any file of a checkpoint: rejected with the name
    of the file.
    """
    path = checkpoint.save(box.folder, _state(3, box.rng.randrange(2**32)))
    for _ in range(100):
        file = box.rng.choice(sorted(path.iterdir()))
        before = file.read_bytes()
        after = _mutated(before, box.rng)
        if after == before:
            continue
        file.write_bytes(after)
        try:
            checkpoint.load(path)
        except CheckpointError as error:
            box.expect(
                file.name in str(error), f"{file.name} is damaged, and the error is: {error}"
            )
        else:
            box.expect(False, f"{file.name} is damaged and was loaded")
        file.write_bytes(before)
    checkpoint.load(path)


def _mutated(content: bytes, rng: Any) -> bytes:
    place = rng.randrange(len(content))
    length = rng.randrange(1, 1 + min(64, len(content) - place))
    rest = content[place + length :]
    ways: dict[str, bytes] = {
        "bit": content[:place]
        + bytes([content[place] ^ (1 << rng.randrange(8))])
        + content[place + 1 :],
        "byte": content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :],
        "cut": content[:place],
        "zeros": content[:place] + bytes(length) + rest,
        "gone": content[:place] + rest,
        "more": content + rng.randbytes(length),
    }
    return ways[rng.choice(sorted(ways))]


def _state(step: int, seed: int) -> Checkpoint:
    random = torch.Generator().manual_seed(seed)
    weights = {
        "a.weight": torch.randn(3, 5, generator=random),
        "b": torch.randn(7, generator=random),
    }
    moments = {f"exp_avg.{name}": value * 2 for name, value in weights.items()}
    return Checkpoint(weights, moments, {"step": step, "epoch": 0, "batch": seed})


def falls_back_by_itself(box: Box) -> None:
    """The newest one or two checkpoints are damaged: the newest intact one is used, with one
    warning.
    """
    changes, reference = box.config()
    average = changes.get("train.average", 1)
    shutil.copytree(reference.folder, box.run)
    folder = box.run / "checkpoints"
    paths = checkpoint.list_checkpoints(folder)
    damaged = paths[-min(box.rng.randint(1, 2), len(paths) - 1) :] if average == 1 else paths[-1:]
    for path in damaged:
        file = box.rng.choice(sorted(path.iterdir()))
        content = file.read_bytes()
        file.write_bytes(_flipped(content, box.rng.randrange(len(content))))
    if len(paths) == len(damaged):
        return
    code = box.train(changes)
    warnings = [line for line in box.output().splitlines() if line.startswith("warning:")]
    box.expect(
        code == 0 and len(warnings) == 1, f"it ended with {code} and {len(warnings)} warnings"
    )
    box.expect(all(path.name in warnings[0] for path in damaged), f"not named: {warnings[0]}")
    box.finish(changes, reference)


def _flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


def full_disks_are_survived(box: Box) -> None:
    """The n-th write fails, once or from then on: saved files stay, and the run can continue later."""
    changes, reference = box.config()
    code = _train_on_full_disk(box, changes)
    if code:
        box.expect(code in (1, 2), f"it ended with {code}")
        message = [line for line in box.output().splitlines() if line.startswith("error: ")]
        remedies = ("free", "choose another", *disk.REMEDIES.values())
        box.expect(
            len(message) == 1
            and str(box.run) in message[0]
            and any(remedy in message[0] for remedy in remedies),
            f"place and remedy are not named: {message}",
        )
    halves = _damaged_files(box.run)
    box.expect(not halves, f"exit code {code}, and partial files: {', '.join(halves)}")
    box.finish(changes, reference)


def _damaged_files(run: Path) -> list[str]:
    """Files under their final names that cannot be loaded."""
    found = []
    for path in checkpoint.list_checkpoints(run / "checkpoints"):
        try:
            checkpoint.load(path)
        except CheckpointError as error:
            found.append(str(error))
    for path in sorted(run.rglob("*")):
        if not any(part.startswith(".") for part in path.relative_to(run).parts):
            try:
                _WHOLE.get(path.suffix, _accept)(path)
            except (SafetensorError, ValueError, TypeError, yaml.YAMLError) as error:
                found.append(f"{path.relative_to(run)} ({error})")
    return found


def _ends_with_its_line(path: Path) -> None:
    if not path.read_bytes().endswith(b"\n"):
        raise ValueError("the last line is not terminated")


def _accept(path: Path) -> None:
    """A folder, or a log."""


# Suffix -> a function that raises if the file is not complete.
_WHOLE: dict[str, Callable[[Path], object]] = {
    ".safetensors": load_file,
    ".json": lambda path: json.loads(path.read_bytes()),
    ".yaml": lambda path: dict(yaml.safe_load(path.read_bytes())),
    ".tsv": _ends_with_its_line,
    ".txt": _ends_with_its_line,
}


def _train_on_full_disk(box: Box, changes: dict[str, Any]) -> int:
    """Train on a disk that fills up: a write fails, anywhere or among the few small files, or the
    system limits the size of files."""
    if box.number % 4 == 3:
        limit = box.rng.randrange(5_000, 60_000)  # the output goes into a file too

        def work() -> int:
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            return training(box.run, changes, box.log)()

        return forked(work, log=box.folder / "crash.txt")
    lasting, kind = (
        box.rng.random() < 0.5,
        box.rng.choice([errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT]),
    )
    if box.number % 4 == 1:
        few = failing(
            box.rng.randint(1, 3),
            kind,
            lasting=lasting,
            names=("put",),
            among=box.rng.choice(["samples", "environment.json"]),
        )
        with few:
            return box.train(changes)
    with failing(box.rng.randrange(1, 160), kind, lasting=lasting):
        return box.train(changes)


CALLS = ("put", "flush", "flush_path", "flush_folder", "rename", "make_folder")


@contextmanager
def failing(
    nth: int, kind: int, *, lasting: bool, names: Sequence[str] = CALLS, among: str = ""
) -> Iterator[None]:
    """The n-th call of a function of `disk` fails, and with `lasting` all later ones; half of the
    bytes are written.

    names, among: only these functions count, and only for files whose path contains this.
    """
    count = 0

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def function(what: Any, *arguments: Any) -> Any:
            nonlocal count
            count += among in str(what if isinstance(what, Path) else what.name)
            if count == nth or (lasting and count > nth):
                if real is put:
                    put(what, bytes(arguments[0])[: len(arguments[0]) // 2])
                raise OSError(kind, os.strerror(kind))
            return real(what, *arguments)

        return function

    put = disk.put
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(disk, name, guarded(getattr(disk, name))))
        yield


# --- power ----------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """A call of `disk`: put, flush, flush_folder, rename or remove."""

    what: str
    path: Path
    more: Any = None


def power_cuts_are_survived(box: Box) -> None:
    """For every prefix of the disk operations of a save, with unflushed data lost and removals
    incomplete: the old or the new checkpoint exists, and no partial checkpoint is visible."""
    folder = box.folder / "checkpoints"
    old, new = (4, 4) if box.number % 3 == 2 else (3, 4)
    first = box.number % 3 == 0
    folder.mkdir()
    if not first:
        checkpoint.save(folder, _state(old, 1))
    image = box.folder / "image"
    shutil.copytree(folder, image)
    with recording() as operations:
        checkpoint.save(folder, _state(new, 2))
        checkpoint.prune(folder, TrainSettings(keep_last=1, save_every=1), new, 0)
    for length in range(len(operations) + 1):
        for early in (False, True):  # names may reach the disk before they are flushed, or not
            after = box.folder / "after"
            shutil.rmtree(after, ignore_errors=True)
            shutil.copytree(image, after)
            replay(operations[:length], folder, after, names_early=early)
            checkpoint.sweep(after)
            where = f"power failure after operation {length} of {len(operations)}"
            try:
                found = load_newest(after)
                for path in checkpoint.list_checkpoints(after):
                    checkpoint.load(path)
            except CheckpointError as error:
                box.expect(False, f"{where}: {error}")
                return
            box.expect(found is not None or first, f"{where}: nothing is left")
            if found is not None:
                box.expect(
                    not found.rejected,
                    f"{where}: a partial checkpoint is visible: {found.rejected}",
                )
                seed = found.state.progress["batch"]
                box.expect(
                    (step_of(found.path), seed) in {(old, 1), (new, 2)}, f"{where}: {found.path}"
                )
            done = length == len(operations)
            box.expect(
                not done or (found is not None and found.state.progress["batch"] == 2),
                f"{where}: old",
            )


@contextmanager
def recording() -> Iterator[list[Operation]]:
    """Record the calls of `disk`."""
    operations: list[Operation] = []
    door = {
        name: getattr(disk, name) for name in ("put", "flush", "flush_folder", "rename", "remove")
    }

    def put(file: BinaryIO, piece: disk.Bytes) -> None:
        operations.append(Operation("put", Path(file.name), bytes(piece)))
        door["put"](file, piece)

    def flush(file: BinaryIO) -> None:
        before = len(synced)
        door["flush"](file)
        if len(synced) > before:
            operations.append(Operation("flush", Path(file.name)))

    def flush_folder(path: Path) -> None:
        before = len(synced)
        door["flush_folder"](path)
        if len(synced) > before:
            operations.append(Operation("flush_folder", path))

    def rename(old: Path, new: Path) -> None:
        operations.append(Operation("rename", old, new))
        door["rename"](old, new)

    def remove(path: Path) -> None:
        operations.append(Operation("remove", path))
        door["remove"](path)

    def fsync(descriptor: int) -> None:
        synced.append(descriptor)
        real_fsync(descriptor)

    synced: list[int] = []
    real_fsync = os.fsync
    with (
        mock.patch.object(os, "fsync", fsync),
        mock.patch.multiple(
            disk, put=put, flush=flush, flush_folder=flush_folder, rename=rename, remove=remove
        ),
    ):
        yield operations


def replay(operations: list[Operation], folder: Path, after: Path, *, names_early: bool) -> None:
    """Apply to `after` those effects of the operations on `folder` that survive a power failure
    after the last one.

    A file has the bytes that were flushed. A name (of a new or renamed file) exists if its folder
    was flushed since, and with `names_early` in any case. A removed folder may reappear without one
    of its files, also under the name that it had on disk while it was being removed."""
    last = len(operations) - 1
    named: dict[Path, Path] = {}  # name -> the durable name
    contents: dict[Path, bytes] = {}
    durable: dict[Path, bytes] = {}
    for operation in operations:
        if operation.what == "put":
            contents[operation.path] = contents.get(operation.path, b"") + operation.more
        elif operation.what == "flush":
            durable[operation.path] = contents.get(operation.path, b"")
    for place, operation in enumerate(operations):
        later = {each.path for each in operations[place:] if each.what == "flush_folder"}
        if operation.what == "put" and (names_early or operation.path.parent in later):
            file = after / operation.path.relative_to(folder)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(durable.get(operation.path, b""))
        elif operation.what == "rename" and (names_early or operation.path.parent in later):
            source, target = (
                after / path.relative_to(folder) for path in (operation.path, operation.more)
            )
            source.mkdir(parents=True, exist_ok=True)  # a folder of which no file is left
            shutil.rmtree(target, ignore_errors=True)
            source.rename(target)
        elif operation.what == "rename":
            named[operation.more] = named.get(operation.path, operation.path)
        elif operation.what == "remove":
            gone = after / named.get(operation.path, operation.path).relative_to(folder)
            if names_early and place < last:
                shutil.rmtree(gone, ignore_errors=True)
            elif gone.is_dir() and (files := sorted(gone.iterdir())):
                files[0].unlink()


# --- data -----------------------------------------------------------------------------------------


def changed_data_is_rejected(box: Box) -> None:
    """A data file changes before the run is resumed: rejected with its name, unless --data-changed
    is given.
    """
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    lines = ["\t".join((box.rng.choice(words), str(number))) for number in range(60)]
    data = box.folder / "pairs.tsv"
    data.write_text("source\ttarget\n" + "\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    changes = {
        "data.train": str(data),
        "data.valid": str(data),
        "train.steps": 6,
        "data.test": None,
    }
    box.expect(box.train(changes) == 0, "the first session failed")
    number = box.rng.randrange(len(lines))
    lines[number] = lines[number][:-1] + chr(ord(lines[number][-1]) ^ 1)
    data.write_text("source\ttarget\n" + "\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    longer = {**changes, "train.steps": 9}
    code = box.train(longer)
    box.expect(
        code == 1 and str(data) in box.output().splitlines()[-1],
        f"line {number + 2} changed: {code}",
    )
    box.expect("--data-changed" in box.output(), "the option --data-changed is not named")
    code = forked(training(box.run, longer, box.log, data_changed=True))
    events = (box.run / "metrics.jsonl").read_text("utf-8").splitlines()
    box.expect(
        code == 0 and any("data changed" in json.loads(e).get("event", "") for e in events),
        "no event",
    )


def foreign_folders_stay(box: Box) -> None:
    """Foreign folders among the checkpoints, and checkpoints of later steps, are never deleted."""
    folder = box.run / "checkpoints"
    reference = box.reference()
    shutil.copytree(reference.folder, box.run)
    names = ["step-00000004-mine", f"notes-{box.number}", "step-1", "step-00000099"]
    for name in names:
        (folder / name).mkdir()
        (folder / name / "precious.txt").write_text(name, encoding="utf-8", newline="\n")
    mine = checkpoint.list_checkpoints(folder)[0]
    (mine / "remark.txt").write_text("kept by hand", encoding="utf-8", newline="\n")
    code = box.train({"train.steps": 3 * TINY["train.steps"]})
    box.expect(code == 0, f"it ended with {code}")
    for name in names:
        box.expect((folder / name / "precious.txt").is_file(), f"{name} is gone")
    box.expect((mine / "remark.txt").is_file(), f"{mine.name}, with a remark in it, is gone")
