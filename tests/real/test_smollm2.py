"""SmolLM2-135M-Instruct in a GGUF file: logits, tokens and chats are those of transformers.

About 60 CPU seconds in all.
"""

from __future__ import annotations

import gzip

import pytest
import torch
from tests.real.written_memory import LINUX_ONLY, written_memory

from trifold import load

pytestmark = pytest.mark.filterwarnings("default")

TEXT = "The quick brown fox jumps over the lazy dog. In 1998, 3.5 million people lived in Zürich"


def test_logits_equal_those_of_transformers(smollm2):
    from transformers import AutoModelForCausalLM

    model = load(smollm2)
    ids = torch.tensor(model.tokenizer.encode([TEXT]))
    theirs = AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    ).eval()
    with torch.no_grad():
        expected = theirs(ids).logits
        torch.testing.assert_close(model.logits(ids), expected, rtol=0, atol=1e-4)
    assert model.generate("The capital of France is", max_new_tokens=2) == " Paris."


def test_tokens_and_chats_equal_those_of_transformers(smollm2, datasets):
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    # As in the published tokenizer.json; from a GGUF file, transformers splits digits last.
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    ours = load(smollm2).tokenizer
    folder = datasets / "newstest_ende"
    for language in ("en", "de"):
        for year in (2012, 2013):
            file = folder / f"newstest{year}.{language}.gz"
            with gzip.open(file, "rt", encoding="utf-8") as opened:
                lines = opened.read().split("\n")
            assert ours.encode(lines) == theirs(lines)["input_ids"]
    messages = [{"role": "user", "content": "Name three colours."}]
    options = {"tokenize": False, "add_generation_prompt": True}
    expected = theirs.apply_chat_template(messages, **options)
    assert ours.chat(messages, add_generation_prompt=True) == expected


# Matrices of linear layers have 4 bits in int4, those of attention 5 or 6, and the head 6.
@LINUX_ONLY
@pytest.mark.parametrize(("weights", "bits"), [("int8", 8.5), ("int4", 5.2)])
def test_small_weights_take_the_memory_of_their_bits(smollm2, weights, bits):
    parameters = 134_515_008
    taken = written_memory(smollm2, smollm2, weights)
    assert 0.9 * parameters * bits / 8 <= taken <= 1.1 * parameters * bits / 8
