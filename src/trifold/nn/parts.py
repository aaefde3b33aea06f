"""The parts of a model.

A model is assembled from nine places: embeddings; positions added to them; scores (the rotation or
the bias of each layer); attention; feed-forward network; block; rules of masks; the walk (how the
layers run in training); and what is added to the logits of a text. Each place has a classical part,
in the core, and may have variants, in `nn.variants`, or from outside. A config chooses them;
nothing else tests which ones it chose.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from trifold.nn import formulas, registry
from trifold.nn.cache import GrowingKeys
from trifold.nn.config import CoreConfig
from trifold.nn.formulas import FormulaRow, total
from trifold.nn.hooks import ModuleCall
from trifold.nn.inputs import Inputs, Request
from trifold.nn.masks import Mask, Rule
from trifold.nn.problems import Problems, defaults
from trifold.settings import Conflict, Settings

AnyPart = TypeVar("AnyPart", bound="Part")
AnySettings = TypeVar("AnySettings", bound=Settings)
AnyConfig = TypeVar("AnyConfig", bound=CoreConfig)


class Part:
    """What takes one place of a model. The class of a place has the classical answers; a variant
    replaces those that differ.

    key: the setting with which a config chooses it. value: of that setting, if it names one of
    several parts.
    """

    place: ClassVar[str]
    """The name of its place (`nn.registry`)."""
    key: str = ""
    value: str = ""
    keys: ClassVar[str] = ""
    """Further settings, which have a meaning only with this part, or with one of several."""
    needs: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Settings, and the values of which the part needs one."""
    conflicts: ClassVar[str] = ""
    """Choices that must have their defaults; the part gives way to them, or they to it."""
    excludes: ClassVar[str] = ""
    """Settings without a meaning here, which must have their defaults."""
    settings: ClassVar[type[Settings] | None] = None
    """The settings of a part from outside, in `CoreConfig.options`."""
    has_sizes: ClassVar[bool] = False
    """Whether its problems depend on sizes of which a decoder may have its own."""
    ignores_orders: ClassVar[bool] = False
    """Whether tokens read others without regard to an order of tokens (`Inputs.order`)."""
    row: ClassVar[str] = ""
    """The row of the comparison with the Transformer of 2017 that lists its differences."""

    def used(self, config: CoreConfig) -> bool:
        """Whether the config chooses this part."""
        if self.key not in type(config).model_fields:
            # A part from outside without a setting of its own: its options choose it.
            return self.key in config.options
        chosen = getattr(config, self.key)
        if self.value:
            return bool(chosen == self.value)
        return bool(chosen)

    def options(self, config: CoreConfig) -> Any:
        """The settings of a part from outside. Raises SettingsError."""
        assert self.settings is not None, "the part has no settings"
        name = self.value or self.key
        return self.settings.parse(config.options.get(name, {}), at=f"model.options.{name}")

    def label(self, config: CoreConfig) -> str:
        """The name of the part in messages."""
        if not self.value:
            return self.key
        return f"{self.key}: {getattr(config, self.key)}"

    def problems(self, config: CoreConfig) -> Problems:
        """What else is wrong with the settings of the part; see `nn.problems`."""
        yield from ()

    def new_stack(self, config: CoreConfig) -> type[Any] | None:
        """The class of a stack with this part, if it needs its own."""
        return None

    def phrase(self, config: CoreConfig) -> str:
        """What it is, for people; "" if there is nothing to say."""
        return ""

    def differences(self, config: CoreConfig) -> Iterator[str]:
        """A phrase for each difference from the Transformer of 2017."""
        if phrase := self.phrase(config):
            yield phrase


# --- places ---------------------------------------------------------------------------------------


