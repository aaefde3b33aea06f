"""Tags equal those of the pipeline of transformers, for every way of merging."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from tests.predict.references import FAMILIES, TEXTS, both, close
from tests.text import folders

from trifold.errors import UsageError
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline, load
from trifold.text import read_tokenizer

pytestmark = pytest.mark.filterwarnings("default")

NAMES = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "plain"]))


def balanced(pair):
    """Equality, for a model whose most probable class varies."""
    with torch.no_grad():
        said = [pair.theirs(**pair.tokenizer(text, return_tensors="pt")).logits[0] for text in TEXTS]
        pair.theirs.classifier.bias -= torch.cat(said).mean(0)
    pair.theirs.save_pretrained(pair.folder)
    return pair._replace(ours=load(pair.folder))


@pytest.mark.parametrize("family", FAMILIES)
def test_results_equal_those_of_transformers(family, tmp_path):
    pair = balanced(both(tmp_path, family, "ForTokenClassification", id2label=NAMES))
    theirs = pair.pipeline("token-classification")
    said = set()
    for merge, ignore in product(["none", "simple", "first", "average", "max"], [("O",), ()]):
        found = pair.ours.tag(TEXTS, merge=merge, ignore=ignore)
        expected = theirs(TEXTS, aggregation_strategy=merge, ignore_labels=list(ignore))
        for text, mine, one in zip(TEXTS, found, expected, strict=True):
            same(mine, one, "entity" if merge == "none" else "entity_group")
            assert all(tag.text == text[tag.start : tag.end] for tag in mine)
            said |= {tag.label for tag in mine}
    assert len(said) > 3, "a model that says one thing proves nothing"


def same(mine, theirs, key):
    assert [one.label for one in mine] == [one[key] for one in theirs]
    assert [(one.start, one.end) for one in mine] == [(one["start"], one["end"]) for one in theirs]
    assert all(close(a.score, b["score"]) for a, b in zip(mine, theirs, strict=True))


def test_ignore_removes_labels(tmp_path):
    ours = both(tmp_path, "bert", "ForTokenClassification", id2label=NAMES).ours
    every = ours.tag(TEXTS[0], merge="none", ignore=())
    assert len(every) == len(ours.tokenizer.encode([TEXTS[0]])[0])
    left = ours.tag(TEXTS[0], merge="none", ignore=("O", "B-PER"))
    assert left == [one for one in every if one.label not in ("O", "B-PER")]


def test_a_tokenizer_without_offsets_is_an_error(tmp_path):
    tokenizer = read_tokenizer(folders.bertweet(tmp_path))
    config = ModelConfig(
        shape="encoder", vocab_size=tokenizer.vocab_size, d_model=16, n_heads=2, n_layers=1, d_ff=16, heads=("token",)
    )  # fmt: skip
    with pytest.raises(UsageError, match="positions of tokens, which tags require"):
        Pipeline(Transformer(config), tokenizer).tag("a")
