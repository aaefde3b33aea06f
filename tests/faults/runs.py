"""Tiny real runs, each in its own process that can be killed, and the state that they leave on
disk.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.kept_results import keep_results

from trifold import errors
from trifold.baselines import comparison
from trifold.errors import OtherRankError, TrifoldError
from trifold.train import checkpoint, model_card, train
from trifold.train.monitor import View

errors.COLUMNS = 100_000  # one line per message, in which the trials find words
FEW_RESAMPLES = 20  # of the scores in a card; a thousand take as long as the run
model_card.RESAMPLES = FEW_RESAMPLES
comparison.RESAMPLES = FEW_RESAMPLES
keep_results()

# Every key that matters, so that the shipped recipe may change.
TINY: dict[str, Any] = {
    "model.norm_placement": "post",
    "model.dropout": 0.1,
    "model.d_model": 16,
    "model.n_heads": 2,
    "model.n_layers": 1,
    "model.d_ff": 32,
    "batch.tokens": 512,
    "generate.max_new_tokens": 6,
    "train.schedule": "inverse-sqrt",
    "train.learning_rate": 0.01,
    "train.precision": "float32",
    "train.device": "cpu",
    "train.steps": 12,
    "train.warmup": 4,
    "train.validate_every": 6,
    "train.save_every": 3,
    "train.keep_last": 4,
    "train.log_every": 1,
}

# Raw text, written by the box.
TEXT: dict[str, Any] = {
    "data.train": "TEXT",
    "data.valid": None,
    "data.test": None,
    "data.documents": "blank",
    "data.holdout": 0.2,
    "model.max_positions": 24,
    "batch.tokens": 200,
}

# Configurations; each changes something that a resumed run could get wrong.
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"train.precision": "bfloat16"},
    "int8": {
        "train.precision": "int8",
        "model.d_model": 256,
        "model.d_ff": 256,
        "batch.tokens": 1024,
    },
    "accumulating": {"train.accumulate": 3},
    "workers": {"train.workers": 2},
    "averaging": {"train.average": 3},
    "async save": {"train.async_save": True},
    "pre-norm, gated": {
        "model.norm_placement": "pre",
        "model.gated": True,
        "model.activation": "silu",
    },
    "rotary, grouped": {"model.positions": "rotary", "model.n_kv_heads": 1},
    "two layers, clipped": {"model.n_layers": 2, "train.clip": 0.5},
    "cosine": {"train.schedule": "cosine"},
    "BPE-dropout": {
        "tokenizer.kind": "bpe",
        "tokenizer.vocab_size": 60,
        "tokenizer.dropout": 0.3,
    },
    "weight decay, all kept": {
        "train.weight_decay": 0.1,
        "train.keep_every": 6,
        "train.keep_last": 1,
    },
    # In the sample, beside it, the settings of two others.
    "small batches": {
        "batch.tokens": 200,
        "batch.rows": 7,
        "train.schedule": "cosine",
        "train.weight_decay": 0.1,
        "train.keep_every": 6,
        "train.keep_last": 1,
    },
    "causal, windows": {
        **TEXT,
        "task": {"kind": "causal"},
        "model.shape": "decoder",
        "model.norm_placement": "pre",
        "data.cut": "windows",
    },
    "causal, packed": {
        **TEXT,
        "task": {"kind": "causal"},
        "model.shape": "decoder",
    },
    "masked": {
        **TEXT,
        "task": {"kind": "masked", "mask": "words"},
        "tokenizer": {"kind": "bpe", "vocab_size": 60, "special": ["cls", "sep", "mask"]},
        "model.shape": "encoder",
        "model.positions": "learned",
        "model.heads": ["lm"],
    },
    "moving average, recomputed": {"train.ema": 0.9, "train.recompute": "blocks"},
    "adamw, bf16, accumulating": {
        "train.optimizer": "adamw",
        "train.weight_decay": 0.1,
        "train.precision": "bfloat16",
        "train.accumulate": 2,
    },
    "muon": {"train.optimizer": "muon"},
    "adafactor": {"train.optimizer": "adafactor"},
    "warmup-stable-decay": {"train.schedule": "warmup-stable-decay", "train.decay": 0.5},
    "spikes skipped": {
        "train.on_spike": "skip",
        "train.spike_factor": 1.05,
        "train.spike_window": 5,
    },
    "compiled": {
        **TEXT,
        "train.compile": "blocks",
        "model.n_layers": 2,
        "task": {"kind": "causal"},
        "model.shape": "decoder",
    },
}
SLOW = ("compiled",)  # slow to start: used by the trials that resume a run a few times only
CRASHED = 70  # a traceback; TrifoldError is 1

TIMES = ("seconds", "train/tokens_per_second")


class Broken(Exception):
    """A promise was not kept."""


class Written(View):
    """Writes the output of a run to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def say(self, line: str) -> None:
        """Append a line."""
        with self._path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(line + "\n")


