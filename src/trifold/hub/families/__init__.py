"""All families by `model_type`, each imported when it is first used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trifold.hub.family import Family

# The file of each family in this folder, in the order in which they are tried for a config that was made here.
FILES = {
    model_type: file
    for file, model_types in {
        "bert": "albert bert distilbert roberta camembert xlm-roberta",
        "bart": "bart marian",
        "gpt": "gpt2 gpt_bigcode openai-gpt gpt_neo gpt_neox gptj codegen",
        "llama": "llama mistral starcoder2",
        "t5": "t5 mt5",
        "vit": "vit",
        "xlnet": "xlnet",
        "falcon": "falcon",
        "native": "trifold",
    }.items()
    for model_type in model_types.split()
}

NATIVE = "trifold"  # the model_type of our own format


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
