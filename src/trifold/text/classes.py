"""Tokenizer classes of `transformers`: how each builds its parts from a vocabulary.

A class is one row of `CLASSES`: its parts, the special tokens around a text, and the default names
of its special tokens. If the folder has a `tokenizer.json`, only the vocabulary comes from there,
as in `transformers`, so that the settings file decides.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer as Library,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from trifold.errors import CheckpointError
from trifold.text.languages import MBART, MBART_50
from trifold.text.pre_tokenizers import QWEN_2
from trifold.text.special_tokens import Names, content_of, extra_tokens
from trifold.text.templates import Around, Settings, bos_and_eos, language, roberta
from trifold.text.vocabulary import SPACE, Vocabulary

_MAX_SENTINELS = 10_000  # T5 has 100


@dataclass(frozen=True)
class TokenizerClass:
    """A tokenizer class of `transformers`.

    model: the kind of model in a tokenizer.json that `build` accepts.
    rebuild: whether the class's parts replace those of a tokenizer.json.
    drop_post_processor: whether the post-processor of a tokenizer.json is dropped.
    """

    build: Callable[[Vocabulary, Settings, Names], Library]
    around: Around
    names: Names
    model: str
    rebuild: bool = True
    drop_post_processor: bool = False


def _bert(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
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


def _mpnet(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    return _with_mask(_bert(vocabulary, settings, names), names)


def _byte_level(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    library = Library(models.BPE(vocabulary.ids, vocabulary.merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(settings.get("add_prefix_space"))
    )
    library.decoder = decoders.ByteLevel()
    return library


def _neox(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    library = _byte_level(vocabulary, settings, names)
    library.normalizer = normalizers.NFC()
    return library


def _qwen(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    """Digits are single tokens, and punctuation joins the words after it."""
    library = _neox(vocabulary, settings, names)
    words = pre_tokenizers.Split(Regex(QWEN_2), "isolated")
    prefix = bool(settings.get("add_prefix_space"))
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    return library


def _gpt_2018(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    suffix = "</w>"
    unknown = names["unk_token"]
    model = models.BPE(
        vocabulary.ids, vocabulary.merges, unk_token=unknown, end_of_word_suffix=suffix
    )
    library = Library(model)
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.BPEDecoder(suffix=suffix)
    return library


def _llama(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    library = Library(
        models.BPE(vocabulary.ids, vocabulary.merges, fuse_unk=True, byte_fallback=True)
    )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    scheme = "never"
    if settings.get("add_prefix_space") is not False:
        steps.append(decoders.Strip(content=" ", left=1))
        scheme = "always" if settings.get("legacy", False) else "first"
    library.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    library.decoder = decoders.Sequence(steps)
    return library


def _prefix_scheme(settings: Settings, without: str = "never") -> str:
    """Before which words a space becomes ▁: `without` if the settings turn the prefix space off."""
    return without if settings.get("add_prefix_space") is False else "always"


def _charsmap(vocabulary: Vocabulary) -> list[Any]:
    """The normalizer of a SentencePiece model, if it has one."""
    return [normalizers.Precompiled(vocabulary.charsmap)] if vocabulary.charsmap else []


def _unigram(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    """T5, XLM-R, CamemBERT, ALBERT: split at white space; each word begins with ▁ for the space
    before it.
    """
    pieces = [piece for piece, _ in vocabulary.scores]
    if names["unk_token"] not in pieces:
        raise CheckpointError(f"the vocabulary lacks {names['unk_token']!r}, the unknown token")
    library = Library(models.Unigram(vocabulary.scores, pieces.index(names["unk_token"]), False))
    if vocabulary.charsmap:
        library.normalizer = normalizers.Precompiled(vocabulary.charsmap)
    scheme = _prefix_scheme(settings)
    steps = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, scheme)]
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)
    library.decoder = decoders.Metaspace(SPACE, scheme)
    return library


def _t5(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    count = settings.get("extra_ids", 100)
    if not isinstance(count, int) or not 0 <= count <= _MAX_SENTINELS:
        raise CheckpointError(
            f"tokenizer_config.json: extra_ids: {count!r} is not an integer from 0 to "
            f"{_MAX_SENTINELS}"
        )
    sentinels = [f"<extra_id_{number}>" for number in range(count)]
    vocabulary = _set_ids(vocabulary, [], 0, reversed(sentinels))
    library = _unigram(vocabulary, {**settings, "add_prefix_space": True}, names)
    return _with_special(library, sentinels)


def _set_ids(
    vocabulary: Vocabulary, first: Sequence[str], skip: int, last: Iterable[str] = ()
) -> Vocabulary:
    """The vocabulary of a SentencePiece model with `first` instead of its `skip` first tokens, and
    `last` at its end.

    That of a tokenizer.json has these ids.
    """
    if vocabulary.unk_id is None:
        return vocabulary
    if vocabulary.scores:
        added, after = ([(name, 0.0) for name in names] for names in (first, last))
        return replace(vocabulary, scores=[*added, *vocabulary.scores[skip:], *after])
    tokens = [*first, *sorted(vocabulary.ids, key=vocabulary.ids.__getitem__)[skip:], *last]
    return replace(vocabulary, ids={token: number for number, token in enumerate(tokens)})


def _fairseq(vocabulary: Vocabulary, names: Names, last: Sequence[str]) -> Vocabulary:
    """fairseq's ids: four special tokens in its own order, the pieces after the model's first
    three, then `last`.
    """
    head = [
        names.get("bos_token", "<s>"),
        *(names[f"{role}_token"] for role in ("pad", "eos", "unk")),
    ]
    return _set_ids(vocabulary, head, 3, last)


def _xlm_roberta(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    return _unigram(_fairseq(vocabulary, names, [names["mask_token"]]), settings, names)


def _multilingual(
    languages: Sequence[str], *, by_words: bool = False
) -> Callable[[Vocabulary, Settings, Names], Library]:
    """mBART, NLLB: fairseq's ids, then those of the languages, then the mask. by_words: as in
    XLM-R.
    """

    def build(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
        listed = map(content_of, extra_tokens(settings))
        codes = [*dict.fromkeys([*languages, *filter(None, listed)])]
        vocabulary = _fairseq(vocabulary, names, [*codes, names["mask_token"]])
        if vocabulary.scores:
            library = _unigram(vocabulary, {}, names)
        else:
            options: dict[str, Any] = {"unk_token": names["unk_token"], "fuse_unk": True}
            library = Library(models.BPE(vocabulary.ids, vocabulary.merges, **options))
        if not by_words:
            _set_spaces(library, vocabulary, [])
        known = [code for code in codes if library.token_to_id(code) is not None]
        return _with_mask(_with_special(library, known), names)

    return build


def _set_spaces(library: Library, vocabulary: Vocabulary, without_map: list[Any]) -> None:
    """A space is ▁, and several spaces are one; `without_map`: normalizers if the vocabulary has no
    map.
    """
    first = _charsmap(vocabulary) or without_map
    library.normalizer = normalizers.Sequence([*first, normalizers.Replace(Regex(" {2,}"), " ")])
    library.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "always", split=True)
    library.decoder = decoders.Metaspace(SPACE, "always", split=True)


def _pegasus(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    """Tokens of pretraining take the ids below `offset`."""
    offset = settings.get("offset", 103)
    if not isinstance(offset, int) or not 2 < offset <= _MAX_SENTINELS:
        raise CheckpointError(
            f"tokenizer_config.json: offset: {offset!r} is not from 3 to {_MAX_SENTINELS}"
        )
    masks = [content_of(settings.get("mask_token_sent", "<mask_1>")), names["mask_token"]]
    special = [*filter(None, masks), *(f"<unk_{number}>" for number in range(2, offset))]
    vocabulary = _set_ids(vocabulary, [names["pad_token"], names["eos_token"], *special], 2)
    library = _unigram(vocabulary, {}, names)
    _set_spaces(library, vocabulary, [normalizers.Replace(Regex(r"\n"), " ")])
    return _with_special(library, special)


def _big_bird(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    """Text is not normalized, except that several spaces become one ▁."""
    library = _unigram(vocabulary, settings, names)
    library.normalizer = normalizers.Replace(Regex(" {2,}"), SPACE)
    library.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, _prefix_scheme(settings), split=True)
    return _with_mask(library, names)


def _camembert(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    if vocabulary.unk_id is not None:  # a SentencePiece model
        head = ["<s>NOTUSED", names["pad_token"], "</s>NOTUSED", names["unk_token"]]
        scores = [*((name, 0.0) for name in head), ("<unk>NOTUSED", -100.0), *vocabulary.scores[1:]]
        vocabulary = replace(vocabulary, scores=[*scores, (names["mask_token"], 0.0)])
    return _with_mask(_unigram(vocabulary, settings, names), names)


def _albert(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    library = _unigram(vocabulary, settings, names)
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    library.normalizer = normalizers.Sequence([*steps, *_charsmap(vocabulary)])
    return library


def _xlnet(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    """Accents are always removed; text is lower-cased only if the settings say so."""
    own = {"do_lower_case": bool(settings.get("do_lower_case")), "keep_accents": False}
    library = _albert(vocabulary, {**settings, **own, "add_prefix_space": True}, names)
    _with_mask(library, names)
    if not extra_tokens(settings):
        library.add_special_tokens([AddedToken(name, special=True) for name in ("<eop>", "<eod>")])
    return library


def _deberta(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    """Words are not split at white space; the model's own normalization is not applied."""
    library = _unigram(vocabulary, settings, names)
    steps: list[Any] = [
        normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
        normalizers.NFC(),
        normalizers.Strip(left=False, right=True),
    ]
    if settings.get("do_lower_case", False):
        steps.insert(0, normalizers.Lowercase())
    library.normalizer = normalizers.Sequence(steps)
    scheme = _prefix_scheme(settings, without="first")
    splits: list[Any] = [pre_tokenizers.Metaspace(SPACE, scheme)]
    if settings.get("split_by_punct", False):
        splits.insert(0, pre_tokenizers.Punctuation("isolated"))
    library.pre_tokenizer = pre_tokenizers.Sequence(splits)
    library.decoder = decoders.Metaspace(SPACE, scheme)
    return library


