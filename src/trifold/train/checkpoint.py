"""Full training states that can be trusted.

A checkpoint is written aside, flushed to the disk, listed in a manifest with a SHA-256 a file (written last), and
only then renamed to its place: `step-00002000` either holds everything, durably, or does not exist. So the latest is
the one with the highest number. What is damaged afterwards is refused by name, and the newest sound one is taken
instead. No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from trifold import disk
from trifold.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT = "trifold-checkpoint-2"
WEIGHTS, MOMENTS, PROGRESS = "weights.safetensors", "optimizer.safetensors", "progress.json"
FILES = {WEIGHTS, MOMENTS, PROGRESS}
NAME = "step-" + "[0-9]" * 8


Whole: TypeAlias = Callable[[Tensor], Tensor]  # of a tensor whose parts may lie on several ranks, all of it


def as_it_is(tensor: Tensor) -> Tensor:
    """Of a tensor that is whole."""
    return tensor


class Checkpoint(NamedTuple):
    """weights: fp32 master weights by name; moments: the optimiser's; progress: where in the data the run stands."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    progress: dict[str, Any]

    def snapshot(self, whole: Whole = as_it_is) -> Checkpoint:
        """A copy that stays as it is while training goes on; tensors are made whole in the order in which they are
        saved.
        """
        weights, moments = (
            {name: whole(tensors[name]).detach().to("cpu", copy=True) for name in sorted(tensors)}
            for tensors in (self.weights, self.moments)
        )
        return Checkpoint(weights, moments, json.loads(json.dumps(self.progress)))


# --- out -----------------------------------------------------------------------------------------------


def save(folder: Path, checkpoint: Checkpoint, whole: Whole = as_it_is) -> Path:
    """Write `folder/step-N` for N = progress["step"]; nothing half-written is ever seen under that name.

    Tensors are made whole one at a time: first the weights, then the moments, each in the order of their names.

    Raises CheckpointError where the disk refuses; what stood there before stays.
    """
    final = folder / f"step-{checkpoint.progress['step']:08d}"
    aside, old = _aside(final), _old(final)
    try:
        disk.remove(aside)
        disk.make_folder(aside)
        digests = {
            WEIGHTS: disk.write(aside / WEIGHTS, _pieces(checkpoint.weights, whole)),
            MOMENTS: disk.write(aside / MOMENTS, _pieces(checkpoint.moments, whole)),
            PROGRESS: disk.write(aside / PROGRESS, [_json(checkpoint.progress).encode()]),
        }
        disk.write(aside / MANIFEST, [_manifest_text(digests).encode()])
        disk.flush_folder(aside)
        if final.exists():  # saved again: the old one goes only when the new one stands
            if not _is_ours(final):
                # Somebody else's: it stays, under this name.
                old = _free(final.with_name(f"{final.name}.foreign"))
            disk.rename(final, old)
        disk.rename(aside, final)
        disk.flush_folder(folder)
        if old == _old(final):
            disk.remove(old)
    except OSError as error:
        disk.remove(aside)
        _put_back(folder)
        raise CheckpointError(
            f"{final}: could not be written ({error}); {disk.remedy(error)} or choose another --out, then --resume auto"
        ) from error
    return final


def prune(
    folder: Path, keep: int, every: int = 1, *, upto: int | None = None, forever: int | None = None,
    best: int | None = None,
) -> None:  # fmt: skip
    """Remove all but the newest `keep` regular checkpoints, the newest of all, those whose step is a multiple of
    `forever`, and that of step `best`; and what was left aside.

    Only what is a checkpoint of ours, with nothing else in it, and not beyond step `upto`, is ever removed.
    """
    ours = [path for path in saved(folder) if _is_ours(path) and (upto is None or step_of(path) <= upto)]
    staying = {*[path for path in ours if step_of(path) % every == 0][-keep:], *ours[-1:]}
    for path in ours:
        step = step_of(path)
        if path not in staying and step != best and not (forever and step % forever == 0):
            _set_aside(path)
    sweep(folder)


def sweep(folder: Path) -> None:
    """Bring back what was being replaced when a save was killed, and remove what was left aside or set aside."""
    _put_back(folder)
    going = [*folder.glob(f".{NAME}.partial"), *folder.glob(f".{NAME}.old")]
    if going:
        disk.flush_folder(folder)  # else they could be back after a power cut, half removed, as checkpoints
    for path in going:
        disk.remove(path)


def _set_aside(path: Path) -> None:
    """For `sweep` to remove: a removal that is killed leaves no half of it under its name. What cannot go stays."""
    with suppress(OSError):
        disk.rename(path, _aside(path))


def _put_back(folder: Path) -> None:
    for old in folder.glob(f".{NAME}.old"):
        final = folder / old.name.removeprefix(".").removesuffix(".old")
        if not final.exists():
            disk.rename(old, final)


def _aside(final: Path) -> Path:
    return final.with_name(f".{final.name}.partial")


def _old(final: Path) -> Path:
    return final.with_name(f".{final.name}.old")


def _free(path: Path) -> Path:
    """This name, or with a number behind it the first that nobody has."""
    names = chain([path], (path.with_name(f"{path.name}-{number}") for number in count(2)))
    return next(name for name in names if not (name.exists() or name.is_symlink()))


def _is_ours(path: Path) -> bool:
    """A manifest of ours, though perhaps of damaged files, and nothing that we did not write."""
    try:
        _manifest(path)
        return {file.name for file in path.iterdir()} <= {*FILES, MANIFEST}
    except (CheckpointError, OSError):
        return False


