"""The Transformer: tensors in, tensors out. No text, files, distribution or model families.

To be read in this order: `config`, `packing`, `masks`, `inputs`, the places of `parts`, `norms`,
`layers`, `embeddings`, `positions`, `rotary`, `cache`, `ops`, `attention`, `walk`, `stack`,
`heads`, `transformer`, `losses`, `hooks`; then `variants`, one file for each. Parts are found by
`registry` and loaded by `outside`; with `problems`, `checks`, `formulas` and `explain` they
describe themselves. `rng` has the generator of dropout; `gradients` and `scan` serve functions with
their own backward pass.
"""

from trifold.nn.cache import Cache
from trifold.nn.hooks import capture
from trifold.nn.inputs import Inputs, Memory
from trifold.nn.masks import Mask
from trifold.nn.outside import load_part
from trifold.nn.presets import PRESETS
from trifold.nn.registry import register
from trifold.nn.transformer import Transformer
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
