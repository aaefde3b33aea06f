"""XLNet against the reference: every head, padding on either side, both streams, a folder of 2019, its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.parity import check, randomised
from tests.text.folders import OLD
from torch import Tensor

import trifold
from trifold.errors import CheckpointError
from trifold.hub import load_model, read_config
from trifold.nn import Inputs

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]

SMALL = {"vocab_size": 61, "d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 48}
PAD = 5
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "any order": ("XLNetLMHeadModel", {}),
    "clamped distances, relu": (
        "XLNetLMHeadModel",
        {"clamp_len": 3, "ff_activation": "relu", "layer_norm_eps": 1e-5, "n_head": 2},
    ),
    "a head's own table": (
        "XLNetLMHeadModel",
        {"tie_word_embeddings": False, "mem_len": 7, "same_length": True},
    ),
    "bare": ("XLNetModel", {"ff_activation": "silu", "dropout": 0.3}),
    "sequence": ("XLNetForSequenceClassification", {"num_labels": 5, "summary_last_dropout": 0.4}),
    "sequence, first, relu": (
        "XLNetForSequenceClassification",
        {"num_labels": 3, "summary_type": "first", "summary_activation": "relu"},
    ),
    "sequence, no layer before": (
        "XLNetForSequenceClassification",
        {"num_labels": 3, "summary_use_proj": False, "summary_activation": ""},
    ),
    "token": ("XLNetForTokenClassification", {"num_labels": 3}),
    "span": ("XLNetForQuestionAnsweringSimple", {"n_layer": 2}),
}


def tiny(name: str, **options: Any) -> Any:
    """Its matrices have an axis of four heads, for which `randomised` takes them to be those of few labels."""
    model = randomised(getattr(transformers, name)(transformers.XLNetConfig(**SMALL | options)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 3:
                parameter.mul_(0.4)
    return model


def texts(left: bool, seed: int = 3) -> Tensor:
    """Three rows of 9, 5 and 7 tokens, padded on one side."""
    tokens = torch.randint(6, 61, (3, 9), generator=torch.Generator().manual_seed(seed))
    lengths, columns = torch.tensor([9, 5, 7])[:, None], torch.arange(9)
    return tokens.where(columns >= 9 - lengths if left else columns < lengths, PAD)


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    left = (
        options.get("summary_type") != "first"
    )  # where the reference looks at the first column, padded or not
    ours = check(tiny(name, **options), tokens=texts(left), token_type_ids=torch.randint(0, 3, (3, 9)))
    assert ours.family == "xlnet"


@pytest.mark.parametrize("segments", [False, True])
def test_padding_may_stand_behind_and_segments_may_be_left_out(segments: bool) -> None:
    more = {"token_type_ids": torch.randint(0, 2, (3, 9))} if segments else {}
    check(tiny("XLNetLMHeadModel"), tokens=texts(left=False), **more)


# --- both streams --------------------------------------------------------------------------------------

RANKS = torch.tensor([[0, 2, 0, 3, 0, 1, 0, 0, 4], [0, 0, 0, 0, 3, 1, 0, 2, 0], [0, 0, 1, 0, 0, 0, 2, 3, 0]])


@pytest.mark.parametrize("left", [True, False])
@torch.no_grad()
def test_questions_in_any_order_are_answered_as_the_reference_answers(left: bool, tmp_path: Path) -> None:
    """Its perm_mask says for whom a token is hidden, its target_mapping which tokens are asked for."""
    theirs = tiny("XLNetLMHeadModel")
    theirs.save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path)
    tokens, segments = texts(left), torch.randint(0, 2, (3, 9))
    real = tokens != PAD
    order = RANKS * real
    asked = order.argsort(dim=1, descending=True)[:, :3]
    later = order[:, None, :] >= order[:, :, None]
    hidden = torch.where(order[:, :, None] == 0, order[:, None, :] > 0, later)
    expected = theirs(
        tokens,
        attention_mask=real.long(),
        token_type_ids=segments,
        perm_mask=hidden.float(),
        target_mapping=torch.nn.functional.one_hot(asked, 9).float(),
    ).logits
    assert ours.lm_head is not None
    inputs = Inputs(tokens, real, segments=segments, order=order)
    mine = ours.lm_head(ours.query_stream(inputs, asked))
    answered = order.gather(1, asked) > 0
    assert answered.sum() >= 6 and expected[answered].std() > 1
    torch.testing.assert_close(mine[answered], expected[answered], rtol=0, atol=1e-4)


@torch.no_grad()
def test_the_stream_of_contents_is_the_references_too(tmp_path: Path) -> None:
    theirs = tiny("XLNetModel")
    theirs.save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path)
    tokens = texts(left=False)[:1]
    order = torch.tensor([[3, 1, 9, 2, 7, 4, 8, 6, 5]])
    hidden = (order[:, None, :] > order[:, :, None]).float()
    expected = theirs(tokens, perm_mask=hidden).last_hidden_state
    torch.testing.assert_close(ours(Inputs(tokens, order=order)), expected, rtol=0, atol=1e-4)


# --- folders -------------------------------------------------------------------------------------------

PUBLISHED = {
    **SMALL,
    "architectures": ["XLNetLMHeadModel"],
    "attn_type": "bi",
    "bi_data": False,
    "bos_token_id": 1,
    "clamp_len": -1,
    "d_head": 8,
    "dropout": 0.1,
    "end_n_top": 5,
    "eos_token_id": 2,
    "ff_activation": "gelu",
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "mem_len": None,
    "model_type": "xlnet",
    "pad_token_id": 5,
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


def test_a_folder_of_2019_with_its_tied_copy(tmp_path: Path) -> None:
    model = tiny("XLNetLMHeadModel")
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_loss.weight"] = tensors["transformer.word_embedding.weight"].clone()
    save_file(tensors, path)
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED), encoding="utf-8")
    ours, _ = load_model(tmp_path)
    tokens = texts(left=False)[:1]
    with torch.no_grad():
        mine = ours.head_outputs(Inputs(tokens))["lm"]
        torch.testing.assert_close(mine, model(tokens).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attn_type", "uni", "attn_type: .*got 'uni'"),
        ("bi_data", True, "bi_data"),
        ("untie_r", False, "untie_r"),
        ("d_head", 4, "d_head: 4 is not d_model 32 / n_head 4"),
        ("summary_type", "mean", "summary_type"),
        ("summary_use_proj", False, "a layer and its activation go together"),
        ("summary_activation", None, "a layer and its activation go together"),
        ("architectures", ["XLNetForQuestionAnswering"], "XLNetForQuestionAnswering"),
    ],
)
def test_what_is_not_supported_is_refused(key: str, value: object, message: str, tmp_path: Path) -> None:
    said = PUBLISHED | {"architectures": ["XLNetForSequenceClassification"], key: value}
    (tmp_path / "config.json").write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        read_config(tmp_path)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a tokenizer, and the reference's."""
    pytest.importorskip("sentencepiece")
    folder = OLD["xlnet"](tmp_path_factory.mktemp("xlnet"))
    return folder, transformers.AutoTokenizer.from_pretrained(folder)


