"""Damaged GGUF files: seeded mutations of valid ones are opened, and all but errors for users
counted.

python -m tests.hub.gguf.hostile                     300 files
python -m tests.hub.gguf.hostile --files 10000       as `make faults`
python -m tests.hub.gguf.hostile --only 77           one file again, with its traceback

The addresses of this process are limited, and a file that is read beyond its end stops it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
from tests.hub.gguf import vocabularies
from tests.hub.gguf.vocabularies import Vocabulary
from tests.hub.gguf.writing import CASES, Case, Types

from trifold.errors import TrifoldError
from trifold.folders import named
from trifold.hub import load_model, read_config, resolve
from trifold.hub.gguf.file_format import _map, _Reader
from trifold.pipeline import Pipeline
from trifold.text.folder import read_tokenizers

SECONDS = 5.0  # of processor time for one file
BYTES = 2**30  # of addresses above those at the start
EXTREME = (0, 1, 2, 3, 5, 7, 31, 33, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**33, 2**61, 2**63 - 1,
           2**63, 2**64 - 32, 2**64 - 1)  # fmt: skip
VALID: dict[str, tuple[str, Callable[[], Vocabulary], Types]] = {
    "llama": ("llama", vocabularies.sentences, Types.Q8_0),
    "byte-level": ("llama 3", vocabularies.byte_level, Types.Q4_0),
    "experts": ("mixtral", vocabularies.byte_level, Types.F16),
    "gemma3": ("gemma3", vocabularies.sentences, Types.BF16),
    "gpt2": ("gpt2", vocabularies.byte_level, Types.F32),
    "bert": ("bert", vocabularies.wordpiece, Types.F32),
    "t5": ("t5, gated, untied", lambda: vocabularies.sentences("unigram"), Types.Q5_0),
}


def valid(name: str, folder: Path) -> bytes:
    """The content of a valid file with a tokenizer."""
    case_name, vocabulary, kind = VALID[name]
    case: Case = CASES[case_name]
    made = vocabulary()
    case = replace(
        case,
        options=case.options | {"vocab_size": made.size},
        keys=lambda config: CASES[case_name].keys(config) | made.keys,
    )
    return case.write(folder / "valid.gguf", case.model(), kind).read_bytes()


class _Recorder(_Reader):
    """A reader that records where it reads what."""

    def __init__(self, path: Path) -> None:
        super().__init__(named(path), _map(named(path)))
        self.reads: list[tuple[int, int]] = []

    def take(self, count: int, what: str) -> bytes:
        self.reads.append((self.at, count))
        return super().take(count, what)


def fields_of(path: Path) -> tuple[list[tuple[int, int]], int]:
    """The numbers of a valid file, each with its bytes, and the end of the table of tensors."""
    reader = _Recorder(path)
    tensors, keys = reader.header()
    reader.table(tensors, reader.metadata(keys))
    return [(at, size) for at, size in reader.reads if size in (1, 4, 8)], reader.at


# --- mutations ------------------------------------------------------------------------------------


def mutate(draw: Random, content: bytes, fields: list[tuple[int, int]], head: int) -> bytes:
    """The content with one to three changes. head: the end of the table of tensors."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        content = draw.choice(MUTATIONS)(draw, content, fields, head)
    return content


Fields = list[tuple[int, int]]


def _number(draw: Random, content: bytes, fields: Fields, head: int) -> bytes:
    """Another value of a number: a count, a length, a type, an axis, an offset, a value."""
    at, size = draw.choice(fields)
    old = int.from_bytes(content[at : at + size], "little")
    new = draw.choice((*EXTREME, old + 1, old - 1, old * 2, old // 2, old ^ 1 << draw.randrange(8)))
    return content[:at] + (new % 2 ** (8 * size)).to_bytes(size, "little") + content[at + size :]


def _float(draw: Random, content: bytes, fields: Fields, head: int) -> bytes:
    at, size = draw.choice([field for field in fields if field[1] == 4])
    value = draw.choice((float("nan"), float("inf"), -1.0, 0.0, 1e30, 1e-30))
    return content[:at] + struct.pack("<f", value) + content[at + size :]


def _swap(draw: Random, content: bytes, fields: Fields, head: int) -> bytes:
    (one, size), (other, _) = draw.sample([field for field in fields if field[1] == 8], 2)
    changed = bytearray(content)
    changed[one : one + size] = content[other : other + size]
    changed[other : other + size] = content[one : one + size]
    return bytes(changed)


def _flip(draw: Random, content: bytes, fields: Fields, head: int) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 2, 8, 64))):
        place = draw.randrange(min(head, len(changed)) or 1)
        if place < len(changed):
            changed[place] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _data(draw: Random, content: bytes, fields: Fields, head: int) -> bytes:
    """Other bytes in the tensors, such as scales that are not finite."""
    if len(content) <= head:
        return content
    at = draw.randrange(head, len(content))
    new = draw.choice((b"\xff" * 400, b"\0" * 400, b"\x00\x7c" * 200, draw.randbytes(400)))
    return (content[:at] + new + content[at + len(new) :])[: len(content)]


