"""llama.cpp on a GGUF file, through the low-level interface of llama-cpp-python: the seconds of
each work. Greedy tokens, computed from the logits as trifold does.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from setting import WORKS, Work, line, prompts


class Engine:
    """A loaded model and the context of one work."""

    def __init__(self, file: Path, threads: int) -> None:
        options = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(file).encode(), options)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self.model)
        )
        self.threads = threads
        self.context: Any = None

    def open(self, work: Work) -> None:
        """A context for the rows of a work."""
        if self.context is not None:
            llama_cpp.llama_free(self.context)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = work.rows * (work.prompt + work.new + 8)
        options.n_batch = options.n_ubatch = max(512, work.rows * work.prompt)
        options.n_seq_max = work.rows
        options.n_threads = options.n_threads_batch = self.threads
        options.kv_unified = True
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.batch = llama_cpp.llama_batch_init(options.n_batch, 0, 1)

    def read(self, tokens: list[list[int]], position: int) -> list[int]:
        """The next tokens (R, T) of all rows -> the best token of each row."""
        count = 0
        for row, part in enumerate(tokens):
            for offset, token in enumerate(part):
                self.batch.token[count] = token
                self.batch.pos[count] = position + offset
                self.batch.n_seq_id[count] = 1
                self.batch.seq_id[count][0] = row
                self.batch.logits[count] = offset == len(part) - 1
                count += 1
        self.batch.n_tokens = count
        status = llama_cpp.llama_decode(self.context, self.batch)
        assert status == 0, f"llama_decode: {status}"
        best = []
        for row, part in enumerate(tokens):
            index = sum(len(each) for each in tokens[:row]) + len(part) - 1
            logits = llama_cpp.llama_get_logits_ith(self.context, index)
            best.append(int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax()))
        return best

    def seconds(self, work: Work) -> tuple[float, float]:
        """Of the prompt, and of the steps after its token."""
        rows = prompts(work)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        start = time.perf_counter()
        tokens = self.read(rows, 0)
        read = time.perf_counter()
        for step in range(work.new - 1):
            tokens = self.read([[token] for token in tokens], work.prompt + step)
        return read - start, time.perf_counter() - read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("works")
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    llama_cpp.llama_backend_init()
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    start = time.perf_counter()
    engine = Engine(args.file, args.threads)
    loaded = time.perf_counter() - start
    for name in args.works.split(","):
        work = WORKS[name]
        if name == "first-token":
            start = time.perf_counter()
            engine.open(work)
            engine.seconds(work)
            print(line("llama.cpp", name, loaded + time.perf_counter() - start), flush=True)
            continue
        engine.open(work)
        found = [engine.seconds(work) for _ in range(args.calls + 1)][1:]
        print(line("llama.cpp", name, min(each[work.new > 1] for each in found)), flush=True)


if __name__ == "__main__":
    main()
