"""The two streams of XLNet, its old files, and its predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.checkpoints import read, write
from tests.hub.parity import check, make
from tests.hub.tiny import TINY
from tests.text.folders import OLD
from torch import Tensor
from torch.nn import functional as F

import trifold
from trifold.errors import CheckpointError
from trifold.hub import load_model, read_config
from trifold.nn import Inputs, Transformer
from trifold.nn.variants.two_streams import query_states

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")


TOKENS = torch.arange(5, 20)[None]


@torch.no_grad()
def logits(model: Transformer, head: str = "lm") -> Tensor:
    return model.head_outputs(Inputs(TOKENS))[head]


PAD = 5
ORDER = torch.tensor(
    [[0, 2, 0, 3, 0, 1, 0, 0, 4], [0, 0, 0, 0, 3, 1, 0, 2, 0], [0, 0, 1, 0, 0, 0, 2, 3, 0]]
)


def padded_tokens(left: bool) -> Tensor:
    """Three rows of 9, 5 and 7 tokens, padded on one side."""
    tokens = torch.randint(6, 40, (3, 9), generator=torch.Generator().manual_seed(3))
    lengths, columns = torch.tensor([9, 5, 7])[:, None], torch.arange(9)
    return tokens.where(columns >= 9 - lengths if left else columns < lengths, PAD)


@pytest.mark.parametrize("segments", [False, True])
def test_right_padding_with_and_without_segments(segments: bool) -> None:
    more = {"token_type_ids": torch.randint(0, 2, (3, 9))} if segments else {}
    check(make("xlnet"), tokens=padded_tokens(left=False), **more)


@pytest.mark.parametrize("left", [True, False])
@torch.no_grad()
def test_the_query_stream_equals_the_reference_in_any_order(left: bool, tmp_path: Path) -> None:
    """perm_mask hides tokens from each other, target_mapping selects the predicted ones."""
    reference = make("xlnet")
    reference.save_pretrained(tmp_path)
    model, _ = load_model(tmp_path)
    tokens, segments = padded_tokens(left), torch.randint(0, 2, (3, 9))
    real = tokens != PAD
    order = ORDER * real
    predicted = order.argsort(dim=1, descending=True)[:, :3]
    later = order[:, None, :] >= order[:, :, None]
    hidden = torch.where(order[:, :, None] == 0, order[:, None, :] > 0, later)
    expected = reference(
        tokens,
        attention_mask=real.long(),
        token_type_ids=segments,
        perm_mask=hidden.float(),
        target_mapping=F.one_hot(predicted, 9).float(),
    ).logits
    assert model.lm_head is not None
    got = model.lm_head(
        query_states(model, Inputs(tokens, real, segments=segments, order=order), predicted)
    )
    is_predicted = order.gather(1, predicted) > 0
    assert is_predicted.sum() >= 6 and expected[is_predicted].std() > 1
    torch.testing.assert_close(got[is_predicted], expected[is_predicted], rtol=0, atol=1e-4)


@torch.no_grad()
def test_the_content_stream_equals_the_reference_in_any_order(tmp_path: Path) -> None:
    reference = make("xlnet", "Model")
    reference.save_pretrained(tmp_path)
    model, _ = load_model(tmp_path)
    tokens, order = padded_tokens(left=False)[:1], torch.tensor([[3, 1, 9, 2, 7, 4, 8, 6, 5]])
    hidden = (order[:, None, :] > order[:, :, None]).float()
    expected = reference(tokens, perm_mask=hidden).last_hidden_state
    torch.testing.assert_close(model(Inputs(tokens, order=order)), expected, rtol=0, atol=1e-4)


XLNET_2019 = {
    **TINY["xlnet"].sizes,
    "architectures": ["XLNetLMHeadModel"],
    "attn_type": "bi",
    "bi_data": False,
    "bos_token_id": 1,
    "clamp_len": -1,
    "d_head": 4,
    "dropout": 0.1,
    "end_n_top": 5,
    "eos_token_id": 2,
    "ff_activation": "gelu",
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "mem_len": None,
    "model_type": "xlnet",
    "reuse_len": None,
    "same_length": False,
    "start_n_top": 5,
    "summary_activation": "tanh",
    "summary_last_dropout": 0.1,
    "summary_type": "last",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 250}},
    "untie_r": True,
}


def test_an_xlnet_file_of_2019_has_a_tied_copy(tmp_path: Path) -> None:
    model = make("xlnet")
    model.save_pretrained(tmp_path)
    tensors = read(tmp_path)
    left = {
        "lm_loss.weight": tensors["transformer.word_embedding.weight"].clone(),
        "transformer.embeddings.position_ids": torch.arange(5),
    }
    write(tmp_path, tensors | left)
    (tmp_path / "config.json").write_text(json.dumps(XLNET_2019), encoding="utf-8")
    with torch.no_grad():
        expected = model(TOKENS).logits
    torch.testing.assert_close(logits(load_model(tmp_path)[0]), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("key", "value"), [("summary_use_proj", False), ("summary_activation", None)]
)
def test_a_summary_layer_and_its_activation_go_together(
    key: str, value: object, tmp_path: Path
) -> None:
    values = XLNET_2019 | {"architectures": ["XLNetForSequenceClassification"], key: value}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(CheckpointError, match="a layer and its activation go together"):
        read_config(tmp_path)


@pytest.fixture(scope="module")
def with_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a tokenizer, and the reference's tokenizer."""
    pytest.importorskip("sentencepiece")
    folder = OLD["xlnet"](tmp_path_factory.mktemp("xlnet"))
    return folder, transformers.AutoTokenizer.from_pretrained(folder)