def _cut(draw: Random, content: bytes, fields: Fields, head: int) -> bytes:
    return content[: draw.randrange(draw.choice((head, len(content))) + 1)]


def _insert(draw: Random, content: bytes, fields: Fields, head: int) -> bytes:
    at = draw.randrange(head)
    return content[:at] + draw.randbytes(draw.choice((1, 4, 8, 100))) + content[at:]


def _delete(draw: Random, content: bytes, fields: Fields, head: int) -> bytes:
    at = draw.randrange(head)
    return content[:at] + content[at + draw.choice((1, 4, 8, 100)) :]


def _repeat(draw: Random, content: bytes, fields: Fields, head: int) -> bytes:
    """A part of the header again, over another part."""
    size = draw.choice((8, 40, 300))
    one, other = draw.randrange(head), draw.randrange(head)
    return content[:other] + content[one : one + size] + content[other + size :]


def _word(draw: Random, content: bytes, fields: Fields, head: int) -> bytes:
    """Another text of the same length, so that the file stays whole."""
    words = {
        b"llama": b"bert\0", b"gpt2": b"bert", b"token_type": b"token_typo", b".scores": b".merges",
        b"blk.0": b"blk.9", b"attn_q.": b"attn_k.", b"head_count": b"head_cuont", b"<unk>": b"</s>\0",
        b"ffn_up": b"ffn_xx", b"default": b"deepsek", b"output_norm": b"token_embd.", b"<0x0A>": b"<0x-1>",
    }  # fmt: skip
    found = [word for word in words if word in content]
    if not found:
        return content
    word = draw.choice(found)
    start = content.find(word, draw.randrange(head))
    start = content.find(word) if start < 0 else start
    return content[:start] + words[word] + content[start + len(word) :]


MUTATIONS = [_number, _number, _number, _number, _float, _swap, _flip, _data, _cut, _insert,
             _delete, _repeat, _word, _word]  # fmt: skip


# --- trials ---------------------------------------------------------------------------------------


def open_file(path: Path) -> None:
    """Use the file as commands do."""
    folder = resolve(str(path))
    read_config(folder)
    reader, writer = read_tokenizers(folder)
    model, generation = load_model(folder)
    pipeline = Pipeline(model, reader, writer, generation)
    if reader is not None:
        reader.decode(reader.encode(["The quick <tool> fox 1998 ½"]))
    with torch.no_grad():
        pipeline.hidden_states(torch.tensor([[1, 2, 3]]) % pipeline.config.vocab_size)


def outcome(path: Path) -> str:
    """ "read", "refused", or the fault."""
    start = time.process_time()
    try:
        open_file(path)
        result = "read"
    except TrifoldError as error:
        result = "refused" if str(error).strip() else "no message"
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"[:200]
    if time.process_time() - start > SECONDS:
        result = f"{time.process_time() - start:.1f} s"
    return result


def run(words: Sequence[str] | None = None) -> int:
    """Parse the words of the command line and open the files; 0 if none is faulty."""
    parser = argparse.ArgumentParser(prog="python -m tests.hub.gguf.hostile")
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this file, with its traceback")
    chosen = parser.parse_args(words)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        return _run(chosen, Path(scratch))


def _run(chosen: argparse.Namespace, scratch: Path) -> int:
    contents = {name: valid(name, scratch) for name in VALID}
    tables = {}
    path = scratch / "a.gguf"
    for name, content in contents.items():
        path.write_bytes(content)
        tables[name] = fields_of(path)
        assert outcome(path) == "read", (name, outcome(path))
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = used * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    counts = Counter[str]()
    faults = []
    numbers = range(chosen.files) if chosen.only is None else [chosen.only]
    for number in numbers:
        draw = Random(f"{chosen.seed} {number}")
        name = draw.choice([*VALID])
        path.unlink()
        path.write_bytes(mutate(draw, contents[name], *tables[name]))
        if chosen.only is not None:
            try:
                open_file(path)
            except BaseException:
                traceback.print_exc()
        print(number, file=sys.stderr, end="\r")  # of a file that stops the process
        found = outcome(path)
        counts[found if found in ("read", "refused") else "fault"] += 1
        if found not in ("read", "refused"):
            faults.append({"number": number, "kind": name, "fault": found})
    print(json.dumps({"counts": dict(counts), "faults": faults}))
    return int(bool(faults))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(run())
