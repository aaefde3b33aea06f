"""Inspect a model: what it attends to, how it is built, what it costs."""

import sys
from typing import TYPE_CHECKING

from trifold.deprecated import renamed
from trifold.look.attention import AttentionMaps, read_attention

__all__ = ["AttentionMaps", "read_attention"]

if not TYPE_CHECKING:

    def __getattr__(name):
        return renamed(sys.modules[__name__], __name__, name)
