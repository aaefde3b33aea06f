"""Parts of tiny recipes: models, tokenizers and texts for the objectives on raw text."""

from __future__ import annotations

import random
from typing import Any

from trifold.recipe import Recipe, included_recipes, load_recipe, missing_files

SIZES: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "d_ff": 32,
    "max_positions": 24,
    "dropout": 0.0,
}
GPT2 = SIZES | {"preset": "gpt2", "attention_dropout": 0.0}
BERT = SIZES | {
    "shape": "encoder", "positions": "learned", "scale_embeddings": False, "embedding_norm": True,
    "attention_bias": True, "n_token_types": 2, "activation": "gelu", "norm_epsilon": 1e-12,
    "heads": ["lm"], "lm_head_transform": "gelu", "lm_head_bias": True,
}  # fmt: skip
PRETRAINED_BERT = BERT | {"heads": ["lm", "pooler", "next-sentence"]}
ELECTRA = BERT | {
    "heads": ["replaced"], "lm_head_transform": None, "lm_head_bias": False, "d_embedding": 12,
}  # fmt: skip
XLNET = SIZES | {
    "shape": "encoder", "positions": "relative-sinusoidal", "query_stream": True, "segment_offsets": True,
    "scale_embeddings": False, "heads": ["lm"], "lm_head_bias": True,
}  # fmt: skip
WORDS: dict[str, Any] = {"kind": "word", "vocab_size": 60}
MASKS = WORDS | {"special": ["cls", "sep", "mask"]}
SENTINELS = WORDS | {"special": ["mask"], "sentinels": 8}
WEATHER = ["sun", "rain", "snow", "hail", "fog"]


INCLUDED = included_recipes()


def load_included(name: str) -> Recipe:
    """An included recipe, with a file as its data and a run as its teacher if it names none."""
    needs_data = missing_files(INCLUDED[name]) == ["data.train=FILE"]
    task = INCLUDED[name].get("task", {})
    needs_teacher = task.get("kind") == "distill" and "teacher" not in task
    given = ["data.train=a.csv"] * needs_data
    if needs_teacher:  # which also has the sizes and the shape
        given += ["task.teacher=runs/teacher", "model.shape=decoder"]
    return load_recipe(name, given)


def weather_text(rng: random.Random) -> str:
    """Sixty documents, each of a few sentences about one kind of weather."""

    def document() -> str:
        weather = rng.choice(WEATHER)
        lengths = [rng.randint(2, 6) for _ in range(rng.randint(2, 6))]
        return " ".join(" ".join(["Today", *[weather] * length]) + " ." for length in lengths)

    return "\n".join(document() for _ in range(60)) + "\n"
