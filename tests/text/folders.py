"""Small tokenizer folders of every layout, trained with the reference libraries."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer as Library,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from trifold.text.languages import M2M

WORDS = """The the quick brown fox élèves école n'aiment weiße Männer über naïve Ω 日本語 テスト こんにちは 中文 字 😀
👩‍👩‍👧 🇫🇷 don't we've 12,5 % hello world ing tion play playing played
привет мир مرحبا a aa ab -- ... ( ) « » 2017 2018
1234 x=1; def f(x): return https://example.org Señor coöperate
İstanbul ÀÉÎ straße""".split()
ODD = list(
    "abcdefghij ABC XYZ   \t\n\r\v\f éàüßñ 日本語テスト中文字 ｱｲｳ ﬁ Ⅷ ① が 😀👍🏽👩‍👩‍👧🇫🇷 "
    "\u200b\u00a0\u2028\u2029\u3000"
    "\x00\x01\x07\x1b\x7f\x85\ufeff\ufffd…—½™ᾳĳ각 각 привет مرحبا ▁ -- !! '' `` "
    ",.;:?! 0123456789 e\u0301a\u0308\u0301o\u0302 "
)


def _drawn(number: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 14))) for _ in range(number)]


def _babble(number: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [
        " ".join("".join(draw.choices("abcdefghij", k=draw.randint(2, 9))) for _ in range(6))
        for _ in range(number)
    ]


CORPUS = _drawn(400, 1) + _babble(200, 5) + [word for word in WORDS for _ in range(5)]


@cache
def lines() -> list[str]:
    """2,300 lines: sentences, unusual characters, runs of one character, all kinds of spaces."""
    draw = random.Random(2)
    noise = ["".join(draw.choices(ODD, k=draw.randint(0, 40))) for _ in range(1400)]
    mixed = ["".join(draw.choices([*WORDS, " ", "  ", "\t", "\n", " ,"], k=12)) for _ in range(300)]
    runs = [c * n for c in "ab-!é 日😀\n" for n in (1, 2, 3, 5, 8, 13, 21)]
    spaced = [
        f"{left}{line}{right}"
        for line in _drawn(10, 4)
        for left in ("", " ", "  ", "\t")
        for right in ("", " ", "\n")
    ]
    return [*_drawn(320, 3), *_babble(100, 6), *noise, *mixed, *runs, *spaced, "", " ", "\n"]


@cache
def wordpiece(lowercase: bool) -> dict[str, int]:
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    library.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False),
    )
    return library.get_vocab()


@cache
def bpe(
    special: tuple[str, ...], suffix: str | None = None
) -> tuple[dict[str, int], list[list[str]]]:
    """Vocabulary and merges: byte-level, or with a suffix at the end of words."""
    options: dict[str, Any] = {"end_of_word_suffix": suffix} if suffix else {}
    library = Library(models.BPE(**options))
    alphabet: list[str] = []
    if suffix:
        library.normalizer = normalizers.BertNormalizer(lowercase=True)
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=450 + 256 * (not suffix),
        special_tokens=list(special),
        initial_alphabet=alphabet,
        show_progress=False,
        **options,
    )
    library.train_from_iterator(CORPUS, trainer)
    return library.get_vocab(), json.loads(library.to_str())["model"]["merges"]


@cache
def sentencepiece(kind: str = "unigram", **options: Any) -> bytes:
    """A SentencePiece model trained by the library."""
    import sentencepiece as library

    file = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=file,
        vocab_size=options.pop("vocab_size", 350),
        model_type=kind,
        character_coverage=0.995,
        minloglevel=2,
        **({"hard_vocab_limit": False} if kind == "unigram" else {}),
        **options,
    )
    return file.getvalue()


def write(folder: Path, **files: Any) -> Path:
    """Write files by name (`__` for a dot): bytes, text, or values for JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            path.write_text(text, encoding="utf-8", newline="\n")
    return folder


def _vocab_txt(vocab: dict[str, int]) -> str:
    return "".join(f"{token}\n" for token in sorted(vocab, key=vocab.__getitem__))


def _merges_txt(merges: list[list[str]]) -> str:
    return "#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in merges)


def bert(folder: Path, lowercase: bool = True, **settings: Any) -> Path:
    return write(
        folder,
        vocab__txt=_vocab_txt(wordpiece(lowercase)),
        config__json={"model_type": "bert"},
        tokenizer_config__json={
            "do_lower_case": lowercase,
            "model_max_length": int(1e30),
            **settings,
        },
    )


