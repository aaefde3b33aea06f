"""Adapters in the format of the library peft. They are merged into their base when they are read.

Their tensors have the names of `transformers`: PREFIX, the module, and one of PARTS; or PREFIX and
a parameter that replaces that of the base, such as a new head.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from trifold import disk
from trifold.errors import CheckpointError, SettingsError
from trifold.hub import rules
from trifold.hub.families import FAMILIES
from trifold.hub.files import naming, replacing, write_json
from trifold.hub.folder import ADAPTER, CONFIG, infer_config, parse_config, resolve, write_settings
from trifold.hub.tensors import (
    TensorFile,
    TransformedTensors,
    list_problems,
    renamed_tensors,
    write_tensors,
)
from trifold.hub.transforms import SAME, TRANSPOSED
from trifold.hub.weights import read_weights
from trifold.jsonfiles import read_json
from trifold.nn import ModelConfig
from trifold.nn.lora import LoRASettings, adapted
from trifold.settings import Settings

TENSORS, PREFIX = "adapter_model.safetensors", "base_model.model."
WHOLE = (
    "model_config.json"  # with config.json, transformers takes the folder for that of a whole model
)
PARTS = {
    "A": "lora_A.weight",
    "B": "lora_B.weight",
    "magnitude": "lora_magnitude_vector",
}  # ours -> theirs

# --- saving ---------------------------------------------------------------------------------------


def adapter_tensors(
    base: Path, config: ModelConfig, weights: Mapping[str, Tensor], trained: Collection[str]
) -> dict[str, Tensor]:
    """The tensors of an adapter from parameters by our names; trained: those that replace
    parameters of the base.

    Raises SettingsError if the family of the base has no modules for them.
    """
    family = FAMILIES[read_json(base / CONFIG)["model_type"]]
    if not family.fits(config):
        raise SettingsError(
            f"train.lora: {family.model_type}, the family of start_from, lacks parts of the model"
        )
    plain = {name: weight for name, weight in weights.items() if ".lora_" not in name}
    saved, tensors = rules.saving(table := family.rules(config), plain), dict[str, Tensor]()
    for step in rules.steps(table, plain):
        if any(name in trained for name in step.ours):
            tensors |= {name: saved[name] for name in step.theirs}
        for part in (
            name.removesuffix("weight") for name in step.ours if f"{name[:-6]}lora_A" in weights
        ):
            if step.transform not in (SAME, TRANSPOSED):
                raise SettingsError(
                    f"train.lora.targets: {family.model_type} stores {part}weight in another "
                    "order or with others "
                    f"({step.theirs[0]}), where peft has no adapter for it; choose other "
                    "layers, such as in_proj"
                )
            own = {
                step.theirs[0].removesuffix("weight") + PARTS[key]: f"{part}lora_{key}"
                for key in PARTS
            }
            tensors |= {theirs: weights[ours] for theirs, ours in own.items() if ours in weights}
    return {PREFIX + name: tensor.float() for name, tensor in tensors.items()}


def save_adapter(
    folder: Path, base: str, config: ModelConfig, settings: LoRASettings, *given: Any
) -> None:
    """Write an adapter, and the config of the whole model. given: the last arguments of
    `adapter_tensors`.
    """
    home = resolve(base)
    family = FAMILIES[read_json(home / CONFIG)["model_type"]]
    tensors = adapter_tensors(home, config, *given)
    names = [name.removeprefix(PREFIX) for name in tensors]
    keys = AdapterConfig(
        base_model_name_or_path=str(home.resolve()) if Path(base).expanduser().is_dir() else base,
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        use_rslora=settings.rslora,
        use_dora=settings.dora,
        fan_in_fan_out=TRANSPOSED
        in [getattr(rule, "transform", None) for rule in family.rules(config)],
        target_modules=sorted({name.rpartition(".lora_")[0] for name in names if ".lora_" in name}),
        modules_to_save=sorted({name.rpartition(".")[0] for name in names if ".lora_" not in name}),
    )
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / TENSORS) as temporary:
        write_tensors(temporary, tensors, tensors, sorted(tensors))
    write_settings(folder, family, config, {}, torch.float32)
    disk.rename(folder / CONFIG, folder / WHOLE)
    write_json(folder / ADAPTER, keys.model_dump())


# --- loading --------------------------------------------------------------------------------------

CLASSES = {
    "SEQ_CLS": "SequenceClassification",
    "TOKEN_CLS": "TokenClassification",
    "QUESTION_ANS": "QuestionAnswering",
}
# Keys without effect on a trained adapter. Others that are not known must be empty.
IGNORED = """
    auto_mapping exclude_modules layers_pattern layers_to_transform megatron_core peft_version
    qalora_group_size
