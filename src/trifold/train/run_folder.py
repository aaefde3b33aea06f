"""The files of a run.

recipe.yaml, environment.json, model/ (a Hugging Face folder with the best weights), checkpoints/,
metrics.jsonl, tensorboard/, samples/, data.json (digests of the data files), rejected/ (batches of
rejected updates). An existing run is continued or the command fails; nothing is overwritten. A lock
(.lock) admits one process at a time.
"""

import errno
import json
import math
import os
import platform
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout

from trifold import disk
from trifold.disk import sha256_of_file
from trifold.errors import CheckpointError, TrifoldError, UsageError, check_utf8
from trifold.folders import AnyPath, UntrustedPath, named, open_file
from trifold.hub.names import find_run_recipe, no_run_error
from trifold.jsonfiles import parse_metrics, read_json_or_none
from trifold.recipe import Recipe
from trifold.train import checkpoint
from trifold.train.ranks import Interrupted

LOCK = ".lock"
PRETRAINED = "pretrained"  # the folder of the run of the first stage
HELD_OUT = "held-out"
FOLDS = "folds"  # the folder of the runs that choose the steps
IDENTITY = "run"  # the key of the run's identity in the progress of a checkpoint
# The errors of file systems without locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def recipe_of_run(folder: AnyPath) -> UntrustedPath:
    """The recipe.yaml of a run, which may be named itself. Raises UsageError if the folder is no
    run.
    """
    path = named(folder)
    if path.name == "recipe.yaml":
        path = path.parent
    recipe = find_run_recipe(path)
    if recipe is None:
        raise no_run_error(path.path)
    open_file(recipe).close()  # raises what cannot be opened
    return recipe


class RunPart(NamedTuple):
    """What a run that is part of another one knows about it. run: its folder. runs: how long this
    part and all that follows take, in the time of this part.
    """

    run: Path
    runs: float