@dataclass
class Reference:
    """An uninterrupted run."""

    folder: Path
    state: dict[str, Any]
    seconds: float


@dataclass
class Box:
    """What a trial uses: its folder, its random numbers, and the reference runs that trials share."""

    folder: Path
    rng: random.Random
    number: int
    references: dict[str, Reference] = field(default_factory=dict)
    command: Callable[[Sequence[str]], int] = field(
        default=lambda words: CRASHED
    )  # the command line

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def log(self) -> Path:
        return self.folder / "output.txt"

    def output(self) -> str:
        """The output of all runs in this box."""
        return self.log.read_text("utf-8") if self.log.is_file() else ""

    def expect(self, kept: bool, what: str) -> None:
        """Raises Broken with the last lines of the output unless `kept`."""
        if not kept:
            raise Broken(f"{what}; last lines: {' | '.join(self.output().splitlines()[-3:])}")

    def train(self, changes: Mapping[str, Any], **how: Any) -> int:
        """Train in a child process in this box; return the exit code, negative if a signal killed
        it.
        """
        return forked(training(self.run, changes, self.log), log=self.log, **how)

    def finish(self, changes: Mapping[str, Any], reference: Reference) -> None:
        """Resume to the end, and compare with the uninterrupted run."""
        code = self.train(changes)
        self.expect(code == 0, f"resuming ended with {code}")
        differing = differences(state_of(self.run), reference.state)
        self.expect(not differing, f"differs from the uninterrupted run: {', '.join(differing)}")

    def expect_all_saved(self, when: str) -> None:
        """The last training step is saved in a checkpoint that can be loaded."""
        trained = max(
            (line["step"] for line in lines_of(self.run) if "train/loss" in line), default=0
        )
        found = checkpoint.load_newest(self.run / "checkpoints")
        saved = 0 if found is None else checkpoint.step_of(found.path)
        self.expect(
            saved == trained, f"{when}: the last step is {trained}, the last checkpoint {saved}"
        )

    def config(self, *, slow: bool = False) -> tuple[dict[str, Any], Reference]:
        """One of the configurations in turn and its reference; with `slow` also those slow to
        start.
        """
        names = [name for name in CONFIGS if slow or name not in SLOW]
        name = names[self.number % len(names)]
        return CONFIGS[name], self.reference(name)

    def reference(self, name: str = "plain") -> Reference:
        """The reference run of a configuration, trained at first use."""
        if name not in self.references:
            folder = self.folder.parent / f"reference {name}"
            shutil.rmtree(folder, ignore_errors=True)
            log = self.folder.parent / "references" / f"{name}.txt"
            log.parent.mkdir(exist_ok=True)
            start = time.perf_counter()
            code = forked(training(folder, CONFIGS[name], log), log=log)
            if code:
                raise Broken(
                    f"the uninterrupted run `{name}` ended with {code}: {log.read_text('utf-8')}"
                )
            self.references[name] = Reference(folder, state_of(folder), time.perf_counter() - start)
        return self.references[name]


