"""Text to token ids and back, for batches of texts."""

import copy
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeAlias

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer as Library,
    decoders,
    models,
    pre_tokenizers,
    processors,
)

from trifold import disk
from trifold.errors import CheckpointError, DataError, TrifoldError, UsageError
from trifold.folders import AnyPath, UntrustedPath, named
from trifold.garbage import no_collections
from trifold.text.bpe_dropout import BPEDropout
from trifold.text.chat import render, template_values
from trifold.text.chat_ids import TemplateTokens, has_placeholders, hide_names
from trifold.text.encoded import (
    Cut,
    Encoded,
    IdRows,
    add_special_tokens,
    batched,
    kept_lengths,
    split_encoding,
    truncate,
    verify,
)
from trifold.text.languages import find_languages
from trifold.text.library import copy_library, read_library
from trifold.text.matches import mark_matches, mark_windows
from trifold.text.panics import is_panic
from trifold.text.patterns import PatternGuard
from trifold.text.special_tokens import (
    SETTINGS,
    complete_names,
    merge_files,
    names_of,
)
from trifold.text.streaming import TextStream, clean_up_spaces
from trifold.text.templates import template
from trifold.text.validation import check_post_processor
from trifold.text.vocabulary import BYTE_ALPHABET, SPACE
from trifold.text.word_cache import WordCache, is_worth_a_cache

Segment: TypeAlias = Callable[[str], list[str]]  # text -> pieces

# Files of a model folder; the second one is that of the target side, if it has its own.
TOKENIZER_FILE = "tokenizer.json"
TARGET_TOKENIZER_FILE = "target_tokenizer.json"
# Entries of tokenizer_config.json. NO_LIMITS: of a tokenizer that is trained here; special tokens
# in a text stay text, and the length is not limited.
TOKEN_TYPES = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
NO_LIMITS = {"split_special_tokens": True, "model_max_length": int(1e30)}


