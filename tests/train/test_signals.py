"""Real processes, real signals: what is saved continues by the very line that was printed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from trifold.cli import main

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-c", "import sys; from trifold.cli import main; sys.exit(main())"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory, tiny):
    """Two endless trainings, one ended by each signal: (exit code, standard error, run folder) by signal."""
    endless = tiny | {
        "train.steps": 1_000_000,
        "train.validate_every": 1_000_000,
        "train.save_every": 1_000_000,
    }
    runs = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        # A space in the name: the printed line must be one that a shell takes as it stands.
        folder = tmp_path_factory.mktemp("a run") / number.name
        changes = [f"{key}={value}" for key, value in endless.items()]
        process = subprocess.Popen(
            [*COMMAND, "train", "smoke", *changes, "--out", str(folder)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        runs[number] = process, folder
    results = {}
    for number, (process, folder) in runs.items():
        wait_for(
            lambda folder=folder: (
                (folder / "metrics.jsonl").is_file() and (folder / "metrics.jsonl").stat().st_size
            )
        )
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        results[number] = process.returncode, errors, folder
    return results


def wait_for(happened, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it never began"
        time.sleep(0.02)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_the_printed_line_goes_on_to_the_end(ended, number, code, capfd):
    returned, errors, folder = ended[number]
    assert returned == code, errors
    assert "Traceback" not in errors
    *_, last = errors.splitlines()
    stopped, line = last.removeprefix("stopped at step ").split("; continue with: ")
    stopped = int(stopped.replace(",", ""))
    program, *arguments = shlex.split(line)
    assert program == "trifold"
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"step-{stopped:08d}"]

    code = main([*arguments, f"train.steps={stopped + 3}", "train.samples=0"])
    printed, said = capfd.readouterr()
    assert code == 0, said
    assert f"continuing from {folder / 'checkpoints'}" in said
    assert (folder / "checkpoints" / f"step-{stopped + 3:08d}").is_dir()
    assert str(folder / "model") in printed
