"""Gemma 3 270M in a GGUF file: logits and tokens are those of transformers, and the weights take
the memory of the file.

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
LINES = 300  # of each file, whose tokens are compared


def test_logits_and_tokens_equal_those_of_transformers(gemma, datasets):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    names = {"pretrained_model_name_or_path": gemma.parent, "gguf_file": gemma.name}
    tokenizer = AutoTokenizer.from_pretrained(**names)
    model = load(gemma)
    reader = model.tokenizer
    for language in ("en", "de"):
        file = datasets / "newstest_ende" / f"newstest2013.{language}.gz"
        with gzip.open(file, "rt", encoding="utf-8") as opened:
            lines = opened.read().split("\n")[:LINES]
        assert [row.ids for row in reader.rows(lines)] == tokenizer(lines)["input_ids"]
    theirs = AutoModelForCausalLM.from_pretrained(**names, dtype=torch.float32).eval()
    ids = tokenizer([TEXT], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = theirs(ids).logits
        torch.testing.assert_close(model.logits(ids), expected, rtol=0, atol=1e-4)
        small = load(gemma, weights="file").logits(ids)
    # Six bits, with a scale for 16 columns, become eight with one for 32.
    torch.testing.assert_close(small, expected, rtol=0, atol=1)
    assert torch.equal(small.argmax(-1), expected.argmax(-1))


@LINUX_ONLY
def test_weights_take_the_memory_of_the_file(smollm2, gemma):
    assert written_memory(smollm2, gemma, "file") <= 1.1 * gemma.stat().st_size
