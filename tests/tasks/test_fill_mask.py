"""Masks are filled as the reference's pipeline fills them."""

from __future__ import annotations

import pytest
from tests.tasks.references import FAMILIES, TEXTS, both, close

from trifold.errors import DataError

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_reference(family, tmp_path):
    pair = both(tmp_path, family, "ForMaskedLM")
    theirs = pair.pipeline("fill-mask", top_k=7)
    mask = pair.tokenizer.mask_token
    texts = [
        *(f"{text} {mask}, fox" for text in TEXTS),
        f"{mask} {TEXTS[0]}",
        f"{TEXTS[0]} {mask}",
        f"fox{mask}.",
    ]
    for mine, expected in zip(pair.ours.fill_mask(texts, top_k=7), theirs(texts), strict=True):
        assert len(mine) == 1
        assert [one.token for one in mine[0]] == [one["token"] for one in expected]
        assert [one.text for one in mine[0]] == [one["token_str"] for one in expected]
        assert [one.sequence for one in mine[0]] == [one["sequence"] for one in expected]
        assert all(close(a.score, b["score"]) for a, b in zip(mine[0], expected, strict=True))


def test_several_masks_are_filled_each_by_itself(tmp_path):
    pair = both(tmp_path, "bert", "ForMaskedLM")
    text = "the [MASK] brown [MASK]"
    expected = pair.pipeline("fill-mask", top_k=3)(text)
    mine = pair.ours.fill_mask(text, top_k=3)
    assert [[one.token for one in mask] for mask in mine] == [
        [one["token"] for one in mask] for mask in expected
    ]
    for mask in mine:
        for one in mask:
            assert one.sequence.count("[MASK]") == 1 + (one.text == "[MASK]")
            assert "[CLS]" not in one.sequence or one.text == "[CLS]"


def test_a_mask_that_is_cut_away_is_an_error(tmp_path):
    ours = both(tmp_path, "bert", "ForMaskedLM").ours
    with pytest.raises(DataError, match="or what was cut away held it"):
        ours.fill_mask("fox " * 90 + "[MASK]", on_overflow="truncate")