class Tokenizer:
    """A tokenizer of the `tokenizers` library and the ids of its special tokens.

    Special tokens enter a sequence by id only: a text that contains `</s>` stays text, unless
    `special_in_text` is set, which `parses_special` recommends for texts of a user. Truncation and
    padding of a loaded tokenizer are disabled. A role that the files leave open gets the most
    suitable token, such as `[SEP]` for the end; tokens for padding, begin and end are added if
    there is none. With `complete` False, and for other roles, the id of a role without a token is
    None.

    segment: splits a text into pieces, for tokenizers that `tokenizers` cannot run; `library` then
    only knows their ids. files: what such a tokenizer was read from, and is saved as. guard: runs
    untrusted patterns beforehand.
    """

    def __init__(
        self,
        library: Library,
        *,
        dropout: float = 0.0,
        names: dict[str, str] | None = None,
        complete: bool = True,
        settings: Mapping[str, Any] | None = None,
        segment: Segment | None = None,
        files: Mapping[str, bytes] | None = None,
        templates: Mapping[str, str] | None = None,
        guard: PatternGuard | None = None,
    ) -> None:
        library.no_truncation()
        library.no_padding()
        self.names = names or {}
        if complete:
            self.names = complete_names(library, self.names)
        missing = [name for name in self.names.values() if library.token_to_id(name) is None]
        new = [AddedToken(name, special=True, normalized=False) for name in missing]
        self._segment = segment
        self._patterns = guard or PatternGuard({}, "")
        self._patterns.add(new)
        library.add_special_tokens(new)
        library.encode_special_tokens = True  # special tokens in a text are encoded as plain text
        self.library = library
        self.dropout = dropout
        self.settings = dict(settings or {})
        self.files = dict(files or {})
        self.templates = dict(templates or {})
        cleans_up = bool(self.settings.get("clean_up_tokenization_spaces"))
        self._cleans_up = cleans_up and not isinstance(library.model, models.BPE)
        self.pad_id = self._id("pad_token")
        self.bos_id = self._id("bos_token")
        self.eos_id = self._id("eos_token")
        self.unk_id = self._id("unk_token")
        self.cls_id = self._id("cls_token")
        self.sep_id = self._id("sep_token")
        self.mask_id = self._id("mask_token")
        # The rows of the table of a model and the ids beyond it, which `for_model` sets.
        self._rows = 0
        self._outside = frozenset[int]()

    # --- properties -------------------------------------------------------------------------------

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id: the rows that a table of tokens needs. Some ids below it
        have no token if the vocabulary has gaps.
        """
        ids = self.library.get_vocab(with_added_tokens=True).values()
        return max(ids, default=-1) + 1

    def required(self, role: str) -> int:
        """The id of the special token of a role (`pad`, `eos`, …). Raises DataError if there is
        none.
        """
        number = self._id(f"{role}_token")
        if number is None:
            raise DataError(
                f"the tokenizer has no {role} token, which is needed; name one in its settings"
            )
        self.check_ids([[number]])
        return number

    @property
    def padding_id(self) -> int:
        """The id of padding, which no other position reads: that of the pad token, if there is one
        and the model has it, or else 0.
        """
        if self.pad_id is None or self.pad_id in self._outside:
            return 0
        return self.pad_id

    def _id(self, role: str) -> int | None:
        name = self.names.get(role)
        if name is None:
            return None
        return self.library.token_to_id(name)

    @property
    def has_token_types(self) -> bool:
        """Whether models receive the token types of a pair of texts, by the folder's settings or
        the class.
        """
        return "token_type_ids" in (self.settings.get("model_input_names") or ())

    @property
    def has_offsets(self) -> bool:
        """Whether offsets refer to the text; they do not if the text is segmented before `library`
        sees it.
        """
        return self._segment is None

    @property
    def parses_special(self) -> bool:
        """Whether `transformers` parses the special tokens that are written in a text, which
        `split_special_tokens` of the folder's settings turns off.
        """
        return not (self.settings or NO_LIMITS).get("split_special_tokens", False)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer as it is saved."""
        return hashlib.sha256(self.library.to_str(pretty=True).encode("utf-8")).hexdigest()

    @property
    def encoding_digest(self) -> str:
        """SHA-256 of everything that affects `encode`; special tokens around a text and dropout do
        not.
        """
        document = json.loads(self._copy().to_str())
        document["model"].pop("dropout", None)
        parts = [json.dumps(document, sort_keys=True).encode("utf-8")]
        parts += [self.files[name] for name in sorted(self.files)]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    # --- the table of a model ---------------------------------------------------------------------

    def for_model(self, rows: int) -> Self:
        """This tokenizer for a model whose table has `rows` tokens. What it encodes to an id that
        the table lacks raises CheckpointError.
        """
        if self.vocab_size <= rows:
            return self
        ids = self.library.get_vocab(with_added_tokens=True).values()
        fitted = copy.copy(self)
        vars(fitted).pop("_words", None)  # what it encodes is checked
        fitted._rows = rows
        fitted._outside = frozenset(number for number in ids if number >= rows)
        return fitted

    def check_ids(self, rows: Iterable[Sequence[int]]) -> None:
        """Raises CheckpointError for an id that the table of the model lacks."""
        if not self._outside:
            return
        for ids in rows:
            token = next((number for number in ids if number in self._outside), None)
            if token is not None:
                raise CheckpointError(
                    f"the tokenizer gives the id {token} ({self.pieces([token])[0]!r:.40}), but "
                    f"the model has {self._rows:,} tokens (from 0): they do not belong together; "
                    "give the tokenizer of the model, or leave this token out"
                )

    # --- text to ids ------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str], *, special_in_text: bool = False) -> list[list[int]]:
        """Token ids of every text, without special tokens around it or truncation. Raises DataError
        for non-text.
        """
        ids = list[list[int]]()
        for batch in batched(texts):
            if self._words is None or special_in_text:
                ids += (each.ids for each in self._encode(batch, special_in_text, fast=True))
            else:
                ids += self._encode_by_words(batch, self._words)
        return ids

    def _encode_by_words(self, texts: Sequence[str], words: WordCache) -> list[list[int]]:
        """`encode` of some texts with remembered words."""
        try:
            found = words.encode(texts)
        except (AttributeError, TrifoldError):  # of which the error of a whole text is more exact
            found = [None] * len(texts)
        others = [number for number, ids in enumerate(found) if ids is None]
        if others:
            whole = self._encode([texts[number] for number in others], False, fast=True)
            for number, encoding in zip(others, whole, strict=True):
                found[number] = encoding.ids
        return [ids for ids in found if ids is not None]

    @cached_property
    def _words(self) -> WordCache | None:
        """The ids of words, if the library encodes each alone."""
        if self._segment is not None or not is_worth_a_cache(self.library):
            return None
        return WordCache(self._ids_of_words)

    def _ids_of_words(self, words: Sequence[str]) -> Iterator[list[int] | None]:
        """The ids of each word; None of one with a piece that is a special token (`_encode`)."""
        for encoding in self._run(self.library, words, None, fast=True):
            ids = encoding.ids
            yield ids if self._forbidden_ids.isdisjoint(ids) else None

    def encodings(self, texts: Sequence[str]) -> Iterator[Any]:
        """The library's encodings (`ids`, `word_ids`, `offsets`, …), without special tokens around
        the text.
        """
        for batch in batched(texts):
            yield from self._encode(batch, False)

    def rows(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        cut: Cut = "longest_first",
        special_in_text: bool = False,
        compares: bool = False,
    ) -> list[Encoded]:
        """Texts, or pairs of texts, with the special tokens that the model expects around them.

        Rows are truncated to `max_length` tokens including these. compares: whether the words of
        pairs are compared (`text.matches`). Raises UsageError if the texts that may be cut are too
        short.
        """
        both = _columns(texts, pairs)
        batches = zip(*map(batched, both), strict=True)
        special = self.library.num_special_tokens_to_add(pairs is not None)

        def row(first: Any, second: Any = None) -> Encoded:
            dropped = 0
            if max_length is not None:
                dropped = truncate(first, second, max_length - special, cut)
            return add_special_tokens(self.library, first, second, dropped)

        rows = []
        for batch in batches:
            columns = [self._encode(column, special_in_text) for column in batch]
            rows += [row(*encodings) for encodings in zip(*columns, strict=True)]
        self.check_ids(row.ids for row in rows)
        if compares and pairs is not None:
            self._check_offsets()
            return mark_matches(rows, texts, pairs)
        return rows

    def id_rows(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        special_in_text: bool = False,
    ) -> IdRows:
        """`rows` without positions in the texts, in less than half the time."""
        both = _columns(texts, pairs)
        columns = [self.encode(column, special_in_text=special_in_text) for column in both]
        dropped = [0] * len(texts)
        filled = (number for number, row in enumerate(zip(*columns, strict=True)) if all(row))
        number = next(filled, None)
        if number is None:
            rows = self.rows(texts, pairs, max_length=max_length, special_in_text=special_in_text)
            return IdRows.of(rows)
        one = [[column[number]] for column in both]
        example = self.rows(*one, special_in_text=special_in_text)[0]
        if max_length is not None:
            size = max_length - self.library.num_special_tokens_to_add(pairs is not None)
            dropped = _truncate_columns(columns, size)
        return IdRows.like(example, columns, dropped)

    def windows(
        self,
        text: str,
        other: str,
        *,
        max_length: int,
        stride: int,
        special_in_text: bool = False,
        compares: bool = False,
    ) -> list[Encoded]:
        """Pairs of `text` and a part of `other`, with special tokens, at most `max_length` tokens
        each.

        Parts overlap by `stride` tokens; offsets refer to all of `other`. compares: as in `rows`,
        with all of `other`. Raises UsageError if `text` is too long.
        """
        first = self._encode([text], special_in_text)[0]
        second = self._encode([other], special_in_text)[0]
        size = max_length - self.library.num_special_tokens_to_add(True) - len(first)
        parts = split_encoding(second, size, stride)
        rows = [add_special_tokens(self.library, first, part, 0) for part in parts]
        self.check_ids(row.ids for row in rows)
        if compares:
            self._check_offsets()
            return mark_windows(rows, text, other)
        return rows

    def _check_offsets(self) -> None:
        """Raises UsageError if offsets do not refer to the text."""
        if not self.has_offsets:
            raise UsageError(
                "this tokenizer does not provide the positions of tokens, which a model with "
                "model.word_matches requires; give another tokenizer"
            )

    def sample(
        self, texts: Sequence[str], seed: int, indices: Sequence[int] | None = None
    ) -> list[list[int]]:
        """`encode` with BPE-dropout (Provilkov et al. 2020), if the tokenizer has a dropout rate.

        A pure function of (text, seed, index); `indices` are the positions of the texts in the
        whole data, 0, 1, 2, … by default.
        """
        if not self.dropout:
            return self.encode(texts)
        if indices is None:
            indices = range(len(texts))
        self._patterns.check(texts, special=None)
        rows = self._bpe_dropout.encode(texts, seed, indices)
        self.check_ids(rows)
        return rows

    @cached_property
    def _bpe_dropout(self) -> BPEDropout:
        return BPEDropout(self.library, self.required("unk"), self.dropout)

    def _encode(
        self, texts: Sequence[str], special_in_text: bool, *, fast: bool = False
    ) -> list[Any]:
        """The library's encodings, without offsets if `fast`. A text of which a piece is a special
        token is encoded again, with such names split, unless `special_in_text` is set.
        """
        if special_in_text and self._may_name_special(texts):
            return self._run(self._with_special, texts, self._segment_around_special, fast)
        library = self.library if fast else self._without_template
        encodings = self._run(library, texts, self._segment, fast)
        affected = [
            number
            for number, encoding in enumerate(encodings)
            if not self._forbidden_ids.isdisjoint(encoding.ids)
        ]
        if affected and special_in_text:
            return self._run(self._with_special, texts, self._segment_around_special, fast)
        if affected:
            again = [texts[number] for number in affected]
            corrected = self._run(self._splits_names, again, self._segment, fast)
            for number, encoding in zip(affected, corrected, strict=True):
                encodings[number] = encoding
        return encodings

    def _may_name_special(self, texts: Sequence[str]) -> bool:
        """Whether a special token may be written in one of the texts. If none is, a library that
        recognizes special tokens gives the same ids, and need not be made.
        """
        names = self._special_names
        return names is None or any(name in text for text in texts for name in names)

    @cached_property
    def _special_names(self) -> list[str] | None:
        """What special tokens are written as; None if texts are changed before."""
        tokens = self.library.get_added_tokens_decoder().values()
        special = [token for token in tokens if token.special]
        if self._segment is not None or any(token.normalized for token in special):
            return None
        return [token.content for token in special]

    def _run(
        self, library: Library, texts: Sequence[str], segment: Segment | None, fast: bool
    ) -> list[Any]:
        encode = library.encode_batch_fast if fast else library.encode_batch
        try:
            self._patterns.check(texts, special=not library.encode_special_tokens)
            is_segmented = self._segment is not None
            inputs: Sequence[Any] = texts
            if is_segmented and segment is not None:
                inputs = [segment(text) for text in texts]
            encodings = encode(inputs, is_pretokenized=is_segmented, add_special_tokens=False)
        except BaseException as error:  # some invalid files fail only when a text is encoded
            verify(texts)
            if type(error) is not Exception and not is_panic(error):  # the library raises both
                raise
            message = f"the tokenizer's files are damaged: encoding a text failed ({error})"
            raise CheckpointError(message) from None
        self.check_ids(encoding.ids for encoding in encodings)
        return list(encodings)

    def _segment_around_special(self, text: str) -> list[str]:
        assert self._segment is not None
        special = "|".join(map(re.escape, self.special_names))
        pieces = []
        for number, part in enumerate(re.split(f"({special})", text)):
            if number % 2:  # every second part is a special token
                pieces.append(part)
            else:
                pieces += self._segment(part)
        return pieces

    @cached_property
    def languages(self) -> dict[str, int]:
        """The codes of the languages that have a special token, such as fra_Latn or fr, and its
        id.
        """
        added = self.library.get_added_tokens_decoder()
        return find_languages(
            {token.content: number for number, token in added.items() if token.special}
        )

    @cached_property
    def special_names(self) -> tuple[str, ...]:
        """The texts of all special tokens, with or without a role."""
        added = self.library.get_added_tokens_decoder()
        return tuple(token.content for token in added.values() if token.special)

    @cached_property
    def _forbidden_ids(self) -> frozenset[int]:
        """Ids of special tokens that must not come from text."""
        added = self.library.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special) - {self.unk_id}

    @cached_property
    def _splits_names(self) -> Library:
        """A copy that splits the names of special tokens in a text, so that no piece can be one of
        them.

        Some vocabularies hold their special tokens as normal pieces too, and the library would find
        them in a text.
        """
        copy = self._copy()
        names = [str(self.library.id_to_token(token)) for token in sorted(self._forbidden_ids)]
        cuts = "|".join(
            f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names if len(name) > 1
        )
        split: Any = pre_tokenizers.Split(Regex(cuts), "isolated")
        if copy.pre_tokenizer is not None:
            split = pre_tokenizers.Sequence([copy.pre_tokenizer, split])
        copy.pre_tokenizer = split
        return copy

    @cached_property
    def _with_special(self) -> Library:
        """A copy that recognizes special tokens in a text."""
        return self._copy(encode_special_tokens=False)

    @cached_property
    def _without_template(self) -> Library:
        """The library for `rows`, which calls the post-processor itself: some would trim offsets
        twice.
        """
        harmless = (type(None), processors.TemplateProcessing, processors.BertProcessing)
        if isinstance(self.library.post_processor, harmless):
            return self.library
        return self._copy()

    def _copy(self, *, encode_special_tokens: bool = True) -> Library:
        """A copy without a post-processor. Switching options of one library would not be
        thread-safe.
        """
        copy = copy_library(self.library)
        copy.post_processor = None
        copy.encode_special_tokens = encode_special_tokens
        return copy

    # --- ids to text ------------------------------------------------------------------------------

    def decode(self, ids: Sequence[Sequence[int]], *, keep_special: bool = False) -> list[str]:
        """The text of every sequence, without special tokens unless `keep_special`. Raises
        DataError for no ids.
        """
        try:
            rows = [list(row) for row in ids]
            if self._patterns.decodes:
                pieces = [[str(self.library.id_to_token(token)) for token in row] for row in rows]
                self._patterns.check([], pieces)
            texts = self.library.decode_batch(rows, skip_special_tokens=not keep_special)
        except (TypeError, OverflowError):
            raise DataError(f"a list of lists of token ids is expected, not {ids!r:.60}") from None
        if self._segment is not None:
            texts = [text.strip() for text in texts]
        if self._cleans_up:
            return [clean_up_spaces(text) for text in texts]
        return list(texts)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token alone; its name as in `pieces` if it has no token."""
        texts = self.decode([[token] for token in ids], keep_special=True)
        names = self.pieces(ids)
        return [
            name if self.library.id_to_token(token) is None else text
            for token, text, name in zip(ids, texts, names, strict=True)
        ]

    def stream(self, *, keep_special: bool = False) -> TextStream:
        """Decode ids one by one; never yields a part of a character."""
        joins = self._cleans_up or isinstance(self.library.decoder, decoders.WordPiece)
        byte_ids = (self.library.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        open_ids = [token for token in byte_ids if token is not None]
        if not keep_special:  # skipped tokens do not separate the bytes of a character
            open_ids += self._forbidden_ids
        return TextStream(
            lambda ids: self.decode([ids], keep_special=keep_special)[0],
            closes_up=joins or self._segment is not None,
            open=open_ids,
        )

    def pieces(self, ids: Sequence[int]) -> list[str]:
        r"""Every token in readable form: ▁ for a space, \xNN for bytes that form no character,
        <id 7> for an id without a token, which a model with more rows than tokens may write.
        """
        is_byte_level = isinstance(self.library.decoder, decoders.ByteLevel)
        added = self.library.get_added_tokens_decoder()
        pieces = []
        for token in ids:
            piece = None
            if 0 <= token < self.vocab_size:
                piece = self.library.id_to_token(token)
            if piece is None:
                piece = f"<id {token}>"
            elif is_byte_level and token not in added:
                piece = _visible_bytes(piece)
            pieces.append(piece)
        return pieces

    def readable(self, piece: str) -> str:
        """A part of a token in readable form, as in `pieces`."""
        if isinstance(self.library.decoder, decoders.ByteLevel):
            return _visible_bytes(piece)
        return piece

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        template: str | None = None,
        **more: Any,
    ) -> str:
        """Messages (`role` and `content`) as one text by the folder's chat template, or by the one
        of that name.

        The template sees `more` (tools, documents, …). `encode_chat` gives the ids. Raises
        DataError if there is no template, if it rejects the messages or if the text is not valid
        Unicode, CheckpointError if it is invalid.
        """
        name = template or "default"
        if not template and more.get("tools") and "tool_use" in self.templates:
            name = "tool_use"
        if name not in self.templates:
            known = ", ".join(sorted(self.templates)) or "none"
            raise DataError(f"the tokenizer has no chat template {name!r} (known: {known})")
        more = {"add_generation_prompt": add_generation_prompt, **self.names, **more}
        text = render(self.templates[name], template_values(messages, more))
        verify([text])
        return text

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """The ids of `chat`, whose arguments and errors these are. Special tokens that a user or a
        tool wrote in a message stay text.
        """
        text = self.chat(hide_names(messages, self.special_names), **options)
        if not has_placeholders(text):
            return self.encode([text], special_in_text=True)[0]
        if self._segment is not None:
            raise DataError("a message contains a special token of this tokenizer; leave it out")

        def run(library: Library, one: str) -> Any:
            return self._run(library, [one], None, fast=True)[0]

        ids, of_text = TemplateTokens(self.library, self.special_names).encode(text, run)
        if not self._forbidden_ids.isdisjoint(of_text):
            ids, _ = TemplateTokens(self._splits_names, self.special_names).encode(text, run)
        self.check_ids([ids])
        return ids

    # --- files ------------------------------------------------------------------------------------

    def save(
        self,
        folder: Path,
        name: str = TOKENIZER_FILE,
        *,
        append_eos: bool = False,
        prepend_bos: bool = False,
        parse_special: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Write `name` into `folder`, and next to `tokenizer.json` the two settings files that
        `transformers` reads. Raises UsageError if there is a tokenizer, unless it may be
        overwritten.

        append_eos, prepend_bos: other programs put the end token after every text, as translation
        models expect, or the start token before it, as some language models do. `encode` does
        neither. parse_special: they parse special tokens in a text, which a model that fills holes
        needs; otherwise the settings decide.
        """
        for file in self.files or [name]:
            disk.check_free(folder / file, overwrite=overwrite)
        if self.files:
            for file, content in self.files.items():
                disk.replace_bytes(folder / file, content)
            return
        if name == TOKENIZER_FILE:
            _write_json(folder / "tokenizer_config.json", self._config(parse_special=parse_special))
            _write_json(folder / "special_tokens_map.json", dict(sorted(self.names.items())))
        library = self.library
        if append_eos or prepend_bos:
            library = copy_library(library)
            single = ["$A"]
            pair = ["$A", "$B"]
            for around in (single, pair):
                if prepend_bos:
                    around.insert(0, self.names["bos_token"])
                if append_eos:
                    around.append(self.names["eos_token"])
            library.post_processor = template(library, " ".join(single), " ".join(pair))
        # Last: if it exists, the files that belong to it do too.
        _write_json(folder / name, json.loads(library.to_str()))

    def _config(self, *, parse_special: bool) -> dict[str, Any]:
        """The content of tokenizer_config.json."""
        config = {"clean_up_tokenization_spaces": False, **(self.settings or NO_LIMITS)}
        if parse_special:
            config["split_special_tokens"] = False
        config.pop("auto_map", None)  # names code, which is never passed on
        if [*self.templates] == ["default"]:
            config["chat_template"] = self.templates["default"]
        elif self.templates:
            config["chat_template"] = [
                {"name": name, "template": text} for name, text in self.templates.items()
            ]
        if not config.get("added_tokens_decoder"):
            config.pop("added_tokens_decoder", None)
        # Other classes would rebuild tokenizer.json.
        return config | self.names | {"tokenizer_class": "PreTrainedTokenizerFast"}

    @classmethod
    @no_collections()
    def load(cls, path: AnyPath, *, dropout: float = 0.0) -> Self:
        """Read a `tokenizer.json`, or the one in a folder; the files next to it name the special
        tokens.

        Raises DataError if it is missing or invalid.
        """
        if not isinstance(path, UntrustedPath):
            path = Path(os.path.expandvars(path)).expanduser()
        file = named(path)
        if file.is_folder():
            file = file / TOKENIZER_FILE
        try:
            library, _, guard = read_library(file)
            check_post_processor(library, str(file))
        except CheckpointError as error:
            reason = str(error).removeprefix(f"{file}: ")
            if not reason.startswith("not a tokenizer"):
                what = "not a tokenizer" if file.exists() else "cannot be read"
                reason = f"{what} ({reason})"
            remedy = "give a tokenizer.json, a model folder or a run"
            raise DataError(f"{file}: {reason}; {remedy}") from None
        try:
            settings = merge_files(file.parent)
        except CheckpointError as error:
            raise DataError(f"{error}; repair or remove it") from None
        names = names_of(settings, {})
        own = {key: settings[key] for key in NO_LIMITS | TOKEN_TYPES if key in settings}
        if (file.parent / SETTINGS[0]).exists():
            own.setdefault("split_special_tokens", False)
        return cls(library, dropout=dropout, names=names, settings=own, guard=guard)


