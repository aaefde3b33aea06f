"""The architecture as a text drawing, from bottom to top, laid out like figure 1 of "Attention Is All You Need"."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from trifold.nn.config import ModelConfig

_WIRING = {
    "post": "x ← norm(x + dropout(f(x)))",
    "pre": "x ← x + dropout(f(norm(x)))",
    "sandwich": "x ← x + dropout(norm(f(norm(x))))",
}
_POSITIONS = {
    "sinusoidal": "sinusoidal positions",
    "sinusoidal-halves": "sinusoidal positions (halves)",
    "learned": "learned positions",
    "rotary": "rotary positions",
    "relative": "relative position bias",
    "relative-sinusoidal": "relative sinusoidal positions",
    "alibi": "ALiBi",
    "none": "no positions",
}
_PARALLEL = {
    "parallel": "x ← x + dropout(attention(n) + feed-forward(n)), n = norm(x)",
    "parallel-two-norms": "x ← x + dropout(attention(norm(x)) + feed-forward(norm'(x)))",
}
_NORMS = {"layer": "layer norm", "rms": "RMS norm"}

_WIDTH = 33  # of a box, edges included, unless a line of text needs more
_GAP = 6  # columns between the two stacks, for the arrow from encoder to decoder

Box: TypeAlias = tuple[str, ...]  # its lines of text


class Group(NamedTuple):
    """Boxes that repeat, in a frame of their own; the first is the top one."""

    title: str
    boxes: tuple[Box, ...]


Column: TypeAlias = list[Box | Group | str]  # from top to bottom, with a plain word at the end


class Canvas:
    """A grid of characters that grows as needed; row 0 is the top, column 0 the left."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], str] = {}

    def __str__(self) -> str:
        rows, columns = (1 + max((place[axis] for place in self._cells), default=-1) for axis in (0, 1))
        lines = (
            "".join(self._cells.get((row, column), " ") for column in range(columns)) for row in range(rows)
        )
        return "\n".join(line.rstrip() for line in lines)

    def write(self, row: int, column: int, text: str) -> None:
        """Write text from that cell on, replacing what is there."""
        for offset, character in enumerate(text):
            self._cells[row, column + offset] = character

    def box(self, row: int, column: int, width: int, height: int, title: str = "") -> None:
        """Draw a frame with that outer size and a title in its upper edge."""
        heading = f"─ {title} " if title else ""
        self.write(row, column, f"┌{heading:─<{width - 2}}┐")
        for side in range(row + 1, row + height - 1):
            self.write(side, column, f"│{'':{width - 2}}│")
        self.write(row + height - 1, column, f"└{'':─<{width - 2}}┘")


def draw_architecture(config: ModelConfig) -> str:
    """The model as boxes with their sizes, and one line with the residual wiring."""
    columns = [_column(config, side) for side in ("encoder", "decoder") if _layers(config, side)]
    height = max(sum(map(_height, column)) + len(column) - 1 for column in columns)
    width = max(_WIDTH, *(4 + len(line) for column in columns for box in _boxes(column) for line in box))
    canvas = Canvas()
    tops = [_draw(canvas, column, n * (width + 4 + _GAP), height, width) for n, column in enumerate(columns)]
    if len(columns) == 2:
        _memory(canvas, min(tops[0].values()), tops[1]["cross-attention"] + 1, width)
    block = _PARALLEL.get(config.residual)
    wiring = f"every block:  {block}" if block else f"every sub-layer f:  {_WIRING[config.norm_placement]}"
    return f"{canvas}\n\n{wiring}\nnorm:  {_NORMS[config.norm]}"


def _layers(config: ModelConfig, side: str) -> int:
    return {"encoder": config.encoder_layers, "decoder": config.decoder_layers}[side]


def _column(config: ModelConfig, side: str) -> Column:
    decodes, translates = side == "decoder", config.shape == "encoder-decoder"
    sized = config.decoder_side if decodes else config
    causal = ", causal" if decodes else ""
    if config.sliding_window is not None:
        where = "" if config.window_pattern == ("local",) else " in some layers"
        causal += f", window {config.sliding_window:,}{where}"
    sizes = f"{config.d_model:,} → {sized.d_ff:,} → {config.d_model:,}"
    if config.gated:
        parts: list[Box] = [("feed-forward", sizes, f"gated {config.activation}")]
    else:
        parts = [("feed-forward", f"{sizes}, {config.activation}")]
    if decodes and translates:
        parts.append(("cross-attention", _heads(sized)))
    parts.append(("self-attention", _heads(sized) + causal))
    vocab_size = config.output_vocab_size if decodes else config.vocab_size
    is_shared = decodes and translates and config.target_vocab_size is None
    return [
        *_tops(config, side),
        *([(_NORMS[config.norm],)] if config.has_final_norm("decoder" if decodes else "encoder") else []),
        Group(f"{side} × {_layers(config, side)}", tuple(parts)),
        _bottom(config, vocab_size, is_shared=is_shared),
        "pixels"
        if config.n_patches
        else "tokens"
        if not translates
        else "target tokens, shifted by one"
        if decodes
        else "source tokens",
    ]


