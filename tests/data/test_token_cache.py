"""A corpus on the disk is the corpus: whoever built it, however often he was killed, and whatever it was cut into."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.caches import BYTES, corpus_of, files_of, opened, settings_of, texts_of

from trifold.batches import Blocks, ShuffledRows, deal
from trifold.data import DataSettings, Encoder, open_tokens, read_documents, sample_documents
from trifold.data.parts import documents_of, groups, survey
from trifold.errors import DataError
from trifold.text import TokenizerSettings, make_tokenizer

pytestmark = pytest.mark.slow

# --- the cache is the text ------------------------------------------------------------------------------


@pytest.mark.parametrize("documents", ["line", "blank", "file"])
@pytest.mark.parametrize("part_bytes", [1000, 10**9])
def test_a_cache_holds_the_documents_in_their_order(tmp_path: Path, documents: Any, part_bytes: int) -> None:
    path = corpus_of(tmp_path, 300)
    expected = read_documents(str(path), DataSettings(documents=documents))
    cache = opened(path, tmp_path, documents=documents, part_bytes=part_bytes)
    assert texts_of(cache) == expected.texts
    assert cache.bytes == len("".join(expected.texts).encode())
    for count in ("documents", "blank", "blank_dropped", "characters", "files", "kept"):
        assert getattr(cache.report, count) == getattr(expected.report, count)
    assert cache.lengths.sum() == len(cache.ids)
    cache.verify()


def test_folders_of_many_kinds(tmp_path: Path) -> None:
    home = tmp_path / "texts"
    corpus_of(home / "a", 200)
    (home / "b.txt.gz").write_bytes(gzip.compress("zipped ü\nagain\n\n".encode()))
    rows = "".join(json.dumps({"text": f"row {n}\nof many"}) + "\n" for n in range(400))
    (home / "c.jsonl").write_text(rows, encoding="utf-8")
    (home / "empty.txt").write_bytes(b"")
    settings = settings_of(tmp_path)
    cache = open_tokens(str(home), settings, BYTES, part_bytes=2000)
    assert texts_of(cache) == read_documents(str(home), DataSettings()).texts
    assert len(json.loads((cache.folder / "manifest.json").read_text())["shards"]) > 5


LINE = st.sampled_from(["", " ", "a", "bb", "\u2028", "ü" * 9, "\r", "\t", "x\x85y"])


@given(lines=st.lists(LINE, max_size=30), ends=st.sampled_from(["\n", "\r\n"]), size=st.integers(1, 40))
def test_parts_are_the_whole(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ends: str, size: int
) -> None:
    """Wherever a file is cut, its parts one after the other have the same documents."""
    path = tmp_path_factory.getbasetemp() / "parts.txt"
    path.write_bytes(ends.join(["x", *lines]).encode())
    for documents in ("line", "blank"):
        settings = DataSettings(documents=documents, blank="keep")
        parts = [part for group in groups(survey(str(path), settings), settings, size) for part in group]
        found = [document.text for document in documents_of(parts, settings)]
        assert found == read_documents(str(path), settings).texts


def test_random_reads_are_what_tokenising_gives(tmp_path: Path) -> None:
    path = corpus_of(tmp_path)
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


def test_large_vocabularies_need_four_bytes(tmp_path: Path) -> None:
    def large(texts: Sequence[str]) -> tuple[Any, Any, int]:
        return np.array([70_000] * len(texts)), np.ones(len(texts), np.int64), 1

    cache = open_tokens(str(corpus_of(tmp_path, 9)), settings_of(tmp_path), Encoder(large, "large", 70_001))
    assert cache.ids.dtype == np.uint32
    assert set(cache.ids[:].tolist()) == {70_000}


def test_documents_without_a_token_are_left_out_and_counted(tmp_path: Path) -> None:
    def vowels(texts: Sequence[str]) -> tuple[Any, Any, int]:
        ids = [np.array([ord(sign) for sign in text if sign in "aeiou"], np.int64) for text in texts]
        return np.concatenate(ids), np.array([len(one) for one in ids]), 1

    path = tmp_path / "a.txt"
    path.write_text("one\nxyz\n\ntwo\n", encoding="utf-8")
    cache = open_tokens(str(path), settings_of(tmp_path), Encoder(vowels, "vowels", 256))
    assert [cache.document(n).tolist() for n in range(len(cache))] == [[*b"oe"], [*b"o"]]
    assert (cache.empty, cache.report.blank_dropped) == (1, 1)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_same_bytes_from_any_number_of_workers(tmp_path: Path, workers: int) -> None:
    path = corpus_of(tmp_path / "text", 500)
    one = files_of(opened(path, tmp_path / "one", workers=1))
    assert one == files_of(opened(path, tmp_path / "other", workers=workers))


# --- opening --------------------------------------------------------------------------------------------


def test_what_is_there_is_opened_and_not_made_again(tmp_path: Path) -> None:
    path = corpus_of(tmp_path)
    before = files_of(opened(path, tmp_path))
    said: list[str] = []
    again = opened(path, tmp_path, say=said.append)
    assert said == []
    assert files_of(again) == before
    assert [entry.name for entry in (tmp_path / "cache").iterdir() if entry.is_dir()] == [again.folder.name]


def test_another_tokenizer_setting_or_text_is_another_cache(tmp_path: Path) -> None:
    path = corpus_of(tmp_path, 50)
    home = settings_of(tmp_path)
    first = open_tokens(str(path), home, BYTES)
    others = [
        open_tokens(str(path), home, BYTES._replace(key="other")),
        open_tokens(str(path), settings_of(tmp_path, documents="blank"), BYTES),
        open_tokens(str(corpus_of(tmp_path / "b", 50, seed=1)), home, BYTES),
    ]
    assert len({cache.folder for cache in (first, *others)}) == 4


@pytest.mark.parametrize("size", ["as large", "larger"])
def test_a_source_that_changed_is_noticed(tmp_path: Path, size: str) -> None:
    path = corpus_of(tmp_path, 30_000)
    assert len(opened(path, tmp_path)) > 20_000
    raw = bytearray(path.read_bytes())
    middle = raw.index(b"w\xc3\xb6rd", 4096 * 3 + 100)  # between the blocks that are looked at
    raw[middle : middle + 1] = b"W" if size == "as large" else b"WW"
    path.write_bytes(raw)
    os.utime(path, ns=(1, 1))
    assert any("W" in text for text in texts_of(opened(path, tmp_path)))


def test_a_source_that_was_only_touched_or_moved_is_known_again(tmp_path: Path) -> None:
    path = corpus_of(tmp_path)
    folder = opened(path, tmp_path).folder
    os.utime(path, ns=(10**18, 10**18))
    said: list[str] = []
    assert opened(path, tmp_path, say=said.append).folder == folder
    moved = (
        shutil.move(path, path.with_name("moved") / "corpus.txt")
        if (tmp_path / "moved").mkdir() is None
        else ""
    )
    assert opened(Path(moved), tmp_path, say=said.append).folder == folder
    assert said == []


def test_a_cache_that_may_only_be_read_is_enough(tmp_path: Path) -> None:
    path = corpus_of(tmp_path, 50)
    cache = opened(path, tmp_path)
    home = tmp_path / "cache"
    os.utime(path, ns=(10**18, 10**18))
    for place in (cache.folder, home):
        place.chmod(0o555)
    try:
        assert len(opened(path, tmp_path)) == len(cache)
    finally:
        for place in (home, cache.folder):
            place.chmod(0o755)


@pytest.mark.parametrize("name", ["ids.bin", "starts.bin", "manifest.json"])
@pytest.mark.parametrize(
    "change", [lambda raw: raw[:-1], lambda raw: raw + b"\0", lambda raw: b""], ids=["cut", "longer", "gone"]
)
def test_another_size_is_refused_by_name(tmp_path: Path, name: str, change: Any) -> None:
    path = corpus_of(tmp_path, 50)
    place = opened(path, tmp_path).folder / name
    place.write_bytes(
        change(place.read_bytes().rstrip(b"\n}") if name.endswith("json") else place.read_bytes())
    )
    with pytest.raises(DataError, match=rf"{name}: .*remove its folder"):
        opened(path, tmp_path)
    place.unlink()
    with pytest.raises(DataError, match=rf"{name}: .*remove its folder"):
        opened(path, tmp_path)
    shutil.rmtree(place.parent)
    assert len(opened(path, tmp_path)) > 0


@pytest.mark.parametrize("name", ["ids.bin", "starts.bin"])
def test_any_flipped_bit_is_found_on_request(tmp_path: Path, name: str) -> None:
    path = corpus_of(tmp_path, 100)
    place = opened(path, tmp_path).folder / name
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
            opened(path, tmp_path).verify()
    place.write_bytes(whole)
    opened(path, tmp_path).verify()


# --- learning from it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_every_document_is_on_one_side_and_equals_on_the_same(tmp_path: Path, share: float) -> None:
    path = corpus_of(tmp_path, 4000)
    texts = read_documents(str(path), DataSettings()).texts
    train, valid = (texts_of(opened(path, tmp_path, holdout=share, side=side)) for side in ("train", "valid"))
    assert sorted(train + valid) == sorted(texts)
    assert not set(train) & set(valid)
    assert abs(len(valid) / len(texts) - share) < 0.03
    other = texts_of(opened(path, tmp_path, holdout=share, side="valid", seed=1))
    assert Counter(other) != Counter(valid)


def test_a_sample_comes_from_everywhere_and_from_one_side(tmp_path: Path) -> None:
    path = corpus_of(tmp_path, 4000)
    settings = settings_of(tmp_path, holdout=0.3)
    texts = read_documents(str(path), DataSettings()).texts
    all_of_it = sample_documents(str(path), settings, 10**9, part_bytes=5000)
    assert all_of_it == texts
    held = set(texts_of(opened(path, tmp_path, holdout=0.3, side="valid")))
    some = sample_documents(str(path), settings, 20_000, side="train", part_bytes=5000)
    assert not set(some) & held
    assert 20_000 <= sum(map(len, some)) < 30_000
    places = [texts.index(text) for text in some]
    assert np.histogram(places, bins=10, range=(0, len(texts)))[0].min() > 10


def test_every_id_once_over_a_resume_and_another_number_of_ranks(tmp_path: Path) -> None:
    """Two ranks take 7 steps each, then three go on: together they read every token of the corpus once."""
    cache = opened(corpus_of(tmp_path, 500), tmp_path)
    blocks = Blocks.of_epoch(cache.starts, 64, seed=1, epoch=3)
    plan = ShuffledRows(len(blocks), 5, seed=1, epoch=3)
    batches = [
        rows
        for part, ranks in ((plan[:14], 2), (plan[14:], 3))
        for index, batch in enumerate(part)
        for rank in range(ranks)
        for rows in deal(blocks.lengths, batch, index, rank=rank, world=ranks).parts
    ]
    read = np.zeros(len(cache.ids), np.int64)
    counted: Counter[int] = Counter()
    for batch in batches:
        for document, place, length in zip(*blocks.chunks(batch), strict=True):
            assert cache.starts[document] <= place < place + length <= cache.starts[document + 1]
            read[place : place + length] += 1
            counted.update(cache.ids[place : place + length].tolist())
    assert (read == 1).all()
    assert counted == Counter(cache.ids[:].tolist())