def mpnet(folder: Path, **settings: Any) -> Path:
    words = [
        token
        for token in sorted(wordpiece(True), key=wordpiece(True).__getitem__)
        if token[0] != "["
    ]
    vocab = {
        token: number
        for number, token in enumerate(["<s>", "<pad>", "</s>", "[UNK]", "<mask>", *words])
    }
    files = {
        "config__json": {"model_type": "mpnet"},
        "tokenizer_config__json": {"do_lower_case": True, **settings},
    }
    return write(folder, vocab__txt=_vocab_txt(vocab), **files)


def modernbert(folder: Path) -> Path:
    """The layout of ModernBERT and EuroBERT: a tokenizer.json of no class, with special tokens
    around a text.
    """
    special = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
    vocab, merges = bpe(special)
    library = Library(models.BPE(vocab, [tuple(pair) for pair in merges]))
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")],
    )
    library.add_special_tokens([*special[:4], AddedToken("[MASK]", lstrip=True, special=True)])
    names = {f"{token[1:-1].lower()}_token": token for token in special}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 8192,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    return write(
        folder,
        tokenizer__json=library.to_str(),
        tokenizer_config__json=settings | names,
        config__json={"model_type": "modernbert"},
    )


def byte_level(folder: Path, model_type: str, special: tuple[str, ...], **settings: Any) -> Path:
    vocab, merges = bpe(special)
    files = {
        "vocab__json": vocab,
        "merges__txt": _merges_txt(merges),
        "config__json": {"model_type": model_type},
    }
    return write(folder, **files, **({"tokenizer_config__json": settings} if settings else {}))


def gpt_2018(folder: Path) -> Path:
    vocab, merges = bpe(("<unk>",), "</w>")
    return write(
        folder,
        vocab__json=vocab,
        merges__txt=_merges_txt(merges),
        config__json={"model_type": "openai-gpt"},
    )


def spm(folder: Path, file: str, model_type: str, content: bytes, **settings: Any) -> Path:
    return write(
        folder,
        **{file.replace(".", "__"): content},
        config__json={"model_type": model_type},
        **({"tokenizer_config__json": settings} if settings else {}),
    )


def llama(folder: Path, model_type: str, **settings: Any) -> Path:
    content = sentencepiece("bpe", **LLAMA)
    return spm(
        folder, "tokenizer.model", model_type, content, tokenizer_class="LlamaTokenizer", **settings
    )


def marian(folder: Path, **settings: Any) -> Path:
    """Two models; the vocabulary holds most of their pieces, language codes, and other pieces."""
    import sentencepiece as library

    source, target = (
        sentencepiece(),
        sentencepiece(vocab_size=300, normalization_rule_name="identity"),
    )
    pieces: dict[str, None] = {
        "</s>": None,
        "<unk>": None,
        ">>fra<<": None,
        ">>deu<<": None,
        "▁only": None,
        "ж": None,
    }
    for content in (source, target):
        processor = library.SentencePieceProcessor()
        processor.LoadFromSerializedProto(content)
        pieces |= dict.fromkeys(
            processor.IdToPiece(number) for number in range(3, len(processor) - 7)
        )
    vocab = {piece: number for number, piece in enumerate([*pieces, "<pad>"])}
    return write(
        folder,
        source__spm=source,
        target__spm=target,
        vocab__json=vocab,
        config__json={"model_type": "marian"},
        tokenizer_config__json={"source_lang": "en", "target_lang": "fr", **settings},
    )


def m2m(folder: Path, **settings: Any) -> Path:
    """A model of the BPE kind; the vocabulary holds most of its pieces."""
    import sentencepiece as library

    content = sentencepiece("bpe")
    processor = library.SentencePieceProcessor()
    processor.LoadFromSerializedProto(content)
    pieces = [processor.IdToPiece(number) for number in range(3, len(processor) - 7)]
    head = ("<s>", "<pad>", "</s>", "<unk>")
    return write(
        folder,
        sentencepiece__bpe__model=content,
        vocab__json={piece: number for number, piece in enumerate([*head, *pieces])},
        config__json={"model_type": "m2m_100"},
        tokenizer_config__json={
            "tokenizer_class": "M2M100Tokenizer",
            "additional_special_tokens": [f"__{code}__" for code in M2M["m2m100"]],
            **settings,
        },
    )


