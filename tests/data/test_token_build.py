"""Building a cache on bad days: killed, doubled, changed meanwhile, the disk full, the text broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.data.caches import BYTES, corpus_of, encode, files_of, opened, settings_of
from tests.faults.damage import recording

from trifold.data import open_tokens
from trifold.errors import DataError, SettingsError

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
from tests.data.caches import slow, settings_of
from trifold.data import Encoder, open_tokens
from pathlib import Path
cache = open_tokens(
    sys.argv[1], settings_of(Path(sys.argv[2])), Encoder(slow, "bytes", 257), part_bytes=2000, workers=2,
    say=lambda line: print(line, flush=True),
)
print(len(cache), cache.folder)
"""


def builder(path: Path, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(path), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def test_two_builders_at_once_make_one_cache(tmp_path: Path) -> None:
    path = corpus_of(tmp_path, 2000)
    both = [builder(path, tmp_path), builder(path, tmp_path)]
    said = [process.communicate(timeout=100)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len({text.splitlines()[-1] for text in said}) == 1
    assert sum("made in" in text for text in said) == 1
    assert files_of(opened(path, tmp_path)) == files_of(opened(path, tmp_path / "alone", part_bytes=2000))


def test_killed_in_the_middle_and_built_on_it_has_the_same_bytes(tmp_path: Path) -> None:
    path = corpus_of(tmp_path, 3000)
    partial = tmp_path / "cache"
    kept = 0
    for wanted in (3, 12, 20):  # killed when so many parts are done
        process = builder(path, tmp_path)
        while process.poll() is None and len(list(partial.glob(".*.partial/*.json"))) < wanted + 1:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        done = len(list(partial.glob(".*.partial/0*.json")))
        assert kept <= done
        kept = done
    assert kept >= 12
    damaged = sorted(partial.glob(".*.partial/0*.ids"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-2] + b"\0\0")  # one of those that were done
    said: list[str] = []
    resumed = opened(path, tmp_path, say=said.append, part_bytes=2000)
    assert f"{kept} of them done before" in said[0]
    assert files_of(resumed) == files_of(opened(path, tmp_path / "whole", part_bytes=2000))
    assert list(partial.glob(".*.partial")) == []


# The command line, with 200 parts that take a second each.
TRAINING = """
import sys, time
from functools import partial
from trifold.cli import main
from trifold.data import open_tokens, token_build
from trifold.objectives import token_stream
def slowly(documents, real=token_build._bunches):
    for texts in real(documents):
        time.sleep(float(sys.argv[1]))
        yield texts
token_build._bunches = slowly
token_stream.open_tokens = partial(open_tokens, part_bytes=400, workers=2)
sys.exit(main(sys.argv[2:]))
"""


def test_sigterm_while_a_cache_is_built_ends_in_seconds_and_the_build_goes_on_later(tmp_path: Path) -> None:
    path = corpus_of(tmp_path, 2000)
    changes = {**TINY, "data.train": path, "data.cache": tmp_path / "cache", "train.steps": 2}
    words = ["train", "shakespeare-char-tiny", "--out", str(tmp_path / "run"), "--resume", "auto"]
    command = [*words, *(f"{key}={value}" for key, value in changes.items())]

    def training(seconds: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", TRAINING, seconds, *command], stderr=subprocess.PIPE, text=True
        )

    process = training("1")
    try:
        while process.poll() is None and not list((tmp_path / "cache").glob(".*.partial/00002.json")):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert process.returncode == 143, said
    assert "while preparing; go on with: trifold train" in said.splitlines()[-1]
    done = len(list((tmp_path / "cache").glob(".*.partial/0*.json")))
    assert 3 <= done < 20
    process = training("0")
    said = process.communicate(timeout=100)[1]
    assert process.returncode == 0, said
    assert f"{done} of them done before" in said


def test_what_was_begun_with_another_text_is_not_gone_on_with(tmp_path: Path) -> None:
    path = corpus_of(tmp_path, 3000)
    process = builder(path, tmp_path)
    while process.poll() is None and len(list((tmp_path / "cache").glob(".*.partial/0*.json"))) < 3:
        time.sleep(0.005)
    process.kill()
    process.communicate()
    os.utime(path, ns=(1, 1))
    said: list[str] = []
    assert len(opened(path, tmp_path, say=said.append, part_bytes=2000)) > 2000
    assert "done before" not in said[0]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = corpus_of(tmp_path, 100)

    def meddling(texts: Sequence[str]) -> tuple[Any, Any, int]:
        path.write_bytes(path.read_bytes() + b"more\n")
        return encode(texts)

    with pytest.raises(DataError, match=r"corpus\.txt: it changed while it was read"):
        open_tokens(str(path), settings_of(tmp_path), BYTES._replace(encode=meddling), workers=1)


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_broken_text_is_refused_by_its_line_in_the_file(tmp_path: Path, kind: str) -> None:
    rows = [json.dumps({"text": f"row {n}"}) if kind == "jsonl" else f"row {n}" for n in range(500)]
    raw = [row.encode() for row in rows]
    raw[432] = b'{"text": "\xff"}' if kind == "jsonl" else b"\xff"
    path = tmp_path / f"a.{kind}"
    path.write_bytes(b"\n".join(raw))
    with pytest.raises(DataError, match=rf"a\.{kind}:433:\d+: byte 0xff"):
        opened(path, tmp_path, part_bytes=300)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is there on Linux")
def test_a_full_disk_is_said_and_what_is_done_is_kept(tmp_path: Path) -> None:
    path = corpus_of(tmp_path, 300)
    (tmp_path / "cache").mkdir()
    seen: list[Path] = []

    def filling(texts: Sequence[str]) -> tuple[Any, Any, int]:
        if len(seen) == 0:  # the third part finds the disk full
            partial = next((tmp_path / "cache").glob(".*.partial"))
            (partial / "00002.ids").symlink_to("/dev/full")
            seen.append(partial)
        return encode(texts)

    encoder = BYTES._replace(encode=filling)
    with pytest.raises(
        DataError, match=r"cache: the cache cannot be written \(No space left.*what is done so far is kept"
    ):
        open_tokens(str(path), settings_of(tmp_path), encoder, workers=1, part_bytes=2000)
    (seen[0] / "00002.ids").unlink()
    said: list[str] = []
    cache = open_tokens(str(path), settings_of(tmp_path), BYTES, part_bytes=2000, say=said.append)
    assert "of them done before" in said[0]
    cache.verify()


@pytest.mark.parametrize(
    ("source", "more", "message"),
    [
        ("hub:books:train", {}, "is no file, and only files are made into a cache"),
        ("embedded:smoke", {}, "is no file"),
        ("-", {}, "is no file"),
        ("{}/corpus.txt", {"holdout": 50}, "give their share, such as 0.001"),
    ],
)
def test_what_a_cache_cannot_serve(tmp_path: Path, source: str, more: dict[str, Any], message: str) -> None:
    corpus_of(tmp_path, 10)
    with pytest.raises(SettingsError, match=message):
        open_tokens(source.format(tmp_path), settings_of(tmp_path, **more), BYTES, side="train")


def test_nothing_left_is_no_cache(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\n \n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.txt: no document is left \(3 read\)"):
        opened(path, tmp_path)


def test_all_of_a_cache_is_on_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    with recording() as done:
        cache = opened(corpus_of(tmp_path, 300), tmp_path, part_bytes=2000)
    named = next(n for n, each in enumerate(done) if (each.what, each.more) == ("rename", cache.folder))
    aside, before = done[named].path, done[:named]
    written = {each.path: n for n, each in enumerate(before) if each.what == "put"}
    assert {aside / name for name in ("ids.bin", "starts.bin")} < set(written)
    for file, last in written.items():
        assert any((each.what, each.path) == ("flush", file) for each in before[last:]), file
    manifest = next(n for n, each in enumerate(before) if each.more == aside / "manifest.json")
    assert manifest > max(n for file, n in written.items() if file.name in ("ids.bin", "starts.bin"))
    # … and the names of the files, before what they are made of goes.
    flushed = next(n for n, each in enumerate(before) if n > manifest and each.what == "flush_folder")
    gone = [
        n
        for n, each in enumerate(before)
        if each.what == "remove" and each.path.suffix == ".ids" and n > manifest
    ]
    assert before[flushed].path == aside and gone and min(gone) > flushed
    assert ("flush_folder", cache.folder.parent) in [(each.what, each.path) for each in done[named:]]
    assert sorted(files_of(cache)) == ["ids.bin", "manifest.json", "plan.json", "starts.bin"]