def _sentencepiece(vocabulary: Vocabulary, settings: Settings, names: Names) -> Library:
    """Spaces become ▁, and nothing is put before the text. Usual special tokens take the roles that
    are open.
    """
    unk_id = vocabulary.unk_id
    byte_fallback = vocabulary.byte_fallback
    assert unk_id is not None
    if vocabulary.scores:
        library = Library(models.Unigram(vocabulary.scores, unk_id, byte_fallback))
    else:
        options = {
            "unk_token": [*vocabulary.ids][unk_id],
            "fuse_unk": True,
            "byte_fallback": byte_fallback,
        }
        library = Library(models.BPE(vocabulary.ids, vocabulary.merges, **options))
    spaces = normalizers.Replace(" ", SPACE)
    library.normalizer = normalizers.Sequence([*_charsmap(vocabulary), spaces])
    steps: list[Any] = [decoders.Replace(SPACE, " ")]
    if byte_fallback:
        steps += [decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence(steps)
    for role, token in _BOS_EOS.items():
        if role not in settings and library.token_to_id(token) is not None:
            names[role] = token
    return library


def _with_special(library: Library, tokens: Sequence[str]) -> Library:
    library.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in tokens]
    )
    return library


def _with_mask(library: Library, names: Names) -> Library:
    library.add_special_tokens(
        [AddedToken(names["mask_token"], lstrip=True, special=True, normalized=False)]
    )
    return library


