"""The workloads, equal for all toolkits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """Rows of random tokens, each continued by `new` tokens with greedy or beam search."""

    model: str  # folder under the bench's cache
    rows: int
    width: int  # tokens of a prompt or a source
    new: int
    beams: int = 1


WORKS = {
    "greedy-1": Work("gpt2", rows=1, width=32, new=64),
    "greedy-8": Work("gpt2", rows=8, width=32, new=64),
    "beam-5": Work("marian", rows=32, width=16, new=20, beams=5),
}

# GPT-2 as published: 124.4 million parameters.
GPT2 = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
MARIAN = {
    **{"vocab_size": 8000, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6},
    **{"encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048},
    **{"encoder_attention_heads": 8, "decoder_attention_heads": 8, "max_position_embeddings": 512},
    **{
        "pad_token_id": 7999,
        "eos_token_id": 0,
        "decoder_start_token_id": 7999,
        "forced_eos_token_id": None,
    },
}


def prompts(work: Work) -> list[list[int]]:
    """Rows of ids without special tokens; a source ends with the end token."""
    import random

    draw = random.Random(20170612)
    vocabulary = {"gpt2": 50_000, "marian": 7_000}[work.model]
    rows = [[draw.randrange(100, vocabulary) for _ in range(work.width)] for _ in range(work.rows)]
    return [[*row[:-1], MARIAN["eos_token_id"]] for row in rows] if work.model == "marian" else rows
