"""The Transformer in three shapes.

    encoder-decoder   tokens -> encoder -> memory;
                      target tokens -> decoder (reads the memory) -> hidden states
    encoder           tokens -> encoder -> hidden states
    decoder           tokens -> decoder -> hidden states

The model returns hidden states; heads turn them into logits or losses.
Shapes: B batch, T tokens, S source tokens, E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from trifold.nn.cache import Cache
from trifold.nn.embeddings import TokenEmbedding, default_segments
from trifold.nn.heads import HEADS, NEEDS_POSITIONS, LanguageModelHead
from trifold.nn.hooks import capture
from trifold.nn.inputs import Inputs, Memory
from trifold.nn.layers import Linear
from trifold.nn.masks import Mask
from trifold.nn.norms import Norm
from trifold.nn.parts import EmbeddingsPart, input_rules, part_of
from trifold.nn.stack import Stack, new_stack
from trifold.nn.variants import ModelConfig


class StatesOfStacks(dict[str, list[Tensor]]):
    """The states of each stack by its name."""

    def __missing__(self, name: str) -> list[Tensor]:
        known = " and ".join(map(repr, self))
        raise KeyError(f"{name}: this model has no such stack; its states are under {known}")


class Transformer(nn.Module):
    """Embeddings, an encoder, a decoder and heads, as the config has them.

    `initialize=False` leaves the parameters uninitialized, for weights that are loaded next.
    """

    def __init__(self, config: ModelConfig, *, initialize: bool = True) -> None:
        super().__init__()
        self.config = config
        # The format of the folder it was loaded from, preferred for saving, and the tensors of that
        # folder that nothing uses, under their names there.
        self.family: str | None = None
        self.unused: dict[str, Tensor] = {}
        embeddings = part_of(EmbeddingsPart, config)
        source = None
        if embeddings.has_tokens:
            source = TokenEmbedding(config.vocab_size, config.embedding_width)
        target = source
        if config.target_vocab_size is not None:
            target = TokenEmbedding(config.target_vocab_size, config.decoder_side.embedding_width)
        self.encoder_embeddings: nn.Module | None = None
        self.encoder: Stack | None = None
        if config.encoder_layers:
            self.encoder_embeddings = embeddings.new(config, source)
            self.encoder = new_stack(config, "encoder")
        self.decoder_embeddings: nn.Module | None = None
        self.decoder: Stack | None = None
        if config.decoder_layers:
            self.decoder_embeddings = embeddings.new(config.decoder_side, target)
            self.decoder = new_stack(config, "decoder", crosses=self.encoder is not None)
        self.projection: Linear | None = None
        if config.token_projection:
            self.projection = Linear(config.d_model, config.state_width, bias=False)
        last = config.output_side
        self.lm_head: LanguageModelHead | None = None
        if "lm" in config.chosen_heads:
            self.lm_head = _lm_head(last, target)
        self.heads = nn.ModuleDict(
            {
                name.replace("-", "_"): HEADS[name](last)
                for name in config.chosen_heads
                if name in HEADS
            }
        )
        if initialize:
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Xavier-uniform matrices (Glorot & Bengio 2010), embeddings N(0, 1/d_model), norms by
        their kind, other vectors 0.
        """
        for name, parameter in self.named_parameters():
            if parameter.is_meta:
                continue
            if parameter.dim() == 1:
                # The only weights with one axis are factors, of norms and of the stem of images.
                parameter.fill_(float(name.endswith("weight")))
            elif name.endswith(
                ("tokens.weight", "positions.weight", "token_types.weight", "lm_head.weight")
            ):
                side = self.config if name.startswith("encoder") else self.config.output_side
                nn.init.normal_(parameter, std=side.d_model**-0.5)
            else:
                nn.init.xavier_uniform_(parameter)
        for module in self.modules():
            if isinstance(module, Norm):
                module.reset()
        path = getattr(self.heads["sequence"], "path", None) if "sequence" in self.heads else None
        if path is not None:
            path.reset()

    def encode(self, inputs: Inputs) -> Memory:
        """tokens (B, S), or pixels, -> memory (B, S, E)."""
        assert self.encoder is not None and self.encoder_embeddings is not None, (
            "this shape has no encoder"
        )
        inputs = replace(inputs, segments=default_segments(self.config, inputs))
        rules = input_rules(self.config, inputs)
        hidden = self.encoder(
            self.encoder_embeddings(inputs),
            Mask(inputs.real, packing=inputs.packing, rules=rules),
            positions=inputs.positions,
            segments=inputs.segments,
        )
        return Memory(hidden, inputs.real, inputs.packing)

    def decode(
        self, inputs: Inputs, memory: Memory | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Hidden states (B, T, E) of the decoder; position t attends to the tokens up to t and to
        all of the memory.

        With a cache, `inputs` holds the new tokens only, and the cache advances. The number of rows
        may be a multiple of the memory's: consecutive rows (beams) share one of its rows.
        """
        assert self.decoder is not None and self.decoder_embeddings is not None, (
            "this shape has no decoder"
        )
        start = 0
        if cache is not None:
            start = cache.length
            cache.note_padding(inputs.attend)
        x = self.decoder_embeddings(inputs, start)
        packing = inputs.packing
        # The padding of packed rows comes after every query, so causality hides it.
        mask = Mask(inputs.attend, causal=True, offset=start, packing=packing)
        if memory is None:
            return self.projected(self.decoder(x, mask, cache=cache, positions=inputs.positions))
        memory_mask = Mask(memory.attend, packing=packing, key_packing=memory.packing)
        # Not `projected`: only models without an encoder have a projection.
        return self.decoder(x, mask, memory.hidden, memory_mask, cache, positions=inputs.positions)

    def projected(self, hidden: Tensor) -> Tensor:
        """Hidden states (…, E) in the width that heads read."""
        return hidden if self.projection is None else self.projection(hidden)

    def forward(self, inputs: Inputs, decoder_inputs: Inputs | None = None) -> Tensor:
        """Hidden states (B, T, E) of the last stack.

        Without `decoder_inputs` an encoder-decoder reads the inputs again, shifted right, as
        fine-tuned classifiers do.
        """
        if self.decoder is None:
            return self.encode(inputs).hidden
        if self.encoder is None:
            return self.decode(inputs)
        if decoder_inputs is None:
            start: int | Tensor = self.config.start_id
            if self.config.starts_with_last:
                start = inputs.tokens.gather(1, inputs.last_columns()[:, None])
            decoder_inputs = shift_right(inputs, start)
        return self.decode(decoder_inputs, self.encode(inputs))

    def query_states(self, inputs: Inputs, query_index: Tensor) -> Tensor:
        """The states (B, P, E) of a query stream that predict the tokens query_index (B, P) of
        inputs with an order. Raises NotImplementedError without a query stream.
        """
        embeddings = part_of(EmbeddingsPart, self.config)
        return embeddings.query_states(self, inputs, query_index)

    def head_outputs(
        self,
        inputs: Inputs,
        decoder_inputs: Inputs | None = None,
        *,
        heads: Iterable[str] | None = None,
    ) -> dict[str, Tensor]:
        """The outputs of the named heads (default: all) by name: logits, or the pooler's vectors;
        of packed inputs, those of the rows.

        Raises KeyError for a head that the model does not have.
        """
        return self.apply_heads(self(inputs, decoder_inputs), inputs, heads)

    def apply_heads(
        self, hidden: Tensor, inputs: Inputs, heads: Iterable[str] | None
    ) -> dict[str, Tensor]:
        """The outputs of the named heads for hidden states (B, T, E) of the last stack; see
        `head_outputs`.
        """
        hidden = inputs.packing.grid(hidden)
        inputs = inputs.grid()
        if heads is None:
            heads = [name for name in self.config.chosen_heads if name not in NEEDS_POSITIONS]
        pooled = None
        if "pooler" in self.heads:
            pooled = self.heads["pooler"](hidden, inputs, None)
        outputs: dict[str, Tensor] = {}
        for name in heads:
            if name == "lm" and self.lm_head is not None:
                outputs[name] = self.lm_head(hidden)
            elif name == "pooler" and pooled is not None:
                outputs[name] = pooled
            else:
                outputs[name] = self.heads[name.replace("-", "_")](hidden, inputs, pooled)
        return outputs

    @torch.no_grad()
    def hidden_states(
        self, inputs: Inputs, decoder_inputs: Inputs | None = None
    ) -> dict[str, list[Tensor]]:
        """n_layers + 1 tensors (B, T, E) for "encoder" and "decoder": the embeddings and the output
        of each layer, the last one after the final norm.
        """
        with capture(self, kind="state") as captured:
            self(inputs, decoder_inputs)
        states = StatesOfStacks()
        for side in self.config.stacks:
            stack = getattr(self, side)
            layers = range(len(stack.block_of_layer))
            *before, last = (captured[f"{side}.states.{layer}"] for layer in layers)
            before = [captured[f"{side}_embeddings.output"], *before]
            states[side] = [*before, self.projected(stack.final_norm(last))]
        return states

    def new_cache(
        self,
        kind: Literal["growing", "static", "sliding"] = "growing",
        *,
        capacity: int | None = None,
        rollback: int = 0,
    ) -> Cache:
        """An empty cache for this decoder: "growing"; "static" for `capacity` tokens (default: its
        positions); or "sliding", which keeps the tokens that the windows reach and `rollback` more,
        for `truncate`.
        """
        assert self.decoder is not None, "this shape has no decoder"
        if capacity is None:
            capacity = self.config.decoder_side.max_positions
        return self.decoder.new_cache(kind, capacity, rollback)

    def count_parameters(self) -> int:
        """The number of distinct parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())


def _lm_head(config: ModelConfig, table: TokenEmbedding | None) -> LanguageModelHead:
    assert table is not None, "a model of images has no vocabulary"
    if config.tie_lm_head:
        return LanguageModelHead(config, table.weight)
    width = config.embedding_width if config.lm_head_transform else config.state_width
    return LanguageModelHead(config, nn.Parameter(torch.empty(len(table.weight), width)))


def shift_right(inputs: Inputs, start: int | Tensor) -> Inputs:
    """The real tokens of each row shifted right by one, after `start`, (B, 1); padding stays where
    it is.
    """
    tokens = inputs.tokens.roll(1, dims=1)
    attend = inputs.attend
    tokens[:, :1] = start
    if attend is None or bool((attend[:, 1:] <= attend[:, :-1]).all()):
        return Inputs(tokens)  # causal attention does not reach padding at the end
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    # The column of the real token before each column; -1 if there is none.
    before = columns.where(attend, -1).cummax(1).values.roll(1, dims=1)
    before[:, 0] = -1
    return Inputs(inputs.tokens.gather(1, before.clamp_min(0)).where(before >= 0, start), attend)