# --- the classes ----------------------------------------------------------------------------------

_BRACKETS = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
_BRACKETS |= {"cls_token": "[CLS]", "mask_token": "[MASK]"}
_BOS_EOS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
FAIRSEQ = _BOS_EOS | {
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_END_OF_TEXT = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_ALBERT = _BRACKETS | {
    "bos_token": "[CLS]",
    "eos_token": "[SEP]",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
}
_DEBERTA = _BRACKETS | {"bos_token": "[CLS]", "eos_token": "[SEP]"}
_BIG_BIRD = _BRACKETS | _BOS_EOS | {"pad_token": "<pad>"}
_XLNET = FAIRSEQ | {"sep_token": "<sep>", "cls_token": "<cls>"}
_QWEN = dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>")
_PEGASUS = T5 | {"mask_token": "<mask_2>"}
_MBART = _multilingual(MBART, by_words=True)
_MBART_50 = _multilingual(MBART_50)
_MBART_50_NAMES = {role: name for role, name in FAIRSEQ.items() if role != "bos_token"}
_NEOX = _END_OF_TEXT | {"pad_token": "<|padding|>"}

_CLS_SEP = ("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1")
_SEP_CLS = ("$A:0 {sep}:0 {cls}:2", "$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2")
BOS_EOS_EOS = ("{bos} $A {eos}", "{bos} $A {eos} {eos} $B {eos}")
_EOS_EOS = ("$A {eos}", "$A {eos} $B {eos}")
EOS = ("$A {eos}", "$A $B {eos}")

_WORDPIECE = TokenizerClass(_bert, _CLS_SEP, _BRACKETS, "WordPiece")
_GPT_2 = TokenizerClass(_byte_level, bos_and_eos, _END_OF_TEXT, "BPE", rebuild=False)
_ROBERTA = TokenizerClass(_byte_level, roberta, FAIRSEQ, "BPE", rebuild=False)
UNKNOWN_SENTENCEPIECE = TokenizerClass(_sentencepiece, bos_and_eos, {}, "SentencePiece")

CLASSES: dict[str, TokenizerClass] = {
    "BertTokenizer": _WORDPIECE,
    "DistilBertTokenizer": _WORDPIECE,
    "GPT2Tokenizer": _GPT_2,
    "CodeGenTokenizer": _GPT_2,
    "GPTNeoXTokenizer": replace(_GPT_2, build=_neox, names=_NEOX, drop_post_processor=True),
    "Qwen2Tokenizer": replace(_GPT_2, build=_qwen, names=_QWEN),
    "OpenAIGPTTokenizer": TokenizerClass(_gpt_2018, bos_and_eos, {"unk_token": "<unk>"}, "BPE"),
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "LlamaTokenizer": TokenizerClass(_llama, bos_and_eos, _BOS_EOS, "BPE"),
    "ElectraTokenizer": _WORDPIECE,
    "MPNetTokenizer": TokenizerClass(
        _mpnet, roberta, FAIRSEQ | {"unk_token": "[UNK]"}, "WordPiece"
    ),
    "DebertaV2Tokenizer": TokenizerClass(_deberta, _CLS_SEP, _DEBERTA, "Unigram"),
    "T5Tokenizer": TokenizerClass(_t5, _EOS_EOS, T5, "Unigram"),
    "XLMRobertaTokenizer": TokenizerClass(_xlm_roberta, BOS_EOS_EOS, FAIRSEQ, "Unigram"),
    "CamembertTokenizer": TokenizerClass(_camembert, BOS_EOS_EOS, FAIRSEQ, "Unigram"),
    "AlbertTokenizer": TokenizerClass(_albert, _CLS_SEP, _ALBERT, "Unigram"),
    "BigBirdTokenizer": TokenizerClass(_big_bird, _CLS_SEP, _BIG_BIRD, "Unigram"),
    "XLNetTokenizer": TokenizerClass(_xlnet, _SEP_CLS, _XLNET, "Unigram"),
    "PegasusTokenizer": TokenizerClass(_pegasus, EOS, _PEGASUS, "Unigram"),
    "MBartTokenizer": TokenizerClass(_MBART, language("en_XX", first=False), FAIRSEQ, "Unigram"),
    "MBart50Tokenizer": TokenizerClass(
        _MBART_50, language("en_XX", first=True), _MBART_50_NAMES, "Unigram"
    ),
    "NllbTokenizer": TokenizerClass(
        _multilingual(()), language("eng_Latn", first=True), FAIRSEQ, "BPE"
    ),
}

# The class of a model type whose folder names none.
_MODEL_TYPES = {
    "Albert": "albert", "Bart": "bart", "Bert": "bert", "Bertweet": "bertweet",
    "BigBird": "big_bird", "Camembert": "camembert", "DebertaV2": "deberta-v2",
    "DistilBert": "distilbert", "Electra": "electra",
    "GPT2": "codegen gpt2 gpt_bigcode gpt_neo gptj opt starcoder2", "GPTNeoX": "gpt_neox",
    "M2M100": "m2m_100", "MBart": "mbart", "MPNet": "mpnet", "Marian": "marian",
    "OpenAIGPT": "openai-gpt", "Pegasus": "pegasus", "Qwen2": "qwen2 qwen3", "Roberta": "roberta",
    "T5": "mt5 t5", "XLMRoberta": "xlm-roberta", "XLNet": "xlnet",
}  # fmt: skip
CLASS_OF_MODEL = {
    kind: f"{name}Tokenizer" for name, kinds in _MODEL_TYPES.items() for kind in kinds.split()
}
