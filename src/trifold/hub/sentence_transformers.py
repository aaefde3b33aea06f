"""Folders of sentence-transformers: modules.json names the modules after the Transformer: pooling,
then any number of dense layers, then normalization.

Names of classes are compared, never imported.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trifold.errors import CheckpointError, UsageError
from trifold.hub.files import write_json
from trifold.hub.weights import has_weights, read_weights, write_weights
from trifold.jsonfiles import MAX_JSON, check_inside, parse_json, read_bytes, read_json
from trifold.nn.layers import ACTIVATIONS

MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
LIMITS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
TOKENIZER = "tokenizer_config.json"
MAX_DENSE = 8  # layers, beyond any model in use
# Poolings in old folders, each with a boolean, and in new ones -> ours.
OLD = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
POOLINGS = OLD | {"cls": "cls", "mean": "mean", "max": "max"}
NO_LIMIT = 10**30  # as model_max_length
SIMILARITIES = (None, "cosine", "dot", "euclidean", "manhattan")
# Classes of activations -> ours; None: the identity.
IDENTITY = "torch.nn.modules.linear.Identity"
FUNCTIONS = {"Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
FUNCTIONS = {f"torch.nn.modules.activation.{name}": ours for name, ours in FUNCTIONS.items()}
# Keys without effect: of LIMITS with these values, besides the keys that are read; of modules after
# pooling.
PLAIN = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
DENSE = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding") | {
    "use_residual": False
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


def _steps(dense: int, normalise: bool) -> list[tuple[str, str]]:
    """Folders and classes."""
    names = ["Transformer", "Pooling", *["Dense"] * dense, *["Normalize"] * normalise]
    return [("" if number == 0 else f"{number}_{name}", name) for number, name in enumerate(names)]


def read_modules(folder: Path) -> SentenceModules | None:
    """The modules of a folder; None if it has no modules.json. Raises CheckpointError for an
    invalid file.
    """
    place = folder / MODULES
    if not place.is_file():
        return None
    found = parse_json(b'{"": %b}' % read_bytes(place, MAX_JSON), str(place))[""]
    listed = [step for step in found if isinstance(step, dict)] if isinstance(found, list) else []
    steps = [(str(step.get("path")), str(step.get("type")).rpartition(".")[2]) for step in listed]
    count = sum(name == "Dense" for _, name in steps)
    normalise = steps == _steps(count, normalise=True)
    if count > MAX_DENSE or not (normalise or steps == _steps(count, normalise=False)):
        return SentenceModules(problem=f"{place}: {', '.join(name for _, name in steps)}")
    old = min((place.name for place in folder.glob("sentence_*_config.json")), default=LIMITS)
    size = LIMITS if (folder / LIMITS).is_file() else old
    final = (
        f"{steps[-1][0]}/config.json"  # of pooling, whose keys are others, or of a module after it
    )
    pooling, limits, prompts, tokenizer, last = (
        read_json(folder / name, largest=10 * NO_LIMIT) if (folder / name).is_file() else {}
        for name in (POOLING, size, PROMPTS, TOKENIZER, final)
    )
    modes = [
        key[13:] for key, chosen in pooling.items() if key.startswith("pooling_mode_") and chosen
    ]
    mode: Any = pooling.get("pooling_mode", modes[0] if len(modes) == 1 else modes)
    texts: Any = prompts.get("prompts") or {}
    valid = isinstance(texts, dict) and all(
        isinstance(text, str) for text in texts.values() if text
    )
    named = {name: text or "" for name, text in texts.items()} if valid else {}
    default = prompts.get("default_prompt_name")
    lower = limits.pop("do_lower_case", None)
    similarity: Any = prompts.get("similarity_fn_name")
    length = limits.pop("max_seq_length", None) or tokenizer.get("model_max_length")
    pooled = pooling.get("include_prompt", True)  # pooling may leave the prompt out
    for file, key, value, supported in (
        (size, "do_lower_case", lower, not lower or tokenizer.get("do_lower_case") is True),
        (PROMPTS, "prompts", texts, valid),
        (PROMPTS, "default_prompt_name", default, default is None or default in [*named]),
        (PROMPTS, "similarity_fn_name", similarity, similarity in SIMILARITIES),
        (POOLING, "include_prompt", pooled, pooled),
        *(
            (size, k, v, not v or k == "unpad_inputs" or v == PLAIN.get(k))
            for k, v in limits.items()
        ),
        *((final, k, last.get(k), last.get(k) in (None, v)) for k, v in DENSE.items()),
    ):
        if not supported:
            return SentenceModules(problem=f"{folder / file}: {key:.60} {value!r:.60}")
    if not isinstance(mode, str) or mode not in POOLINGS:
        return SentenceModules(problem=f"{folder / POOLING}: pooling {mode!r:.60}")
    limit = length if isinstance(length, int) and 0 < length < NO_LIMIT else None
    try:
        dense = tuple(_read_dense(folder / path) for path, name in steps if name == "Dense")
    except _UnsupportedError as error:
        return SentenceModules(problem=str(error))
    sorted_prompts = tuple(sorted(named.items()))
    return SentenceModules(
        POOLINGS[mode], normalise, limit, None, sorted_prompts, default, dense, similarity
    )


class _UnsupportedError(Exception):
    """A dense layer that is not supported."""


def _read_dense(folder: Path) -> Dense:
    check_inside(folder)
    settings = read_json(folder / "config.json")
    name = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    for key, value in DENSE.items():
        if settings.get(key) not in (None, value):
            raise _UnsupportedError(f"{folder / 'config.json'}: {key} {settings[key]!r:.60}")
    if not isinstance(name, str) or name not in {IDENTITY, *FUNCTIONS}:
        raise _UnsupportedError(f"{folder / 'config.json'}: activation_function {name!r:.60}")
    if not has_weights(folder):
        raise _UnsupportedError(f"{folder}: a dense layer without model.safetensors")
    tensors: Mapping[str, Tensor] = read_weights(folder)
    outputs, inputs, biased = (settings.get(key) for key in ("out_features", "in_features", "bias"))
    expected: dict[str, tuple[object, ...]] = {"linear.weight": (outputs, inputs)}
    expected |= {} if biased is False else {"linear.bias": (outputs,)}
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
        raise CheckpointError(f"{folder}: the weights do not fit config.json: {', '.join(tensors)}")
    bias = tensors["linear.bias"].clone() if "linear.bias" in expected else None
    return Dense(tensors["linear.weight"].clone(), bias, FUNCTIONS.get(name))


def _write_dense(folder: Path, layer: Dense) -> None:
    outputs, inputs = layer.weight.shape
    names = {ours: name for name, ours in FUNCTIONS.items()}
    name = IDENTITY if layer.activation is None else names[layer.activation]
    sizes = {"in_features": inputs, "out_features": outputs, "bias": layer.bias is not None}
    write_json(folder / "config.json", sizes | {"activation_function": name})
    tensors = {"linear.weight": layer.weight} | (
        {} if layer.bias is None else {"linear.bias": layer.bias}
    )
    write_weights(folder, tensors)


def write_modules(folder: Path, modules: SentenceModules, width: int, positions: int) -> None:
    """Write the inverse of `read_modules` for a model of this width. Raises CheckpointError for
    unsupported modules.
    """
    if modules.problem:
        raise CheckpointError(
            f"{modules.problem} is not supported; remove modules.json to keep the states"
        )
    steps = _steps(len(modules.dense), modules.normalise)
    for path, _ in steps:
        (folder / path).mkdir(parents=True, exist_ok=True)
    for layer, (path, _) in zip(modules.dense, steps[2:], strict=False):
        _write_dense(folder / path, layer)
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
    types = [(path, f"sentence_transformers.models.{name}") for path, name in steps]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(types)
    ]
    write_json(folder / MODULES, listed)