def _columns(texts: Sequence[str], pairs: Sequence[str] | None) -> list[Sequence[str]]:
    """The texts, and the second texts if there are any. Raises UsageError for another number of
    them.
    """
    if pairs is None:
        return [texts]
    if len(texts) != len(pairs):
        raise UsageError(f"{len(texts):,} texts and {len(pairs):,} second texts are not pairs")
    return [texts, pairs]


def _truncate_columns(columns: list[list[list[int]]], size: int) -> list[int]:
    """Truncate the ids of one or two texts of each row in place to `size` in total. Returns the
    number of ids removed of each row.
    """
    dropped = []
    for number, row in enumerate(zip(*columns, strict=True)):
        lengths = [*map(len, row), 0][:2]
        kept = kept_lengths(lengths, size, "longest_first")
        for column, keep in zip(columns, kept, strict=False):
            column[number] = column[number][:keep]
        dropped.append(sum(lengths) - sum(kept))
    return dropped


def _visible_bytes(piece: str) -> str:
    """A token of byte-level BPE in readable form; as it is, if it is not written in that alphabet,
    as tokens of other files may be.
    """
    if not BYTE_ALPHABET.keys() >= {*piece}:
        return piece
    raw = bytes(BYTE_ALPHABET[character] for character in piece)
    return raw.decode("utf-8", "backslashreplace").replace(" ", SPACE)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    disk.replace_text(file, json.dumps(content, ensure_ascii=False, indent=2) + "\n")
