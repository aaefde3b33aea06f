"""Folders of sentence-transformers: modules.json names the modules after the Transformer: pooling,
then any number of dense layers, then normalization.

Names of classes are compared, never imported.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trifold.errors import CheckpointError, UsageError
from trifold.folders import AnyPath, UntrustedPath, named, read_bytes
from trifold.hub.files import write_json
from trifold.hub.weights import has_weights, read_weights, write_weights
from trifold.jsonfiles import MAX_JSON, parse_json, read_json
from trifold.nn.layers import ACTIVATIONS

MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
LIMITS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
TOKENIZER = "tokenizer_config.json"
MAX_DENSE = 8  # layers, beyond any model in use
# Characters; the longest in use have a few hundred, and each is read with every text.
MAX_PROMPT = 2**14
# Poolings in old folders, each with a boolean, and in new ones -> ours.
OLD = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
POOLINGS = OLD | {"cls": "cls", "mean": "mean", "max": "max"}
NO_LIMIT = 10**30  # as model_max_length
SIMILARITIES = (None, "cosine", "dot", "euclidean", "manhattan")
# Classes of activations -> ours; None: the identity.
IDENTITY = "torch.nn.modules.linear.Identity"
FUNCTIONS = {"Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
FUNCTIONS = {f"torch.nn.modules.activation.{name}": ours for name, ours in FUNCTIONS.items()}
# Keys of LIMITS without effect if they have these values, besides the keys that are read.
PLAIN = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
# Keys of modules after pooling without effect if they have these values.
VECTOR = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}


class Dense(NamedTuple):
    """activation(x Wᵀ + b) of a vector: weight (out, in), bias (out,) or None, activation a key of
    ACTIVATIONS.
    """

    weight: Tensor
    bias: Tensor | None
    activation: str | None

    def __call__(self, x: Tensor) -> Tensor:
        """x (B, in) -> (B, out) in float32. Raises UsageError for another width."""
        if x.shape[-1] != self.weight.shape[1]:
            raise UsageError(
                f"a dense layer of the folder reads vectors of width {self.weight.shape[1]}, "
                f"not {x.shape[-1]}"
            )
        bias = None if self.bias is None else self.bias.to(x.device).float()
        y = torch.nn.functional.linear(x.float(), self.weight.to(x.device).float(), bias)
        return y if self.activation is None else ACTIVATIONS[self.activation](y)


class SentenceModules(NamedTuple):
    """How the states of a text become its vector. max_length: the tokens of a text, which is
    truncated.

    problem: the modules or the setting that are not supported, if any. dense: layers after pooling.
    prompts: names of texts to be put before a text, by its purpose, and these texts.
    default_prompt: the name of the one that is used if none is chosen. similarity: the function
    with which the library compares vectors, such as "cosine".
    """

    pooling: str = "mean"
    normalise: bool = False
    max_length: int | None = None
    problem: str | None = None
    prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str | None = None
    dense: tuple[Dense, ...] = ()
    similarity: str | None = None


class _Module(NamedTuple):
    """A module of a folder: its own folder, and its class without the package."""

    path: str
    kind: str


def _modules_in_order(dense: int, *, normalise: bool) -> list[_Module]:
    """The modules of a supported folder with so many dense layers."""
    kinds = ["Transformer", "Pooling", *["Dense"] * dense, *["Normalize"] * normalise]
    numbered = [_Module(f"{number}_{kind}", kind) for number, kind in enumerate(kinds)]
    return [_Module("", kinds[0]), *numbered[1:]]


class _UnsupportedError(Exception):
    """Modules, or a setting of a module, that are not supported."""


def _unsupported(file: UntrustedPath, key: str, value: object) -> _UnsupportedError:
    return _UnsupportedError(f"{file}: {key:.60} {value!r:.60}")


# --- reading --------------------------------------------------------------------------------------


def read_modules(folder: AnyPath) -> SentenceModules | None:
    """The modules of a folder; None if it has no modules.json. Raises CheckpointError for an
    invalid file.
    """
    folder = named(folder)
    if not (folder / MODULES).exists():
        return None
    try:
        listed = _list_modules(folder / MODULES)
        modules = _read_prompts(folder)
        # Any last module, pooling too, must give the vector of the text.
        last = folder / listed[-1].path / "config.json"
        _check_vector(last, _read_settings(last))
        for module in listed:
            modules = READERS[module.kind](folder, module.path, modules)
        return modules
    except _UnsupportedError as error:
        return SentenceModules(problem=str(error))


def _list_modules(file: UntrustedPath) -> list[_Module]:
    """The modules that a file lists, which are the supported ones in their order."""
    # The file is a list, and `parse_json` reads objects.
    content = parse_json(b'{"": %b}' % read_bytes(file, MAX_JSON), str(file))[""]
    entries = content if isinstance(content, list) else []
    listed = [
        _Module(str(entry.get("path")), str(entry.get("type")).rpartition(".")[2])
        for entry in entries
        if isinstance(entry, dict)
    ]
    dense = sum(module.kind == "Dense" for module in listed)
    supported = [_modules_in_order(dense, normalise=normalise) for normalise in (False, True)]
    if dense > MAX_DENSE or listed not in supported:
        raise _UnsupportedError(f"{file}: {', '.join(module.kind for module in listed)}")
    return listed


def _read_settings(file: UntrustedPath) -> dict[str, Any]:
    """The content of a file, empty if there is none."""
    if not file.exists():
        return {}
    return read_json(file, largest=10 * NO_LIMIT)


def _read_transformer(
    folder: UntrustedPath, path: str, modules: SentenceModules
) -> SentenceModules:
    """Adds the length to which a text is truncated."""
    file = folder / path / LIMITS
    if not file.exists():  # old folders name it after the class of the model
        file = min((folder / path).glob("sentence_*_config.json"), default=file)
    settings = _read_settings(file)
    tokenizer = _read_settings(folder / path / TOKENIZER)
    lower = settings.pop("do_lower_case", None)
    if lower and tokenizer.get("do_lower_case") is not True:
        raise _unsupported(file, "do_lower_case", lower)
    length = settings.pop("max_seq_length", None) or tokenizer.get("model_max_length")
    for key, value in settings.items():
        if value and key != "unpad_inputs" and value != PLAIN.get(key):
            raise _unsupported(file, key, value)
    if not isinstance(length, int) or not 0 < length < NO_LIMIT:
        return modules
    return modules._replace(max_length=length)


def _read_pooling(folder: UntrustedPath, path: str, modules: SentenceModules) -> SentenceModules:
    """Adds how states become one vector."""
    file = folder / path / "config.json"
    settings = _read_settings(file)
    with_prompt = settings.get("include_prompt", True)  # pooling may leave the prompt out
    if not with_prompt:
        raise _unsupported(file, "include_prompt", with_prompt)
    mode = _pooling_mode(settings)
    if not isinstance(mode, str) or mode not in POOLINGS:
        raise _unsupported(file, "pooling", mode)
    return modules._replace(pooling=POOLINGS[mode])


def _pooling_mode(settings: Mapping[str, Any]) -> Any:
    """The name of the pooling, or all names if a file chooses several or none."""
    prefix = "pooling_mode_"
    chosen = [
        key.removeprefix(prefix)
        for key, is_chosen in settings.items()
        if key.startswith(prefix) and is_chosen
    ]
    if "pooling_mode" in settings:
        return settings["pooling_mode"]
    if len(chosen) == 1:
        return chosen[0]
    return chosen


def _read_dense(folder: UntrustedPath, path: str, modules: SentenceModules) -> SentenceModules:
    """Adds a dense layer after pooling."""
    home = folder / path
    file = home / "config.json"
    settings = read_json(file)
    name = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    _check_vector(file, settings)
    if not isinstance(name, str) or name not in {IDENTITY, *FUNCTIONS}:
        raise _unsupported(file, "activation_function", name)
    if not has_weights(home):
        raise _UnsupportedError(f"{home}: a dense layer without model.safetensors")
    tensors: Mapping[str, Tensor] = read_weights(home)
    outputs = settings.get("out_features")
    expected: dict[str, tuple[object, ...]] = {
        "linear.weight": (outputs, settings.get("in_features"))
    }
    if settings.get("bias") is not False:
        expected["linear.bias"] = (outputs,)
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
        raise CheckpointError(f"{home}: the weights do not fit config.json: {', '.join(tensors)}")
    bias = tensors["linear.bias"].clone() if "linear.bias" in expected else None
    layer = Dense(tensors["linear.weight"].clone(), bias, FUNCTIONS.get(name))
    return modules._replace(dense=(*modules.dense, layer))


def _read_normalize(folder: UntrustedPath, path: str, modules: SentenceModules) -> SentenceModules:
    """Adds the division of a vector by its length."""
    return modules._replace(normalise=True)


# Kind of module -> (the folder, the module's folder in it, the modules before) -> these and the
# module. Each raises _UnsupportedError for what is not supported.
READERS: dict[str, Callable[[UntrustedPath, str, SentenceModules], SentenceModules]] = {
    "Transformer": _read_transformer,
    "Pooling": _read_pooling,
    "Dense": _read_dense,
    "Normalize": _read_normalize,
}


def _check_vector(file: UntrustedPath, settings: Mapping[str, Any]) -> None:
    """Raise _UnsupportedError for a module after pooling that reads or gives anything but the
    vector of the text.
    """
    for key, value in VECTOR.items():
        if settings.get(key) not in (None, value):
            raise _unsupported(file, key, settings[key])


def _read_prompts(folder: UntrustedPath) -> SentenceModules:
    """The texts that are put before a text, and the comparison of vectors, without any module."""
    file = folder / PROMPTS
    settings = _read_settings(file)
    texts: Any = settings.get("prompts") or {}
    if not isinstance(texts, dict) or not all(
        isinstance(text, str) for text in texts.values() if text
    ):
        raise _unsupported(file, "prompts", texts)
    for name, text in texts.items():
        if len(text or "") > MAX_PROMPT:
            raise CheckpointError(
                f"{file}: prompts.{name:.60}: {len(text):,} characters; at most {MAX_PROMPT:,} are "
                "put before a text"
            )
    default = settings.get("default_prompt_name")
    if default is not None and default not in [*texts]:
        raise _unsupported(file, "default_prompt_name", default)
    similarity: Any = settings.get("similarity_fn_name")
    if similarity not in SIMILARITIES:
        raise _unsupported(file, "similarity_fn_name", similarity)
    return SentenceModules(
        prompts=tuple(sorted((name, text or "") for name, text in texts.items())),
        default_prompt=default,
        similarity=similarity,
    )


# --- writing --------------------------------------------------------------------------------------


def _write_dense(folder: Path, layer: Dense) -> None:
    outputs, inputs = layer.weight.shape
    names = {ours: name for name, ours in FUNCTIONS.items()} | {None: IDENTITY}
    settings = {
        "in_features": inputs,
        "out_features": outputs,
        "bias": layer.bias is not None,
        "activation_function": names[layer.activation],
    }
    write_json(folder / "config.json", settings)
    tensors = {"linear.weight": layer.weight}
    if layer.bias is not None:
        tensors["linear.bias"] = layer.bias
    write_weights(folder, tensors)


def write_modules(folder: Path, modules: SentenceModules, width: int, positions: int) -> None:
    """Write the inverse of `read_modules` for a model of this width. Raises CheckpointError for
    unsupported modules.
    """
    if modules.problem:
        raise CheckpointError(
            f"{modules.problem} is not supported; remove modules.json to keep the states"
        )
    listed = _modules_in_order(len(modules.dense), normalise=modules.normalise)
    for module in listed:
        (folder / module.path).mkdir(parents=True, exist_ok=True)
    dense = (module for module in listed if module.kind == "Dense")
    for module, layer in zip(dense, modules.dense, strict=True):
        _write_dense(folder / module.path, layer)
    modes = {f"pooling_mode_{name}": ours == modules.pooling for name, ours in OLD.items()}
    write_json(folder / POOLING, {"word_embedding_dimension": width, **modes})
    limit = min(modules.max_length or positions, positions)
    write_json(folder / LIMITS, {"max_seq_length": limit, "do_lower_case": False})
    if modules.prompts or modules.similarity:
        values: dict[str, object] = {"prompts": dict(modules.prompts)}
        values["default_prompt_name"] = modules.default_prompt
        if modules.similarity:
            values["similarity_fn_name"] = modules.similarity
        write_json(folder / PROMPTS, values)
    entries = [
        {
            "idx": number,
            "name": str(number),
            "path": module.path,
            "type": f"sentence_transformers.models.{module.kind}",
        }
        for number, module in enumerate(listed)
    ]
    write_json(folder / MODULES, entries)
