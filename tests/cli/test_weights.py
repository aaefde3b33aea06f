"""`--weights` and `--dtype` of every command that runs a model for its predictions."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import get_args

import pytest
import torch
from tests.cli.readers import folder_of
from tests.models import add_noise

import trifold as library
from trifold.cli import COMMANDS, compare, glue, options, predict
from trifold.cli.batch import load_pipeline
from trifold.dtypes import Weights
from trifold.fast.quantized_weight import QuantizedWeight
from trifold.hub.families import FAMILIES
from trifold.hub.gguf.save import save_gguf
from trifold.nn import Transformer
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer

pytestmark = pytest.mark.slow

PREDICTING = {"predict", "generate", "eval", "compare", "glue"}
SIZES = {"d_model": 32, "d_ff": 64}  # rows of whole blocks
TEXTS = ("the quick brown fox", "a lazy dog")


def test_commands_that_predict_have_the_same_option():
    found = {}
    for name in COMMANDS:
        run = importlib.import_module(f"trifold.cli.{name}").run
        option = inspect.signature(run, eval_str=True).parameters.get("weights")
        if option is not None and name != "convert":  # whose weights are those of a file
            choices, declared = get_args(option.annotation)
            found[name] = (get_args(choices), declared.help, option.default)
    help_text = get_args(options.Weights)[1].help
    expected = dict.fromkeys({*PREDICTING, "show"}, (get_args(Weights), help_text, "file"))
    assert found == expected


@pytest.mark.parametrize("name", sorted(PREDICTING))
def test_commands_with_weights_have_the_precision_of_the_computation(name):
    run = importlib.import_module(f"trifold.cli.{name}").run
    option = inspect.signature(run, eval_str=True).parameters["dtype"]
    kind, declared = get_args(option.annotation)
    expected = get_args(options.Dtype)[1]
    assert (kind, declared.help, declared.metavar) == (str, expected.help, expected.metavar)
    assert option.default == "float32"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return folder_of("embed", tmp_path_factory.mktemp("encoder"), **SIZES)


def count_small(pipeline: Pipeline) -> int:
    return sum(isinstance(each, QuantizedWeight) for each in pipeline.model.modules())


def vectors(trifold, model: Path, *words: str) -> torch.Tensor:
    """What `trifold predict` prints for the texts."""
    done = trifold("predict", str(model), *TEXTS, "--task", "embed", "--json", *words)
    assert done.code == 0, done.err
    return torch.tensor([json.loads(line)["outputs"] for line in done.out.splitlines()])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_encoders_predict_with_small_weights(trifold, encoder, weights, dtype):
    full = vectors(trifold, encoder)
    small = vectors(trifold, encoder, "--weights", weights, "--dtype", dtype)
    pipeline = library.load(encoder, weights=weights, dtype=dtype)
    assert count_small(pipeline) > 10
    expected = torch.stack([each.float() for each in pipeline.embed(list(TEXTS))])
    torch.testing.assert_close(small, expected, atol=1e-6, rtol=1e-6)
    least = {"int8": 0.99, "int4": 0.85}[weights]
    cosines = torch.cosine_similarity(small, full)
    assert bool((cosines > least).all()) and not torch.equal(small, full)


@pytest.fixture
def small(monkeypatch) -> list[int]:
    """The number of small weights of each model that `predict` or `compare` loads from here on."""
    counts = []

    def load(*arguments, **options):
        pipeline = load_pipeline(*arguments, **options)
        counts.append(count_small(pipeline))
        return pipeline

    for command in (predict, compare):
        monkeypatch.setattr(command, "load_pipeline", load)
    return counts


def test_decoders_of_a_gguf_file_predict_with_its_types(trifold, small, tmp_path):
    settings = TokenizerSettings(kind="byte-bpe", vocab_size=300, min_frequency=1)
    tokenizer = train_tokenizer([*TEXTS], settings)
    sizes = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_inner": 64}
    config = FAMILIES["gpt2"].read(sizes | {"vocab_size": tokenizer.vocab_size})
    Pipeline(add_noise(Transformer(config), 0.2), tokenizer).save(tmp_path / "model")
    file = tmp_path / "model.gguf"
    save_gguf(str(tmp_path / "model"), file, weights="q4_0")
    of_file, full = vectors(trifold, file), vectors(trifold, file, "--weights", "full")
    for found, weights in ((of_file, "file"), (full, "full")):
        expected = torch.stack([*library.load(file, weights=weights).embed(list(TEXTS))])
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(of_file, full, atol=1e-3, rtol=1e-3)
    assert small[0] > 10 and small[1] == 0


def test_both_models_of_a_comparison_have_small_weights(trifold, run, small):
    words = ("--weights", "int8", "--dtype", "bfloat16", "--json")
    done = trifold("compare", str(run), str(run), *words, "--samples", "100")
    assert done.code == 0, done.err
    assert len(small) == 2 and min(small) > 10
    alone = json.loads(trifold("eval", str(run), *words).out)["scores"]
    for name, score in json.loads(done.out)["scores"].items():
        assert score["a"] == score["b"] == pytest.approx(alone[name]["value"])


def test_models_of_glue_have_small_weights(trifold, encoder, monkeypatch, tmp_path):
    loaded = []

    def score(name, model, batch_size, load):
        loaded.append(load())
        return {"accuracy": 50.0}

    monkeypatch.setattr(glue, "_problem", lambda name, model: "" if name == "sst2" else "none")
    monkeypatch.setattr(glue, "_score", score)
    encoder.rename(encoder.parent / "glue-sst2")
    try:
        words = ("--weights", "int4", "--dtype", "bf16")
        assert trifold("glue", str(encoder.parent), *words).code == 0
    finally:
        (encoder.parent / "glue-sst2").rename(encoder)
    assert count_small(loaded[0]) > 10
    assert {each.dtype for each in loaded[0].model.parameters()} == {torch.bfloat16}
