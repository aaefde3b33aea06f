"""SentencePiece without its library: the same fields, the same pieces, and no patience with broken files."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text.folders import LLAMA, lines, sentencepiece

from trifold.errors import CheckpointError
from trifold.text.sentencepiece import BPE, Charsmap, Segmenter, read_model

library = pytest.importorskip("sentencepiece")

KINDS = {
    "usual": {},
    "identity": {"normalization_rule_name": "identity"},
    "folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "spaces kept": {"remove_extra_whitespaces": False},
    "no prefix": {"add_dummy_prefix": False},
    "own symbols": {"user_defined_symbols": "<ent>,quick,öp"},
}


def made(content: bytes) -> object:
    processor = library.SentencePieceProcessor()
    processor.LoadFromSerializedProto(content)
    return processor


def read(tmp_path: Path, content: bytes):
    path = tmp_path / "spiece.model"
    path.write_bytes(content)
    return read_model(path)


@pytest.mark.parametrize("name", KINDS)
def test_pieces_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    content = sentencepiece(**KINDS[name])
    theirs, model = made(content), read(tmp_path, content)
    numbers = range(len(theirs))
    assert [piece[:2] for piece in model.pieces] == [
        (theirs.IdToPiece(n), theirs.GetScore(n)) for n in numbers
    ]
    segment = Segmenter(model)
    texts = [*lines(), "a <ent>quicköp", "<ent>", "coöperate"]
    wrong = [
        (t, segment(t), theirs.encode(t, out_type=str))
        for t in texts
        if segment(t) != theirs.encode(t, out_type=str)
    ]
    assert not wrong, (len(wrong), wrong[:3])


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_is_cut_as_the_library_cuts_it(text: str) -> None:
    assert SEGMENT(text) == THEIRS.encode(text, out_type=str)


def test_settings_of_a_bpe_model(tmp_path: Path) -> None:
    model = read(tmp_path, sentencepiece("bpe", **LLAMA))
    assert (model.kind, model.byte_fallback, model.unk_id, model.charsmap) == (BPE, True, 0, b"")
    with pytest.raises(CheckpointError, match="unigram"):
        Segmenter(model)


HOSTILE = {
    "empty": b"",
    "text": b"hello, I am no protobuf at all",
    "a wild length": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x" * 9,
    "an endless number": b"\x0a" + b"\xff" * 40,
    "groups": b"\x0b\x0b\x0b\x0b",
    "a piece that is a number": b"\x08\x01" * 9,
    "no score": b"\x0a\x07\x0a\x01a\x15\x00\x00\xc0\x7f",
    "unknown beyond the pieces": b"\x0a\x03\x0a\x01a\x12\x03\xc0\x02\x63",
    "not UTF-8": b"\x0a\x04\x0a\x02\xff\xfe",
    "words": b"\x0a\x03\x0a\x01a\x12\x02\x18\x03",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_model_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"spiece\.model: (no SentencePiece model|a SentencePiece model of kind 3)"
    ):
        read(tmp_path, HOSTILE[name])


@given(st.binary(max_size=60), st.integers(0, 2**20))
def test_damage_ends_in_an_error_or_a_model(noise: bytes, place: int) -> None:
    content = bytearray(sentencepiece())
    place %= len(content)
    content[place : place + len(noise)] = noise
    path = FOLDER / "damaged.model"
    path.write_bytes(bytes(content))
    with contextlib.suppress(CheckpointError):
        Segmenter(read_model(path))("hello … ｱ ① the fox")


def test_rules_that_are_broken_are_refused() -> None:
    for blob in (b"\x01", b"\x07\x00\x00\x00abc", b"\xff\xff\xff\x7f" + b"a" * 99):
        with pytest.raises(CheckpointError, match="rules are broken"):
            Charsmap(blob)


@pytest.fixture(scope="module", autouse=True)
def _usual(tmp_path_factory: pytest.TempPathFactory) -> None:
    global FOLDER, SEGMENT, THEIRS
    FOLDER = tmp_path_factory.mktemp("models")
    THEIRS = made(sentencepiece())
    SEGMENT = Segmenter(read(FOLDER, sentencepiece()))
