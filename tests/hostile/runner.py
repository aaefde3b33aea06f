"""Make many trials in several processes, find the mutations that each fault needs, and report."""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.command_line import run_command
from tests.hostile import entries, mutations, valid
from tests.hostile.mutations import Tree
from tests.hostile.trials import MUTATED, Plan, Trial, kind_of, run_trial
from tests.hostile.valid import File

Trees = Mapping[str, Mapping[str, File]]
Found = dict[str, Any]  # a trial as JSON
SHOWN = 4  # trials of each kind of fault in a summary
WARM = ("show", "generate", "stream", "look", "look json", "look page", "eval texts", "convert", "runs", "embed", "start from")  # fmt: skip
TAIL = 600  # characters of an output in a report


def warm_up(tree: Mapping[str, File], folder: Path) -> None:
    """Import and compile what the entry points need, before this process is forked."""
    mutations.write(Tree({**entries.BESIDE, **tree}, valid.MODEL), folder)
    before = Path.cwd()
    os.chdir(folder / "tree")
    (folder / "out").mkdir()
    try:
        for name in WARM:
            words = entries.COMMANDS[name].split()
            places = {"model": valid.MODEL, "text": "fox", "out": "../out", "recipe": "start.yaml"}
            done = run_command(*(word.format(**places) for word in words))
            if done.code:
                raise RuntimeError(f"{name}: {done.err}")
    finally:
        os.chdir(before)
    shutil.rmtree(folder)
    warnings.resetwarnings()  # as users see them, and each time
    warnings.simplefilter("always")
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)


def _prepare(plans: Sequence[Plan], home: Path) -> Trees:
    """The valid folders of the plans; this process is ready to be forked."""
    kinds = {kind_of(Random(f"{plan.seed} {plan.number}"), plan.kinds) for plan in plans}
    trees = valid.make_trees({*kinds, "gpt2"}, home)
    warm_up(trees["gpt2"], home / "warm")
    return trees


def run_one(plan: Plan, home: Path) -> int:
    """Make one trial and print it; 1 if it is faulty."""
    trial = run_trial(plan, _prepare([plan], home), home / "0")
    outcome = trial.outcome
    print(f"{trial.kind}: {trial.entry}", *trial.mutations, sep="\n  ")
    print(f"--- standard output\n{outcome.out}\n--- standard error\n{outcome.err}\n---")
    print(
        f"exit code {outcome.code}, {outcome.seconds:.1f} s, {outcome.processor:.1f} s of processor "
        f"time, {outcome.memory / 2**20:,.0f} MiB; events: {outcome.events}"
    )
    print(f"faults: {', '.join(trial.faults) or 'none'}")
    return int(bool(trial.faults))


def run_all(
    plans: Sequence[Plan], home: Path, processes: int, log: Path | None = None
) -> list[Found]:
    """Make the trials in forked workers. Prints progress on a terminal. log: a file to which each
    trial is appended as a line of JSON."""
    trees = _prepare(plans, home)
    readers = [
        _start(plans[worker::processes], trees, home / str(worker)) for worker in range(processes)
    ]
    found = list[Found]()
    rest = dict.fromkeys(readers, b"")
    faulty = 0
    while rest:
        for reader in select.select(list(rest), [], [])[0]:
            data = os.read(reader, 2**16)
            *lines, rest[reader] = (rest[reader] + data).split(b"\n")
            new = [json.loads(line) for line in lines]
            found += new
            faulty += sum(bool(one["faults"]) for one in new)
            if log is not None:
                with log.open("ab") as file:
                    file.writelines(line + b"\n" for line in lines)
            if not data:
                del rest[reader]
        if sys.stderr.isatty():
            text = f"\r\033[K{len(found):,} of {len(plans):,} folders, {faulty:,} faulty … "
            print(text, end="", file=sys.stderr, flush=True)
    if len(found) < len(plans):
        raise RuntimeError(f"a worker stopped: {len(found):,} of {len(plans):,} folders")
    return sorted(found, key=lambda one: one["number"])


def _start(plans: Sequence[Plan], trees: Trees, root: Path) -> int:
    """Start a worker; return the end of the pipe with its results."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        code = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "wb", buffering=0) as file:
                for plan in plans:
                    file.write(json.dumps(_smallest(plan, trees, root)).encode() + b"\n")
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    return reader


def _smallest(plan: Plan, trees: Trees, root: Path) -> Found:
    """The trial, or if it is faulty the one with the fewest mutations that has the same fault."""
    trial = run_trial(plan, trees, root)
    if trial.faults and len(trial.mutations) > 1:
        for number in range(MUTATED):
            smaller = run_trial(plan._replace(keep=(number,)), trees, root)
            if trial.faults[0] in smaller.faults:
                return _as_json(smaller)
    return _as_json(trial)


def _as_json(trial: Trial) -> Found:
    outcome = trial.outcome
    return {
        "number": trial.plan.number,
        "command": trial.plan.command,
        "kind": trial.kind,
        "entry": trial.entry,
        "mutations": trial.mutations,
        "faults": trial.faults,
        "code": outcome.code,
        "seconds": outcome.seconds,
        "processor": outcome.processor,
        "memory": outcome.memory,
        "events": outcome.events,
        "out": outcome.out[-TAIL:],
        "err": outcome.err[-TAIL:],
    }


# --- reports --------------------------------------------------------------------------------------


def summary(found: Sequence[Found], seconds: float) -> str:
    """Numbers of folders and faults, the longest time and the largest memory."""
    faulty = [one for one in found if one["faults"]]
    kinds = defaultdict[str, list[Found]](list)
    for one in faulty:
        for fault in one["faults"]:
            kinds[fault].append(one)
    codes = Counter(one["code"] for one in found)
    lines = [
        f"{len(found):,} folders in {seconds:,.0f} s ({len(found) / seconds:.1f} per second): {len(faulty):,} faulty",
        f"exit codes: {', '.join(f'{code}: {count:,}' for code, count in sorted(codes.items()))}",
    ]
    for key, unit, scale in (("seconds", "s", 1), ("processor", "s", 1), ("memory", "MiB", 2**20)):
        worst = max(found, key=lambda one: one[key])
        lines.append(f"largest {key}: {worst[key] / scale:,.1f} {unit} ({worst['command']})")
    for fault, ones in sorted(kinds.items(), key=lambda item: -len(item[1])):
        lines.append(f"{fault}: {len(ones):,}")
        lines += [f"  {_line(one)}" for one in ones[:SHOWN]]
    return "\n".join(lines)


def _line(one: Found) -> str:
    return f"{one['command']}  # {one['kind']}, {one['entry']}: {'; '.join(one['mutations'])}"[:300]


def report(found: Sequence[Found]) -> str:
    """Every faulty trial with the end of its output."""
    parts = list[str]()
    for one in found:
        if one["faults"]:
            parts.append(
                f"## {', '.join(one['faults'])}: {one['kind']}, {one['entry']}\n\n{one['command']}\n"
                + "".join(f"- {what}\n" for what in one["mutations"])
                + f"\nexit code {one['code']}, {one['processor']:.1f} s, {one['memory'] / 2**20:,.0f} MiB, "
                f"{one['events']}\n\n{one['out'][-200:]}\n{one['err']}\n"
            )
    return "\n".join(parts)
