"""Mutations of a folder in memory: of JSON and weights, of bytes, of the layout, and costly content.

Each takes random numbers, the tree and the name of a file, and returns what it did, or None if it
does not apply."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import yaml
from tests.hostile import json_values
from tests.hostile.json_values import CANARY
from tests.hub.forging import piece, split, tensors, varint

SECRET = "secret.txt"


class Special(NamedTuple):
    """What is not a plain file: a link (to `argument`), fifo, socket, folder, or sparse file of
    `argument` bytes."""

    kind: str
    argument: Any = None


@dataclass
class Tree:
    """The files of a trial by path, and those outside; a string is a link. opened: the folder that
    is opened."""

    files: dict[str, Any]
    opened: str
    outside: dict[str, bytes] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Files with content, below the folder that is opened more often than beside it."""
        return [name for name, content in self.files.items() if isinstance(content, bytes)]


Mutation = Callable[[Random, Tree, str], str | None]

# --- JSON, YAML and weights -----------------------------------------------------------------------


def mutate_json(draw: Random, tree: Tree, name: str) -> str | None:
    """A value or a key of a JSON or YAML file, or of a line of a file of JSON lines."""
    content = tree.files[name]
    if name.endswith(".jsonl"):
        lines = content.split(b"\n")
        spot = draw.randrange(max(1, len(lines) - 1))
        with suppress(ValueError, RecursionError):
            new, what = json_values.mutate(draw, json.loads(lines[spot]))
            tree.files[name] = b"\n".join([*lines[:spot], new, *lines[spot + 1 :]])
            return f"line {spot + 1}: {what}"
        return None
    document = _document(name, content)
    if not isinstance(document, (dict, list)):
        return None
    tree.files[name], what = json_values.mutate(draw, document)
    return what


def _document(name: str, content: bytes) -> Any:
    with suppress(ValueError, RecursionError, yaml.YAMLError):
        if name.endswith(".json"):
            return json.loads(content)
        if name.endswith(".yaml"):
            return yaml.safe_load(content)
    return None


def mutate_header(draw: Random, tree: Tree, name: str) -> str | None:
    """The header of a safetensors file."""
    parts = _safetensors(name, tree.files[name])
    if parts is None:
        return None
    header, data = parts
    names = [key for key in header if key != "__metadata__"]
    if not names:
        return None
    one = draw.choice(names)
    kind = draw.choice(list(_HEADERS))
    content, what = _HEADERS[kind](draw, header, data, one)
    tree.files[name] = content
    return f"{one}: {what}"


def _safetensors(name: str, content: bytes) -> tuple[dict[str, Any], bytes] | None:
    if not name.endswith(".safetensors"):
        return None
    with suppress(ValueError, RecursionError):
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        if isinstance(header, dict) and all(isinstance(one, dict) for one in header.values()):
            return header, content[end:]
    return None


Header = dict[str, Any]
Weights = tuple[bytes, str]


def _header_json(draw: Random, header: Header, data: bytes, one: str) -> Weights:
    text, what = json_values.mutate(draw, header)
    return tensors(text, data), what


def _header_entry(draw: Random, header: Header, data: bytes, one: str) -> Weights:
    entry = dict(header[one])
    shape = entry.get("shape") or [1]
    begin, end = (entry.get("data_offsets") or [0, 4])[:2]
    spot = draw.randrange(len(shape))
    new = draw.choice(
        (
            {"shape": shape[::-1]}, {"shape": [*shape, 1]}, {"shape": [1, *shape]}, {"shape": shape[1:]},
            {"shape": [*shape[:spot], shape[spot] + 1, *shape[spot + 1 :]]}, {"shape": [*shape[:spot], 0, *shape[spot + 1 :]]},
            {"shape": [2**40, 2**30, *shape]}, {"shape": [-1, *shape[1:]]}, {"shape": []}, {"shape": [1] * 10_000},
            {"dtype": "F16"}, {"dtype": "BF16"}, {"dtype": "F64"}, {"dtype": "I64"}, {"dtype": "I32"}, {"dtype": "U8"},
            {"dtype": "BOOL"}, {"dtype": "F8_E4M3"}, {"dtype": "F4"}, {"dtype": "C64"}, {"dtype": "evil"}, {"dtype": 7},
            {"data_offsets": [begin + 4, end]}, {"data_offsets": [begin, end - 4]}, {"data_offsets": [end, begin]},
            {"data_offsets": [begin + 2**40, end + 2**40]}, {"data_offsets": [0, 2**64 - 1]}, {"data_offsets": [0, end - begin]},
            {"data_offsets": [begin]}, {"data_offsets": None}, {"shape": None}, {"evil": 1},
        )
    )  # fmt: skip
    return tensors({**header, one: entry | new}, data), f"{new}"[:80]


