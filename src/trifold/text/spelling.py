"""What a library writes and nobody says: bytes as characters, and spaces before punctuation."""

from __future__ import annotations

from tokenizers import pre_tokenizers


def closed_up(text: str) -> str:
    """Without the spaces before punctuation, as the reference library does it where a tokenizer asks for it."""
    for spaced in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(spaced, spaced.strip())
    return text


def _byte_table() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte: itself if visible, else one from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


BYTES = _byte_table()
assert set(BYTES) == set(pre_tokenizers.ByteLevel.alphabet())
