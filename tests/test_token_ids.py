"""Ids between a tokenizer and a model of another size: ids that the model lacks, and ids that it
writes without a token.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.models import TWO_LAYERS, add_noise
from tests.text import folders
from tokenizers import Tokenizer as Library, processors

from trifold.errors import CheckpointError, SettingsError, TrifoldError, UsageError
from trifold.look.attention import read_attention
from trifold.look.page import offline_requests
from trifold.look.requests import answer
from trifold.look.session import Session
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline, load
from trifold.recipe import Recipe
from trifold.text import Tokenizer, TokenizerSettings, read_tokenizer, train_tokenizer
from trifold.train.data import load_data
from trifold.train.initial_weights import new_model
from trifold.train.monitor import View

TEXT = "the quick fox zz"
MORE = 7  # rows without a token
SPECIAL = ("cls", "sep", "mask")
SHAPES: dict[str, dict[str, Any]] = {
    "translator": {},
    "decoder": {"shape": "decoder"},
    "encoder": {"shape": "encoder", "lm_head_transform": "gelu"},
}


@cache
def tokenizer() -> Tokenizer:
    """Its last id is that of z, the rarest character."""
    texts = ["the quick brown fox", "the quick fox z"] * 3
    settings = TokenizerSettings(kind="char", min_frequency=1, special=SPECIAL)
    return train_tokenizer(texts, settings)


def pipeline_of(shape: str, rows: int, **values: Any) -> Pipeline:
    """A model with this number of tokens that predicts only ids without a token, if it has some."""
    torch.manual_seed(3)
    sizes = TWO_LAYERS | {"max_positions": 64, "heads": ("lm",), "lm_head_bias": True}
    config = ModelConfig.parse(sizes | SHAPES[shape] | {"vocab_size": rows} | values)
    model = add_noise(Transformer(config), 0.3)
    with torch.no_grad():
        model.lm_head.bias[tokenizer().vocab_size :] += 50
    return Pipeline(model, tokenizer(), generation={"max_new_tokens": 4})


def look(pipeline: Pipeline, target: str | None = None) -> dict[str, Any]:
    """What `trifold look --out` writes."""
    session = Session(pipeline)
    requests = offline_requests(session, TEXT, target)
    return {f"{name} {params}": answer(session, name, params) for name, params in requests}


USES: dict[str, tuple[str, Callable[[Pipeline], Any]]] = {
    "generate": ("translator decoder", lambda pipe: pipe.generate(TEXT)),
    "sample": ("decoder", lambda pipe: pipe.generate(TEXT, do_sample=True, seed=1)),
    "beams": ("translator decoder", lambda pipe: pipe.hypotheses([TEXT], num_beams=3)),
    "stream": ("decoder", lambda pipe: "".join(pipe.stream(TEXT))),
    "force words": ("decoder", lambda pipe: pipe.generate("the", force_words=["z"], num_beams=2)),
    "stop strings": ("decoder", lambda pipe: pipe.generate(TEXT, stop_strings=["x"])),
    "bad words": ("decoder", lambda pipe: pipe.generate(TEXT, bad_words=["x"])),
    "logits": ("translator decoder encoder", lambda pipe: pipe.logits(TEXT)),
    "states": ("translator decoder encoder", lambda pipe: pipe.hidden_states([TEXT])),
    "trace": ("translator decoder encoder", lambda pipe: pipe.trace(TEXT).top()),
    "target": ("translator decoder", lambda pipe: pipe.trace("the", TEXT).loss),
    "attention": ("translator decoder encoder", lambda pipe: read_attention(pipe, TEXT)),
    "look": ("translator decoder encoder", look),
    "embed": ("translator decoder encoder", lambda pipe: pipe.embed(TEXT)),
    "search": ("encoder", lambda pipe: pipe.predict("fox", task="search", corpus=[TEXT])),
    "fill-mask": ("encoder", lambda pipe: pipe.fill_mask(f"{TEXT} <mask>")),
}
CASES = [(shape, use) for use, (shapes, _) in USES.items() for shape in shapes.split()]


@pytest.mark.parametrize(("shape", "use"), CASES)
def test_a_token_beyond_the_table_is_an_error_that_names_it(shape, use):
    size = tokenizer().vocab_size
    message = rf"gives the id {size - 1} \('z'\), but the model has {size - 1} tokens"
    with pytest.raises(CheckpointError, match=message):
        USES[use][1](pipeline_of(shape, size - 1))


@pytest.mark.parametrize(("shape", "use"), CASES)
def test_ids_without_a_token_have_a_name(shape, use):
    size = tokenizer().vocab_size
    made = str(USES[use][1](pipeline_of(shape, size + MORE)))
    if use in ("fill-mask", "look"):
        assert f"<id {size}" in made or f"<id {size + 1}" in made


def test_each_side_of_a_translator_has_its_own_table():
    size = tokenizer().vocab_size
    small_target = pipeline_of("translator", size, target_vocab_size=size - 1)
    assert small_target.generate(TEXT)
    for use in ("force words", "target"):
        with pytest.raises(CheckpointError, match=rf"\('z'\), but the model has {size - 1} tokens"):
            USES[use][1](small_target)
    small_source = pipeline_of("translator", size - 1, target_vocab_size=size + MORE)
    assert USES["target"][1](small_source) is not None
    with pytest.raises(CheckpointError, match=rf"\('z'\), but the model has {size - 1} tokens"):
        small_source.generate(TEXT)


def test_a_tokenizer_that_fits_is_not_copied():
    pipe = pipeline_of("translator", tokenizer().vocab_size)
    assert pipe.tokenizer is pipe.target_tokenizer is tokenizer()


# Parameters of a request of the page, and the error; a row without a token is a row.
REQUESTS = [
    ("neighbours", {"side": "decoder", "token": 1}, None),
    ("neighbours", {"side": "decoder", "token": MORE}, "token .*: give a number from 0 to"),
    ("search", {"text": TEXT, "forced": [1]}, None),
    ("search", {"text": TEXT, "forced": [MORE]}, "forced: token .* is forbidden or unknown"),
    ("gradients", {"text": TEXT, "token": 1}, None),
    ("gradients", {"text": TEXT, "token": MORE}, "token .*: give a number from 0 to"),
]


@pytest.mark.parametrize(("name", "params", "message"), REQUESTS)
def test_requests_name_any_row_of_the_table(name, params, message):
    """The ids in `params` count from the first one without a token."""
    size = tokenizer().vocab_size
    session = Session(pipeline_of("decoder", size + MORE))
    for key in ("token", "forced"):
        if key in params:
            first = params[key][0] if key == "forced" else params[key]
            params = params | {key: [size + first] if key == "forced" else size + first}
    if message is None:
        assert answer(session, name, params)
        return
    with pytest.raises(UsageError, match=message):
        answer(session, name, params)


def test_a_language_beyond_the_table_is_an_error(tmp_path):
    codec = read_tokenizer(folders.nllb(tmp_path / "nllb"))
    languages = codec.languages
    last = max(languages, key=languages.__getitem__)
    sizes = TWO_LAYERS | {"max_positions": 64, "vocab_size": languages[last], "bos_id": 2}
    pipe = Pipeline(Transformer(ModelConfig.parse(sizes)).eval(), codec)
    assert isinstance(pipe.generate("the fox", max_new_tokens=2), str)
    with pytest.raises(CheckpointError, match=f"{last}'.*do not belong together"):
        pipe.generate("the fox", max_new_tokens=2, source_language=last)
    with pytest.raises(UsageError, match=f"target_language {last}: .* is not a token id"):
        pipe.generate("the fox", max_new_tokens=2, target_language=last)


def test_a_token_type_beyond_the_table_is_an_error(tmp_path):
    codec = read_tokenizer(folders.bert(tmp_path / "bert"))
    special = [(name, codec.library.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    codec.library.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:2 [SEP]:2", special
    )
    heads = {"heads": ["pooler", "sequence"], "classifier_input": "pooler", "n_labels": 2}
    sizes = TWO_LAYERS | {"shape": "encoder", "n_token_types": 2, "max_positions": 64}
    config = ModelConfig.parse(sizes | heads | {"vocab_size": codec.vocab_size})
    pipe = Pipeline(Transformer(config).eval(), codec)
    pipe.classify("the fox")
    with pytest.raises(CheckpointError, match="token type 2, but the model has 2 token types"):
        pipe.classify("the fox", "a wolf")


# Values of config.json, and the error; an end token beyond the table means that there is none.
SPECIAL_IDS = [
    ("translator", {"pad_token_id": 99}, "the id of padding is 99, but the model has"),
    ("translator", {"decoder_start_token_id": 99}, "outputs start with the id 99, but the model"),
    ("translator", {"eos_token_id": 99}, None),
    ("decoder", {"pad_id": 99}, "the id of padding is 99, but the model has"),
    ("encoder", {"pad_id": 99}, "the id of padding is 99, but the model has"),
]


@pytest.mark.parametrize(("shape", "ids", "message"), SPECIAL_IDS)
def test_special_ids_are_rows_of_the_table(shape, ids, message, tmp_path):
    pipeline_of(shape, tokenizer().vocab_size).save(tmp_path)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | ids), encoding="utf-8")
    if message is None:
        assert load(tmp_path).generate([TEXT, "a"])
        return
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_a_pad_token_beyond_the_table_is_not_read(tmp_path):
    """GPT-2 has no pad token; one that was added for training is often left in its tokenizer."""
    codec = read_tokenizer(folders.byte_level(tmp_path / "gpt2", "gpt2", ("<|endoftext|>",)))
    size = codec.vocab_size
    codec.library.add_special_tokens(["[PAD]"])
    padded = Tokenizer(codec.library, names=codec.names | {"pad_token": "[PAD]"}, complete=False)
    assert padded.pad_id == size and padded.for_model(size).padding_id == 0
    sizes = TWO_LAYERS | {"shape": "decoder", "vocab_size": size, "max_positions": 64}
    pipe = Pipeline(Transformer(ModelConfig.parse(sizes)).eval(), padded)
    texts = ["the quick fox", "the"]
    both = pipe.generate(texts, max_new_tokens=3)
    assert both == [pipe.generate(text, max_new_tokens=3) for text in texts]
    with pytest.raises(CheckpointError, match=r"'\[PAD\]'.* leave this token out"):
        pipe.generate("the [PAD]", parse_special=True)


def test_a_vocabulary_with_gaps_needs_rows_up_to_its_largest_id(tmp_path):
    codec = read_tokenizer(folders.bert(tmp_path / "bert"))
    document = json.loads(codec.library.to_str())
    vocabulary = document["model"]["vocab"]
    document["model"]["vocab"] = {
        token: number + 13 * (number >= 50) for token, number in vocabulary.items()
    }
    gaps = Tokenizer(Library.from_str(json.dumps(document)), names=codec.names, complete=False)
    assert gaps.library.get_vocab_size() == codec.vocab_size
    assert gaps.vocab_size == codec.vocab_size + 13
    assert gaps.pieces([0, 50, 62, -1]) == ["[PAD]", "<id 50>", "<id 62>", "<id -1>"]
    assert gaps.pieces([2**40]) == [f"<id {2**40}>"]
    assert gaps.texts([0, 50]) == ["[PAD]", "<id 50>"]
    assert gaps.decode([[50, 2**20]]) == [""]


def test_a_prompt_of_a_chat_has_tokens_of_the_model():
    codec = tokenizer().for_model(tokenizer().vocab_size - 1)
    codec.templates["default"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert codec.encode_chat([{"role": "user", "content": "fox"}])
    with pytest.raises(TrifoldError, match=r"\('z'\), but the model has"):
        codec.encode_chat([{"role": "user", "content": "z"}])


def test_training_needs_a_row_for_each_token(tmp_path):
    """A teacher and the model of `start_from` may have rows without a token, but not fewer rows."""
    size = tokenizer().vocab_size
    text = tmp_path / "text.txt"
    text.write_text(f"{TEXT}\n" * 9, encoding="utf-8")
    causal = {"kind": "causal"}
    for rows in (size + MORE, size - 1):
        other = tmp_path / str(rows)
        pipeline_of("decoder", rows).save(other)
        uses = {
            "teacher": {"task": {"kind": "distill", "of": causal, "teacher": str(other)}},
            "start_from": {"task": causal, "start_from": str(other)},
        }
        for use, values in uses.items():
            shared: dict[str, Any] = {
                "name": use,
                "data": {"train": str(text), "valid": str(text)},
                "model": TWO_LAYERS
                | SHAPES["decoder"]
                | {"max_positions": 64, "lm_head_bias": True},
                "tokenizer": {"file": str(other)},
                "train": {"steps": 2, "warmup": 1},
            }
            recipe = Recipe.parse(shared | values)
            if rows > size:
                data = load_data(recipe, tmp_path / f"{use}-{rows}", View())
                assert new_model(data).config.vocab_size == rows
                continue
            with pytest.raises(SettingsError, match=f"{use}.* has {rows} tokens, but .*{size}"):
                new_model(load_data(recipe, tmp_path / f"{use}-{rows}", View()))
