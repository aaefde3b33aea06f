"""The reader of GGUF files: what it reads, and the errors for what it refuses."""

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from trifold.errors import CheckpointError
from trifold.folders import named
from trifold.hub.gguf.file_format import GGUFFile, read_file
from trifold.hub.gguf.metadata import Metadata
from trifold.hub.gguf.strings import FileStrings

ALL = 2**64 - 1


def string(text: str | bytes, length: int | None = None) -> bytes:
    content = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(content) if length is None else length) + content


def pair(key: str, kind: int, content: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + content


def array(key: str, kind: int, count: int, content: bytes) -> bytes:
    return pair(key, 9, struct.pack("<IQ", kind, count) + content)


def entry(name: str, shape: Sequence[int] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + axes + struct.pack("<IQ", kind, offset)


def build(
    pairs: Sequence[bytes] = (),
    entries: Sequence[bytes] = (),
    data: int = 128,
    *,
    version: int = 3,
    tensors: int | None = None,
    keys: int | None = None,
) -> bytes:
    """A file of these parts; tensors, keys: counts of the header that differ from the content."""
    counts = (
        len(entries) if tensors is None else tensors,
        len(pairs) if keys is None else keys,
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(entries)
    return head + b"\0" * (-len(head) % 32) + b"\0" * data


def read(folder: Path, content: bytes) -> GGUFFile:
    path = folder / "a.gguf"
    path.write_bytes(content)
    return read_file(named(path))


def test_a_file_of_the_reference_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, tuple[str, Any]] = {
        "u8": ("uint8", 7), "i8": ("int8", -7), "u16": ("uint16", 700), "i16": ("int16", -700),
        "u32": ("uint32", 70000), "i32": ("int32", -70000), "f32": ("float32", 1e-5),
        "u64": ("uint64", 2**60), "i64": ("int64", -(2**60)), "f64": ("float64", math.pi),
        "yes": ("bool", True), "text": ("string", "Grüße"), "words": ("array", ["a", "", "ü"]),
        "ints": ("array", [1, -2, 3]), "floats": ("array", [0.5, -0.25]),
        "flags": ("array", [True, False]),
    }  # fmt: skip
    for key, (kind, value) in values.items():
        getattr(writer, f"add_{kind}")(key, value)
    matrix = np.arange(64, dtype=np.float32).reshape(2, 32)
    writer.add_tensor("m.weight", matrix)
    writer.add_tensor(
        "q.weight",
        gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q8_0),
        raw_dtype=gguf.GGMLQuantizationType.Q8_0,
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_file(named(path))
    for key, (kind, value) in values.items():
        found = file.metadata[key]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == value, (key, kind)
        assert type(found) is not float or kind.startswith("float")
    place = file.tensors["m.weight"]
    assert (place.shape, place.kind.name) == ((2, 32), "F32")
    assert file.memory[place.start : place.end] == matrix.tobytes()
    assert file.tensors["q.weight"].end - file.tensors["q.weight"].start == 68


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_are_read(version: int, tmp_path: Path) -> None:
    file = read(tmp_path, build([pair("a", 4, b"\1\0\0\0")], [entry("t")], version=version))
    assert dict(file.metadata) == {"a": 1}
    assert [*file.tensors] == ["t"]


WRONG: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "an empty file"),
    "another format": (b"PK\3\4" + b"\0" * 100, "not a GGUF file"),
    "three bytes": (b"GGU", "not a GGUF file"),
    "header cut": (b"GGUF\3\0\0\0", "the number of tensors has 8 bytes, but 0 follow"),
    "version 1": (build(version=1), "GGUF version 1 is not read"),
    "big endian": (build(version=3 << 24), "big-endian"),
    "later version": (build(version=9), "version 9 is not known"),
    "count of tensors −1": (build(tensors=ALL), "claims 18,446,744,073,709,551,615 tensors"),
    "count of keys −1": (build(keys=ALL), "claims 18,446,744,073,709,551,615 keys"),
    "tensors that wrap": (build(tensors=2**61), "claims .* tensors"),
    "more keys than bytes": (build(keys=1000, data=0), "bytes, but|occurs twice"),
    "empty key": (build([pair("", 4, b"\0" * 4)]), "key 0 is empty"),
    "key twice": (build([pair("a", 4, b"\0" * 4)] * 2), "key 1 .* occurs twice: 'a'"),
    "long key": (build([string("k" * 70000) + b"\0" * 8]), "key 0 has 70,000 bytes"),
    "key length wraps": (build([string("a", ALL)]), "key 0 has .* bytes; at most 65,535"),
    "string length wraps": (build([pair("a", 8, string("x", ALL))]), "'a' has .* bytes; at most"),
    "string beyond the file": (build([pair("a", 8, string("x", 10**6))]), "'a' has 1,000,000 b"),
    "key not UTF-8": (build([string(b"\xff\xfe") + b"\4\0\0\0" * 2]), "key 0 is not UTF-8"),
    "value not UTF-8": (build([pair("a", 8, string(b"\xc3"))]), "value of 'a' is not UTF-8"),
    "unknown type": (build([pair("a", 13, b"\0" * 8)]), "'a' is of the unknown type 13"),
    "type −1": (build([pair("a", 2**32 - 1, b"\0" * 8)]), "of the unknown type 4,?294"),
    "boolean 2": (build([pair("a", 7, b"\2")]), "'a' has a byte that is no boolean"),
    "2^63 bytes": (build([array("a", 0, 2**63, b"")]), "array of 'a' has 9,223,372,036,854"),
    "2^63 strings": (build([array("a", 8, 2**63, b"")]), "claims 9,223,372,036,854,775,808 str"),
    "2^61 doubles, which wrap": (build([array("a", 12, 2**61, b"")]), "array of 'a' has .* bytes"),
    "nested arrays": (build([array("a", 9, 1, b"\0" * 20)]), "'a' has arrays in an array"),
    "unknown elements": (build([array("a", 99, 1, b"\0" * 20)]), "elements of unknown type 99"),
    "alignment 0": (build([pair("general.alignment", 4, b"\0" * 4)]), "0 is not a power of two"),
    "alignment 24": (build([pair("general.alignment", 4, b"\x18\0\0\0")]), "24 is not a power"),
    "alignment of another type": (
        build([pair("general.alignment", 8, string("32"))]),
        "'32' is not a power of two",
    ),
    "alignment true": (build([pair("general.alignment", 7, b"\1")]), "True is not a power of two"),
    "alignment 2^31": (
        build([pair("general.alignment", 4, b"\0\0\0\x80")]),
        "2147483648 is not a power",
    ),
    "name of 64 bytes": (build(entries=[entry("n" * 64)]), "name of tensor 0 has 64 bytes"),
    "no name": (build(entries=[entry("")]), "name of tensor 0 is empty"),
    "name twice": (build(entries=[entry("t"), entry("t", offset=128)]), "tensor 1 .* twice: 't'"),
    "no axes": (build(entries=[entry("t", ())]), "'t' has 0 axes"),
    "five axes": (build(entries=[entry("t", (1,) * 5)]), "'t' has 5 axes"),
    "2^32 - 1 axes": (build(entries=[string("t") + b"\xff" * 4]), "has 4,294,967,295 axes"),
    "an axis of 0": (build(entries=[entry("t", (0, 4))]), "shape .4, 0., which no tensor"),
    "an axis of −1": (build(entries=[entry("t", (ALL,))]), "which no tensor has"),
    "sizes that wrap": (build(entries=[entry("t", (2**32, 2**32, 32))]), "which no tensor has"),
    "bytes that wrap": (build(entries=[entry("t", (2**62,))]), "'t': ends at byte"),
    "larger than the file": (build(entries=[entry("t", (64,))]), "'t': ends at byte 320 of a"),
    "offset not aligned": (build(entries=[entry("t", (8,), offset=4)]), "byte 4 of the data inst"),
    "offset before the end": (
        build(entries=[entry("t", (8,)), entry("u", (8,))]),
        "'u': is at byte 0 of the data instead of 32",
    ),
    "offset −32": (build(entries=[entry("t", offset=2**64 - 32)]), "instead of 0"),
    "half a block": (build(entries=[entry("t", (48,), 2)]), "rows of 48 values are not whole bl"),
    "removed type": (build(entries=[entry("t", kind=4)]), "not read.*\n  type 4, such as 't'"),
    "type of the future": (build(entries=[entry("t", kind=999)]), "type 999, such as 't'"),
    "IQ2_XXS": (build(entries=[entry("t", (256,), 16)]), r"that are read: F32, F16.*\n  IQ2_XXS, s"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), WRONG.values(), ids=WRONG.keys())
