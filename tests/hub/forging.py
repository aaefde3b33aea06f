"""Make hostile files from valid ones, and watch what loading them does."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trifold

WEIGHTS, INDEX, SHARD = (
    "model.safetensors",
    "model.safetensors.index.json",
    "model-00001-of-00003.safetensors",
)

Make = Callable[[Path], object]


def changed(**values: Any) -> Make:
    """A JSON file with other values."""

    def make(path: Path) -> None:
        document = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(document | values), encoding="utf-8")

    return make


def inserted(text: str) -> Make:
    """A JSON file with this text before its first key."""
    return lambda path: path.write_text(
        "{" + text + "," + path.read_text(encoding="utf-8")[1:], encoding="utf-8"
    )


def in_model(**values: Any) -> Make:
    """tokenizer.json with other values below `model`."""

    def make(path: Path) -> None:
        document = json.loads(path.read_text(encoding="utf-8"))
        document["model"] |= values
        path.write_text(json.dumps(document), encoding="utf-8")

    return make


def sized(size: int, start: bytes = b"") -> Make:
    """A sparse file of `size` bytes."""

    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.write(start)
            file.truncate(size)

    return make


def tensors(header: object, data: bytes = b"", size: int | None = None) -> bytes:
    """A safetensors file; `size` is the stated size of its header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header(change: Callable[[dict[str, Any]], object]) -> Make:
    """The weights with another header."""

    def make(path: Path) -> None:
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        document = json.loads(content[8:end])
        change(document)
        path.write_bytes(tensors(document, content[end:]))

    return make


def first(name: str, value: Callable[[Any], Any]) -> Make:
    """The weights with another value in the entry of the first tensor."""

    def change(document: dict[str, Any]) -> None:
        one = next(key for key in document if key != "__metadata__")
        document[one][name] = value(document[one][name])

    return header(change)


def added(name: str, shape: tuple[int, ...]) -> Make:
    """The weights with one more tensor, of 0 bytes."""

    def change(document: dict[str, Any]) -> None:
        end = max(one["data_offsets"][1] for key, one in document.items() if key != "__metadata__")
        document[name] = entry("F32", shape, (end, end))

    return header(change)


def placed(shard: Any) -> Make:
    """The index with another shard for the first tensor."""

    def make(path: Path) -> None:
        document = json.loads(path.read_text(encoding="utf-8"))
        document["weight_map"][next(iter(document["weight_map"]))] = shard
        path.write_text(json.dumps(document), encoding="utf-8")

    return make


def misplaced(path: Path) -> None:
    """Write another shard for the first tensor of the index."""
    document = json.loads(path.read_text(encoding="utf-8"))
    shards = document["weight_map"]
    name = next(iter(shards))
    shards[name] = next(shard for shard in shards.values() if shard != shards[name])
    path.write_text(json.dumps(document), encoding="utf-8")


def linked(to: str) -> Make:
    """A link instead of the file, which is moved to `outside`."""

    def make(path: Path) -> None:
        outside = path.parents[1] / "outside"
        outside.mkdir(exist_ok=True)
        if path.is_file():
            shutil.move(path, outside / path.name)
        else:
            (outside / path.name).mkdir()
            (outside / path.name / "secret.jinja").write_text("secret", encoding="utf-8")
        path.symlink_to(to.format(outside=outside / path.name, name=path.name))

    return make


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def piece(text: bytes, score: float = 0.0, kind: int = 1) -> bytes:
    return field(1, field(1, text) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind))


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def evil(name: str) -> dict[str, str]:
    return {name: "evil.Evil"}


def use(folder: Path) -> Any:
    """Load a folder and use it."""
    pipe = trifold.load(folder)
    if pipe.tokenizer is not None and pipe.tokenizer.templates:
        return pipe.tokenizer.chat([{"role": "user", "content": "the fox"}])
    return pipe.generate("the fox", max_new_tokens=2)


# --- audit hook -----------------------------------------------------------------------------------


class Watch:
    """Audit events (PEP 578) while `folder` is set: processes, connections, files outside of it."""

    forbidden = (
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.fork",
        "socket.",
        "pickle.find_class",
    )

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.seen: list[str] = []
        self.own = tuple(
            os.path.realpath(place)
            for place in (
                sys.prefix,
                sys.base_prefix,
                Path(trifold.__file__).parents[2],
                *sys.path,
                "/proc",
                "/dev",
                "/sys",
            )
        )

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        imports = event == "import" and str(arguments[0]).startswith("evil")
        starts = event == "subprocess.Popen" and "sandbox.py" not in str(arguments)
        if event.startswith(self.forbidden) or imports or starts:
            self.seen.append(f"{event} {arguments!r:.200}")
        elif event == "open" and isinstance(arguments[0], (str, bytes)):
            place = os.path.realpath(os.fsdecode(arguments[0]))
            # A temporary file without a name opens its folder.
            unnamed = place == os.path.realpath(tempfile.gettempdir())
            if not unnamed and not place.startswith((str(self.folder.resolve()), *self.own)):
                self.seen.append(f"open {place}")


WATCH = Watch()
sys.addaudithook(WATCH)  # cannot be removed; inactive between tests
