"""Text to token ids and back, for batches of texts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tokenizers import AddedToken, decoders, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from trifold.errors import DataError
from trifold.text.dropout import MergeDropout

PAD, BOS, EOS, UNK = "<pad>", "<s>", "</s>", "<unk>"
SPECIAL = [PAD, BOS, EOS, UNK]  # a tokenizer trained here has them as ids 0, 1, 2, 3
SPACE = "▁"

_CHUNK = 10_000  # texts encoded at once: enough to keep all cores busy, few enough to bound the memory
_ROLES = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS, "unk_token": UNK}


class Tokenizer:
    """A tokenizer of the `tokenizers` library and the ids of its special tokens.

    A special token gets into a sequence by its id alone: text that happens to spell `</s>` stays text. Of a
    foreign tokenizer, truncation and padding are switched off and special tokens that it lacks are appended.
    """

    def __init__(
        self, library: Library, *, dropout: float = 0.0, names: dict[str, str] | None = None
    ) -> None:
        library.no_truncation()
        library.no_padding()
        self.names = _ROLES | (names or {})
        missing = [name for name in self.names.values() if library.token_to_id(name) is None]
        library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in missing])
        library.encode_special_tokens = True
        self.library = library
        self.dropout = dropout
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = map(self._id, _ROLES)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included; every id is below it."""
        return int(self.library.get_vocab_size(with_added_tokens=True))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of every text, without special tokens and never cut."""
        return [
            encoding.ids
            for chunk in _chunks(texts)
            for encoding in self.library.encode_batch_fast(chunk, add_special_tokens=False)
        ]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of every sequence; special tokens are left out."""
        return list(self.library.decode_batch([list(row) for row in ids], skip_special_tokens=True))

    def sample(
        self, texts: Sequence[str], seed: int, indices: Sequence[int] | None = None
    ) -> list[list[int]]:
        """Like `encode`, but with merges left out at random (BPE-dropout, Provilkov et al. 2020).

        A pure function of (text, seed, index); `indices` are the places of the texts in the whole data,
        0, 1, 2 … when not given. Without dropout it is `encode`.
        """
        if not self.dropout:
            return self.encode(texts)
        return self._merge_dropout.encode(texts, seed, range(len(texts)) if indices is None else indices)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        r"""Every token as a person reads it: ▁ for a space, bytes that are no character as \xNN."""
        return [self._piece(token) for token in ids]

    def unknown(self, ids: Sequence[int]) -> int:
        """How many of the tokens stand for something that the vocabulary does not hold."""
        return sum(token == self.unk_id for token in ids)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer as it is saved."""
        return hashlib.sha256(self.library.to_str(pretty=True).encode("utf-8")).hexdigest()

    def save(self, folder: Path, name: str = "tokenizer.json", *, append_eos: bool = False) -> None:
        """Write `name` into `folder`, and beside `tokenizer.json` the two files that `transformers` reads too.

        With `append_eos`, other programs that read it put the end token after every text, as translation
        models expect it; here nothing is appended either way.
        """
        self._write(folder / name, json.loads(self._serialised(append_eos)))
        if name == "tokenizer.json":
            config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
            limits = {"split_special_tokens": True, "model_max_length": int(1e30)}
            self._write(folder / "tokenizer_config.json", config | limits | self.names)
            self._write(folder / "special_tokens_map.json", self.names)

    @classmethod
    def load(cls, path: str | Path, *, dropout: float = 0.0) -> Self:
        """Read a `tokenizer.json`, or the one in a folder; the files beside it name the special tokens.

        Raises DataError when it is missing or no such file.
        """
        path = Path(os.path.expandvars(path)).expanduser()
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            library = Library.from_str(file.read_text(encoding="utf-8"))
        except OSError as error:
            remedy = "give a tokenizer.json, or a folder that holds one"
            raise DataError(f"{file}: cannot be read ({error.strerror}); {remedy}") from None
        except Exception as error:  # the library raises plain Exception
            raise DataError(f"{file}: not a tokenizer of the `tokenizers` library ({error})") from None
        return cls(library, dropout=dropout, names=_special_names(file.parent))

    def _id(self, role: str) -> int:
        number = self.library.token_to_id(self.names[role])
        assert number is not None
        return int(number)

    def _serialised(self, append_eos: bool) -> str:
        if not append_eos:
            return str(self.library.to_str())
        copy = Library.from_str(self.library.to_str())
        end = self.names["eos_token"]
        copy.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, self.eos_id)]
        )
        return str(copy.to_str())

    @staticmethod
    def _write(file: Path, content: dict[str, Any]) -> None:
        text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
        file.write_text(text, encoding="utf-8", newline="\n")

    @cached_property
    def _merge_dropout(self) -> MergeDropout:
        return MergeDropout(self.library, self.unk_id, self.dropout)

    def _piece(self, token: int) -> str:
        piece = str(self.library.id_to_token(token))
        if not isinstance(self.library.decoder, decoders.ByteLevel) or token in self._special_ids:
            return piece
        return bytes(_BYTES[c] for c in piece).decode("utf-8", "backslashreplace").replace(" ", SPACE)

    @cached_property
    def _special_ids(self) -> set[int]:
        return set(self.library.get_added_tokens_decoder())


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[start : start + _CHUNK] for start in range(0, len(texts), _CHUNK))


def _special_names(folder: Path) -> dict[str, str]:
    """Names of the special tokens as the Hugging Face files in `folder` give them, if there are any."""
    names: dict[str, str] = {}
    for file in (folder / "special_tokens_map.json", folder / "tokenizer_config.json"):
        try:
            entries = dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{file}: not a JSON object ({error}); mend or remove it") from None
        for role in _ROLES:
            entry = entries.get(role)
            name = entry.get("content") if isinstance(entry, dict) else entry
            if isinstance(name, str):
                names[role] = name
    return names


def _byte_table() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte: itself if visible, else one from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


_BYTES = _byte_table()
assert set(_BYTES) == set(pre_tokenizers.ByteLevel.alphabet())
