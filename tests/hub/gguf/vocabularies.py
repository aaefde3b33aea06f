"""Small tokenizers of all four models, as keys of GGUF files, and the libraries that made them.

The keys are written as llama.cpp's converter writes them.
"""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import sentencepiece
from tokenizers import Tokenizer as Library, decoders, models, pre_tokenizers, trainers

from trifold.text.vocabulary import BYTE_ALPHABET

TEXT = """
The quick brown fox jumps over the lazy dog. It's 1998, and 3,141 people don't live there.
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich; das kostet 1.234,56 Euro.
the the the quick quick fox fox dog dog and and over over lazy lazy people people
"""
SAMPLES = [
    "The quick brown fox", " two  spaces   and\ttabs\n\n and lines\n", "don't, it's 1998: 3,141½!",
    "Größe über Zürich — „Anführung“", "", " ", "x", "日本語 und emoji 🙂", "CamelCaseWord ABCdef",
    "word\u00a0with\u2003spaces", "a\r\nb", "http://x.y/z?q=1&r=2", "    indented",
]  # fmt: skip
# Letters in other orders, for which the order of merges matters.
_LETTERS = [letter for letter in TEXT if letter.isalpha()]
SAMPLES += ["".join(Random(seed).sample(_LETTERS, 20)) for seed in range(40)]
SAMPLES += ["thequickbrownfox", "overoverlazydogand", "peopledontpeople"]
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
PREFIX = "tokenizer.ggml."


class Vocabulary(NamedTuple):
    """Keys of a file, and the ids of a text by the library that made them."""

    keys: dict[str, Any]
    encode: Callable[[str], list[int]]

    @property
    def size(self) -> int:
        return len(self.keys[f"{PREFIX}tokens"])


@cache
def byte_level(pre: str = "gpt-2") -> Vocabulary:
    """GPT-2, or SmolLM, which also splits digits."""
    library = Library(models.BPE())
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if pre == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=[*BYTE_ALPHABET],
        show_progress=False,
    )
    library.train_from_iterator(TEXT.splitlines(), trainer)
    model: Any = json.loads(library.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    keys = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "merges": [" ".join(merge) for merge in model["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "padding_token_id": 2,
        "add_bos_token": False,
    }
    return Vocabulary(_named(keys), lambda text: list(library.encode(text).ids))


@cache
def sentences(kind: str = "bpe") -> Vocabulary:
    """A SentencePiece model: BPE as in LLaMA, or unigram as in T5."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_writer=written,
        model_type=kind,
        vocab_size=400 if kind == "bpe" else 70,
        byte_fallback=kind == "bpe",
        user_defined_symbols=["<tool>"],
        normalization_rule_name="identity" if kind == "bpe" else "nmt_nfkc",
        remove_extra_whitespaces=kind != "bpe",
        minloglevel=2,
    )
    library = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    numbers = range(library.vocab_size())
    kinds = {2: library.is_unknown, 3: library.is_control, 5: library.is_unused, 6: library.is_byte}
    types = [next((k for k, test in kinds.items() if test(n)), 1) for n in numbers]
    types[library.piece_to_id("<tool>")] = 4
    keys: dict[str, Any] = {
        "model": "llama" if kind == "bpe" else "t5",
        "pre": "default",
        "tokens": [library.id_to_piece(n) for n in numbers],
        "scores": [library.get_score(n) for n in numbers],
        "token_type": types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    if kind != "bpe":
        from trifold.text.vocabulary import _iter_fields

        normalizer = dict(_iter_fields(dict(_iter_fields(written.getvalue()))[3]))
        keys |= {"precompiled_charsmap": list(normalizer[2]), "add_eos_token": True}
    before = [1] if kind == "bpe" else []
    after = [] if kind == "bpe" else [2]
    return Vocabulary(_named(keys), lambda text: [*before, *library.encode(text), *after])


@cache
def wordpiece(*, cased: bool = False) -> Vocabulary:
    """BERT's vocabulary, whose tokens are rewritten."""
    from transformers import BertTokenizer

    words = "the quick brown fox jump over lazy dog it s don t and in 1998 zurich große ab wo rd"
    pieces = "##s ##ed ##ing ##b ##c ##d ##e ##f ##rd ##1 ##9 ##8"
    letters = [chr(code) for code in range(97, 123)]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", *words.split()]
    names += [*pieces.split(), *letters, *(f"##{x}" for x in letters if f"##{x}" not in pieces)]
    names += [*"0123456789.,!?:;'-"]
    if cased:
        names += ["The", "A"]
    names = [*dict.fromkeys(names)]
    reference = BertTokenizer(vocab={n: i for i, n in enumerate(names)}, do_lower_case=not cased)

    def phantom(token: str) -> str:
        if token.startswith("[") and token.endswith("]"):
            return token
        return token[2:] if token.startswith("##") else f"▁{token}"

    keys = {
        "model": "bert",
        "pre": "default",
        "tokens": [phantom(name) for name in names],
        "token_type": [3] * 5 + [1] * (len(names) - 5),
        "token_type_count": 2,
        "unknown_token_id": 1,
        "cls_token_id": 2,
        "seperator_token_id": 3,
        "padding_token_id": 0,
        "mask_token_id": 4,
    }
    return Vocabulary(_named(keys), lambda text: list(reference(text)["input_ids"]))


def _named(keys: dict[str, Any]) -> dict[str, Any]:
    return {PREFIX + key: value for key, value in keys.items()} | {
        "tokenizer.chat_template": TEMPLATE
    }


def write_model(path: Path) -> None:
    """A small LLaMA with a byte-level tokenizer as a file."""
    from tests.hub.gguf.writing import CASES, Types

    case = CASES["llama"]
    made = byte_level("smollm")
    case = replace(
        case,
        options=case.options | {"vocab_size": made.size, "max_position_embeddings": 128},
        keys=lambda config: CASES["llama"].keys(config) | made.keys,
    )
    case.write(path, case.model(), Types.Q8_0)
