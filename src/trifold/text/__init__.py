"""Tokenizers: train, load, save, encode, decode; chat templates."""

from trifold.text.encoded import Encoded, report
from trifold.text.folder import read_tokenizer
from trifold.text.tokenizer import Tokenizer
from trifold.text.training import TokenizerSettings, make_tokenizer, train_tokenizer

__all__ = [
    "Encoded",
    "Tokenizer",
    "TokenizerSettings",
    "make_tokenizer",
    "read_tokenizer",
    "report",
    "train_tokenizer",
]
