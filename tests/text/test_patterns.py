"""Patterns of untrusted tokenizers run in a sandbox process, which is stopped if they are slow."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library, models

from trifold.errors import CheckpointError
from trifold.text import Tokenizer, patterns, read_tokenizer
from trifold.text.patterns import KNOWN, PatternGuard

CUBIC, TEXT = "a*a*a*a*b", "a" * 3000 + "cb"


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replaced(pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": "-"}


def write(folder: Path, **parts: Any) -> Path:
    ids = {"a": 0, "b": 1, "c": 2, "?": 3, "ab": 4}
    document = json.loads(Library(models.BPE(ids, [("a", "b")], unk_token="?")).to_str())
    (folder / "tokenizer.json").write_text(json.dumps(document | parts), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "TIMEOUT", 0.4)


def test_known_patterns_run_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_SANDBOX", None)
    for pattern in KNOWN:
        PatternGuard({"pre_tokenizer": split(pattern)}, "x").check(["a"])


@pytest.mark.slow
def test_known_patterns_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "KNOWN", frozenset())
    units, ends = (" ", "a", "A", "日", "1", "\n", ".", "é ", "a1"), ("", "<", "\n=")
    texts = [unit * 4000 + end for unit in units for end in ends]
    for pattern in KNOWN:
        guard = PatternGuard({"pre_tokenizer": split(pattern)}, "x")
        for text in texts:
            guard.check([text])


@pytest.mark.slow
@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer"])
@pytest.mark.parametrize(
    ("pattern", "text"), [(CUBIC, TEXT), (".*.*.*.*=", "the quick fox " * 480 + "\n=")]
)
def test_a_slow_pattern_is_stopped(part: str, pattern: str, text: str, tmp_path: Path) -> None:
    given = split(pattern) if part == "pre_tokenizer" else replaced(pattern)
    ours = read_tokenizer(write(tmp_path, **{part: given}))
    assert ours.encode(["ab"]) == [[4]] if part == "pre_tokenizer" else ours.encode(["c"]) == [[2]]
    before = time.process_time()
    for encode in (ours.encode, ours.rows):
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: .*ran for more than 0\.4"):
            encode(["a", text])
    assert time.process_time() - before < 0.3
    assert ours.encode(["c"]) == [[2]]


@pytest.mark.slow
def test_a_slow_pattern_is_stopped_with_dropout(tmp_path: Path) -> None:
    ours = Tokenizer.load(write(tmp_path, pre_tokenizer=split(CUBIC)), dropout=0.1)
    with pytest.raises(CheckpointError, match="ran for more than"):
        ours.sample([TEXT], seed=0)


# Slow only in a part of the text without the token `c`, where the text is split.
AFTER_SPLIT, SPLIT_TEXT = r"(?![\s\S]*c).*.*.*=", "a b " * 625 + "\n=c"
FLAGS = {
    "special": False,
    "normalized": False,
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
)
def test_a_pattern_that_an_added_token_makes_slow_is_stopped(file: str, tmp_path: Path) -> None:
    token = {"id": 2, "content": "c", **FLAGS}
    in_file = {"added_tokens": [token]} if file == "tokenizer.json" else {}
    write(tmp_path, pre_tokenizer=split(AFTER_SPLIT), **in_file)
    listed = {"added_tokens_decoder": {"2": token}}, {"additional_special_tokens": ["c"]}
    if not in_file:
        content = listed[file == "special_tokens_map.json"]
        (tmp_path / file).write_text(json.dumps(content), encoding="utf-8")
    ours = read_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match=r"ran for more than 0\.4"):
        ours.encode([SPLIT_TEXT], special_in_text=True)
    if file == "special_tokens_map.json":  # text is not split at special tokens otherwise
        assert ours.encode([SPLIT_TEXT])[0][-1] == 2


@pytest.mark.slow
def test_a_pattern_that_is_slow_on_an_added_token_is_stopped(tmp_path: Path) -> None:
    settings = {"added_tokens_decoder": {"7": {"content": SPLIT_TEXT[:-1], "normalized": True}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"ran for more than 0\.4"):
        read_tokenizer(write(tmp_path, normalizer=replaced(AFTER_SPLIT)))


@pytest.mark.slow  # and on a very busy machine, longer than the sandbox waits
@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder"])
def test_a_pattern_that_fails_is_an_error_without_a_backtrace(
    part: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = split("(a|aa)+$") if part == "pre_tokenizer" else replaced("(a|aa)+$")
    decoder = {"type": "Sequence", "decoders": [{"type": "Fuse"}, given]}
    ours = read_tokenizer(write(tmp_path, **{part: decoder if part == "decoder" else given}))
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json: its regular .*retry-limit-in-match over; use"
    ):
        ours.decode([[0] * 200 + [2]]) if part == "decoder" else ours.encode(["a" * 200 + "!"])
    assert capfd.readouterr().err == ""
    assert ours.encode(["b"]) == [[1]]


@pytest.mark.slow
def test_a_slow_pattern_of_a_decoder_is_stopped(tmp_path: Path) -> None:
    decoder = {"type": "Sequence", "decoders": [{"type": "Fuse"}, replaced(CUBIC)]}
    ours = read_tokenizer(write(tmp_path, decoder=decoder))
    with pytest.raises(CheckpointError, match="ran for more than"):
        ours.decode([[0] * 3000 + [2, 1]])
    assert ours.decode([[2, 0, 0, 1]]) == ["c-"]


EXPLODING = [
    r"(a+)+$",
    "(a|aa)+$",
    r"(x+x+)+y",
    "(((a{1000}){1000}){1000}){1000}",
    "(?<n>a\\g<n>?b)",
]


@pytest.mark.parametrize("pattern", EXPLODING)
def test_exploding_patterns_end_quickly(pattern: str, tmp_path: Path) -> None:
    before = time.process_time()
    with contextlib.suppress(CheckpointError):
        read_tokenizer(write(tmp_path, pre_tokenizer=split(pattern))).encode(
            ["a" * 60 + "b", "x" * 60 + "z"]
        )
    assert time.process_time() - before < 2


def test_an_unknown_harmless_pattern_gives_the_same_tokens(tmp_path: Path) -> None:
    ours = read_tokenizer(write(tmp_path, pre_tokenizer=split("[a-b]")))
    assert ours.encode(["abc", "é\ud7ff"]) == [[0, 1, 2], [3, 3]]
