"""A GGUF file as a model folder: its metadata as the files of a Hugging Face folder, which are
made when they are read, and its tensors.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.fast import prepare_interpreter
from trifold.fast.block_layout import can_lay_out
from trifold.fast.block_weight import BlockWeight
from trifold.fast.file_weight import FileWeight
from trifold.fast.huge_pages import HugeMemory, read_ahead, release_file
from trifold.fast.quantized_weight import Weight
from trifold.folders import FOLDER_ENDINGS, FileAsFolder, UntrustedPath
from trifold.hub import rules
from trifold.hub.gguf.architectures import UNREAD, find_architecture
from trifold.hub.gguf.file_format import GGUFFile, read_file
from trifold.hub.gguf.matrices import (
    MovedRows,
    StoredMatrix,
    lay_out,
    moved_matrices,
    needed_bytes,
)
from trifold.hub.gguf.metadata import Metadata
from trifold.hub.gguf.tensors import TranslatedTensors, open_matrices, open_tensors
from trifold.hub.gguf.tokenizer import ends, tokenizer_files
from trifold.hub.rules import Conversion, joined_routes

ENDING = ".gguf"
KIND = "general.type"
SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
MAX_PARTS = 1000
POOLINGS = {1: "mean_tokens", 2: "cls_token", 3: "lasttoken"}
CLASSES = "sentence_transformers.models"


@dataclass(frozen=True, order=True)
class GGUFFolder(FileAsFolder):
    """A GGUF file as a folder. tensors: by the names of the family. translation: from those by the
    names of the file. files: the parts of the model. stored: the matrices.
    """

    tensors: Mapping[str, Tensor] = field(compare=False, repr=False, kw_only=True)
    translation: TranslatedTensors = field(compare=False, repr=False, kw_only=True)
    files: Sequence[GGUFFile] = field(compare=False, repr=False, kw_only=True)
    stored: Mapping[str, StoredMatrix] = field(compare=False, repr=False, kw_only=True)

    def read_ahead(self) -> HugeMemory:
        """Read the tensors, and load the code that lays them out, both on other threads. Returns
        memory for `matrices`, which another thread prepares.
        """
        for file in self.files:
            read_ahead(file.memory)
        memory = HugeMemory()
        if can_lay_out():
            prepare_interpreter()
            entries = {name: each for file in self.files for name, each in file.tensors.items()}
            memory.provide(needed_bytes(entries, self.translation.changed))
        return memory

    def moved(
        self,
        conversions: Sequence[Conversion],
        shapes: Mapping[str, torch.Size],
        dtype: torch.dtype,
    ) -> dict[str, MovedRows]:
        """Which rows of the file are the matrices of a model with these names and shapes, of those
        that a computation in `dtype` reads in the type of the file. conversions: see `matrices`.
        """
        stored = {name: each for name, each in self.stored.items() if each.is_kept(dtype)}
        routes = joined_routes(rules.routes(conversions), self.translation.routes)

        def move(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            return rules.converted(conversions, self.translation.of(tensors))

        return moved_matrices(stored, move, shapes, routes)

    def matrices(
        self,
        conversions: Sequence[Conversion],
        shapes: Mapping[str, torch.Size],
        dtype: torch.dtype,
        memory: HugeMemory,
        *,
        in_place: bool,
    ) -> tuple[dict[str, Weight], Callable[[], None]]:
        """The matrices of a model with these names and shapes that the file has in blocks, in
        `dtype` or in 16 bits, for results of that type, laid out in this memory. Numbers are in the
        memory of the file. Other threads lay out blocks: the second result must be called before
        they are read, and may be called again.

        conversions: from the tensors of the family to those of the model. in_place: see `lay_out`.
        Both functions raise CheckpointError for values that have no scale.
        """
        found = self.moved(conversions, shapes, dtype)
        with self._naming():
            made, finish_layout = lay_out(found, dtype, memory, in_place=in_place)

        def finish() -> None:
            with self._naming():
                finish_layout()
            has_shared = any(
                isinstance(each, FileWeight) or not isinstance(each, BlockWeight)
                for each in made.values()
            )
            for file in self.files:
                if has_shared:  # who changes these parameters does not change what is loaded next
                    file.map_again()
                else:
                    release_file(file.memory)

        return made, finish

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Name the file in an error of its values."""
        try:
            yield
        except ValueError as error:
            raise CheckpointError(f"{self}: {error}; copy the file again") from None


