"""The Transformer: tensors in, tensors out. No text, files, distribution or model families.

To be read in this order: the places of `parts`, then `config`, `layers`, `packing`, `masks`,
`embeddings`, `positions`, `rotary`, `cache`, `ops`, `attention`, `walk`, `stack`, `transformer`,
`heads`, `losses`, `hooks`; then `variants`, one file for each.
"""

from trifold.nn.cache import Cache
from trifold.nn.embeddings import Inputs
from trifold.nn.hooks import capture
from trifold.nn.masks import Mask
from trifold.nn.outside import load_part
from trifold.nn.parts import register
from trifold.nn.presets import PRESETS
from trifold.nn.transformer import Memory, Transformer
from trifold.nn.variants import ModelConfig
from trifold.nn.variants.rotary_scaling import RotaryScaling

__all__ = [
    "PRESETS",
    "Cache",
    "Inputs",
    "Mask",
    "Memory",
    "ModelConfig",
    "RotaryScaling",
    "Transformer",
    "capture",
    "load_part",
    "register",
]
