"""Write a model folder as a GGUF file, in float or quantized.

No model is built. Every tensor passes through the rules of its family, of the family of the file's
architecture, and of the architecture when it is written, so that one tensor is in memory at a time.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trifold import disk
from trifold.errors import CheckpointError
from trifold.folders import AnyPath, UntrustedPath, folder_or_file
from trifold.hub import rules
from trifold.hub.convert import most_common, open_weights
from trifold.hub.files import cannot_write
from trifold.hub.folder import folder_with, read_generation_settings, read_settings
from trifold.hub.gguf.file_writer import write_file
from trifold.hub.gguf.metadata import Metadata
from trifold.hub.gguf.mixtures import WEIGHTS, Sizes, tensor_types
from trifold.hub.gguf.model_keys import REMEDY, Target, Values, find_target, model_values
from trifold.hub.gguf.modelfile import modelfile
from trifold.hub.gguf.tokenizer import MODEL, PREFIX
from trifold.hub.gguf.tokenizer_keys import TokenizerKeys, tokenizer_keys
from trifold.hub.model_config import infer_config, parse_config
from trifold.hub.names import ADAPTER, CONFIG, GENERATION
from trifold.hub.rows import group_of
from trifold.hub.sentence_transformers import read_modules
from trifold.hub.tensors import TransformedTensors, shapes_of
from trifold.text import Tokenizer
from trifold.text.folder import read_tokenizers

Weights = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m"]
SETTINGS = "tokenizer_config.json"
_FLOATS: dict[torch.dtype, Weights] = {torch.float16: "f16", torch.bfloat16: "bf16"}
MERGED = "the adapter is merged with the weights of its base"
_POOLINGS = {"mean": 1, "cls": 2, "last": 3}


class Saved(NamedTuple):
    """The architecture, the kind of weights, the number of tensors, the bytes of the file, the
    number of tensors of each type, the files written, tensors that nothing uses, and sentences
    about what the file does not hold.
    """

    architecture: str
    weights: str
    tensors: int
    bytes: int
    types: dict[str, int]
    files: list[str]
    unused: list[str]
    notes: list[str]


def save_gguf(
    old: AnyPath,
    new: Path,
    *,
    weights: Weights | None = None,
    trust_pickle: bool = False,
    tokenizer: AnyPath | None = None,
    overwrite: bool = False,
    on_written: Callable[[int, int], None] | None = None,
) -> Saved:
    """Write the model in the folder `old` as the GGUF file `new`, and a Modelfile for Ollama beside
    it.

    weights: of matrices; by default float of the precision that the folder has. Adapters are
    merged. trust_pickle, tokenizer: as for `convert`. `on_written` is called with the bytes of all
    tensors and of some that were just written.

    Raises CheckpointError if `old` is invalid or has what a file does not hold, and if `new` cannot
    be written; then nothing is left of it. Raises UsageError if `new` exists.
    """
    beside = new.with_suffix(".Modelfile")
    for path in (new, beside):
        disk.check_free(path, overwrite=overwrite)
    old = folder_or_file(old)
    codec = _read_tokenizer(folder_or_file(tokenizer or folder_with(SETTINGS, old)))
    with disk.exclusive(new), _opened(old, new, trust_pickle=trust_pickle) as model:
        kind = weights or _FLOATS.get(most_common(model.shapes), "f32")
        values, extra = model_values(model.target, model.shapes)
        values |= _general(new, kind) | _pooling(old)
        keys = _tokenizer_keys(codec, model, str(old))
        values |= keys.values
        tensors = {**model.shapes, **extra}
        shapes = {name: tensors[name].to("meta") for name in sorted(tensors, key=_place)}
        types = tensor_types(kind, shapes, _sizes(model.target))
        made = TransformedTensors(
            shapes, lambda name, _: extra[name] if name in extra else model.tensors[name]
        )
        size = write_file(new, values, made, shapes, types, on_written)
        file = Metadata(values, {}, str(new))
        notes = [MERGED] if (old / ADAPTER).exists() else []
        _write_modelfile(beside, modelfile(file, new.name, codec, model.generation))
    counts = Counter(types[name][1].name for name in shapes)
    return Saved(
        model.target.name,
        kind,
        len(shapes),
        size,
        dict(counts.most_common()),
        [new.name, beside.name],
        model.unused,
        notes + keys.notes,
    )


# --- the model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Model:
    """A model on its way into a file.

    tensors: by their names there, each made when it is read. shapes: the same ones on the meta
    device. generation: its settings by our names. unused: tensors of the folder that nothing uses.
    """

    target: Target
    tensors: Mapping[str, Tensor]
    shapes: Mapping[str, Tensor]
    generation: Mapping[str, object]
    unused: list[str]


@contextmanager
def _opened(old: UntrustedPath, new: Path, *, trust_pickle: bool) -> Iterator[_Model]:
    """The model in a folder. Raises CheckpointError if no architecture has all of its parts."""
    values, merged = read_settings(old)
    source, config = parse_config(values, old / CONFIG)
    with open_weights(old, new, merged, trust_pickle=trust_pickle) as weights:
        config, parameters = infer_config(source, config, weights, old / CONFIG)
        table = source.rules(config)
        theirs = rules.checked(table, weights, parameters, str(old))
        target = find_target(config, source.model_type, str(old))
        written = [name for name in parameters if not name.startswith("heads.pooler.")]

        def translate(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            ours = rules.loading(table, tensors, written)
            of_family = rules.saving(target.family.rules(target.config), ours)
            return rules.saving(target.architecture.rules(target.keys), of_family)

        meta = TransformedTensors(
            shapes_of(theirs), lambda name, t: torch.empty_like(t, device="meta")
        )
        yield _Model(
            target,
            translate(theirs),
            dict(translate(meta)),
            read_generation_settings(folder_with(GENERATION, old), config, values),
            [name for name in theirs if rules.ignored(table, name)],
        )


def _place(name: str) -> tuple[float, str]:
    """The order in the file: what is outside of layers, then by layer."""
    found = re.search(r"blk\.(\d+)\.", name)
    return (int(found[1]) if found else -1, name)


def _sizes(target: Target) -> Sizes:
    """What the choice of types depends on."""
    config = target.config
    experts = group_of(config, "experts")
    is_large = config.n_layers == 80 and target.name in ("llama", "qwen2")
    return Sizes(
        config.n_layers,
        experts.count if experts else 0,
        is_large and (target.name == "qwen2" or config.kv_heads != config.n_heads),
    )


# --- metadata -------------------------------------------------------------------------------------


def _general(new: Path, kind: str) -> Values:
    return {
        "general.type": "model",
        "general.name": new.stem,
        "general.file_type": WEIGHTS[kind][1],
        "general.quantization_version": 2,
    }


def _pooling(old: UntrustedPath) -> Values:
    """How the states of a text become its vector. Raises CheckpointError for what a file does not
    hold.
    """
    modules = read_modules(old)
    if modules is None:
        return {}
    problem = modules.problem
    if modules.pooling not in _POOLINGS:
        problem = f"pooling {modules.pooling!r}"
    elif modules.dense:
        problem = "dense layers after pooling"
    if problem:
        raise CheckpointError(f"{old}: GGUF files hold no {problem}; {REMEDY}")
    return {"bert.pooling_type": _POOLINGS[modules.pooling]}


def _read_tokenizer(folder: UntrustedPath) -> Tokenizer | None:
    """The tokenizer of a folder, if it has one. Raises CheckpointError for two."""
    codec, second = read_tokenizers(folder)
    if second is not None:
        raise CheckpointError(f"{folder}: GGUF files hold one tokenizer, and it has two; {REMEDY}")
    return codec


def _tokenizer_keys(codec: Tokenizer | None, model: _Model, place: str) -> TokenizerKeys:
    """The keys of the tokenizer, and the ids of special tokens that only the config names."""
    rows = model.shapes["token_embd.weight"].shape[0]
    config = model.target.config
    ids = {"bos": config.bos_id, "eos": config.eos_id, "padding": config.pad_id}
    named: Values = {
        f"{PREFIX}{role}_token_id": number
        for role, number in ids.items()
        if number is not None and 0 <= number < rows
    }
    if codec is None:
        return TokenizerKeys({MODEL: "no_vocab"} | named, [])
    ends = model.generation.get("eos_token_id")
    end_ids = ends if isinstance(ends, list) else [ends]
    values, notes = tokenizer_keys(
        codec, rows, [number for number in end_ids if isinstance(number, int)], place
    )
    end = f"{PREFIX}eos_token_id"
    if config.decoder_layers and end in named:  # without one, llama.cpp takes token 11
        values.setdefault(end, named[end])
    return TokenizerKeys(values, notes)


def _write_modelfile(path: Path, text: str) -> None:
    try:
        disk.replace_text(path, text)
    except OSError as error:
        raise cannot_write(path, error) from None
