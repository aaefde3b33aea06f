"""Pickled weights of old folders that the user trusts: converted to safetensors in a sandbox
process.

Even `weights_only` had vulnerabilities (CVE-2025-32434, CVE-2026-24747), so it runs in
`pickle_handler`, with little memory and time, without our state, and returns nothing but files that
hold no code.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from trifold.errors import CheckpointError
from trifold.folders import AnyPath, UntrustedPath, named, open_file
from trifold.hub.tensors import TensorFile, renamed_tensors
from trifold.hub.weights import PICKLE, PICKLE_INDEX, open_shards, read_index
from trifold.sandbox import Sandbox, SandboxError, SandboxStartError

SHARD_NAME = re.compile(r"[\w-][\w.-]*\.bin", re.ASCII)
_TIMEOUT = 60.0  # seconds, and more for a large file
_SPEED = 10 * 10**6  # bytes per second that the slowest disk reads and writes
_MEMORY = 512 * 2**20  # bytes, and three times the size of the file


def read_pickles(
    folder: AnyPath, scratch: Path, *, timeout: float | None = None
) -> Mapping[str, Tensor]:
    """The tensors of `pytorch_model.bin`, or of the shards of its index, converted to files in
    `scratch`.

    Tied tensors are stored once. Raises CheckpointError if there are none, if a file holds anything
    but tensors by name, and if reading one takes more than `timeout` seconds (by default, what its
    size explains) or more memory than its size explains.
    """
    folder = named(folder)
    listed: dict[str, str] | None = None
    if (folder / PICKLE).exists():
        shards = [PICKLE]
    elif (folder / PICKLE_INDEX).exists():
        listed = read_index(folder / PICKLE_INDEX, SHARD_NAME)
        shards = sorted(set(listed.values()))
    else:
        raise CheckpointError(
            f"{folder}: no {PICKLE} and no {PICKLE_INDEX}; is this the folder of a model?"
        )
    files = [folder / shard for shard in shards]
    if missing := [file.name for file in files if not file.exists()]:
        raise CheckpointError(
            f"{folder}: {', '.join(missing)}: no such file, though the index names it"
        )
    for file in files:
        open_file(file).close()  # the sandbox opens what is a regular file of this folder
    environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    converted: dict[UntrustedPath, Mapping[str, Tensor]] = {}
    with Sandbox(Path(__file__).with_name("pickle_handler.py"), environment) as sandbox:
        for number, file in enumerate(files):
            output = scratch / f"{number:05d}.safetensors"
            converted[file] = _convert(sandbox, file, output.resolve(), timeout)
    if listed is not None:
        return open_shards(folder / PICKLE_INDEX, listed, converted.__getitem__)
    return converted[files[0]]


def _convert(
    sandbox: Sandbox, file: UntrustedPath, output: Path, timeout: float | None
) -> Mapping[str, Tensor]:
    """The tensors of one pickle. The answer of the sandbox is not trusted."""
    source = file.target()
    size = source.stat().st_size
    request = {"file": str(source), "output": str(output)}
    try:
        seconds = timeout or _TIMEOUT + size / _SPEED
        answer = sandbox.request(request, timeout=seconds, memory=3 * size + _MEMORY)
    except SandboxStartError as error:
        raise CheckpointError(f"{file}: {error}") from None
    except SandboxError as error:
        raise CheckpointError(
            f"{file}: reading was stopped: {error}; do not trust this file"
        ) from None
    if "error" in answer:
        raise CheckpointError(f"{file}: {answer['error']!s}")
    tensors = TensorFile(output)
    tied = answer.get("tied")
    if not isinstance(tied, dict) or not all(
        isinstance(v, str) and v in tensors for v in tied.values()
    ):
        raise CheckpointError(f"{file}: the sandbox gave an invalid answer; do not trust this file")
    names = {name: name for name in tensors} | tied
    return renamed_tensors({new: (tensors, old) for new, old in names.items()})
