"""Strict reading of lines: only line feeds end lines; errors name file, line and byte."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from trifold.data import iter_lines
from trifold.data.lines import inner_suffix, read_text
from trifold.errors import DataError

MB = 1_000_000


def read_lines(path: str | Path, **options: Any) -> list[str]:
    return list(iter_lines(path, **options))


def written(folder: Path, content: bytes, name: str = "text.en") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        pytest.param(b"a\nb\n", ["a", "b"], id="plain"),
        pytest.param(b"a\nb", ["a", "b"], id="no line feed at the end"),
        pytest.param(b"a\r\nb\r\n", ["a", "b"], id="CRLF"),
        pytest.param(b"a\r\nb\nc\r\n", ["a", "b", "c"], id="mixed line ends"),
        pytest.param(b"a\rb\nc\n", ["a\rb", "c"], id="lone carriage return is kept"),
        pytest.param(b"a\r\r\n", ["a\r"], id="only one carriage return belongs to the line end"),
        pytest.param(b"\xef\xbb\xbfa\nb\n", ["a", "b"], id="BOM at the start is removed"),
        pytest.param(b"a\n\xef\xbb\xbfb\n", ["a", "\ufeffb"], id="BOM elsewhere is kept"),
        pytest.param(b"\n\na\n\n", ["", "", "a", ""], id="blank lines are lines"),
        pytest.param(b"\xef\xbb\xbf\na\n", ["", "a"], id="BOM before a blank line"),
        pytest.param("a\u2028b\nc\n".encode(), ["a\u2028b", "c"], id="U+2028"),
        pytest.param("a\u2029b\nc\n".encode(), ["a\u2029b", "c"], id="U+2029"),
        pytest.param("a\u0085b\nc\n".encode(), ["a\u0085b", "c"], id="U+0085"),
        pytest.param(
            b"a\x0bb\x0cc\x1cd\x1de\x1ef\n", ["a\x0bb\x0cc\x1cd\x1de\x1ef"], id="VT FF FS GS RS"
        ),
        pytest.param("  a\u00a0b\t \n".encode(), ["  a\u00a0b\t "], id="white space is kept"),
        pytest.param("e\u0301 é 😀\n".encode(), ["e\u0301 é 😀"], id="no Unicode normalization"),
    ],
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_only_line_feeds_end_lines(
    tmp_path: Path, content: bytes, lines: list[str], compress: Callable[[bytes], bytes]
) -> None:
    assert read_lines(written(tmp_path, compress(content))) == lines


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=8),
        min_size=1,
    )
)
def test_any_lines_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    lines = [line.rstrip("\r").lstrip("\ufeff") for line in lines]
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    assert read_lines(path) == lines


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "text.en: the file is empty", id="empty"),
        pytest.param(b"\xef\xbb\xbf", "text.en: the file is empty", id="only a BOM"),
        pytest.param(gzip.compress(b""), "text.en: the file is empty", id="empty inside gzip"),
        pytest.param(
            b"ok\nab\xff\n", "text.en:2:3: byte 0xff is not valid UTF-8", id="invalid byte"
        ),
        pytest.param(
            "fünf\n".encode("latin-1"), "text.en:1:2: byte 0xfc .*iconv -f CP1252", id="Latin-1"
        ),
        pytest.param(b"a\n\xc3\n", "text.en:2:1: byte 0xc3", id="truncated character"),
        pytest.param(b"\xed\xa0\x80\n", "text.en:1:1: byte 0xed", id="encoded surrogate"),
        pytest.param(b"\xc0\xaf\n", "text.en:1:1: byte 0xc0", id="overlong encoding"),
        pytest.param(
            b"PK\3\4\x14\0\6\0\x08\0", "text.en: an archive or an office document", id="spreadsheet"
        ),
        pytest.param("é\nab\0c\n".encode(), "text.en:2:3: a NUL byte", id="NUL"),
        pytest.param("é\0\n".encode(), "text.en:1:3: a NUL byte", id="NUL, counted in bytes"),
        pytest.param("a\n".encode("utf-16"), "text.en:1:1: this is UTF-16 .*iconv", id="UTF-16"),
        pytest.param(
            "\ufeffa\n".encode("utf-16-be"), "text.en:1:1: this is UTF-16", id="UTF-16 big-endian"
        ),
        pytest.param(
            "\ufeffa\n".encode("utf-32-le"), "text.en:1:1: this is UTF-32 .*-f UTF-32 ", id="UTF-32"
        ),
        pytest.param(
            gzip.compress(b"a line\n" * 9999)[:-20],
            "text.en: the compressed file ends too early",
            id="truncated gzip",
        ),
        pytest.param(
            gzip.compress(b"a\n")[:-8] + b"12345678",
            "text.en: the compressed file is damaged",
            id="CRC",
        ),
        pytest.param(
            b"\x1f\x8b\x08\x00" + b"\xff" * 60, "text.en: the compressed file", id="damaged gzip"
        ),
    ],
)
def test_errors_name_the_place(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_lines(written(tmp_path, content))
    assert caught.value.exit_code == 1


WIDE = [
    "a good film",
    "sch\u00f6n \u201cgut\u201d 5 \u20ac",
    "\u0444\u0438\u043b\u044c\u043c \u0438 \u0437\u0432\u0443\u043a",
    "\u03c4\u03b1\u03b9\u03bd\u03af\u03b1 \u03ba\u03b1\u03b9",
]


@pytest.mark.parametrize("text", WIDE)
@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE"])
@pytest.mark.parametrize("before", ["", "\n"])
def test_utf_16_without_a_mark_is_recognized(
    tmp_path: Path, text: str, encoding: str, before: str
) -> None:
    """A remedy that removes NUL bytes would lose all characters beyond Latin-1."""
    path = written(tmp_path, f"{before}{text}\n{text}\n".encode(encoding))
    with pytest.raises(DataError, match=rf"this is UTF-16 .*`iconv -f {encoding} -t UTF-8`"):
        read_lines(path)
    with pytest.raises(DataError, match=rf"`iconv -f {encoding} -t UTF-8`"):
        read_text(path)


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        ("\u201cgood\u201d for 5 \u20ac".encode("cp1252"), "iconv -f CP1252 -t UTF-8"),
        ("テキスト".encode("shift_jis") + b"\x81", "iconv -f ENCODING -t UTF-8"),
        ("schön ".encode() + b"\x93", "two encodings are mixed; correct this byte"),
    ],
)
def test_the_remedy_for_another_encoding_loses_no_character(
    tmp_path: Path, content: bytes, remedy: str
) -> None:
    with pytest.raises(DataError, match=remedy):
        read_lines(written(tmp_path, content))


UNSET = r"variable MY_TEXTS is not set; set it to the folder .*hub:"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.en", r"none\.en: no such file; check the path$"),
        ("${TRIFOLD_DATA}/none.en", r"none\.en: no such file; check the path and variables$"),
        ("${MY_TEXTS}/a.en", UNSET),
        ("$MY_TEXTS/a.en", UNSET),
        (".", "this is a folder"),
        ("text.en/deeper", r"text\.en/deeper: cannot be read \(Not a directory\)"),
    ],
)
def test_a_path_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    monkeypatch.delenv("MY_TEXTS", raising=False)
    monkeypatch.setenv("TRIFOLD_DATA", str(tmp_path))
    written(tmp_path, b"a\n")
    with pytest.raises(DataError, match=message):
        read_lines(path if path.startswith("$") else tmp_path / path)


def test_variables_in_paths_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, b"a\n")
    monkeypatch.setenv("TRIFOLD_DATA", str(tmp_path))
    assert read_lines("${TRIFOLD_DATA}/text.en") == read_lines("$TRIFOLD_DATA/text.en") == ["a"]


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, b"a\n")
    if os.geteuid() == 0:  # root can read every file, so the error is simulated

        def deny(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "open", deny)
    path.chmod(0)
    with pytest.raises(DataError, match=r"text\.en: no permission to read it; try `chmod u\+r"):
        read_lines(path)


def test_the_limit_of_a_line_is_exact(tmp_path: Path) -> None:
    for end in (b"", b"\n", b"\r\n"):
        assert read_lines(
            written(tmp_path, b"\xef\xbb\xbf" + b"a" * 10 + end), max_line_bytes=10
        ) == ["a" * 10]
        with pytest.raises(
            DataError, match=r"text.en:2: the line is longer than 10 bytes.*max_line_bytes"
        ):
            read_lines(written(tmp_path, b"ok\n" + b"a" * 11 + end), max_line_bytes=10)


@pytest.mark.slow
def test_a_long_line_is_rejected_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.en.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(60):
            file.write(b"x" * MB)
    program = (
        "import resource, sys; from trifold.data import iter_lines; from trifold.errors import DataError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: list(iter_lines(sys.argv[1]))\n"
        "except DataError as error: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )
    kilobytes, _, message = run.stdout.partition(" ")
    assert "long.en.gz:1: the line is longer than 1,000,000 bytes" in message
    assert int(kilobytes) < 30_000


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    path = written(tmp_path, b"a\nb\n" + b"\xff\n")
    lines = iter_lines(path)
    assert [next(lines), next(lines)] == ["a", "b"]
    with pytest.raises(DataError, match=":3:1:"):
        next(lines)


def test_standard_input_has_the_same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_stdin(content: bytes) -> None:
        buffer = io.BufferedReader(io.BytesIO(content))  # type: ignore[type-var]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(buffer))

    set_stdin("\ufeffa\u2028b\r\n\nc".encode())
    assert read_lines("-") == ["a\u2028b", "", "c"]
    set_stdin(b"a\n\xff\n")
    with pytest.raises(DataError, match="standard input:2:1: byte 0xff"):
        read_lines("-")
    set_stdin(b"")
    with pytest.raises(DataError, match="standard input: the file is empty"):
        read_lines("-")


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    program = "from trifold.data import iter_lines; print(list(iter_lines('/dev/stdin')))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        input=gzip.compress(b"a\nb\n"),
        capture_output=True,
        check=True,
    )
    assert run.stdout == b"['a', 'b']\n"


# --- compressed files -----------------------------------------------------------------------------

LINES = [f"{number} ü\u2028 {'x' * (number % 90)}" for number in range(3000)]
RAW = "\n".join(LINES).encode()


def zstd(raw: bytes) -> bytes:
    library = pytest.importorskip(
        "zstandard", reason="zstandard is not installed: `make setup` installs it"
    )
    return bytes(library.ZstdCompressor(level=1).compress(raw))


@pytest.mark.parametrize("name", ["a.txt.zst", "a.txt"])
def test_zstd_is_detected_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(zstd(RAW))
    assert read_lines(tmp_path / name) == LINES


def test_several_zstd_frames_are_one_file(tmp_path: Path) -> None:
    half = len(RAW) // 2
    (tmp_path / "a.zst").write_bytes(zstd(RAW[:half]) + zstd(b"") + zstd(RAW[half:]))
    assert read_lines(tmp_path / "a.zst") == LINES


def truncated(share: float) -> bytes:
    whole = zstd(RAW)
    return whole[: 5 + int(len(whole) * share)]


def damaged() -> bytes:
    content = bytearray(zstd(RAW))
    for position in range(20, 60):
        content[position] ^= 0xFF
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zst", lambda: truncated(0.001), r"a\.zst: the compressed file ends too early"),
        ("a.zst", lambda: truncated(0.3), r"a\.zst: the compressed file ends too early"),
        ("a.zst", lambda: truncated(0.999), r"a\.zst: the compressed file ends too early"),
        ("a.zst", lambda: zstd(b"whole\n") + zstd(RAW)[:-3], "ends too early"),
        ("a.zst", damaged, r"a\.zst: the compressed file is damaged"),
        ("a.zst", lambda: zstd(bytes(64_000_000)) * 32, "longer than 1,000,000 bytes"),
        ("a.zst", lambda: b"plain\n", r"ends in \.zst but is not zstd; rename it"),
        ("a.gz", lambda: b"plain\n", r"ends in \.gz but is not gzip; rename it"),
    ],
)
def test_damaged_compressed_files_are_errors(
    tmp_path: Path, name: str, content: Callable[[], bytes], message: str
) -> None:
    (tmp_path / name).write_bytes(content())
    with pytest.raises(DataError, match=message):
        read_lines(tmp_path / name)


def test_a_missing_zstd_library_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfdxxxx")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    with pytest.raises(DataError, match=r'needs the `zstandard` library; .*"zstandard>='):
        read_lines(tmp_path / "a.zst")


@pytest.mark.parametrize(
    ("file", "inside"),
    [("a/b.JSONL.GZ", ".jsonl"), ("b.txt.zst", ".txt"), ("b.gz", ""), ("b.tsv", ".tsv"), ("b", "")],
)
def test_the_inner_suffix(file: str, inside: str) -> None:
    assert inner_suffix(file) == inside
