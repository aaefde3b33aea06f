"""Models by name, in their published sizes: `trifold show gpt2`.

Each line of presets.txt is the content of a config.json that its family reads; nothing is allocated
or downloaded. The number of parameters is the one its authors announced, which is not always the
number it has.
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
    "roberta": "roberta-base",
    "llama-30b": "llama-33b",
    "llama2": "llama2-7b",
    "llama3": "llama3-8b",
    "codegen": "codegen-350m",
    "mt5": "mt5-small",
    "distilbert-base": "distilbert",
}


def _read(table: str) -> Iterator[tuple[str, Preset]]:
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
