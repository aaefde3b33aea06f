"""SentencePiece models: our reader finds the library's fields, and damaged models end in an error."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from sentencepiece import SentencePieceProcessor
from tests.hub.forging import field, piece
from tests.text.folders import LLAMA, sentencepiece

from trifold.errors import CheckpointError
from trifold.text.segmenters import sentencepiece_segmenter
from trifold.text.vocabulary import BYTE_ALPHABET, Vocabulary, read_sentencepiece

TEXT = "hello … ｱ ① the fox é ﬁ"
PIECES = piece(b"<unk>", kind=2) + piece(b"<pad>", kind=3) + piece(b"</s>", kind=3) + piece(b"a")


def read(tmp_path: Path, content: bytes) -> Vocabulary:
    (tmp_path / "spiece.model").write_bytes(content)
    return read_sentencepiece(tmp_path / "spiece.model")


@pytest.mark.parametrize(
    "options", [{}, {"user_defined_symbols": "<ent>,quick,öp"}], ids=["usual", "user symbols"]
)
def test_pieces_and_scores_are_those_of_the_library(
    options: dict[str, str], tmp_path: Path
) -> None:
    content = sentencepiece(**options)
    theirs, model = SentencePieceProcessor(model_proto=content), read(tmp_path, content)
    expected = [(theirs.IdToPiece(n), theirs.GetScore(n)) for n in range(len(theirs))]
    assert model.scores == expected
    segment = sentencepiece_segmenter(tmp_path / "spiece.model")
    assert segment(TEXT) == theirs.encode(TEXT, out_type=str)


def test_settings_of_a_bpe_model(tmp_path: Path) -> None:
    model = read(tmp_path, sentencepiece("bpe", **LLAMA))
    assert model.merges and not model.scores
    assert (model.byte_fallback, model.unk_id, model.charsmap) == (True, 0, b"")
    with pytest.raises(CheckpointError, match="unigram"):
        sentencepiece_segmenter(tmp_path / "spiece.model")


INVALID = {
    "empty": b"",
    "text": b"hello, I am no protobuf at all",
    "an absurd length": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x" * 9,
    "an endless number": b"\x0a" + b"\xff" * 40,
    "groups": b"\x0b\x0b\x0b\x0b",
    "a piece that is a number": b"\x08\x01" * 9,
    "a score that is not finite": b"\x0a\x07\x0a\x01a\x15\x00\x00\xc0\x7f",
    "unk_id beyond the pieces": b"\x0a\x03\x0a\x01a\x12\x03\xc0\x02\x63",
    "not UTF-8": b"\x0a\x04\x0a\x02\xff\xfe",
    "an unsupported kind": b"\x0a\x03\x0a\x01a\x12\x02\x18\x03",
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_model_is_rejected(name: str, tmp_path: Path) -> None:
    kind = r"spiece\.model: (not a SentencePiece model|SentencePiece kind 3)"
    with pytest.raises(CheckpointError, match=kind):
        read(tmp_path, INVALID[name])


def use(tmp_path: Path, content: bytes) -> None:
    with contextlib.suppress(CheckpointError):
        (tmp_path / "spiece.model").write_bytes(content)
        sentencepiece_segmenter(tmp_path / "spiece.model")(TEXT * 20)


@settings(max_examples=40)
@given(st.binary(max_size=60), st.integers(0, 2**20))
def test_damage_ends_in_an_error_or_a_model(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, place: int
) -> None:
    content = bytearray(sentencepiece())
    place %= len(content)
    content[place : place + len(noise)] = noise
    use(tmp_path_factory.getbasetemp(), bytes(content))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 2**32 - 1)), max_size=50))
def test_damage_to_the_normalization_rules_ends_in_an_error_or_a_model(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    folder, content = tmp_path_factory.getbasetemp(), bytearray(sentencepiece())
    charsmap = read(folder, bytes(content)).charsmap
    start, units = content.index(charsmap) + 4, int.from_bytes(charsmap[:4], "little") // 4
    for at, value in changes:
        struct.pack_into("<I", content, start + 4 * (at % units), value)
    use(folder, bytes(content))


@pytest.mark.parametrize("unit", [0, 0x800, 0x200, 0x100, 0xFFFFFFFF])
def test_circular_normalization_rules_end(unit: int, tmp_path: Path) -> None:
    trie = struct.pack("<I", unit) * 512
    use(
        tmp_path,
        PIECES + field(3, field(2, struct.pack("<I", len(trie)) + trie + b"a" * 63 + b"\0")),
    )


def test_the_byte_alphabet_is_that_of_gpt2() -> None:
    convert = pytest.importorskip("transformers.convert_slow_tokenizer")
    assert {
        character: byte for byte, character in convert.bytes_to_unicode().items()
    } == BYTE_ALPHABET
