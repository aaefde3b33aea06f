"""Building a token cache: interruptions, concurrent processes, changed files, full disks, invalid
text.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import run_command
from tests.data.caches import BYTES, contents, encode, open_cache, settings_of, write_corpus
from tests.faults.damage import recording

from trifold.data import open_tokens, sample_documents
from trifold.errors import DataError, SettingsError
from trifold.objectives import causal

TINY = {
    "data.documents": "line",
    "data.cut": "pieces",
    "data.holdout": 0.1,
    "model.n_layers": 1,
    "model.n_heads": 2,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.max_positions": 16,
    "batch.tokens": 200,
    "train.warmup": 1,
    "train.validate_every": 2,
    "train.save_every": 2,
    "train.samples": 0,
}

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from tests.data.caches import encode_slowly, settings_of
from trifold.data import Encoder, open_tokens
from pathlib import Path
cache = open_tokens(
    sys.argv[1], settings_of(Path(sys.argv[2])), Encoder(encode_slowly, "bytes", 257), part_bytes=2000, workers=2,
    report=lambda line: print(line, flush=True),
)
print(len(cache), cache.folder)
"""


def start_builder(path: Path, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(path), str(folder)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )


def test_concurrent_processes_build_one_cache(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, 2000)
    processes = [start_builder(path, tmp_path), start_builder(path, tmp_path)]
    output = [process.communicate(timeout=100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert len({text.splitlines()[-1] for text in output}) == 1
    assert sum("built in" in text for text in output) == 1
    assert contents(open_cache(path, tmp_path)) == contents(
        open_cache(path, tmp_path / "alone", part_bytes=2000)
    )


def test_a_killed_build_continues_with_the_same_bytes(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, 2000)
    partial = tmp_path / "cache"
    kept = 0
    for groups in (3, 12):  # killed after this number of groups
        process = start_builder(path, tmp_path)
        while process.poll() is None and len(list(partial.glob(".*.partial/*.json"))) < groups + 1:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        done = len(list(partial.glob(".*.partial/0*.json")))
        assert kept <= done
        kept = done
    assert kept >= 11
    damaged = sorted(partial.glob(".*.partial/0*.ids"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-2] + b"\0\0")  # one of the complete groups
    lines: list[str] = []
    resumed = open_cache(path, tmp_path, report=lines.append, part_bytes=2000)
    assert f"{kept} of them already done" in lines[0]
    assert contents(resumed) == contents(open_cache(path, tmp_path / "whole", part_bytes=2000))
    assert list(partial.glob(".*.partial")) == []


# The command line, with 200 parts that take one second each.
TRAINING = """
import sys, time
from functools import partial
from trifold.cli import main
from trifold.data import open_tokens, token_build
from trifold.objectives import causal
def batch_slowly(documents, original=token_build._batch_texts):
    for texts in original(documents):
        time.sleep(1)
        yield texts
token_build._batch_texts = batch_slowly
causal.open_tokens = partial(open_tokens, part_bytes=400, workers=2)
sys.exit(main(sys.argv[1:]))
"""


def test_sigterm_stops_a_build_that_continues_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_corpus(tmp_path, 500)
    changes = {**TINY, "data.train": path, "data.cache": tmp_path / "cache", "train.steps": 2}
    arguments = [
        "train",
        "shakespeare-char-tiny",
        "--out",
        str(tmp_path / "run"),
        "--resume",
        "auto",
    ]
    command = [*arguments, *(f"{key}={value}" for key, value in changes.items())]

    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, *command], stderr=subprocess.PIPE, text=True
    )
    try:
        while process.poll() is None and not list(
            (tmp_path / "cache").glob(".*.partial/00002.json")
        ):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert process.returncode == 143, output
    assert "while preparing; continue with `trifold resume " in " ".join(output.split())
    done = len(list((tmp_path / "cache").glob(".*.partial/0*.json")))
    assert 3 <= done < 20
    monkeypatch.setattr(causal, "open_tokens", partial(open_tokens, part_bytes=400, workers=2))
    again = run_command(*command)
    assert again.code == 0, again.err
    assert f"{done} of them already done" in again.err


def test_a_build_of_another_text_is_not_continued(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, 3000)
    process = start_builder(path, tmp_path)
    while process.poll() is None and len(list((tmp_path / "cache").glob(".*.partial/0*.json"))) < 3:
        time.sleep(0.005)
    process.kill()
    process.communicate()
    os.utime(path, ns=(1, 1))
    lines: list[str] = []
    assert len(open_cache(path, tmp_path, report=lines.append, part_bytes=2000)) > 2000
    assert "already done" not in lines[0]


