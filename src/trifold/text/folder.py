"""The tokenizer of a Hugging Face folder, whatever the layout: one call, and the order in which files are believed.

The settings file names a class (else the model's config does); the class says how parts are put together
(`assembly`), the files say the vocabulary (`layouts`). Only these names in the folder itself are ever opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models
from tokenizers import Tokenizer as Library

from trifold.errors import CheckpointError
from trifold.jsonfiles import read_bytes, read_json
from trifold.text.assembly import (
    CLASSES,
    FAIRSEQ,
    OF_MODELS,
    Names,
    Vocabulary,
    any_sentencepiece,
    as_asked,
    template,
)
from trifold.text.chat import read_templates
from trifold.text.checks import MOST_TOKENS, read_library
from trifold.text.layouts import (
    SENTENCEPIECE,
    Bertweet,
    of_document,
    of_sentencepiece,
    of_text,
    of_vocab_and_merges,
    read_ids,
    read_lines,
)
from trifold.text.regexes import panicked
from trifold.text.sentencepiece import LARGEST_MODEL, SPACE, Segmenter, read_model
from trifold.text.tokenizer import ROLES, Tokenizer

_LARGEST_INTEGER = 10**31  # "no limit" is written 10^30 in these files
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_LAYOUTS = (
    ("tokenizer.json",),
    ("vocab.json", "merges.txt"),
    *((name,) for name in SENTENCEPIECE),
    ("source.spm", "target.spm", "vocab.json"),
    ("vocab.txt",),
)
_PLAIN = (
    "mistral",
    "mixtral",
    "gpt_bigcode",
    "umt5",
)  # their folders name classes that the reference overrules
_IN_ORDER = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer(folder: str | Path, *, target: bool = False) -> Tokenizer:
    """The tokenizer of a model folder of any family; with `target`, of the side that a Marian model writes.

    A role without a special token has the id None. Raises CheckpointError where no tokenizer is there, or it is
    damaged, hostile or of a kind that is not read.
    """
    path = Path(folder)
    settings = _settings(path)
    name, model_type = _class_name(path, settings)
    try:
        if name == "MarianTokenizer" and (path / "source.spm").is_file():
            return _marian(path, settings, target)
        if name == "BertweetTokenizer" and (path / "bpe.codes").is_file():
            return _bertweet(path, settings)
        return _usual(path, settings, name, model_type)
    except CheckpointError:
        raise
    except (
        BaseException
    ) as error:  # the library raises plain Exception, and panics where its files are absurd
        if not isinstance(error, Exception) and not panicked(error):
            raise
        raise CheckpointError(f"{path}: its tokenizer files do not fit together ({error})") from None


def _settings(path: Path) -> dict[str, Any]:
    """What the three settings files say, merged as the reference does."""
    files = {}
    for name in _SETTINGS:
        exists = (path / name).is_file()
        files[name] = read_json(path / name, largest=_LARGEST_INTEGER) if exists else {}
    settings, special, added = files.values()
    if "added_tokens_decoder" not in settings:
        settings = settings | special
        roles = {_content(settings.get(role)) for role in ROLES}
        entries = {
            str(number): {"content": token, "special": token in roles} for token, number in added.items()
        }
        settings["added_tokens_decoder"] = entries
    return settings


def _class_name(path: Path, settings: Mapping[str, Any]) -> tuple[str | None, str | None]:
    config = (
        read_json(path / "config.json", largest=_LARGEST_INTEGER) if (path / "config.json").is_file() else {}
    )
    model_type = config.get("model_type")
    named = settings.get("tokenizer_class") or config.get("tokenizer_class") or OF_MODELS.get(str(model_type))
    if model_type in _PLAIN:
        named = None
    if named is None and (path / "source.spm").is_file():
        named = "MarianTokenizer"
    return (str(named).removesuffix("Fast") if named else None), model_type


def _usual(path: Path, settings: Mapping[str, Any], name: str | None, model_type: str | None) -> Tokenizer:
    library: Library | None = None
    document: dict[str, Any] = {}
    if (path / "tokenizer.json").is_file():
        library, document = read_library(path / "tokenizer.json")
    row = CLASSES.get(name or "")
    if row is None and library is None:
        row = _by_files(path)
    names = _names(settings, row.names if row else {})
    builds = row is not None and (library is None or (row.rebuild and _fits(row.model, document)))
    if row is not None and builds:
        vocabulary = _vocabulary(path, document)
        if not (vocabulary.scores if row.model == "Unigram" else vocabulary.ids):
            raise CheckpointError(
                f"{path}: its files are not for a {name}, which needs a {row.model} vocabulary"
            )
        around = None if library is None else library.post_processor
        library = row.build(vocabulary, settings, names)
        _add(library, [*_in_file(document, settings), *vocabulary.added], settings, names)
        keeps = around is not None and row.around is as_asked
        library.post_processor = around if keeps else row.around(library, settings, names)
    elif library is None:
        library = _plain(path, settings, names)
    else:
        if document["model"].get("type") == "BPE" and row is not None:
            _prefix_space(library, settings)
        _add(library, [], settings, names)
        if row is not None and row.plain:
            library.post_processor = as_asked(library, {}, names)
    templates = read_templates(path, settings)
    return Tokenizer(library, names=names, complete=False, settings=settings, templates=templates)


def _by_files(path: Path) -> Any:
    """The class that the files alone suggest, where nothing names one."""
    if (path / "vocab.txt").is_file():
        return CLASSES["BertTokenizer"]
    if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        return CLASSES["GPT2Tokenizer"]
    return None


def _fits(model: str, document: Mapping[str, Any]) -> bool:
    """Whether a class' parts suit the file: its model is of that kind, and not on bytes as Llama 3's is."""
    pre_tokenizer = str(document.get("pre_tokenizer"))
    return document["model"].get("type", model) == model and "'ByteLevel'" not in pre_tokenizer


def _vocabulary(path: Path, document: Mapping[str, Any]) -> Vocabulary:
    if document:
        return of_document(document)
    for name in SENTENCEPIECE:
        if (path / name).is_file():
            return of_sentencepiece(read_model(path / name))
    if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        return of_vocab_and_merges(path / "vocab.json", path / "merges.txt")
    if (path / "vocab.txt").is_file():
        return of_text(path / "vocab.txt")
    looked = "; ".join(" + ".join(files) for files in _LAYOUTS)
    raise CheckpointError(f"{path}: has no tokenizer; looked for {looked}")


def _plain(path: Path, settings: Mapping[str, Any], names: Names) -> Library:
    """A SentencePiece model of no class that is known."""
    vocabulary = _vocabulary(path, {})
    if not vocabulary.of_sentencepiece:
        raise CheckpointError(
            f"{path}: nothing says which tokenizer class its files are for; add a tokenizer_config.json"
        )
    model = read_model(next(path / name for name in SENTENCEPIECE if (path / name).is_file()))
    library = any_sentencepiece(vocabulary, model.byte_fallback, model.unk_id)
    for role, fallback in (("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")):
        if role not in settings and library.token_to_id(fallback) is not None:
            names.setdefault(role, fallback)
    _add(library, vocabulary.added, settings, names)
    library.post_processor = as_asked(library, settings, names)
    return library


def _prefix_space(library: Library, settings: Mapping[str, Any]) -> None:
    """`add_prefix_space` of the settings file goes before what `tokenizer.json` says."""
    asked, part = settings.get("add_prefix_space"), library.pre_tokenizer
    if isinstance(asked, bool) and type(part).__name__ == "ByteLevel" and part.add_prefix_space != asked:
        part.add_prefix_space = asked
        library.pre_tokenizer = part


# --- special tokens ---------------------------------------------------------------------------------------


def _content(entry: object) -> str | None:
    name = entry.get("content") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) and name else None


def _names(settings: Mapping[str, Any], usual: Names) -> Names:
    """Role -> token: the settings' own (null takes a role away), else what is usual for the class."""
    named = {role: _content(settings[role]) for role in ROLES if role in settings}
    return {role: name for role, name in (usual | named).items() if name is not None}