_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def _pieces(tensors: Mapping[str, Tensor], whole: Whole = as_it_is) -> Iterator[disk.Bytes]:
    """A safetensors file, tensor by tensor: the library's own writer wants a copy of everything at once.

    8 bytes: the length of the header; the header, JSON; the tensors, one after the other.
    """
    header, place = {}, 0
    for name in sorted(tensors):
        tensor = tensors[name]
        end = place + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in sorted(tensors):
        flat = whole(tensors[name]).detach().cpu().contiguous().reshape(-1)
        if len(flat):
            yield flat.view(torch.uint8).numpy().data


# --- in ------------------------------------------------------------------------------------------------


def load(path: Path, *, optimizer: bool = True) -> Checkpoint:
    """Read and verify a checkpoint. Raises CheckpointError naming the file that is missing, damaged or unreadable."""
    manifest = _manifest(path)
    for name, expected in manifest.items():
        file = path / name
        try:
            if not file.is_file():
                raise CheckpointError(f"{file}: missing, though the manifest lists it")
            if (optimizer or name != MOMENTS) and digest_of(file) != expected:
                raise CheckpointError(f"{file}: damaged (its SHA-256 is not the one in {MANIFEST})")
        except OSError as error:
            raise _unreadable(file, error) from error
    try:
        weights = load_file(path / WEIGHTS)
        moments = load_file(path / MOMENTS) if optimizer else {}
        progress = json.loads((path / PROGRESS).read_text("utf-8"))
    except OSError as error:
        raise _unreadable(path, error) from error
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of trifold ({error})") from error
    return Checkpoint(weights, moments, progress)


def _unreadable(place: Path, error: OSError) -> CheckpointError:
    """What the disk or its rights keep from us is passed over like what is damaged."""
    return CheckpointError(f"{place}: cannot be read ({error.strerror or error})")


class Found(NamedTuple):
    """The newest sound checkpoint, and what was wrong with newer ones, a line each."""

    path: Path
    state: Checkpoint
    refused: list[str]


def newest_sound(folder: Path) -> Found | None:
    """None where there is no checkpoint at all. Raises CheckpointError where there are, and none is sound."""
    refused: list[str] = []
    for path in reversed(saved(folder)):
        try:
            return Found(path, load(path), refused)
        except CheckpointError as error:
            refused.append(str(error))
    if refused:
        raise CheckpointError(
            "\n".join([*refused, f"{folder}: no sound checkpoint is left; begin another run with --out"])
        )
    return None


def saved(folder: Path) -> list[Path]:
    """Finished checkpoints, the oldest first; whether they are sound, `load` finds out.

    Raises CheckpointError where the folder is there and cannot be listed: a run is not begun anew for that.
    """
    try:
        inside = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(folder, error) from error
    return sorted(path for path in inside if fnmatchcase(path.name, NAME) and _holds_something(path))


def _holds_something(path: Path) -> bool:
    """Whether it is a folder that is not empty, or one that cannot be looked into."""
    try:
        return path.is_dir() and any(path.iterdir())
    except OSError:
        return True


def regular(folder: Path, every: int) -> list[Path]:
    """Those of `saved` that a run which nobody interrupts has too: their step is a multiple of `every`."""
    return [path for path in saved(folder) if step_of(path) % every == 0]


def step_of(path: Path) -> int:
    """2000 for `step-00002000`."""
    return int(path.name.removeprefix("step-"))


class Mean(NamedTuple):
    """The mean of the weights of so many sound checkpoints; refused: what is wrong with the others."""

    weights: dict[str, Tensor]
    of: int
    refused: list[str]


def mean_weights(paths: list[Path]) -> Mean:
    """The mean of the weights of several checkpoints, summed in float64 (Vaswani et al. 2017, section 6.1).

    A damaged one is left out: what is learnt since is not to be lost for it.
    """
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    refused: list[str] = []
    for path in paths:
        try:
            weights = load(path, optimizer=False).weights
        except CheckpointError as error:
            refused.append(str(error))
            continue
        for name, value in weights.items():
            kinds[name] = value.dtype
            total[name] = total[name].add_(value) if name in total else value.double()
    sound = len(paths) - len(refused)
    return Mean({name: (value / sound).to(kinds[name]) for name, value in total.items()}, sound, refused)


# --- the manifest --------------------------------------------------------------------------------------


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _manifest_text(digests: Mapping[str, str]) -> str:
    """With a digest of its own, so that damage to it is not taken for damage to what it lists."""
    told = {"format": FORMAT, "sha256": dict(digests)}
    return _json({**told, "manifest": hashlib.sha256(_json(told).encode()).hexdigest()})


def _manifest(path: Path) -> Mapping[str, str]:
    file = path / MANIFEST
    try:
        raw = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{file}: missing, so this is not a checkpoint of trifold") from error
    except OSError as error:
        raise _unreadable(file, error) from error
    try:
        text = raw.decode("utf-8")
        digests: dict[str, str] = json.loads(text)["sha256"]
        foreign = json.loads(text)["format"] != FORMAT or set(digests) != FILES
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: not a checkpoint of trifold (damaged or foreign)") from error
    if foreign:
        raise CheckpointError(f"{file}: not a checkpoint of trifold (damaged, or of another format)")
    if text != _manifest_text(digests):
        raise CheckpointError(f"{file}: damaged (its SHA-256 is not the one it says)")
    return digests


def digest_of(file: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
