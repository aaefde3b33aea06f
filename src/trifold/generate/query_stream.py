"""Models with a query stream write text from left to right (Yang et al. 2019, XLNet).

The query stream stands at the next position and reads all tokens before it, which read each other
in both directions: a token changes the states of those before it. So every step reads the whole
text again, and the cache holds the tokens alone. This equals `XLNetLMHeadModel.generate` of
transformers without `mems`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trifold.errors import UsageError
from trifold.generation_config import GenerationConfig
from trifold.nn import Cache, Inputs, Memory, ModelConfig, Transformer
from trifold.nn.parts import EmbeddingsPart, part_of


def has_query_stream(config: ModelConfig) -> bool:
    """Whether models of this config have a query stream, and write with it."""
    return config.shape == "encoder" and part_of(EmbeddingsPart, config).has_queries


def writing_config(config: ModelConfig) -> ModelConfig:
    """The config of the decoder that a search sees: that of the model, unless it has a query
    stream.
    """
    if not has_query_stream(config):
        return config
    return config.model_copy(update={"shape": "decoder"})


def as_writer(model: Any, config: GenerationConfig, draft: Any = None) -> Any:
    """The model as a search with a draft model, if any, sees it. Raises UsageError for a search
    that reads the states of earlier tokens, which a query stream does not have.
    """
    if not isinstance(model, Transformer) or not has_query_stream(model.config):
        return model
    keys = ("penalty_alpha", "prompt_lookup_num_tokens")
    options = {key: getattr(config, key) for key in keys} | {"draft": draft}
    for key, choice in options.items():
        if choice is not None:
            raise UsageError(
                f"{key}: a model with a query stream has a state for the next token only; leave "
                f"out {key}"
            )
    return QueryStreamWriter(model)


class QueryStreamWriter(nn.Module):
    """A model with a query stream as a decoder, see `decoding.Model`."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model
        self.config = writing_config(model.config)
        self.lm_head = model.lm_head

    def encode(self, inputs: Inputs) -> Memory:
        """A decoder alone has no memory."""
        raise NotImplementedError

    def new_cache(self, kind: str, *, capacity: int, rollback: int) -> Cache:
        """An empty cache of tokens."""
        return Cache(1)

    def decode(
        self, inputs: Inputs, memory: Memory | None = None, cache: Cache | None = None
    ) -> Tensor:
        """The next tokens (R, T) -> (R, T, E): at the last real one of each row the state that
        predicts the token after it, and zeros before. Advances the cache.
        """
        assert cache is not None, "see `decoding.DecodingState`"
        new = inputs.tokens[:, None, :, None]  # as keys of one head and width 1
        tokens = cache.layers[0].past.update(new, new)[0][:, 0, :, 0]
        attend = inputs.attend
        if attend is None:
            attend = torch.ones_like(tokens, dtype=torch.bool)
        states = self._next_states(tokens, attend)
        hidden = states.new_zeros(*inputs.tokens.shape, states.shape[-1])
        width = tokens.shape[1]
        columns = torch.arange(width, device=tokens.device).masked_fill(~attend, -1)
        last = columns.amax(1) - (width - inputs.tokens.shape[1])
        rows = torch.arange(len(tokens), device=tokens.device)
        hidden[rows, last.clamp_min(0)] = states
        return hidden

    def _next_states(self, tokens: Tensor, attend: Tensor) -> Tensor:
        """(R, L) all tokens and whether they are real -> (R, E) the states of the query stream
        after them.
        """
        lengths = attend.sum(1)
        # Real tokens first: padding would change distances.
        order = (~attend).long().argsort(dim=1, stable=True)
        unread = tokens.new_full((len(tokens), 1), self.config.pad_id)  # the token to predict
        text = torch.cat([tokens.gather(1, order), unread], dim=1)
        places = torch.arange(text.shape[1], device=tokens.device)
        is_read = places < lengths[:, None]
        keys = places <= lengths[:, None]
        ranks = (~is_read).long()  # the token to predict comes after all others
        inputs = Inputs(text, keys, order=ranks)
        return self.model.query_states(inputs, lengths[:, None])[:, 0]
