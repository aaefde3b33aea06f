"""One module opens what is read, `trifold.folders`: elsewhere a link out of a folder, a named pipe
or a device could be opened. This is a rule of `make check`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src" / "trifold"
ONE_MODULE = "folders.py"
# What opens a file by its name; as a method, a function of a module, or imported from one.
OPENERS = frozenset(
    """
    open open_code fdopen FileIO read_text read_bytes safe_open load_file deserialize_file
    fromfile memmap loadtxt genfromtxt ZipFile is_zipfile TarFile ParquetFile read_table read_csv
    read_parquet from_file from_pretrained LoadFromFile
    """.split()
)
FUNCTIONS_OF = {"load": ("np", "numpy", "torch"), "Load": ("processor",)}
# What a source with an opener contains; most files do not, and are not parsed.
TEXT = re.compile(
    rf"\b(?:{'|'.join(sorted(OPENERS))})\b"
    + "".join(rf"|\b(?:{'|'.join(bases)})\s*\.\s*{name}\b" for name, bases in FUNCTIONS_OF.items())
)
OWN = "a file of this package or of Python"
SYSTEM = "a file of the system, in /proc or /sys"
OUTPUT = "writes, or makes a written file durable"
STREAM = "opens a stream that `folders` has opened"
# File and function -> why it may open something.
ALLOWED = {
    "text/sentences.py:read_language": OWN,
    "recipe.py:included_recipes": OWN,
    "recipe.py:_read": OWN,
    "hub/presets.py:": OWN,
    "hub/unknown_keys.py:reference_keys": OWN,
    "look/page.py:page": OWN,
    "look/walkthrough.py:teaching_model": OWN,
    "data/embedded.py:phrasebook": OWN,
    "data/catalog.py:datasets": OWN,
    "fast/sources.py:sources_digest": OWN,
    "fast/machine_code.py:_processor": SYSTEM,
    "fast/machine_code.py:_read": "what an earlier process has written, with its digest",
    "cli/checks.py:processor_name": SYSTEM,
    "cli/checks.py:usable_cores": SYSTEM,
    "cli/speed.py:clock_gigahertz": SYSTEM,
    "installation.py:_declared": OWN,
    "fast/matmul.py:processor_family": SYSTEM,
    "fast/processor.py:_linux_flags": SYSTEM,
    "memory.py:_read_text": SYSTEM,
    "sandbox.py:_used_memory": SYSTEM,
    "fast/openmp.py:adapt_to_contention": SYSTEM,
    "sandbox.py:_serve": OUTPUT,
    "cli/__init__.py:main": OUTPUT,
    "disk.py:flush_path": OUTPUT,
    "disk.py:flush_folder": OUTPUT,
    "cli/arrays_output.py:": OUTPUT,
    "cli/arrays_output.py:write_arrays": OUTPUT,
    "cli/arrays_output.py:_member": OUTPUT,
    "data/image_sets.py:_iter_tar": STREAM,
    "data/images.py:_open": STREAM,
    "data/archives.py:_open_member": STREAM,
    "data/token_cache.py:MappedArray.__init__": STREAM,
    "data/archives.py:Archive": "names a type",
    "data/archives.py:_find": "names a type",
    "data/archives.py:_open_unchanged": "the library seeks in it; `check_regular` has seen it",
    "data/excel.py:_check_size": STREAM,
    "data/parquet.py:_open_parquet": "the library maps it; `check_regular` has seen it",
    "hub/tensors.py:": "imports what `_check_positions` uses",
    "hub/tensors.py:_check_positions": "the library maps it; compared with the file that is read",
    "hub/pickle_handler.py:read": "the sandbox, in which the path of an opened file arrives",
    "data/download.py:_attempt": OUTPUT,
    "data/download.py:_request": "opens a URL",
    "cli/look.py:_open_page.ready": "opens a browser",
    "text/streaming.py:TextStream.__init__": "an argument of this name",
    "train/preparation.py:Preparation._open_folder": "a method of RunFolder",
    "train/folds.py:_open": "a method of RunFolder",
}


def find_openers(source: str) -> Iterator[tuple[str, int, str]]:
    """The function, the line and the name of each use of an opener that may read."""
    if TEXT.search(source):
        yield from _find(ast.parse(source), "")


def _find(node: ast.AST, function: str) -> Iterator[tuple[str, int, str]]:
    if isinstance(node, ast.Call) and _only_writes(node):
        children: list[ast.AST] = [*node.args, *node.keywords]
    else:
        children = [*ast.iter_child_nodes(node)]
        if (name := _opener(node)) is not None:
            yield function, getattr(node, "lineno", 0), name
    for child in children:
        inside = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{function}.{child.name}".strip(".")
        yield from _find(child, inside)


def _opener(node: ast.AST) -> str | None:
    """The name of the opener that a node refers to."""
    if isinstance(node, ast.ImportFrom) and not str(node.module).startswith("trifold"):
        return next((alias.name for alias in node.names if alias.name in OPENERS), None)
    if isinstance(node, ast.Name) and node.id in ("open", "safe_open", "load_file", "ZipFile"):
        return node.id
    if not isinstance(node, ast.Attribute):
        return None
    base = getattr(node.value, "id", "")
    if node.attr in OPENERS or base in FUNCTIONS_OF.get(node.attr, ()):
        return node.attr
    return None


def _only_writes(call: ast.Call) -> bool:
    """Whether a call of an opener has a constant mode of writing or appending."""
    modes = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant)]
    is_open = getattr(call.func, "attr", getattr(call.func, "id", "")) == "open"
    return is_open and any(text in ("w", "wb", "ab", "a", "x", "xb") for text in texts)


def test_one_module_opens_files() -> None:
    found: dict[str, list[str]] = {}
    for file in sorted(SOURCES.rglob("*.py")):
        place = file.relative_to(SOURCES).as_posix()
        if place != ONE_MODULE:
            for function, line, name in find_openers(file.read_text("utf-8")):
                found.setdefault(f"{place}:{function}", []).append(f"{place}:{line}: {name}")
    others = [use for key, uses in found.items() if key not in ALLOWED for use in uses]
    assert not others, f"open it with trifold.folders, or name it in ALLOWED: {others}"
    assert not ALLOWED.keys() - found.keys(), "these open nothing any longer: remove them"


@pytest.mark.parametrize(
    "planted",
    [
        "open(path)",
        "open(path, 'r+b')",
        "path.open()",
        "path.open('rb')",
        "(folder / 'recipe.yaml').read_text('utf-8')",
        "list(map(Path.read_bytes, files))",
        "os.open(path, flags)",
        "io.open(path)",
        "np.load(path)",
        "torch.load(path, weights_only=True)",
        "from safetensors.torch import load_file",
        "from safetensors import safe_open as look_into",
        "Tokenizer.from_file(path)",
        "tarfile.open(path)",
        "zipfile.ZipFile(path)",
        "np.memmap(path)",
        "processor.Load(path)",
        "gzip.open(path, mode=mode)",
    ],
)
def test_an_opener_is_found(planted: str) -> None:
    source = f"def outer():\n    def inner():\n        {planted}\n"
    assert [(function, line) for function, line, _ in find_openers(source)] == [("outer.inner", 3)]


@pytest.mark.parametrize(
    "harmless",
    ["read_text(path, limit)", "path.open('wb')", "open(path, mode='ab')", "json.loads(text)"],
)
def test_writing_and_the_functions_of_folders_are_no_openers(harmless: str) -> None:
    assert not [*find_openers(harmless)]
