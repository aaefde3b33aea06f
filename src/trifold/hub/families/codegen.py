"""CodeGen (Nijkamp et al. 2022): GPT-J, trained on four machines whose shares of q, v and k lie one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trifold.errors import SettingsError
from trifold.hub.decoders import below, classes, qkv
from trifold.hub.families import gptj
from trifold.hub.family import Family, architecture_of
from trifold.hub.rules import AnyRule, dealt
from trifold.nn import ModelConfig

CLASSES = classes("CodeGen")
MACHINES = 4


def _fits(config: ModelConfig) -> bool:
    return config.n_heads % MACHINES == 0 and gptj.fits(config, CLASSES)


def _read(values: Mapping[str, Any]) -> ModelConfig:
    config = gptj.read(values, CLASSES)
    if config.n_heads % MACHINES:
        raise SettingsError(f"n_head: {config.n_heads} is not a multiple of {MACHINES}, as CodeGen needs")
    return config


def _rules(config: ModelConfig) -> list[AnyRule]:
    theirs = below(config, "transformer") + "h.{i}.attn.qkv_proj"
    return [*gptj.all_but_qkv(config), *qkv(theirs, dealt(MACHINES, (1, 1, 1)), order="qvk")]


FAMILY = Family("codegen", architecture_of(CLASSES), _fits, gptj.write, _read, _rules, general=1)
