"""Several ranks on one machine as forks of this process, as `torchrun` starts them, without loading
libraries again.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.faults.runs import CRASHED, Written


def ranked(
    work: Callable[[int], int],
    world: int,
    *,
    log: Path | None = None,
    meanwhile: Callable[[list[int]], None] | None = None,
    grace: float = 0.1,
    local_world: int | None = None,
) -> list[int]:
    """Run `work(rank)` on `world` ranks and return their exit codes, negative for a rank that a
    signal ended.

    meanwhile: called in this process with the process ids of the ranks. grace: seconds between the
    failure of a rank and SIGTERM to the others; torchrun checks ten times a second. local_world:
    ranks of a machine, if there are several machines."""
    port = _free_port()
    children = [
        _forked(lambda rank=rank: work(rank), rank, world, local_world or world, port, log)  # type: ignore[misc]
        for rank in range(world)
    ]
    if meanwhile is not None:
        meanwhile(children)
    codes: dict[int, int] = {}
    failed, ended = math.inf, False
    while len(codes) < world:
        for rank, child in enumerate(children):
            if rank not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
        if any(codes.values()):
            failed = min(failed, time.monotonic())
        if time.monotonic() >= failed + grace and not ended:
            ended = True
            for rank, child in enumerate(children):
                if rank not in codes:
                    os.kill(child, signal.SIGTERM)
        time.sleep(0.002)
    return [codes[rank] for rank in range(world)]


def _forked(
    work: Callable[[], int], rank: int, world: int, local_world: int, port: int, log: Path | None
) -> int:
    child = os.fork()
    if child:
        return child
    code = CRASHED
    try:
        if log is not None:  # messages of libraries about lost ranks
            os.dup2(
                os.open(log.with_name("libraries.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2
            )
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(world),
            LOCAL_RANK=str(rank % local_world),
            LOCAL_WORLD_SIZE=str(local_world),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        code = work()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else CRASHED
    except BaseException:
        if log is not None:
            Written(log).say(f"rank {rank}: {traceback.format_exc()}")
    finally:
        os._exit(code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
