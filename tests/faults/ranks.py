"""Training with several processes equals training with one, also if one of them is killed."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from safetensors.torch import load_file
from tests.faults.groups import ranked
from tests.faults.runs import Box, forked, lines_of, training

from trifold.train import checkpoint

CLOSE = 1e-10  # in float64: the order of sums
SOON = 10.0  # seconds, on a machine with fewer cores than ranks


def ranks_change_nothing(box: Box) -> None:
    """Train with 2 to 4 ranks, replicated or sharded; kill or stop one, and all end soon; continue
    with another number of ranks: losses and weights equal those of one process."""
    rng = box.rng
    changes = {
        "model.dropout": 0.0,
        "train.precision": "float64",
        "train.accumulate": rng.choice([1, 2, 3]),
        "train.optimizer": rng.choice(["adam", "adamw"]),
        "train.clip": rng.choice([None, 0.5]),
    }
    alone = box.folder / "alone"
    box.expect(forked(training(alone, changes, box.log), log=box.log) == 0, "one process failed")
    for session in range(2):
        world, form = rng.choice([2, 3, 4]), {"train.sharding": rng.choice(["none", "full"])}
        if session == 0:
            _end_early(box, changes | form, world, (signal.SIGKILL, signal.SIGTERM)[box.number % 2])
        else:
            codes = _together(box, changes | form, world, None)
            box.expect(set(codes) == {0}, f"{world} ranks ended with {codes}")
    ours, theirs = (
        [line["train/loss"] for line in lines_of(folder) if "train/loss" in line]
        for folder in (box.run, alone)
    )
    box.expect(len(ours) == len(theirs), f"{len(ours)} steps instead of {len(theirs)}")
    off = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    box.expect(off <= CLOSE, f"the loss is off by {off:.1e}")
    ours_last, theirs_last = (
        load_file(checkpoint.list_checkpoints(folder / "checkpoints")[-1] / checkpoint.WEIGHTS)
        for folder in (box.run, alone)
    )
    off = max(float((ours_last[name] - theirs_last[name]).abs().max()) for name in theirs_last)
    box.expect(
        off <= 1e3 * CLOSE, f"the weights are off by {off:.1e}"
    )  # Adam divides by small numbers


def _end_early(box: Box, changes: dict[str, Any], world: int, number: signal.Signals) -> None:
    """Send the signal to one rank, at a random time or after a random step. All ranks must end; on
    SIGTERM the state of the last step must be saved."""
    wait, unlucky, sent = box.rng.uniform(0, 3), box.rng.randrange(world), 0.0
    lines = box.rng.randint(1, 4) if box.number % 4 in (1, 2) else None

    def strike(children: list[int]) -> None:
        nonlocal sent
        end = time.monotonic() + (wait if lines is None else 60.0)
        while time.monotonic() < end and (lines is None or _lines_so_far(box) < lines):
            time.sleep(0.002)
        os.kill(children[unlucky], number)
        sent = time.monotonic()

    codes = _together(box, changes, world, strike)
    lasted = time.monotonic() - sent
    box.expect(
        lasted <= SOON, f"{number.name} to one rank: the others continued for {lasted:.0f} s"
    )
    left = {code for rank, code in enumerate(codes) if rank != unlucky}
    box.expect(left <= {0, 1, 143, -signal.SIGTERM}, f"{number.name} to one: {codes}")
    if number == signal.SIGTERM and _lines_so_far(box):
        box.expect(set(codes) <= {0} or set(codes) <= {143}, f"exit codes after SIGTERM: {codes}")
        box.expect_all_saved("after SIGTERM")


def _lines_so_far(box: Box) -> int:
    metrics = box.run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0


def _together(box: Box, changes: dict[str, Any], world: int, meanwhile: Any) -> list[int]:
    work = training(box.run, changes, box.log)
    return ranked(lambda rank: work(), world, log=box.log, meanwhile=meanwhile)
