"""Random models of realistic size in the formats of the toolkits, created once in the peers'
environment.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from setting import GPT2, MARIAN


def prepare(folder: Path) -> Path:
    """`gpt2` and `marian` as Hugging Face folders, and each for CTranslate2 in fp32 and int8."""
    if (folder / "done").is_file():
        return folder
    from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    for name, model in (
        ("gpt2", GPT2LMHeadModel(GPT2Config(**GPT2))),
        ("marian", MarianMTModel(MarianConfig(**MARIAN))),
    ):
        model.generation_config.num_beams = 1
        model.generation_config.max_length = None
        model.save_pretrained(folder / name)
        for precision in ("float32", "int8"):
            for_ctranslate2(model, name, folder / f"{name}-ctranslate2-{precision}", precision)
    (folder / "done").write_text("", encoding="utf-8")
    return folder


def for_ctranslate2(model: torch.nn.Module, name: str, out: Path, precision: str) -> None:
    """Convert with CTranslate2's loaders; random models have no tokenizer, so the vocabulary is t0,
    t1, …
    """
    from ctranslate2.converters import transformers as converters

    loader = {"gpt2": converters.GPT2Loader, "marian": converters.MarianMTLoader}[name]()
    vocabulary = [f"t{i}" for i in range(model.config.vocab_size)]
    if name == "marian":
        vocabulary[-1] = "<pad>"
    end = vocabulary[model.config.eos_token_id]
    tokenizer = SimpleNamespace(
        get_vocab=lambda: {token: i for i, token in enumerate(vocabulary)},
        **{"bos_token": end, "eos_token": end, "unk_token": vocabulary[1]},
    )
    spec = loader(model, tokenizer)
    spec.validate()
    spec.optimize(quantization=None if precision == "float32" else precision)
    out.mkdir(exist_ok=True)
    spec.save(str(out))


def weights_file(folder: Path) -> Path:
    """The checkpoint whose loading is measured: GPT-2 in fp32, 498 MB."""
    return folder / "gpt2" / "model.safetensors"
