"""Rows of the sets: read from `${TRIFOLD_DATA}`, drawn by a seed, and written as a user has them.

A row is a dictionary: `text`, `pair`, `label` of texts; `words`, `tags`; `question`, `context`,
`answer`, `start`; `source`, `targets`; `image` (bytes of a file, or pixels) and `label`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import outside
from setting import ALL, SETS

Row = dict[str, Any]


class Splits(NamedTuple):
    """All rows of a set. valid: rows for choices, which no system is trained on."""

    train: list[Row]
    valid: list[Row]
    test: list[Row]


def read(name: str) -> Splits:
    """The rows of a set. Where it has no validation rows, some training rows are held out."""
    parts = {split: list(rows) for split, rows in READERS[name]().items()}
    train = parts["train"]
    random.Random(0).shuffle(train)
    most = SETS[name].validation
    if "valid" not in parts:
        train, parts["valid"] = _hold_out(train, most)
    return Splits(train[:ALL], parts["valid"][:most], parts["test"])


def draw(rows: list[Row], count: int, seed: int) -> list[Row]:
    """As many of the rows, another sample for each seed."""
    return random.Random(seed).sample(rows, min(count, len(rows)))


def _hold_out(rows: list[Row], most: int) -> tuple[list[Row], list[Row]]:
    """Rows without, and with the held-out ones: at most a tenth. No context is in both."""
    contexts = list(dict.fromkeys(row.get("context", number) for number, row in enumerate(rows)))
    held_out = set(contexts[: min(most, len(contexts) // 10)])
    parts: tuple[list[Row], list[Row]] = ([], [])
    for number, row in enumerate(rows):
        parts[row.get("context", number) in held_out].append(row)
    return parts


# --- readers --------------------------------------------------------------------------------------


def _file(*parts: str) -> Path:
    return Path(os.environ["TRIFOLD_DATA"], *parts)


def _text(*parts: str) -> str:
    content = _file(*parts).read_bytes()
    if parts[-1].endswith(".gz"):
        content = gzip.decompress(content)
    return content.decode("utf-8")


def _table(*parts: str) -> Iterator[dict[str, str]]:
    """Rows of a file with tabs and a header, without quoting."""
    header, *lines = _text(*parts).rstrip("\n").split("\n")
    names = header.split("\t")
    for line in lines:
        yield dict(zip(names, line.split("\t"), strict=False))


def _sst2() -> dict[str, Iterable[Row]]:
    files = {"train": "train.tsv.gz", "test": "dev.tsv"}
    return {
        split: [
            {"text": row["sentence"].strip(), "label": row["label"]} for row in _table("sst2", file)
        ]
        for split, file in files.items()
    }


def _mrpc() -> dict[str, Iterable[Row]]:
    files = {"train": "train.tsv", "valid": "val.tsv", "test": "test.tsv"}
    return {
        split: [
            {"text": row["#1 String"], "pair": row["#2 String"], "label": row["Quality"]}
            for row in _table("mrpc", file)
        ]
        for split, file in files.items()
    }


def _stsb() -> dict[str, Iterable[Row]]:
    files = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
    return {
        split: [
            {"text": row["sentence1"], "pair": row["sentence2"], "label": row["score"]}
            for row in _table("stsb", file)
        ]
        for split, file in files.items()
    }


def _translations() -> dict[str, Iterable[Row]]:
    from trifold.data.embedded import load_splits

    return {
        split: [
            {"text": row["sentence1"], "pair": row["sentence2"], "label": row["label"]}
            for row in rows
        ]
        for split, rows in load_splits("translations").items()
    }


def _conll() -> dict[str, Iterable[Row]]:
    files = {"train": "train.txt.gz", "valid": "dev.txt", "test": "test.txt"}
    return {split: [*_sentences(_text("conll2003", file))] for split, file in files.items()}


def _sentences(text: str) -> Iterator[Row]:
    for block in text.strip("\n").split("\n\n"):
        columns = [line.split() for line in block.splitlines() if line.strip()]
        yield {
            "words": [column[0] for column in columns],
            "tags": [column[-1] for column in columns],
        }


def _squad() -> dict[str, Iterable[Row]]:
    files = {"train": "train.json.gz", "test": "dev.json"}
    return {split: [*_questions(_text("squad_subset", file))] for split, file in files.items()}


def _questions(text: str) -> Iterator[Row]:
    for article in json.loads(text)["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answer = asked["answers"][0]
                yield {
                    "question": asked["question"],
                    "context": paragraph["context"],
                    "answer": answer["text"],
                    "start": answer["answer_start"],
                }


def _scitldr() -> dict[str, Iterable[Row]]:
    parts = {"train": "train", "valid": "dev", "test": "test"}
    return {
        split: [
            {"source": row["source"], "targets": row["target"]}
            for row in map(json.loads, _text("scitldr_a", f"{file}.jsonl.gz").splitlines())
        ]
        for split, file in parts.items()
    }


def _mnist() -> dict[str, Iterable[Row]]:
    return {split: _digits(file) for split, file in {"train": "train", "test": "t10k"}.items()}


def _digits(name: str) -> list[Row]:
    folder = _file("mnist")
    images = gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes())[8:]
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(len(labels), 28, 28)
    return [
        {"image": image, "label": str(label)} for image, label in zip(pixels, labels, strict=True)
    ]


def _cifar10() -> dict[str, Iterable[Row]]:
    files = {"train": "train_20k.tar.xz", "test": "test_4k.tar.xz"}
    return {split: [*_photos(_file("cifar10_jpeg", file))] for split, file in files.items()}


def _photos(path: Path) -> Iterator[Row]:
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():
                content = archive.extractfile(member)
                assert content is not None
                yield {"image": content.read(), "label": Path(member.name).parent.name}


READERS: dict[str, Callable[[], dict[str, Iterable[Row]]]] = {
    "sst2": _sst2,
    "mrpc": _mrpc,
    "translations": _translations,
    "stsb": _stsb,
    "conll2003": _conll,
    "squad": _squad,
    "scitldr": _scitldr,
    "mnist": _mnist,
    "cifar10": _cifar10,
    **outside.READERS,
}

# --- files ----------------------------------------------------------------------------------------


def write(made_of: str, rows: list[Row], folder: Path, name: str) -> Path:
    """Write rows as a user has them, for commands. Returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    if made_of == "images" and isinstance(rows[0]["image"], np.ndarray):
        return _write_digits(rows, folder, name)
    suffix, write_rows = WRITERS[made_of]
    path = folder / f"{name}{suffix}"
    path.write_bytes(write_rows(rows))
    return path


