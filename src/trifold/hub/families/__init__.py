"""All families by `model_type`, each imported when it is first used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trifold.hub.family import Family

# The file of each family in this folder, in the order in which they are tried for a config that was made here.
FILES = {
    "albert": "bert",
    "bart": "bart",
    "bert": "bert",
    "distilbert": "bert",
    "gpt2": "gpt",
    "gpt_bigcode": "gpt",
    "openai-gpt": "gpt",
    "gpt_neo": "gpt",
    "gpt_neox": "gpt",
    "gptj": "gpt",
    "llama": "llama",
    "mistral": "llama",
    "marian": "bart",
    "roberta": "bert",
    "camembert": "bert",
    "xlm-roberta": "bert",
    "starcoder2": "llama",
    "t5": "t5",
    "mt5": "t5",
    "vit": "vit",
    "xlnet": "xlnet",
    "falcon": "falcon",
    "codegen": "gpt",
    "trifold": "native",
}


class Families(Mapping[str, "Family"]):
    """The families in `FILES`."""

    def __getitem__(self, model_type: str) -> Family:
        values = vars(import_module(f"{__name__}.{FILES[model_type]}")).values()
        family: Family = next(value for value in values if getattr(value, "model_type", None) == model_type)
        return family

    def __iter__(self) -> Iterator[str]:
        return iter(FILES)

    def __len__(self) -> int:
        return len(FILES)


FAMILIES = Families()
