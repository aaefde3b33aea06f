"""Compiled decoding steps generate the same tokens as the plain ones."""

from __future__ import annotations

import pytest
import torch

from trifold.fast import decoding_step as step
from trifold.generate import GenerationConfig, Hypothesis, generate_tokens
from trifold.nn import Inputs, ModelConfig, Transformer

pytest.importorskip("numba", reason="the compiled loops need numba: pip install 'trifold[fast]'")

SIZES = {"vocab_size": 41, "max_positions": 60, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 48}
SHAPES: dict[str, dict[str, object]] = {
    "decoder": {"shape": "decoder", "positions": "rotary", "norm_placement": "pre"},
    "encoder-decoder": {},
}
SEARCHES: dict[str, dict[str, object]] = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "groups of beams": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "drawn": {"do_sample": True, "seed": 3, "num_return_sequences": 2},
    "looked up": {"prompt_lookup_num_tokens": 3},
    "sliding": {"cache": "sliding", "num_beams": 2},
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_steps_generate_the_same(shape: str, search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = Transformer(ModelConfig.parse(SIZES | SHAPES[shape])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    tokens = torch.randint(3, 41, (2, 7))
    attend = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    config = GenerationConfig.parse(SEARCHES[search] | {"max_new_tokens": 14})
    taken: list[bool] = []
    run = step.CompiledDecoder.run
    monkeypatch.setattr(
        step.CompiledDecoder, "run", lambda self, *given: taken.append(True) or run(self, *given)
    )

    def written(least: int) -> list[list[Hypothesis]]:
        monkeypatch.setattr(step, "MIN_WEIGHTS", least)
        return generate_tokens(model, Inputs(tokens, attend), config)

    ordinary = written(10**12)
    assert not taken
    compiled = written(0)
    assert taken
    for ours, theirs in zip(compiled, ordinary, strict=True):
        assert [output.tokens for output in ours] == [output.tokens for output in theirs]
        assert [output.score for output in ours] == pytest.approx([o.score for o in theirs], abs=1e-4)
