"""The architecture as a text drawing, from bottom to top, laid out like figure 1 of "Attention Is
All You Need".
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from trifold.nn.norms import norm_of
from trifold.nn.parts import (
    BlockPart,
    EmbeddingsPart,
    FeedForwardPart,
    classical,
    part_of,
    positions_phrase,
    reach,
)
from trifold.nn.variants import ModelConfig

_WIDTH = 33  # of a box, edges included, unless a line of text needs more
_GAP = 6  # columns between the two stacks, for the arrow from encoder to decoder

Box: TypeAlias = tuple[str, ...]  # its lines of text


class Column(NamedTuple):
    """A stack from top to bottom: boxes above its blocks, the boxes of a block, the box and the
    label below.
    """

    top: list[Box]
    title: str
    block: list[Box]
    bottom: Box
    label: str


def draw_architecture(config: ModelConfig) -> str:
    """The model as boxes with their sizes, and one line with the residual wiring."""
    columns = [_column(config, side, sized) for side, sized in config.stacks.items()]
    boxes = [box for column in columns for box in (*column.top, *column.block, column.bottom)]
    longest = max(len(line) for box in boxes for line in box)
    width = max(_WIDTH, longest + 4)
    drawn = [_draw(column, width) for column in columns]
    height = max(map(len, drawn))
    padded = [[""] * (height - len(lines)) + lines for lines in drawn]
    gap = " " * _GAP
    rows = [
        list(gap.join(f"{line:{width + 4}}" for line in row)) for row in zip(*padded, strict=True)
    ]
    if len(columns) == 2:
        _connect(rows, height - len(drawn[0]), width)
    sheet = "\n".join("".join(row).rstrip() for row in rows)
    wiring = "\n".join(part_of(BlockPart, config).equations(config))
    return f"{sheet}\n\n{wiring}\nnorm:  {norm_of(config).label}"


# --- contents -------------------------------------------------------------------------------------


def _column(config: ModelConfig, side: str, sized: ModelConfig) -> Column:
    translates = config.shape == "encoder-decoder"
    block = [_feed_forward(config, sized)]
    if side == "decoder" and translates:
        block.append(("cross-attention", _heads(sized)))
    block.append(_self_attention(sized, side))
    if side == "decoder":
        has_final_norm = config.has_final_norm("decoder")
        is_shared = translates and config.target_vocab_size is None
        bottom = _embeddings(sized, config.output_vocab_size, is_shared=is_shared)
    else:
        has_final_norm = config.has_final_norm("encoder")
        bottom = _embeddings(sized, config.vocab_size, is_shared=False)
    top = _head_boxes(sized, side)
    if has_final_norm:
        top.append((norm_of(config).label,))
    return Column(top, f"{side} × {sized.n_layers}", block, bottom, _label(config, side))


def _label(config: ModelConfig, side: str) -> str:
    """What a stack reads."""
    if config.shape != "encoder-decoder":
        return part_of(EmbeddingsPart, config).reads
    if side == "decoder":
        return "target tokens, shifted by one"
    return "source tokens"


def _self_attention(config: ModelConfig, side: str) -> Box:
    heads = _heads(config)
    if side == "decoder":
        heads += ", causal"
    return ("self-attention", heads, *reach(config, side))


def _feed_forward(config: ModelConfig, sized: ModelConfig) -> Box:
    sizes = classical(FeedForwardPart).sizes(config, sized)
    in_one_line = f"{sizes}, {config.activation}"
    if config.gated:
        lines = [sizes, f"gated {config.activation}"]
    elif len(in_one_line) <= _WIDTH - 4:
        lines = [in_one_line]
    else:
        lines = [sizes, config.activation]
    return tuple(part_of(FeedForwardPart, config).box(config, sized, ["feed-forward", *lines]))


def _embeddings(config: ModelConfig, vocab_size: int, *, is_shared: bool) -> Box:
    """The box below the blocks: the table of the embeddings and what is done with its rows."""
    table = f"{vocab_size:,} × {config.embedding_width:,}"
    if config.embedding_scale:
        table += f", × {config.embedding_scale:g}"
    elif config.scale_embeddings:
        table += f", × √{config.d_model:,}"
    if config.has_embedding_projection:
        table += f", → {config.d_model:,}"
    added = positions_phrase(config)
    if config.n_token_types:
        added = f"segments, {added}"
    if config.embedding_norm:
        added += ", norm"
    name = "shared embeddings" if is_shared else "embeddings"
    return tuple(part_of(EmbeddingsPart, config).box(config, (name, table, added)))


def _head_boxes(config: ModelConfig, side: str) -> list[Box]:
    """The heads, on the last stack."""
    if side == "encoder" and config.decoder_layers:
        return []
    tops: list[Box] = []
    others = ", ".join(head for head in config.chosen_heads if head != "lm")
    if others:
        tops.append(("heads", others))
    if "lm" in config.chosen_heads:
        weights = "tied" if config.tie_lm_head else "untied"
        tops.append(
            ("language-model head", f"{config.d_model:,} → {config.output_vocab_size:,}, {weights}")
        )
    return tops


def _heads(config: ModelConfig) -> str:
    heads = f"{config.n_heads} heads of {config.head_width}"
    if config.kv_heads != config.n_heads:
        heads += f", {config.kv_heads} of keys and values"
    if config.value_width != config.head_width:
        heads += f", values of {config.value_width}"
    return heads


# --- layout ---------------------------------------------------------------------------------------


def _draw(column: Column, width: int) -> list[str]:
    """The lines of a column whose boxes are `width` wide."""
    blocks = _join_vertically([_frame(box, width) for box in column.block], width // 2)
    middle = 2 + width // 2
    return _join_vertically(
        [
            *(_indented(_frame(box, width)) for box in column.top),
            _frame(blocks, width + 4, column.title),
            _indented(_frame(column.bottom, width)),
            [" " * (middle - len(column.label) // 2) + column.label],
        ],
        middle,
    )


def _frame(lines: Sequence[str], width: int, title: str = "") -> list[str]:
    """The lines in a frame with that outer width and a title in its upper edge."""
    heading = f"─ {title} " if title else ""
    inner = [f"│ {line:{width - 4}} │" for line in lines]
    return [f"┌{heading:─<{width - 2}}┐", *inner, f"└{'':─<{width - 2}}┘"]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _join_vertically(parts: Sequence[list[str]], middle: int) -> list[str]:
    """The parts below each other, with an arrow in column `middle` between them."""
    arrow = " " * middle + "▲"
    return [line for part in parts for line in (arrow, *part)][1:]


def _connect(rows: list[list[str]], top: int, width: int) -> None:
    """Draw the arrow from the top of the encoder (row `top`) to the cross-attention."""
    middle = 2 + width // 2
    down = width + 4 + _GAP // 2
    into = width + 4 + _GAP + 1
    end = next(number for number, row in enumerate(rows) if "│ cross-attention" in "".join(row))
    rows[top - 1][middle : down + 1] = f"┌{'':─<{down - middle - 1}}┐"
    for row in rows[top:end]:
        row[down] = "│"
    rows[end][down : into + 1] = f"└{'':─<{into - down - 1}}►"
