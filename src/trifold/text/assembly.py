"""The parts of each kind of tokenizer, put together from a vocabulary as the reference library's classes do it.

A class of the reference library is one row of `CLASSES`: how its parts are built, what goes around a text, and the
names of its special tokens where no file gives others. Where a `tokenizer.json` lies beside, the vocabulary comes
from there and the parts from here: so does the reference, and the settings file stays in charge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from trifold.errors import CheckpointError
from trifold.text.sentencepiece import SPACE

Names = dict[str, str]

_MOST_FILLERS = 10_000  # T5's own have 100


@dataclass(frozen=True)
class Vocabulary:
    """What a folder's files say about tokens, whichever files they are."""

    ids: dict[str, int] = field(default_factory=dict)
    scores: list[tuple[str, float]] = field(
        default_factory=list
    )  # of a unigram model, in the order of the ids
    merges: list[tuple[str, str]] = field(default_factory=list)
    charsmap: bytes = b""
    added: list[AddedToken] = field(default_factory=list)
    of_sentencepiece: bool = False


Build = Callable[[Vocabulary, Mapping[str, Any], Names], Library]
Around = Callable[[Library, Mapping[str, Any], Names], Any]


@dataclass(frozen=True)
class Class:
    """A tokenizer class of the reference library."""

    build: Build
    around: Around
    names: Names
    model: str  # the kind of model in a tokenizer.json that the parts here fit
    rebuild: bool = True  # whether its parts go before those of a tokenizer.json
    plain: bool = False  # whether what a tokenizer.json puts around a text is dropped


def _bert(vocabulary: Vocabulary, settings: Mapping[str, Any], names: Names) -> Library:
    library = Library(models.WordPiece(vocabulary.ids, unk_token=names["unk_token"]))
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
        strip_accents=settings.get("strip_accents"),
        lowercase=bool(settings.get("do_lower_case", True)),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return library


def _byte_level(vocabulary: Vocabulary, settings: Mapping[str, Any], names: Names) -> Library:
    library = Library(models.BPE(vocabulary.ids, vocabulary.merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_prefix_space")))
    library.decoder = decoders.ByteLevel()
    return library


def _neox(vocabulary: Vocabulary, settings: Mapping[str, Any], names: Names) -> Library:
    library = _byte_level(vocabulary, settings, names)
    library.normalizer = normalizers.NFC()
    return library


def _gpt_2018(vocabulary: Vocabulary, settings: Mapping[str, Any], names: Names) -> Library:
    unknown = names["unk_token"]
    library = Library(
        models.BPE(vocabulary.ids, vocabulary.merges, unk_token=unknown, end_of_word_suffix="</w>")
    )
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.BPEDecoder(suffix="</w>")
    return library


def _llama(vocabulary: Vocabulary, settings: Mapping[str, Any], names: Names) -> Library:
    library = Library(models.BPE(vocabulary.ids, vocabulary.merges, fuse_unk=True, byte_fallback=True))
    prefix = settings.get("add_prefix_space") is not False
    first = "always" if settings.get("legacy", False) else "first"
    library.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, first if prefix else "never", split=False)
    strip = [decoders.Strip(content=" ", left=1)] if prefix else []
    library.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return library


def _unigram(vocabulary: Vocabulary, settings: Mapping[str, Any], names: Names) -> Library:
    """T5, XLM-R, CamemBERT, ALBERT: words by white space, each with the mark of the space before it."""
    pieces = [piece for piece, _ in vocabulary.scores]
    if names["unk_token"] not in pieces:
        raise CheckpointError(f"the vocabulary lacks {names['unk_token']!r}, its token for what is unknown")
    library = Library(models.Unigram(vocabulary.scores, pieces.index(names["unk_token"]), False))
    if vocabulary.charsmap:
        library.normalizer = normalizers.Precompiled(vocabulary.charsmap)
    scheme = "never" if settings.get("add_prefix_space") is False else "always"
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, scheme)]
    )
    library.decoder = decoders.Metaspace(SPACE, scheme)
    return library


def _t5(vocabulary: Vocabulary, settings: Mapping[str, Any], names: Names) -> Library:
    number = settings.get("extra_ids", 100)
    if not isinstance(number, int) or not 0 <= number <= _MOST_FILLERS:
        raise CheckpointError(
            f"tokenizer_config.json: extra_ids: {number!r} is not a number from 0 to {_MOST_FILLERS}"
        )
    fillers = [f"<extra_id_{place}>" for place in range(number)]
    scores = vocabulary.scores + (
        [(f, 0.0) for f in reversed(fillers)] if vocabulary.of_sentencepiece else []
    )
    library = _unigram(
        Vocabulary(scores=scores, charsmap=vocabulary.charsmap), {**settings, "add_prefix_space": True}, names
    )
    library.add_special_tokens([AddedToken(filler, special=True, normalized=False) for filler in fillers])
    return library