""".split()


class AdapterConfig(Settings):
    """The content of adapter_config.json."""

    peft_type: Literal["LORA"] = "LORA"
    task_type: str | None = None
    base_model_name_or_path: str
    r: int = Field(gt=0)
    lora_alpha: float = Field(gt=0)
    lora_dropout: float = 0.0
    use_rslora: bool = False
    use_dora: bool = False
    bias: Literal["none"] = "none"
    fan_in_fan_out: bool = False  # whether the modules hold transposed matrices
    init_lora_weights: bool | Literal["gaussian"] = True  # other initializations change the base
    target_modules: str | list[str] | None = None
    modules_to_save: list[str] | None = None
    inference_mode: bool = True


def read_adapter_config(folder: Path) -> tuple[AdapterConfig, Path]:
    """The settings of an adapter, and the folder of its base. Raises CheckpointError."""
    values, own = read_json(folder / ADAPTER), AdapterConfig.model_fields
    with naming(folder / ADAPTER):
        keys = AdapterConfig.parse(
            {k: v for k, v in values.items() if k in own or (v and k not in IGNORED)}
        )
    base = resolve(keys.base_model_name_or_path)
    if (base / ADAPTER).is_file():
        raise CheckpointError(
            f"{folder / ADAPTER}: its base {base} is an adapter; merge that with `trifold convert`"
        )
    return keys, base


def read_adapter(folder: Path) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """The content of config.json and the weights of the base, with the adapter merged. Raises
    CheckpointError.
    """
    (keys, base), file = read_adapter_config(folder), TensorFile(folder / TENSORS)
    values = read_json(place := folder / WHOLE if (folder / WHOLE).is_file() else base / CONFIG)
    heads = {name.removeprefix(PREFIX): (file, name) for name in file if ".lora_" not in name}
    if place.parent == base and keys.task_type in CLASSES and values.get("model_type") in FAMILIES:
        rows = [len(file[name]) for _, name in heads.values() if file[name].dim() == 2]
        named = [f"{FAMILIES[values['model_type']].stem}For{CLASSES[keys.task_type]}"]
        values |= {"architectures": named, "num_labels": min(rows, default=None), "id2label": None}
    family, config = parse_config(values, place)
    config, parameters = infer_config(family, config, weights := read_weights(base), place)
    expected = rules.saving(table := family.rules(config), parameters)
    theirs = rules.renamed(table, weights, expected)
    tensors = {
        name: (theirs, name) for name in theirs if name in expected
    }  # without those of other heads
    modules = {
        name.removeprefix(PREFIX).rpartition(".lora_")[0] for name in file if ".lora_" in name
    }
    if unknown := sorted(f"{name!r}" for name in modules if f"{name}.weight" not in tensors):
        raise list_problems(
            f"{folder / TENSORS}: adapters of modules that {base} does not have", unknown
        )

    def merged(name: str, weight: Tensor) -> Tensor:
        module = name.removesuffix(".weight")
        if module not in modules:
            return weight
        parts = [f"{PREFIX}{module}.{part}" for part in PARTS.values()]
        a, b, magnitude = (file[part].float() if part in file else None for part in parts)
        matrix = (weight.mT if keys.fan_in_fan_out else weight).float()
        outputs, inputs = matrix.shape
        shapes = [(keys.r, inputs), (outputs, keys.r), (outputs,) if keys.use_dora else None]
        if [None if part is None else tuple(part.shape) for part in (a, b, magnitude)] != shapes:
            expected_parts = zip(PARTS.values(), shapes, strict=True)
            wanted = ", ".join(f"{part} {shape}" for part, shape in expected_parts if shape)
            raise CheckpointError(
                f"{folder / TENSORS}: {module} lacks the tensors {wanted} of {ADAPTER}"
            )
        assert a is not None and b is not None
        scale = LoRASettings(rank=keys.r, alpha=keys.lora_alpha, rslora=keys.use_rslora).scale
        whole = adapted(matrix, a, b, scale, magnitude)
        return (whole.mT if keys.fan_in_fan_out else whole).to(weight.dtype)

    return values, TransformedTensors(renamed_tensors(tensors | heads), merged)
