"""`trifold doctor`: describe the machine."""

import os
from pathlib import Path
from typing import Annotated

import typer

from trifold.cli.options import Json
from trifold.cli.terminal import print_json, print_table
from trifold.errors import UsageError

EXAMPLES = ("trifold doctor", "trifold doctor --json")


def run(
    json: Json = False, faults: Annotated[bool, typer.Option("--faults", hidden=True)] = False
) -> None:
    """Print versions, cores, device, and free memory and disk space."""
    if faults:
        raise UsageError(
            "--faults moved out of the package: run `make faults` in a checkout of trifold"
        )

    import shutil

    import torch

    from trifold.memory import available_memory, find_device
    from trifold.train.device import Machine, choose_precision, environment

    device = find_device()
    report = environment(Machine(device, choose_precision("auto", device), workers=1))
    for name in ("workers", "ranks", "compiled", "fast"):  # of a run
        del report[name]
    free, limit = available_memory(device)
    disk_free = shutil.disk_usage(Path.cwd()).free
    report |= {"cores": os.cpu_count(), "interop_threads": torch.get_num_interop_threads()}
    report |= {"memory_free": free, "memory_limit": limit, "disk_free": disk_free}
    if json:
        print_json(report)
        return
    texts = {
        **report,
        "memory_free": f"{free / 2**30:,.1f} GiB, {limit}",
        "disk_free": f"{disk_free / 2**30:,.1f} GiB, {Path.cwd()}",
        "numba": report["numba"] or "none",
    }
    del texts["memory_limit"]
    print_table(
        [("", "value"), *((name.replace("_", " "), str(value)) for name, value in texts.items())]
    )
