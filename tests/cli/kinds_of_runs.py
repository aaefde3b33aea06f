"""A tiny recipe for every kind of task, and its run, which is trained at first use."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.command_line import run_command
from tests.recipes import (
    BERT,
    ELECTRA,
    GPT2,
    MASKS,
    PRETRAINED_BERT,
    SENTINELS,
    SIZES,
    WORDS,
    XLNET,
    weather_text,
)

TRAIN = {
    "schedule": "constant", "learning_rate": 0.005, "warmup": 2, "precision": "float32", "device": "cpu",
    "steps": 4, "validate_every": 4, "save_every": 4, "samples": 1,
}  # fmt: skip
PARTS = {
    "copy": {"train": "{here}/copy.tsv", "valid": "{here}/copy.tsv", "input": "copy: {source}"},
    "like": {
        "train": "{here}/like.tsv", "valid": "{here}/like.tsv", "input": "like: {one} and {two}", "target": "score",
        "number": 0.2, "score": "pearson",
    },
}  # fmt: skip

# Task, tokenizer, model. `{here}` is the folder of the texts, and of the runs.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "translate": ({}, WORDS, SIZES),
    "causal": ({"kind": "causal"}, MASKS, GPT2),
    "masked": ({"kind": "masked"}, MASKS, BERT),
    "replaced": ({"kind": "replaced"}, MASKS, ELECTRA),
    "permutation": ({"kind": "permutation", "share": 3}, MASKS, XLNET),
    "pairs": ({"kind": "pairs"}, MASKS, PRETRAINED_BERT),
    "order": ({"kind": "pairs", "pairs": "order"}, MASKS, PRETRAINED_BERT),
    "denoise": ({"kind": "denoise", "written": 2}, SENTINELS, SIZES),
    "spans": ({"kind": "spans", "written": 2, "rate": 0.3}, SENTINELS, SIZES),
    "text-to-text": ({"kind": "text-to-text", "parts": PARTS}, WORDS, SIZES),
    "distill": (
        {"kind": "distill", "of": {"kind": "causal"}, "teacher": "{here}/causal", "start": "spread"},
        MASKS, GPT2 | {"n_layers": 1},
    ),
    "distill-masked": (
        {"kind": "distill", "of": {"kind": "masked"}, "teacher": "{here}/masked", "start": "spread"},
        MASKS, BERT | {"n_layers": 1},
    ),
}  # fmt: skip


def write_texts(here: Path) -> None:
    """Sixty documents of a few sentences, sixty pairs, and two tables."""
    (here / "text.txt").write_text(weather_text(random.Random(5)), encoding="utf-8")
    for name in ("one", "two"):
        lines = [f"{name} {'x ' * (number % 5)}{number % 7}" for number in range(60)]
        (here / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    names = ["ant", "bee", "cat", "dog"]
    copies = "".join(f"{name}\t{name}\n" for name in names * 5)
    (here / "copy.tsv").write_text(f"source\ttarget\n{copies}", encoding="utf-8")
    likes = "".join(f"{5.0 if a == b else 1.0}\t{a}\t{b}\n" for a in names for b in names)
    (here / "like.tsv").write_text(f"score\tone\ttwo\n{likes}", encoding="utf-8")


def write_recipe(kind: str, here: Path) -> Path:
    """The recipe of a kind beside its texts."""
    task, tokenizer, model = KINDS[kind]
    data: dict[str, Any] = {"train": "{here}/text.txt", "holdout": 0.2}
    if kind == "translate":
        data = {"train": ["{here}/one", "{here}/two"], "holdout": 8}
    elif kind == "text-to-text":
        data = {}
    values = {
        "task": task, "tokenizer": tokenizer, "model": model, "train": TRAIN, "batch": {"tokens": 200}, "data": data,
        "generate": {"max_new_tokens": 4},
    }  # fmt: skip
    file = here / f"{kind}.yaml"
    file.write_text(json.dumps(values).replace("{here}", str(here)), encoding="utf-8")
    return file


class Runs:
    """The run folders, by kind."""

    def __init__(self, here: Path) -> None:
        self.here = here
        write_texts(here)

    def __getitem__(self, kind: str) -> Path:
        folder = self.here / kind
        if not folder.exists():
            if KINDS[kind][0].get("kind") == "distill":
                self[KINDS[kind][0]["of"]["kind"]]
            done = run_command("train", str(write_recipe(kind, self.here)), "--out", str(folder))
            assert done.code == 0, done.err
        return folder