def filled(folder: Path, tokenizer: Any, name: str, **options: Any) -> Any:
    model = tiny(name, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **options)
    model.save_pretrained(folder)
    return model


def test_a_text_is_classified_by_its_last_token_wherever_padding_stands(spoken: tuple[Path, Any]) -> None:
    folder, tokenizer = spoken
    theirs = filled(folder, tokenizer, "XLNetForSequenceClassification", num_labels=4)
    said = ["the quick brown fox", "fox", "don't we've hello world playing"]
    inputs = tokenizer(said, padding=True, return_tensors="pt")
    assert inputs["input_ids"][1, 0] == tokenizer.pad_token_id  # on the left
    with torch.no_grad():
        expected = theirs(**inputs).logits.softmax(-1)
    for scores, found in zip(expected, trifold.load(folder).classify(said, top_k=None), strict=True):
        mine = {one.label: one.score for one in found}
        assert mine == pytest.approx({f"LABEL_{n}": float(p) for n, p in enumerate(scores)}, rel=1e-4)


def test_a_mask_is_filled_by_the_stream_that_asks(spoken: tuple[Path, Any]) -> None:
    folder, tokenizer = spoken
    theirs = filled(folder, tokenizer, "XLNetLMHeadModel")
    texts = ["the <mask> brown fox", "<mask> hello <mask>"]
    for text, found in zip(texts, trifold.load(folder).fill_mask(texts, top_k=3), strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        masks = inputs["input_ids"][0] == tokenizer.mask_token_id
        hidden = masks.float().expand(1, len(masks), -1)
        asked = torch.nn.functional.one_hot(masks.nonzero()[:, 0], len(masks))[None].float()
        with torch.no_grad():
            logits = theirs(inputs["input_ids"], perm_mask=hidden, target_mapping=asked).logits[0]
        best = logits.softmax(-1).topk(3)
        assert [[one.token for one in mask] for mask in found] == best.indices.tolist()
        scores = [one.score for mask in found for one in mask]
        assert scores == pytest.approx(best.values.flatten().tolist(), rel=1e-4)