def _csv(columns: dict[str, str]) -> Callable[[list[Row]], bytes]:
    def write_rows(rows: list[Row]) -> bytes:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([row[key] for key in columns.values()] for row in rows)
        return stream.getvalue().encode()

    return write_rows


def _write_columns(rows: list[Row]) -> bytes:
    blocks = (
        "\n".join(f"{word} {tag}" for word, tag in zip(row["words"], row["tags"], strict=True))
        for row in rows
    )
    return ("\n\n".join(blocks) + "\n").encode()


def _write_questions(rows: list[Row]) -> bytes:
    lines = (
        {
            "question": row["question"],
            "context": row["context"],
            "answers": [{"text": row["answer"], "answer_start": row["start"]}],
        }
        for row in rows
    )
    return _json_lines(lines)


def _write_summaries(rows: list[Row]) -> bytes:
    return _json_lines({"document": row["source"], "summary": row["targets"]} for row in rows)


def _json_lines(rows: Iterable[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _write_photos(rows: list[Row]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for number, row in enumerate(rows):
            member = tarfile.TarInfo(f"images/{row['label']}/{number:05}.jpg")
            member.size = len(row["image"])
            archive.addfile(member, io.BytesIO(row["image"]))
    return stream.getvalue()


def _write_digits(rows: list[Row], folder: Path, name: str) -> Path:
    path = folder / f"{name}-images-idx3-ubyte"
    pixels = np.stack([row["image"] for row in rows])
    path.write_bytes(struct.pack(">IIII", 0x803, *pixels.shape) + pixels.tobytes())
    labels = bytes(int(row["label"]) for row in rows)
    header = struct.pack(">II", 0x801, len(labels))
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(header + labels)
    return path


WRITERS: dict[str, tuple[str, Callable[[list[Row]], bytes]]] = {
    "texts": (".csv", _csv({"text": "text", "label": "label"})),
    "pairs": (".csv", _csv({"sentence1": "text", "sentence2": "pair", "label": "label"})),
    "numbers": (".csv", _csv({"sentence1": "text", "sentence2": "pair", "score": "label"})),
    "ratings": (".csv", _csv({"text": "text", "score": "label"})),
    "words": (".txt", _write_columns),
    "classes of words": (".txt", _write_columns),
    "questions": (".jsonl", _write_questions),
    "summaries": (".jsonl", _write_summaries),
    "images": (".tar", _write_photos),
}
