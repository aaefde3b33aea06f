"""One Transformer, three shapes.

    encoder-decoder   tokens -> encoder -> memory;  target tokens -> decoder (reads memory) -> hidden states
    encoder           tokens -> encoder -> hidden states
    decoder           tokens -> decoder -> hidden states

The model gives hidden states; heads turn them into logits or losses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trifold.nn.cache import Cache
from trifold.nn.config import ModelConfig
from trifold.nn.embeddings import Embeddings, Inputs, TokenEmbedding
from trifold.nn.heads import LanguageModelHead
from trifold.nn.masks import Mask
from trifold.nn.packing import Packing
from trifold.nn.stack import Stack


@dataclass
class Memory:
    """What the encoder understood: hidden (B, S, E), or packed (1, N, E), and which positions are real (None: all)."""

    hidden: Tensor
    attend: Tensor | None = None
    packing: Packing | None = None

    def select(self, rows: Tensor) -> Memory:
        """The chosen rows only."""
        return Memory(self.hidden[rows], None if self.attend is None else self.attend[rows])


class Transformer(nn.Module):
    """Embeddings, an encoder and a decoder as the shape has them, and the language-model head of a decoder.

    `initialise=False` leaves the parameters as they come from memory, for weights that are about to be read.
    """

    def __init__(self, config: ModelConfig, *, initialise: bool = True) -> None:
        super().__init__()
        self.config = config
        reads, writes = config.encoder_layers > 0, config.decoder_layers > 0
        source = TokenEmbedding(config.vocab_size, config.d_model)
        target = source
        if config.target_vocab_size is not None:
            target = TokenEmbedding(config.target_vocab_size, config.d_model)
        self.encoder_embeddings = Embeddings(config, source) if reads else None
        self.encoder = Stack(config, config.encoder_layers) if reads else None
        self.decoder_embeddings = Embeddings(config, target) if writes else None
        self.decoder = Stack(config, config.decoder_layers, crosses=reads) if writes else None
        self.lm_head = self._head(target) if writes else None
        if initialise:
            self.reset_parameters()

    def _head(self, table: TokenEmbedding) -> LanguageModelHead:
        weight = table.weight if self.config.tie_lm_head else nn.Parameter(torch.empty_like(table.weight))
        return LanguageModelHead(weight, bias=self.config.lm_head_bias)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Xavier-uniform matrices (Glorot & Bengio 2010), embeddings N(0, 1/d_model), norms 1, biases 0."""
        for name, parameter in self.named_parameters():
            if parameter.is_meta:
                continue
            if parameter.dim() == 1:
                parameter.fill_(float(name.endswith("weight")))
            elif name.endswith(("tokens.weight", "positions.weight", "lm_head.weight")):
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            else:
                nn.init.xavier_uniform_(parameter)

    def encode(self, inputs: Inputs) -> Memory:
        """Read the source once: tokens (B, S) -> memory (B, S, E)."""
        assert self.encoder is not None and self.encoder_embeddings is not None, "this shape has no encoder"
        packing = inputs.packing
        attend = inputs.attend if packing is None else packing.attend
        hidden = self.encoder(self.encoder_embeddings(inputs), Mask(attend, packing=packing))
        return Memory(hidden, attend, packing)

    def decode(self, inputs: Inputs, memory: Memory | None = None, cache: Cache | None = None) -> Tensor:
        """Hidden states (B, T, E) of the decoder; position t sees the tokens up to t and all of the memory.

        With a cache, `inputs` holds the new tokens only, and the cache advances by them. The rows of `inputs` may
        be a multiple of the memory's: beams that stand together share one row of it.
        """
        assert self.decoder is not None and self.decoder_embeddings is not None, "this shape has no decoder"
        start = 0 if cache is None else cache.length
        x = self.decoder_embeddings(inputs, start)
        packing = inputs.packing
        mask = Mask(inputs.attend, causal=True, offset=start, packing=packing)
        if memory is None:
            return self.decoder(x, mask, cache=cache)
        memory_mask = Mask(memory.attend, packing=packing, key_packing=memory.packing)
        return self.decoder(x, mask, memory.hidden, memory_mask, cache)

    def forward(self, inputs: Inputs, decoder_inputs: Inputs | None = None) -> Tensor:
        """Hidden states (B, T, E) of the last stack."""
        if self.decoder is None:
            return self.encode(inputs).hidden
        if self.encoder is None:
            return self.decode(inputs)
        assert decoder_inputs is not None, "an encoder-decoder reads two inputs"
        return self.decode(decoder_inputs, self.encode(inputs))

    def new_cache(self) -> Cache:
        """An empty cache for this decoder."""
        return Cache(self.config.decoder_layers)

    def count_parameters(self) -> int:
        """Distinct parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())