def test_a_file_that_changes_during_the_build_is_an_error(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, 100)

    def encode_and_append(texts: Sequence[str]) -> tuple[Any, Any, int]:
        path.write_bytes(path.read_bytes() + b"more\n")
        return encode(texts)

    with pytest.raises(DataError, match=r"corpus\.txt: the file changed while it was read"):
        open_tokens(
            str(path), settings_of(tmp_path), BYTES._replace(encode=encode_and_append), workers=1
        )


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_invalid_text_names_the_line_of_the_file(tmp_path: Path, kind: str) -> None:
    rows = [json.dumps({"text": f"row {n}"}) if kind == "jsonl" else f"row {n}" for n in range(500)]
    raw = [row.encode() for row in rows]
    raw[432] = b'{"text": "\xff"}' if kind == "jsonl" else b"\xff"
    path = tmp_path / f"a.{kind}"
    path.write_bytes(b"\n".join(raw))
    with pytest.raises(DataError, match=rf"a\.{kind}:433:\d+: byte 0xff"):
        open_cache(path, tmp_path, part_bytes=300)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is there on Linux")
def test_a_full_disk_is_an_error_and_complete_groups_are_kept(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, 300)
    (tmp_path / "cache").mkdir()
    seen: list[Path] = []

    def encode_and_fill(texts: Sequence[str]) -> tuple[Any, Any, int]:
        if len(seen) == 0:  # the disk is full for the third group
            partial = next((tmp_path / "cache").glob(".*.partial"))
            (partial / "00002.ids").symlink_to("/dev/full")
            seen.append(partial)
        return encode(texts)

    encoder = BYTES._replace(encode=encode_and_fill)
    with pytest.raises(
        DataError,
        match=r"cache: the cache cannot be written \(No space left.*complete parts are kept",
    ):
        open_tokens(str(path), settings_of(tmp_path), encoder, workers=1, part_bytes=2000)
    (seen[0] / "00002.ids").unlink()
    lines: list[str] = []
    cache = open_tokens(
        str(path), settings_of(tmp_path), BYTES, part_bytes=2000, report=lines.append
    )
    assert "of them already done" in lines[0]
    cache.verify()


@pytest.mark.parametrize(
    ("source", "more", "message"),
    [
        ("hub:books:train", {}, "is not a file, and only files can be cached"),
        ("embedded:smoke", {}, "is not a file"),
        ("-", {}, "is not a file"),
        ("{}/corpus.txt", {"holdout": 50}, "give a share, such as 0.001"),
        ("{}/corpus.txt", {"holdout": "fold:2/5"}, "give a share, such as 0.001"),
    ],
)
def test_sources_that_cannot_be_cached(
    tmp_path: Path, source: str, more: dict[str, Any], message: str
) -> None:
    write_corpus(tmp_path, 10)
    with pytest.raises(SettingsError, match=message):
        open_tokens(source.format(tmp_path), settings_of(tmp_path, **more), BYTES, side="train")
    with pytest.raises(SettingsError, match=message):
        sample_documents(source.format(tmp_path), settings_of(tmp_path, **more), 100, side="train")


def test_a_blank_source_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\n \n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.txt: no document is left \(3 read\)"):
        open_cache(path, tmp_path)


def test_all_files_are_flushed_before_the_folder_is_renamed(tmp_path: Path) -> None:
    with recording() as events:
        cache = open_cache(write_corpus(tmp_path, 300), tmp_path, part_bytes=2000)
    named = next(
        n for n, each in enumerate(events) if (each.what, each.more) == ("rename", cache.folder)
    )
    partial, before = events[named].path, events[:named]
    written = {each.path: n for n, each in enumerate(before) if each.what == "put"}
    assert {partial / name for name in ("ids.bin", "starts.bin")} < set(written)
    for file, last in written.items():
        assert any((each.what, each.path) == ("flush", file) for each in before[last:]), file
    manifest = next(n for n, each in enumerate(before) if each.more == partial / "manifest.json")
    assert manifest > max(
        n for file, n in written.items() if file.name in ("ids.bin", "starts.bin")
    )
    # The folder is flushed before the files of the groups are removed.
    flushed = next(
        n for n, each in enumerate(before) if n > manifest and each.what == "flush_folder"
    )
    removed = [
        n
        for n, each in enumerate(before)
        if each.what == "remove" and each.path.suffix == ".ids" and n > manifest
    ]
    assert before[flushed].path == partial and removed and min(removed) > flushed
    assert ("flush_folder", cache.folder.parent) in [
        (each.what, each.path) for each in events[named:]
    ]
    assert sorted(contents(cache)) == ["ids.bin", "manifest.json", "plan.json", "starts.bin"]
