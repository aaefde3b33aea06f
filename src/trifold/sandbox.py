"""A child process for untrusted input: one JSON object per line in, one JSON object per line out.

The child is this file, run as a program. It imports a handler, a Python file with a function
`answer(request)`, and nothing of trifold. It inherits only harmless environment variables, may use
a limited amount of memory where the system can limit it, and is killed when it exceeds its time.
What it uses after its imports is measured once, so what a request leaves behind counts for the next
ones; a child that keeps much, or that answers with an error, is replaced.

    python -P sandbox.py HANDLER
"""

import atexit
import contextlib
import json
import os
import queue
import runpy
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_START_TIMEOUT = 120.0  # seconds until Python and the handler's imports are ready on a busy machine
_INHERITED = (
    *("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "SYSTEMROOT", "VIRTUAL_ENV"),
    *("TZ", "LANG", "LC_ALL", "LC_TIME"),
)


class SandboxError(Exception):
    """The child process timed out, died, or answered with something other than a JSON object."""


class SandboxStartError(SandboxError):
    """The child process could not be started."""


class Sandbox(contextlib.AbstractContextManager["Sandbox"]):
    """A child process for one handler, started by the first request and again after it was stopped.
    Thread-safe.
    """

    def __init__(self, handler: Path, environment: Mapping[str, str] | None = None) -> None:
        self._handler = handler
        self._environment = dict(environment or {})
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def request(self, message: Mapping[str, Any], *, timeout: float, memory: int) -> dict[str, Any]:
        """The handler's answer to `message`.

        memory: bytes that the child may use on top of what it uses after its imports. Raises
        TypeError or ValueError if JSON cannot hold the message, SandboxError if there is no answer;
        then the child is stopped. It also is after an answer with the key `error`, and if it still
        uses more than half of `memory`.
        """
        line = json.dumps({"memory": memory, "message": message}, allow_nan=False)
        with self._lock:
            # A forked process has no such child, and starts its own.
            if self._process is None or self._process.poll() is not None:
                self._start()
            assert self._process is not None and self._process.stdin is not None
            try:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
                reply = json.loads(self._lines.get(timeout=timeout))
                answer = reply["answer"]
                kept = reply["kept"]
            except queue.Empty:
                self.stop()
                raise SandboxError(f"it ran for more than {timeout:g} s") from None
            except (OSError, ValueError, TypeError, KeyError):
                answer = None
            except BaseException:  # Ctrl-C: the next request must not read this answer
                self.stop()
                raise
            if not isinstance(answer, dict) or not isinstance(kept, int):
                self.stop()
                raise SandboxError("it used more memory than it may, or crashed")
            if "error" in answer or kept > memory // 2:
                self.stop()
            return answer

    def stop(self) -> None:
        """Kill the child process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):  # unsent input is lost
                    self._process.stdin.close()
            self._process = None
            atexit.unregister(self.stop)

    def _start(self) -> None:
        command = [sys.executable, "-P", "-X", "utf8", __file__, str(self._handler)]
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._lines = queue.SimpleQueue()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=inherited | self._environment,
        )
        atexit.register(self.stop)
        threading.Thread(target=_read_lines, args=(self._process, self._lines), daemon=True).start()
        try:
            ready = self._lines.get(timeout=_START_TIMEOUT)
        except queue.Empty:
            ready = ""
        assert self._process.stderr is not None
        with self._process.stderr as errors:  # the child closes its end when it is ready
            if not ready:
                self.stop()
                reason = errors.read().strip().splitlines() or ["no output"]
                raise SandboxStartError(f"the sandbox process could not be started ({reason[-1]})")


def _read_lines(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Put the lines of the process into the queue; an empty one when it has ended."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put("")


# --- in the child ---------------------------------------------------------------------------------


def _used_memory() -> int:
    """The bytes of the address space that are in use; 0 where the system does not say."""
    with contextlib.suppress(ImportError, OSError):
        import resource

        pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]
        return int(pages) * resource.getpagesize()
    return 0


def _limit_memory(most: int) -> None:
    """Limit the address space, on Linux."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _serve(handler: str) -> None:
    answer = runpy.run_path(handler)["answer"]
    output = sys.stdout
    print("ready", file=output, flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the parent reads stderr only until "ready"
    base = _used_memory()
    for line in sys.stdin:
        request = json.loads(line)
        if base:
            _limit_memory(base + request["memory"])
        answered = answer(request["message"])
        reply = {"answer": answered, "kept": _used_memory() - base}
        print(json.dumps(reply), file=output, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
