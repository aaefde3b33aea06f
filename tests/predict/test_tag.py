"""Tags equal those of the pipeline of transformers, for all merging strategies."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from tests.predict.references import FAMILIES, TEXTS, assert_same, both
from tests.text import folders

from trifold.errors import UsageError
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline, load
from trifold.text import read_tokenizer

pytestmark = pytest.mark.filterwarnings("default")

NAMES = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "plain"]))


def balanced(pair):
    """The same models with a bias that makes the most probable class vary."""
    with torch.no_grad():
        logits = [pair.theirs(**pair.tokenizer(text, return_tensors="pt")).logits[0] for text in TEXTS]
        pair.theirs.classifier.bias -= torch.cat(logits).mean(0)
    pair.theirs.save_pretrained(pair.folder)
    return pair._replace(ours=load(pair.folder))


@pytest.mark.parametrize("family", FAMILIES)
def test_tags_equal_those_of_transformers(family, tmp_path):
    pair = balanced(both(tmp_path, family, "ForTokenClassification", id2label=NAMES))
    theirs = pair.pipeline("token-classification")
    labels = set()
    for merge, ignore in product(["none", "simple", "first", "average", "max"], [("O",), ()]):
        found = pair.ours.tag(TEXTS, merge=merge, ignore=ignore)
        expected = theirs(TEXTS, aggregation_strategy=merge, ignore_labels=list(ignore))
        for text, got, one in zip(TEXTS, found, expected, strict=True):
            label = "entity" if merge == "none" else "entity_group"
            assert_same(got, one, label=label, start="start", end="end")
            assert all(tag.text == text[tag.start : tag.end] for tag in got)
            labels |= {tag.label for tag in got}
    assert len(labels) > 3, "equal labels would make the comparison trivial"


def test_ignore_removes_labels(tmp_path):
    ours = both(tmp_path, "bert", "ForTokenClassification", id2label=NAMES).ours
    tags = ours.tag(TEXTS[0], merge="none", ignore=())
    assert len(tags) == len(ours.tokenizer.encode([TEXTS[0]])[0])
    kept = ours.tag(TEXTS[0], merge="none", ignore=("O", "B-PER"))
    assert kept == [tag for tag in tags if tag.label not in ("O", "B-PER")]


def test_a_tokenizer_without_offsets_is_an_error(tmp_path):
    tokenizer = read_tokenizer(folders.bertweet(tmp_path))
    config = ModelConfig(
        shape="encoder", vocab_size=tokenizer.vocab_size, d_model=16, n_heads=2, n_layers=1, d_ff=16, heads=("token",)
    )  # fmt: skip
    with pytest.raises(UsageError, match="positions of tokens, which tags require"):
        Pipeline(Transformer(config), tokenizer).tag("a")
