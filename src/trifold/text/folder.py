"""The tokenizer of a Hugging Face folder, whatever the layout: one call, and the order in which files are believed.

The settings file names a class (else the model's config does); the class says how parts are put together
(`assembly`), the files say the vocabulary (`layouts`). Only these names in the folder itself are ever opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from trifold.errors import CheckpointError
from trifold.jsonfiles import read_json
from trifold.text.assembly import (
    CLASSES,
    OF_MODELS,
    TELLING,
    Class,
    Names,
    Vocabulary,
    any_sentencepiece,
    as_asked,
)
from trifold.text.chat import read_templates
from trifold.text.checks import read_library
from trifold.text.layouts import (
    SENTENCEPIECE,
    SETTINGS,
    of_document,
    of_sentencepiece,
    of_text,
    of_vocab_and_merges,
)
from trifold.text.regexes import panicked
from trifold.text.sentencepiece import read_model
from trifold.text.special import ROLES, add, content, in_file, names_of
from trifold.text.tokenizer import Tokenizer
from trifold.text.words import read_bertweet, read_marian

_LARGEST_INTEGER = 10**31  # "no limit" is written 10^30 in these files
_LAYOUTS = (
    ("tokenizer.json",),
    *((name,) for name in SENTENCEPIECE),
    ("source.spm", "target.spm", "vocab.json"),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
)
# Folders of these models name classes that the reference overrules.
_OVERRULED = ("mistral", "mixtral", "gpt_bigcode", "umt5")


def read_tokenizer(folder: str | Path, *, target: bool = False) -> Tokenizer:
    """The tokenizer of a model folder of any family; with `target`, of the side that a Marian model writes.

    A role without a special token has the id None. Raises CheckpointError where no tokenizer is there, or it is
    damaged, hostile or of a kind that is not read.
    """
    path = Path(folder)
    settings = _settings(path)
    name = _class_name(path, settings)
    try:
        if name == "MarianTokenizer" and (path / "source.spm").is_file():
            return read_marian(path, settings, target)
        if name == "BertweetTokenizer" and (path / "bpe.codes").is_file():
            return read_bertweet(path, settings)
        return _usual(path, settings, name)
    except CheckpointError:
        raise
    except BaseException as error:  # the library raises plain Exception, and panics where files are absurd
        if not isinstance(error, Exception) and not panicked(error):
            raise
        raise CheckpointError(f"{path}: its tokenizer files do not fit together ({error})") from None


def _settings(path: Path) -> dict[str, Any]:
    """What the three settings files say, merged as the reference does."""
    settings, special, added = (_optional(path / name) for name in SETTINGS)
    if "added_tokens_decoder" not in settings:
        settings = settings | special
        roles = {content(settings.get(role)) for role in ROLES}
        tokens = {str(n): {"content": token, "special": token in roles} for token, n in added.items()}
        settings["added_tokens_decoder"] = tokens
    return settings


def _optional(file: Path) -> dict[str, Any]:
    return read_json(file, largest=_LARGEST_INTEGER) if file.is_file() else {}


def _class_name(path: Path, settings: Mapping[str, Any]) -> str | None:
    config = _optional(path / "config.json")
    model_type = config.get("model_type")
    if model_type in _OVERRULED:
        return None
    named = settings.get("tokenizer_class") or config.get("tokenizer_class") or OF_MODELS.get(str(model_type))
    if named is None and (path / "source.spm").is_file():
        return "MarianTokenizer"
    return str(named).removesuffix("Fast") if named else None


def _usual(path: Path, settings: Mapping[str, Any], name: str | None) -> Tokenizer:
    library: Library | None = None
    document: dict[str, Any] = {}
    if (path / "tokenizer.json").is_file():
        library, document = read_library(path / "tokenizer.json")
    row = CLASSES.get(name or "") or (_by_files(path) if library is None else None)
    names = names_of(settings, row.names if row else {})
    if row is not None and (library is None or (row.rebuild and _fits(row, document))):
        library = _built(row, path, document, library, settings, names)
    elif library is None:
        library = _plain(path, settings, names)
    else:
        if row is not None and row.model == "BPE":
            _prefix_space(library, settings)
        add(library, [], settings, names)
        if row is not None and row.plain:
            library.post_processor = as_asked(library, {}, names)
    templates = read_templates(path, settings)
    if name in TELLING:
        settings = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"], **settings}
    return Tokenizer(library, names=names, complete=False, settings=settings, templates=templates)


def _by_files(path: Path) -> Class | None:
    """The class that the files alone suggest, where nothing names one."""
    if (path / "vocab.txt").is_file():
        return CLASSES["BertTokenizer"]
    if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        return CLASSES["GPT2Tokenizer"]
    return None


def _fits(row: Class, document: Mapping[str, Any]) -> bool:
    """Whether a class' parts suit the file: its model is of that kind, and not on bytes as Llama 3's is."""
    on_bytes = "'ByteLevel'" in str(document.get("pre_tokenizer"))
    return document["model"].get("type", row.model) == row.model and not on_bytes


def _built(
    row: Class,
    path: Path,
    document: Mapping[str, Any],
    library: Library | None,
    settings: Mapping[str, Any],
    names: Names,
) -> Library:
    """The class' parts with the vocabulary of the files; what a tokenizer.json puts around a text is kept."""
    vocabulary = _vocabulary(path, document)
    if not (vocabulary.scores if row.model == "Unigram" else vocabulary.ids):
        raise CheckpointError(
            f"{path}: its files hold no {row.model} vocabulary, which the tokenizer's class needs"
        )
    built = row.build(vocabulary, settings, names)
    add(built, [*in_file(document, settings), *vocabulary.added], settings, names)
    around = library.post_processor if library is not None and row.around is as_asked else None
    built.post_processor = row.around(built, settings, names) if around is None else around
    return built


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
    add(library, vocabulary.added, settings, names)
    library.post_processor = as_asked(library, settings, names)
    return library


def _prefix_space(library: Library, settings: Mapping[str, Any]) -> None:
    """`add_prefix_space` of the settings file goes before what `tokenizer.json` says."""
    asked, part = settings.get("add_prefix_space"), library.pre_tokenizer
    if isinstance(asked, bool) and type(part).__name__ == "ByteLevel" and part.add_prefix_space != asked:
        part.add_prefix_space = asked
        library.pre_tokenizer = part
