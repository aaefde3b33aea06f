"""The tokenizer in the metadata of a GGUF file, as the files of a Hugging Face folder.

Four models exist: byte-level BPE (`gpt2`), SentencePiece BPE by scores (`llama`), WordPiece
(`bert`) and unigram (`t5`). The files are read like those of any folder: what they hold is checked
there, and templates run in a sandbox process.
"""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from trifold.hub.gguf.metadata import Metadata
from trifold.text.pre_tokenizers import GPT_2, PRE_TOKENIZERS, WHOLE_WORDS
from trifold.text.vocabulary import SPACE, all_merges

Document: TypeAlias = dict[str, Any]
PREFIX = "tokenizer.ggml."
MODEL = f"{PREFIX}model"
TEMPLATE = "tokenizer.chat_template"
LOWERCASE = f"{PREFIX}normalizer.lowercase"
STRIP_ACCENTS = f"{PREFIX}normalizer.strip_accents"
NO_TOKENIZER = ("no_vocab", "none")
# Types of tokens.
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_AS_BYTES: Document = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_NAME = re.compile(r"[\w-]{1,60}", re.ASCII)
# Role in tokenizer_config.json -> its key.
ROLES = {
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "sep_token": "seperator",
    "pad_token": "padding", "cls_token": "cls", "mask_token": "mask",
}  # fmt: skip
# Tokens that end an answer in published models, as in llama.cpp.
ENDS = """
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <turn|>
    <|endoftext|> <|end_of_text|> <|eom_id|> <EOT> _<EOT> <|end_of_sentence|>
""".split()


@dataclass(frozen=True)
class _Vocabulary:
    """The tokens of a file, with their types, and the ids of special tokens by role."""

    file: Metadata
    tokens: list[str]
    types: list[int]
    roles: Mapping[str, int]

    def of_type(self, *types: int) -> list[int]:
        return [number for number, kind in enumerate(self.types) if kind in types]

    def scores(self) -> list[float]:
        key = f"{PREFIX}scores"
        scores = self.file.numbers(key, len(self.tokens))
        if scores is None:
            raise self.file.error(key, "is missing, and this tokenizer needs it")
        return scores

    @property
    def ids(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}


def tokenizer_files(file: Metadata) -> dict[str, Callable[[], bytes | Document]]:
    """The files of the tokenizer by name; none for a model without a tokenizer. Raises
    CheckpointError.
    """
    if file.text(MODEL, "none") in NO_TOKENIZER:
        return {}
    model = file.choice(MODEL, BUILDERS, "")
    files: dict[str, Callable[[], bytes | Document]] = {
        "tokenizer.json": partial(_tokenizer, file, model),
        "tokenizer_config.json": partial(_settings, file, model),
    }
    for name, text in _templates(file).items():
        files[name] = text.encode
    return files


def ends(file: Metadata) -> list[int]:
    """The tokens that end an answer: those that the file names, and those with a known text."""
    named = [file.size(f"{PREFIX}{role}_token_id", None, least=0) for role in ("eos", "eot", "eom")]
    places = {token: file.places(f"{PREFIX}tokens", token) for token in ENDS}
    if places["<|return|>"] and places["<|call|>"]:  # gpt-oss, whose messages end with it
        del places["<|end|>"]
    found = sorted(number for numbers in places.values() for number in numbers)
    return [*dict.fromkeys(number for number in [*named, *found] if number is not None)]


# --- files ----------------------------------------------------------------------------------------


def _vocabulary(file: Metadata) -> _Vocabulary:
    """The vocabulary, in which no token occurs twice. Raises CheckpointError."""
    key = f"{PREFIX}tokens"
    tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(file.texts(key))]
    if not tokens or len(set(tokens)) < len(tokens):
        raise file.error(key, "has no token, or one twice")
    types = file.numbers(f"{PREFIX}token_type", len(tokens)) or [NORMAL] * len(tokens)
    roles = {}
    for role, name in ROLES.items():
        role_key = f"{PREFIX}{name}_token_id"
        number = file.size(role_key, DEFAULTS.get(file.text(MODEL), {}).get(role), least=0)
        if number is None:
            continue
        if number < len(tokens):
            roles[role] = number
        elif file.has(role_key):
            raise file.error(role_key, f"{number:,} is no token of {len(tokens):,}")
    return _Vocabulary(file, tokens, [int(kind) for kind in types], roles)


