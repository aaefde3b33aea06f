"""Tokenizers written as keys of GGUF files, and Modelfiles."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hub.gguf import vocabularies
from tests.hub.gguf.vocabularies import PREFIX, SAMPLES, Vocabulary
from tests.hub.gguf.writing import CASES
from tokenizers.normalizers import NFC

import trifold
from trifold.errors import CheckpointError
from trifold.folders import FileAsFolder
from trifold.hub.gguf.metadata import Metadata
from trifold.hub.gguf.modelfile import modelfile
from trifold.hub.gguf.save import save_gguf
from trifold.hub.gguf.tokenizer import ends, tokenizer_files
from trifold.hub.gguf.tokenizer_keys import tokenizer_keys
from trifold.text import Tokenizer
from trifold.text.folder import read_tokenizer
from trifold.text.pre_tokenizers import PRE_TOKENIZERS, WHOLE_WORDS
from trifold.text.training import TokenizerSettings, train_tokenizer

MADE = {
    "gpt-2": vocabularies.byte_level,
    "smollm": lambda: vocabularies.byte_level("smollm"),
    "llama": vocabularies.sentences,
    "t5": lambda: vocabularies.sentences("unigram"),
    "bert": vocabularies.wordpiece,
    "bert, cased": lambda: vocabularies.wordpiece(cased=True),
}
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _tokenizer(keys: dict[str, Any]) -> Tokenizer:
    """The tokenizer that the keys stand for."""
    path = Path("a.gguf")
    arrays = {
        key: np.array(value, np.uint8 if "charsmap" in key else None)
        for key, value in keys.items()
        if isinstance(value, list) and not isinstance(value[0], str)
    }
    files = tokenizer_files(Metadata(keys | arrays, {}, "a.gguf"))
    return read_tokenizer(FileAsFolder(path, path, files))


@pytest.mark.parametrize("name", MADE)
def test_keys_are_those_that_the_tokenizer_was_read_from(name: str) -> None:
    made: Vocabulary = MADE[name]()
    tokenizer = _tokenizer(made.keys)
    values = tokenizer_keys(tokenizer, made.size, [], "a folder").values
    for key, value in made.keys.items():
        if not key.endswith(("scores", "token_type_count")):
            assert np.array_equal(np.array(values[key]), np.array(value)), key
    reread = _tokenizer(values)
    rows = [[row.ids for row in each.rows(SAMPLES)] for each in (reread, tokenizer)]
    assert rows[0] == rows[1] == [made.encode(text) for text in SAMPLES]
    assert reread.templates == tokenizer.templates


def test_pieces_that_are_merged_first_have_higher_scores() -> None:
    made = vocabularies.sentences()
    values: Any = tokenizer_keys(_tokenizer(made.keys), made.size, [], "a folder").values
    theirs = np.array(made.keys[f"{PREFIX}scores"])
    tokens = made.keys[f"{PREFIX}tokens"]
    merged = [n for n, kind in enumerate(values[f"{PREFIX}token_type"]) if kind == 1]
    merged = [n for n in merged if len(tokens[n]) > 1]
    ordered = sorted(merged, key=lambda number: -theirs[number])
    assert len(ordered) > 50
    assert (np.diff(values[f"{PREFIX}scores"][ordered]) < 0).all()


def test_normalization_is_read_from_the_file_before_the_vocabulary() -> None:
    keys = vocabularies.wordpiece(cased=True).keys
    for lowercase, strips, expected in (
        (False, False, ["The", "[UNK]"]),
        (True, True, ["the", "a"]),
        (True, False, ["the", "[UNK]"]),
    ):
        chosen = keys | {
            f"{PREFIX}normalizer.lowercase": lowercase,
            f"{PREFIX}normalizer.strip_accents": strips,
        }
        tokenizer = _tokenizer(chosen)
        assert tokenizer.pieces(tokenizer.encode(["The Á"])[0]) == expected
        values = tokenizer_keys(tokenizer, tokenizer.vocab_size, [], "a folder").values
        assert {key: values[key] for key in chosen if "normalizer" in key} == {
            key: value for key, value in chosen.items() if "normalizer" in key
        }


def test_every_way_to_split_texts_is_found() -> None:
    keys = vocabularies.byte_level().keys
    ways = {(way, name in WHOLE_WORDS): name for name, way in PRE_TOKENIZERS.items()}
    for (way, is_whole), name in ways.items():
        chosen = keys | {f"{PREFIX}pre": name, f"{PREFIX}add_bos_token": True}
        values = tokenizer_keys(_tokenizer(chosen), 320, [], "a folder").values
        found = str(values[f"{PREFIX}pre"])
        assert (PRE_TOKENIZERS[found], found in WHOLE_WORDS) == (way, is_whole), name


def test_composition_that_llama_cpp_does_not_apply_is_reported() -> None:
    tokenizer = _tokenizer(vocabularies.byte_level().keys)
    assert tokenizer_keys(tokenizer, 320, [], "a folder").notes == []
    tokenizer.library.normalizer = NFC()
    [note] = tokenizer_keys(tokenizer, 320, [], "a folder").notes
    assert note.startswith("llama.cpp does not join letters and combining accents (Unicode NFC)")


def test_ids_without_a_token_are_filled_and_too_many_are_an_error() -> None:
    tokenizer = _tokenizer(vocabularies.byte_level().keys)
    values: Any = tokenizer_keys(tokenizer, 322, [], "a folder").values
    assert values[f"{PREFIX}tokens"][320:] == ["[PAD320]", "[PAD321]"]
    assert values[f"{PREFIX}token_type"][319:].tolist() == [1, 5, 5]
    with pytest.raises(CheckpointError, match=r"has the id 319, and the table of the model 300 ro"):
        tokenizer_keys(tokenizer, 300, [], "a folder")


def test_tokens_that_end_an_answer_are_written() -> None:
    tokenizer = _tokenizer(vocabularies.byte_level().keys)
    values = tokenizer_keys(tokenizer, 320, [2, 7, 9, 0], "a folder").values
    assert ends(Metadata(values, {}, "")) == [2, 7, 9, 0]
    with pytest.raises(CheckpointError, match="has 3 further tokens that end an answer"):
        tokenizer_keys(tokenizer, 320, [2, 7, 8, 9], "a folder")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bpe": ({}, "has no tokens of bytes, <0x00> to <0xFF>.*; train with tokenizer.kind=byte-bpe"),
    "char": ({}, r"\(WordLevel\) has no form in GGUF files"),
    "byte-bpe": ({"lowercase": True}, "changes texts before it splits them"),
    "unigram": ({}, "gives other tokens than llama.cpp makes of its vocabulary"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_tokenizer_without_a_form_is_refused(kind: Any, tmp_path: Path) -> None:
    options, message = REFUSED[kind]
    texts = [*vocabularies.TEXT.splitlines(), "a<b>c"] * 3
    settings = TokenizerSettings.parse({"kind": kind, "vocab_size": 400} | options)
    tokenizer = train_tokenizer(texts, settings)
    with pytest.raises(CheckpointError, match=message):
        tokenizer_keys(tokenizer, 400, [], "a folder")


def test_tokens_around_a_text_that_a_file_does_not_hold_are_refused() -> None:
    texts = vocabularies.TEXT.splitlines() * 3
    settings = TokenizerSettings.parse(
        {"kind": "byte-bpe", "vocab_size": 400, "special": ["cls", "sep"]}
    )
    with pytest.raises(CheckpointError, match="puts tokens around a text that are not those of"):
        tokenizer_keys(train_tokenizer(texts, settings), 400, [], "a folder")


# --- Modelfiles -----------------------------------------------------------------------------------


def _modelfile(template: str | None, **more: Any) -> str:
    keys: dict[str, Any] = vocabularies.byte_level().keys | more
    keys = {key: value for key, value in keys.items() if key != "tokenizer.chat_template"}
    if template is not None:
        keys["tokenizer.chat_template"] = template
    tokenizer = _tokenizer(keys)
    return modelfile(Metadata(keys, {}, ""), "a.gguf", tokenizer, {"temperature": 0.5, "top_k": 9})


def test_the_template_of_ollama_is_derived() -> None:
    assert _modelfile(CHATML).splitlines() == [
        "FROM ./a.gguf",
        'TEMPLATE """<|im_start|>{{ range .Messages }}{{ if eq .Role "system" }}system',
        "{{ .Content }}<|im_end|>",
        '<|im_start|>{{ else if eq .Role "user" }}user',
        "{{ .Content }}<|im_end|>",
        "<|im_start|>{{ else }}assistant",
        "{{ .Content }}<|im_end|>",
        "<|im_start|>{{ end }}{{ end }}assistant",
        '"""',
        'SYSTEM """Be kind."""',
        "PARAMETER temperature 0.5",
        "PARAMETER top_k 9",
        'PARAMETER stop "<|im_end|>"',
        'PARAMETER stop "<|endoftext|>"',
    ]