def test_damage_is_an_error_that_names_the_place(
    content: bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith(str(tmp_path / "a.gguf"))
    assert ";" in str(caught.value) or "known" in str(caught.value)  # a remedy


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    pairs = [pair("a", 8, string("text")), array("b", 8, 2, string("x") * 2)]
    pairs.append(array("c", 5, 3, b"\0" * 12))
    whole = build(pairs, [entry("t"), entry("u", (32,), 8, 128)], data=162)
    read(tmp_path, whole)
    for size in range(len(whole)):
        with pytest.raises(CheckpointError):
            read(tmp_path, whole[:size])


def test_nothing_but_regular_files_is_opened(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        read_file(named(tmp_path / "missing.gguf"))
    with pytest.raises(CheckpointError, match="a folder, not a file"):
        read_file(named(tmp_path))


LONG: dict[str, list[bytes]] = {
    "usual": [f"{number} Größe".encode() for number in range(1500)],
    "one byte": [b"x"] * 2000,
    "255 bytes": [b"y" * (1 + number % 255) for number in range(1100)],
    "several chunks": [b"abc"] * 20_000,
    "256 bytes": [b"z"] * 1500 + [b"z" * 256],
    "empty": [b"a", b""] * 1000,
    "NUL": [b"a\0b", b"\5\0\0\0\0\0\0\0", b"c"] * 1000,
    "at the end of the file": [b"a"] * 1500,
}


@pytest.mark.parametrize("name", LONG)
def test_long_arrays_of_strings(name: str, tmp_path: Path) -> None:
    strings = LONG[name]
    content = array("words", 8, len(strings), b"".join(map(string, strings)))
    after = [] if name == "at the end of the file" else [pair("next", 4, b"\7\0\0\0")]
    file = read(tmp_path, build([content, *after], data=0))
    metadata = Metadata(file.metadata, {}, "a.gguf")
    assert len(metadata.texts("words")) == len(strings)
    assert metadata.texts("words") == [each.decode() for each in strings]
    assert file.metadata.get("next", 7) == 7
    for text in (strings[0].decode(), strings[-1].decode(), "no such", ""):
        numbers = [number for number, each in enumerate(strings) if each == text.encode()]
        assert metadata.places("words", text) == numbers
    is_lazy = isinstance(file.metadata["words"], FileStrings)
    assert is_lazy == (name not in ("256 bytes", "empty", "NUL"))


def test_long_arrays_that_are_not_text_are_errors_when_read(tmp_path: Path) -> None:
    # Two halves of a letter in neighbours are no letter.
    content = b"".join(map(string, [b"a\xc3", b"\xb6b"] * 600))
    file = read(tmp_path, build([array("words", 8, 1200, content)]))
    with pytest.raises(CheckpointError, match=r"a string of the array of 'words' is not UTF-8"):
        Metadata(file.metadata, {}, "a.gguf").texts("words")


@pytest.mark.parametrize("cut", [1, 9, 5000, 13000])
def test_long_arrays_beyond_the_file_are_errors(cut: int, tmp_path: Path) -> None:
    content = build([array("words", 8, 1500, b"".join(map(string, [b"ab"] * 1500)))], data=0)
    content = content.rstrip(b"\0")
    with pytest.raises(CheckpointError, match=r"ends after the file|bytes follow"):
        read(tmp_path, content[:-cut])