def _xlm_roberta(vocabulary: Vocabulary, settings: Mapping[str, Any], names: Names) -> Library:
    """The ids of fairseq: four special tokens in its own order, then the pieces after the model's first three."""
    if vocabulary.of_sentencepiece:
        head = [(names[role], 0.0) for role in ("bos_token", "pad_token", "eos_token", "unk_token")]
        scores = [*head, *vocabulary.scores[3:], (names["mask_token"], 0.0)]
        vocabulary = Vocabulary(scores=scores, charsmap=vocabulary.charsmap)
    return _unigram(vocabulary, settings, names)


def _camembert(vocabulary: Vocabulary, settings: Mapping[str, Any], names: Names) -> Library:
    if vocabulary.of_sentencepiece:
        head = ["<s>NOTUSED", names["pad_token"], "</s>NOTUSED", names["unk_token"]]
        scores = [(name, 0.0) for name in head] + [("<unk>NOTUSED", -100.0)]
        scores += [*vocabulary.scores[1:], (names["mask_token"], 0.0)]
        vocabulary = Vocabulary(scores=scores, charsmap=vocabulary.charsmap)
    library = _unigram(vocabulary, settings, names)
    mask = AddedToken(names["mask_token"], lstrip=True, special=True, normalized=False)
    library.add_special_tokens([mask])
    return library


def _albert(vocabulary: Vocabulary, settings: Mapping[str, Any], names: Names) -> Library:
    library = _unigram(vocabulary, settings, names)
    changes: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents", False):
        changes += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", True):
        changes.append(normalizers.Lowercase())
    if vocabulary.charsmap:
        changes.append(normalizers.Precompiled(vocabulary.charsmap))
    library.normalizer = normalizers.Sequence(changes)
    return library


def _xlnet(vocabulary: Vocabulary, settings: Mapping[str, Any], names: Names) -> Library:
    """Accents always go, capitals stay unless the settings say otherwise."""
    own = {"do_lower_case": bool(settings.get("do_lower_case")), "keep_accents": False}
    library = _albert(vocabulary, {**settings, **own, "add_prefix_space": True}, names)
    library.add_special_tokens([AddedToken(names["mask_token"], lstrip=True, special=True, normalized=False)])
    if not (settings.get("extra_special_tokens") or settings.get("additional_special_tokens")):
        library.add_special_tokens([AddedToken(name, special=True) for name in ("<eop>", "<eod>")])
    return library


def any_sentencepiece(vocabulary: Vocabulary, byte_fallback: bool, unk_id: int) -> Library:
    """A SentencePiece model of no class that is known: spaces become ▁, nothing is put before the text."""
    unknown = [*vocabulary.ids, *(piece for piece, _ in vocabulary.scores)][unk_id]
    if vocabulary.scores:
        library = Library(models.Unigram(vocabulary.scores, unk_id, byte_fallback))
    else:
        model = models.BPE(
            vocabulary.ids, vocabulary.merges, unk_token=unknown, fuse_unk=True, byte_fallback=byte_fallback
        )
        library = Library(model)
    rules = [normalizers.Precompiled(vocabulary.charsmap)] if vocabulary.charsmap else []
    library.normalizer = normalizers.Sequence([*rules, normalizers.Replace(" ", SPACE)])
    fallback = [decoders.ByteFallback(), decoders.Fuse()] if byte_fallback else []
    library.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), *fallback])
    return library


# --- what goes around a text ------------------------------------------------------------------------------


def number(library: Library, token: str) -> int:
    """The id of a special token. Raises CheckpointError where it has none."""
    found = library.token_to_id(token)
    if found is None:
        raise CheckpointError(f"the special token {token!r} is not in the vocabulary")
    return found