class RunFolder:
    """The paths of one run, and the command, in backticks, that continues it.

    part: of a run that another one consists of, and that is continued with it.
    """

    def __init__(self, path: Path, command: str = "trifold", part: RunPart | None = None) -> None:
        check_utf8(str(path), "--out")
        self.path = path
        self.part = part
        whole = path if part is None else part.run
        self.continue_command = f"`{command} resume {shlex.quote(str(whole))}`"
        self.recipe = path / "recipe.yaml"
        self.environment = path / "environment.json"
        self.tokenizer = path / "tokenizer"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.samples = path / "samples"
        self.metrics = path / "metrics.jsonl"
        self.data = path / "data.json"
        self.scores = path / "scores.json"
        self.rejected = path / "rejected"
        self._lock = FileLock(path / LOCK)
        self._probe = path / ".writable"
        self._created: list[Path] = []  # by this process

    def held_out(self, step: int) -> Path:
        """The file with the predictions of a validation of a fold."""
        return self.path / HELD_OUT / f"step-{step:08d}.safetensors"

    def held_out_files(self) -> Sequence[UntrustedPath]:
        """The files of all validations of a fold."""
        return self.below(self.path / HELD_OUT).glob("step-*.safetensors")

    def below(self, path: Path) -> UntrustedPath:
        """One of the paths of the run, to read: links in the run may not lead out of it."""
        return UntrustedPath(path, self.path)

    def open(self, *, resume: bool) -> list[str]:
        """Create the folder and lock it until `close`. Returns a warning if it cannot be locked.

        Raises UsageError if the folder has a run and `resume` is not set, if it has other files, if
        another process uses it, and if it cannot be written.
        """
        try:
            self._check_files(resume)
            self._created = _missing(self.path, Path(self._lock.lock_file))
            disk.make_folder(self.path)
            warnings = self._acquire_lock()
            # Again: another process may have finished a run in the meantime.
            self._check_files(resume)
            files = self.recipe, self.environment, self.data
            self._created += _missing(*files, self.tokenizer, self.checkpoints, self.samples)
            for folder in (self.checkpoints, self.samples):
                disk.make_folder(folder)
            self._probe.touch()
            self._probe.unlink()
            self._remove_temporary_files()
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be written ({error.strerror}); choose another --out"
            ) from error
        return warnings

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def check_unlocked(self) -> None:
        """Raises UsageError if another process uses this run."""
        self._acquire_lock()
        self.close()

    def _check_files(self, resume: bool) -> None:
        """Raises UsageError if the folder has files that this run must not touch."""
        if not self.path.exists():
            return
        present = {path.name for path in self.path.iterdir()} - {LOCK, PRETRAINED}
        if present and not resume:
            raise UsageError(
                f"{self.path}: contains files; continue that run with --resume auto, or choose "
                "another --out"
            )
        folders = (self.checkpoints, self.model, self.samples, self.tokenizer, self.rejected)
        for folder in (*folders, self.path / FOLDS):
            self.below(folder).is_inside()  # raises for a link out, through which we would write
        if self.recipe.exists():
            return
        if checkpoint.list_checkpoints(self.below(self.checkpoints)):
            raise UsageError(
                f"{self.path}: has checkpoints but no recipe.yaml; choose another --out"
            )
        # A run that was killed before it wrote recipe.yaml leaves empty folders. Unrelated files
        # are not touched.
        written = {
            self.environment,
            self.tokenizer,
            self.checkpoints,
            self.model,
            self.samples,
            self.metrics,
        }
        names = {path.name for path in written | {self.data, self.rejected}}
        names -= {
            f.name for f in (self.checkpoints, self.samples) if f.is_dir() and not any(f.iterdir())
        }
        foreign = sorted(present & names)
        if foreign:
            listed = ", ".join(foreign[:3])
            if len(foreign) > 3:
                listed += ", …"
            raise UsageError(
                f"{self.path}: contains files ({listed}) but no recipe.yaml, so there is no run "
                "to continue; choose another --out"
            )

    def _acquire_lock(self) -> list[str]:
        """Lock the folder; the system releases the lock of a process that dies."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UsageError(
                f"{self.path}: another process is using this run and holds its lock, "
                f"{self._lock.lock_file}; wait for "
                "it, stop it, or choose another --out"
            ) from None
        except (NotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NO_LOCKS:
                raise
            what = f"{self.path}: the file system has no locks"
            return [f"warning: {what}; make sure that no other process uses this run"]
        return []

    def _remove_temporary_files(self) -> None:
        """Remove the temporary files of a killed process."""
        checkpoint.sweep(self.checkpoints)
        for folder in (self.path, self.model, self.samples, self.tokenizer, self.rejected):
            for path in disk.leftovers(folder):
                disk.remove(path)

    @contextmanager
    def removed_on_failure(self) -> Iterator[None]:
        """If a new run fails before its first step, remove its files, so that the corrected command
        can follow.
        """
        try:
            yield
        except Interrupted:  # the run will be continued
            raise
        except BaseException:
            self.remove_created()
            raise

    def remove_created(self) -> None:
        """Remove the files of a run that this process has begun."""
        if self.recipe not in self._created:
            return
        for path in reversed(self._created):
            if path.is_dir() and path != self.tokenizer:
                with suppress(OSError):  # not empty
                    path.rmdir()
            else:
                disk.remove(path)

    def identity(self) -> dict[str, Any]:
        """The identity of the run, from the newest checkpoint with an intact progress.json; empty
        without one.
        """
        for path in reversed(checkpoint.list_checkpoints(self.below(self.checkpoints))):
            file = path / checkpoint.PROGRESS
            digests = read_object(path / checkpoint.MANIFEST).get("sha256")
            with suppress(OSError):
                if isinstance(digests, dict) and digests.get(file.name) == sha256_of_file(file):
                    return dict(read_object(file).get(IDENTITY, {}))
        return {}

    def write_recipe(self, recipe: Recipe, environment: Mapping[str, Any]) -> str:
        """Write recipe.yaml and environment.json, keeping its list of sessions. Returns the digest
        of the recipe.
        """
        disk.replace_text(self.recipe, recipe.resolved())
        self._write_environment(environment)
        return self.recipe_digest()

    def recipe_digest(self) -> str:
        """SHA-256 (hexadecimal) of recipe.yaml."""
        return sha256_of_file(self.below(self.recipe))

    def check_shared(self, digest: str) -> None:
        """Raises UsageError if this rank does not see the recipe that rank 0, maybe on another
        machine, has written.
        """
        if not self.recipe.is_file() or self.recipe_digest() != digest:
            raise UsageError(
                f"{self.path}: {platform.node()} does not see the files of rank 0; choose an "
                "--out on a disk that all "
                "machines share"
            )

    def record_session(
        self, step: int, rejected: Sequence[str], changed: Mapping[str, Any]
    ) -> None:
        """Add a session to environment.json: its start, the digest of its recipe, first step,
        damaged checkpoints, and changed settings.
        """
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        session = {
            "started": now,
            "recipe": self.recipe_digest(),
            "from_step": step,
            "rejected": list(rejected),
            "changed": dict(changed),
        }
        self._write_environment(self.read_environment(), session)

    def record_end(self, step: int, seconds: float, stopped_by: str) -> None:
        """Add to the last session in environment.json how it ended; `seconds` since the beginning
        of the run.
        """
        content = self.read_environment()
        with suppress(OSError):  # the run is complete without it
            ended = {"to_step": step, "seconds": round(seconds, 3), "stopped_by": stopped_by}
            content["sessions"][-1] |= ended
            disk.replace_text(self.environment, json.dumps(content, indent=2) + "\n")

    def read_environment(self) -> dict[str, Any]:
        """The content of environment.json; empty if it is missing or damaged."""
        return read_object(self.below(self.environment))

    def read_changes(self) -> dict[str, Any]:
        """The settings that the sessions of the run have changed, by dotted key."""
        changes = dict[str, Any]()
        with suppress(AttributeError, TypeError, ValueError):  # environment.json is damaged
            for session in self.read_environment().get("sessions", []):
                changes |= session.get("changed", {})
        return {name: value for name, value in changes.items() if value is not None}

    def _write_environment(self, content: Mapping[str, Any], *sessions: Mapping[str, Any]) -> None:
        """Write environment.json with the sessions so far, and further ones."""
        earlier = self.read_environment().get("sessions", [])
        current = {**content, "sessions": [*earlier, *sessions]}
        disk.replace_text(self.environment, json.dumps(current, indent=2) + "\n")

    def truncate_metrics(self, step: int, max_lines: int | None = None) -> int:
        """Remove damaged lines, and those past `step` or `max_lines`, which the run repeats; the
        number that stay.
        """
        kept = []
        metrics = self.below(self.metrics)
        if metrics.exists():
            with open_file(metrics) as file:
                lines = file.readlines()
            kept = [line for line in lines[:max_lines] if _step_of(line) <= step]
            if kept != lines:
                disk.replace_text(self.metrics, b"".join(kept).decode("utf-8"))
        return len(kept)


def _missing(*paths: Path) -> list[Path]:
    return [path for path in paths if not path.exists()]


def _step_of(line: bytes) -> float:
    """The step of a line of metrics.jsonl; infinity if the line is incomplete or damaged."""
    if not line.endswith(b"\n"):
        return math.inf
    try:
        return int(parse_metrics(line)["step"])
    except ValueError:
        return math.inf


def read_object(path: UntrustedPath) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing or damaged."""
    content = read_json_or_none(path)
    if not isinstance(content, dict):
        return {}
    return content


# --- errors ---------------------------------------------------------------------------------------

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


@contextmanager
def explain_resource_errors(folder: RunFolder) -> Iterator[None]:
    """Raise CheckpointError for a full or failing disk, and TrifoldError if memory runs out, with
    the remedy.
    """
    try:
        yield
    except BrokenPipeError:  # of the terminal, not of a disk
        raise
    except OSError as error:
        name = error.filename or folder.path
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        raise CheckpointError(
            f"{name}: could not be written ({error.strerror or error}); "
            f"{disk.remedy(error)} and "
            "repeat the command with --resume auto"
        ) from error
    except (MemoryError, RuntimeError) as error:
        # Not all allocators and drivers raise OutOfMemoryError.
        signs = (sign in str(error).lower() for sign in OUT_OF_MEMORY)
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and not any(signs):
            raise
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise TrifoldError(
            f"{folder.path}: out of memory ({reason}); continue from the last checkpoint with "
            "--resume auto. To use "
            "less memory, set train.recompute=blocks, which does not change the run, or start "
            "another one with smaller "
            "batches (batch.tokens, with more train.accumulate) or fewer train.workers"
        ) from error
