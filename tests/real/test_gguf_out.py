"""Published models written as GGUF files. About 20 CPU seconds in all."""

from __future__ import annotations

import hashlib
from collections import Counter

import gguf
import numpy as np
import pytest
import torch

from trifold import load
from trifold.hub.gguf.save import save_gguf

pytestmark = pytest.mark.filterwarnings("default")

TEXTS = ["The quick brown fox jumps over the lazy dog.", "In 1998, people lived in Zürich"]


def test_a_mixture_of_smollm2_is_that_of_llama_cpp(smollm2, tmp_path):
    """The digest is that of the tensors of `llama_model_quantize` of llama-cpp-python 0.3.36, of
    the same model in float32.
    """
    save_gguf(smollm2, tmp_path / "a.gguf", weights="q4_k_m")
    tensors = sorted(gguf.GGUFReader(tmp_path / "a.gguf").tensors, key=lambda each: each.name)
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.name.encode())
        digest.update(tensor.data.tobytes())
    types = Counter(tensor.tensor_type.name for tensor in tensors)
    assert types == {"Q5_0": 166, "F32": 61, "Q4_K": 16, "Q8_0": 15, "Q6_K": 14}
    expected = "213bb6ba4ae80b99feae98403292c8851ede313cf136a6b4c63a4bacc89de364"
    assert digest.hexdigest() == expected


def test_smollm2_in_float32_is_the_same_model(smollm2, tmp_path):
    save_gguf(smollm2, tmp_path / "a.gguf", weights="f32")
    old, new = load(smollm2), load(tmp_path / "a.gguf")
    ids = torch.tensor(old.tokenizer.encode(TEXTS[:1]))
    assert torch.equal(old.logits(ids), new.logits(ids))
    assert new.tokenizer.templates == old.tokenizer.templates
    assert 'SYSTEM """You are a helpful AI assistant' in (tmp_path / "a.Modelfile").read_text()


def test_vectors_of_minilm_are_those_of_the_folder(minilm, tmp_path):
    expected = np.array(load(minilm).embed(TEXTS))
    for weights, bound in (("f32", 1 - 1e-6), ("q8_0", 0.999)):
        save_gguf(minilm, tmp_path / f"{weights}.gguf", weights=weights)
        found = np.array(load(tmp_path / f"{weights}.gguf").embed(TEXTS))
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        assert (found * expected).sum(1).min() > bound
