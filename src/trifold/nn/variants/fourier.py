"""Fourier mixing instead of attention: y = Re(F_tokens(F_width(x)))
                                                (Lee-Thorp et al. 2022, "FNet", equation 3)

F is the discrete Fourier transform along the width, then along the tokens. It has no parameters,
and is not scaled. The cost grows with n·log n.

A row is transformed over its real tokens: one of n tokens has n frequencies, whatever the batch
pads it to. (The authors' program pads every text to one length, and transforms the padding too, so
that a state depends on how much there is.) Rows of one length are transformed together. Shapes: B
batch, T tokens, E model width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn.attention import AttentionInputs, AttentionLayer, Memo, ScoreBias
from trifold.nn.cache import LayerCache
from trifold.nn.config import CoreConfig
from trifold.nn.hooks import HookPoint
from trifold.nn.masks import Mask, RealFirst
from trifold.nn.parts import ScoresPart, UnscoredPart, part_of
from trifold.nn.precision import widened
from trifold.nn.problems import Problems, defaults
from trifold.settings import Conflict


class FourierMixing(AttentionLayer):
    """The hook point `mixed` (B, T, E) is y, 0 at padding."""

    formula = "Re(F_tokens(F_width(x)))"

    def __init__(self) -> None:
        super().__init__()
        self.mixed = HookPoint()

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask,
        bias: ScoreBias | None = None,
        rotary: object = None,
        cache: LayerCache | None = None,
        memo: Memo | None = None,
    ) -> Tensor:
        """See `AttentionLayer.forward`. There is no output projection."""
        return self.attend(x, memory, AttentionInputs(mask))

    def attend(self, x: Tensor, memory: Tensor | None, inputs: AttentionInputs) -> Tensor:
        """See `AttentionLayer.attend`."""
        mask = inputs.mask
        assert memory is None and mask.has_only(), "the transform reads every real token"
        first = RealFirst.of(mask.keys)
        rows = first.move(widened(mask.grid(x)))
        lengths = [rows.shape[1]] * len(rows)
        if mask.keys is not None:
            lengths = mask.keys.sum(1).tolist()
        mixed = rows.new_zeros(rows.shape)
        for length in set(lengths) - {0}:
            own = torch.tensor([each == length for each in lengths], device=x.device)
            states = torch.fft.fft2(rows[own, :length]).real
            mixed[own] = F.pad(states, (0, 0, 0, rows.shape[1] - length))
        return mask.flat(self.mixed(first.undo(mixed).to(x.dtype)))


class FourierPart(UnscoredPart):
    """Fourier mixing instead of attention."""

    value = "fourier"
    needs: ClassVar = {"shape": ("encoder",)}
    excludes = (
        "n_kv_heads d_head d_value attention_bias attention_out_bias attention_dropout qk_norm "
        "score_soft_cap attention_sinks attention_scale attention_scale_by_layer"
    )
    has_vectors = False

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return FourierMixing()

    def problems(self, config: CoreConfig) -> Problems:
        if (scores := part_of(ScoresPart, config)).new_rotary(config) is not None:
            text = f"{self.label(config)} rotates no queries: choose other positions than "
            yield Conflict(text + scores.value, defaults(config, scores.key, self.key))
        yield from super().problems(config)

    def terms(self, config: CoreConfig) -> list[str]:
        return ["0"]

    def matrices(self, config: CoreConfig) -> int:
        return 0

    def score_elements(self, config: CoreConfig, side: str, keys: int, read: Sequence[int]) -> int:
        """A transform of n numbers takes about 5·n·log₂ n operations; two make an element."""
        each = 2.5 * config.d_model * (math.log2(config.d_model) + math.log2(keys))
        return config.n_layers * round(each)

    def saved_weights(self, config: CoreConfig, kept: float, *, is_packed: bool) -> int:
        return 0

    def recorded_keys(self, config: CoreConfig, keys: int) -> int:
        return 0

    def phrase(self, config: CoreConfig) -> str:
        return "Fourier mixing instead of attention"


PARTS = (FourierPart(),)
