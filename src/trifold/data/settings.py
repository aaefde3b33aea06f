"""Where the text lies and how it is to be read."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from trifold.settings import Settings

Source: TypeAlias = str | list[str] | None


class DataSettings(Settings):
    """Parallel text: its files or sources, its columns, and what happens to rows that cannot be used.

    `train`, `valid` and `test` each name one source in one of these forms:

    - `a.en,a.de` or `[a.en, a.de]`: two files of lines, aligned by line number;
    - `pairs.tsv`, `.csv`, `.jsonl` (each also `.gz`): one file that holds both sides;
    - `hub:NAME@CONFIG:SPLIT`: a dataset of the Hugging Face hub (`@CONFIG` may be left out);
    - `embedded:NAME`: text that is part of trifold itself.

    Paths may hold `~` and `${VARIABLES}`.
    """

    train: str | list[str] | None = None
    valid: str | list[str] | None = None
    test: str | list[str] | None = None

    source: str | int = (
        "source"  # column: a name, or a number from 0 (TSV, CSV); a key, dotted when nested (JSONL, hub)
    )
    target: str | int = "target"
    format: Literal["auto", "text", "tsv", "csv", "jsonl"] = "auto"  # auto: by the file's ending
    header: bool | None = None  # is the first row of a TSV or CSV the names of its columns? None: look

    blank: Literal["drop", "keep"] = "drop"  # a pair with a blank side
    duplicates: Literal["keep", "drop"] = "keep"  # a pair that has been seen before, both sides equal
    holdout: int = Field(default=0, ge=0)  # pairs taken out of train as validation data
    max_line_bytes: int = Field(
        default=1_000_000, ge=1
    )  # a longer line is an error, found without reading it all

    @model_validator(mode="after")
    def _one_validation_set(self) -> Self:
        if self.holdout and self.valid is not None:
            raise ValueError("holdout and valid contradict each other: set one of the two")
        return self
