"""Tokenizers of GGUF files give the ids of the libraries that made them."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
import torch
from tests.hub.gguf import vocabularies
from tests.hub.gguf.vocabularies import PREFIX, SAMPLES, TEMPLATE, Vocabulary
from tests.hub.gguf.writing import CASES
from tokenizers import Tokenizer as Library

import trifold
from trifold.errors import CheckpointError, TrifoldError
from trifold.folders import FileAsFolder
from trifold.hub.gguf.metadata import Metadata
from trifold.hub.gguf.tokenizer import ends, tokenizer_files
from trifold.text import Tokenizer
from trifold.text.folder import read_tokenizer
from trifold.text.pre_tokenizers import PRE_TOKENIZERS

MADE = {
    "gpt-2": vocabularies.byte_level,
    "smollm": lambda: vocabularies.byte_level("smollm"),
    "llama": vocabularies.sentences,
    "t5": lambda: vocabularies.sentences("unigram"),
    "bert": vocabularies.wordpiece,
    "bert, cased": lambda: vocabularies.wordpiece(cased=True),
}


def _metadata(keys: dict[str, Any]) -> Metadata:
    """The keys as a file has them."""
    is_numbers = {key for key, value in keys.items() if isinstance(value, list)} - {
        f"{PREFIX}tokens",
        f"{PREFIX}merges",
    }
    values = {
        key: np.array(value, dtype=np.uint8 if "charsmap" in key else None)
        if key in is_numbers
        else value
        for key, value in keys.items()
    }
    return Metadata(values, {}, "a.gguf")


def _tokenizer(keys: dict[str, Any]) -> Tokenizer:
    path = Path("a.gguf")
    return read_tokenizer(FileAsFolder(path, path, tokenizer_files(_metadata(keys))))


@pytest.mark.parametrize("name", MADE)
def test_ids_equal_the_library(name: str) -> None:
    made: Vocabulary = MADE[name]()
    tokenizer = _tokenizer(made.keys)
    for text in SAMPLES:
        assert tokenizer.rows([text])[0].ids == made.encode(text), repr(text)
    assert tokenizer.vocab_size == made.size
    if name not in ("t5", "bert", "bert, cased"):  # which normalize
        ids = tokenizer.encode(SAMPLES)
        assert tokenizer.decode(ids) == SAMPLES


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_texts_are_split_as_by_the_regular_expressions(name: str) -> None:
    keys = vocabularies.byte_level().keys | {f"{PREFIX}pre": name, f"{PREFIX}add_bos_token": False}
    document = tokenizer_files(_metadata(keys))["tokenizer.json"]()
    library = Library.from_str(json.dumps(document))
    for text in SAMPLES:
        pieces = [text] if text else []
        for pattern in PRE_TOKENIZERS[name]:
            pieces = [part for piece in pieces for part in _cut(pattern, piece)]
        found = [
            text[start:end] for _, (start, end) in library.pre_tokenizer.pre_tokenize_str(text)
        ]
        assert found == pieces, repr(text)


def _cut(pattern: str, piece: str) -> list[str]:
    """The matches in a piece, and the text between them."""
    parts = []
    at = 0
    for match in regex.finditer(pattern, piece):
        parts += [piece[at : match.start()], match.group()]
        at = match.end()
    return [part for part in [*parts, piece[at:]] if part]


def test_every_pattern_takes_linear_time() -> None:
    keys = vocabularies.byte_level().keys
    names = {way: name for name, way in PRE_TOKENIZERS.items()}.values()  # one of each way
    for name in names:
        document = tokenizer_files(_metadata(keys | {f"{PREFIX}pre": name}))["tokenizer.json"]()
        splitter = Library.from_str(json.dumps(document)).pre_tokenizer
        for text in ("A" * 20_000, " " * 20_000, "\n " * 10_000, "ǅ" * 10_000, "1!" * 10_000):
            start = time.process_time()
            splitter.pre_tokenize_str(text)
            assert time.process_time() - start < 1, (name, text[:2])  # the square takes minutes


def test_special_tokens_roles_and_templates() -> None:
    tokenizer = _tokenizer(vocabularies.byte_level().keys)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, 2)
    assert tokenizer.templates == {"default": TEMPLATE}
    assert tokenizer.chat([{"role": "user", "content": "hi"}]) == "<user>hi\n"
    [written] = tokenizer.encode(["<|im_end|>"])  # a text stays text
    assert 2 not in written
    assert tokenizer.encode(["<|im_end|>"], special_in_text=True) == [[2]]


def test_user_defined_tokens_are_found_in_texts() -> None:
    made = vocabularies.sentences()
    tokenizer = _tokenizer(made.keys)
    number = made.keys[f"{PREFIX}tokens"].index("<tool>")
    assert number in tokenizer.encode(["the <tool> fox"])[0]


def test_begin_and_end_follow_the_file() -> None:
    keys = vocabularies.byte_level().keys
    for begins, pre, expected in (
        (None, "gpt-2", []), (None, "llama-bpe", [1]), (True, "gpt-2", [1]), (False, "llama3", []),
    ):  # fmt: skip
        flags = {} if begins is None else {f"{PREFIX}add_bos_token": begins}
        chosen = {k: v for k, v in keys.items() if k != f"{PREFIX}add_bos_token"}
        tokenizer = _tokenizer(chosen | flags | {f"{PREFIX}pre": pre})
        assert tokenizer.rows([""])[0].ids == expected
    tokenizer = _tokenizer(keys | {f"{PREFIX}add_eos_token": True})
    assert tokenizer.rows([""])[0].ids == [2]


def test_several_tokens_end_an_answer() -> None:
    keys = vocabularies.byte_level().keys
    assert ends(_metadata(keys)) == [2, 0]  # <|endoftext|> has a known text
    assert ends(_metadata(keys | {f"{PREFIX}eot_token_id": 7})) == [2, 7, 0]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown model": ({"model": "rwkv"}, "tokenizer.ggml.model: 'rwkv' is not supported; known"),
    "unknown pre": ({"pre": "evil"}, "tokenizer.ggml.pre: 'evil' is not supported; known"),
    "tokens of numbers": ({"tokens": np.zeros(3, np.int32)}, "tokens: is not an array of texts"),
    "no tokens": ({"tokens": []}, "tokens: has no token, or one twice"),
    "a token twice": ({"tokens": ["a"] * 320}, "tokens: has no token, or one twice"),
    "types of another length": ({"token_type": [1] * 3}, "token_type: is not an array of 320"),
    "types of texts": ({"token_type": "x"}, "token_type: is not an array of 320 numbers"),
    "merges without a space": ({"merges": ["ab"]}, "merges: merge 0 has no space: 'ab'"),
    "merges of unknown tokens": ({"merges": ["zz yy"]}, "(?i)out of vocabulary"),
    "an end beyond the tokens": ({"eos_token_id": 999}, "eos_token_id: 999 is no token of 320"),
    "a negative end": ({"eos_token_id": -1}, "eos_token_id: -1 is not an integer"),
    "a text as a flag": ({"add_bos_token": "yes"}, "add_bos_token: 'yes' is not true or false"),
    "scores that are no numbers": (
        {"model": "llama", "scores": [float("nan")] * 320},
        "scores: has a value that is not finite",
    ),
    "no scores": ({"model": "t5", "unknown_token_id": 0}, "scores: is missing"),
    "byte −1": (
        {"model": "llama", "scores": [0.0] * 320, "token_type": [6] * 320},
        "'<|endoftext|>' is no byte",
    ),
    "a charsmap of texts": (
        {"model": "t5", "unknown_token_id": 0, "scores": [0.0] * 320, "precompiled_charsmap": "x"},
        "precompiled_charsmap: is not an array of bytes",
    ),
    "a charsmap of nonsense": (
        {
            "model": "t5", "unknown_token_id": 0, "scores": [0.0] * 320,
            "precompiled_charsmap": [255] * 99,
        },
        "not a tokenizer of the `tokenizers` library|do not fit together",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_tokenizer_is_an_error(changes: dict[str, Any], message: str) -> None:
    named = {PREFIX + key: value for key, value in changes.items()}
    with pytest.raises(TrifoldError, match=message):
        _tokenizer(vocabularies.byte_level().keys | named)


def test_a_template_of_another_type_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="chat_template: 7 is not a text"):
        _tokenizer(vocabularies.byte_level().keys | {"tokenizer.chat_template": 7})


def _write(name: str, made: Vocabulary, folder: Path) -> Path:
    """The file of a random model with a tokenizer."""
    case = CASES[name]
    case = replace(
        case,
        options=case.options | {"vocab_size": made.size},
        keys=lambda config: CASES[name].keys(config) | made.keys,
    )
    return case.write(folder / "a.gguf", case.model())


def test_a_tokenizer_is_read_when_it_is_used(tmp_path: Path) -> None:
    made = vocabularies.byte_level()
    damaged = made._replace(keys=made.keys | {f"{PREFIX}merges": ["ab"]})
    pipeline = trifold.load(_write("llama", damaged, tmp_path))
    ids = torch.tensor([[5, 6, 7]])
    assert len(pipeline.generate_tokens(ids, min_new_tokens=2, max_new_tokens=2)[0]) == 2
    with pytest.raises(CheckpointError, match="merge 0 has no space"):
        pipeline.generate_tokens(ids, max_new_tokens=2, stop_strings=["x"])
    with pytest.raises(CheckpointError, match="merge 0 has no space"):
        pipeline.generate("The quick", max_new_tokens=2)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_file_generates_chats_and_is_converted(name: str, tmp_path: Path) -> None:
    path = _write(name, vocabularies.byte_level("smollm"), tmp_path)
    pipeline = trifold.load(path)
    text = pipeline.generate("The quick", max_new_tokens=4)
    pipeline.save(tmp_path / "saved")
    again = trifold.load(tmp_path / "saved")
    assert again.generate("The quick", max_new_tokens=4) == text
    assert again.tokenizer is not None
    assert again.tokenizer.templates == {"default": TEMPLATE}
