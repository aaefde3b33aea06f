"""Token by token what the reference library's Marian gives, on tiny random weights."""

from __future__ import annotations

import itertools

import pytest
import torch

from trifold.generate import GenerationConfig, generate_tokens
from trifold.nn import Memory, ModelConfig

transformers = pytest.importorskip("transformers")

VOCABULARY, PAD, END = 23, 22, 0
ROWS = [[5, 6, 7, 8, END], [9, END], [4, 4, 4, END], [16, 3, 11, 12, 13, 14, END]]
LIMIT = 12


@pytest.fixture(scope="module")
def marian():
    torch.manual_seed(3)
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, init_std=0.9,
        pad_token_id=PAD, eos_token_id=END, bos_token_id=None, decoder_start_token_id=PAD, forced_eos_token_id=None,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    model.generation_config.forced_eos_token_id = None
    return model


class Borrowed:
    """The reference model behind our protocol, without a cache."""

    def __init__(self, marian, tape):
        self.marian, self.new_cache = marian, tape
        self.config = ModelConfig(
            vocab_size=VOCABULARY, d_model=16, n_heads=4, n_layers=2, max_positions=64,
            pad_id=PAD, eos_id=END, decoder_start_id=PAD,
        )  # fmt: skip

    def encode(self, inputs):
        attend = torch.ones_like(inputs.tokens, dtype=torch.bool) if inputs.attend is None else inputs.attend
        seen = self.marian.model.encoder(input_ids=inputs.tokens, attention_mask=attend.long())
        return Memory(seen.last_hidden_state, attend)

    def decode(self, inputs, memory=None, cache=None):
        tokens = cache.append(inputs).tokens
        memory = memory.select(torch.arange(len(tokens)) // (len(tokens) // len(memory.hidden)))
        return self.marian.model.decoder(
            input_ids=tokens,
            encoder_hidden_states=memory.hidden,
            encoder_attention_mask=memory.attend.long(),
            use_cache=False,
        ).last_hidden_state[:, -inputs.tokens.shape[1] :]

    def lm_head(self, hidden):
        return self.marian.lm_head(hidden) + self.marian.final_logits_bias


def theirs_alike(way):
    """They forbid nothing by None, and look up only one row at a time, with the same tokens as without."""
    return {
        key: None if value == [] else value for key, value in way.items() if key != "prompt_lookup_num_tokens"
    }


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.7, "min_new_tokens": 4},
        {"num_beams": 4},
        {"num_beams": 4, "early_stopping": False},
        {"num_beams": 4, "early_stopping": "never", "length_penalty": 0.6},
        {"num_beams": 5, "early_stopping": False, "length_penalty": -0.5},
        {"num_beams": 3, "early_stopping": False, "length_penalty": 2.0, "num_return_sequences": 3},
        {"num_beams": 4, "no_repeat_ngram_size": 2, "min_new_tokens": 5, "num_return_sequences": 2},
        {"bad_words_ids": [[PAD], [5], [6, 7], [7, 6, 6]]},
        {"num_beams": 3, "bad_words_ids": [[PAD], [5], [6, 7], [16, 16]]},
        {"bad_words_ids": []},
        {"num_beams": 3, "bad_words_ids": []},
        {"eos_token_id": [END, 7, 11]},
        {"num_beams": 4, "eos_token_id": [END, 7, 11], "early_stopping": False, "num_return_sequences": 4},
        {"forced_bos_token_id": 9, "forced_eos_token_id": END, "min_new_tokens": 11},
        {"num_beams": 4, "forced_bos_token_id": 9, "forced_eos_token_id": END, "num_return_sequences": 4},
        {"max_length": 8, "min_length": 5, "num_beams": 2},
        {"prompt_lookup_num_tokens": 3},
    ],
    ids=lambda way: ",".join(f"{key}={value}" for key, value in way.items()) or "greedy",
)
@pytest.mark.parametrize("sums", [False, True], ids=["", "renormalised"])
def test_searches_agree(kit, marian, way, sums):
    longest = {} if "max_length" in way else {"max_new_tokens": LIMIT}
    config = GenerationConfig(**{"early_stopping": True} | longest | way, renormalize_logits=sums)
    inputs = kit.batch(ROWS)
    inputs.tokens = inputs.tokens.masked_fill(~inputs.attend, PAD)
    ours = generate_tokens(Borrowed(marian, kit.Tape), inputs, config)
    theirs = marian.generate(
        input_ids=inputs.tokens, attention_mask=inputs.attend.long(), do_sample=False,
        renormalize_logits=sums, return_dict_in_generate=True, output_scores=True,
        **{"early_stopping": True, "bad_words_ids": [[PAD]], **longest, **theirs_alike(way)},
    )  # fmt: skip
    ends = config.eos_token_id or [END]
    each = config.num_return_sequences
    for place, row in enumerate(theirs.sequences[:, 1:].tolist()):
        expected = list(itertools.takewhile(lambda token: token not in ends, row))
        output = ours[place // each][place % each]
        assert output.tokens == expected
        if config.num_beams > 1:
            assert output.score == pytest.approx(theirs.sequences_scores[place].item(), abs=1e-4)
