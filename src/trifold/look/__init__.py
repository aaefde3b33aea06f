"""Inspect a model: what it attends to, how it is built, what it costs.

To be read in this order: `comparison` and `drawing`, which need a config only; `plots`,
`attention`, `walkthrough`; `session` and the other requests of the page: `figures`, `views`,
`run_view`, `search`; `corpus`, `roles`, `effects`; then `requests`, `page` and `server`.
"""

from trifold.look.attention import AttentionMaps, read_attention

__all__ = ["AttentionMaps", "read_attention"]
