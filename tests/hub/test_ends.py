"""End tokens: one, several, or none, in every file that may contain them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trifold
from trifold.errors import CheckpointError, UsageError
from trifold.hub import load_model, save_model
from trifold.nn import Transformer

Make = Callable[..., Transformer]

GPT2: dict[str, Any] = {
    "shape": "decoder",
    "positions": "learned",
    "norm_placement": "pre",
    "scale_embeddings": False,
    "attention_bias": True,
    "activation": "gelu-tanh",
}
PROMPTS = torch.tensor([[3, 4, 5], [9, 8, 7], [20, 21, 22]])


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def generate(folder: Path, **options: Any) -> list[list[int]]:
    return trifold.load(folder).generate_tokens(PROMPTS, max_new_tokens=8, **options)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_generation_stops_at_each_of_several_ends(file: str, make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path, make_model(**GPT2, eos_id=31))  # an id beyond the vocabulary: nothing ends
    free = generate(tmp_path)
    assert [len(row) for row in free] == [8, 8, 8]
    ends = sorted({free[0][2], free[1][4]})
    if file == "config.json":  # the layout of before 2023
        (tmp_path / "generation_config.json").unlink()
    edit(tmp_path / file, eos_token_id=ends)
    expected = [row[: next((n for n, token in enumerate(row) if token in ends), 8)] for row in free]
    assert expected != free
    assert generate(tmp_path) == expected
    assert generate(tmp_path, num_beams=1, do_sample=False) == expected
    trifold.load(tmp_path).save(tmp_path / "again")
    assert (
        json.loads((tmp_path / "again" / "generation_config.json").read_text("utf-8"))["eos_token_id"] == ends
    )
    assert generate(tmp_path / "again") == expected


@pytest.mark.parametrize("family", ["marian", "bart", "t5"])
def test_encoder_decoders_may_have_several_ends(family: str, make_model: Make, tmp_path: Path) -> None:
    parts: dict[str, dict[str, Any]] = {
        "marian": {},
        "bart": {"positions": "learned", "position_offset": 2, "embedding_norm": True, "attention_bias": True}
        | {"max_positions": 46},
        "t5": {"positions": "relative", "scale_embeddings": False, "norm": "rms", "norm_placement": "pre"}
        | {"feed_forward_bias": False, "attention_scale": 1.0, "norm_epsilon": 1e-6, "dropout": 0.0},
    }  # fmt: skip
    model = make_model(**parts[family])
    save_model(tmp_path, model)
    config = tmp_path / "config.json"
    assert json.loads(config.read_text(encoding="utf-8"))["model_type"] == family
    edit(config, eos_token_id=[2, 5])
    edit(tmp_path / "generation_config.json", eos_token_id=[2, 5])
    back, generation = load_model(tmp_path)
    assert back.config == model.config and back.config.eos_id == 2
    assert generation["eos_token_id"] == [2, 5]
    edit(config, eos_token_id=[])
    with pytest.raises(CheckpointError, match=r"config\.json: eos_token_id: "):
        load_model(tmp_path)


def test_a_missing_end_is_written_as_null(make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path, make_model(**GPT2, eos_id=31))
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / name).read_text(encoding="utf-8"))["eos_token_id"] is None
    model, generation = load_model(tmp_path)
    assert model.config.eos_id == 31 and "eos_token_id" not in generation
    for options in ({}, {"num_beams": 3}, {"min_new_tokens": 5}, {"num_beams": 3, "min_new_tokens": 8}):
        assert all(len(row) == 8 for row in generate(tmp_path, **options))


@pytest.mark.parametrize("beams", [1, 3])
def test_without_an_end_forbidden_tokens_do_not_end_a_text(
    beams: int, make_model: Make, tmp_path: Path
) -> None:
    """No token repeats, so few remain in the end; the length is reached nevertheless."""
    save_model(tmp_path, make_model(**GPT2, eos_id=31))
    pipe, length = trifold.load(tmp_path), 20
    for size in (1, 2):
        ways = {
            "num_beams": beams,
            "no_repeat_ngram_size": size,
            "min_new_tokens": 3,
            "max_new_tokens": length,
        }
        for prompt, row in zip(PROMPTS.tolist(), pipe.generate_tokens(PROMPTS, **ways), strict=True):
            sequence = prompt + row
            grams = [tuple(sequence[n : n + size]) for n in range(len(sequence) - size + 1)]
            assert len(row) == length
            assert len(set(grams)) == len(grams)
    with pytest.raises(UsageError, match="no_repeat_ngram_size forbid every token"):
        pipe.generate_tokens(PROMPTS, num_beams=beams, no_repeat_ngram_size=1, max_new_tokens=31)


@pytest.mark.parametrize(
    "key", ["eos_token_id", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"]
)
def test_tokens_outside_the_vocabulary(key: str, make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path, make_model())
    value: object = [[4], [31, 2]] if key == "bad_words_ids" else 31
    edit(tmp_path / "generation_config.json", **{key: value})
    with pytest.raises(
        CheckpointError, match=rf"generation_config\.json: {key}: 31 is not a token of a vocabulary of 31"
    ):
        load_model(tmp_path)
