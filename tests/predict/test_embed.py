"""Embeddings equal the pooled states of transformers."""

from __future__ import annotations

import json

import pytest
import torch
from tests.command_line import run_command
from tests.predict.references import FAMILIES, TEXTS, both

from trifold import load
from trifold.errors import DataError, UsageError
from trifold.predict import embed as module

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_equal_those_of_transformers(family, tmp_path):
    pair = both(tmp_path, family, "Model")
    theirs = pair.pipeline("feature-extraction")
    states = [torch.tensor(one[0]) for one in theirs(TEXTS)]
    expected = {
        "mean": [one.mean(0) for one in states],
        "cls": [one[0] for one in states],
        "last": [one[-1] for one in states],
    }
    for pooling, vectors in expected.items():
        plain = pair.ours.embed(TEXTS, pooling=pooling)
        normalized = pair.ours.embed(TEXTS, pooling=pooling, normalise=True)
        for got, unit, vector in zip(plain, normalized, vectors, strict=True):
            torch.testing.assert_close(got, vector, rtol=0, atol=1e-4)
            torch.testing.assert_close(unit, vector / vector.norm(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_special_tokens_in_a_text_are_those_of_transformers(family, tmp_path):
    pair = both(tmp_path, family, "Model")
    # Without padding, after which RoBERTa counts positions in its own way.
    tokens = {*pair.tokenizer.all_special_tokens} - {pair.tokenizer.pad_token}
    texts = [f"fox {token} hello" for token in sorted(tokens)]
    theirs = pair.pipeline("feature-extraction")
    for got, one in zip(pair.ours.embed(texts), theirs(texts), strict=True):
        torch.testing.assert_close(got, torch.tensor(one[0]).mean(0), rtol=0, atol=1e-4)
    plain = pair.ours.embed(texts[0], parse_special=False)
    assert not torch.allclose(plain, pair.ours.embed(texts[0]), atol=1e-3)


def test_the_pooler_equals_that_of_transformers(tmp_path):
    pair = both(tmp_path, "bert", "Model")
    for text, got in zip(TEXTS, pair.ours.embed(TEXTS, pooling="pooler"), strict=True):
        with torch.no_grad():
            expected = pair.theirs(**pair.tokenizer(text, return_tensors="pt")).pooler_output[0]
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_an_unknown_pooling_is_an_error(tmp_path):
    with pytest.raises(
        UsageError, match="pooling: 'sum' is not known; known: mean, cls, last, max, pooler"
    ):
        both(tmp_path, "bert", "Model").ours.embed("fox", pooling="sum")


CORPUS = [
    "the quick brown fox",
    "",
    "hello world",
    "12,5 % fox",
    "we've don't",
    "hello hello",
    " ",
    "naïve wolves",
]
QUERIES = ["brown fox", "hello", "wolves"]


@pytest.mark.parametrize("part", [2, 3, 2048])
@pytest.mark.parametrize("top_k", [1, 3, 20])
def test_a_search_finds_the_largest_cosines_in_any_parts(part, top_k, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PART", part)
    pipeline = both(tmp_path, "bert", "Model").ours
    numbers = [n for n, text in enumerate(CORPUS) if text.strip()]
    vectors = torch.stack(
        pipeline.embed([CORPUS[n] for n in numbers], normalise=True, pooling="max")
    )
    found = pipeline.search(QUERIES, iter(CORPUS), top_k=top_k, pooling="max")
    for query, lines in zip(QUERIES, found, strict=True):
        cosines = vectors @ pipeline.embed(query, normalise=True, pooling="max")
        order = [numbers[n] for n in cosines.argsort(descending=True)][:top_k]
        assert [(one.number, one.text) for one in lines] == [(n + 1, CORPUS[n]) for n in order]
        assert [one.score for one in lines] == pytest.approx(
            cosines.sort(descending=True)[0][:top_k].tolist(), abs=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "cosine", "dot", "euclidean", "manhattan"])
def test_a_search_compares_as_the_folder_says(name, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    folder = both(tmp_path, "bert", "Model").folder
    theirs = library.SentenceTransformer(str(folder), similarity_fn_name=name, device="cpu")
    theirs.save(str(tmp_path / "sentences"))
    texts = [text for text in CORPUS if text.strip()]
    found = load(tmp_path / "sentences").search(QUERIES, texts, top_k=3)
    vectors = (theirs.encode(each, convert_to_tensor=True) for each in (QUERIES, texts))
    expected = library.util.semantic_search(*vectors, top_k=3, score_function=theirs.similarity)
    assert [[one.number - 1 for one in each] for each in found] == [
        [hit["corpus_id"] for hit in each] for each in expected
    ]
    assert [one.score for each in found for one in each] == pytest.approx(
        [hit["score"] for each in expected for hit in each], rel=1e-4, abs=1e-4
    )


def test_an_unknown_similarity_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="similarity: 'l3' is not known; known: cosine, dot,"):
        both(tmp_path, "bert", "Model").ours.search("fox", CORPUS, similarity="l3")


def test_a_file_is_searched_and_its_long_lines_are_errors(tmp_path):
    pair = both(tmp_path / "model", "bert", "Model")
    (tmp_path / "lines.txt").write_text("\n".join(CORPUS) + "\n", encoding="utf-8")
    command = (
        "predict",
        str(pair.folder),
        *QUERIES[:2],
        "--corpus",
        str(tmp_path / "lines.txt"),
        "--top-k",
        "2",
    )
    expected = pair.ours.search(QUERIES[:2], CORPUS, top_k=2)
    printed = [line.split("\t") for line in run_command(*command).out.splitlines()]
    assert printed == [
        [str(one.number), f"{one.score:.4f}", one.text] for lines in expected for one in lines
    ]
    objects = [
        json.loads(line)["outputs"] for line in run_command(*command, "--json").out.splitlines()
    ]
    assert [[one["number"] for one in each] for each in objects] == [
        [one.number for one in e] for e in expected
    ]
    with pytest.raises(DataError, match="line 2 of the corpus: 203 tokens"):
        pair.ours.search("fox", ["fox", "fox " * 201])
    missing = run_command("predict", str(pair.folder), "fox", "--task", "search")
    assert (missing.code, "add --corpus FILE" in missing.err) == (2, True)
