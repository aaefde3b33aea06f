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
from trifold.predict.tag import Tag, _merge_spans
from trifold.text import read_tokenizer

pytestmark = pytest.mark.filterwarnings("default")

NAMES = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "plain"]))


def balanced(pair):
    """The same models with a bias that makes the most probable class vary."""
    with torch.no_grad():
        logits = [
            pair.theirs(**pair.tokenizer(text, return_tensors="pt")).logits[0] for text in TEXTS
        ]
        pair.theirs.classifier.bias -= torch.cat(logits).mean(0)
    pair.theirs.save_pretrained(pair.folder)
    return pair._replace(ours=load(pair.folder))


@pytest.mark.quick_cases(1)
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


def test_words_have_the_class_of_their_first_token(tmp_path):
    ours = both(tmp_path, "bert", "ForTokenClassification", id2label=NAMES).ours
    text = "U.S. towns"  # U . S . are words to this tokenizer
    tokens, words = (ours.tag(text, merge=merge, ignore=()) for merge in ("none", "words"))
    first = next(token for token in tokens if token.start == 5)
    kinds = [token.label.removeprefix("B-").removeprefix("I-") for token in (tokens[0], first)]
    found = [tag.label for tag in words]
    assert found == kinds if len(found) == 2 else [*found, *found] == kinds
    assert words[0].start == 0 and words[-1].end == len(text)
    assert len(tokens) > 3


def test_tags_of_the_scheme_bioes_are_merged():
    tags = ["S-A", "S-A", "B-A", "E-A", "E-A", "I-B", "O"]
    spans = _merge_spans([Tag(tag, 1.0, "x", n, n + 1) for n, tag in enumerate(tags)], "abcdefg")
    assert [(span.label, span.text) for span in spans] == [
        ("A", "a"), ("A", "b"), ("A", "cd"), ("A", "e"), ("B", "f"), ("O", "g"),
    ]  # fmt: skip


@pytest.mark.parametrize("letters", ["LU", "EW"])
def test_spans_of_bilou_are_those_of_bioes(letters):
    tags = "S-A B-A I-A E-A B-B E-B S-B O".split()
    table = str.maketrans("ES", letters)
    renamed = [tag[0].translate(table) + tag[1:] for tag in tags]
    spans, others = (
        _merge_spans([Tag(tag, 1.0, "x", n, n + 1) for n, tag in enumerate(each)], "abcdefgh")
        for each in (tags, renamed)
    )
    assert spans == others
    assert [(span.label, span.text) for span in spans] == [
        ("A", "a"), ("A", "bcd"), ("B", "ef"), ("B", "g"), ("O", "h"),
    ]  # fmt: skip


def test_a_hyphen_in_a_class_is_no_prefix():
    spans = _merge_spans(
        [Tag(tag, 1.0, "x", n, n + 1) for n, tag in enumerate(["art-other", "-LRB-"])], "ab"
    )
    assert [span.label for span in spans] == ["art-other", "-LRB-"]


def test_a_tokenizer_without_offsets_is_an_error(tmp_path):
    tokenizer = read_tokenizer(folders.bertweet(tmp_path))
    config = ModelConfig(
        shape="encoder", vocab_size=tokenizer.vocab_size, d_model=16, n_heads=2, n_layers=1, d_ff=16, heads=("token",)
    )  # fmt: skip
    with pytest.raises(UsageError, match="positions of tokens, which tags require"):
        Pipeline(Transformer(config), tokenizer).tag("a")
