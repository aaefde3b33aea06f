"""Tokenizers: train, load, save, encode, decode; chat templates."""

from trifold.text.encoded import Encoded, Truncation
from trifold.text.folder import read_tokenizer
from trifold.text.streaming import TextStream
from trifold.text.tokenizer import Tokenizer
from trifold.text.training import TokenizerSettings, make_tokenizer, train_tokenizer

__all__ = ["Encoded", "TextStream", "Tokenizer", "TokenizerSettings", "Truncation"]
__all__ += ["make_tokenizer", "read_tokenizer", "train_tokenizer"]
