"""CodeGen (Nijkamp et al. 2022): GPT-J whose queries, values and keys are stored in four shares, one per machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trifold.errors import SettingsError
from trifold.hub.decoders import classes
from trifold.hub.families import gptj
from trifold.hub.family import Fields, Group
from trifold.hub.rules import dealt

MACHINES = 4
NAMES = {ours: theirs for ours, theirs in gptj.RULES.names.items() if "{p" not in ours}


def _check(file: Any, fields: Fields) -> Fields:
    if file.n_head % MACHINES:
        raise SettingsError(f"n_head: {file.n_head} is not a multiple of {MACHINES}, as CodeGen requires")
    return {}


FAMILY = replace(
    gptj.FAMILY,
    model_type="codegen",
    stem="CodeGen",
    classes=classes("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    entries=(*gptj.FAMILY.entries, Group({}, _check)),
    rules=replace(
        gptj.RULES,
        names=NAMES,
        qkv="attn.qkv_proj",
        order="qvk",
        split=lambda config: dealt(MACHINES, (1, 1, 1)),
    ),
    general=1,
)