def _cast(draw: Random, header: Header, data: bytes, one: str) -> Weights:
    """Other numbers of the same type, in the place of the old ones."""
    begin, end = header[one]["data_offsets"]
    value = draw.choice((float("nan"), float("inf"), -float("inf"), 3e38, 1e-45, 0.0, 1e30, -1.0))
    some = draw.random() < 0.5
    content = bytearray(data)
    if some:
        spot = begin + 4 * draw.randrange(max(1, (end - begin) // 4))
        content[spot : spot + 4] = struct.pack("<f", value)
    else:
        content[begin:end] = (struct.pack("<f", value) * ((end - begin) // 4 + 1))[: end - begin]
    return tensors(header, bytes(content)), f"{'one number' if some else 'all numbers'} {value}"


def _names(draw: Random, header: Header, data: bytes, one: str) -> Weights:
    """A tensor under another name, or missing, or of another tensor."""
    others = [name for name in header if name != "__metadata__"]
    other = draw.choice(others)
    parts = one.split(".")
    digit = next((n for n, part in enumerate(parts) if part.isdigit()), None)
    renamed = draw.choice(
        ("evil", f"{one}.x", one.upper(), "", "\x1b[2J", f"model.{one}", one.replace(".", "_"))
    )
    if digit is not None and draw.random() < 0.5:
        parts[digit] = str(draw.choice((99, 10**6, 10**30, "-1", "01", "٣", int(parts[digit]) + 1)))
        renamed = ".".join(parts)
    kind = draw.choice(("rename", "delete", "swap", "copy"))
    if kind == "rename":
        new = {renamed if name == one else name: entry for name, entry in header.items()}
        return tensors(new, data), f"renamed to {renamed!r}"
    if kind == "delete":
        return tensors(
            {name: entry for name, entry in header.items() if name != one}, data
        ), "deleted"
    if kind == "swap":
        return tensors(
            {**header, one: header[other], other: header[one]}, data
        ), f"swapped with {other}"
    size = len(data)
    begin, end = header[other]["data_offsets"]
    extra = {**header[other], "data_offsets": [size, size + end - begin]}
    return tensors({**header, renamed: extra}, data + data[begin:end]), f"also {renamed!r}"


def _sizes(draw: Random, header: Header, data: bytes, one: str) -> Weights:
    """The stated size of the header, or its padding."""
    text = json.dumps(header).encode()
    number = draw.choice((0, 1, 7, len(text) - 1, len(text) + 1, 10**8, 2**31, 2**63, 2**64 - 1))
    if draw.random() < 0.5:
        return tensors(text, data, number), f"a header of {number:,} bytes"
    padding = draw.choice((8, 10_000, 20_000_000))
    return tensors(text + b" " * padding, data), f"{padding:,} spaces after the header"


def _many(draw: Random, header: Header, data: bytes, one: str) -> Weights:
    number = draw.choice((1000, 100_000))
    stem = draw.choice((one, "evil"))
    end = len(data)
    extra = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}
    return tensors(
        header | {f"{stem}.{n}": extra for n in range(number)}, data
    ), f"{number:,} tensors more"


_HEADERS: dict[str, Callable[[Random, Header, bytes, str], Weights]] = {
    "json": _header_json, "entry": _header_entry, "entry 2": _header_entry, "numbers": _cast, "names": _names,
    "names 2": _names, "sizes": _sizes, "many": _many,
}  # fmt: skip

# --- bytes ----------------------------------------------------------------------------------------


def mutate_bytes(draw: Random, tree: Tree, name: str) -> str | None:
    content = tree.files[name]
    kind = draw.choice(list(BYTES))
    new = BYTES[kind](draw, content)
    if new == content:
        return None
    tree.files[name] = new
    return kind


def _cut(draw: Random, content: bytes) -> bytes:
    return content[: draw.randrange(len(content))] if content else content


def _flip(draw: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _overwrite(draw: Random, content: bytes) -> bytes:
    start = draw.randrange(len(content) + 1)
    new = draw.choice(
        (draw.randbytes(16), bytes(32), b"\xff" * 16, b"\x80" * 4, varint(2**63), b'"}]')
    )
    return content[:start] + new + content[start + len(new) :]


def _insert(draw: Random, content: bytes) -> bytes:
    start = draw.randrange(len(content) + 1)
    new = draw.choice(
        (
            b"\0",
            b"\xff\xfe",
            b"\n",
            b"\r",
            b'"',
            b"\xed\xa0\x80",
            b"a" * 10_000,
            b"\x1b[2J",
            b"\xe2\x80\xa8",
        )
    )
    return content[:start] + new + content[start:]


def _move(draw: Random, content: bytes) -> bytes:
    """A part at another place."""
    start = draw.randrange(len(content) + 1)
    size = draw.choice((1, 8, 100))
    rest = content[:start] + content[start + size :]
    place = draw.randrange(len(rest) + 1)
    return rest[:place] + content[start : start + size] + rest[place:]


def _utf16(draw: Random, content: bytes) -> bytes:
    return content.decode("utf-8", "replace").encode("utf-16")


BYTES: dict[str, Callable[[Random, bytes], bytes]] = {
    "cut off": _cut,
    "cut off at the end": lambda draw, content: content[: -draw.choice((1, 2, 9))],
    "emptied": lambda draw, content: b"",
    "doubled": lambda draw, content: content * 2,
    "a hundred times": lambda draw, content: content * (100 if len(content) < 200_000 else 3),
    "bits flipped": _flip,
    "bits flipped again": _flip,
    "overwritten": _overwrite,
    "inserted": _insert,
    "moved": _move,
    "zeroed": lambda draw, content: bytes(len(content)),
    "random": lambda draw, content: draw.randbytes(min(len(content), 10_000)),
    "CRLF": lambda draw, content: content.replace(b"\n", b"\r\n"),
    "BOM": lambda draw, content: b"\xef\xbb\xbf" + content,
    "UTF-16": _utf16,
    "gzip": lambda draw, content: gzip.compress(content, mtime=0),
    "lines reversed": lambda draw, content: b"\n".join(content.split(b"\n")[::-1]),
    "lines shuffled": lambda draw, content: b"\n".join(draw.sample(content.split(b"\n"), len(content.split(b"\n")))),
    "a line without end": lambda draw, content: content.replace(b"\n", b" "),
    "text": lambda draw, content: b"hello\n",
    "a pickle": lambda draw, content: pickle.dumps({"a": 1}),
    "a pickle of code": lambda draw, content: b"cos\nsystem\n(S'touch exploded'\ntR.",
    "HTML": lambda draw, content: b"<!DOCTYPE html><html><title>404</title></html>",
    "Git LFS": lambda draw, content: b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n",
}  # fmt: skip


def swap_files(draw: Random, tree: Tree, name: str) -> str | None:
    """The content of two files."""
    other = draw.choice(tree.names())
    if other == name:
        return None
    tree.files[name], tree.files[other] = tree.files[other], tree.files[name]
    return f"swapped with {other}"


def copy_file(draw: Random, tree: Tree, name: str) -> str | None:
    """The content of another file of the same kind."""
    others = [one for one in tree.names() if one != name and Path(one).suffix == Path(name).suffix]
    if not others:
        return None
    other = draw.choice(others)
    tree.files[name] = tree.files[other]
    return f"the content of {other}"


def mutate_pieces(draw: Random, tree: Tree, name: str) -> str | None:
    """A SentencePiece model with one field more, or with numbers that are none."""
    if not name.endswith((".model", ".spm")):
        return None
    content = tree.files[name]
    new = draw.choice(
        (
            piece(b"x", float("nan")), piece(b"y", float("inf")), piece(b"z", -1e38), piece(b"", 0.0), piece(b"a"),
            piece(b"\xff\xfe"), piece(b"<0x00>", 0.0, 6), piece(b"<0xZZ>", 0.0, 6), piece(b"k", 0.0, 99), piece(b"a" * 10**5),
            piece(b"\0"), piece(b"evil", 0.0, 3), piece(b"<s>", 0.0, 3), piece(b"u", 0.0, 2), piece(b"p") * 3000,
            b"\x12\x03\x18\x09\x01", b"\x1a\x02\x12\x00", b"\x0a\xff\xff\xff\xff\x7f", b"\x78\x01", b"\x12\x04\xc0\x02\xff\x01",
        )
    )  # fmt: skip
    tree.files[name] = new + content if draw.random() < 0.3 else content + new
    return f"also {new[:24]!r} ({len(new):,} bytes)"


# --- layout ---------------------------------------------------------------------------------------

SPARSE = (10 * 2**20, 10**8, 2**30, 2**40)


def delete_file(draw: Random, tree: Tree, name: str) -> str | None:
    del tree.files[name]
    return "missing"


def rename_file(draw: Random, tree: Tree, name: str) -> str | None:
    """A file under another name that has a meaning."""
    new = f"{Path(name).parent.as_posix()}/{draw.choice(KNOWN_NAMES)}"
    if new == name:
        return None
    tree.files[new] = tree.files.pop(name)
    return f"renamed to {new}"


def replace_by_link(draw: Random, tree: Tree, name: str) -> str | None:
    """A link out of the folder, to a valid or another file, to nothing, itself or a device."""
    if name == tree.opened:  # a file that the user names, which may be a link
        return None
    up = "../" * (1 + name.count("/"))
    own = Path(name).name
    secret = f'{{"{CANARY}": "{CANARY}"}}' if name.endswith(".json") else f"{CANARY}\n"
    kind = draw.choice(
        ("valid", "valid", "secret", "secret", "dangling", "itself", "device", "folder", "inside")
    )
    target = {
        "valid": f"{up}outside/{own}",
        "secret": f"{up}outside/{own}",
        "dangling": "nothing-there",
        "itself": own,
        "device": draw.choice(
            ("/dev/zero", "/dev/urandom", "/dev/full", "/dev/stdin", "/proc/self/mem", "/dev/tty")
        ),
        "folder": draw.choice((".", "..", "/", f"{up}outside")),
        "inside": Path(draw.choice(tree.names())).name,
    }[kind]
    if kind in ("valid", "secret"):
        tree.outside[own] = tree.files[name] if kind == "valid" else secret.encode()
    tree.files[name] = Special("link", target)
    return f"a link ({kind}) to {target}"


def link_folder(draw: Random, tree: Tree, name: str) -> str | None:
    """A folder within the opened one becomes a link to one outside with the same files."""
    inner = {
        parent
        for one in tree.names()
        for parent in Path(one).parents
        if one.startswith(f"{tree.opened}/")
        and parent != Path(tree.opened)
        and parent.is_relative_to(tree.opened)
    }
    if not inner:
        return None
    folder = draw.choice(sorted(inner)).as_posix()
    for one in [one for one in tree.files if one.startswith(f"{folder}/")]:
        content = tree.files.pop(one)
        if isinstance(content, bytes):
            tree.outside[f"folder/{one.removeprefix(f'{folder}/')}"] = content
    tree.files[folder] = Special("link", "../" * (1 + folder.count("/")) + "outside/folder")
    return f"{folder} is a link to a folder outside"


def replace_by_special(draw: Random, tree: Tree, name: str) -> str | None:
    kind = draw.choice(("fifo", "fifo", "socket", "folder", "sparse"))
    size = draw.choice(SPARSE)
    tree.files[name] = Special(kind, size if kind == "sparse" else None)
    return f"a {kind}" + (f" of {size:,} bytes" if kind == "sparse" else "")


KNOWN_NAMES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tokenizer.model", "source.spm"),
    *("target.spm", "sentencepiece.bpe.model", "model.safetensors", "model.safetensors.index.json", "modules.json"),
    *("adapter_config.json", "adapter_model.safetensors", "preprocessor_config.json", "chat_template.jinja"),
    *("sentence_bert_config.json", "config_sentence_transformers.json", "recipe.yaml", "metrics.jsonl", "README.md"),
    *("pytorch_model.bin", "model-00002-of-00003.safetensors", "target_tokenizer.json", "bpe.codes", "environment.json"),
    *("chat_template.json", "processor_config.json", "video_preprocessor_config.json", "tiktoken.model", ".lock"),
)  # fmt: skip
EXTRA: dict[str, bytes] = {
    "modeling_evil.py": b"open('exploded', 'w')",
    "json.py": b"open('exploded', 'w')",
    "sitecustomize.py": b"open('exploded', 'w')",
    "custom_generate/generate.py": b"open('exploded', 'w')",
    "pytorch_model.bin": b"cos\nsystem\n(S'touch exploded'\ntR.",
    "training_args.bin": b"cos\nsystem\n(S'touch exploded'\ntR.",
    "adapter_config.json": b'{"base_model_name_or_path": "../outside", "peft_type": "LORA", "r": 2, "lora_alpha": 2}',
    "chat_template.jinja": b"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "additional_chat_templates/a.jinja": b"{{ messages }}",
    "added_tokens.json": b'{"evil": 4294967295, "x": 3}',
    "special_tokens_map.json": b'{"eos_token": {"content": "\\u001b[2J"}, "pad_token": ["x"]}',
    "model.safetensors.index.json": b'{"metadata": {}, "weight_map": {"a": "../outside/model.safetensors"}}',
    "modules.json": b'[{"idx": 0, "name": "0", "path": "../../outside", "type": "a.Transformer"}, {"idx": 1, "name": "1", "path": "../outside", "type": "a.Pooling"}]',
    "preprocessor_config.json": b'{"size": {"height": 1000000, "width": 1000000}}',
    "generation_config.json": b'{"num_beams": 100, "max_new_tokens": 32768}',
    "vocab.txt": b"a\nb\n\n\nc\n",
    "spiece.model": b"\x0a\xff\xff",
    "target_tokenizer.json": b"{}",
    "README.md": b"---\nbase_model: ../../outside/secret.txt\n---\n" + b"x" * 100_000,
    "chat_template.json": b'{"chat_template": "{{ raise_exception(1) }}"}',
    "recipe.yaml": b"task: {kind: causal}\ndata: {train: ../outside/secret.txt}\n",
    "tokenizer_config.json": b'{"added_tokens_decoder": {"4294967295": {"content": "x"}}, "tokenizer_class": "T5Tokenizer"}',
}  # fmt: skip


def add_file(draw: Random, tree: Tree, name: str) -> str | None:
    extra = draw.choice(list(EXTRA))
    path = f"{tree.opened}/{extra}"
    tree.files[path] = EXTRA[extra]
    return f"also {extra}"


def add_special(draw: Random, tree: Tree, name: str) -> str | None:
    """A link, a pipe or a folder under a name that has a meaning, where no file is."""
    path = f"{tree.opened}/{draw.choice(KNOWN_NAMES)}"
    kind = draw.choice(("link", "fifo", "folder", "socket"))
    target = "../" * (1 + path.count("/")) + f"outside/{SECRET}"
    tree.files[path] = Special(kind, target if kind == "link" else None)
    return f"{path} is a {kind}"


# --- costly content -------------------------------------------------------------------------------


def _json_change(change: Callable[[Random, dict[str, Any]], str | None], *names: str) -> Mutation:
    def mutation(draw: Random, tree: Tree, name: str) -> str | None:
        found = [one for one in tree.names() if one.endswith(names)]
        if not found:
            return None
        name = draw.choice(found)
        document = _document(name, tree.files[name])
        if not isinstance(document, dict):
            return None
        what = change(draw, document)
        tree.files[name] = json.dumps(document).encode("utf-8", "surrogatepass")
        return what and f"{name}: {what}"

    return mutation


def _many_keys(draw: Random, document: dict[str, Any]) -> str:
    number = draw.choice((10_000, 200_000))
    document |= {f"k{n}": n for n in range(number)}
    return f"{number:,} keys"


def _costly_generation(draw: Random, document: dict[str, Any]) -> str:
    new = draw.choice(
        (
            {"num_beams": 100, "max_new_tokens": 32_768}, {"num_beams": 64, "max_length": 10**6}, {"max_new_tokens": 2**31},
            {"force_words_ids": [[[n]] for n in range(4600)]}, {"force_words_ids": [[[1, 2, 3]] * 300], "num_beams": 16},
            {"bad_words_ids": [[1] * 500] * 2000}, {"num_return_sequences": 5000, "do_sample": True, "max_new_tokens": 9},
            {"num_beams": 512, "num_beam_groups": 512, "diversity_penalty": 0.5}, {"no_repeat_ngram_size": 10**6},
            {"sequence_bias": [[[1], 1e308], [[2], -1e308]]}, {"suppress_tokens": list(range(100_000))},
            {"min_new_tokens": 10**6, "max_new_tokens": 10**6}, {"temperature": 1e-320, "do_sample": True},
            {"top_p": 1e-300, "do_sample": True}, {"repetition_penalty": 1e38}, {"length_penalty": -1e300, "num_beams": 3},
            {"prompt_lookup_num_tokens": 10**6}, {"eos_token_id": list(range(100_000))}, {"stop_strings": ["e" * 10**6]},
            {"stop_strings": [chr(97 + n % 26) * 9 for n in range(50_000)]}, {"forced_decoder_ids": [[1, 2]] * 10**5},
            {"cache_implementation": "static", "max_length": 2**24}, {"penalty_alpha": 0.6, "top_k": 40},
            {"exponential_decay_length_penalty": [1, 1e300]}, {"encoder_repetition_penalty": 1e300},
        )
    )  # fmt: skip
    document |= new
    return f"{new}"[:80]


def _costly_tokenizer(draw: Random, document: dict[str, Any]) -> str | None:
    model = document.get("model")
    kind = draw.choice(
        ("added", "merges", "vocab", "split", "replace", "sequence", "template", "unigram")
    )
    if not isinstance(model, dict):
        return None
    if kind == "added":
        document["added_tokens"] = [
            {"id": n, "content": f"t{n}", "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": n % 2 == 0} for n in range(50_000)
        ]  # fmt: skip
    elif kind == "merges":
        model["merges"] = [["a", "b"]] * 50_000
    elif kind == "vocab" and isinstance(model.get("vocab"), dict):
        model["vocab"] |= {f"w{n}": 10_000 + n for n in range(200_000)}
    elif kind == "unigram":
        document["model"] = {
            "type": "Unigram",
            "unk_id": 0,
            "vocab": [[chr(97 + n % 26) * (n + 1), -1.0] for n in range(2000)],
        }
    elif kind == "split":
        document["pre_tokenizer"] = split(
            draw.choice(("(a+)+$", ".*.*.*.*=", "(e|e)*x", "(?=(.*))" * 9, "a{1,9999}"))
        )
    elif kind == "replace":
        content = {"String": draw.choice(("e", "", " "))}
        document["normalizer"] = {
            "type": "Replace",
            "pattern": content,
            "content": "e" * draw.choice((2, 1000)),
        }
    elif kind == "sequence":
        one = {"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}
        document["normalizer"] = {
            "type": "Sequence",
            "normalizers": [one] * draw.choice((25, 5000)),
        }
    else:
        document["post_processor"] = {
            "type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * draw.choice((2, 10_000)),
            "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 7}}], "special_tokens": {},
        }  # fmt: skip
    return f"costly {kind}"


def _costly_template(draw: Random, document: dict[str, Any]) -> str:
    text = draw.choice(
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "{{ 'a' * 10**10 }}",
            "{{ 'a'.__class__.__mro__ }}", "{% set x = 'a' * 10**6 %}{% for i in range(500) %}{{ x }}{% endfor %}",
            "{{ messages }}{{ cycler.__init__.__globals__ }}", "{% include '/etc/passwd' %}", "{{ 9**9**9 }}", "{% if %}",
            "{{ raise_exception('\x1b[2J' * 1000) }}", "{{ strftime_now('%Y' * 10**6) }}", "x" * 2_000_000, "{{ '%999999999d' % 1 }}",
            "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}", "{{ range(10**9) | list }}", "{{ '\ud800' }}", "{{ none.x }}",
        )
    )  # fmt: skip
    document["chat_template"] = text
    return f"chat_template {text[:60]!r}"


def _costly_prompts(draw: Random, document: dict[str, Any]) -> str:
    size = draw.choice((10**5, 5 * 10**6))
    document |= {"prompts": {"query": "the " * (size // 4)}, "default_prompt_name": "query"}
    return f"a default prompt of {size:,} characters"


def _costly_labels(draw: Random, document: dict[str, Any]) -> str:
    number = draw.choice((1000, 100_000))
    document |= {"id2label": {str(n): f"l{n}" for n in range(number)}, "num_labels": number}
    return f"{number:,} labels"


def _costly_recipe(draw: Random, document: dict[str, Any]) -> str:
    kind = draw.choice(("keys", "parts", "long", "deep", "labels"))
    if kind == "keys":
        document |= {f"k{n}": n for n in range(200_000)}
    elif kind == "parts":
        document["task"] = {
            "kind": "text-to-text",
            "parts": {f"p{n}": {"input": "{a}"} for n in range(20_000)},
        }
    elif kind == "long":
        document["data"] = {"train": ["text.txt"] * 100_000}
    elif kind == "deep":
        value: Any = 1
        for _ in range(400):
            value = {"a": value}
        document["model"] = value
    else:
        document["model"] = {"label_names": [f"l{n}" for n in range(100_000)]}
    return f"costly {kind}"


def costly_yaml(draw: Random, tree: Tree, name: str) -> str | None:
    """A recipe with aliases, merges or many lines."""
    found = [one for one in tree.names() if one.endswith("recipe.yaml")]
    if not found:
        return None
    anchors = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30)
    )
    texts = {
        "aliases": anchors,
        "merges": "a: &a {x: 1}\n" + "b:\n" + "  <<: *a\n" * 50_000,
        "a merge of many": "a: &a {x: 1}\nb: {<<: [" + "*a, " * 50_000 + "*a]}\n",
        "lines": "- x\n" * 500_000,
        "quotes": "a: '" + "''" * 10**6 + "'\n",
        "tags": "a: !!python/object/apply:os.system ['touch exploded']\n",
        "documents": "---\na: 1\n" * 50_000,
        "deep": "[" * 5000,
        "indents": "".join(" " * n + "a:\n" for n in range(2000)),
        "anchors": "".join(f"a{n}: &x{n} 1\n" for n in range(100_000)),
    }
    kind = draw.choice(list(texts))
    one = draw.choice(found)
    tree.files[one] = texts[kind].encode()
    return f"{one}: {kind}"


def costly_lines(draw: Random, tree: Tree, name: str) -> str | None:
    """A log of many lines, or of odd ones."""
    found = [one for one in tree.names() if one.endswith((".jsonl", ".tsv", ".txt"))]
    if not found:
        return None
    one = draw.choice(found)
    lines = {
        "many": b'{"step": 1, "train/loss": 1.0}\n' * 200_000,
        "numbers": b'1\n2\nnull\n[]\n"x"\n',
        "huge steps": b'{"step": 1e308, "train/loss": "x", "valid/loss": {"a": 1}}\n{"step": -1}\n{"step": null}\n',
        "other types": b'{"step": "2", "event": ["x"], "time": {}, "valid/loss": null, "valid/bleu": [1]}\n',
        "escapes": b'{"event": "\\u001b[2J\\u001b[31m evil", "step": 3}\n',
        "a long line": b'{"a": "' + b"x" * 10**7 + b'"}\n',
        "long merges": b"a b\n" * 200_000,
        "deep": b'{"a": ' * 50_000 + b"\n",
    }
    kind = draw.choice(list(lines))
    tree.files[one] = lines[kind] if draw.random() < 0.5 else tree.files[one] + lines[kind]
    return f"{one}: {kind}"


def costly_picture(draw: Random, tree: Tree, name: str) -> str | None:
    """A picture that unpacks to many pixels, or is another file."""
    if "picture.png" not in tree.files:
        return None
    content = tree.files["picture.png"]
    if not isinstance(content, bytes):
        return None
    size = draw.choice((1, 10_000, 60_000, 2**31 - 1))
    tree.files["picture.png"] = content[:16] + struct.pack(">II", size, size) + content[24:]
    return f"picture.png of {size:,} x {size:,}"


# --- the table ------------------------------------------------------------------------------------

# Name -> how often it is drawn, and the mutation.
MUTATIONS: dict[str, tuple[int, Mutation]] = {
    "json": (34, mutate_json),
    "header": (12, mutate_header),
    "bytes": (13, mutate_bytes),
    "swap": (2, swap_files),
    "copy": (2, copy_file),
    "pieces": (3, mutate_pieces),
    "delete": (3, delete_file),
    "rename": (3, rename_file),
    "link": (5, replace_by_link),
    "link of a folder": (2, link_folder),
    "special": (4, replace_by_special),
    "extra": (4, add_file),
    "extra special": (2, add_special),
    "keys": (1, _json_change(_many_keys, ".json", "recipe.yaml")),
    "generation": (4, _json_change(_costly_generation, "/generation_config.json")),
    "tokenizer": (4, _json_change(_costly_tokenizer, "/tokenizer.json")),
    "template": (2, _json_change(_costly_template, "tokenizer_config.json")),
    "prompts": (1, _json_change(_costly_prompts, "config_sentence_transformers.json")),
    "labels": (1, _json_change(_costly_labels, "/config.json")),
    "recipe": (1, _json_change(_costly_recipe, "recipe.yaml")),
    "yaml": (1, costly_yaml),
    "lines": (1, costly_lines),
    "picture": (1, costly_picture),
}
# Files of a folder that matter more than the others, and how often each is drawn.
WEIGHTS = {"config.json": 6, "tokenizer.json": 2, "generation_config.json": 3, "adapter_config.json": 4,
           "recipe.yaml": 3, "metrics.jsonl": 3, "model.safetensors.index.json": 3}  # fmt: skip


def apply(draw: Random, tree: Tree) -> str:
    """Change the tree with a mutation that fits; return which, of what file, and what it did."""
    for _ in range(50):
        names = tree.names()
        if not names:
            return "nothing is left"
        weights = [
            WEIGHTS.get(Path(name).name, 1) * (3 if name.startswith(tree.opened) else 1)
            for name in names
        ]
        kind = draw.choices(list(MUTATIONS), [weight for weight, _ in MUTATIONS.values()])[0]
        name = draw.choices(names, weights)[0]
        if kind == "header":
            name = draw.choice([one for one in names if one.endswith(".safetensors")] or [name])
        elif kind == "pieces":
            name = draw.choice([one for one in names if one.endswith((".model", ".spm"))] or [name])
        what = None
        with suppress(KeyError, TypeError, ValueError, IndexError, OverflowError):  # mutated before
            what = MUTATIONS[kind][1](draw, tree, name)
        if what is not None:
            return f"{kind}: {name}: {what}"
    return "no mutation fits"


# --- disk -----------------------------------------------------------------------------------------


def write(tree: Tree, root: Path) -> None:
    """Write the tree to ROOT/tree and what lies outside to ROOT/outside, with a secret file."""
    for name, content in {**tree.outside, SECRET: CANARY.encode() * 9}.items():
        path = root / "outside" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name, content in tree.files.items():
        path = root / "tree" / name
        with suppress(FileExistsError, NotADirectoryError):  # below what is now a file or a link
            _make_parent(path, root / "tree")
            _write_one(path, content)


def _make_parent(path: Path, root: Path) -> None:
    """The folder of the path; never through a link that leads out."""
    if not path.parent.resolve().is_relative_to(root.resolve()):
        raise NotADirectoryError(path)
    path.parent.mkdir(parents=True, exist_ok=True)


def _write_one(path: Path, content: Any) -> None:
    if isinstance(content, bytes):
        if path.is_symlink() or path.exists():
            raise FileExistsError(path)
        path.write_bytes(content)
    elif isinstance(content, str):
        path.symlink_to(content)
    else:
        _SPECIAL[content.kind](path, content.argument)


def _make_socket(path: Path, _: None) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = path.parent
        made.bind(str(path) if len(str(path)) < 100 else str(here / "s"))


def _make_sparse(path: Path, size: int) -> None:
    with path.open("xb") as file:
        file.write(b"{")
        file.truncate(size)


def _make_fifo(path: Path, _: None) -> None:
    os.mkfifo(path)


_SPECIAL: dict[str, Callable[[Path, Any], object]] = {
    "link": lambda path, target: path.symlink_to(target),
    "fifo": _make_fifo,
    "socket": _make_socket,
    "folder": lambda path, _: path.mkdir(exist_ok=True),
    "sparse": _make_sparse,
}
