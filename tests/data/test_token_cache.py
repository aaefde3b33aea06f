"""Token caches hold every document of their source, whatever its division into parts."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.data.caches import BYTES, contents, open_cache, settings_of, texts_of, write_corpus

from trifold.batches import Blocks, ShuffledRows, deal_batch
from trifold.data import DataSettings, Encoder, open_tokens, read_documents, sample_documents
from trifold.data.corpus import group_parts, iter_parts, survey
from trifold.data.token_cache import MappedArray
from trifold.errors import DataError
from trifold.text import TokenizerSettings, make_tokenizer

pytestmark = pytest.mark.slow

# --- content ------------------------------------------------------------------------------


@pytest.mark.parametrize("documents", ["line", "blank", "file"])
@pytest.mark.parametrize("part_bytes", [1000, 10**9])
def test_a_cache_holds_the_documents_in_order(
    tmp_path: Path, documents: Any, part_bytes: int
) -> None:
    path = write_corpus(tmp_path, 300)
    expected = read_documents(str(path), DataSettings(documents=documents))
    cache = open_cache(path, tmp_path, documents=documents, part_bytes=part_bytes)
    assert texts_of(cache) == expected.texts
    assert cache.bytes == len("".join(expected.texts).encode())
    for count in ("documents", "blank", "blank_dropped", "characters", "files", "kept"):
        assert getattr(cache.report, count) == getattr(expected.report, count)
    assert cache.starts[len(cache)] == len(cache.ids)
    cache.verify()


def test_folders_with_several_formats(tmp_path: Path) -> None:
    home = tmp_path / "texts"
    write_corpus(home / "a", 200)
    (home / "b.txt.gz").write_bytes(gzip.compress("zipped ü\nagain\n\n".encode()))
    rows = "".join(json.dumps({"text": f"row {n}\nof many"}) + "\n" for n in range(400))
    (home / "c.jsonl").write_text(rows, encoding="utf-8")
    (home / "empty.txt").write_bytes(b"")
    settings = settings_of(tmp_path)
    cache = open_tokens(str(home), settings, BYTES, part_bytes=2000)
    assert texts_of(cache) == read_documents(str(home), DataSettings()).texts
    assert len(json.loads((cache.folder / "manifest.json").read_text())["shards"]) > 5


LINE = st.sampled_from(["", " ", "a", "bb", "\u2028", "ü" * 9, "\r", "\t", "x\x85y"])


@settings(max_examples=50)
@given(
    lines=st.lists(LINE, max_size=30), ends=st.sampled_from(["\n", "\r\n"]), size=st.integers(1, 40)
)
def test_parts_have_the_documents_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ends: str, size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "parts.txt"
    path.write_bytes(ends.join(["x", *lines]).encode())
    for documents in ("line", "blank"):
        settings = DataSettings(documents=documents, blank="keep")
        parts = [
            part
            for group in group_parts(survey(str(path), settings), settings, size)
            for part in group
        ]
        assert list(iter_parts(parts, settings)) == read_documents(str(path), settings).texts


def test_documents_are_the_tokens_of_the_tokenizer(tmp_path: Path) -> None:
    path = write_corpus(tmp_path)
    texts = read_documents(str(path), DataSettings()).texts
    tokenizer = make_tokenizer(texts, TokenizerSettings(kind="byte-bpe", vocab_size=400))

    def tokens(texts: Sequence[str]) -> tuple[Any, Any, int]:
        ids = tokenizer.encode(texts)
        size = sum(len(text.encode()) for text in texts)
        return np.concatenate(ids).astype(np.int64), np.array([len(one) for one in ids]), size

    encoder = Encoder(tokens, tokenizer.fingerprint, tokenizer.vocab_size)
    cache = open_tokens(str(path), settings_of(tmp_path), encoder, part_bytes=4000)
    assert cache.ids.dtype == np.uint16
    for number in random.Random(0).sample(range(len(texts)), 200):
        assert cache.document(number).tolist() == tokenizer.encode([texts[number]])[0]


def test_large_vocabularies_use_four_bytes(tmp_path: Path) -> None:
    def large(texts: Sequence[str]) -> tuple[Any, Any, int]:
        return np.array([70_000] * len(texts)), np.ones(len(texts), np.int64), 1

    cache = open_tokens(
        str(write_corpus(tmp_path, 9)), settings_of(tmp_path), Encoder(large, "large", 70_001)
    )
    assert cache.ids.dtype == np.uint32
    assert set(cache.ids[:].tolist()) == {70_000}


def test_documents_without_tokens_are_left_out_and_counted(tmp_path: Path) -> None:
    def vowels(texts: Sequence[str]) -> tuple[Any, Any, int]:
        ids = [
            np.array([ord(sign) for sign in text if sign in "aeiou"], np.int64) for text in texts
        ]
        return np.concatenate(ids), np.array([len(one) for one in ids]), 1

    path = tmp_path / "a.txt"
    path.write_text("one\nxyz\n\ntwo\n", encoding="utf-8")
    cache = open_tokens(str(path), settings_of(tmp_path), Encoder(vowels, "vowels", 256))
    assert [cache.document(n).tolist() for n in range(len(cache))] == [[*b"oe"], [*b"o"]]
    assert (cache.empty, cache.report.blank_dropped) == (1, 1)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path, workers: int) -> None:
    path = write_corpus(tmp_path / "text", 500)
    one = contents(open_cache(path, tmp_path / "one", workers=1))
    assert one == contents(open_cache(path, tmp_path / "other", workers=workers))


# --- opening --------------------------------------------------------------------------------------


def test_an_existing_cache_is_opened(tmp_path: Path) -> None:
    path = write_corpus(tmp_path)
    before = contents(open_cache(path, tmp_path))
    lines: list[str] = []
    again = open_cache(path, tmp_path, report=lines.append)
    assert lines == []
    assert contents(again) == before
    assert [entry.name for entry in (tmp_path / "cache").iterdir() if entry.is_dir()] == [
        again.folder.name
    ]


def test_the_format_of_0_1_is_unchanged(tmp_path: Path) -> None:
    cache = open_cache(write_corpus(tmp_path, 50), tmp_path, part_bytes=400)
    assert cache.folder.name == "corpus.txt-29df4352227d9b55"
    digests = {name: hashlib.sha256(raw).hexdigest()[:16] for name, raw in contents(cache).items()}
    assert (digests["ids.bin"], digests["starts.bin"]) == ("0c08b60956824b57", "f022348c22b66d77")
    manifest = json.loads((cache.folder / "manifest.json").read_text())
    assert list(manifest) == (
        "format key name dtype documents tokens bytes empty report starts_sha256 shards sources".split()
    )
    assert list(manifest["sources"][0]) == "file kind size mtime_ns sample sha256".split()


def test_another_tokenizer_setting_or_text_has_another_cache(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, 50)
    home = settings_of(tmp_path)
    first = open_tokens(str(path), home, BYTES)
    others = [
        open_tokens(str(path), home, BYTES._replace(key="other")),
        open_tokens(str(path), settings_of(tmp_path, documents="blank"), BYTES),
        open_tokens(str(write_corpus(tmp_path / "b", 50, seed=1)), home, BYTES),
    ]
    assert len({cache.folder for cache in (first, *others)}) == 4


@pytest.mark.parametrize("size", ["as large", "larger"])
def test_a_changed_source_is_detected(tmp_path: Path, size: str) -> None:
    path = write_corpus(tmp_path, 12_000)
    assert len(open_cache(path, tmp_path)) > 8_000
    raw = bytearray(path.read_bytes())
    middle = raw.index(b"w\xc3\xb6rd", 4096 + 100)  # between the sampled blocks
    raw[middle : middle + 1] = b"W" if size == "as large" else b"WW"
    path.write_bytes(raw)
    os.utime(path, ns=(1, 1))
    assert any("W" in text for text in texts_of(open_cache(path, tmp_path)))


def test_a_touched_or_moved_source_is_recognized(tmp_path: Path) -> None:
    path = write_corpus(tmp_path)
    folder = open_cache(path, tmp_path).folder
    os.utime(path, ns=(10**18, 10**18))
    lines: list[str] = []
    assert open_cache(path, tmp_path, report=lines.append).folder == folder
    path.with_name("moved").mkdir()
    shutil.move(path, path.with_name("moved") / "corpus.txt")
    assert (
        open_cache(path.with_name("moved") / "corpus.txt", tmp_path, report=lines.append).folder
        == folder
    )
    assert lines == []


def test_a_read_only_cache_is_opened(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, 50)
    cache = open_cache(path, tmp_path)
    home = tmp_path / "cache"
    os.utime(path, ns=(10**18, 10**18))
    for place in (cache.folder, home):
        place.chmod(0o555)
    try:
        assert len(open_cache(path, tmp_path)) == len(cache)
    finally:
        for place in (home, cache.folder):
            place.chmod(0o755)


@pytest.mark.parametrize("name", ["ids.bin", "starts.bin", "manifest.json"])
@pytest.mark.parametrize(
    "change",
    [lambda raw: raw[:-1], lambda raw: raw + b"\0", lambda raw: b""],
    ids=["cut", "longer", "gone"],
)
def test_files_of_another_size_are_an_error(tmp_path: Path, name: str, change: Any) -> None:
    path = write_corpus(tmp_path, 50)
    place = open_cache(path, tmp_path).folder / name
    place.write_bytes(
        change(place.read_bytes().rstrip(b"\n}") if name.endswith("json") else place.read_bytes())
    )
    with pytest.raises(DataError, match=rf"{name}: .*remove its folder"):
        open_cache(path, tmp_path)
    place.unlink()
    with pytest.raises(DataError, match=rf"{name}: .*remove its folder"):
        open_cache(path, tmp_path)
    shutil.rmtree(place.parent)
    assert len(open_cache(path, tmp_path)) > 0


@pytest.mark.parametrize("name", ["ids.bin", "starts.bin"])
def test_verify_finds_any_flipped_bit(tmp_path: Path, name: str) -> None:
    path = write_corpus(tmp_path, 100)
    place = open_cache(path, tmp_path).folder / name
    whole = place.read_bytes()
    for bit in (
        8 * 9,
        8 * (len(whole) // 2) + 3,
        8 * len(whole) - 1 if name == "ids.bin" else 8 * len(whole) - 70,
    ):
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        place.write_bytes(raw)
        with pytest.raises(DataError, match=rf"{name}: .*not .*written; the cache is damaged"):
            open_cache(path, tmp_path).verify()
    place.write_bytes(whole)
    open_cache(path, tmp_path).verify()


# --- splits and samples ---------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_every_document_is_on_one_side(tmp_path: Path, share: float) -> None:
    path = write_corpus(tmp_path, 4000)
    texts = read_documents(str(path), DataSettings()).texts
    train, valid = (
        texts_of(open_cache(path, tmp_path, holdout=share, side=side))
        for side in ("train", "valid")
    )
    assert sorted(train + valid) == sorted(texts)
    assert not set(train) & set(valid)
    assert abs(len(valid) / len(texts) - share) < 0.03
    other = texts_of(open_cache(path, tmp_path, holdout=share, side="valid", seed=1))
    assert Counter(other) != Counter(valid)


def test_samples_come_from_all_parts_of_one_side(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, 4000)
    settings = settings_of(tmp_path, holdout=0.3)
    texts = read_documents(str(path), DataSettings()).texts
    assert sample_documents(str(path), settings, 10**9, part_bytes=5000) == texts
    held = set(texts_of(open_cache(path, tmp_path, holdout=0.3, side="valid")))
    sample = sample_documents(str(path), settings, 20_000, side="train", part_bytes=5000)
    assert not set(sample) & held
    assert 20_000 <= sum(map(len, sample)) < 30_000
    positions = [texts.index(text) for text in sample]
    assert np.histogram(positions, bins=10, range=(0, len(texts)))[0].min() > 10


def test_a_resumed_epoch_with_other_ranks_reads_every_token_once(tmp_path: Path) -> None:
    """Two ranks take 7 steps each, then three ranks continue."""
    cache = open_cache(write_corpus(tmp_path, 500), tmp_path)
    blocks = Blocks(cache.starts, 64, shift=37)
    plan = ShuffledRows(len(blocks), 5, seed=1, epoch=3)
    batches = [
        rows
        for part, ranks in ((plan[:14], 2), (plan[14:], 3))
        for index, batch in enumerate(part)
        for rank in range(ranks)
        for rows in deal_batch(blocks.lengths, batch, index, rank=rank, world=ranks).parts
    ]
    offsets = np.asarray(cache.starts)
    read = np.zeros(len(cache.ids), np.int64)
    counted: Counter[int] = Counter()
    for batch in batches:
        for place, length in zip(*blocks.select(batch), strict=True):
            assert np.searchsorted(offsets, place, side="right") == np.searchsorted(
                offsets, place + length
            )
            read[place : place + length] += 1
            counted.update(cache.ids[place : place + length].tolist())
    assert (read == 1).all()
    assert counted == Counter(cache.ids[:].tolist())


# --- memory-mapped arrays -------------------------------------------------------------------------

NUMBERS = np.arange(1000, dtype="<u2") * 61


@given(
    key=st.one_of(
        st.integers(0, 999),
        st.slices(1000),
        st.lists(st.integers(0, 999), max_size=30).map(lambda indices: np.array(indices, np.int64)),
    )
)
def test_a_mapped_array_is_indexed_like_an_array(
    tmp_path_factory: pytest.TempPathFactory, key: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "numbers.bin"
    if not path.is_file():
        path.write_bytes(NUMBERS.tobytes())
    mapped = MappedArray(path, "<u2")
    assert np.array_equal(mapped[key], NUMBERS[key])  # type: ignore[index]
    assert (len(mapped), mapped.dtype) == (1000, np.uint16)
    assert np.array_equal(np.asarray(mapped), NUMBERS)


def test_a_mapped_array_returns_copies(tmp_path: Path) -> None:
    path = tmp_path / "numbers.bin"
    path.write_bytes(NUMBERS.tobytes())
    mapped = MappedArray(path, "<u2")
    for key in (slice(3, 9), np.array([1, 5])):
        mapped[key][:] = 0
        assert np.array_equal(mapped[key], NUMBERS[key])
    mapped.release()
    assert np.array_equal(mapped[:], NUMBERS)
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(mapped)[0] = 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_mapped_array_releases_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(200 << 20)
    mapped = MappedArray(path, "<u4")
    rng = np.random.default_rng(0)
    before, peak = resident_bytes(), 0
    for start in range(0, len(mapped), 1 << 20):
        assert not mapped[start : start + (1 << 20)].any()
        peak = max(peak, resident_bytes())
    for _ in range(60):
        assert not mapped[rng.integers(0, len(mapped), 50)].any()
        peak = max(peak, resident_bytes())
    assert peak - before < 100 << 20
