"""How the weights of a model are stored, in its file and in memory when it runs, and their bytes.
No weights are read.
"""

from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trifold.fast.block_layout import block_bytes
from trifold.fast.half_weight import STORED
from trifold.fast.instruction import BlockKind
from trifold.folders import AnyPath, UntrustedPath, folder_or_file
from trifold.hub import rules
from trifold.hub.fill import Stored, block_bits, kept_halves, modules_of_matrices, wide_types
from trifold.hub.folder import read_settings
from trifold.hub.gguf.folder import GGUFFolder
from trifold.hub.gguf.matrices import MovedRows, block_kind
from trifold.hub.model_config import parse_config
from trifold.hub.names import CONFIG
from trifold.hub.tensors import TYPE_NAMES, shapes_of
from trifold.hub.weights import dtype_name, has_weights, read_weights
from trifold.nn import ModelConfig, Transformer
from trifold.nn.stack import all_modules, all_parameters

SCALE_BYTES = 4  # of a row in int8


class Storage(NamedTuple):
    """Weights of one form: the number of their tensors, their own number, and their bytes.

    is_shared: whether they are in the memory of their file, which processes share.
    """

    form: str
    tensors: int
    weights: int
    bytes: int
    is_shared: bool = False

    @property
    def bits(self) -> float:
        """Of a weight, with its share of the scales."""
        return 8 * self.bytes / self.weights


def _summed(parts: Iterable[Storage]) -> list[Storage]:
    """One for each form, the largest first."""
    found = dict[tuple[str, bool], Storage]()
    for part in parts:
        key = part.form, part.is_shared
        known = found.get(key, Storage(part.form, 0, 0, 0))
        found[key] = Storage(
            part.form,
            known.tensors + part.tensors,
            known.weights + part.weights,
            known.bytes + part.bytes,
            part.is_shared,
        )
    return sorted(found.values(), key=lambda each: -each.bytes)


# --- in a file ------------------------------------------------------------------------------------


def storage_in_file(folder: AnyPath) -> list[Storage]:
    """The weights in a GGUF file or a folder, by type; none of an adapter, which has a part."""
    folder = folder_or_file(folder)
    if isinstance(folder, GGUFFolder):
        entries = [entry for file in folder.files for entry in file.tensors.values()]
        return _summed(
            Storage(each.kind.name, 1, prod(each.shape), each.end - each.start) for each in entries
        )
    if not has_weights(folder):
        return []
    tensors = shapes_of(read_weights(folder)).values()
    return _summed(
        Storage(TYPE_NAMES[each.dtype], 1, each.numel(), each.nbytes) for each in tensors
    )


# --- in memory ------------------------------------------------------------------------------------


def storage_in_memory(
    config: ModelConfig, dtype: torch.dtype, stored: Stored | None, folder: AnyPath | None = None
) -> list[Storage]:
    """The weights of a model that computes in `dtype` on a CPU, by form.

    stored: see `load_model`. folder: of the model, whose types "file" keeps.
    """
    with torch.device("meta"):
        model = Transformer(config, initialize=False)
    parts = dict[str, Storage]()
    if stored == "file" and folder is not None and config.decoder_layers:
        parts = _kept_types(folder_or_file(folder), model, dtype)
    matrices = modules_of_matrices(model) if stored in ("int8", "int4") else {}
    wide = wide_types(all_modules(model), dtype)
    for name, parameter in model.named_parameters():
        if name in parts:
            continue
        if parameter in matrices:
            bits = block_bits(model, name, matrices[parameter], stored)
            parts[name] = _small(parameter, bits)
        else:
            parts[name] = _numbers(parameter, wide.get(parameter, dtype))
    return _summed(parts.values())


def _numbers(parameter: Tensor, dtype: torch.dtype, *, is_shared: bool = False) -> Storage:
    count = parameter.numel()
    return Storage(dtype_name(dtype), 1, count, count * dtype.itemsize, is_shared)


def _small(matrix: Tensor, bits: int | None) -> Storage:
    """A matrix in blocks of so many bits, of which those of 4 have levels; in int8 with a scale for
    each row if `bits` is None.
    """
    if bits is not None:
        return _blocks(matrix, BlockKind(bits, has_levels=bits == 4))
    size = matrix.numel() + SCALE_BYTES * len(matrix)
    return Storage("int8, a scale for each row", 1, matrix.numel(), size)


def _blocks(matrix: Tensor, kind: BlockKind) -> Storage:
    size = block_bytes(matrix.shape[0], matrix.shape[1], kind)
    return Storage(kind.title, 1, matrix.numel(), size)


def _kept_types(
    folder: UntrustedPath, model: Transformer, dtype: torch.dtype
) -> dict[str, Storage]:
    """The matrices that keep the types of their file, by name."""
    matrices = modules_of_matrices(model)
    parameters = {name: each for name, each in model.named_parameters() if each in matrices}
    values, merged = read_settings(folder)
    if merged is not None or not has_weights(folder):
        return {}
    table = parse_config(values, folder / CONFIG)[0].rules(model.config)
    conversions = rules.conversions(table, all_parameters(model))
    found = dict[str, Storage]()
    if isinstance(folder, GGUFFolder):
        shapes = {name: each.shape for name, each in parameters.items()}
        moved = folder.moved(conversions, shapes, dtype)
        found = {name: _of_file(parameters[name], each) for name, each in moved.items()}
    weights = shapes_of(read_weights(folder))
    theirs = {name: each.to("meta") for name, each in weights.items()}
    memory = {each.untyped_storage()._cdata for each in theirs.values()}
    expected = rules.saving(table, all_parameters(model))
    ours = rules.converted(conversions, rules.renamed(table, theirs, expected))
    for name in _halves(model, parameters, dtype) - found.keys():
        tensor = ours[name]
        if tensor.dtype in STORED:
            is_part = tensor.untyped_storage()._cdata in memory and tensor.is_contiguous()
            is_shared = is_part and not isinstance(folder, GGUFFolder)
            found[name] = _numbers(parameters[name], tensor.dtype, is_shared=is_shared)
    return found


def _halves(
    model: Transformer, parameters: Mapping[str, nn.Parameter], dtype: torch.dtype
) -> set[str]:
    """The names of the matrices that stay in 16 bits if their file has them so."""
    kept = kept_halves(model, dtype, torch.device("cpu"), "file")
    return {name for name, each in parameters.items() if each in kept}


def _of_file(matrix: Tensor, rows: MovedRows) -> Storage:
    """A matrix that keeps the type of a GGUF file: in blocks, or as numbers, which are copied if
    their rows are in another order.
    """
    kind = rows.matrix.entry.kind
    if kind.dtype is None:
        return _blocks(matrix, block_kind(kind))
    return _numbers(matrix, kind.dtype, is_shared=isinstance(rows.order, slice))