class EmbeddingsPart(Part):
    """What turns inputs into the states that the first layer reads."""

    place = "embeddings"
    has_tokens: ClassVar[bool] = True
    """Whether it reads tokens of a vocabulary."""
    has_queries: ClassVar[bool] = False
    """Whether the model has a query stream."""
    row = "embeddings"
    reads: ClassVar[str] = "tokens"
    """What it reads, for people."""

    def new(self, config: CoreConfig, tokens: Any) -> nn.Module:
        """A module (inputs, start) -> (B, T, E); tokens: the table, which stacks may share."""
        raise NotImplementedError

    def image_size(self, config: CoreConfig) -> tuple[int, int] | None:
        """Height and width of the images that it reads, in pixels; None if it reads no images."""
        return None

    def parameters(self, config: CoreConfig) -> Iterator[FormulaRow]:
        """The tables, which stacks may share."""
        letter = "W" if config.has_embedding_projection else "E"
        if config.target_vocab_size is None:
            yield FormulaRow("embeddings", f"V·{letter}")
        else:
            yield FormulaRow("source embeddings", f"V·{letter}")
            yield FormulaRow("target embeddings", f"V·{letter}", {"V": config.target_vocab_size})

    def query_states(self, model: Any, inputs: Inputs, query_index: Tensor) -> Tensor:
        """The states (B, P, E) of a query stream for the tokens query_index (B, P) of inputs with
        an order.
        """
        raise NotImplementedError("this model has no query stream")

    def side_parameters(self, config: CoreConfig, side: str) -> Iterator[FormulaRow]:
        """Further parameters of the embeddings of a stack."""
        yield from ()

    def elements(self, config: CoreConfig) -> int:
        """Elements of matrices that a token passes: of the projection of narrower embeddings, and
        with token_projection also of that back to their width.
        """
        projections = config.has_embedding_projection + config.token_projection
        return projections * config.embedding_width * config.d_model

    def sizes(self, config: CoreConfig) -> str:
        """The sizes of its matrices, for people."""
        tables = [(config.vocab_size, config.embedding_width)]
        if config.target_vocab_size is not None:
            tables.append((config.target_vocab_size, config.decoder_side.embedding_width))
        return ", ".join(f"{size:,} × {width:,}" for size, width in tables)

    def box(self, config: CoreConfig, lines: Sequence[str]) -> Sequence[str]:
        """The lines of its box in a drawing; lines: those of embeddings of tokens."""
        return lines


class PositionsPart(Part):
    """What is added to embeddings for their positions."""

    place = "positions"
    row = "positions"

    def new(self, config: CoreConfig) -> nn.Module:
        """A module (x (B, T, E), positions (B or 1, T)) -> (B, T, E)."""
        raise NotImplementedError

    def parameters(self, config: CoreConfig, side: str) -> Iterator[FormulaRow]:
        """The table of learned positions of a stack."""
        if config.positions == "learned" or config.learned_positions:
            places = f"(P+{config.position_offset})" if config.position_offset else "P"
            letter = "E" if config.sum_width == config.d_model else "W"
            yield FormulaRow(f"{side} positions", f"{places}·{letter}")


class ScoresPart(Part):
    """What positions change in the scores of attention; classically nothing."""

    place = "scores"
    key = "positions"

    is_limited: ClassVar[bool] = True
    """Whether texts may not be longer than max_positions."""
    has_offsets: ClassVar[bool] = False
    """Whether scores have offsets that depend on distances."""
    learns_offsets: ClassVar[bool] = False
    """Whether these are learned, by the stack or in each attention."""
    is_packed: ClassVar[bool] = False
    """Whether packed rows are computed fastest: all rows and layers have the same bias, or none."""
    knows_distances: ClassVar[bool] = True
    """Whether it has distances of keys that are no tokens (`Rule.own_distances`), or needs none."""
    row = "positions"

    def new_offsets(self, config: CoreConfig) -> nn.Module | None:
        """A module (mask, queries, device, segments) -> the bias of scores of a stack."""
        return None

    def new_rotary(self, config: CoreConfig) -> Any:
        """A function (mask, queries, x, positions) -> the rotations of the layers of a stack."""
        return None

    def new_relative(self, config: CoreConfig) -> nn.Module | None:
        """The parameters in each self-attention: a module (attention, q, k, bias) -> queries, and
        a bias that is divided by √D. Attention multiplies both by its `query_scale`.
        """
        return None

    def terms(self, config: CoreConfig) -> int:
        """How many products with vectors of distances are added to a score and scaled with it."""
        return 0

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> Iterator[FormulaRow]:
        """The parameters of a stack with so many blocks."""
        yield from ()

    def distance_elements(self, config: CoreConfig, read: Sequence[int], keys: int) -> int:
        """Elements that a token uses for the distances of the keys that it reads in each layer.
        Each batch projects the vectors of distances once, which is not counted.
        """
        return 0

    def cached_elements(self, config: CoreConfig, tokens: int) -> int:
        """Elements that a cache stores for so many tokens, besides those of attention."""
        return 0

    def held_offsets(self, config: CoreConfig, near: int, keys: int) -> int:
        """Elements for the offsets of scores that a layer holds at once for each query; near: the
        keys that it reads, if blocks of queries read few of them.
        """
        return 2 * config.n_heads * near * self.has_offsets

    def reads_segments(self, config: CoreConfig) -> bool:
        """Whether scores depend on the kinds of segments of tokens."""
        return False

    def frequencies(self, config: CoreConfig) -> dict[str, Tensor]:
        """Frequencies (R/2,) of rotations, by name: those of the config, or examples."""
        return {}

    def figures(self, config: CoreConfig, stacks: Mapping[str, Any], tokens: int) -> dict[str, Any]:
        """What figures show of it for so many tokens, by name, whatever the config chooses."""
        return {}


