"""Several processes that learn together: as one learns, however many they are, and whichever of them is killed."""

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
    """2 to 4 ranks, with the whole model or a part each; one is killed, or asked to stop, and all end, soon; others in
    number go on: the curve and the weights are those of one process.
    """
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
    for sitting in range(2):
        world, form = rng.choice([2, 3, 4]), {"train.sharding": rng.choice(["none", "full"])}
        if sitting == 0:
            _end_early(box, changes | form, world, (signal.SIGKILL, signal.SIGTERM)[box.number % 2])
        else:
            codes = _together(box, changes | form, world, None)
            box.expect(set(codes) == {0}, f"{world} ranks ended with {codes}")
    ours, theirs = (
        [line["train/loss"] for line in lines_of(folder) if "train/loss" in line]
        for folder in (box.run, alone)
    )
    box.expect(len(ours) == len(theirs), f"{len(ours)} steps, and alone {len(theirs)}")
    off = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    box.expect(off <= CLOSE, f"the loss is off by {off:.1e}")
    ours_last, theirs_last = (
        load_file(checkpoint.list_checkpoints(folder / "checkpoints")[-1] / checkpoint.WEIGHTS)
        for folder in (box.run, alone)
    )
    off = max(float((ours_last[name] - theirs_last[name]).abs().max()) for name in theirs_last)
    box.expect(off <= 1e3 * CLOSE, f"the weights are off by {off:.1e}")  # Adam divides by small numbers


def _end_early(box: Box, changes: dict[str, Any], world: int, number: signal.Signals) -> None:
    """One rank gets the signal, at some moment or behind some step: no rank is left behind, and where all were asked to
    stop, what they had learnt is saved.
    """
    wait, unlucky, struck = box.rng.uniform(0, 3), box.rng.randrange(world), 0.0
    lines = box.rng.randint(1, 4) if box.number % 4 in (1, 2) else None

    def strike(children: list[int]) -> None:
        nonlocal struck
        end = time.monotonic() + (wait if lines is None else 60.0)
        while time.monotonic() < end and (lines is None or _lines_so_far(box) < lines):
            time.sleep(0.002)
        os.kill(children[unlucky], number)
        struck = time.monotonic()

    codes = _together(box, changes, world, strike)
    lasted = time.monotonic() - struck
    box.expect(lasted <= SOON, f"{number.name} to one: the others went on for {lasted:.0f} s")
    left = {code for rank, code in enumerate(codes) if rank != unlucky}
    box.expect(left <= {0, 1, 143, -signal.SIGTERM}, f"{number.name} to one: {codes}")
    if number == signal.SIGTERM and _lines_so_far(box):
        box.expect(set(codes) <= {0} or set(codes) <= {143}, f"asked to stop, they ended with {codes}")
        box.all_is_saved("asked to stop")


def _lines_so_far(box: Box) -> int:
    metrics = box.run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0


def _together(box: Box, changes: dict[str, Any], world: int, beside: Any) -> list[int]:
    work = training(box.run, changes, box.log)
    return ranked(lambda rank: work(), world, log=box.log, beside=beside)
