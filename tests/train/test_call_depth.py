"""Training reads in order: three calls lie between the loop over steps and the backward pass."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

import pytest
import torch

import trifold

SOURCE = Path(trifold.__file__).parent


def functions_on(frame: FrameType | None) -> list[str]:
    """The functions of trifold on a call stack, the outermost first, as `file function`."""
    functions = []
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(SOURCE):
            functions.append(f"{file.relative_to(SOURCE)} {frame.f_code.co_name}")
        frame = frame.f_back
    return functions[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_three_calls_lie_between_the_loop_and_the_backward_pass(run, monkeypatch, workers):
    """The functions of a worker thread count after those of the thread that waits for it."""
    real = torch.Tensor.backward
    main = threading.get_ident()
    stacks = []

    def backward(self, *arguments, **named):
        stack = functions_on(sys._getframe())
        if threading.get_ident() != main:
            stack = functions_on(sys._current_frames()[main]) + stack
        stacks.append(stack)
        return real(self, *arguments, **named)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    run(train__steps=2, train__warmup=1, train__workers=workers, train__validate_every=2)
    assert len(stacks) >= 2 * workers
    for stack in stacks:
        after_the_loop = stack[stack.index("train/loop.py train_steps") + 1 :]
        assert after_the_loop == ["train/trainer.py update", "train/trainer.py _backward"]
