"""Chat templates: messages -> the text that a chat model was trained on, as the template in its folder says.

The template runs in a process of its own (`chat_process`), which is stopped where it takes too long. The process is
started with the first rendering, kept for the next ones, and ends with this one.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trifold.errors import CheckpointError, DataError
from trifold.jsonfiles import check_inside, read_bytes

LARGEST_TEMPLATE = 1 << 20  # bytes; the longest in use has about 30,000
PATIENCE = 5.0  # seconds for one rendering; usual ones take a thousandth
_START = 60.0  # seconds for Python to start on a busy machine
_KEPT = ("PATH", "PYTHONPATH", "PYTHONHOME", "SYSTEMROOT", "TZ", "LANG", "LC_ALL", "LC_TIME", "VIRTUAL_ENV")


def read_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Name -> template, `default` for the usual one; files go before `chat_template` in the settings."""
    given = settings.get("chat_template")
    found: dict[str, str] = {}
    if isinstance(given, str):
        found["default"] = given
    elif isinstance(given, list):
        entries = [entry for entry in given if isinstance(entry, dict)]
        found |= {str(entry.get("name")): str(entry.get("template", "")) for entry in entries}
    check_inside(folder / "additional_chat_templates")
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))[:32]
    files = {"default": folder / "chat_template.jinja", **{path.stem: path for path in more}}
    texts = {name: _read(path) for name, path in files.items() if path.is_file()}
    found = texts or found
    for name, text in found.items():
        if len(text) > LARGEST_TEMPLATE:
            raise CheckpointError(
                f"{folder}: the chat template {name!r} has {len(text):,} characters, too many"
            )
    return found


def _read(path: Path) -> str:
    try:
        return read_bytes(path, LARGEST_TEMPLATE).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: byte {error.start} is not UTF-8; copy the file again") from None


def render(template: str, values: Mapping[str, Any], *, patience: float = PATIENCE) -> str:
    """The text of a template with these values, which JSON must be able to hold.

    Raises DataError where the template says that the messages do not fit it, CheckpointError where it is broken,
    does what is not allowed, or takes more than `patience` seconds.
    """
    try:
        request = json.dumps({"template": template, "values": dict(values)}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"messages for a chat template must be plain text, lists and objects ({error})"
        ) from None
    found = _worker.ask(request, patience)
    if "refused" in found:
        raise DataError(f"the chat template refuses these messages: {found['refused']}")
    if "error" in found:
        raise CheckpointError(f"the chat template cannot be used ({found['error']})")
    return found["text"]


def values_of(
    messages: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
    add_generation_prompt: bool,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """What a template sees: the messages without empty entries, the special tokens by role, what was asked for."""
    if not messages:
        raise DataError("a conversation needs at least one message")
    clean = [{key: value for key, value in message.items() if value is not None} for message in messages]
    usual = {"tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
    return {**usual, **names, **more, "messages": clean}


class _Worker:
    """The process, started when needed and again after it was stopped; one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask(self, request: str, patience: float) -> dict[str, str]:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            assert self._process is not None and self._process.stdin is not None
            try:
                self._process.stdin.write(request + "\n")
                self._process.stdin.flush()
                line = self._lines.get(timeout=patience)
            except queue.Empty:
                self.stop()
                raise CheckpointError(
                    f"the chat template was stopped: it ran for more than {patience:g} s"
                ) from None
            except OSError:
                line = ""
            if not line:
                self.stop()
                raise CheckpointError("the chat template was stopped: it used up the memory that it may use")
            found: dict[str, str] = json.loads(line)
            return found

    def _start(self) -> None:
        command = [sys.executable, "-P", "-X", "utf8", str(Path(__file__).with_name("chat_process.py"))]
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        pipe = subprocess.PIPE
        self._lines = queue.SimpleQueue()
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, encoding="utf-8", env=kept
        )
        threading.Thread(target=_pump, args=(self._process, self._lines), daemon=True).start()
        try:
            ready = self._lines.get(timeout=_START)
        except queue.Empty:
            ready = ""
        if ready != "ready\n":
            self.stop()
            raise CheckpointError(
                "chat templates need jinja2, which could not be started: pip install jinja2"
            )

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):  # what was not sent is lost with its reader
                    self._process.stdin.close()
            self._process = None


def _pump(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Lines of the process into the queue; an empty one when it has ended."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put("")


_worker = _Worker()
atexit.register(_worker.stop)
