"""Models by name, in their published sizes: `trifold show gpt2`.

A model in presets.txt, which describes its own format, is the content of a config.json that its
family reads; nothing is allocated or downloaded. The number of parameters is the one its authors
announced, which is not always the number it has.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trifold.hub.families import FAMILIES
from trifold.nn import ModelConfig

UNITS = {"M": 10**6, "B": 10**9}


@dataclass(frozen=True)
class Preset:
    """A published model.

    announced: the number of parameters, like "117 M", if one was announced.
    file: the content of its config.json, without the defaults of the family.
    """

    announced: str | None
    file: Mapping[str, Any]

    @property
    def config(self) -> ModelConfig:
        return FAMILIES[self.file["model_type"]].read(self.file)

    def agrees(self, parameters: int) -> bool:
        """Whether the announced number is this one, rounded."""
        if self.announced is None:
            return True
        number, unit = self.announced.split()
        decimals = len(number.partition(".")[2])
        return round(parameters / UNITS[unit], decimals) == float(number)


# Other names, and the most used size of a family.
ALIASES = {
    "bert": "bert-base",
    "roberta": "roberta-base",
    "camembert": "camembert-base",
    "xlm-roberta": "xlm-roberta-base",
    "distilbert-base": "distilbert",
    "albert": "albert-base",
    "xlnet": "xlnet-base",
    "vit": "vit-b",
    "gpt-1": "gpt",
    "gpt1": "gpt",
    "openai-gpt": "gpt",
    "gpt-2": "gpt2",
    "gpt3": "gpt3-175b",
    "gpt-3": "gpt3-175b",
    "gpt-j": "gpt-j-6b",
    "gpt-neo": "gpt-neo-1.3b",
    "palm": "palm-540b",
    "llama": "llama-7b",
    "llama-30b": "llama-33b",
    "llama2": "llama2-7b",
    "llama3": "llama3-8b",
    "mistral": "mistral-7b",
    "falcon": "falcon-7b",
    "codegen": "codegen-350m",
    "starcoder2": "starcoder2-3b",
    "qwen2.5": "qwen2.5-7b",
    "qwen3": "qwen3-8b",
    "smollm2": "smollm2-1.7b",
    "smollm3": "smollm3-3b",
    "olmo2": "olmo2-7b",
    "nanochat": "nanochat-d20",
    "t5": "t5-base",
    "flan-t5": "flan-t5-base",
    "mt5": "mt5-small",
    "bart": "bart-base",
    "bigbird": "bigbird-roberta-base",
    "bigbird-pegasus": "bigbird-pegasus-large",
}


def _read(table: str) -> Iterator[tuple[str, Preset]]:
    """The name of each model of presets.txt, and the model."""
    for group in table.replace("\\\n", "").strip().split("\n\n")[1:]:
        _, header, *rows = group.splitlines()
        model_type, architecture, *keys = header.split()
        pairs = [key.split("=") for key in keys if "=" in key]
        common = {"model_type": model_type, "architectures": [architecture]}
        common |= {key: json.loads(value) for key, value in pairs}
        columns = [key for key in keys if "=" not in key]
        for row in rows:
            name, announced, *cells = row.split()
            number = None if announced == "-" else f"{announced[:-1]} {announced[-1]}"
            yield (
                name,
                Preset(number, common | dict(zip(columns, map(json.loads, cells), strict=True))),
            )


PRESETS: dict[str, Preset] = dict(_read(Path(__file__).with_name("presets.txt").read_text("utf-8")))
PRESETS |= {alias: PRESETS[name] for alias, name in ALIASES.items()}
