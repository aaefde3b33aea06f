"""Several ranks on one machine, as copies of this process: as `torchrun` starts them, without loading all again."""

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
    beside: Callable[[list[int]], None] | None = None,
    patience: float = 0.1,
) -> list[int]:
    """Do `work(rank)` on so many ranks and give their exit codes, negative where a signal ended one.

    beside: done here while they are at it, with their process numbers. patience: seconds from where one fails to where
    the others get SIGTERM; torchrun looks ten times a second.
    """
    port = _free_port()
    children = [_forked(lambda rank=rank: work(rank), rank, world, port, log) for rank in range(world)]  # type: ignore[misc]
    if beside is not None:
        beside(children)
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
        if time.monotonic() >= failed + patience and not ended:
            ended = True
            for rank, child in enumerate(children):
                if rank not in codes:
                    os.kill(child, signal.SIGTERM)
        time.sleep(0.002)
    return [codes[rank] for rank in range(world)]


def _forked(work: Callable[[], int], rank: int, world: int, port: int, log: Path | None) -> int:
    child = os.fork()
    if child:
        return child
    code = CRASHED
    try:
        if log is not None:  # what the libraries say of ranks that are gone is no news
            os.dup2(os.open(log.with_name("noise.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(world),
            LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE=str(world),
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
