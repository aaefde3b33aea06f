"""Gemma 3 270M in a GGUF file: logits and tokens are those of transformers, and the weights take
the memory of the file.

About 60 CPU seconds in all.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys

import pytest
import torch

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


MEMORY = """
import sys
import threading
import torch
from trifold import load

def written_memory():
    for each in threading.enumerate():
        if each.name == "pages":  # it may still release the memory of the file
            each.join()
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))

def run(file):
    model = load(file, weights="file", dtype="bfloat16")
    model.generate_tokens(torch.tensor([[2, 818, 5279]]), max_new_tokens=8)
    return model

other = run(sys.argv[1])  # with what is imported and compiled
before = written_memory()
model = run(sys.argv[2])
print(1024 * (written_memory() - before))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory of Linux processes")
def test_weights_take_the_memory_of_the_file(smollm2, gemma):
    with gemma.open("rb") as file:
        os.fsync(file)  # what is not on disk yet counts as written
    command = [sys.executable, "-c", MEMORY, str(smollm2), str(gemma)]
    for _ in range(2):  # the first may compile code, which takes memory
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    taken = int(done.stdout)
    assert taken <= 1.1 * gemma.stat().st_size