class AttentionPart(Part):
    """Self-attention."""

    place = "attention"
    key = "attention"
    can_truncate: ClassVar[bool] = True
    """Whether tokens can be removed from its cache."""
    is_packed: ClassVar[bool] = False
    """Whether it may be computed by the loops for packed rows."""
    row = "attention"
    has_scores: ClassVar[bool] = True
    """Whether the weights of a query are the softmax of a score for each key."""
    crosses: ClassVar[bool] = False
    """Whether it also is the attention to a memory, in the place of the classical one."""
    has_vectors: ClassVar[bool] = True
    """Whether `nn.attention.Attention.project` gives the query, key and value of each token."""

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        """The module of a layer; see `nn.attention.Attention`."""
        raise NotImplementedError

    def new_cross(self, config: CoreConfig, layer: int, memory_width: int) -> nn.Module:
        """The module of a layer that reads a memory of that width, if it has one (`crosses`)."""
        raise NotImplementedError

    def kind_of_layer(self, config: CoreConfig, layer: int) -> Hashable:
        """Equal for layers whose modules differ in nothing but their weights; see `BlockPart`."""
        return layer

    def new_keys(self, usual: Callable[[], GrowingKeys]) -> GrowingKeys:
        """What a cache stores for a layer; usual: keys and values of the requested kind."""
        return usual()

    def rotated_width(self, config: CoreConfig) -> int:
        """Dimensions of queries and keys that are rotated; 0 if positions are not rotary."""
        if config.positions != "rotary":
            return 0
        return config.rotary_width or config.head_width

    def rotary_problems(self, config: CoreConfig) -> Problems:
        """What is wrong with the width that rotary positions rotate."""
        rotated = self.rotated_width(config)
        if rotated % 2 or rotated > config.head_width:
            yield (
                f"rotary_width {rotated} must be even and at most {config.head_width}, the "
                "width of a head"
            )

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> FormulaRow:
        """The parameters of a stack with so many blocks."""
        return FormulaRow(f"{side} self-attention", f"L·{total(self.terms(config))}", {"L": blocks})

    def terms(self, config: CoreConfig) -> list[str]:
        """The terms of the parameters of a layer."""
        return formulas.attention(config)

    def cross_terms(self, config: CoreConfig, reads: str) -> list[str]:
        """The terms of the parameters of a layer that reads a memory, of the width of a letter."""
        return formulas.attention(config, reads)

    def matrices(self, config: CoreConfig) -> int:
        """Elements of the projections of a layer, which every token passes."""
        widths = config.head_width + config.value_width
        return config.d_model * widths * (config.n_heads + config.kv_heads)

    def per_key(self, config: CoreConfig) -> int:
        """Elements that are used for each key: for the score, then for the value."""
        return config.n_heads * (config.head_width + config.value_width)

    def keys_read(self, config: CoreConfig, layer: int, keys: int, near: int, side: str) -> int:
        """How many keys of a text of so many a query reads; near: how many the rules allow."""
        return near

    def score_elements(self, config: CoreConfig, side: str, keys: int, read: Sequence[int]) -> int:
        """Elements that a token uses in all layers, besides matrices; read: the keys that it reads
        in each layer.
        """
        distances = part_of(ScoresPart, config).distance_elements(config, read, keys)
        return self.per_key(config) * sum(read) + distances

    def rows(self, config: CoreConfig, tokens: int) -> int:
        """The number of states of a text of so many tokens."""
        return tokens

    def cached_elements(self, config: CoreConfig, tokens: int) -> int:
        """Elements that the cache of all layers stores for so many tokens."""
        return self.cached_tokens(config, tokens) * self.cached_per_token(config)

    def window(self, config: CoreConfig, layer: int) -> int | None:
        """How many tokens up to a query a cache must store for a layer; None: all."""
        return config.window(layer)

    def cached_tokens(self, config: CoreConfig, tokens: int) -> int:
        """How many of so many tokens the layers store, together."""
        layers = range(config.n_layers)
        return sum(min(tokens, self.window(config, layer) or tokens) for layer in layers)

    def cached_per_token(self, config: CoreConfig) -> int:
        """Elements of the keys and values of a token in a layer."""
        return config.kv_heads * (config.head_width + config.value_width)

    def kept_keys(self, config: CoreConfig, keys: int, length: int) -> int:
        """For how many keys of a query of a text of that length, of which it reads so many, the
        weights may be saved. If queries read few keys, blocks of queries are computed again.
        """
        if 2 * keys >= length:
            return length
        return max((rule.kept_keys(config) for rule in rules_of(config)), default=0)

    def saved_weights(self, config: CoreConfig, kept: float, *, is_packed: bool) -> int:
        """Elements of weights that are saved for a query: the softmax, and with dropout a mask and
        the product.
        """
        if config.attention_dropout:
            return round(config.n_heads * 3 * kept)
        return round(config.n_heads * int(is_packed) * kept)

    def held_scores(self, config: CoreConfig, keys: int) -> int:
        """Elements of scores that a layer holds at once for each query that reads so many keys, if
        nothing records them; 0 if a fused kernel computes them.
        """
        # No fused kernel reads values of another width than that of keys.
        is_wide = config.value_width != config.head_width
        if config.score_soft_cap is None and not config.attention_sinks and not is_wide:
            return 0
        return 2 * config.n_heads * keys

    def penalty_weight(self, config: CoreConfig) -> float:
        """The weight of `penalty` in a loss of language models; 0 if there is none."""
        return 0.0

    def penalty(self, model: nn.Module) -> AbstractContextManager[Callable[[], Tensor]]:
        """Records what the attentions of a model add to a loss while it runs; the function returns
        it, a scalar, after that.
        """
        raise NotImplementedError

    def recorded_keys(self, config: CoreConfig, keys: int) -> int:
        """For how many keys of a query of a text of so many its hook points have weights."""
        return keys

    def reach(self, config: CoreConfig, side: str) -> Iterator[str]:
        """See `RulePart.reach`."""
        yield from ()


