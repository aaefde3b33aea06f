"""`trifold doctor`: what this machine has, and, with --faults, whether training survives on it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trifold.cli.options import Json
from trifold.cli.streams import note, print_json
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.faults import Size, Verdict

EXAMPLES = (
    "trifold doctor",
    "trifold doctor --faults",
    "trifold doctor --faults --only kills --only damage",
    "trifold doctor --faults --plant no-flush",
)
ALONE = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # so that a process can be copied


def run(
    faults: Annotated[
        bool, typer.Option("--faults", help="Kill, break and fill up tiny runs, and count what survives.")
    ] = False,
    size: Annotated[
        Literal["sample", "short", "full"], typer.Option(help="How many trials: seconds, minutes or hours.")
    ] = "short",
    only: Annotated[
        list[str] | None, typer.Option(metavar="PROMISE", help="This promise; may be given several times.")
    ] = None,
    trials: Annotated[int | None, typer.Option(metavar="N", help="Of each promise.", min=1)] = None,
    plant: Annotated[
        str | None,
        typer.Option(
            metavar="BUG", help="Put a bug in, to see that it is found; `all`: one after the other."
        ),
    ] = None,
    where: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Try it on this disk.", show_default="the temporary one"),
    ] = None,
    json: Json = False,
) -> None:
    """Say what there is to compute with; with --faults, try whether training survives kills, damage and full disks."""
    if not faults:
        if only or trials or plant or where:
            raise UsageError("--only, --trials, --plant and --where go with --faults")
        told = machine()
        print_json(told) if json else print(_lines(told))
        return
    if os.name != "posix":
        raise UsageError("--faults copies processes (fork), which this system cannot do")
    if all(os.environ.get(name) == value for name, value in ALONE.items()):
        raise typer.Exit(_try(size, only or [], trials, plant, where, json))
    words = ["--size", size, *(word for name in only or [] for word in ("--only", name))]
    options = {"--trials": trials, "--plant": plant, "--where": where}
    words += [str(word) for pair in options.items() if pair[1] is not None for word in pair]
    raise typer.Exit(_again(["doctor", "--faults", *words, *["--json"] * json]))


def machine() -> dict[str, Any]:
    """Versions, threads, device and what is free."""
    import shutil

    import torch

    from trifold.train.device import choose_precision, find_device
    from trifold.train.memory import there_is
    from trifold.train.run_folder import environment

    device = find_device()
    precision = str(choose_precision("auto", device)).removeprefix("torch.")
    here = environment(device, precision, workers=1)
    del here["workers"]
    free, whose = there_is(device)
    return {
        **here,
        "cores": os.cpu_count(),
        "interop_threads": torch.get_num_interop_threads(),
        "memory_free": free,
        "memory_limit": whose,
        "disk_free": shutil.disk_usage(Path.cwd()).free,
    }


def _lines(told: dict[str, Any]) -> str:
    from trifold.look.canvas import table

    sizes = {
        "memory_free": f"{told['memory_free'] / 2**30:,.1f} GiB, {told['memory_limit']}",
        "disk_free": f"{told['disk_free'] / 2**30:,.1f} GiB, {Path.cwd()}",
        "numba": told["numba"] or "none: pip install 'trifold[fast]' trains faster on a CPU",
    }
    shown = {**told, **sizes}
    rows = [(name.replace("_", " "), str(value)) for name, value in shown.items() if name != "memory_limit"]
    return table(rows)


def _again(words: list[str]) -> int:
    """This command in a process with one thread."""
    import subprocess

    program = "import sys; from trifold.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", program, *words], env=os.environ | ALONE, check=False)
    return done.returncode


def _try(
    size: Size, only: list[str], trials: int | None, plant: str | None, where: Path | None, json: bool
) -> int:
    """0 where every promise was kept; of bugs that are all put in, where every one was found."""
    import tempfile

    from trifold.cli import main
    from trifold.faults import PLANTS, PROMISES, plant_all, planted, try_all
    from trifold.settings import nearest

    for name in only:
        if name not in PROMISES:
            raise UsageError(f"--only {name}: no such promise{nearest(name, list(PROMISES))}")
    every = plant == "all"
    if plant is not None and not every and plant not in PLANTS:
        raise UsageError(f"--plant {plant}: no such bug{nearest(plant, list(PLANTS))}")
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="trifold-faults-", dir=where) as folder:
        if every:
            chosen = [name for name, each in PLANTS.items() if not only or each.breaks in only]
            found = plant_all(chosen, Path(folder), main)
        else:
            names = only or ([PLANTS[plant].breaks] if plant is not None else list(PROMISES))
            found = try_all(names, size, Path(folder), main, trials=trials, trying=_trying)
        with planted(None if every else plant):
            for verdict in found:
                verdicts.append(verdict)
                if not json:
                    _show(verdict)
    good = sum(bool(verdict.failures) == every for verdict in verdicts)
    if json:
        print_json([verdict._asdict() for verdict in verdicts])
    else:
        print(f"{good} of {len(verdicts)} {'bugs were found' if every else 'promises kept'}")
    return 0 if good == len(verdicts) else 1


def _trying(name: str, number: int, trials: int) -> None:
    """One line that is written over again; no bar that lives in a thread, since this process is copied all the time."""
    if sys.stderr.isatty():
        print(f"\r\033[K{name} {number + 1:,} of {trials:,} … ", end="", file=sys.stderr, flush=True)


def _show(verdict: Verdict) -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    what = f"{verdict.name:17}{verdict.about:76}"
    count = f"{verdict.trials:6,} trials {len(verdict.failures):4} failures {verdict.seconds:7.1f} s"
    print(what + count, flush=True)
    for failure in verdict.failures[:3]:
        note(f"  {failure}")
