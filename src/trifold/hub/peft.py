"""Write adapters in the format of the library peft; `peft_merge` reads them.

Their tensors have the names of `transformers`: PREFIX, the module, and one of PARTS; or PREFIX and
a parameter that replaces that of the base, such as a new head.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from trifold import disk
from trifold.errors import SettingsError
from trifold.folders import AnyPath, UntrustedPath, named
from trifold.hub import rules
from trifold.hub.families import FAMILIES
from trifold.hub.family import Family
from trifold.hub.files import replacing, write_json
from trifold.hub.folder import write_settings
from trifold.hub.names import ADAPTER, CONFIG, hub_id, resolve
from trifold.hub.peft_config import PREFIX, TENSORS, WHOLE, AdapterConfig
from trifold.hub.tensors import write_tensors
from trifold.hub.transforms import SAME, TRANSPOSED
from trifold.jsonfiles import read_json
from trifold.nn import ModelConfig
from trifold.nn.lora import LoRASettings

# Ours -> theirs.
PARTS = {
    "A": "lora_A.weight",
    "B": "lora_B.weight",
    "magnitude": "lora_magnitude_vector",
}
ADAPTABLE = (SAME, TRANSPOSED)  # how families store matrices that peft can adapt


def adapter_tensors(
    base: AnyPath, config: ModelConfig, weights: Mapping[str, Tensor], trained: Collection[str]
) -> dict[str, Tensor]:
    """The tensors of an adapter, under the names of all versions of `transformers`, from parameters
    by our names; trained: those that replace parameters of the base.

    Raises SettingsError if the base is an adapter, or its family has no modules for them.
    """
    family = _family_for(named(base), config)
    plain = {name: weight for name, weight in weights.items() if ".lora_" not in name}
    table = family.rules(config)
    tensors = dict[str, Tensor]()
    replaced = set[str]()
    for conversion in rules.conversions(table, plain):
        if any(name in trained for name in conversion.ours):
            replaced |= {*conversion.theirs}
        modules = [name.removesuffix("weight") for name in conversion.ours]
        for module in modules:
            if f"{module}lora_A" not in weights:
                continue
            theirs = conversion.theirs[0]
            if conversion.transform not in ADAPTABLE:
                raise SettingsError(
                    f"train.lora.targets: {family.model_type} stores {module}weight in another "
                    f"order or with others ({theirs}), where peft has no adapter for it; choose "
                    "other layers, such as in_proj"
                )
            for name in (theirs, *rules.other_names(table, theirs)):
                their_module = name.removesuffix("weight")
                for part, ending in PARTS.items():
                    if f"{module}lora_{part}" in weights:
                        tensors[f"{their_module}{ending}"] = weights[f"{module}lora_{part}"]
    tensors |= _whole_modules(replaced, table, rules.saving(table, plain))
    return {PREFIX + name: tensor.float() for name, tensor in tensors.items()}


def adaptable_modules(base: AnyPath, config: ModelConfig, names: Collection[str]) -> set[str]:
    """The modules, of the parameters of these names, that peft can adapt in the family of the base:
    those that it stores as they are, or transposed.
    """
    table = _family_for(named(base), config).rules(config)
    return {
        name.removesuffix(".weight")
        for conversion in rules.conversions(table, names)
        if conversion.transform in ADAPTABLE
        for name in conversion.ours
    }


def _family_for(base: UntrustedPath, config: ModelConfig) -> Family:
    """The family of a base. Raises SettingsError if a model of this config is not of it."""
    family = _family(base)
    if not family.fits(config):
        raise SettingsError(
            f"train.lora: {family.model_type}, the family of start_from, lacks parts of the model"
        )
    return family


def _family(base: UntrustedPath) -> Family:
    if (base / ADAPTER).exists():
        raise SettingsError(
            f"train.lora: start_from ({base}) is an adapter, on which peft loads no other; merge "
            "it with `trifold convert`, and start from the result"
        )
    return FAMILIES[read_json(base / CONFIG)["model_type"]]


def _whole_modules(
    replaced: Collection[str], table: Sequence[rules.AnyRule], saved: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The parameters of the modules that have one of the `replaced` ones or a tied copy of it: peft
    replaces whole modules, and unties what it replaces.
    """
    tied = rules.copies(table)
    sources = {name: name for name in saved} | {c: of for c, of in tied.items() if of in saved}
    changed = {name for name, source in sources.items() if source in replaced}
    modules = {f"{name.rpartition('.')[0]}." for name in changed} - {"."}
    return {
        alias: saved[source]
        for name, source in sources.items()
        if name in changed or name.startswith(tuple(modules))
        for alias in (name, *rules.other_names(table, name))
    }


def save_adapter(
    folder: Path,
    base: str,
    config: ModelConfig,
    settings: LoRASettings,
    weights: Mapping[str, Tensor],
    trained: Collection[str],
    generation: Mapping[str, object] | None = None,
) -> None:
    """Write an adapter, the config of the whole model, and its settings of generation. weights,
    trained: see `adapter_tensors`.
    """
    home = resolve(base)
    family = _family(home)
    tensors = adapter_tensors(home, config, weights, trained)
    name, revision = hub_id(home) or (_folder_or_id(base, home), None)
    names = [name.removeprefix(PREFIX) for name in tensors]
    parameter_rules = [
        rule for rule in family.rules(config) if isinstance(rule, rules.ParameterRule)
    ]
    keys = AdapterConfig(
        peft_type="LORA",
        task_type=None,
        base_model_name_or_path=name,
        revision=revision,
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        use_rslora=settings.rslora,
        use_dora=settings.dora,
        bias="none",
        fan_in_fan_out=any(rule.transform == TRANSPOSED for rule in parameter_rules),
        init_lora_weights=True,
        target_modules=sorted({name.rpartition(".lora_")[0] for name in names if ".lora_" in name}),
        modules_to_save=_modules_of(name for name in names if ".lora_" not in name),
        inference_mode=True,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / TENSORS) as temporary:
        write_tensors(temporary, tensors, tensors, sorted(tensors))
    write_settings(folder, family, config, generation or {}, torch.float32)
    disk.rename(folder / CONFIG, folder / WHOLE)
    # Old versions of peft refuse keys that they do not know.
    write_json(folder / ADAPTER, keys.model_dump(exclude_unset=True))


def _folder_or_id(base: str, home: UntrustedPath) -> str:
    """The absolute path of a base that is a folder or a GGUF file."""
    if not Path(base).expanduser().exists():
        return base
    return str(home.path.resolve())


def _modules_of(names: Iterable[str]) -> list[str]:
    """The modules of parameters, without those inside another of them. Buffers of the model itself
    have none, and are loaded in any case.
    """
    modules = sorted({name.rpartition(".")[0] for name in names} - {""})
    return [
        module for module in modules if not any(module.startswith(f"{other}.") for other in modules)
    ]
