"""Empty figures to draw on, and where to get the library that draws them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from trifold.errors import TrifoldError, UsageError

Figure: TypeAlias = Any  # matplotlib.figure.Figure: the library is optional, its types are too

HOW_TO_GET_PICTURES = "pictures need matplotlib: pip install 'trifold[plots]'"
COLOURS = "Blues"  # white is nothing, dark is all; every picture of weights uses it from 0 to 1


ENDINGS = (".png", ".svg", ".pdf")


def check(path: Path) -> None:
    """Raise what stands in the way of a picture at `path`: no matplotlib, or an ending that is no picture's."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"{path}: a picture ends in {', '.join(ENDINGS)}")
    _library()


def new_figure(width: float, height: float) -> Figure:
    """A figure of `width` x `height` inches. Raises TrifoldError with the remedy where matplotlib is not installed."""
    return _library()(figsize=(width, height), layout="constrained", facecolor="white")


def save(figure: Figure, path: Path, dots_per_inch: int = 130) -> Path:
    """Write the figure in the format that the ending names, making the folder if need be; gives the path back."""
    check(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dots_per_inch)
    except OSError as error:
        raise TrifoldError(f"{path}: cannot be written ({error.strerror}); choose another place") from None
    return path


def _library() -> Any:
    try:
        # Not pyplot: no window system, nothing global, nothing to close.
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise TrifoldError(HOW_TO_GET_PICTURES) from None
    return Figure