def open_gguf(path: UntrustedPath) -> GGUFFolder:
    """A file as a folder; of a model in several files, the first one stands for all.

    Raises CheckpointError if it is damaged, if a part is missing, and for an architecture or a type
    of tensors that is not read.
    """
    try:
        status = path.target().stat()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    return _open(path, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=1)  # commands open their model several times
def _open(path: UntrustedPath, state: tuple[int, ...]) -> GGUFFolder:
    """state: changes with the file."""
    files = _read_parts(path)
    place = str(path)
    tensors = open_tensors(files)
    file = Metadata(files[0].metadata, tensors, place)
    kind = file.text(KIND, "model")
    if kind != "model":
        raise CheckpointError(
            f"{place}: {KIND}: {kind!r:.60} is no model; give the file of a model"
        )
    architecture = find_architecture(file)
    keys = architecture.config(file)
    contents = tokenizer_files(file)
    contents["config.json"] = partial(_json, keys)
    contents |= {name: partial(_json, values) for name, values in _settings(file, keys).items()}
    translation = TranslatedTensors(architecture.rules(keys), tensors, UNREAD, place)
    return GGUFFolder(
        path.path,
        path.root,
        contents,
        tensors=translation.of(tensors),
        translation=translation,
        files=files,
        stored=open_matrices(files),
    )


def _settings(file: Metadata, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The other files by name: settings of generation or of embeddings."""
    if file.architecture == "bert":
        return _sentence_modules(file, keys)
    generation = {"eos_token_id": ends(file) or None}
    for role in ("bos", "pad"):
        generation[f"{role}_token_id"] = keys.get(f"{role}_token_id")
    if "decoder_start_token_id" in keys:
        generation = {"decoder_start_token_id": keys["decoder_start_token_id"]}
    return {"generation_config.json": {k: v for k, v in generation.items() if v is not None}}


def _sentence_modules(file: Metadata, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The files of sentence-transformers, if the file says how states become one vector."""
    kind = file.size(".pooling_type", 0, least=0)
    if kind not in POOLINGS:
        return {}
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"{CLASSES}.{name}"}
        for number, (path, name) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])
    ]
    return {
        "modules.json": listed,
        "1_Pooling/config.json": {
            "word_embedding_dimension": keys["hidden_size"],
            f"pooling_mode_{POOLINGS[kind]}": True,
        },
        "sentence_bert_config.json": {"max_seq_length": keys["max_position_embeddings"]},
    }


def _json(values: Any) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode("utf-8")


# --- models in several files ----------------------------------------------------------------------


def _read_parts(path: UntrustedPath) -> list[GGUFFile]:
    """The file, or all files of a model of which it is the first."""
    first = read_file(path)
    metadata = Metadata(first.metadata, {}, str(path))
    count = metadata.size("split.count", 1, least=0)
    if count <= 1:
        return [first]
    if metadata.size("split.no", 0, least=0):
        raise CheckpointError(f"{path}: a further part of a model; give its first part")
    found = SPLIT.fullmatch(path.name)
    if found is None or int(found[2]) != 1 or int(found[3]) != count or count > MAX_PARTS:
        raise CheckpointError(
            f"{path}: the first of {count:,} parts, which is named NAME-00001-of-{count:05d}.gguf; "
            "rename the parts as they were"
        )
    files = [first]
    for number in range(2, count + 1):
        name = f"{found[1]}-{number:05d}-of-{count:05d}.gguf"
        files.append(_read_part(path.parent / name, number, count))
    _check_total(metadata, files)
    return files


def _read_part(path: UntrustedPath, number: int, count: int) -> GGUFFile:
    part = read_file(path)
    metadata = Metadata(part.metadata, {}, str(path))
    if (metadata.size("split.no", least=0), metadata.size("split.count")) != (number - 1, count):
        raise CheckpointError(f"{path}: not part {number} of {count}; copy all parts again")
    return part


def _check_total(metadata: Metadata, files: list[GGUFFile]) -> None:
    """Raise CheckpointError for a tensor in two parts, or another number of tensors."""
    names: dict[str, UntrustedPath] = {}
    for file in files:
        for name in file.tensors:
            if name in names:
                raise CheckpointError(f"{file.path}: tensor {name!r} is also in {names[name]}")
            names[name] = file.path
    total = metadata.size("split.tensors.count", len(names))
    if total != len(names):
        raise metadata.error("split.tensors.count", f"{total:,}, but the parts have {len(names):,}")


FOLDER_ENDINGS[ENDING] = open_gguf
