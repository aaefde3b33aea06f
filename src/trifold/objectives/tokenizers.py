"""The tokenizers of a run: its own where it has them already, else trained on its text and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trifold.objectives.task import Asked
from trifold.text import Tokenizer, make_tokenizer

FILE, TARGET_FILE = "tokenizer.json", "target_tokenizer.json"


def tokenizer_of(
    asked: Asked, texts: Callable[[], Iterable[str]], save: Callable[[Tokenizer], None]
) -> Tokenizer:
    """The one tokenizer of a task: that of the run, so that a resumed run reads as it read before, or a new one.

    texts: gives what a new one is trained on. save: writes it into the run's folder.
    """
    settings = asked.tokenizer
    own = asked.folder / FILE
    if own.is_file():
        return Tokenizer.load(own, dropout=settings.dropout)
    asked.say(f"tokenizer: {settings.kind} …")
    tokenizer = make_tokenizer(texts(), settings)
    asked.folder.mkdir(parents=True, exist_ok=True)
    save(tokenizer)
    return tokenizer
