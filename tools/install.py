"""Install what a target of the Makefile needs, with lines of progress that suit a terminal and a
file.

    python tools/install.py ".[plots,fast]"

Runs pip of the Python that runs this script, with the versions of constraints.txt. pip itself shows
either hundreds of lines or none. If it fails, its last lines are printed.
"""

import queue
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

SECONDS = 5.0  # between two lines
SILENCE = 20.0  # after which a line is printed though nothing is new
LAST_LINES = 30  # of pip that explain a failure
OPTIONS = ("--disable-pip-version-check", "--no-input")


class PipState:
    """What pip is doing, by the lines that it has printed."""

    def __init__(self) -> None:
        self.text = "looking for packages"
        self._found = 0

    def read(self, line: str) -> None:
        """Take a line of pip into account."""
        if line.startswith("Collecting "):
            self._found += 1
            self.text = f"found {self._found} packages"
        elif found := re.match(r" +(?:Downloading|Using cached) ([\w.]+)-\S+ \((.+)\)", line):
            self.text = f"package {self._found}: {found[1]} ({found[2]})"
        elif line.startswith("Installing collected packages: "):
            self.text = f"installing {line.count(',') + 1} packages"


def progress(
    lines: Iterable[str | None], clock: Callable[[], float] = time.monotonic
) -> Iterator[str]:
    """What to print while pip prints `lines`; None is a moment without one."""
    start = clock()
    printed = start
    shown = ""
    state = PipState()
    for line in lines:
        if line is not None:
            state.read(line)
        now = clock()
        wait = SECONDS
        if state.text == shown:
            wait = SILENCE
        if now - printed >= wait:
            yield f"setup: {state.text}, {now - start:.0f} s"
            printed = now
            shown = state.text


def run(command: list[str]) -> int:
    """Run pip with lines of progress; return its exit code."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert process.stdout is not None
    received: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    last = deque[str](maxlen=LAST_LINES)

    def receive(output: Iterable[str]) -> None:
        for line in output:
            received.put(line)
        received.put(None)

    def lines() -> Iterator[str | None]:
        while True:
            try:
                line = received.get(timeout=1.0)
            except queue.Empty:
                yield None
                continue
            if line is None:
                return
            last.append(line)
            yield line

    threading.Thread(target=receive, args=(process.stdout,), daemon=True).start()
    for line in progress(lines()):
        print(line, flush=True)
    code = process.wait()
    if code:
        print("".join(last), file=sys.stderr)
    return code


def main() -> None:
    """Install what the arguments name."""
    pip = [sys.executable, "-m", "pip", *OPTIONS, "install", "-c", "constraints.txt"]
    sys.exit(run([*pip, "-e", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
