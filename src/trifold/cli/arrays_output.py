"""The output of `trifold predict` as arrays: an .npz file with the vectors of texts or tokens."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from trifold import disk
from trifold.cli.predictor import Predictor
from trifold.cli.tables import Input
from trifold.errors import DataError, UsageError
from trifold.predict.features import Features, check_layer

TASKS = ("features", "embed")  # whose predictions are vectors

Predictions = Iterable[tuple[Input, Any]]


def check_arrays(out: Path, predictor: Predictor) -> None:
    """Raises UsageError for a task whose predictions are no vectors."""
    if predictor.task not in TASKS:
        raise UsageError(
            f"--out {out}: arrays are written by the tasks {' and '.join(TASKS)}, not by "
            f"{predictor.task}; name another format"
        )


def write_arrays(out: Path, predictor: Predictor, predictions: Predictions) -> int:
    """Write the vectors of all inputs, and return the number of inputs. Memory does not depend on
    the number of vectors. Raises DataError if there is no input.
    """
    if out.is_symlink():  # which stays
        out = out.resolve()
    part = out.with_name(f"{out.name}.part")
    with disk.exclusive(out), TemporaryFile(dir=out.parent) as vectors:
        try:
            arrays = _collect(predictor, predictions, vectors)
            with ZipFile(part, "w", ZIP_STORED) as archive:
                with _member(archive, "vectors") as member:
                    _write_vectors(member, vectors, arrays.pop("shape"))
                for name, values in arrays.items():
                    with _member(archive, name) as member:
                        npy.write_array(member, np.asarray(values), allow_pickle=False)
            disk.rename(part, out)
        finally:
            disk.remove(part)
    return len(arrays["offsets"]) - 1


def _collect(predictor: Predictor, predictions: Predictions, file: BinaryIO) -> dict[str, Any]:
    """Write the vectors of all inputs to a file; -> the other arrays, and the `shape` of the
    vectors. An input without content has no token, and NaN as the vector of the whole.
    """
    has_tokens = predictor.task == "features"
    width = 0
    ends = [0]
    pooled = list[Any]()
    tokens = list[str]()
    ids = list[int]()
    spans = list[tuple[int, int]]()
    for _, prediction in predictions:
        count = 0
        if isinstance(prediction, Features):
            vectors = prediction.vectors.numpy()
            pooled.append(prediction.pooled.numpy())
            tokens += prediction.tokens
            ids += prediction.ids
            spans += [span or (-1, -1) for span in prediction.spans]
        elif prediction is not None:
            vectors = prediction.numpy()[None]
        else:
            pooled.append(None)
            ends.append(ends[-1])
            continue
        count, width = vectors.shape
        disk.put(file, np.ascontiguousarray(vectors, np.float32).tobytes())
        ends.append(ends[-1] + count)
    if not ends[-1]:
        raise DataError("no input has a text; nothing is written")
    arrays: dict[str, Any] = {"shape": (ends[-1], width), "offsets": np.array(ends, np.int64)}
    if has_tokens:
        blank = np.full(width, np.nan, np.float32)
        arrays |= {
            "tokens": np.array(tokens, np.str_),
            "ids": np.array(ids, np.int64),
            "spans": np.array(spans, np.int64).reshape(-1, 2),
            "sentences": np.stack([blank if one is None else one for one in pooled]),
            "layer": np.int64(check_layer(predictor.config, predictor.options["layer"])),
        }
    return arrays


@contextmanager
def _member(archive: ZipFile, name: str) -> Iterator[Any]:
    """A file of the archive; it may be larger than 2 GiB."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        yield member


def _write_vectors(member: Any, vectors: BinaryIO, shape: tuple[int, int]) -> None:
    """Copy the vectors with the header of an array of this shape."""
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    npy.write_array_header_2_0(member, header)
    vectors.seek(0)
    shutil.copyfileobj(vectors, member)


def cosines(vectors: list[NDArray[np.float32]]) -> NDArray[np.float64]:
    """The cosine of each two of some vectors (N, N)."""
    rows = np.stack(vectors).astype(np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return np.asarray(rows @ rows.T)
