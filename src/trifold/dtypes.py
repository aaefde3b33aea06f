"""Names of the types of numbers, as PyTorch and as other programs write them."""

from typing import Literal, TypeAlias

# How the matrices of a model are held in memory, see `trifold.load`.
Weights: TypeAlias = Literal["full", "file", "int8", "int4"]
NAMES = {
    "float64": "fp64 f64 double",
    "float32": "fp32 f32 float single full",
    "bfloat16": "bf16 brain bfloat",
    "float16": "fp16 f16 half",
    "int8": "i8",
}
_NAME_OF = {alias: name for name, aliases in NAMES.items() for alias in aliases.split()}


def dtype_name(text: str) -> str:
    """The name of PyTorch for another one, such as bf16 or torch.half; other texts as they are."""
    name = text.strip().casefold().removeprefix("torch.").replace("-", "").replace("_", "")
    if name in NAMES:
        return name
    return _NAME_OF.get(name, text)