def _tokenizer(file: Metadata, model: str) -> Document:
    """The content of tokenizer.json."""
    vocabulary = _vocabulary(file)
    document = BUILDERS[model](vocabulary)
    special = {*vocabulary.of_type(CONTROL, UNKNOWN), *vocabulary.roles.values()}
    names = document.pop("names", vocabulary.tokens)
    document["added_tokens"] = [
        {
            "id": number,
            "content": names[number],
            "special": number in special,
            "normalized": False,
            **dict.fromkeys(("single_word", "lstrip", "rstrip"), False),
        }
        for number in sorted(special.union(vocabulary.of_type(USER)))
    ]
    base = {"version": "1.0", "truncation": None, "padding": None}
    return base | document


def _settings(file: Metadata, model: str) -> Document:
    """The content of tokenizer_config.json."""
    vocabulary = _vocabulary(file)
    roles = {role: vocabulary.tokens[number] for role, number in vocabulary.roles.items()}
    values: Document = {"tokenizer_class": "PreTrainedTokenizerFast", **roles}
    values["clean_up_tokenization_spaces"] = model == "bert"
    if model == "bert":
        values["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return values


def _templates(file: Metadata) -> dict[str, str]:
    """The chat templates by the names of their files."""
    found = {}
    if file.has(TEMPLATE):
        found["chat_template.jinja"] = file.text(TEMPLATE)
    start = f"{TEMPLATE}."
    for key in file.values:
        name = key.removeprefix(start)
        if key.startswith(start) and _NAME.fullmatch(name):
            found[f"additional_chat_templates/{name}.jinja"] = file.text(key)
    return found


def _around(vocabulary: _Vocabulary, *, begins: bool, ends: bool) -> Document | None:
    """The post-processor: special tokens before and after a text. begins, ends: whether there are
    some if the file does not say.
    """
    file = vocabulary.file
    first = file.flag(f"{PREFIX}add_bos_token", default=begins)
    last = file.flag(f"{PREFIX}add_eos_token", default=ends)
    before = [_role(vocabulary, "bos_token", "add_bos_token")] if first else []
    after = [_role(vocabulary, "eos_token", "add_eos_token")] if last else []
    if not before and not after:
        return None
    return _template(vocabulary, before, after, [])


def _role(vocabulary: _Vocabulary, role: str, needed_by: str) -> int:
    """The id of a role. Raises CheckpointError if there is none."""
    if role not in vocabulary.roles:
        raise vocabulary.file.error(f"{PREFIX}{needed_by}", f"the file names no {role}")
    return vocabulary.roles[role]


def _template(
    vocabulary: _Vocabulary, before: list[int], after: list[int], between: list[int]
) -> Document:
    def token(number: int, type_id: int = 0) -> Document:
        return {"SpecialToken": {"id": vocabulary.tokens[number], "type_id": type_id}}

    def text(name: str, type_id: int = 0) -> Document:
        return {"Sequence": {"id": name, "type_id": type_id}}

    of_second = 1 if between else 0
    single = [*map(token, before), text("A"), *map(token, after)]
    first = [*map(token, before), text("A"), *map(token, between)]
    second = [text("B", of_second), *(token(number, of_second) for number in after)]
    used = {*before, *after, *between}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*first, *second],
        "special_tokens": {
            vocabulary.tokens[number]: {
                "id": vocabulary.tokens[number],
                "ids": [number],
                "tokens": [vocabulary.tokens[number]],
            }
            for number in used
        },
    }


# --- the four models ------------------------------------------------------------------------------


def _byte_level(vocabulary: _Vocabulary) -> Document:
    """Byte-level BPE, with merges in order, and a way to split texts."""
    file = vocabulary.file
    name = file.choice(f"{PREFIX}pre", PRE_TOKENIZERS, "default")
    return {
        "normalizer": None,
        "pre_tokenizer": splitter(PRE_TOKENIZERS[name]),
        "post_processor": _around(vocabulary, begins=name in WHOLE_WORDS, ends=False),
        "decoder": _AS_BYTES | {"use_regex": True},
        "model": _bpe(vocabulary.ids, _merges(file)) | {"ignore_merges": name in WHOLE_WORDS},
    }


def _merges(file: Metadata) -> list[tuple[str, str]]:
    """The merges in order."""
    key = f"{PREFIX}merges"
    pairs = []
    for number, merge in enumerate(file.texts(key)):
        cut = merge.find(" ", 1)
        if cut < 0:
            raise file.error(key, f"merge {number:,} has no space: {merge!r:.40}")
        pairs.append((merge[:cut], merge[cut + 1 :]))
    return pairs


def splitter(way: tuple[str, ...]) -> Document:
    """The pre-tokenizer that splits texts in a way of PRE_TOKENIZERS."""
    steps: list[Document] = [_split(pattern) for pattern in way]
    if way[-1] == GPT_2:  # which the library has built in
        steps.pop()
    steps.append(_AS_BYTES | {"use_regex": way[-1] == GPT_2})
    return {"type": "Sequence", "pretokenizers": steps}