class UnscoredPart(AttentionPart):
    """Self-attention without a score for every pair of tokens, or for a few of them only."""

    ignores_orders = True
    conflicts = "sliding_window latent"
    has_sizes = True
    has_scores = False

    def problems(self, config: CoreConfig) -> Problems:
        """It has no offsets of scores, and no rotations that later tokens change."""
        choice = self.label(config)
        scores = part_of(ScoresPart, config)
        if scores.has_offsets:
            text = f"{choice} has no offsets of scores: choose other positions than {scores.value}"
            yield Conflict(text, defaults(config, scores.key, self.key))
        if scores.new_stack(config) is not None:
            label = scores.label(config)
            yield Conflict(f"{choice} excludes {label}", defaults(config, scores.key, self.key))

    def held_scores(self, config: CoreConfig, keys: int) -> int:
        return 0


class FeedForwardPart(Part):
    """The network after attention."""

    place = "feed_forward"
    losses: Mapping[str, Callable[[Any, Tensor, int], Tensor]] = {}
    """Terms that training may add to a loss: the sum over rows or tokens, from a recorded output,
    the row of each token (N,), -1 for padding, and the number of rows."""
    row = "feed-forward"

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        """A module (…, E) -> (…, E)."""
        raise NotImplementedError

    def kind_of_layer(self, config: CoreConfig, layer: int) -> Hashable:
        """Equal for layers whose modules differ in nothing but their weights; see `BlockPart`."""
        return layer

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> Iterator[FormulaRow]:
        """The parameters of a stack with so many blocks."""
        yield FormulaRow(
            f"{side} feed-forward", f"L·{formulas.feed_forward(config)}", {"L": blocks}
        )

    def elements(self, config: CoreConfig, layer: int) -> int:
        """Elements of the matrices that a token passes in a layer."""
        return (2 + config.gated) * config.d_model * config.d_ff

    def recorded_layers(self, config: CoreConfig) -> int:
        """How many layers `record` records."""
        return 0

    def record(self, model: nn.Module) -> AbstractContextManager[list[list[ModuleCall]]]:
        """The calls whose outputs `losses` read."""
        return nullcontext([])

    def saved(self, config: CoreConfig) -> tuple[int, int]:
        """The inner width that a token passes in a layer, and how many further states of width E
        are saved for it.
        """
        return config.d_ff, 0

    def inner_width(self, config: CoreConfig, stack: CoreConfig) -> int:
        """The inner width of a network in a stack of that config."""
        return stack.d_ff

    def sizes(self, config: CoreConfig, stack: CoreConfig) -> str:
        """The widths in a stack, for people."""
        return f"{stack.d_model:,} → {self.inner_width(config, stack):,} → {stack.d_model:,}"

    def box(self, config: CoreConfig, stack: CoreConfig, lines: Sequence[str]) -> Sequence[str]:
        """The lines of its box in a drawing of a stack; lines: the title, the sizes and the
        activation of the classical network.
        """
        return lines


