"""Features equal the hidden states of transformers, and those of the model."""

from __future__ import annotations

import pytest
import torch
from tests.hub.parity import with_large_heads
from tests.models import TWO_LAYERS, add_noise
from tests.predict.references import TEXTS, both
from tests.text import folders

import trifold
from trifold.errors import UsageError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.predict.features import states_after, word_vectors


def gpt2(folder):
    """A random GPT-2 of two layers, loaded by both libraries, with its tokenizer."""
    transformers = pytest.importorskip("transformers")
    folders.OLD["gpt2"](folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(5)
    sizes = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, n_positions=66, vocab_size=len(tokenizer),
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    theirs = with_large_heads(transformers.GPT2LMHeadModel(sizes)).eval()
    theirs.save_pretrained(folder)
    return trifold.load(folder), theirs, tokenizer


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_features_equal_the_states_of_transformers(family, tmp_path):
    if family == "gpt2":
        ours, theirs, tokenizer = gpt2(tmp_path)
    else:
        ours, theirs, tokenizer, _ = both(tmp_path, family, "Model")
    for layer in (0, 1, 2, None):
        for text, found in zip(TEXTS, ours.features(TEXTS, layer=layer), strict=True):
            ids = tokenizer(text, return_tensors="pt")
            with torch.no_grad():
                states = theirs(**ids, output_hidden_states=True).hidden_states
            expected = states[-1 if layer is None else layer][0]
            assert found.ids == ids["input_ids"][0].tolist()
            torch.testing.assert_close(found.vectors, expected, rtol=0, atol=1e-4)
            torch.testing.assert_close(found.pooled, expected.mean(0), rtol=0, atol=1e-4)


CONFIGS = {
    "encoder": {"shape": "encoder", "norm_placement": "pre"},
    "decoder": {"shape": "decoder", "positions": "rotary"},
    "encoder-decoder": {"shape": "encoder-decoder", "norm_placement": "pre"},
    "projected": {"shape": "decoder", "d_embedding": 8, "token_projection": True},
    "shared": {"shape": "encoder", "n_layers": 12, "block_of_layer": (0,) * 12},
}


@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS)
def test_each_layer_is_that_of_the_hidden_states(keys):
    torch.manual_seed(2)
    config = ModelConfig(**{**TWO_LAYERS, "vocab_size": 9, "dropout": 0.0, **keys})
    model = add_noise(Transformer(config), 0.3)
    inputs = Inputs(torch.tensor([[4, 5, 6, 7]]))
    with torch.no_grad():
        expected = next(iter(model.hidden_states(inputs).values()))
        for layer, state in enumerate(expected):
            torch.testing.assert_close(states_after(model, inputs, layer), state)


def test_a_word_has_the_mean_of_its_tokens(tmp_path):
    ours = both(tmp_path, "bert", "Model").ours
    text = "The unheardof fox, a FOX; foxes"
    found = ours.features(text)
    first, second = word_vectors(found, text, "fox")
    assert [text[one.start : one.end] for one in (first, second)] == ["fox", "FOX"]
    (whole,) = word_vectors(found, text, "unheardof")
    numbers = [n for n, span in enumerate(found.spans) if span and 4 <= span[0] < 13]
    assert len(numbers) > 1
    torch.testing.assert_close(whole.vector, found.vectors[numbers].mean(0))
    assert not [*word_vectors(found, text, "he")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "layer 3: give a number from 0, the embeddings, to 2, the last layer"),
        ({"layer": -1}, "layer -1: give a number"),
        ({"pooling": "pooler"}, "'pooler' is not known for features; choose mean, cls, last, max"),
    ],
)
def test_errors(tmp_path, options, message):
    ours = both(tmp_path, "bert", "Model").ours
    with pytest.raises(UsageError, match=message):
        ours.features("fox", **options)
