"""Text to token ids and back, for batches of texts."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from trifold import disk
from trifold.errors import CheckpointError, DataError, UsageError
from trifold.text.chat import render, values_of
from trifold.text.checks import read_library
from trifold.text.decoding import BYTE_ALPHABET, TextStream, clean_up_spaces
from trifold.text.dropout import MergeDropout
from trifold.text.encoded import Cut, Encoded, around, fit, parts
from trifold.text.regexes import panicked
from trifold.text.special import named_in, settings_in

PAD, BOS, EOS, UNK = "<pad>", "<s>", "</s>", "<unk>"
SPECIAL = [PAD, BOS, EOS, UNK]  # a tokenizer trained here has them as ids 0, 1, 2, 3
SPACE = "▁"

_CHUNK = 10_000  # texts encoded at once: enough to keep all cores busy, few enough to bound the memory
_ROLES = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS, "unk_token": UNK}
_ALL = (*_ROLES, "cls_token", "sep_token", "mask_token")
_WHOLE = {"tokenizer_class": "PreTrainedTokenizerFast"}  # others take tokenizer.json as it is


class Tokenizer:
    """A tokenizer of the `tokenizers` library and the ids of its special tokens.

    A special token gets into a sequence by its id alone: text that happens to spell `</s>` stays text, unless
    `special_in_text` asks for it. Truncation and padding of a foreign tokenizer are switched off. The four special
    tokens that training needs are appended where they are missing, except when `complete` is off: then the id of a
    role that has no token is None.

    `words` cuts a text before the library sees it, for tokenizers whose pieces the library cannot find itself;
    then `library` only knows their ids. `files` are what such a tokenizer was read from, and is saved as.
    """

    def __init__(
        self,
        library: Library,
        *,
        dropout: float = 0.0,
        names: dict[str, str] | None = None,
        complete: bool = True,
        settings: Mapping[str, Any] | None = None,
        words: Callable[[str], list[str]] | None = None,
        files: Mapping[str, bytes] | None = None,
        templates: Mapping[str, str] | None = None,
    ) -> None:
        library.no_truncation()
        library.no_padding()
        self.names = (_ROLES if complete else {}) | (names or {})
        missing = [name for name in self.names.values() if library.token_to_id(name) is None]
        library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in missing])
        library.encode_special_tokens = True
        self.library = library
        self.dropout = dropout
        self.settings = dict(settings or {})
        self.files = dict(files or {})
        self.templates = dict(templates or {})
        self._words = words
        self._closes_up = bool(self.settings.get("clean_up_tokenization_spaces")) and not isinstance(
            library.model, models.BPE
        )
        ids = {role: self._id(role) for role in _ALL}
        self.pad_id, self.bos_id, self.eos_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            ids.values()
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included; every id is below it, unless the vocabulary has gaps."""
        return int(self.library.get_vocab_size(with_added_tokens=True))

    def required(self, role: str) -> int:
        """The id of the special token of a role (`pad`, `eos`, …). Raises DataError where there is none."""
        number = self._id(f"{role}_token")
        if number is None:
            raise DataError(
                f"the tokenizer has no {role} token, which is needed here; name one in its settings"
            )
        return number

    def encode(self, texts: Sequence[str], *, special_in_text: bool = False) -> list[list[int]]:
        """Token ids of every text, without special tokens around it and never cut."""
        return [
            encoding.ids
            for chunk in _chunks(texts)
            for encoding in self._encodings(chunk, special_in_text, fast=True)
        ]

    def encodings(self, texts: Sequence[str]) -> Iterator[Any]:
        """The library's own view of each text, without special tokens around it: `ids`, `word_ids`, `offsets`, …"""
        for chunk in _chunks(texts):
            yield from self._encodings(chunk, False)

    def rows(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        cut: Cut = "longest_first",
        special_in_text: bool = False,
    ) -> list[Encoded]:
        """Texts, or pairs of texts, with the special tokens that the model expects around them.

        At most `max_length` tokens each, those included; a row says how many it lost. Raises UsageError where
        the texts that may be cut leave too little.
        """
        both = [texts] if pairs is None else [texts, pairs]
        if len(both[0]) != len(both[-1]):
            raise UsageError(f"{len(both[0]):,} texts and {len(both[-1]):,} second texts are no pairs")
        room = None
        if max_length is not None:
            room = max_length - self.library.num_special_tokens_to_add(pairs is not None)
        found = []
        for start in range(0, len(texts), _CHUNK):
            columns = [self._encodings(column[start : start + _CHUNK], special_in_text) for column in both]
            for first, *rest in zip(*columns, strict=True):
                second = rest[0] if rest else None
                dropped = 0 if room is None else fit(first, second, room, cut)
                found.append(around(self.library, first, second, dropped))
        return found

    def windows(self, text: str, other: str, *, max_length: int, stride: int) -> list[Encoded]:
        """Pairs of `text` and a part of `other` each, with special tokens, at most `max_length` tokens together.

        Parts overlap by `stride` tokens; offsets are places in the whole of `other`. Raises UsageError where `text`
        leaves no room for them.
        """
        first, second = (self._encodings([one], False)[0] for one in (text, other))
        room = max_length - self.library.num_special_tokens_to_add(True) - len(first)
        return [around(self.library, first, part, 0) for part in parts(second, room, stride)]

    @property
    def tells_segments(self) -> bool:
        """Whether a model hears which text of a pair a token is of, as the folder's settings or its class have it."""
        return "token_type_ids" in (self.settings.get("model_input_names") or ())

    @property
    def has_offsets(self) -> bool:
        """Whether offsets are places in the text; not so where something else cuts it into words first."""
        return self._words is None

    def decode(self, ids: Sequence[Sequence[int]], *, keep_special: bool = False) -> list[str]:
        """The text of every sequence; special tokens are left out unless `keep_special`."""
        rows = [list(row) for row in ids]
        texts = self.library.decode_batch(rows, skip_special_tokens=not keep_special)
        if self._words is not None:
            texts = [text.strip() for text in texts]
        return [clean_up_spaces(text) for text in texts] if self._closes_up else list(texts)

    def stream(self, *, keep_special: bool = False) -> TextStream:
        """The text of ids that come one by one; never half a character."""

        def text_of(ids: list[int]) -> str:
            return self.decode([ids], keep_special=keep_special)[0]

        joins = self._closes_up or isinstance(self.library.decoder, decoders.WordPiece)
        found = (self.library.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        single = [token for token in found if token is not None]
        single += [] if keep_special else self._never
        return TextStream(text_of, closes_up=joins or self._words is not None, open=single)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        template: str | None = None,
        **more: Any,
    ) -> str:
        """Messages (`role` and `content`) as one text by the folder's chat template, or by the one of that name.

        `more` (tools, documents, …) is seen by the template. Encode the text with `special_in_text`. Raises
        DataError where there is no template or it refuses the messages, CheckpointError where it is broken.
        """
        name = template or ("tool_use" if more.get("tools") and "tool_use" in self.templates else "default")
        if name not in self.templates:
            there = ", ".join(sorted(self.templates)) or "none"
            raise DataError(f"the tokenizer has no chat template {name!r} (there: {there})")
        return render(self.templates[name], values_of(messages, self.names, add_generation_prompt, more))

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

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer as it is saved."""
        return hashlib.sha256(self.library.to_str(pretty=True).encode("utf-8")).hexdigest()

    @property
    def reading(self) -> str:
        """SHA-256 of what decides how a text is cut; what is put around it, or left out at random, does not count."""
        cut = json.loads(self._copy().to_str())
        cut["model"].pop("dropout", None)
        files = [self.files[name] for name in sorted(self.files)]
        return hashlib.sha256(
            b"\0".join([json.dumps(cut, sort_keys=True).encode("utf-8"), *files])
        ).hexdigest()

    def save(
        self,
        folder: Path,
        name: str = "tokenizer.json",
        *,
        append_eos: bool = False,
        prepend_bos: bool = False,
    ) -> None:
        """Write `name` into `folder`, and beside `tokenizer.json` the two files that `transformers` reads too.

        With `append_eos`, who reads it puts the end token after every text, as translation models expect it; with
        `prepend_bos` the start token before it, as a language model may. `encode` does neither.
        """
        if self.files:
            for file, content in self.files.items():
                disk.replace_bytes(folder / file, content)
            return
        if name == "tokenizer.json":
            limits = {"split_special_tokens": True, "model_max_length": int(1e30)}
            config = {"clean_up_tokenization_spaces": False, **(self.settings or limits)}
            config.pop("auto_map", None)  # code is never passed on
            if self.templates:
                entries = [{"name": name, "template": text} for name, text in self.templates.items()]
                config["chat_template"] = (
                    self.templates["default"] if [*self.templates] == ["default"] else entries
                )
            if not config.get("added_tokens_decoder"):
                config.pop("added_tokens_decoder", None)
            self._write(folder / "tokenizer_config.json", config | self.names | _WHOLE)
            self._write(folder / "special_tokens_map.json", dict(sorted(self.names.items())))
        # Last: where it is, all that belongs to it is.
        self._write(folder / name, json.loads(self._serialised(append_eos, prepend_bos)))

    @classmethod
    def load(cls, path: str | Path, *, dropout: float = 0.0) -> Self:
        """Read a `tokenizer.json`, or the one in a folder; the files beside it name the special tokens.

        Raises DataError when it is missing or no such file.
        """
        path = Path(os.path.expandvars(path)).expanduser()
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            library, _ = read_library(file)
        except CheckpointError as error:
            reason = str(error).removeprefix(f"{file}: ")
            if not reason.startswith("not a tokenizer"):
                what = "not a tokenizer" if file.exists() else "cannot be read"
                reason = f"{what} ({reason})"
            remedy = "give a tokenizer.json, or a folder that holds one"
            raise DataError(f"{file}: {reason}; {remedy}") from None
        return cls(
            library, dropout=dropout, names=named_in(file.parent, _ALL), settings=settings_in(file.parent)
        )

    def _id(self, role: str) -> int | None:
        name = self.names.get(role)
        return None if name is None else self.library.token_to_id(name)

    def _cut(self, texts: Sequence[str], special_in_text: bool) -> Sequence[Any]:
        if self._words is None:
            return texts
        if not special_in_text:
            return [self._words(text) for text in texts]
        special = re.compile("(" + "|".join(map(re.escape, self.names.values())) + ")")
        return [self._cut_around(special, text) for text in texts]

    def _cut_around(self, special: re.Pattern[str], text: str) -> list[str]:
        assert self._words is not None
        parts = enumerate(special.split(text))  # every second one is a special token
        return [piece for place, part in parts for piece in ([part] if place % 2 else self._words(part))]

    def _encodings(self, texts: Sequence[str], special_in_text: bool, *, fast: bool = False) -> list[Any]:
        """The library's encodings; without `fast` they know the places in the text."""
        options = {"is_pretokenized": self._words is not None, "add_special_tokens": False}

        def run(library: Library, some: Sequence[str]) -> list[Any]:
            encode = library.encode_batch_fast if fast else library.encode_batch
            try:
                return list(encode(self._cut(some, special_in_text), **options))
            except BaseException as error:  # rules of a damaged or hostile file may only fail on a text
                if not panicked(error):
                    raise
                raise CheckpointError(
                    f"the tokenizer's files are damaged: no text is read ({error})"
                ) from None

        if special_in_text:
            return run(self._reading, texts)
        found = run(self.library if fast else self._bare, texts)
        spelt = [place for place, one in enumerate(found) if not self._never.isdisjoint(one.ids)]
        if spelt:
            again = run(self._guarded, [texts[place] for place in spelt])
            for place, one in zip(spelt, again, strict=True):
                found[place] = one
        return found

    @cached_property
    def _never(self) -> frozenset[int]:
        """Ids of special tokens that no text may get by spelling them."""
        added = self.library.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special) - {self.unk_id}

    @cached_property
    def _guarded(self) -> Library:
        """A copy that cuts special tokens in two where a text spells them, so that no piece can be one of them.

        Some vocabularies hold their special tokens among the usual pieces, and the library would find them there.
        """
        copy = self._copy()
        names = [str(self.library.id_to_token(token)) for token in sorted(self._never)]
        cuts = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names if len(name) > 1)
        guard = pre_tokenizers.Split(Regex(cuts), "isolated")
        before = copy.pre_tokenizer
        copy.pre_tokenizer = guard if before is None else pre_tokenizers.Sequence([before, guard])
        return copy

    def _copy(self, *, reads_special: bool = False) -> Library:
        """Another library that puts nothing around a text; switches on one would not be safe with threads."""
        copy = Library.from_str(self.library.to_str())
        copy.post_processor = None
        copy.encode_special_tokens = not reads_special
        return copy

    @cached_property
    def _reading(self) -> Library:
        """A copy that reads special tokens in a text as what they are."""
        return self._copy(reads_special=True)

    @cached_property
    def _bare(self) -> Library:
        """For `rows`, which calls the post-processor itself: some would trim offsets twice."""
        template = (type(None), processors.TemplateProcessing, processors.BertProcessing)
        return self.library if isinstance(self.library.post_processor, template) else self._copy()

    def _serialised(self, append_eos: bool, prepend_bos: bool) -> str:
        if not (append_eos or prepend_bos):
            return str(self.library.to_str())
        copy = Library.from_str(self.library.to_str())
        roles = ["bos"] * prepend_bos + ["eos"] * append_eos
        begin, end = (self.names[f"{role}_token"] if role in roles else "" for role in ("bos", "eos"))
        copy.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}".strip(),
            pair=f"{begin} $A $B {end}".strip(),
            special_tokens=[(self.names[f"{role}_token"], self.required(role)) for role in roles],
        )
        return str(copy.to_str())

    @staticmethod
    def _write(file: Path, content: dict[str, Any]) -> None:
        text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
        disk.replace_text(file, text)

    @cached_property
    def _merge_dropout(self) -> MergeDropout:
        return MergeDropout(self.library, self.required("unk"), self.dropout)

    def _piece(self, token: int) -> str:
        piece = str(self.library.id_to_token(token))
        if not isinstance(self.library.decoder, decoders.ByteLevel) or token in self._special_ids:
            return piece
        return bytes(BYTE_ALPHABET[c] for c in piece).decode("utf-8", "backslashreplace").replace(" ", SPACE)

    @cached_property
    def _special_ids(self) -> set[int]:
        return set(self.library.get_added_tokens_decoder())


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[start : start + _CHUNK] for start in range(0, len(texts), _CHUNK))