def _split(pattern: str) -> Document:
    if pattern == r"\p{N}":
        return {"type": "Digits", "individual_digits": True}
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _bpe(ids: dict[str, int], merges: list[tuple[str, str]]) -> Document:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": ids,
        "merges": merges,
    }


def _sentencepiece(vocabulary: _Vocabulary) -> Document:
    """BPE in which the pair is merged whose piece has the highest score. Spaces are ▁."""
    file = vocabulary.file
    has_prefix = file.flag(f"{PREFIX}add_space_prefix", default=True)
    spaces: list[Document] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ]
    decoders: list[Document] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        spaces.insert(0, {"type": "Prepend", "prepend": SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    for number in vocabulary.of_type(BYTE):
        if not _BYTE.fullmatch(vocabulary.tokens[number]):
            raise file.error(f"{PREFIX}tokens", f"{vocabulary.tokens[number]!r:.40} is no byte")
    unknown = vocabulary.roles.get("unk_token")
    scores = vocabulary.scores()
    pieces = vocabulary.of_type(NORMAL, USER, UNUSED)
    pieces.sort(key=scores.__getitem__, reverse=True)  # equal ones keep their order
    merges = all_merges([vocabulary.tokens[number] for number in pieces])
    model = _bpe(vocabulary.ids, merges) | {
        "fuse_unk": True,
        "byte_fallback": len(vocabulary.of_type(BYTE)) == 256,
        "unk_token": None if unknown is None else vocabulary.tokens[unknown],
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": spaces},
        "pre_tokenizer": None,
        "post_processor": _around(vocabulary, begins=True, ends=False),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _wordpiece(vocabulary: _Vocabulary) -> Document:
    """WordPiece. Files mark the start of a word, ▁x, instead of what continues it, ##x."""
    special = {*vocabulary.of_type(CONTROL, UNKNOWN), *vocabulary.roles.values()}
    names = [
        token if number in special else _wordpiece_name(token)
        for number, token in enumerate(vocabulary.tokens)
    ]
    ids = {name: number for number, name in enumerate(names)}
    is_cased = any(re.match("[A-Z]", name) for name in ids)
    lowercase = vocabulary.file.flag(LOWERCASE, default=not is_cased)
    first = _role(vocabulary, "cls_token", "cls_token_id")
    last = _role(vocabulary, "sep_token", "seperator_token_id")
    return {
        "names": names,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": vocabulary.file.flag(STRIP_ACCENTS, default=lowercase),
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _template(vocabulary, [first], [last], [last]),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": names[_role(vocabulary, "unk_token", "unknown_token_id")],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def _wordpiece_name(token: str) -> str:
    """The token as in vocab.txt."""
    if token.startswith(SPACE) and len(token) > 1:
        return token[1:]
    if token.startswith("[") and token.endswith("]") and len(token) > 2:  # [unused1]
        return token
    return f"##{token}"


def _unigram(vocabulary: _Vocabulary) -> Document:
    """A unigram model. Words begin with ▁, and white space is one space."""
    file = vocabulary.file
    steps: list[Document] = []
    if (charsmap := _charsmap(file)) is not None:
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    unknown = _role(vocabulary, "unk_token", "unknown_token_id")
    metaspace = {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": "always",
        "split": True,
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace],
        },
        "post_processor": _around(vocabulary, begins=False, ends=True),
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "byte_fallback": False,
            "vocab": [*map(list, zip(vocabulary.tokens, vocabulary.scores(), strict=True))],
        },
    }


def _charsmap(file: Metadata) -> str | None:
    """The compiled rules that normalize characters, in base 64."""
    key = f"{PREFIX}precompiled_charsmap"
    value: Any = file.values.get(key)
    if value is None:
        return None
    if not hasattr(value, "dtype") or value.dtype.itemsize != 1 or value.dtype.kind == "b":
        raise file.error(key, "is not an array of bytes")
    return base64.b64encode(value.tobytes()).decode("ascii")


BUILDERS: dict[str, Callable[[_Vocabulary], Document]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "bert": _wordpiece,
    "t5": _unigram,
}
# The ids of roles that a file does not name. A byte-level vocabulary has none.
DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {"bos_token": 1, "eos_token": 2, "unk_token": 0},
    "bert": {
        "unk_token": 100,
        "sep_token": 102,
        "pad_token": 0,
        "cls_token": 101,
        "mask_token": 103,
    },
    "t5": {"eos_token": 1, "unk_token": 2, "pad_token": 0},
}
