"""Hostile tokenizer files are rejected quickly."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library, models, pre_tokenizers

from trifold.errors import CheckpointError, DataError
from trifold.text import Tokenizer, read_tokenizer


def plain() -> dict[str, Any]:
    library = Library(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    return json.loads(library.to_str())


def changed(where: str, value: Any) -> Callable[[], bytes]:
    def content() -> bytes:
        document = plain()
        *path, last = where.split(".")
        place = document
        for key in path:
            place = place[key]
        place[last] = value
        return json.dumps(document).encode("utf-8")

    return content


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def entry(number: Any, content: Any = "x") -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, "special": True, **flags}


def sequence(parts: list[Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": parts}


def around(single: list[Any], pair: list[Any], special: dict[str, Any]) -> Callable[[], bytes]:
    """A template, whose special tokens are given by name."""
    template = {"type": "TemplateProcessing", "single": single, "pair": pair}
    return changed("post_processor", {**template, "special_tokens": special})


def special(name: str, number: int, **more: Any) -> dict[str, Any]:
    return {name: {"id": name, "ids": [number], "tokens": [name], **more}}


def inserted(name: str, kind: int = 0) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": kind}}


def text_of(name: str, kind: int = 0) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": kind}}


A_TEXT, TWO_TEXTS = [text_of("A")], [text_of("A"), text_of("B", 1)]
B_FIRST = [inserted("b"), *A_TEXT]


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "not JSON"),
    "cut off": (lambda: json.dumps(plain()).encode()[:-9], "not JSON"),
    "a list": (lambda: b"[]", "holds a list"),
    "deep": (lambda: b'{"a":' * 99_999, "nested too deeply"),
    "a key twice": (lambda: b'{"model": {}, "model": {}}', "occurs twice"),
    "a token twice": (lambda: b'{"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}}}', "'a' occurs twice"),
    "NaN": (lambda: b'{"model": {"type": "Unigram", "vocab": [["a", NaN]]}}', "not a finite"),
    "a huge number": (lambda: b'{"model": {"vocab": {"a": ' + b"9" * 5000 + b"}}}", "largest integer"),
    "not UTF-8": (lambda: b'{"model": "\xff"}', "not UTF-8"),
    "no model": (lambda: b"{}", "model is not an object"),
    "a model of code": (changed("model.type", "pickle"), "'pickle' is unknown"),
    "a URL for a vocabulary": (changed("model.vocab", "https://example.org/vocab.json"), "model.vocab is not"),
    "a path for a vocabulary": (changed("model.vocab", "/etc/passwd"), "model.vocab is not"),
    "a negative id": (changed("model.vocab", {"a": -1}), "has the id -1"),
    "an absurd id": (changed("model.vocab", {"a": 4294967295}), "has the id 4294967295"),
    "half an id": (changed("model.vocab", {"a": 0.5}), "has the id 0.5"),
    "an id of truth": (changed("model.vocab", {"a": True}), "has the id True"),
    "a text for an id": (changed("model.vocab", {"a": "0"}), "has the id '0'"),
    "a token without end": (changed("model.vocab", {"a" * 20_000: 0}), "longer than 10,000"),
    "scores that are text": (changed("model", {"type": "Unigram", "vocab": [["a", "b"]]}), "token and its score"),
    "a merge of one": (changed("model.merges", ["a"]), "not a pair"),
    "a merge of three": (changed("model.merges", [["a", "b", "c"]]), "not a pair"),
    "a merge of nothing known": (changed("model.merges", [["x", "y"]]), "not a tokenizer of the"),
    "a merge longer than all": (changed("model.merges", [["a" * 500, "b" * 500]]), "not a tokenizer of the"),
    "merges in text": (changed("model.merges", "a b"), "not a list"),
    "no merges": (changed("model", {"type": "BPE", "vocab": {"a": 0}}), "model.merges is not a list"),
    "a merge without the prefix": (
        changed("model", {"type": "BPE", "vocab": {"a": 0, "\u00e9": 1}, "merges": [["a", "\u00e9"]],
                          "continuing_subword_prefix": "#"}), "does not begin with '#'"
    ),
    "an absurd added token": (changed("added_tokens", [entry(2**40)]), "has the id"),
    "an added token of no text": (changed("added_tokens", [entry(3, 7)]), "not a token"),
    "added tokens in text": (changed("added_tokens", "x"), "not a list"),
    "words without end": (changed("model.max_input_chars_per_word", 10**15), "max_input_chars_per_word is not from 0"),
    "words of no length": (changed("pre_tokenizer", {"type": "FixedLength", "length": 0}), "pre_tokenizer.length is 0"),
    "a pattern without end": (changed("pre_tokenizer", split("a" * 20_000)), "a text of 20,000 characters"),
    "no pattern": (changed("pre_tokenizer", split(r"(a")), "cannot be run.*unmatched parenthesis"),
    "growth": (changed("normalizer", sequence([replace("a", "aa")] * 60)), "times as long"),
    "growth at once": (changed("normalizer", replace("a", "a" * 5_000)), "a text of 5,000"),
    "growth by prefixes": (
        changed("normalizer", sequence([{"type": "Prepend", "prepend": "a" * 500}] * 20)), "times as long"
    ),
    "parts without end": (changed("normalizer", sequence([{"type": "NFC"}] * 5000)), "a list of 5,000"),
    "an unknown part": (changed("pre_tokenizer", {"type": "Import", "module": "os"}), "not a tokenizer of the"),
    "a broken trie": (
        changed("normalizer", {"type": "Precompiled", "precompiled_charsmap": "////////"}), "not a tokenizer of the"
    ),
    "a template without its token": (around(B_FIRST, TWO_TEXTS, {}), "uses 'b', which special_tokens does not"),
    "a template of an unknown token": (around(A_TEXT, TWO_TEXTS, special("x", 1)), "'x' is not in the vocabulary"),
    "a template with another id": (around(A_TEXT, TWO_TEXTS, special("b", 2)), "'b' has the id 2, but 1"),
    "a template with an absurd id": (around(A_TEXT, TWO_TEXTS, special("b", 2**32 - 1)), "has the id 4294967295"),
    "a template with an id of truth": (around(A_TEXT, TWO_TEXTS, special("b", True)), "has the id True"),
    "a template with more ids": (around(A_TEXT, TWO_TEXTS, special("b", 1, ids=[1, 1])), "1 tokens and 2 ids"),
    "a template without a pair": (around(A_TEXT, [], {}), "'pair' has no text instead of A and B"),
    "a pair of one text": (around(A_TEXT, A_TEXT, {}), "'pair' has A instead of A and B"),
    "a template without a text": (around([inserted("b")], TWO_TEXTS, special("b", 1)), "'single' has no text"),
    "a template with a text twice": (around([*A_TEXT, *A_TEXT], TWO_TEXTS, {}), "'single' has A and A"),
    "a template for one with B": (around(TWO_TEXTS, TWO_TEXTS, {}), "'single' has A and B instead of A"),
    "an absurd token type": (around([text_of("A", 2**32 - 1)], TWO_TEXTS, {}), "type_id 4294967295"),
    "a separator of another id": (
        changed("post_processor", {"type": "BertProcessing", "sep": ["b", 0], "cls": ["a", 0]}), "'b' has the id 0, but 1"
    ),
    "a separator of an absurd id": (
        changed("post_processor", {"type": "RobertaProcessing", "sep": ["b", 2**32 - 1], "cls": ["a", 0],
                                   "trim_offsets": True, "add_prefix_space": True}), "post_processor.sep: 'b' has the id"
    ),
    "an unknown post-processor": (changed("post_processor", {"type": "Code"}), "post_processor is of no known type"),
    "a template of thousands": (
        changed("post_processor", {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}] * 999}),
        "a list of 999",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tokenizer_is_rejected_quickly_with_its_file(name: str, tmp_path: Path) -> None:
    content, expected = HOSTILE[name]
    (tmp_path / "tokenizer.json").write_bytes(content())
    before = time.process_time()
    with pytest.raises(CheckpointError, match=expected) as caught:
        read_tokenizer(tmp_path)
    assert "tokenizer.json" in str(caught.value)
    with pytest.raises(DataError, match=expected):
        Tokenizer.load(tmp_path)
    assert time.process_time() - before < 4


@pytest.mark.parametrize("number", [2**31, 2**32 - 1, 2**63, -1, True, 1.5, "7", None])
def test_an_id_that_no_table_has_is_named_with_its_file(number: Any, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain()), encoding="utf-8")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<x>": number}), encoding="utf-8")
    message = re.escape(f"added_tokens.json: '<x>' has the id {number!r}")
    with pytest.raises(CheckpointError, match=message):
        read_tokenizer(tmp_path)


def test_a_decoder_that_panics_on_short_tokens_is_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    document = plain()
    document["decoder"] = {"type": "Strip", "content": "a", "start": 0, "stop": 2}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.decode([[2]]) == ["ab"]
    with pytest.raises(CheckpointError, match="its decoder cannot be run on this text"):
        tokenizer.decode([[0]])
    assert capfd.readouterr().err == ""


def test_a_valid_tokenizer_is_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(json.dumps(plain()).encode())
    assert read_tokenizer(tmp_path).encode(["ab a"]) == [[2, 0]]


def test_a_large_file_is_not_even_parsed(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(200 * 2**20)
        with pytest.raises(CheckpointError, match=r"too large; at most"):
            read_tokenizer(tmp_path)


SETTINGS: dict[str, tuple[dict[str, bytes], str]] = {
    "a key twice": ({"tokenizer_config.json": b'{"a": 1, "a": 2}'}, "occurs twice"),
    "fillers": (
        {"tokenizer_config.json": b'{"tokenizer_class": "T5Tokenizer", "extra_ids": 999999999}'},
        "extra_ids",
    ),
    "added list": (
        {"tokenizer_config.json": b'{"added_tokens_decoder": ["x"]}'},
        "not a list of tokens by id",
    ),
    "added id": (
        {"tokenizer_config.json": b'{"added_tokens_decoder": {"99999999999": {"content": "x"}}}'},
        "has the id 99999999999",
    ),
    "names of inputs": (
        {"tokenizer_config.json": b'{"model_input_names": 4294967295}'},
        "tokenizer_config.json: model_input_names is 4294967295, not a list",
    ),
    "added text": (
        {"tokenizer_config.json": b'{"added_tokens_decoder": {"1": "x"}}'},
        "not a list of tokens by id",
    ),
    "accents": ({"tokenizer_config.json": b'{"strip_accents": "please"}'}, "do not fit together"),
    "an empty vocabulary": ({"vocab.txt": b""}, "0 lines"),
    "a vocabulary in Latin-1": ({"vocab.txt": b"caf\xe9\n"}, "byte 3 is not UTF-8"),
    "a broken map": ({"special_tokens_map.json": b"[1]"}, "holds a list"),
    "a number as a role": (
        {"special_tokens_map.json": b'{"bos_token": 5}'},
        "special_tokens_map.json: bos_token is 5, not the text of a token; write the token, or null",
    ),
    "a role without content": (
        {"tokenizer_config.json": b'{"eos_token": {"lstrip": true}}'},
        "tokenizer_config.json: eos_token is .*, not the text of a token",
    ),
    "a broken config": ({"config.json": b"{"}, "not JSON"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_hostile_settings_are_rejected(name: str, tmp_path: Path) -> None:
    files, expected = SETTINGS[name]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    if name == "fillers":
        document = plain()
        document["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}
        files = {**files, "tokenizer.json": json.dumps(document).encode()}
    for file, content in {"vocab.txt": "\n".join(pieces).encode(), **files}.items():
        (tmp_path / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=expected):
        read_tokenizer(tmp_path)


def test_paths_in_settings_are_ignored(tmp_path: Path) -> None:
    """Older versions of the reference opened files named in the settings; we open fixed names only."""
    inside, outside = tmp_path / "model", tmp_path / "secret.txt"
    inside.mkdir()
    outside.write_text("[UNK]\nsecret\n", encoding="utf-8")
    (inside / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", encoding="utf-8")
    settings = {
        "vocab_file": "../secret.txt",
        "tokenizer_file": str(outside),
        "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]},
        "name_or_path": "https://example.org/",
    }
    (inside / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    ours = read_tokenizer(inside)
    assert ours.library.token_to_id("secret") is None and ours.encode(["a"]) == [[5]]
    saved = tmp_path / "saved"
    saved.mkdir()
    ours.save(saved)
    assert "evil" not in (saved / "tokenizer_config.json").read_text(encoding="utf-8")


def test_dropout_in_a_file_is_removed(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(changed("model.dropout", 0.5)())
    ours = read_tokenizer(tmp_path)
    assert ours.encode(["ab"] * 50) == [[2]] * 50


def test_a_model_that_cannot_read_a_text_is_an_error(tmp_path: Path) -> None:
    model = {
        "type": "Unigram",
        "unk_id": None,
        "vocab": [["a", -1.0], ["b", -2.0]],
        "byte_fallback": False,
    }
    (tmp_path / "tokenizer.json").write_bytes(changed("model", model)())
    tokenizer = read_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match="encoding a text failed"):
        tokenizer.encode(["cat"])
