"""The machine code of the interpreter passes from one process to the next."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trifold.fast import decoding_step
from trifold.nn import Inputs, Transformer

pytest.importorskip("numba", reason="the interpreter needs numba: `make setup` installs it")
from numba import carray, cfunc, types

from trifold.fast import interpreter, machine_code, object_code
from trifold.fast.object_code import LoadedCode

HAS_LOADER = sys.platform == "linux" and platform.machine() == "x86_64"
POINTER = types.void(types.CPointer(types.int64))


def add_two(job: Any) -> None:
    fields = carray(job, 1)
    fields[0] += 2


def add_with_the_runtime_of_numba(job: Any) -> None:
    fields = carray(job, 1)
    copies = np.empty(fields[0], np.int64)
    copies[:] = 1
    fields[0] += copies.sum()


def call(loaded: LoadedCode, number: int) -> int:
    job = np.array([number])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(loaded.address)(job.ctypes.data)
    return int(job[0])


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], LoadedCode]:
    """Loads as a process does that has this function for the interpreter; None: cannot compile."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "new"))

    def load(function: Any) -> LoadedCode:
        monkeypatch.setattr(
            interpreter, "compiled", function and (lambda *_, **__: cfunc(POINTER)(function))
        )
        return machine_code._load.__wrapped__()

    return load


def test_what_one_process_compiles_others_find_on_disk(
    tmp_path: Path, load: Callable[[Any], LoadedCode]
) -> None:
    assert call(load(add_two), 5) == 7
    assert call(load(None), 6) == 8
    (file,) = (tmp_path / "new").iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(TypeError):  # damaged: it compiles again
        load(None)


def test_both_ways_to_load_code_give_the_same_function(load: Callable[[Any], LoadedCode]) -> None:
    load(add_two)
    content = machine_code._read()
    assert content is not None
    assert call(machine_code._load_with_llvm(content), 5) == 7
    loaded = object_code.load(content, machine_code.SYMBOL)
    if HAS_LOADER:
        assert loaded is not None and call(loaded, 5) == 7


@pytest.mark.skipif(not HAS_LOADER, reason="LLVM loads the code of this system")
def test_code_that_is_not_understood_is_left_to_llvm(load: Callable[[Any], LoadedCode]) -> None:
    load(add_two)
    content = machine_code._read()
    assert content is not None
    header = np.frombuffer(content, object_code.HEADER, 1)
    count, start = int(header["section_count"][0]), int(header["sections"][0])

    def loaded(field: str, value: int, kind: int | None = None) -> LoadedCode | None:
        """The code after a field of its loaded sections, or of those of a kind, has changed."""
        changed = bytearray(content)
        sections = np.frombuffer(changed, object_code.SECTION, count, start)
        chosen = sections["flags"] & object_code.LOADED > 0
        if kind is not None:
            chosen = sections["kind"] == kind
        sections[field][chosen] |= value
        return object_code.load(bytes(changed), machine_code.SYMBOL)

    assert loaded("flags", 0) is not None
    assert loaded("flags", object_code.WRITABLE) is None
    assert loaded("kind", 2**30, object_code.SYMBOLS) is None
    assert object_code.load(content, "another_name") is None
    assert object_code.load(b"\x7fOTHER" + content[6:], machine_code.SYMBOL) is None


@pytest.mark.skipif(not HAS_LOADER, reason="LLVM loads the code of this system")
def test_addresses_and_distances_are_written_where_code_reads_them(
    load: Callable[[Any], LoadedCode],
) -> None:
    load(add_two)
    content = machine_code._read()
    assert content is not None
    loader = object_code._Loader(content)
    symbol = next(
        number
        for number, each in enumerate(loader.symbols)
        if loader._name(each) == machine_code.SYMBOL
    )
    start, base = 64, 2**40
    loader.starts[int(loader.symbols[symbol]["section"])] = 16
    address = loader._address(loader.symbols[symbol], base)
    kinds = (object_code.ABSOLUTE_64, object_code.RELATIVE_64, *object_code.RELATIVE_32)
    entries = np.zeros(len(kinds), object_code.RELOCATION)
    entries["kind"], entries["symbol"] = kinds, symbol
    entries["offset"] = [3, 16, 24, 28]
    entries["addend"] = [5, -7, -4, 9]
    memory = np.zeros(128, np.uint8)
    loader._relocate(entries, memory, start, base)
    for offset, kind, _, addend in entries.tolist():
        size = 4 if kind in object_code.RELATIVE_32 else 8
        place = start + offset
        written = int.from_bytes(bytes(memory[place : place + size]), "little", signed=True)
        is_relative = kind != object_code.ABSOLUTE_64
        assert written == address + addend - is_relative * (base + place)
    for name, value in (("kind", 99), ("addend", 2**40)):
        changed = entries.copy()
        changed[name][2] = value
        with pytest.raises(object_code.UnsupportedCode):
            loader._relocate(changed, memory, start, base)


def test_code_that_needs_the_runtime_of_numba_is_not_written(
    tmp_path: Path, load: Callable[[Any], LoadedCode]
) -> None:
    assert call(load(add_with_the_runtime_of_numba), 5) == 10
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_process_that_finds_the_code_does_not_import_a_compiler() -> None:
    machine_code.entry_point()
    compilers = {"numba", "llvmlite"} if HAS_LOADER else {"numba"}
    code = (
        "import sys; from trifold.fast import machine_code; machine_code.entry_point(); "
        f"sys.exit(not {compilers}.isdisjoint(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.usefixtures("no_minimum_sizes")
def test_only_a_call_that_computes_steps_loads_the_code(
    make_model: Callable[..., Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(decoding_step, "prepare_interpreter", lambda: started.append("started"))
    model = make_model(shape="decoder")
    prompt = Inputs(torch.ones(1, 40, dtype=torch.long))
    with torch.no_grad():
        model(prompt)
        assert not started, "no steps follow a pass without a cache"
        model.decode(prompt, cache=model.new_cache())
        assert started == ["started"]
        monkeypatch.setattr(decoding_step, "MIN_WEIGHTS", 10**9)
        model.decode(prompt, cache=model.new_cache())
    assert started == ["started"], "a small model does not need it"
