"""Where the text lies and how it is to be read."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from trifold.settings import Settings

Source: TypeAlias = str | list[str] | None


class DataSettings(Settings):
    """Text to learn from: its files or sources, its columns, and what happens to rows that cannot be used.

    Of pairs (translation), `train`, `valid` and `test` each name one source in one of these forms:

    - `a.en,a.de` or `[a.en, a.de]`: two files of lines, aligned by line number;
    - `pairs.tsv`, `.csv`, `.jsonl` (each also `.gz`): one file that holds both sides;
    - `hub:NAME@CONFIG:SPLIT`: a dataset of the Hugging Face hub (`@CONFIG` may be left out);
    - `embedded:NAME`: text that is part of trifold itself.

    Of raw text they name a file, a folder, a pattern such as `books/**/*.txt`, or several of these (a list, or with
    commas between): plain text, `.jsonl` and `.parquet`, each also as `.gz` or `.zst`; or the last two forms above.

    Paths may hold `~` and `${VARIABLES}`.
    """

    train: str | list[str] | None = None
    valid: str | list[str] | None = None
    test: str | list[str] | None = None

    source: str | int = (
        "source"  # column: a name, or a number from 0 (TSV, CSV); a key, dotted when nested (JSONL, hub)
    )
    target: str | int = "target"
    format: Literal["auto", "text", "tsv", "csv", "jsonl", "parquet"] = "auto"  # auto: by the file's ending
    header: bool | None = None  # is the first row of a TSV or CSV the names of its columns? None: look

    documents: Literal["line", "blank", "file"] = Field(
        default="line",
        description="what a document is in plain raw text: a line, what stands between blank lines, or a file",
    )
    field: str = Field(
        default="text",
        min_length=1,
        description="raw text of JSONL, Parquet or the hub: the key it stands under",
    )
    cut: Literal["pieces", "windows", "drop"] = Field(
        default="pieces",
        description="of a document that is longer than the model reads at once: pieces of that length; windows of it "
        "at random places, drawn anew each epoch; or it is left out",
    )
    cache: str | None = Field(
        default=None,
        description="a folder for raw text as tokens, made once and then read from the disk as it is needed, for "
        "text larger than memory",
    )

    blank: Literal["drop", "keep"] = "drop"  # a pair with a blank side, or a blank document
    duplicates: Literal["keep", "drop"] = "keep"  # a pair or a document that has been seen before
    holdout: int | float = Field(
        default=0,
        ge=0,
        description="pairs or documents taken out of train as validation data, or their share (0.1); of a single "
        "document, that share of its characters, at its end",
    )
    max_line_bytes: int = Field(
        default=1_000_000, ge=1
    )  # a longer line is an error, found without reading it all

    @model_validator(mode="after")
    def _one_validation_set(self) -> Self:
        if self.holdout and self.valid is not None:
            raise ValueError("holdout and valid contradict each other: set one of the two")
        return self

    @field_validator("holdout")
    @classmethod
    def _a_number_or_a_share(cls, asked: int | float) -> int | float:
        if isinstance(asked, float) and not 0 < asked < 1:
            raise ValueError(
                f"a share lies between 0 and 1, got {asked}; a number of rows has no point in it"
            )
        return asked

    @model_validator(mode="after")
    def _raw_text_hangs_together(self) -> Self:
        if self.documents != "line" and self.format in ("jsonl", "parquet"):
            raise ValueError(
                f"documents: {self.documents} divides plain text, and a row of {self.format} is a document "
                "already; leave one of the two out"
            )
        if self.cache is not None and self.duplicates == "drop":
            raise ValueError(
                "duplicates: drop needs all text in memory, which a cache is there to avoid; keep them, or set no cache"
            )
        return self
