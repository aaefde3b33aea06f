"""Tokenizers that `tokenizers` cannot run: Marian (two SentencePiece models) and BERTweet
(fastBPE).

They segment text here; the library only maps pieces to ids. Such a tokenizer is saved as the files
it was read from.
"""

import re
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from tokenizers import Regex, Tokenizer as Library, decoders, models

from trifold.errors import CheckpointError
from trifold.folders import UntrustedPath, read_bytes
from trifold.text.chat import read_templates
from trifold.text.classes import BOS_EOS_EOS, EOS, FAIRSEQ, T5
from trifold.text.languages import M2M
from trifold.text.special_tokens import SETTINGS, Names, names_of, new_tokens
from trifold.text.templates import Around, language, post_processor
from trifold.text.tokenizer import Segment, Tokenizer
from trifold.text.vocabulary import MAX_MODEL, SPACE, read_ids, read_lines, read_sentencepiece

_WORD = re.compile(r"\S+\n?")
_FILES = (
    *"source.spm target.spm sentencepiece.bpe.model vocab.json target_vocab.json vocab.txt "
    "bpe.codes".split(),
    *SETTINGS,
)
_M2M = {role: name for role, name in FAIRSEQ.items() if role not in ("cls_token", "mask_token")}


def read_marian(path: UntrustedPath, settings: Mapping[str, Any], target: bool) -> Tokenizer:
    """The tokenizer of a Marian model's source side, or target side."""
    names = names_of(settings, T5)
    model = "source.spm"
    vocabulary = "vocab.json"
    if target:
        model = "target.spm"
        if settings.get("separate_vocabs"):
            vocabulary = "target_vocab.json"
    ids = read_ids(path / vocabulary)
    segment = sentencepiece_segmenter(path / model)

    def segment_with_language(text: str) -> list[str]:
        code = _language_prefix(text)
        if not code:
            return segment(text)
        return [code, *segment(text[len(code) :])]

    special = dict.fromkeys(names.values())
    spaced = [decoders.Replace(Regex(f"{re.escape(name)}{SPACE}*"), f"{name} ") for name in special]
    decoder = [decoders.Fuse(), *spaced, decoders.Replace(SPACE, " ")]
    return _make_tokenizer(path, settings, names, ids, EOS, decoder, segment_with_language)


def _language_prefix(text: str) -> str:
    """`>>fra<<` at the start of a text, which selects the target language; empty if there is
    none.
    """
    end = text.find("<<")
    if end < 0 or not text.startswith(">>"):
        return ""
    return text[: end + len("<<")]


def read_m2m(path: UntrustedPath, settings: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of M2M-100: ids of `vocab.json`, then those of the languages."""
    names = names_of(settings, _M2M)
    kind = settings.get("language_codes") or "m2m100"
    if kind not in M2M:
        known = ", ".join(M2M)
        raise CheckpointError(
            f"{path / SETTINGS[0]}: language_codes: {kind!r} is not known; known: {known}"
        )
    ids = read_ids(path / "vocab.json")
    ids |= {f"__{code}__": len(ids) + number for number, code in enumerate(M2M[kind])}
    tokens = [f"__{code}__" for code in M2M[kind]]
    segment = sentencepiece_segmenter(path / "sentencepiece.bpe.model", any_kind=True)
    special = "|".join(map(re.escape, [*names.values(), *tokens]))
    joined = decoders.Replace(Regex(f"(?<={special}){SPACE}"), "")  # no space after a special token
    decoder = [decoders.Fuse(), joined, decoders.Replace(SPACE, " ")]
    source = f"__{settings.get('src_lang') or 'en'}__"
    extra = {
        **settings,
        "extra_special_tokens": tokens,
        "src_lang": source,
        "legacy_behaviour": False,
    }
    return _make_tokenizer(path, extra, names, ids, language(source, first=True), decoder, segment)


def read_bertweet(path: UntrustedPath, settings: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of BERTweet. Raises CheckpointError if it normalizes tweets, which is not
    supported.
    """
    if settings.get("normalization"):
        place = path / "tokenizer_config.json"
        remedy = "normalize them beforehand and set normalization to false"
        raise CheckpointError(f"{place}: normalization of tweets is not supported; {remedy}")
    names = names_of(settings, FAIRSEQ)
    first = ("bos_token", "pad_token", "eos_token", "unk_token")
    ids = {names[role]: number for number, role in enumerate(first)}
    for line in read_lines(path / "vocab.txt"):
        ids[line.strip().rpartition(" ")[0]] = len(ids)
    decoder = [
        decoders.WordPiece(prefix="\0", cleanup=False),
        decoders.Fuse(),
        decoders.Replace("@@ ", ""),
    ]
    return _make_tokenizer(
        path, settings, names, ids, BOS_EOS_EOS, decoder, fast_bpe(path / "bpe.codes")
    )


def _make_tokenizer(
    path: UntrustedPath,
    settings: Mapping[str, Any],
    names: Names,
    ids: dict[str, int],
    around: Around,
    decoder: list[Any],
    segment: Segment,
) -> Tokenizer:
    unknown = names["unk_token"]
    if unknown not in ids:
        raise CheckpointError(f"{path}: the vocabulary lacks {unknown!r}, the unknown token")
    library = Library(models.WordLevel(ids, unk_token=unknown))
    library.add_tokens(new_tokens(library, [], settings, names))
    library.decoder = decoders.Sequence(decoder)
    library.post_processor = post_processor(around, library, settings, names)
    return Tokenizer(
        library,
        names=names,
        complete=False,
        settings=settings,
        segment=segment,
        files={
            name: read_bytes(path / name, MAX_MODEL) for name in _FILES if (path / name).exists()
        },
        templates=read_templates(path, settings),
    )


def sentencepiece_segmenter(path: UntrustedPath, *, any_kind: bool = False) -> Segment:
    """Segmentation by a unigram model, or one of any kind. Raises CheckpointError for another or an
    invalid one.
    """
    from sentencepiece import SentencePieceProcessor

    if not read_sentencepiece(path).scores and not any_kind:
        raise CheckpointError(
            f"{path}: a Marian tokenizer needs a SentencePiece model of the unigram kind"
        )
    try:
        processor = SentencePieceProcessor(model_proto=read_bytes(path, MAX_MODEL))
    except Exception as error:  # the library raises RuntimeError, OSError and others
        raise CheckpointError(f"{path}: not a usable SentencePiece model ({error})") from None
    return partial(processor.encode, out_type=str)


def fast_bpe(codes: UntrustedPath) -> Segment:
    """BERTweet's BPE (Nguyen et al. 2020): `@@` follows every piece that does not end a word."""
    merges = [
        (pair[0], pair[1]) for line in read_lines(codes) if len(pair := line.split()[:2]) == 2
    ]
    tokens = dict.fromkeys(token for left, right in merges for token in (left, right, left + right))
    ids = {token: number for number, token in enumerate(["\0", *tokens])}
    model = models.BPE(ids, merges, unk_token="\0", end_of_word_suffix="</w>")

    @lru_cache(100_000)
    def split(word: str) -> list[str]:
        content = word.encode()
        parts = [content[slice(*token.offsets)].decode() for token in model.tokenize(word)]
        return [*(f"{part}@@" for part in parts[:-1]), parts[-1]]

    # A line end directly after a word belongs to it.
    return lambda text: [piece for word in _WORD.findall(text) for piece in split(word)]
