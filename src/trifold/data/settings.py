"""Settings of the data: its sources and how they are read."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import (
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from trifold.data.formats import DELIMITERS, FormatName, formats_holding
from trifold.data.lines import MAX_LINE_BYTES
from trifold.settings import Conflict, Settings


def _keep_frame(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """The checked value; data in memory, whose name is a string, stays with its name."""
    checked = check(value)
    return value if isinstance(value, str) else checked


Source: TypeAlias = Annotated[str | list[str] | None, WrapValidator(_keep_frame)]

# The parts of a row that labelled tasks read, whose columns can be named.
ROLES = ("text pair label question context answers choices words tags image negative").split()
_FOLDS = re.compile(r"folds:(?:(\d{1,3})/)?(\d{1,3})")  # folds:3, folds:1/10
# Names of delimiters that a shell or YAML reads as something else.
_DELIMITER_NAMES = {"tab": "\t", "semicolon": ";", "comma": ",", "pipe": "|", "space": " "}


class DataSettings(Settings):
    """The training, validation and test data, its columns, and the treatment of blank and duplicate
    rows.

    For pairs (translation, classification), `train`, `valid` and `test` each name one source:

    - `a.en,a.de` or `[a.en, a.de]`: two files of lines, aligned by line number;
    - `pairs.tsv`, `.csv`, `.jsonl` (each also `.gz` or `.zst`), `.parquet`, `.xlsx`: one file with
      both sides;
    - a folder or a `.zip` archive of such tables, which are read one after the other;
    - `hub:NAME@CONFIG:SPLIT`: a dataset of the Hugging Face hub (`@CONFIG` is optional);
    - `embedded:NAME`: text that is part of trifold.

    For raw text they name a file, a folder, a `.zip` archive, a pattern such as `books/**/*.txt`,
    or several of these (a list, or separated by commas): plain text, `.jsonl` and `.parquet`, each
    also `.gz` or `.zst`; or the last two forms above. A file in an archive is `books.zip/1.txt`.

    Paths may contain `~` and `${VARIABLES}`.
    """

    usual_keys: ClassVar[Mapping[str, Sequence[str]]] = {"columns": ROLES}

    train: Source = None
    valid: Source = None
    test: Source = None

    source: str | int = (
        "source"  # column: name or number from 0 (TSV, CSV), or dotted key (JSONL, hub)
    )
    target: str | int = "target"
    columns: dict[str, str | int | None] = Field(
        {},
        description="column of a part of a row of a labelled task, such as `{text: review, "
        "pair: null}`",
    )
    format: FormatName = "auto"  # by suffix
    delimiter: str | None = Field(
        None,
        description="character between the columns of a TSV or CSV file, or its name: `tab`, "
        "`semicolon`, `comma`, `pipe` or `space`; null: detect",
    )
    header: bool | None = (
        None  # whether the first row of a TSV or CSV file has column names; null: detect
    )

    documents: Literal["line", "blank", "file"] = Field(
        "line",
        description="the unit of plain raw text: a line, a block between blank lines, or a file",
    )
    field: str = Field(
        "text", min_length=1, description="JSONL, Parquet, hub: the key of the raw text"
    )
    cut: Literal["pieces", "windows", "drop"] = Field(
        "pieces",
        description="what happens to a document that is longer than the model's input: split "
        "into chunks of that "
        "length, read windows of that length at random offsets that change every epoch, or "
        "leave it out",
    )
    cache: str | None = Field(
        None,
        description="folder of tokenized raw text, built once and memory-mapped, for text "
        "beyond memory",
    )

    blank: Literal["drop", "keep"] = "drop"  # a pair with a blank side, or a blank document
    duplicates: Literal["keep", "drop"] = "keep"  # a pair or a document that occurred before
    holdout: int | float | str = Field(
        0,
        description="number or share (0.1) of training rows or documents used as validation "
        "data, or a fold: "
        "`fold:2/5` is the second of five; of a single document, the share of its characters, "
        "taken from the end; classification: `folds:3`, three folds choose the steps, or "
        "`folds:1/10`, one of ten does, and the saved model is trained on all rows",
    )
    group: str | int | None = Field(
        None,
        description="column whose equal values are held out together, such as a customer or a "
        "patient",
    )
    time: str | int | None = Field(
        None,
        description="column of numbers or dates (2026-11-27); the latest rows are held out",
    )
    max_line_bytes: int = Field(default=MAX_LINE_BYTES, ge=1, le=2**40)  # a longer line is an error

    @field_validator("holdout")
    @classmethod
    def _check_share(cls, holdout: int | float | str) -> int | float | str:
        if isinstance(holdout, str) and (folds := _FOLDS.fullmatch(holdout)):
            trained, parts = folds[1] or folds[2], folds[2]
            if int(parts) < 2:
                raise ValueError(f"at least two folds are needed, got {holdout!r}")
            if not 1 <= int(trained) <= int(parts):
                raise ValueError(
                    f"expected some of {parts} folds, such as folds:1/{parts}, got {holdout!r}"
                )
        elif isinstance(holdout, str):
            fold = re.fullmatch(r"fold:(\d{1,6})/(\d{1,6})", holdout)
            if not fold or not 1 <= int(fold[1]) <= int(fold[2]) != 1:
                raise ValueError(
                    f"expected a number, or a fold such as fold:2/5, got {holdout!r:.40}"
                )
        elif isinstance(holdout, float) and not 0 < holdout < 1:
            raise ValueError(
                f"a share lies between 0 and 1, got {holdout}; write a number of rows without a "
                "point"
            )
        elif holdout < 0:
            raise ValueError(f"must be greater than or equal to 0, got {holdout}")
        return holdout

    @property
    def folds(self) -> int | None:
        """The number of folds that choose the steps of a run on all rows; None of other runs."""
        folds = _FOLDS.fullmatch(str(self.holdout))
        return folds and int(folds[1] or folds[2])

    @property
    def fold_parts(self) -> int | None:
        """The number of folds that the rows are divided into, of which all or some are trained."""
        folds = _FOLDS.fullmatch(str(self.holdout))
        return folds and int(folds[2])

    @property
    def trained_share(self) -> float:
        """The share of the rows that a fold is trained on; 1 of other runs."""
        if isinstance(self.holdout, str) and self.holdout.startswith("fold:"):
            count = int(self.holdout.partition("/")[2])
            return (count - 1) / count
        return 1.0

    @field_validator("delimiter")
    @classmethod
    def _check_delimiter(cls, delimiter: str | None) -> str | None:
        if delimiter is None:
            return None
        if delimiter == r"\t":
            return "\t"
        sign = _DELIMITER_NAMES.get(delimiter, delimiter)
        if len(sign) == 1 and not re.match(r'[\w"\n\r]', sign):
            return sign
        known = ", ".join(_DELIMITER_NAMES)
        raise ValueError(f"expected one character or one of {known}, got {sign!r:.40}")

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.holdout and self.valid is not None:
            text = "holdout and valid contradict each other"
            raise Conflict(text, {"valid": None, "holdout": 0}, "set one of the two")
        self._check_split_columns()
        row_formats = [name for name in formats_holding("documents") if name != "text"]
        if self.documents != "line" and self.format in row_formats:
            raise ValueError(
                f"documents: {self.documents} applies to plain text, and each row of "
                f"{self.format} is a document; leave one of the two out"
            )
        if self.delimiter is not None and self.format not in ("auto", *DELIMITERS):
            raise ValueError(
                f"delimiter is between the columns of TSV and CSV files; {self.format} has none; "
                "leave one of the two out"
            )
        if self.cache is not None and self.duplicates == "drop":
            raise ValueError(
                "duplicates: drop keeps all text in memory, which a cache avoids; keep "
                "duplicates, or set no cache"
            )
        return self

    def _check_split_columns(self) -> None:
        """Raises ValueError for a column that decides which rows are held out, where none are."""
        for key, column in (("group", self.group), ("time", self.time)):
            if column is None:
                continue
            if not self.holdout:
                remedy = "set holdout too" if self.valid is None else "set holdout instead of valid"
                raise ValueError(f"{key} decides which rows are held out; {remedy}")
            if self.cache is not None:
                raise ValueError(f"{key} is a column of labelled rows, which have no cache")
        if self.time is not None and isinstance(self.holdout, str):
            raise ValueError("time holds out the latest rows, and folds hold out rows of any time")