def template(library: Library, single: str, pair: str) -> Any:
    """A post-processor; every word of the templates but $A and $B is a special token."""
    words = {word.split(":")[0] for word in f"{single} {pair}".split()} - {"$A", "$B"}
    ids = [(word, number(library, word)) for word in sorted(words)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _cls_sep(library: Library, settings: Mapping[str, Any], names: Names) -> Any:
    cls, sep = names["cls_token"], names["sep_token"]
    return template(library, f"{cls}:0 $A:0 {sep}:0", f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1")


def _sep_cls(library: Library, settings: Mapping[str, Any], names: Names) -> Any:
    cls, sep = names["cls_token"], names["sep_token"]
    return template(library, f"$A:0 {sep}:0 {cls}:2", f"$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2")


def _bos_eos_eos(library: Library, settings: Mapping[str, Any], names: Names) -> Any:
    bos, eos = names["bos_token"], names["eos_token"]
    return template(library, f"{bos} $A {eos}", f"{bos} $A {eos} {eos} $B {eos}")


def _roberta(library: Library, settings: Mapping[str, Any], names: Names) -> Any:
    sep, cls = ((names[role], number(library, names[role])) for role in ("sep_token", "cls_token"))
    prefix, trim = (bool(settings.get(*one)) for one in (("add_prefix_space",), ("trim_offsets", True)))
    return processors.RobertaProcessing(sep, cls, trim, prefix)


def _eos(library: Library, settings: Mapping[str, Any], names: Names) -> Any:
    eos = names["eos_token"]
    return template(library, f"$A {eos}", f"$A {eos} $B {eos}")


def as_asked(library: Library, settings: Mapping[str, Any], names: Names) -> Any:
    """Begin and end tokens where `add_bos_token` and `add_eos_token` say so."""
    bos, eos = (
        names.get(f"{end}_token") if settings.get(f"add_{end}_token") else None for end in ("bos", "eos")
    )
    single = f"{f'{bos}:0 ' if bos else ''}$A:0{f' {eos}:0' if eos else ''}"
    second = f"{f' {bos}:1' if bos else ''} $B:1{f' {eos}:1' if eos else ''}"
    return template(library, single, single + second)


# --- the classes ------------------------------------------------------------------------------------------

_BRACKETS = {f"{role.lower()}_token": f"[{role}]" for role in ("UNK", "SEP", "PAD", "CLS", "MASK")}
_ENDS = {"bos_token": "<s>", "eos_token": "</s>"}
FAIRSEQ = _ENDS | {
    "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>"
}  # fmt: skip
_ONE_FOR_ALL = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_ALBERT = _BRACKETS | {"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "<unk>", "pad_token": "<pad>"}

_XLNET = FAIRSEQ | {"sep_token": "<sep>", "cls_token": "<cls>"}

_WORDPIECE = Class(_bert, _cls_sep, _BRACKETS, "WordPiece")
_GPT_2 = Class(_byte_level, as_asked, _ONE_FOR_ALL, "BPE", rebuild=False)
_ROBERTA = Class(_byte_level, _roberta, FAIRSEQ, "BPE", rebuild=False)

CLASSES: dict[str, Class] = {
    "BertTokenizer": _WORDPIECE,
    "DistilBertTokenizer": _WORDPIECE,
    "GPT2Tokenizer": _GPT_2,
    "CodeGenTokenizer": _GPT_2,
    "GPTNeoXTokenizer": Class(
        _neox, as_asked, _ONE_FOR_ALL | {"pad_token": "<|padding|>"}, "BPE", rebuild=False, plain=True
    ),
    "OpenAIGPTTokenizer": Class(_gpt_2018, as_asked, {"unk_token": "<unk>"}, "BPE"),
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "LlamaTokenizer": Class(_llama, as_asked, _ENDS | {"unk_token": "<unk>"}, "BPE"),
    "T5Tokenizer": Class(
        _t5, _eos, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}, "Unigram"
    ),
    "XLMRobertaTokenizer": Class(_xlm_roberta, _bos_eos_eos, FAIRSEQ, "Unigram"),
    "CamembertTokenizer": Class(_camembert, _bos_eos_eos, FAIRSEQ, "Unigram"),
    "AlbertTokenizer": Class(_albert, _cls_sep, _ALBERT, "Unigram"),
    "XLNetTokenizer": Class(_xlnet, _sep_cls, _XLNET, "Unigram"),
}

# Classes whose models hear which text of a pair a token is of, unless the settings (`model_input_names`) say otherwise.
TELLING = frozenset({"BertTokenizer"})

# The class of a model whose folder names none.
OF_MODELS = {
    "bert": "BertTokenizer", "distilbert": "DistilBertTokenizer", "roberta": "RobertaTokenizer",
    "bart": "BartTokenizer", "gpt2": "GPT2Tokenizer", "gpt_neo": "GPT2Tokenizer", "gptj": "GPT2Tokenizer",
    "codegen": "GPT2Tokenizer", "starcoder2": "GPT2Tokenizer", "gpt_bigcode": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer", "openai-gpt": "OpenAIGPTTokenizer",
    "t5": "T5Tokenizer", "mt5": "T5Tokenizer", "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer", "albert": "AlbertTokenizer", "marian": "MarianTokenizer",
    "bertweet": "BertweetTokenizer", "xlnet": "XLNetTokenizer",
}  # fmt: skip
