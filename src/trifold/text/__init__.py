"""Tokenizers: train, load, save, encode, decode."""

from trifold.text.settings import TokenizerSettings
from trifold.text.tokenizer import Tokenizer
from trifold.text.training import make_tokenizer, train_tokenizer

__all__ = ["Tokenizer", "TokenizerSettings", "make_tokenizer", "train_tokenizer"]
