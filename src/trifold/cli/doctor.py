"""`trifold doctor`: check the installation and the machine, and measure its speed."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trifold.cli.options import Json
from trifold.cli.terminal import print_json, print_note, print_table
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.cli.checks import Check
    from trifold.cli.speed import SpeedTest

EXAMPLES = ("trifold doctor", "trifold doctor --no-speed", "trifold doctor --json")


def run(
    json: Json = False,
    speed: Annotated[
        bool, typer.Option("--speed/--no-speed", help="Measure the speed, for ten seconds.")
    ] = True,
    faults: Annotated[bool, typer.Option("--faults", hidden=True)] = False,
) -> int:
    """Check versions, extras, processor, memory, disks, GPU and speed of this installation.

    The exit code is 1 if something must be fixed; warnings do not change it.
    """
    if faults:
        raise UsageError(
            "--faults moved out of the package: run `make faults` in a checkout of trifold"
        )

    from trifold import fast
    from trifold.cli.checks import all_checks
    from trifold.memory import find_device

    fast.enable()
    device = find_device()
    checks = all_checks(device)
    if not json:
        print_checks(checks)
    test = None
    if speed:
        from trifold.cli.speed import SECONDS, measure
        from trifold.train.device import keep_freed_memory

        if not json:
            print_note(f"measuring the speed, about {SECONDS:g} seconds …")
        keep_freed_memory()
        test = measure(device)
        checks += speed_checks(test)
        if not json:
            print_speeds(test)
    is_ok = all(check.level != "error" for check in checks)
    if json:
        print_json(_report(checks, test, device) | {"ok": is_ok})
    else:
        print_findings(checks)
    return int(not is_ok)


def print_checks(checks: Sequence["Check"]) -> None:
    """Print a table for each section."""
    for section in dict.fromkeys(check.section for check in checks):
        rows = [(check.name, check.value) for check in checks if check.section == section]
        print_table([(section, ""), *rows], breaks_words=False)
        print()


def print_speeds(test: "SpeedTest") -> None:
    """Print the speeds beside the expected ones."""
    rows = [("speed", "measured", "expected", "expected from")]
    for one in test.speeds:
        expected = "–" if one.expected is None else f"{one.expected:,.1f}"
        rows.append((one.name, f"{one.value:,.1f} {one.unit}", expected, one.basis))
    print_table(rows, right=" rr")
    print()


def speed_checks(test: "SpeedTest") -> list["Check"]:
    """Findings about the speeds: other processes, or a speed that is far below the expected."""
    from trifold.cli.checks import Check
    from trifold.installation import install_command, is_satisfied, requirements

    if test.share is not None and test.is_disturbed:
        value = f"the test got {test.share:.0%} of the time of its cores"
        remedy = "end other programs and repeat it; the speeds above are too low"
        return [Check("speed", "speed test", value, "warning", remedy)]
    remedy = "look for other programs, a limit of the container or a slow clock (battery, heat)"
    if not all(map(is_satisfied, requirements("fast"))):
        remedy += f", and install the extra fast: `{install_command('fast')}`"
    return [
        Check(
            "speed",
            one.name,
            f"{one.value:,.1f} of {one.expected:,.1f} {one.unit}",
            "warning",
            remedy,
        )
        for one in test.speeds
        if one.expected is not None and one.is_low
    ]


def print_findings(checks: Sequence["Check"]) -> None:
    """Print the commands for missing extras, then warnings and errors with their remedies."""
    notes = [check for check in checks if check.level == "note"]
    for check in notes:
        if check.section == "extras":
            print_note(f"extra {check.name}: `{check.remedy}`")
        else:
            print_note(f"note: {check.name}: {check.value}; {check.remedy}")
    for level in ("warning", "error"):
        for check in checks:
            if check.level == level:
                print_note(f"{level}: {check.name}: {check.value}; {check.remedy}")
    if all(check.level in ("ok", "note") for check in checks):
        print_note("nothing is wrong with this installation")


def _report(checks: Sequence["Check"], test: "SpeedTest | None", device: Any) -> dict[str, Any]:
    """The report for programs: the facts by name, and every check."""
    import shutil
    from pathlib import Path

    import torch

    from trifold.cli.checks import instructions, usable_cores
    from trifold.memory import available_memory
    from trifold.train.device import Machine, choose_precision, environment

    report = environment(Machine(device, choose_precision("auto", device), workers=1))
    for name in ("workers", "ranks", "compiled", "fast"):  # of a run
        del report[name]
    free, limit = available_memory(device)
    report |= {"cores": os.cpu_count(), "usable_cores": usable_cores()}
    report |= {"interop_threads": torch.get_num_interop_threads(), "instructions": instructions()}
    report |= {"memory_free": free, "memory_limit": limit}
    report |= {"disk_free": shutil.disk_usage(Path.cwd()).free}
    report["checks"] = [
        {key: value for key, value in check._asdict().items() if value or check.level != "ok"}
        for check in checks
    ]
    report["speed"] = None
    if test is not None:
        report["speed"] = {"share": test.share, "speeds": [one._asdict() for one in test.speeds]}
    return report
