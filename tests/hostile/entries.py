"""The entry points that open a folder: command lines, and calls of the Python interface."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import numpy as np
import torch

import trifold
from trifold.cli import main
from trifold.cli.terminal import print_error
from trifold.errors import TrifoldError

SILENT = "non-finite numbers without a word"  # printed where that happens

# At most 840 characters: for longer texts, what fits depends on the memory of the machine.
TEXTS = ("the quick fox",) * 5 + (
    "", " ", "f", "the [MASK] fox", "the quick fox " * 60, "fox\0\x1b[2J", "日本語 é 😀", "</s><s>[SEP]<unk>",
    "{% raw %}", "-", "fox\ud800", "e" * 800,
)  # fmt: skip
TRAIN = (
    "train.steps=1 train.warmup=0 train.device=cpu train.precision=float32 train.save_every=1 train.validate_every=1 "
    "train.learning_rate=0.001 data.holdout=2 batch.tokens=400"
)
# Name -> a command; {model}, {text}, {out}, {secret} are inserted.
COMMANDS: dict[str, str] = {
    "show": "show {model}",
    "show json": "show {model} --json",
    "generate": "generate {model} {text} --max-new-tokens 2",
    "defaults": "generate {model} {text}",
    "stream": "generate {model} {text} --stream --max-new-tokens 3",
    "predict": "predict {model} {text} --json",
    "predict lines": "predict {model} lines.txt --json",
    "embed": "predict {model} {text} --task embed --json",
    "answer": "predict {model} {text} --context the_quick_fox --json",
    "pairs": "predict {model} {text} --pair the_fox --json",
    "search": "predict {model} {text} --task search --corpus lines.txt --json",
    "picture": "predict {model} picture.png --json",
    "look": "look {model} {text} --layer 1 --head 1 --out {out}/a.png",
    "look json": "look {model} {text} --json",
    "look page": "look {model} {text} --out {out}/a.html",
    "look picture": "look {model} picture.png --json",
    "eval": "eval {model} --json",
    "eval texts": "eval {model} lines.txt",
    "eval pairs": "eval {model} lines.txt lines.txt --max-new-tokens 2",
    "compare": "compare {model} {model} --samples 100",
    "resume": "resume {model} train.steps=5",
    "runs": "runs .",
    "runs json": "runs . --json",
    "convert": "convert {model} {out}/new",
    "convert native": "convert {model} {out}/new --to native --dtype bfloat16",
    "pickle": "convert {model} {out}/new --trust-pickle",
    "start from": f"train {{recipe}} --out {{out}}/run start_from={{model}} task.kind=causal {TRAIN}",
    "start masked": f"train {{recipe}} --out {{out}}/run start_from={{model}} task.kind=masked {TRAIN}",
}
LINES = "the quick fox\nthe fox\nquick the\n" * 8
RECIPE = {"data": {"train": "lines.txt"}, "task": {"kind": "causal"}}
# Files that entry points need beside the opened folder.
BESIDE: dict[str, bytes] = {
    "lines.txt": LINES.encode(),
    "start.yaml": json.dumps(RECIPE).encode(),
}


def _command(words: str) -> Callable[[str, str, str], int]:
    def call(model: str, text: str, out: str) -> int:
        parts = [
            word.format(model=model, text=text, out=out, recipe="start.yaml")
            for word in words.split()
        ]
        return main(parts)

    return call


# --- Python ---------------------------------------------------------------------------------------


def _python(use: Callable[[Any, str], Any]) -> Callable[[str, str, str], int]:
    """A call on the loaded model, whose result has only finite numbers."""

    def call(model: str, text: str, out: str) -> int:
        try:
            found = use(trifold.load(model), text or "f")
        except TrifoldError as error:
            print_error(error.message)
            return error.exit_code
        if not _finite(found):
            print(SILENT)
        return 0

    return call


def _finite(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.is_floating_point() or bool(value.isfinite().all())
    if isinstance(value, np.ndarray):
        return value.dtype.kind != "f" or bool(np.isfinite(value).all())
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return all(map(_finite, value))
    return True


def _logits(pipe: Any, text: str) -> Any:
    """Tensors, in which a caller sees what is not finite."""
    if pipe.config.n_patches:
        return pipe.predict("picture.png")
    pipe.hidden_states(torch.tensor([[1, 2, 3]]) if pipe.tokenizer is None else text)
    return None


def _chat(pipe: Any, text: str) -> Any:
    messages = [{"role": "user", "content": text}]
    print(pipe.tokenizer.chat(messages)[:2000] if pipe.tokenizer else "")


def _tokens(pipe: Any, text: str) -> Any:
    if pipe.tokenizer is None:  # its files are gone
        return
    rows = pipe.tokenizer.encode([text])
    print(repr(pipe.tokenizer.decode([[int(number) for number in rows[0]]]))[:2000])


def _trace(pipe: Any, text: str) -> Any:
    pipe.trace("picture.png" if pipe.config.n_patches else text)


PYTHON: dict[str, Callable[[Any, str], Any]] = {
    "load": lambda pipe, text: None,
    "logits": _logits,
    "chat": _chat,
    "tokens": _tokens,
    "trace": _trace,
}
ENTRIES: dict[str, Callable[[str, str, str], int]] = {
    **{name: _command(words) for name, words in COMMANDS.items()},
    **{name: _python(use) for name, use in PYTHON.items()},
    "of run": _command("look {model} --json"),
}


def draw_text(draw: Random) -> str:
    return draw.choice(TEXTS)
