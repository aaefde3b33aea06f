"""Read the tokenizer of a Hugging Face folder of any layout.

The settings file, or else the model's config, names a class. The class determines the parts
(`classes`), the files give the vocabulary (`vocabulary`). No other file of the folder is opened.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Library

from trifold.errors import CheckpointError
from trifold.folders import AnyPath, UntrustedPath, named
from trifold.garbage import no_collections
from trifold.text.chat import read_templates
from trifold.text.classes import CLASS_OF_MODEL, CLASSES, UNKNOWN_SENTENCEPIECE, TokenizerClass
from trifold.text.library import read_library
from trifold.text.panics import hidden_panics, is_panic
from trifold.text.patterns import PatternGuard
from trifold.text.segmenters import read_bertweet, read_m2m, read_marian
from trifold.text.special_tokens import (
    Names,
    added_tokens,
    merge_files,
    names_of,
    new_tokens,
    read_optional,
)
from trifold.text.templates import bos_and_eos, post_processor
from trifold.text.tokenizer import (
    TARGET_TOKENIZER_FILE,
    TOKEN_TYPES,
    TOKENIZER_FILE,
    Tokenizer,
)
from trifold.text.validation import check_post_processor
from trifold.text.vocabulary import from_document, read_vocabulary

# A folder with one of these files has a tokenizer.
FILES = (TOKENIZER_FILE, "vocab.json", "vocab.txt", "*.model", "*.spm")
# Folders of these models name classes that `transformers` overrides.
_OVERRIDDEN = ("mistral", "mixtral", "gpt_bigcode", "umt5", "phi3", "bigbird_pegasus")
# Classes that give token types by default.
_WITH_TOKEN_TYPES = ("BertTokenizer", "ElectraTokenizer", "DebertaV2Tokenizer")


@no_collections()
def read_tokenizer(folder: AnyPath, *, target: bool = False, **options: Any) -> Tokenizer:
    """The tokenizer of a model folder of any family; with `target`, that of a Marian model's target
    side.

    options: complete and dropout of `Tokenizer`, for training. Unless it is complete, a role
    without a special token has the id None. Raises CheckpointError if there is no tokenizer, or it
    is damaged, unsafe or not supported.
    """
    path = named(folder)
    settings = merge_files(path)
    name = _class_name(path, settings)
    try:
        with hidden_panics():
            if name == "MarianTokenizer" and (path / "source.spm").exists():
                return read_marian(path, settings, target)
            if name == "M2M100Tokenizer" and (path / "vocab.json").exists():
                return read_m2m(path, settings)
            if name == "BertweetTokenizer" and (path / "bpe.codes").exists():
                return read_bertweet(path, settings)
            return _read(path, settings, name, {"complete": False} | options)
    except CheckpointError:
        raise
    except BaseException as error:
        # The library raises plain Exception, and panics on some invalid files.
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise CheckpointError(
            f"{path}: its tokenizer files do not fit together ({error})"
        ) from None


def read_tokenizers(folder: UntrustedPath) -> tuple[Tokenizer | None, Tokenizer | None]:
    """The tokenizers of input and output, if any; the second is None if it is the same."""
    if not any(folder.glob(pattern) for pattern in FILES):
        return None, None
    reader = read_tokenizer(folder)
    target = folder / TARGET_TOKENIZER_FILE
    if target.exists():
        return reader, Tokenizer.load(target)
    if (folder / "target.spm").exists():
        return reader, read_tokenizer(folder, target=True)
    return reader, None


def _class_name(path: UntrustedPath, settings: Mapping[str, Any]) -> str | None:
    config = read_optional(path / "config.json")
    model_type = config.get("model_type")
    if model_type in _OVERRIDDEN:
        return None
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    named = named or CLASS_OF_MODEL.get(str(model_type))
    if named is None and (path / "source.spm").exists():
        return "MarianTokenizer"
    if not named:
        return None
    return str(named).removesuffix("Fast")


def _read(
    path: UntrustedPath, settings: Mapping[str, Any], name: str | None, options: Mapping[str, Any]
) -> Tokenizer:
    """The tokenizer of a folder, by the class of this name if it is known."""
    file = path / TOKENIZER_FILE
    kind = CLASSES.get(name or "")
    if file.exists():
        names = names_of(settings, kind.names if kind else {})
        library, guard = _read_file(file, kind, settings, names)
    else:
        kind = kind or _guess_class(path)
        names = names_of(settings, kind.names)
        library = _build(kind, path, {}, settings, names)
        guard = PatternGuard({}, "")
    templates = read_templates(path, settings)
    if name in _WITH_TOKEN_TYPES:
        settings = {**TOKEN_TYPES, **settings}
    return Tokenizer(
        library, names=names, settings=settings, templates=templates, guard=guard, **options
    )


def _read_file(
    file: UntrustedPath, kind: TokenizerClass | None, settings: Mapping[str, Any], names: Names
) -> tuple[Library, PatternGuard]:
    """The tokenizer of a `tokenizer.json` with the changes of its class, or the parts of the class
    with its vocabulary; and the guard of its patterns.
    """
    library, document, guard = read_library(file)
    if kind is not None and kind.rebuild and _matches(kind, document):
        built = _build(kind, file.parent, document, settings, names)
        if kind.around is bos_and_eos and library.post_processor is not None:
            built.post_processor = library.post_processor
            check_post_processor(built, str(file))
        return built, PatternGuard({}, "")
    if kind is not None and kind.model == "BPE":
        _set_prefix_space(library, settings)
    new = new_tokens(library, [], settings, names)
    guard.add(new)
    library.add_tokens(new)
    if kind is not None and kind.drop_post_processor:
        library.post_processor = bos_and_eos(library, {}, names)
    check_post_processor(library, str(file))
    return library, guard


def _guess_class(path: UntrustedPath) -> TokenizerClass:
    """The class that the vocabulary files suggest."""
    if (path / "vocab.txt").exists():
        return CLASSES["BertTokenizer"]
    if (path / "vocab.json").exists() and (path / "merges.txt").exists():
        return CLASSES["GPT2Tokenizer"]
    return UNKNOWN_SENTENCEPIECE


def _matches(kind: TokenizerClass, document: Mapping[str, Any]) -> bool:
    """Whether the class fits the file: its model is of that kind, and not byte-level as in Llama
    3.
    """
    is_byte_level = "'ByteLevel'" in str(document.get("pre_tokenizer"))
    return document["model"].get("type", kind.model) == kind.model and not is_byte_level


def _build(
    kind: TokenizerClass,
    path: UntrustedPath,
    document: Mapping[str, Any],
    settings: Mapping[str, Any],
    names: Names,
) -> Library:
    """The parts of the class with the folder's vocabulary."""
    vocabulary = from_document(document) if document else read_vocabulary(path)
    tokens = vocabulary.scores if kind.model == "Unigram" else vocabulary.ids
    if not tokens and kind is not UNKNOWN_SENTENCEPIECE:
        raise CheckpointError(
            f"{path}: its files hold no {kind.model} vocabulary, which the class needs"
        )
    built = kind.build(vocabulary, settings, names)
    first = [*added_tokens(document, settings), *vocabulary.added]
    built.add_tokens(new_tokens(built, first, settings, names))
    built.post_processor = post_processor(kind.around, built, settings, names)
    return built


def _set_prefix_space(library: Library, settings: Mapping[str, Any]) -> None:
    """`add_prefix_space` of the settings file overrides `tokenizer.json`."""
    prefix = settings.get("add_prefix_space")
    part = library.pre_tokenizer
    if (
        isinstance(prefix, bool)
        and type(part).__name__ == "ByteLevel"
        and part.add_prefix_space != prefix
    ):
        part.add_prefix_space = prefix
        library.pre_tokenizer = part
