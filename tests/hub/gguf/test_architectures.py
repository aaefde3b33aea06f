"""Logits of GGUF files equal those of the models of transformers that they were written from."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from tests.hub.gguf.writing import CASES, Case, Types
from torch import Tensor
from transformers import PreTrainedModel

import trifold

# Types of matrices of architectures whose sizes transformers reads correctly without a tokenizer.
READ = [("llama", Types.Q8_0), ("llama", Types.BF16), ("qwen2", Types.F16), ("qwen2", Types.Q4_0)]
TOKENS = torch.tensor([[5, 11, 2, 47, 33, 8, 60, 21, 3, 19, 42, 7, 13, 28, 54, 36]])


@torch.no_grad()
def _reference(model: PreTrainedModel, case: Case) -> Tensor:
    if case.name == "t5":
        return model(input_ids=TOKENS, decoder_input_ids=TOKENS[:, :6]).logits
    outputs = model(input_ids=TOKENS)
    return outputs.last_hidden_state if case.name == "bert" else outputs.logits


@torch.no_grad()
def _ours(path: Path, case: Case) -> Tensor:
    pipeline = trifold.load(path)
    if case.name == "t5":
        return pipeline.logits(TOKENS, decoder_tokens=TOKENS[:, :6])
    if case.name == "bert":
        return pipeline.hidden_states(TOKENS)["encoder"][-1]
    return pipeline.logits(TOKENS)


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_the_reference(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = case.model()
    path = case.write(tmp_path / "a.gguf", model)
    theirs = _reference(model, case)
    ours = _ours(path, case)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < 1e-4


@pytest.mark.parametrize(("name", "kind"), READ)
def test_outputs_of_quantized_files_equal_the_reader_of_transformers(
    name: str, kind: Types, tmp_path: Path
) -> None:
    case = CASES[name]
    path = case.write(tmp_path / "a.gguf", case.model(), kind)
    model = getattr(transformers, case.class_name).from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32
    )
    theirs = _reference(model.eval(), case)
    assert (_ours(path, case) - theirs).abs().max() < 1e-4


LOAD = """
import sys
import trifold

for path in sys.argv[1:]:
    trifold.load(path)
    assert "torch._dynamo" not in sys.modules, path
"""


@pytest.mark.slow
def test_loading_does_not_import_the_compiler_of_pytorch(tmp_path: Path) -> None:
    """It takes two seconds and 60 MB."""
    files = [case.write(tmp_path / f"{name}.gguf", case.model()) for name, case in CASES.items()]
    subprocess.run([sys.executable, "-c", LOAD, *map(str, files)], check=True)
