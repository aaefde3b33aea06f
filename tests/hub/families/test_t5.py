"""Files of old releases of T5."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.hub.checkpoints import edit, equal, read, write
from tests.hub.parity import make

from trifold.errors import CheckpointError
from trifold.hub import load_model
from trifold.nn import Inputs

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")


def test_old_flan_files_have_fewer_keys(tmp_path: Path) -> None:
    """Before version 5 the reference wrote tie_word_embeddings unchanged, and neither scales nor
    activations.
    """
    make(
        "t5", feed_forward_proj="gated-gelu", tie_word_embeddings=False, own_head=True
    ).save_pretrained(tmp_path)
    new = load_model(tmp_path)[0].config
    edit(tmp_path, tie_word_embeddings=False, n_positions=512, initializer_factor=1.0)
    edit(
        tmp_path,
        **dict.fromkeys(("scale_decoder_outputs", "dense_act_fn", "is_gated_act"), "absent"),
    )
    old = load_model(tmp_path)[0].config
    assert old == new
    assert not old.tie_lm_head and old.logits_scale == 1.0 and old.activation == "gelu-tanh"
    edit(tmp_path, feed_forward_proj="gated-swiglu")
    with pytest.raises(CheckpointError, match="feed_forward_proj: 'swiglu' is not known"):
        load_model(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_scaling_that_is_null_means_none(tied: bool, tmp_path: Path) -> None:
    make("t5", tie_word_embeddings=tied, own_head=not tied).save_pretrained(tmp_path)
    edit(tmp_path, scale_decoder_outputs=None)
    model, tokens = load_model(tmp_path)[0], torch.tensor([[5, 6, 7]])
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path)
    assert theirs.config.scale_decoder_outputs is None and model.config.logits_scale == 1.0
    expected = theirs(input_ids=tokens, decoder_input_ids=tokens).logits
    found = model.head_outputs(Inputs(tokens), Inputs(tokens))["lm"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_old_t5_files_repeat_or_rename_the_embeddings(tmp_path: Path) -> None:
    make("t5").save_pretrained(tmp_path)
    ours, tensors = load_model(tmp_path)[0], read(tmp_path)
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = tensors["shared.weight"].clone()
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(
        8, 4
    )
    for _ in range(2):  # with the shared table, and without it
        write(tmp_path, tensors)
        again = load_model(tmp_path)[0]
        assert again.config.tie_lm_head and equal(again, ours)
        tensors.pop("shared.weight", None)
    write(tmp_path, {f".{name}": tensor for name, tensor in tensors.items()})
    with pytest.raises(CheckpointError, match="missing: shared"):
        load_model(tmp_path)
