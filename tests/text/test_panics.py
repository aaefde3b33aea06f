"""Panics of the tokenizer library end in one error, and nothing else is printed or lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.text.mutations import TEXTS, documents, mutate
from tokenizers import Tokenizer as Library, models

from trifold.errors import TrifoldError
from trifold.text import read_tokenizer
from trifold.text.panics import hidden_panics, is_panic, without_reports

SEEDS = 250

REPORT = b"\nthread '<unnamed>' (7) panicked at src/processors/template.rs:563:61:\nno entry\n"
BACKTRACE = b"stack backtrace:\n   0: rust_begin_unwind\n             at /rustc/x.rs:4:1\n"
NOTE = b"note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n"

# Output with reports -> what is left of it.
OUTPUTS = {
    b"": b"",
    b"step 7\n": b"step 7\n",
    REPORT + NOTE: b"",
    REPORT + NOTE + REPORT: b"",
    b"one\n" + REPORT + BACKTRACE + NOTE + b"two\n": b"one\ntwo\n",
    b"one\n" + REPORT.replace(b" (7)", b"") + BACKTRACE + b"two\n": b"one\ntwo\n",
    b"note: an edge\n" + REPORT + b"  3: three\n": b"note: an edge\n  3: three\n",
    b"thread 'main' ended\n": b"thread 'main' ended\n",
}


@pytest.mark.parametrize("number", range(len(OUTPUTS)))
def test_only_reports_of_panics_are_left_out(number: int) -> None:
    output, expected = [*OUTPUTS.items()][number]
    assert without_reports(output) == expected


def panic() -> None:
    """Make the library panic, as a template without its special token does."""
    template = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}
    document = json.loads(Library(models.WordLevel({"a": 0}, "a")).to_str())
    piece = {"SpecialToken": {"id": "x", "type_id": 0}}
    document["post_processor"] = {**template, "single": [piece]}
    Library.from_str(json.dumps(document)).encode("a")


def test_a_panic_prints_nothing_and_the_rest_appears(capfd: pytest.CaptureFixture[str]) -> None:
    def print_from_a_thread() -> None:
        os.write(2, b"of a thread\n")

    with hidden_panics():
        print("before", file=sys.stderr)
        for _ in range(2):
            with pytest.raises(BaseException, match="no entry") as caught, hidden_panics():
                panic()
            assert is_panic(caught.value)
        thread = threading.Thread(target=print_from_a_thread)
        thread.start()
        thread.join()
        os.system("echo of a child >&2")
    print("after", file=sys.stderr)
    assert capfd.readouterr().err.splitlines() == ["before", "of a thread", "of a child", "after"]


def test_output_appears_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with hidden_panics():
            os.write(2, b"one\n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert capfd.readouterr().err == "one\n"


def use(folder: Path) -> None:
    """Read and use a tokenizer in every way."""
    tokenizer = read_tokenizer(folder)
    ids = tokenizer.encode(TEXTS)
    tokenizer.encode(TEXTS, special_in_text=True)
    tokenizer.rows(TEXTS[:6], TEXTS[2:8])
    every = [*range(min(tokenizer.vocab_size, 40))]
    tokenizer.decode([*ids, every], keep_special=True)
    tokenizer.pieces(every)
    assert tokenizer.encoding_digest


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("part", range(5))
def test_mutated_tokenizers_work_or_end_in_one_error(
    part: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sound: list[Any] = documents()
    for seed in range(part, SEEDS, 5):
        rng = random.Random(seed)
        content = mutate(rng.choice(sound), rng)
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        with contextlib.suppress(TrifoldError):
            use(tmp_path)
        assert (seed, *capfd.readouterr()) == (seed, "", "")


def test_sound_documents_work(tmp_path: Path) -> None:
    for document in documents():
        (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
        use(tmp_path)