def add_model(folder: Path, tokenizer: Any, ending: str, **options: Any) -> Any:
    model = make(
        "xlnet",
        ending,
        **options | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id},
    )
    model.save_pretrained(folder)
    return model


def test_classification_equals_the_reference(with_tokenizer: tuple[Path, Any]) -> None:
    folder, tokenizer = with_tokenizer
    reference = add_model(folder, tokenizer, "ForSequenceClassification", num_labels=4)
    lines = ["the quick brown fox", "fox", "don't we've hello world playing"]
    inputs = tokenizer(lines, padding=True, return_tensors="pt")
    assert inputs["input_ids"][1, 0] == tokenizer.pad_token_id  # on the left
    with torch.no_grad():
        expected = reference(**inputs).logits.softmax(-1)
    for scores, found in zip(
        expected, trifold.load(folder).classify(lines, top_k=None), strict=True
    ):
        got = {prediction.label: prediction.score for prediction in found}
        assert got == pytest.approx(
            {f"LABEL_{n}": float(p) for n, p in enumerate(scores)}, rel=1e-4
        )


def test_filled_masks_equal_the_query_stream_of_the_reference(
    with_tokenizer: tuple[Path, Any],
) -> None:
    folder, tokenizer = with_tokenizer
    reference = add_model(folder, tokenizer, "LMHeadModel")
    lines = ["the <mask> brown fox", "<mask> hello <mask>"]
    for text, found in zip(lines, trifold.load(folder).fill_mask(lines, top_k=3), strict=True):
        tokens = tokenizer(text, return_tensors="pt")["input_ids"]
        masks = tokens[0] == tokenizer.mask_token_id
        hidden = masks.float().expand(1, len(masks), -1)
        predicted = F.one_hot(masks.nonzero()[:, 0], len(masks))[None].float()
        with torch.no_grad():
            scores = reference(tokens, perm_mask=hidden, target_mapping=predicted).logits[0]
        best = scores.softmax(-1).topk(3)
        assert [
            [prediction.token for prediction in mask] for mask in found
        ] == best.indices.tolist()
        got = [prediction.score for mask in found for prediction in mask]
        assert got == pytest.approx(best.values.flatten().tolist(), rel=1e-4)
