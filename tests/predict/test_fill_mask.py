"""Fillings equal those of the pipeline of transformers."""

from __future__ import annotations

import pytest
import torch
from tests.hub.parity import randomised
from tests.predict.references import FAMILIES, TEXTS, assert_same, both
from tests.text import folders

import trifold
from trifold.errors import DataError

pytestmark = pytest.mark.filterwarnings("default")

STACK_SIZES = {"layers": 1, "attention_heads": 4, "ffn_dim": 48}


@pytest.mark.parametrize("family", FAMILIES)
def test_fillings_equal_those_of_transformers(family, tmp_path):
    pair = both(tmp_path, family, "ForMaskedLM")
    theirs = pair.pipeline("fill-mask", top_k=7)
    mask = pair.tokenizer.mask_token
    texts = [
        *(f"{text} {mask}, fox" for text in TEXTS),
        f"{mask} {TEXTS[0]}",
        f"{TEXTS[0]} {mask}",
        f"fox{mask}.",
    ]
    for got, expected in zip(pair.ours.fill_mask(texts, top_k=7), theirs(texts), strict=True):
        assert len(got) == 1
        assert_same(got[0], expected, token="token", text="token_str", sequence="sequence")


def test_several_masks_are_filled_independently(tmp_path):
    pair = both(tmp_path, "bert", "ForMaskedLM")
    text = "the [MASK] brown [MASK]"
    expected = pair.pipeline("fill-mask", top_k=3)(text)
    got = pair.ours.fill_mask(text, top_k=3)
    for mask, expected_mask in zip(got, expected, strict=True):
        assert_same(mask, expected_mask, token="token")
        for one in mask:
            assert one.sequence.count("[MASK]") == 1 + (one.text == "[MASK]")
            assert "[CLS]" not in one.sequence or one.text == "[CLS]"


def test_a_truncated_mask_is_an_error(tmp_path):
    ours = both(tmp_path, "bert", "ForMaskedLM").ours
    with pytest.raises(DataError, match="or the mask was truncated"):
        ours.fill_mask("fox " * 90 + "[MASK]", on_overflow="truncate")


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("the <mask> fox", None, r"'<mask>' is not the mask of this model; did you mean \[MASK\]\?"),
        ("the [mask] fox", "the quick fox", r"'\[mask\]' is not the mask of this model"),
        ("the ___ fox", None, r"'___' is not the mask"),
        ("the [MASK]. fox", "the quick quick fox fox", r"Put spaces between \[MASK\] and punctuation"),
        ("the [MASK] fox", "the quick quick fox", "a word of several tokens needs as many masks"),
        ("the fox", "the quick fox", "Without a masked text, leave the target out"),
    ],
)  # fmt: skip
def test_a_slip_at_a_mask_is_named(tmp_path, text, target, message):
    ours = both(tmp_path, "bert", "ForMaskedLM").ours
    with pytest.raises(DataError, match=message):
        ours.trace(text, target)
    if "[MASK]" not in text and "fox" not in text[:7]:
        with pytest.raises(DataError, match=f"text 1 of 1: {message}"):
            ours.fill_mask(text)


def test_an_encoder_decoder_fills_masks_too(tmp_path):
    transformers = pytest.importorskip("transformers")
    folders.OLD["bart"](tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    sides = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in STACK_SIZES.items()
    }
    ids = {
        f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")
    }
    torch.manual_seed(4)
    config = transformers.BartConfig(
        **sides, **ids, vocab_size=len(tokenizer), d_model=32, decoder_start_token_id=2
    )
    model = randomised(transformers.BartForConditionalGeneration(config)).eval()
    model.save_pretrained(tmp_path)
    theirs = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=3)
    texts = [f"{text} <mask> fox" for text in TEXTS]
    found = trifold.load(tmp_path).fill_mask(texts, top_k=3)
    for got, expected in zip(found, theirs(texts), strict=True):
        assert_same(got[0], expected, token="token")
