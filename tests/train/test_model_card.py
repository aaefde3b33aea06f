"""The model card of a run on labelled rows: its programs run, and its scores have intervals."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.command_line import run_command
from tests.recipes import SIZES

import trifold
from trifold.train import model_card

pytestmark = pytest.mark.slow

WORDS = "the warm cold sun rain is here today not good bad".split()
ENCODER = {f"model.{key}": value for key, value in SIZES.items()} | {"model.preset": "bert-base"}
DECODER = {f"model.{key}": value for key, value in SIZES.items()}
TRAIN = {
    "train.steps": 2, "train.validate_every": 2, "train.save_every": 2, "train.warmup": 1,
    "train.precision": "float32", "train.device": "cpu", "train.samples": 1, "batch.tokens": 400,
    "tokenizer.kind": "word", "tokenizer.min_frequency": 1,
}  # fmt: skip


def text(number: int) -> str:
    rng = np.random.default_rng(number)
    return " ".join(rng.choice(WORDS, 6).tolist())


def rows(kind: str) -> list[dict[str, Any]]:
    """Twelve rows of a task, as tables have them."""
    numbers = range(12)
    answers = [
        {"text": text(n).split()[1], "answer_start": text(n).index(" ") + 1} for n in numbers
    ]
    columns: dict[str, Any] = {
        "classify": [{"text": text(n), "label": ("no", "yes")[n % 2]} for n in numbers],
        "tag": [
            {"tokens": text(n).split(), "tags": ["B-X", "I-X", "O", "O", "B-Y", "O"]}
            for n in numbers
        ],
        "answer": [
            {"question": "what", "context": text(n), "answers": [answers[n]]} for n in numbers
        ],
        "choose": [
            {"text": text(n), "choices": ["sun", "rain"], "label": n % 2} for n in numbers
        ],
        "similarity": [
            {"sentence1": text(n), "sentence2": text(n + 1), "score": n / 12} for n in numbers
        ],
        "summarize": [{"source": text(n), "target": text(n)[:9]} for n in numbers],
    }  # fmt: skip
    return columns[kind]


def train(kind: str, out: Path, **more: Any) -> Path:
    sizes = DECODER if kind == "summarize" else ENCODER
    if kind == "answer":
        special = {"tokenizer.kind": "bpe", "tokenizer.special": ["cls", "sep", "mask"]}
        sizes = sizes | special | {"model.max_positions": 64}
    data = {"data.train": rows(kind), "data.valid": rows(kind)}
    trifold.train(kind, out=out, **(TRAIN | sizes | data | more))
    return out


@pytest.mark.parametrize("kind", ["classify", "tag", "answer", "choose", "similarity", "summarize"])
def test_programs_run_and_scores_have_intervals(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_card, "RESAMPLES", 1_000)
    run = train(kind, tmp_path / "run")
    card = (run / "model" / "README.md").read_text("utf-8")
    used = card.replace("MODEL", str(run / "model"))
    programs = re.findall("```python\n(.*?)```", used, re.DOTALL)
    for program in programs:
        exec(program, {})
    (command,) = re.findall("```sh\ntrifold (.*?)\n```", used)
    done = run_command(*shlex.split(command))
    assert done.code == 0, done.err
    table = card.partition("## Scores")[2].partition("##")[0]
    scores = re.findall(r"^\| (.*?) \| (-?\d[\d.]*) \| (.*?) \|$", table, re.MULTILINE)
    assert len(scores) >= 2
    for name, value, interval in scores:
        if name != "loss":
            low, high = map(float, interval.split(" to "))
            assert low - 1e-9 <= float(value) <= high + 1e-9, name


def test_an_adapter_names_its_base_and_its_licence(tmp_path: Path) -> None:
    base = train("classify", tmp_path / "base")
    file = base / "model" / "README.md"
    file.write_text("---\nlicense: cc-by-4.0\n---\n# Base\n", "utf-8")
    run = train(
        "classify", tmp_path / "run", start_from=str(base), **{"train.lora": {"rank": 2}}
    )  # fmt: skip
    for folder in ("model", "adapter"):
        card = (run / folder / "README.md").read_text("utf-8")
        assert card.startswith("---\n") and "\nlicense: cc-by-4.0\n" in card
        assert "It was made from `base`." in card and str(tmp_path) not in card
    program = re.search("```python\n(.*?)```", card, re.DOTALL)
    assert program is not None
    paths = {"BASE": str(base / "model"), "MODEL": str(run / "adapter")}
    exec(re.sub("BASE|MODEL", lambda found: paths[found[0]], program[1]), {})


def test_the_card_of_a_resumed_run_is_that_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = train("classify", tmp_path / "a", **{"train.steps": 4})
    train("classify", tmp_path / "b", **{"train.steps": 4, "train.minutes": 1e-9})
    train("classify", tmp_path / "b", resume="auto", **{"train.steps": 4})
    cards = [(run / "model" / "README.md").read_text("utf-8") for run in (whole, tmp_path / "b")]
    assert cards[0] == cards[1]