class BlockPart(Part):
    """How attention and feed-forward network are connected."""

    place = "block"
    key = "residual"

    streams: ClassVar[int] = 1
    """How many states of width E the blocks pass on."""
    row = "blocks"

    def new(self, config: CoreConfig, layer: int, memory_width: int | None) -> nn.Module:
        """A module (x, layer inputs, cache) -> x."""
        raise NotImplementedError

    def kind_of_layer(self, config: CoreConfig, layer: int) -> Hashable:
        """Equal for layers whose blocks differ in nothing but their weights: one is built, the
        others are copies (`nn.copies`). A part that does not answer has no such layers.
        """
        return layer

    def parameters(self, config: CoreConfig, side: str) -> Iterator[FormulaRow]:
        """The parameters of a stack, besides those of sub-layers and norms."""
        yield from ()

    def cross_parameters(
        self, config: CoreConfig, memory_width: int, blocks: int
    ) -> Iterator[FormulaRow]:
        """The parameters of the cross-attention of a decoder with so many blocks, which reads
        states of that width.
        """
        reads = "E" if memory_width == config.d_model else "U"
        formula = f"L·{total(cross_attention(config).cross_terms(config, reads))}"
        letters = {"L": blocks, "U": memory_width}
        yield FormulaRow("decoder cross-attention", formula, letters)

    def cross_elements(self, config: CoreConfig, memory_width: int, keys: int) -> tuple[int, int]:
        """Elements that the cross-attention of all layers of a decoder uses for each state of the
        encoder, which have that width, and for each query of so many of them.
        """
        attention = cross_attention(config)
        projected = attention.cached_per_token(config)  # keys and values
        queries = attention.matrices(config) - config.d_model * projected
        queries += attention.per_key(config) * keys
        return config.n_layers * memory_width * projected, config.n_layers * queries

    def norms(self, config: CoreConfig, *, crosses: bool) -> int:
        """The norms of a block."""
        return (2 + crosses) * _norms_of_sublayer(config)

    def elements(self, config: CoreConfig) -> int:
        """Elements of matrices that a token passes in all layers, besides those of sub-layers."""
        return 0

    def saved(self, config: CoreConfig, attentions: int, norm: int, mask: int) -> int:
        """How many states of width E the residuals of a block save: the input of each sub-layer,
        what its norms save, and the dropout mask.
        """
        norms = norm * _norms_of_sublayer(config)
        return (attentions + 1) * (1 + norms + mask)

    def saved_once(self, config: CoreConfig, norm: int, mask: int) -> int:
        """How many states of width E a stack saves, besides those of its blocks."""
        return 0

    def equations(self, config: CoreConfig) -> Iterator[str]:
        """What the blocks compute, for people: a line for each kind of blocks or sub-layers."""
        yield f"every sub-layer f:  {_RESIDUALS[config.norm_placement]}"