def _in_file(document: Mapping[str, Any], settings: Mapping[str, Any]) -> list[AddedToken]:
    if settings.get("added_tokens_decoder"):
        return []
    return [_token(entry) for entry in document.get("added_tokens") or []]


def _token(entry: Mapping[str, Any], **fixed: bool) -> AddedToken:
    special = bool(fixed.get("special", entry.get("special", False)))
    flags = {flag: bool(entry.get(flag, False)) for flag in ("single_word", "lstrip", "rstrip")}
    return AddedToken(
        str(entry["content"]), special=special, normalized=bool(entry.get("normalized", not special)), **flags
    )


def _add(library: Library, first: list[AddedToken], settings: Mapping[str, Any], names: Names) -> None:
    """Added tokens by their number, then the special ones by their role, then the rest that the settings name."""
    listed = settings.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict) or not all(isinstance(e, dict) and _content(e) for e in listed.values()):
        raise CheckpointError("tokenizer_config.json: added_tokens_decoder is not a list of tokens by id")
    if any(not key.isdecimal() or int(key) >= MOST_TOKENS for key in listed):
        raise CheckpointError(
            f"tokenizer_config.json: added_tokens_decoder has an id that is not below {MOST_TOKENS:,}"
        )
    tokens = {
        entry["content"]: _token(entry) for _, entry in sorted(listed.items(), key=lambda item: int(item[0]))
    }
    tokens = {token.content: token for token in first} | tokens
    for role in _IN_ORDER:
        if role in names:
            entry = settings.get(role)
            known = tokens.get(names[role])
            given = _token(entry, special=True) if isinstance(entry, dict) else None
            fresh = given or known or AddedToken(names[role], special=True, normalized=False)
            fresh.special = True
            tokens[names[role]] = fresh
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    for entry in extra if isinstance(extra, list) else extra.values() if isinstance(extra, dict) else []:
        name = _content(entry)
        if name is not None and name not in tokens:
            given = _token(entry, special=True) if isinstance(entry, dict) else None
            tokens[name] = given or AddedToken(name, special=True, normalized=False)
    there = {token.content: token for token in library.get_added_tokens_decoder().values()}
    library.add_tokens(
        [token for name, token in tokens.items() if name not in there or _differs(token, there[name])]
    )