def bloom(folder: Path) -> Path:
    vocab, merges = bpe(BLOOM)
    library = Library(models.BPE(vocab, [tuple(pair) for pair in merges]))
    words = pre_tokenizers.Split(Regex(r" ?[^(\s|[.,!?…。，、।۔،])]+"), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(list(BLOOM))
    roles = ("unk_token", "bos_token", "eos_token", "pad_token")
    settings = {
        "tokenizer_class": "BloomTokenizerFast",
        "padding_side": "left",
        "add_prefix_space": False,
    }
    return write(
        folder,
        tokenizer__json=library.to_str(),
        tokenizer_config__json=settings | dict(zip(roles, BLOOM, strict=True)),
        config__json={"model_type": "bloom"},
    )


def nllb(folder: Path, **settings: Any) -> Path:
    """A tokenizer.json with published ids: pieces, languages, mask. Its own template is not that of
    the class.
    """
    from trifold.text import read_tokenizer

    name, settings = "sentencepiece.bpe.model", {"additional_special_tokens": NLLB, **settings}
    own = {"tokenizer_class": "NllbTokenizer", **settings}
    first = spm(
        folder.with_name(f"{folder.name}-spm"), name, "m2m_100", sentencepiece("bpe"), **own
    )
    library = read_tokenizer(first).library
    library.post_processor = None
    files = {"tokenizer__json": library.to_str(), "tokenizer_config__json": own}
    return write(folder, config__json={"model_type": "m2m_100"}, **files)


def bigbird_pegasus(folder: Path) -> Path:
    """A tokenizer.json in a folder that names a class which the reference overrides."""
    from trifold.text import read_tokenizer

    first = spm(
        folder.with_name(f"{folder.name}-spm"),
        "spiece.model",
        "big_bird",
        sentencepiece(**BIG_BIRD_IDS),
    )
    own = {
        "tokenizer_class": "PegasusTokenizer",
        "offset": 0,
        "mask_token_sent": None,
        "cls_token": "[CLS]",
    }
    own |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    own |= {"sep_token": "[SEP]", "mask_token": "[MASK]"}
    files = {
        "tokenizer__json": read_tokenizer(first).library.to_str(),
        "tokenizer_config__json": own,
    }
    return write(folder, config__json={"model_type": "bigbird_pegasus"}, **files)


def bertweet(folder: Path) -> Path:
    vocab, merges = bpe(("<s>",), "</w>")
    pieces = [
        p.removesuffix("</w>") if p.endswith("</w>") else f"{p}@@" for p in vocab if p != "<s>"
    ]
    return write(
        folder,
        vocab__txt="".join(f"{piece} 7\n" for piece in dict.fromkeys(sorted(pieces)[:-9])),
        bpe__codes="".join(f"{' '.join(pair)} 7\n" for pair in merges),
        config__json={"model_type": "roberta"},
        tokenizer_config__json={"tokenizer_class": "BertweetTokenizer"},
    )


ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
END = ("<|endoftext|>",)
T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
ALBERT_IDS = {
    "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "pad_piece": "<pad>", "control_symbols": "[CLS],[SEP],[MASK]"
}  # fmt: skip
DEBERTA_IDS = {
    **{"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
    **{"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
}
PEGASUS_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
BIG_BIRD_IDS = PEGASUS_IDS | {"bos_id": 2, "unk_id": 3, "control_symbols": "[CLS],[SEP],[MASK]"}
XLNET_IDS = {"control_symbols": "<cls>,<sep>,<pad>,<mask>,<eod>,<eop>"}
LLAMA = {"byte_fallback": True, "normalization_rule_name": "identity", "vocab_size": 600}
IDENTITY = {"normalization_rule_name": "identity"}
BLOOM = ("<unk>", "<s>", "</s>", "<pad>")
OPT = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}
NLLB = ["ace_Arab", "eng_Latn", "fra_Latn", "zho_Hans"]
MASK = {
    "__type": "AddedToken",
    "content": "<mask>",
    "lstrip": True,
    "rstrip": False,
    "single_word": False,
    "normalized": False,
}
MARK = {
    "content": "<ent>",
    "lstrip": False,
    "rstrip": True,
    "single_word": False,
    "normalized": False,
    "special": False,
}

OLD: dict[str, Callable[[Path], Path]] = {
    "bert uncased": bert,
    "bert cased": lambda f: bert(f, False),
    "bert accents": lambda f: bert(f, True, strip_accents=False, tokenize_chinese_chars=False),
    "distilbert": lambda f: bert(f, True, tokenizer_class="DistilBertTokenizer"),
    "electra": lambda f: bert(f, True, tokenizer_class="ElectraTokenizer"),
    "mpnet": mpnet,
    "deberta v3": lambda f: spm(f, "spm.model", "deberta-v2", sentencepiece(**DEBERTA_IDS), vocab_type="spm"),
    "deberta lowered": lambda f: spm(
        f, "spm.model", "deberta-v2", sentencepiece(**DEBERTA_IDS), do_lower_case=True, split_by_punct=True
    ),
    "modernbert": modernbert,
    "gpt2": lambda f: byte_level(f, "gpt2", END),
    "gpt2 prefix": lambda f: byte_level(f, "gpt2", END, add_prefix_space=True, tokenizer_class="GPT2Tokenizer"),
    "gptj added": lambda f: byte_level(f, "gptj", END, added_tokens_decoder={"900": MARK}),
    "codegen": lambda f: byte_level(f, "codegen", END, tokenizer_class="CodeGenTokenizer"),
    "neox": lambda f: byte_level(f, "gpt_neox", END, tokenizer_class="GPTNeoXTokenizer", add_bos_token=True),
    "qwen": lambda f: byte_level(f, "qwen3", END, tokenizer_class="Qwen2Tokenizer"),
    "roberta": lambda f: byte_level(f, "roberta", ROBERTA, mask_token=MASK),
    "bart": lambda f: byte_level(f, "bart", ROBERTA, tokenizer_class="BartTokenizer"),
    "gpt 2018": gpt_2018,
    "t5": lambda f: spm(f, "spiece.model", "t5", sentencepiece(**T5_IDS)),
    "mt5": lambda f: spm(f, "spiece.model", "mt5", sentencepiece(**T5_IDS), extra_ids=0),
    "albert": lambda f: spm(f, "spiece.model", "albert", sentencepiece(**ALBERT_IDS)),
    "albert cased": lambda f: spm(
        f, "spiece.model", "albert", sentencepiece(**ALBERT_IDS), do_lower_case=False, keep_accents=True
    ),
    "xlnet": lambda f: spm(f, "spiece.model", "xlnet", sentencepiece(**XLNET_IDS)),
    "xlnet lowered": lambda f: spm(
        f, "spiece.model", "xlnet", sentencepiece(**XLNET_IDS), do_lower_case=True, keep_accents=True
    ),
    "xlm-roberta": lambda f: spm(f, "sentencepiece.bpe.model", "xlm-roberta", sentencepiece()),
    "camembert": lambda f: spm(f, "sentencepiece.bpe.model", "camembert", sentencepiece()),
    "llama": lambda f: llama(f, "llama", add_bos_token=True),
    "llama legacy": lambda f: llama(f, "llama", legacy=True, add_eos_token=True),
    "mistral": lambda f: llama(f, "mistral", add_bos_token=True),
    "phi3": lambda f: llama(f, "phi3", add_bos_token=True),
    "bloom": bloom,
    "opt": lambda f: byte_level(
        f, "opt", ROBERTA, tokenizer_class="GPT2Tokenizer", add_bos_token=True, **OPT
    ),
    "big_bird": lambda f: spm(f, "spiece.model", "big_bird", sentencepiece(**BIG_BIRD_IDS)),
    "bigbird_pegasus": bigbird_pegasus,
    "pegasus": lambda f: spm(f, "spiece.model", "pegasus", sentencepiece(**PEGASUS_IDS)),
    # Without a map of characters: the reference drops it for this class, SentencePiece and older
    # versions do not.
    "mbart": lambda f: spm(f, "sentencepiece.bpe.model", "mbart", sentencepiece(**IDENTITY)),
    "mbart-50": lambda f: spm(
        f, "sentencepiece.bpe.model", "mbart", sentencepiece(), tokenizer_class="MBart50Tokenizer", src_lang="fr_XX"
    ),
    "nllb": nllb,
    "nllb legacy": lambda f: nllb(f, legacy_behaviour=True, src_lang="fra_Latn"),
    "m2m": m2m,
    "marian": marian,
    "bertweet": bertweet,
}  # fmt: skip
