"""How text is cut into tokens."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from trifold.settings import Settings


class TokenizerSettings(Settings):
    """The tokenizer to train, or the file of a finished one.

    Kinds: `byte-bpe` (any text comes back exactly; nothing is ever unknown), `bpe` (merges inside words;
    white space comes back as single spaces), `unigram` (the most probable pieces) and `word`, both
    likewise, and `char` (exact). What is not in the vocabulary becomes `<unk>`.
    """

    kind: Literal["byte-bpe", "bpe", "unigram", "word", "char"] = "bpe"
    vocab_size: int = Field(default=8000, ge=5)  # at most so many tokens, all special ones among them
    joint: bool = True  # one vocabulary for source and target
    min_frequency: int = Field(
        default=2, ge=1
    )  # rarer pairs (bpe), words or characters get no token of their own
    lowercase: bool = False
    punctuation: bool = (
        True  # bpe, unigram, word: cut off punctuation; false for text that is tokenised already
    )
    special: tuple[Literal["cls", "sep", "mask"], ...] = Field(
        default=(),
        strict=False,
        description="more special tokens: cls and sep stand around every text, mask hides what is to be guessed",
    )
    sentinels: int = Field(
        default=0, ge=0, le=10_000, description="so many tokens <extra_id_0> … that stand for spans taken out"
    )
    file: str | None = None  # a tokenizer.json, or a folder that holds one: taken instead of training
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)  # bpe, byte-bpe: share of merges left out in training
    dropout_epochs: int | None = Field(
        default=None, ge=1
    )  # … in the first epochs only, so many; later ones read text as it will be read

    @model_validator(mode="after")
    def _only_merges_drop_out(self) -> Self:
        if self.dropout and self.file is None and self.kind not in ("bpe", "byte-bpe"):
            raise ValueError(f"dropout leaves out merges, and kind {self.kind!r} has none; set it to 0")
        if self.dropout_epochs and not self.dropout:
            raise ValueError(
                "dropout_epochs says how long merges drop out, and none does; set dropout, to 0.1 say"
            )
        if len({"cls", "sep"}.intersection(self.special)) == 1:
            raise ValueError("special: cls and sep stand around a text together; give both or neither")
        return self
