"""Inspect a model: what it attends to, how it is built, what it costs."""

from trifold.look.attention import AttentionMaps, read_attention

__all__ = ["AttentionMaps", "read_attention"]
