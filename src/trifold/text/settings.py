"""Settings of the tokenizer."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from trifold.settings import Settings


class TokenizerSettings(Settings):
    """The tokenizer to train, or the file of an existing one.

    Kinds: `byte-bpe` (text is restored exactly, nothing is unknown), `bpe` (merges within words; white space is
    restored as single spaces), `unigram` (most probable pieces) and `word`, both likewise, and `char` (exact).
    Characters or words outside the vocabulary become `<unk>`.
    """

    kind: Literal["byte-bpe", "bpe", "unigram", "word", "char"] = "bpe"
    vocab_size: int = Field(default=8000, ge=5)  # maximum number of tokens, including special ones
    joint: bool = True  # one vocabulary for source and target
    min_frequency: int = Field(default=2, ge=1)  # of a pair (bpe), word or character that gets a token
    lowercase: bool = False
    punctuation: bool = True  # bpe, unigram, word: split off punctuation; false for tokenized text
    special: tuple[Literal["cls", "sep", "mask"], ...] = Field(
        default=(),
        strict=False,
        description="further special tokens: cls and sep surround every text, mask replaces masked tokens",
    )
    sentinels: int = Field(
        default=0, ge=0, le=10_000, description="number of sentinel tokens <extra_id_0> … for span corruption"
    )
    file: str | None = None  # a tokenizer.json, or a folder that holds one, instead of training
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)  # bpe, byte-bpe: share of merges dropped in training
    dropout_epochs: int | None = Field(default=None, ge=1)  # number of first epochs with dropout; default all

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dropout and self.file is None and self.kind not in ("bpe", "byte-bpe"):
            raise ValueError(f"dropout drops BPE merges, and kind {self.kind!r} has none; set it to 0")
        if self.dropout_epochs and not self.dropout:
            raise ValueError("dropout_epochs has no effect without dropout; set dropout, for example to 0.1")
        if len({"cls", "sep"}.intersection(self.special)) == 1:
            raise ValueError("special: cls and sep surround a text together; give both or neither")
        return self