def _bottom(config: ModelConfig, vocab_size: int, *, is_shared: bool) -> Box:
    positions = _POSITIONS[config.positions]
    if config.patch_size is not None:
        tall, wide = config.patch_size
        return (f"{config.n_patches:,} patches of {tall} × {wide}, class token", positions)
    scale = f", × √{config.d_model:,}" if config.scale_embeddings else ""
    wider = f", → {config.d_model:,}" if config.has_embedding_projection else ""
    segments = "segments, " if config.n_token_types else ""
    norm = ", norm" if config.embedding_norm else ""
    return (
        "shared embeddings" if is_shared else "embeddings",
        f"{vocab_size:,} × {config.embedding_width:,}{scale}{wider}",
        f"{segments}{positions}{norm}",
    )


def _tops(config: ModelConfig, side: str) -> list[Box]:
    """The heads, on the last stack."""
    if side != ("decoder" if config.decoder_layers else "encoder"):
        return []
    heads = config.chosen_heads
    others = ", ".join(head for head in heads if head != "lm")
    return [*([("heads", others)] if others else []), *([_head(config)] if "lm" in heads else [])]


def _heads(config: ModelConfig) -> str:
    fewer = f", {config.kv_heads} of keys and values" if config.kv_heads != config.n_heads else ""
    return f"{config.n_heads} heads of {config.head_width}{fewer}"


def _head(config: ModelConfig) -> Box:
    weights = "tied" if config.tie_lm_head else "untied"
    return ("language-model head", f"{config.d_model:,} → {config.output_vocab_size:,}, {weights}")


def _boxes(column: Column) -> list[Box]:
    found: list[Box] = []
    for item in column:
        if isinstance(item, Group):
            found += item.boxes
        elif not isinstance(item, str):
            found.append(item)
    return found


def _height(item: Box | Group | str) -> int:
    if isinstance(item, str):
        return 1
    if isinstance(item, Group):
        return 2 + sum(map(_height, item.boxes)) + len(item.boxes) - 1
    return len(item) + 2


def _draw(canvas: Canvas, column: Column, left: int, height: int, width: int) -> dict[str, int]:
    """Draw the column with its bottom at row `height`; return the top row of every box by its first line."""
    tops: dict[str, int] = {}
    middle = left + 2 + width // 2
    row = height - sum(map(_height, column)) - (len(column) - 1)
    for number, item in enumerate(column):
        if number:
            canvas.write(row, middle, "▲")
            row += 1
        if isinstance(item, str):
            canvas.write(row, middle - len(item) // 2, item)
        elif isinstance(item, Group):
            tops[item.title] = row
            canvas.box(row, left, width + 4, _height(item), item.title)
            inner = row + 1
            for place, box in enumerate(item.boxes):
                if place:
                    canvas.write(inner - 1, middle, "▲")
                _box(canvas, box, inner, left + 2, width, tops)
                inner += _height(box) + 1
        else:
            _box(canvas, item, row, left + 2, width, tops)
        row += _height(item)
    return tops


def _box(canvas: Canvas, box: Box, row: int, left: int, width: int, tops: dict[str, int]) -> None:
    tops[box[0]] = row
    canvas.box(row, left, width, _height(box))
    for offset, line in enumerate(box, start=1):
        canvas.write(row + offset, left + 2, line)


def _memory(canvas: Canvas, start: int, end: int, width: int) -> None:
    """Draw the arrow from the top of the encoder (row `start`) to the cross-attention (row `end`)."""
    middle, down, into = 2 + width // 2, width + 4 + _GAP // 2, width + 4 + _GAP + 1
    canvas.write(start - 1, middle, f"┌{'':─<{down - middle - 1}}┐")
    for row in range(start, end):
        canvas.write(row, down, "│")
    canvas.write(end, down, f"└{'':─<{into - down - 1}}►")
