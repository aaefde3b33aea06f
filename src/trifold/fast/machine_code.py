"""The machine code of the interpreter, kept on disk from one process to the next.

Numba needs half a second to be imported and to load what it has compiled before. A process that
finds the machine code of an earlier one loads it without Numba: by `object_code`, or with llvmlite,
which is part of Numba, where that does not know the system. Every process executes the code that is
on disk, also the one that has compiled it. On Windows, where this is not tested, Numba keeps the
code.
"""

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trifold import disk
from trifold.fast.object_code import LoadedCode, load
from trifold.fast.sources import FOLDER, sources_digest

if find_spec("numba") is None:
    raise ImportError("Numba compiles what is not on disk")

SOURCES = (
    *("block_decode", "block_tile", "block_weight", "dot_products", "instruction"),
    *("instruction_sets", "interpreter", "intrinsics", "lanes", "loops", "machine_code"),
    *("panel_tile", "query_tile", "row_code", "row_types", "step_attention", "step_blocks"),
    *("step_embedding", "step_layout", "step_linear", "step_panels", "step_prompt", "step_rows"),
    "vector_code",
)
DIGEST = sha256().digest_size
SYMBOL = "trifold_run_thread"
PYTHON = ("PyMem_RawMalloc", "PyMem_RawFree")
MATH = ("floorf", "sqrtf", "tanhf")
EXTERNAL = {*PYTHON, *MATH, "sched_yield"}  # what the function may call

CPUINFO = Path("/proc/cpuinfo")
CPUINFO_KEYS = ("model name", "flags", "CPU implementer", "CPU part", "Features")

_lock = threading.Lock()


def entry_point() -> int:
    """The address of a C function that executes the work of one thread: `interpreter.run_thread`.

    It is loaded or compiled by the first thread that calls this; others wait for it.
    """
    with _lock:
        return _load().address


def is_on_disk() -> bool:
    """Whether an earlier process has compiled the code, so that this one only loads it."""
    return any((folder / _name()).is_file() for folder in _folders())


@cache
def _load() -> LoadedCode:
    content = _read()
    if content is None:
        compiled = _compile()
        if not isinstance(compiled, bytes):
            return compiled
        content = compiled
        _write(content)
    return load(content, SYMBOL) or _load_with_llvm(content)


# --- with LLVM ------------------------------------------------------------------------------------


def _compile() -> bytes | LoadedCode:
    """The object code of the function; the function if only this process can use it."""
    from trifold.fast.interpreter import compiled, module_of  # imports Numba

    is_windows = os.name == "nt"
    function = compiled(int(_key()[:14], 16), cache=is_windows)
    if is_windows:
        return LoadedCode(function.address, function)
    module = module_of(function, SYMBOL)
    if not _external(module) <= EXTERNAL:  # another version of Numba calls its runtime
        return LoadedCode(function.address, function)
    return bytes(_target_machine().emit_object(module))


def _load_with_llvm(content: bytes) -> LoadedCode:
    import llvmlite.binding as llvm

    machine = _target_machine()
    for name in PYTHON:
        llvm.add_symbol(name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    return LoadedCode(engine.get_function_address(SYMBOL), engine)


def _external(module: Any) -> set[str]:
    """The functions that a module calls and does not contain."""
    declared = {each.name for each in module.functions if each.is_declaration}
    return {name for name in declared if not name.startswith("llvm.")}


def _target_machine() -> Any:
    """This processor, with the options of Numba."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    try:
        features = str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:  # unknown to LLVM
        features = ""
    target = llvm.Target.from_triple(llvm.get_process_triple())
    relocation = "static" if target.name.startswith("x86") else "default"
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=features,
        opt=3,
        reloc=relocation,
        codemodel="jitdefault",
        jit=True,
    )


# --- on disk --------------------------------------------------------------------------------------


def _write(content: bytes) -> None:
    """Write an object file for later processes, if there is a writable folder."""
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            disk.replace_bytes(folder / _name(), sha256(content).digest() + content)
        except OSError:
            continue
        return


def _read() -> bytes | None:
    """The object file that an earlier process has written, if it is whole."""
    for folder in _folders():
        try:
            content = (folder / _name()).read_bytes()
        except OSError:
            continue
        if sha256(content[DIGEST:]).digest() == content[:DIGEST]:
            return content[DIGEST:]
    return None


def _folders() -> Iterator[Path]:
    """Where object files are looked for, and written to the first that is writable: as Numba's."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(chosen)
        return
    yield FOLDER / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "trifold"


def _name() -> str:
    return f"interpreter-{_key()[:32]}.o"


@cache
def _key() -> str:
    """The hash of these sources, libraries and this processor."""
    libraries = (version("numba"), version("llvmlite"), sys.platform)
    parts = (sources_digest(*SOURCES), *libraries, *_processor())
    return sha256("\n".join(parts).encode()).hexdigest()


def _processor() -> list[str]:
    """Its kind, name and instructions."""
    try:
        lines = CPUINFO.read_text("utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        import llvmlite.binding as llvm

        return [platform.machine(), llvm.get_host_cpu_name()]
    known = [line for line in lines if line.partition("\t")[0].rstrip(": ") in CPUINFO_KEYS]
    return [platform.machine(), *known]
