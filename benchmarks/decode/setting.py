"""Models, weights and works of the benchmark of decoding, equal for both toolkits."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple


class Work(NamedTuple):
    """Rows of a prompt of random tokens, each continued by `new` tokens, greedily."""

    rows: int
    prompt: int
    new: int


WORKS = {
    "decode-1": Work(rows=1, prompt=32, new=48),
    "decode-8": Work(rows=8, prompt=32, new=24),
    "prompt-512": Work(rows=1, prompt=512, new=1),
    "first-token": Work(rows=1, prompt=32, new=1),
}
WEIGHTS = ("bf16", "q8_0", "q4_0")
_LLAMA = {"vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}
# Random models, as Hugging Face's config.json. SmolLM2 is the published file.
MODELS: dict[str, dict[str, Any] | None] = {
    "smollm2": None,
    "gpt2": {
        **{"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024},
        **{"n_embd": 768, "n_layer": 12, "n_head": 12},
    },
    "1b": {
        **{"model_type": "llama", **_LLAMA, "tie_word_embeddings": True},
        **{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
        **{"num_attention_heads": 32, "num_key_value_heads": 8},
    },
}
SMALLEST_VOCABULARY = 49152


def prompts(work: Work) -> list[list[int]]:
    """Rows of ids without special tokens."""
    draw = random.Random(20170612)
    return [
        [draw.randrange(100, SMALLEST_VOCABULARY) for _ in range(work.prompt)]
        for _ in range(work.rows)
    ]


def line(name: str, work: str, seconds: float, **more: object) -> str:
    """A result: the seconds of the fastest call."""
    return json.dumps({"name": name, "work": work, "seconds": seconds, **more})


def gguf_file(folder: Path, model: str, weights: str) -> Path:
    """Where the weights of a model are."""
    return folder / f"{model}-{weights}.gguf"
