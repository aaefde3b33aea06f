"""Settings of adapters in the format of the library peft, and the modules that they select."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from trifold.errors import CheckpointError
from trifold.folders import UntrustedPath
from trifold.hub.files import naming
from trifold.hub.name_handler import answer
from trifold.hub.names import ADAPTER, CONFIG, resolve
from trifold.hub.unknown_keys import UnknownKeys, reference_keys, warn_of_ignored
from trifold.jsonfiles import read_json
from trifold.nn.lora import LoRASettings
from trifold.sandbox import Sandbox, SandboxError
from trifold.settings import Settings

TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
# Not config.json, with which transformers takes the folder for that of a whole model.
WHOLE = "model_config.json"
# Keys without effect on a trained adapter.
IGNORED = "auto_mapping megatron_core peft_version qalora_group_size".split()
# Initializations that leave the base as it is.
INITIALIZATIONS = Literal["gaussian", "eva", "orthogonal", "mica"]
Names = str | list[str] | None
T = TypeVar("T", int, float)


class AdapterConfig(Settings):
    """The content of adapter_config.json.

    target_modules, exclude_modules: the ends of the names of modules, or a pattern of whole names.
    rank_pattern, alpha_pattern: pattern of the end of a name -> its rank or α instead of `r` or
    `lora_alpha`.
    trainable_token_indices: rows of the table of embeddings that the adapter replaces, or of the
        modules whose names end with these keys.
    """

    peft_type: Literal["LORA"] = "LORA"
    task_type: str | None = None
    base_model_name_or_path: str
    revision: str | None = None  # of the base
    r: int = Field(gt=0)
    rank_pattern: dict[str, Annotated[int, Field(gt=0)]] | None = None
    lora_alpha: float = Field(gt=0)
    alpha_pattern: dict[str, Annotated[float, Field(gt=0)]] | None = None
    lora_dropout: float = 0.0
    use_rslora: bool = False
    use_dora: bool = False
    bias: Literal["none", "all", "lora_only"] = "none"  # which biases the file replaces
    lora_bias: bool = False  # whether B has a bias
    fan_in_fan_out: bool = False  # follows from the base
    init_lora_weights: bool | INITIALIZATIONS = True
    target_modules: Names = None
    exclude_modules: Names = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: Names = None
    modules_to_save: list[str] | None = None
    trainable_token_indices: list[int] | dict[str, list[int]] | None = None
    ensure_weight_tying: bool = False
    inference_mode: bool = True

    def lora(self, module: str) -> LoRASettings:
        """Rank and scale of the adapter of a module."""
        rank = _first(self.rank_pattern, module, self.r)
        alpha = _first(self.alpha_pattern, module, self.lora_alpha)
        return LoRASettings(rank=rank, alpha=alpha, rslora=self.use_rslora)

    def replaces(self, name: str) -> bool:
        """Whether a parameter is part of a module that the adapter has a copy of. As in peft, a
        module is one if its name ends with one of `modules_to_save`.
        """
        parts = name.split(".")
        inside = [".".join(parts[:count]) for count in range(1, len(parts))]
        saved = tuple(self.modules_to_save or ())
        return any(module.endswith(saved) for module in inside)

    def rows(self, module: str) -> list[int] | None:
        """The rows of a table that the adapter replaces."""
        chosen = self.trainable_token_indices
        if not isinstance(chosen, dict):
            return chosen
        return next((rows for key, rows in chosen.items() if module.endswith(key)), None)

    def select(self, modules: Iterable[str]) -> set[str]:
        """Those of the modules that peft would adapt: it ignores the tensors of others."""
        if self.target_modules is None or self.target_modules == "all-linear":
            return set(modules)
        return {
            module
            for module in modules
            if not _is_named(module, self.exclude_modules)
            and not any(f".{saved}." in f".{module}." for saved in self.modules_to_save or ())
            and self._is_target(module)
        }

    def _is_target(self, module: str) -> bool:
        targets = self.target_modules
        layers = self.layers_to_transform
        if isinstance(targets, str) or module in (targets or ()) or layers in (None, []):
            return _is_named(module, targets)
        layer = self._layer(module)
        chosen = [layers] if isinstance(layers, int) else layers
        return _is_named(module, targets) and layer is not None and layer in (chosen or ())

    def _layer(self, module: str) -> int | None:
        """The number of the layer of a module: the first number in its name, or that after one of
        `layers_pattern`.
        """
        patterns = self.layers_pattern or []
        if isinstance(patterns, str):
            patterns = [patterns]
        forms = [(r"(?:^|.*?\.)PATTERN\.(?P<number>\d+)\.", pattern) for pattern in patterns]
        for form, pattern in forms or [(r".*?\.[^.]*\.(?P<number>\d+)\.", "")]:
            if (number := _match(form, pattern, module)) is not None:
                return int(number)
        return None


def read_adapter_config(folder: UntrustedPath) -> tuple[AdapterConfig, UntrustedPath]:
    """The settings of an adapter, and the folder of its base. Raises CheckpointError."""
    place = folder / ADAPTER
    values = read_json(place)
    known = AdapterConfig.model_fields
    unknown = UnknownKeys("peft")
    for key, value in values.items():
        if value and key not in known and key not in IGNORED:
            unknown.add(key, value, [] if key in reference_keys().adapter else None)
    with naming(place):
        unknown.check()
        keys = AdapterConfig.parse({key: value for key, value in values.items() if key in known})
    missing = known.keys() - values.keys()
    warn_of_ignored(str(place), unknown, missing, values.get("peft_version"))
    base = resolve(keys.base_model_name_or_path, revision=keys.revision)
    if not _is_of_a_model(base):
        raise CheckpointError(
            f"{place}: base_model_name_or_path: {base} is not the folder of a model; name that of "
            "the base, or its id on the hub"
        )
    if (base / ADAPTER).exists():
        raise CheckpointError(
            f"{folder / ADAPTER}: its base {base} is an adapter; merge that with `trifold convert`"
        )
    return keys, base


def _is_of_a_model(base: UntrustedPath) -> bool:
    """Whether a folder is that of a model. The adapter may come from others and names any folder,
    so no error quotes what is in one that is none.
    """
    if (base / ADAPTER).exists():
        return True
    with suppress(CheckpointError):
        return isinstance(read_json(base / CONFIG).get("model_type"), str)
    return False


# --- names of modules -----------------------------------------------------------------------------

_PLAIN = re.compile(r"[\w.^$\\-]*", re.ASCII)  # patterns that take linear time
_SANDBOX = Sandbox(Path(__file__).with_name("name_handler.py"))
_TIMEOUT = 2.0  # seconds; a harmless pattern takes microseconds
_MEMORY = 1 << 28  # bytes


def ends_with(module: str, pattern: str) -> bool:
    """Whether a pattern matches the whole name of a module, or its end after a dot."""
    return _match(r"(?:.*\.)?(?:PATTERN)$", pattern, module) is not None


def _first(patterns: Mapping[str, T] | None, module: str, usual: T) -> T:
    """The value of the first pattern that matches the end of a name."""
    for pattern, value in (patterns or {}).items():
        if ends_with(module, pattern):
            return value
    return usual


def _is_named(module: str, names: Names) -> bool:
    """Whether a pattern matches the whole name, or the name is or ends with one of a list."""
    if isinstance(names, str):
        return _match(r"(?:PATTERN)\Z", names, module) is not None
    return any(f".{module}".endswith(f".{name}") for name in names or ())


@lru_cache(maxsize=4096)
def _match(form: str, pattern: str, module: str) -> str | None:
    """Match the beginning of a name with `form`, a regular expression in which PATTERN stands for
    the pattern. Returns its group `number`, empty if it has no such group; None without a match.

    A pattern may take longer than any time limit, so all but plain ones are matched in a sandbox
    process. Raises CheckpointError if one takes too long, and for an invalid one.
    """
    request = {"pattern": form.replace("PATTERN", pattern), "name": module}
    try:
        if _PLAIN.fullmatch(pattern):
            response: Mapping[str, Any] = answer(request)
        else:
            response = _SANDBOX.request(request, timeout=_TIMEOUT, memory=_MEMORY)
        problem = response.get("error")
    except SandboxError as error:
        response = {}
        problem = str(error)
    if problem is not None:
        raise CheckpointError(
            f"{ADAPTER}: the pattern {pattern!r:.100} cannot be matched: {problem!s:.100}; "
            "list the names of the modules"
        )
    number = response.get("number")
    if number is None:
        return None
    return str(number)
