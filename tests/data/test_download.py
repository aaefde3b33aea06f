"""Downloads from a local server that fails in every way end with the right file, or with none."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.file_server import Server, serve_files

from trifold import disk
from trifold.data import download
from trifold.data.catalog import Dataset, File
from trifold.errors import DataError

CONTENT = "".join(f"line {n} of a text\n" for n in range(12_000)).encode()
SIZE = len(CONTENT)
HALF = SIZE // 2


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("TRIFOLD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "BACK_OFF", 0)
    with serve_files({"/a": CONTENT}) as server:
        yield server


def make_dataset(
    server: Server, name: str = "text.txt", content: bytes = CONTENT, **values: Any
) -> Dataset:
    values = {"urls": (f"{server.url}/a",), "conversion": ""} | values
    digest = hashlib.sha256(content).hexdigest()
    return Dataset("set", "", "", "", "", (File(f"set/{name}", len(content), digest, **values),))


def fetch(dataset: Dataset, report: Callable[[str], None] = lambda line: None) -> None:
    download.download(dataset, report, lambda title: contextlib.nullcontext())


def stored(tmp_path: Path) -> dict[str, bytes]:
    """The files of the dataset."""
    folder = tmp_path / "data" / "set"
    return (
        {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        if folder.exists()
        else {}
    )


SURVIVED = [
    ["well"],
    ["aborts"],
    [
        "aborts",
        "aborts",
        "aborts",
        "aborts",
        "aborts",
        "aborts",
        "aborts",
    ],  # each brings something new
    ["aborts", "ignores range"],
    ["aborts", "ignores range", "aborts", "500", "well"],
    ["aborts", "another range"],
    ["500", "503", "429", "aborts", "502"],
    ["too long"],
    ["too long", "aborts"],
    ["no length"],
    ["aborts", "wrong bytes"],  # the digest of a resumed file is wrong: once more, from the start
]


@pytest.mark.parametrize("script", SURVIVED, ids=", ".join)
def test_whatever_the_server_does_the_file_is_right(
    server: Server, tmp_path: Path, script: list[str]
) -> None:
    server.script = list(script)
    with contextlib.suppress(DataError):
        fetch(make_dataset(server))
    fetch(make_dataset(server))
    assert stored(tmp_path) == {"text.txt": CONTENT}


FAILED = {
    "404": (["404"], "HTTP Error 404"),
    "410": (["410"], "HTTP Error 410"),
    "wrong bytes": (["wrong bytes"], f"gives {SIZE:,} bytes with the SHA-256"),
    "too short": (["too short"], f"gives {SIZE - 10:,} bytes"),
    "huge": (["huge"], "so not the published file"),
    "to another scheme": (
        ["to ftp://127.0.0.1/a"],
        "is redirected to ftp://127.0.0.1/a, which is not http",
    ),
    "to a file": (["to file:///etc/passwd"], "file:///etc/passwd"),
    "to https": (["to https://127.0.0.1/a"], "which is not http"),
}


@pytest.mark.parametrize("name", FAILED)
def test_a_wrong_file_is_never_stored(server: Server, tmp_path: Path, name: str) -> None:
    server.script, message = list(FAILED[name][0]), FAILED[name][1]
    with pytest.raises(DataError, match=message):
        fetch(make_dataset(server))
    assert stored(tmp_path) == {} and len(server.log) == 1


def test_a_redirect_of_the_same_scheme_is_followed(server: Server, tmp_path: Path) -> None:
    server.files["/b"] = CONTENT
    server.script = [f"to {server.url}/b"]
    fetch(make_dataset(server))
    assert stored(tmp_path) == {"text.txt": CONTENT}


def test_a_server_that_stays_down_is_tried_five_times(server: Server, tmp_path: Path) -> None:
    server.script = ["500"] * 9
    lines: list[str] = []
    with pytest.raises(
        DataError, match=r"HTTP Error 500.*5 times in a row; check the network and repeat"
    ):
        fetch(make_dataset(server), lines.append)
    assert len(server.log) == 5 and len(lines) == 4
    assert stored(tmp_path) == {}


def test_attempts_wait_longer_each_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(download, "BACK_OFF", 1.0)
    monkeypatch.setattr(download.time, "sleep", waited.append)
    server.script = ["500", "500", "500", "aborts"]
    fetch(make_dataset(server))
    assert waited == [1, 2, 4, 1]


def test_a_later_call_continues_where_the_earlier_one_ended(server: Server, tmp_path: Path) -> None:
    server.script = ["aborts", *["500"] * 5]
    with pytest.raises(DataError, match=f"continues after {HALF:,} bytes"):
        fetch(make_dataset(server))
    assert stored(tmp_path) == {"text.txt.part": CONTENT[:HALF]}
    server.log.clear()
    server.script = []
    fetch(make_dataset(server))
    assert server.log == [("/a", f"bytes={HALF}-")]
    assert stored(tmp_path) == {"text.txt": CONTENT}


@pytest.mark.parametrize("part", [b"of another file", CONTENT, CONTENT + b"more", b"x" * SIZE])
def test_a_part_of_any_content_leads_to_the_right_file(
    server: Server, tmp_path: Path, part: bytes
) -> None:
    folder = tmp_path / "data" / "set"
    folder.mkdir(parents=True)
    (folder / "text.txt.part").write_bytes(part)
    fetch(make_dataset(server))
    assert stored(tmp_path) == {"text.txt": CONTENT}


def test_an_interrupted_download_leaves_its_part(server: Server, tmp_path: Path) -> None:
    def stop(total: int | None, new: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download.download(make_dataset(server), print, lambda title: contextlib.nullcontext(stop))
    ((name, part),) = stored(tmp_path).items()
    assert name == "text.txt.part" and part and CONTENT.startswith(part)
    fetch(make_dataset(server))
    assert stored(tmp_path) == {"text.txt": CONTENT}


def test_progress_counts_the_bytes_that_are_left(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int | None, int]] = []

    def watch(title: str) -> Any:
        assert title == "text.txt"
        return contextlib.nullcontext(lambda total, new: seen.append((total, new)))

    server.script = ["aborts"]
    download.download(make_dataset(server), lambda line: None, watch)
    assert {total for total, _ in seen} == {SIZE, SIZE - HALF}
    assert sum(new for _, new in seen) == SIZE


@pytest.mark.parametrize(
    "published", [CONTENT, gzip.compress(CONTENT)], ids=["plain", "compressed"]
)
def test_a_file_is_stored_compressed_if_its_name_says_so(
    server: Server, tmp_path: Path, published: bytes
) -> None:
    server.files["/a"] = published
    for name in ("text.gz", "text.txt"):
        fetch(make_dataset(server, name))
    assert stored(tmp_path) == {"text.gz": gzip.compress(CONTENT, 6, mtime=0), "text.txt": CONTENT}


def test_a_compressed_file_that_grows_without_end_is_rejected(
    server: Server, tmp_path: Path
) -> None:
    server.files["/a"] = gzip.compress(bytes(50_000_000))
    with pytest.raises(DataError, match="nothing is stored"):
        fetch(make_dataset(server))
    assert stored(tmp_path) == {}


def test_a_file_may_be_made_from_two(server: Server, tmp_path: Path) -> None:
    server.files = {"/a": b"h\n1\n", "/b": b"h\n2\n"}
    urls = (f"{server.url}/a", f"{server.url}/b")
    server.script = ["well", *["500"] * 5]
    dataset = make_dataset(server, content=b"h\n1\n2\n", urls=urls, conversion="join")
    with pytest.raises(DataError, match="500"):
        fetch(dataset)
    fetch(dataset)
    assert stored(tmp_path) == {"text.txt": b"h\n1\n2\n"}


@pytest.mark.parametrize("conversion", ["bio", "similarities", "summaries"])
def test_a_published_file_of_another_form_is_an_error(
    server: Server, tmp_path: Path, conversion: str
) -> None:
    server.files["/a"] = b"\xff[1]\n"
    with pytest.raises(DataError, match="The file has changed"):
        fetch(make_dataset(server, conversion=conversion))
    assert stored(tmp_path) == {}


def test_processes_at_the_same_time_download_once(server: Server, tmp_path: Path) -> None:
    threads = [threading.Thread(target=fetch, args=(make_dataset(server),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.log) == 1
    assert stored(tmp_path) == {"text.txt": CONTENT}


def test_a_present_file_is_verified_and_never_replaced(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "set"
    folder.mkdir(parents=True)
    (folder / "text.txt").write_bytes(CONTENT)
    fetch(make_dataset(server))
    (folder / "text.txt").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"not the published content.*move the file away"):
        fetch(make_dataset(server))
    assert stored(tmp_path) == {"text.txt": b"mine"}
    assert server.log == [] and list((tmp_path / "data").iterdir()) == [folder]  # and no lock


def test_a_full_disk_is_not_a_failure_of_the_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Any, chunk: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "put", full)
        with pytest.raises(
            DataError, match=r"No space left on device.*free some disk space, or set TRIFOLD_DATA"
        ):
            fetch(make_dataset(server))
    assert len(server.log) == 1
    fetch(make_dataset(server))
    assert stored(tmp_path) == {"text.txt": CONTENT}


def test_a_missing_server_is_an_error_with_a_remedy(server: Server) -> None:
    dataset = make_dataset(server, urls=("http://127.0.0.1:9/a",))
    with pytest.raises(DataError, match=r"refused.*check the network and repeat the command"):
        fetch(dataset)