_RESIDUALS = {
    "post": "x ← norm(x + dropout(f(x)))",
    "pre": "x ← x + dropout(f(norm(x)))",
    "sandwich": "x ← x + dropout(norm(f(norm(x))))",
    "exit": "x ← x + dropout(norm(f(x)))",
}


def _norms_of_sublayer(config: CoreConfig) -> int:
    return 2 if config.norm_placement == "sandwich" else 1


def no_cross_attention(config: CoreConfig, part: BlockPart) -> Problems:
    """The problem of a block without cross-attention in an encoder-decoder."""
    if config.shape == "encoder-decoder":
        text = f"{part.label(config)} has no cross-attention: choose shape encoder or decoder"
        yield Conflict(text, defaults(config, part.key))


class RulePart(Part):
    """Which keys a query may attend to. All of these that the config chooses apply."""

    place = "rule"
    row = "attention"
    differs_by_head: ClassVar[bool] = False
    """Whether heads attend to different keys."""

    def of_inputs(self, config: CoreConfig, inputs: Inputs) -> Rule | None:
        """The rule that the inputs of an encoder state, whatever the config chooses."""
        return None

    def of_stack(self, config: CoreConfig, mask: Mask, queries: int, device: torch.device) -> Mask:
        """The mask of all layers of a stack, for so many queries."""
        return mask

    def of_layer(
        self, config: CoreConfig, layer: int, mask: Mask, queries: int, *, training: bool
    ) -> Rule | None:
        """The rule of a layer."""
        return None

    def keys_read(self, config: CoreConfig, layer: int, keys: int, side: str) -> int:
        """How many of so many keys a query may read, without single ones elsewhere."""
        return keys

    def keys_added(self, config: CoreConfig, keys: int) -> int:
        """How many keys it adds to a text of so many."""
        return 0

    def kept_keys(self, config: CoreConfig) -> int:
        """For how many keys of a query weights are saved, on average, because some queries read
        all keys; see `AttentionPart.kept_keys`.
        """
        return 0

    def reach(self, config: CoreConfig, side: str) -> Iterator[str]:
        """Phrases for the keys that a query of a stack attends to; none if it attends to all."""
        yield from ()

    def examples(self, given: Mapping[str, Mask]) -> Mapping[str, Mask]:
        """Masks of EXAMPLE_TOKENS tokens for figures, by name; given: those of the parts before."""
        return {}


EXAMPLE_TOKENS = 12


class WalkPart(Part):
    """How the layers run in training."""

    place = "walk"
    saves_layers: ClassVar[bool] = True
    """Whether every layer saves what its backward pass needs."""
    is_recordable: ClassVar[bool] = True
    """Whether each layer is called once, for all tokens and with gradients, so that a loss can
    read what it computes (`hooks.record_calls`)."""

    def run(self, stack: Any, x: Tensor, request: Request) -> Tensor:
        """x (B, T, E) -> (B, T, E); see `nn.walk`."""
        raise NotImplementedError


class FeatureColumns(NamedTuple):
    """How many columns of `nn.inputs.RowFeatures` are n-grams of words and of characters, and how
    many are numbers that are given; or how many are words of two texts that are compared. filters:
    the patches that an image is compared with. forms: of the word of each token. order_numbers:
    of two texts, beside their words.
    """

    words: int = 0
    characters: int = 0
    given: int = 0
    compared: int = 0
    filters: int = 0
    forms: int = 0
    order_numbers: int = 0


