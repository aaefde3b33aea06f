"""The Transformer: tensors in, tensors out. No text, files, distribution or model families."""

from trifold.nn.cache import Cache
from trifold.nn.config import PRESETS, ModelConfig
from trifold.nn.config_parts import RotaryScaling
from trifold.nn.embeddings import Inputs
from trifold.nn.hooks import capture
from trifold.nn.masks import Mask
from trifold.nn.transformer import Memory, Transformer

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
]
