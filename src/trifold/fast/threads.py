"""Threads that work side by side on tensors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch


def sharing_cores(workers: int) -> ThreadPoolExecutor:
    """So many threads, which share this one's cores between them: an operation in one of them takes its part only."""
    threads = torch.get_num_threads()
    everyone = Barrier(workers)

    def settle(_: int) -> None:
        torch.get_num_threads()  # a thread takes the number set last when it first asks: not later, then
        torch.set_num_threads(max(1, threads // workers))
        everyone.wait()  # so that each of them does this

    crew = ThreadPoolExecutor(workers, "worker")
    list(crew.map(settle, range(workers)))
    torch.set_num_threads(threads)
    return crew
