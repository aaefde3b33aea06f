"""Run a function in a forked process under watch: time, memory, output, and what it opens, starts
and connects.

Python's own calls are seen by an audit hook, and files of the folder `outside`, whoever opens them,
by inotify (Linux)."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import trifold

CRASHED = 70  # a traceback; errors of users are 1 and 2
PAGE = resource.getpagesize()
OUTPUT = 200_000  # characters of an output that are read
CACHES = ("HF_HOME", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR")  # of libraries, may be changed
EVENTS = 20  # recorded at most
# Above the memory of the parent; a limit of this process, not the one that a verdict uses.
ADDRESSES = 12 * 2**30
STOPPED_BYTES = 2 * 2**30  # a process that takes more is stopped
ASLEEP = 3.0  # seconds without processor time after which a slow process hangs


class Place(NamedTuple):
    """The folders of one trial: `tree` is what is opened, `outside` may not be opened, results go
    to `out`."""

    root: Path

    @property
    def tree(self) -> Path:
        return self.root / "tree"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    @property
    def out(self) -> Path:
        return self.root / "out"


class Outcome(NamedTuple):
    """What happened. code: exit code, negative if a signal ended the process. seconds: elapsed;
    processor: of the process and those that it started. memory: bytes above those at the start.
    stopped: why the process was killed. events: what it did and may not."""

    code: int
    seconds: float
    processor: float
    memory: int
    stopped: str
    out: str
    err: str
    events: list[str]


def watched(work: Callable[[], int], place: Place, *, limit: float) -> Outcome:
    """Run `work` in a forked process in the folder `tree`; after `limit` seconds of processor time,
    or asleep after as many elapsed ones, it is stopped."""
    reader, writer = os.pipe()
    with opened_files(place.outside) as outside:
        start = time.perf_counter()
        before = resident()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _run(work, place, writer)
        os.close(writer)
        stopped = _wait(child, limit, start, before)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        seconds = time.perf_counter() - start
        events = outside()
    with os.fdopen(reader, "rb") as file:
        report = json.loads(file.read() or b"{}")
    events += report.get("events", [])
    at_start = report.get("at_start", before)
    peak = max(usage.ru_maxrss * 1024 - at_start, report.get("children", 0))
    return Outcome(
        code=os.waitstatus_to_exitcode(status),
        seconds=seconds,
        processor=max(usage.ru_utime + usage.ru_stime, report.get("processor", 0.0)),
        memory=max(0, peak),
        stopped=stopped,
        out=_text(place.root / "stdout"),
        err=_text(place.root / "stderr"),
        events=events,
    )


def _text(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(OUTPUT).decode("utf-8", "backslashreplace")


# --- the parent -----------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


def _wait(child: int, limit: float, start: float, before: int) -> str:
    """Wait for the end of the child without reaping it; return why it has to be stopped, if so.
    before: bytes of this process at its start."""
    end = os.pidfd_open(child)
    former = -1.0
    since = start
    try:
        ready = select.poll()
        ready.register(end, select.POLLIN)
        while not ready.poll(50):
            processor, memory = _used(child)
            now = time.perf_counter()
            if processor > former:
                former = processor
                since = now
            if memory > before + STOPPED_BYTES:
                return "memory"
            if processor > limit or (now - start > limit and now - since > ASLEEP):
                return "time"
        return ""
    finally:
        os.close(end)


def _used(child: int) -> tuple[float, int]:
    """Processor time and memory of a process and its children."""
    processor = 0.0
    memory = 0
    pids = [child]
    with suppress(OSError):
        text = Path(f"/proc/{child}/task/{child}/children").read_text(encoding="ascii")
        pids += map(int, text.split())
    for pid in pids:
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            processor += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            memory = max(memory, int(fields[21]) * PAGE)
    return processor, memory


_IN_OPEN, _IN_CREATE, _IN_MODIFY, _IN_DELETE, _IN_MOVE = 0x20, 0x100, 0x2, 0x200, 0xC0
_IN_ISDIR = 0x40000000
_KINDS = {_IN_OPEN: "opened", _IN_CREATE: "created", _IN_MODIFY: "changed", _IN_DELETE: "deleted"}


@contextmanager
def opened_files(folder: Path) -> Iterator[Callable[[], list[str]]]:
    """A function that lists the files below a folder that were opened, created or changed since;
    empty on systems without inotify."""
    if not sys.platform.startswith("linux"):
        yield list
        return
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    names = {}
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        mask = _IN_OPEN | _IN_CREATE | _IN_MODIFY | _IN_DELETE | _IN_MOVE
        names[library.inotify_add_watch(descriptor, os.fsencode(path), mask)] = path.name

    def read() -> list[str]:
        found = dict[str, None]()
        with suppress(BlockingIOError):
            data = os.read(descriptor, 2**16)
            while data:
                watch, mask, _, size = struct.unpack_from("iIII", data)
                name = data[16 : 16 + size].split(b"\0")[0].decode()
                data = data[16 + size :]
                kind = next((text for bit, text in _KINDS.items() if mask & bit), "moved")
                if name and not mask & _IN_ISDIR:
                    found[f"outside: {kind} {names[watch]}/{name}"] = None
        return list(found)

    try:
        yield read
    finally:
        os.close(descriptor)


# --- the child ------------------------------------------------------------------------------------


def _run(work: Callable[[], int], place: Place, writer: int) -> None:
    """Run `work` in this process, report to the parent, and exit."""
    code = CRASHED
    os.setsid()
    at_start = resident()
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(place.root / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * PAGE
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESSES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(place.tree)
    hook = Hook(place)
    sys.addaudithook(hook)
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        hook.active = False
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = resource.getrusage(resource.RUSAGE_SELF)
        processor = sum(u.ru_utime + u.ru_stime for u in (children, own))
        report = {
            "at_start": at_start,
            "children": max(0, children.ru_maxrss * 1024 - at_start),  # forks have it from here
            "processor": processor,
            "events": hook.seen,
        }
        os.write(writer, json.dumps(report).encode("ascii", "backslashreplace"))
        os._exit(code)


def _absolute(path: Any) -> Path:
    """The path from the root, in which links are not followed."""
    return Path(os.path.normpath(Path(os.fsdecode(path)).absolute()))


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _real(path: str | Path) -> str:
    try:
        return str(Path(path).resolve())
    except (OSError, RuntimeError):  # a link to itself
        return str(path)


class Hook:
    """An audit hook that records forbidden events."""

    forbidden = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "socket.", "pty.")
    harmless = ("socket.gethostname", "socket.__new__")  # a socket that is not connected
    programs = ("sandbox.py", "'git', ['git'")  # that trifold starts
    # Events with a path, or two, that change something.
    changing = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink",
                "os.truncate", "os.chmod", "os.chown", "shutil.rmtree", "shutil.move")  # fmt: skip
    # Of the interpreter and the system, which are read.
    own = tuple(
        {
            _real(place)
            for place in (
                sys.prefix,
                sys.base_prefix,
                Path(trifold.__file__).parents[2],
                *filter(None, sys.path),
                "/proc",
                "/sys",
                "/dev/null",
                "/dev/urandom",
                "/etc",
                "/usr/share",
            )
        }
    )

    def __init__(self, place: Place) -> None:
        self.active = True
        self.seen: list[str] = []
        self._root = _real(place.root)
        self._inside = tuple(
            _real(path)
            for path in (
                *(place.tree, place.out),
                *(os.environ[name] for name in CACHES if name in os.environ),
            )
        )
        self._written = tuple(
            _real(path)
            for path in (
                *(place.tree, place.out, place.root / "stdout", place.root / "stderr"),
                *(os.environ[name] for name in CACHES if name in os.environ),
            )
        )

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        self.active = False  # for what this function itself does
        try:
            self._check(event, arguments)
        finally:
            self.active = True

    def _check(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            self._check_open(*arguments)
        elif event == "subprocess.Popen":
            if not any(program in str(arguments) for program in self.programs):
                self._record(event, arguments)
        elif event.startswith(self.forbidden):
            if event not in self.harmless:
                self._record(event, arguments)
        elif event.startswith(self.changing):
            # The first of a symbolic link is its target.
            for path in arguments[1:2] if event == "os.symlink" else arguments[:2]:
                if isinstance(path, (str, bytes, os.PathLike)) and not self._may_change(path):
                    self._record(event, arguments)
        elif event == "import" and str(arguments[0]).startswith(("evil", "modeling_evil")):
            self._record(event, arguments)

    def _may_change(self, path: Any) -> bool:
        """Whether the name, which may be a link, lies in a folder of the trial."""
        given = _absolute(path)
        return _is_below(str(given.parent.resolve() / given.name), self._written)

    def _check_open(self, path: Any, mode: Any, flags: Any) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        given = str(_absolute(path))
        real = _real(given)
        writes = bool(isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if writes and Path(real).is_dir():  # a file without a name
            return
        if isinstance(flags, int) and flags & os.O_NOFOLLOW:  # the system refuses a link
            real = str(_absolute(path).parent.resolve() / _absolute(path).name)
        if writes and real != "/dev/null":
            if not _is_below(real, self._written):
                self._record("open for writing", (real,))
            return
        named = _is_below(given, self._inside[:1])  # a link in the tree is followed by its name
        allowed = self._inside if named else (*self._inside, *self.own)
        if not _is_below(real, allowed):
            self._record("open", (real,))

    def _record(self, event: str, arguments: tuple[Any, ...]) -> None:
        if len(self.seen) < EVENTS:
            self.seen.append(f"{event} {arguments!r:.200}".replace(self._root, "…"))