class LogitsPart(Part):
    """What is added to the logits of a text or an image beside those of its states; classically
    nothing.
    """

    place = "logits"
    row = "output"

    def new(self, config: CoreConfig) -> nn.Module | None:
        """A module (features of rows or tokens) -> (N, C), with methods `given`, the features that
        inputs have for it, or None, and `reset`, and parameters weight (F, C), bias (C,) and
        scale (1,).
        """
        return None

    def columns(self, config: CoreConfig) -> FeatureColumns:
        """The features that it reads of each row, or of each token."""
        return FeatureColumns()

    def with_columns(self, config: AnyConfig, columns: FeatureColumns) -> AnyConfig:
        """The config with other columns, or without the part if there are none."""
        return config

    def parameters(self, config: CoreConfig) -> Iterator[FormulaRow]:
        """Its parameters."""
        yield from ()


PLACES: tuple[type[Part], ...] = (
    EmbeddingsPart,
    PositionsPart,
    ScoresPart,
    AttentionPart,
    FeedForwardPart,
    BlockPart,
    RulePart,
    WalkPart,
    LogitsPart,
)

# --- the parts of a config ------------------------------------------------------------------------


def place_of(part: Part) -> type[Part]:
    """The class of the place that a part takes."""
    return next(place for place in PLACES if isinstance(part, place))


def part_of(place: type[AnyPart], config: CoreConfig) -> AnyPart:
    """The part in that place."""
    found: AnyPart = registry.chosen(place.place, config)
    return found


def cross_attention(config: CoreConfig) -> AttentionPart:
    """The part that reads a memory: that of self-attention, or the classical one."""
    own = part_of(AttentionPart, config)
    return own if own.crosses else classical(AttentionPart)


def group(config: CoreConfig, key: str, kind: type[AnySettings]) -> AnySettings | None:
    """The group of settings of a variant under that key; None if the config has none."""
    settings = getattr(config, key, None)
    assert settings is None or isinstance(settings, kind), f"{key} is no {kind.__name__}"
    return settings


def used_group(config: CoreConfig, key: str, kind: type[AnySettings]) -> AnySettings:
    """The group of settings of a variant that the config uses."""
    settings = group(config, key, kind)
    assert settings is not None, f"the config has no {key}"
    return settings


def input_rules(config: CoreConfig, inputs: Inputs) -> tuple[Rule, ...]:
    """The rules that the inputs of an encoder state."""
    rules = (part.of_inputs(config, inputs) for part in registry.registered_for(RulePart.place))
    return tuple(rule for rule in rules if rule is not None)


def classical(place: type[AnyPart]) -> AnyPart:
    """The classical part of a place."""
    found: AnyPart = registry.classical(place.place)
    return found


def rules_of(config: CoreConfig) -> list[RulePart]:
    """The rules that the config chooses."""
    return [part for part in registry.registered_for(RulePart.place) if part.used(config)]


def has_plain_attention(config: CoreConfig) -> bool:
    """Whether self-attention is that of packed rows, its scores do not depend on positions, and no
    rule restricts it: such layers are computed fastest from packed rows.
    """
    attention = part_of(AttentionPart, config)
    scores = part_of(ScoresPart, config)
    return attention.is_packed and scores is classical(ScoresPart) and not rules_of(config)


def has_packed_attention(config: CoreConfig) -> bool:
    """Whether self-attention is that of packed rows with a bias of scores that all rows and layers
    share, if any, and no rule restricts it: texts are read fastest as packed rows.
    """
    attention = part_of(AttentionPart, config)
    scores = part_of(ScoresPart, config)
    return attention.is_packed and scores.is_packed and not rules_of(config)


def parts(config: CoreConfig) -> Iterator[Part]:
    """The parts of a config, place by place."""
    for place in PLACES:
        if place is RulePart:
            yield from rules_of(config)
        else:
            yield part_of(place, config)


# --- for people -----------------------------------------------------------------------------------


def positions_phrase(config: CoreConfig) -> str:
    """The positions, for people: those in scores, or else those that are added."""
    phrase = part_of(ScoresPart, config).phrase(config)
    return phrase or part_of(PositionsPart, config).phrase(config)


def reach(config: CoreConfig, side: str) -> list[str]:
    """Phrases for the keys that a query of a stack attends to; none if it attends to all."""
    found: list[RulePart | AttentionPart] = [*rules_of(config), part_of(AttentionPart, config)]
    return [phrase for part in found for phrase in part.reach(config, side)]