def training(folder: Path, changes: Mapping[str, Any], log: Path, **more: Any) -> Callable[[], int]:
    """A function that trains, for a child process."""

    def work() -> int:
        overrides = {**TINY, **changes}
        if overrides.get("data.train") == "TEXT":
            overrides["data.train"] = str(_text(log.parent.parent))
        try:
            return train(
                "smoke", out=folder, resume="auto", view=Written(log), **more, **overrides
            ).exit_code
        except TrifoldError as error:
            if not isinstance(error, OtherRankError):
                Written(log).say(f"error: {error.message}")
            return error.exit_code

    return work


def _text(folder: Path) -> Path:
    """Forty short documents, some longer than the context of the model; always the same."""
    drawn, words = random.Random(5), ["sun", "rain", "snow", "hail", "fog"]
    documents = [" ".join(drawn.choices(words, k=drawn.randint(1, 12))) for _ in range(40)]
    file = folder / "text.txt"
    file.write_text("\n\n".join(documents) + "\n", encoding="utf-8", newline="\n")
    return file


def forked(
    work: Callable[[], int],
    *,
    after: float | None = None,
    number: int = signal.SIGKILL,
    log: Path | None = None,
) -> int:
    """Run `work` in a child process and return its exit code, negative if a signal ended it.

    after: seconds until the child gets the signal `number`, if it still runs.
    """
    child = os.fork()
    if child == 0:
        code = CRASHED
        try:
            code = work()
        except BaseException:
            if log is not None:
                Written(log).say(traceback.format_exc())
        finally:
            os._exit(code)
    end = None if after is None else time.perf_counter() + after
    while True:
        done, status = os.waitpid(child, 0 if end is None else os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.perf_counter() >= end:
            os.kill(child, number)
            end = None
        else:
            time.sleep(0.0005)


PLANTED = "TRIFOLD_FAULTS_PLANTED"  # the planted bug, for processes that are not forks
# Reads one line of JSON after the other: the words of a command, the bug, a file for messages.
# Executes each command in a fork, and prints its exit code.
SERVER = """
import json, os, sys
from trifold.cli import main
from tests.faults import planted
from tests.faults.runs import forked

def run(words, bug, log):
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with planted(bug):
        return main(words)

for line in sys.stdin:
    print(forked(lambda: run(*json.loads(line))), flush=True)
"""


@cache
def _server(hash_seed: str) -> subprocess.Popen[str]:
    """A process with this hash seed, which ends with this one. To start one for each command would
    take ten times as long as the command.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )


def run_with_hash_seed(hash_seed: str, words: Sequence[str], log: Path) -> int:
    """The exit code of `trifold` with these arguments in another process, which shares only the
    planted bug with this one.
    """
    server = _server(hash_seed)
    assert server.stdin is not None and server.stdout is not None
    print(json.dumps([words, os.environ.get(PLANTED), str(log)]), file=server.stdin, flush=True)
    return int(server.stdout.readline())


def state_of(folder: Path) -> dict[str, Any]:
    """Everything that a run leaves on disk, except times, and the recipe, of which a continued run
    may change some settings.
    """
    last = checkpoint.list_checkpoints(folder / "checkpoints")[-1]
    progress = json.loads((last / checkpoint.PROGRESS).read_text("utf-8"))
    metrics = lines_of(folder)
    for values in (progress, *metrics):
        for key in TIMES:
            values.pop(key, None)
    kept = [*last.glob("*.safetensors"), *folder.glob("model/**/*"), *folder.glob("samples/*")]
    files = {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(kept) if path.is_file()
    }
    card = files["model/README.md"]
    files["model/README.md"] = card[: card.index(b"## Recipe")] + card[card.index(b"## Versions") :]
    return {"progress": progress, "metrics": metrics, **files}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The names of what differs between two states."""
    return sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; empty if there is no such file."""
    file = folder / "metrics.jsonl"
    return (
        [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        if file.is_file()
        else []
    )