def test_the_begin_token_that_ollama_adds_is_left_out() -> None:
    template = "{{ bos_token }}" + CHATML.partition("{% endif %}")[2]
    assert 'TEMPLATE """<|im_start|><|im_start|>{{ range' in _modelfile(template)
    with_begin = _modelfile(template, **{f"{PREFIX}add_bos_token": True})
    assert 'TEMPLATE """<|im_start|>{{ range' in with_begin


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m['content']|upper }}{% endfor %}",
        "{% for m in messages %}{{ loop.index }}{{ m['content'] }}{% endfor %}",
        "{{ raise_exception('no system') }}",
        "{% for m in messages %}{% if loop.index > 2 %}{{ m['content'] }}|{% endif %}{% endfor %}",
    ],
)
def test_other_templates_are_named_as_missing(template: str) -> None:
    assert 'TEMPLATE "' not in _modelfile(template)
    assert "# The chat template puts more than fixed texts" in _modelfile(template)


def test_a_model_without_a_template_gets_the_prompt_alone() -> None:
    text = _modelfile(None)
    assert 'TEMPLATE """{{ .Prompt }}"""' in text
    assert "stop" not in text


def test_a_file_generates_what_the_folder_does(tmp_path: Path) -> None:
    vocabularies.write_model(tmp_path / "a.gguf")
    pipeline = trifold.load(tmp_path / "a.gguf")
    pipeline.save(tmp_path / "old")
    save_gguf(tmp_path / "old", tmp_path / "b.gguf")
    written = trifold.load(tmp_path / "b.gguf")
    for text in ("The quick", "over the"):
        assert written.generate(text, max_new_tokens=8) == pipeline.generate(text, max_new_tokens=8)
    assert (tmp_path / "b.Modelfile").read_text("utf-8").startswith("FROM ./b.gguf\n")


def test_a_model_without_a_tokenizer_is_written(tmp_path: Path) -> None:
    CASES["qwen2"].model().save_pretrained(tmp_path / "old")
    save_gguf(tmp_path / "old", tmp_path / "a.gguf")
    assert trifold.load(tmp_path / "a.gguf").tokenizer is None