def _differs(token: AddedToken, other: AddedToken) -> bool:
    return bool(token.special and not other.special)


# --- tokenizers whose pieces are found here ---------------------------------------------------------------


def _by_words(
    path: Path,
    settings: Mapping[str, Any],
    ids: dict[str, int],
    names: Names,
    words: Callable[[str], list[str]],
    files: tuple[str, ...],
    around: tuple[str, str],
    decoder: list[Any],
) -> Tokenizer:
    if names["unk_token"] not in ids:
        raise CheckpointError(
            f"{path}: its vocabulary lacks {names['unk_token']!r}, the token for what is unknown"
        )
    library = Library(models.WordLevel(ids, unk_token=names["unk_token"]))
    _add(library, [], settings, names)
    library.decoder = decoders.Sequence(decoder)
    library.post_processor = template(library, *around)
    kept = {
        name: read_bytes(path / name, LARGEST_MODEL)
        for name in (*files, *_SETTINGS)
        if (path / name).is_file()
    }
    templates = read_templates(path, settings)
    return Tokenizer(
        library, names=names, complete=False, settings=settings, words=words, files=kept, templates=templates
    )


def _marian(path: Path, settings: Mapping[str, Any], target: bool) -> Tokenizer:
    usual = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    names = _names(settings, usual)
    own = target and bool(settings.get("separate_vocabs"))
    ids = read_ids(path / ("target_vocab.json" if own else "vocab.json"))
    segment = Segmenter(read_model(path / ("target.spm" if target else "source.spm")))

    def words(text: str) -> list[str]:
        end = text.find("<<") + 2 if text.startswith(">>") else 1
        code = text[:end] if end > 1 else ""  # ">>fra<<" in front says into which language
        return [code, *segment(text[len(code) :])] if code else segment(text)

    files = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")
    eos = names["eos_token"]
    special = dict.fromkeys(names.values())
    spaced = [decoders.Replace(Regex(f"{re.escape(name)}{SPACE}*"), f"{name} ") for name in special]
    decoder = [decoders.Fuse(), *spaced, decoders.Replace(SPACE, " ")]
    return _by_words(path, settings, ids, names, words, files, (f"$A {eos}", f"$A $B {eos}"), decoder)


def _bertweet(path: Path, settings: Mapping[str, Any]) -> Tokenizer:
    if settings.get("normalization"):
        remedy = "normalise the tweets beforehand and set it to false"
        raise CheckpointError(
            f"{path / 'tokenizer_config.json'}: normalization of tweets is not done here; {remedy}"
        )
    names = _names(settings, FAIRSEQ)
    ids = {
        names[role]: number
        for number, role in enumerate(("bos_token", "pad_token", "eos_token", "unk_token"))
    }
    for line in read_lines(path / "vocab.txt"):
        ids[line.strip().rpartition(" ")[0]] = len(ids)
    bos, eos = names["bos_token"], names["eos_token"]
    around = (f"{bos} $A {eos}", f"{bos} $A {eos} {eos} $B {eos}")
    decoder = [decoders.WordPiece(prefix="\0", cleanup=False), decoders.Fuse(), decoders.Replace("@@ ", "")]
    words = Bertweet(path / "bpe.codes")
    return _by_words(path, settings, ids, names, words, ("vocab.txt", "bpe.codes"), around, decoder)
