"""n-grams, TF-IDF and linear models equal those of scikit-learn; overlap features equal a plain
version."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from torch.nn import functional as F

from trifold.linear import logistic
from trifold.linear.logistic import fit_classes, fit_labels
from trifold.linear.matrix import FeatureMatrix, dense, sparse
from trifold.linear.ngrams import character_ngrams, word_ngrams, words_of
from trifold.linear.overlap import NAMES, Overlap
from trifold.linear.ridge import fit_ridge
from trifold.linear.tfidf import Tfidf

WORDS = (
    "the a film plot Straße naïve it's 3.5 x good bad very great_one 12 boring end, (well)".split()
)
ANALYZERS = {
    "words": (word_ngrams, {"ngram_range": (1, 2)}),
    "characters": (character_ngrams, {"analyzer": "char_wb", "ngram_range": (2, 5)}),
}


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    made = [" ".join(rng.choice(WORDS, rng.integers(0, 12))) for _ in range(count)]
    return [*made, "", "x", "  spaces\tand\nlines  ", "ÜBER élan"]


@pytest.mark.parametrize("kind", ANALYZERS)
def test_tfidf_is_that_of_scikit_learn(kind):
    analyzer, options = ANALYZERS[kind]
    vectorizer = TfidfVectorizer(**options)
    expected = vectorizer.fit_transform(texts(80))
    tfidf, features = Tfidf.fit(analyzer, texts(80))
    assert {*tfidf.names} == {*vectorizer.vocabulary_}
    order = [vectorizer.vocabulary_[name] for name in tfidf.names]
    np.testing.assert_allclose(features.matrix.to_dense(), expected[:, order].toarray(), atol=1e-12)
    np.testing.assert_allclose(
        features.transposed.to_dense(), expected[:, order].toarray().T, atol=1e-12
    )
    others = [*texts(20, seed=1), "words that nobody knows"]
    expected = vectorizer.transform(others)[:, order].toarray()
    np.testing.assert_allclose(tfidf.transform(others).matrix.to_dense(), expected, atol=1e-12)


def test_rare_ngrams_are_left_out_as_min_df_does():
    tfidf, features = Tfidf.fit(word_ngrams, texts(80), most=60)
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=tfidf.fewest)
    expected = vectorizer.fit_transform(texts(80))
    assert tfidf.fewest > 1 and len(tfidf.names) <= 60
    order = [vectorizer.vocabulary_[name] for name in tfidf.names]
    np.testing.assert_allclose(features.matrix.to_dense(), expected[:, order].toarray(), atol=1e-12)


def test_scripts_without_spaces_have_characters_as_words():
    assert words_of("Hello 今天 ab3") == ["hello", "今", "天", "ab3"]
    assert words_of("один два") == ["один", "два"]


def labelled(classes: int) -> tuple[list[str], np.ndarray]:
    rows = texts(150, seed=2)
    rng = np.random.default_rng(3)
    labels = [("good" in row) + 2 * ("film" in row) + (rng.random() < 0.2) for row in rows]
    return rows, np.array(labels) % classes


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("strength", [1.0, 10.0])
def test_logistic_regression_is_that_of_scikit_learn(classes, strength):
    rows, labels = labelled(classes)
    _, features = Tfidf.fit(word_ngrams, rows)
    model = fit_classes(features, torch.from_numpy(labels), classes, strength)
    reference = LogisticRegression(C=strength, tol=1e-9, max_iter=10_000)
    matrix = features.matrix.to_dense().numpy()
    expected = reference.fit(matrix, labels).predict_proba(matrix)
    np.testing.assert_allclose(model.logits(features).softmax(1), expected, atol=1e-3)


def test_several_labels_are_separate_problems():
    rows, _ = labelled(2)
    labels = np.array([["good" in row, "film" in row, len(row) > 30] for row in rows])
    _, features = Tfidf.fit(word_ngrams, rows)
    found = fit_labels(features, torch.from_numpy(labels), 3.0).logits(features).sigmoid()
    matrix = features.matrix.to_dense().numpy()
    for column in range(3):
        reference = LogisticRegression(C=3.0, tol=1e-9, max_iter=10_000).fit(
            matrix, labels[:, column]
        )
        np.testing.assert_allclose(
            found[:, column], reference.predict_proba(matrix)[:, 1], atol=1e-3
        )


@pytest.mark.parametrize("strength", [0.1, 1.0])
def test_ridge_is_that_of_scikit_learn(strength):
    rows, _ = labelled(2)
    numbers = np.array([len(row) + 3.0 for row in rows])
    _, features = Tfidf.fit(word_ngrams, rows)
    for each in (features, dense(features.matrix.to_dense())):
        model = fit_ridge(each, torch.from_numpy(numbers), strength)
        matrix = features.matrix.to_dense().numpy()
        expected = Ridge(strength, solver="cholesky").fit(matrix, numbers).predict(matrix)
        np.testing.assert_allclose(model.logits(each)[:, 0], expected, atol=1e-4)


def test_a_constant_feature_and_one_class_have_finite_weights():
    features = dense(torch.ones(6, 2, dtype=torch.float64))
    model = fit_classes(features, torch.zeros(6, dtype=torch.int64), 3, 10.0)
    assert model.logits(features).isfinite().all()
    assert model.logits(features).argmax(1).eq(0).all()


def test_poll_ends_a_fit():
    rows, labels = labelled(2)
    _, features = Tfidf.fit(word_ngrams, rows)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_classes(features, torch.from_numpy(labels), 2, 1.0, stop)


def test_a_fit_of_too_much_work_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = labelled(4)
    _, features = Tfidf.fit(word_ngrams, rows)
    products: list[None] = []

    def count() -> None:
        products.append(None)

    fit_classes(features, torch.from_numpy(labels), 4, 10.0, count)
    assert len(products) > logistic.FEWEST_PRODUCTS
    products.clear()
    monkeypatch.setattr(logistic, "WORK", 0)
    model = fit_classes(features, torch.from_numpy(labels), 4, 10.0, count)
    assert len(products) == logistic.FEWEST_PRODUCTS
    right = model.logits(features).argmax(1).numpy() == labels
    assert right.mean() > 0.7


def frequent_and_rare_forms(rows: int) -> tuple[FeatureMatrix, torch.Tensor]:
    """Four forms of each row, whose frequencies are as those of words, and its class, which the
    rarest form determines.
    """
    rng = np.random.default_rng(0)
    forms = np.sort((rng.pareto(0.7, (rows, 4)) * 3).astype(np.int64).clip(max=1999), 1)
    labels = forms.max(1) % 5
    places = np.repeat(np.arange(rows), 4) * 2000 + forms.ravel()
    found, counts = np.unique(places, return_counts=True)
    features = sparse(*np.divmod(found, 2000), counts / 4, (rows, 2000))
    return features, torch.from_numpy(labels)


def test_few_products_suffice_for_forms_of_different_frequencies(monkeypatch):
    features, labels = frequent_and_rare_forms(4000)
    monkeypatch.setattr(logistic, "WORK", 0)

    def loss(model: logistic.LinearModel) -> float:
        return float(F.cross_entropy(model.logits(features), labels))

    found = loss(fit_classes(features, labels, 5, 10.0))
    monkeypatch.setattr(logistic, "WORK", 1e15)
    best = loss(fit_classes(features, labels, 5, 10.0))
    assert found < 1.01 * best < 0.8


def test_steps_are_as_long_as_they_are_trusted(monkeypatch):
    """Where predictions become certain, Newton's steps are too long, and their errors would add
    up.
    """
    features, labels = frequent_and_rare_forms(4000)
    monkeypatch.setattr(logistic, "WORK", 1e15)
    products: list[None] = []
    model = fit_classes(features, labels, 5, 1e6, lambda: products.append(None))
    assert float(F.cross_entropy(model.logits(features), labels)) < 0.04
    assert len(products) < 500


def test_a_fit_of_features_that_are_not_numbers_ends():
    products: list[None] = []
    features = dense(torch.full((6, 2), torch.nan))
    labels = torch.tensor([0, 1, 2] * 2)
    model = fit_classes(features, labels, 3, 10.0, lambda: products.append(None))
    assert len(products) <= logistic.DIRECTION_STEPS and not model.weights.any()


def test_squares_of_features_are_those_of_the_dense_matrix():
    features, _ = frequent_and_rare_forms(50)
    errors = torch.rand(50, 3, dtype=torch.float64)
    values = features.matrix.to_dense()
    expected = (values**2).T @ errors
    torch.testing.assert_close(features.gradient_of_squares(errors), expected)
    torch.testing.assert_close(dense(values).gradient_of_squares(errors), expected)


# --- overlap --------------------------------------------------------------------------------------

KNOWN = ["the cat sat", "the dog ran in 2019", "a cat and a dog"]


def plain_features(first: str, second: str) -> list[float]:
    """The twelve features by their definitions, for texts of lower-case words and spaces."""
    a, b = first.split(), second.split()
    frequency = Counter(word for text in KNOWN for word in {*text.split()})
    idf = {word: math.log(4 / (1 + frequency[word])) + 1 for word in {*a, *b}}
    weigh = lambda words: sum(idf[word] for word in words)  # noqa: E731
    shared, union = {*a} & {*b}, {*a} | {*b}
    ta, tb = ({w: words.count(w) * idf[w] for w in words} for words in (a, b))
    grams = [
        Counter(t[i : i + n] for n in (3, 4) for i in range(len(t) - n + 1))
        for t in (first, second)
    ]
    norm = lambda v: math.sqrt(sum(x * x for x in v.values()))  # noqa: E731
    dot = lambda v, w: sum(v[k] * w.get(k, 0) for k in v)  # noqa: E731
    pairs = [{(w[i], w[i + 1]) for i in range(len(w) - 1)} for w in (a, b)]
    stems = [{w[:4] for w in words} for words in (a, b)]
    numbers = [{w for w in words if any(c.isdigit() for c in w)} for words in (a, b)]
    return [
        len(shared) / len(union), weigh(shared) / weigh(union), weigh(shared) / weigh({*a}),
        weigh(shared) / weigh({*b}), min(len(a), len(b)) / max(len(a), len(b)),
        dot(ta, tb) / (norm(ta) * norm(tb)), len(pairs[0] & pairs[1]) / len(pairs[0] | pairs[1]),
        len(stems[0] & stems[1]) / len(stems[0] | stems[1]), dot(*grams) / (norm(grams[0]) * norm(grams[1])),
        float(numbers[0] != numbers[1]), max((idf[w] for w in union - shared), default=0.0),
        math.log(1 + len(a) + len(b)),
    ]  # fmt: skip


def test_overlap_features_are_those_of_the_plain_version():
    firsts = ["the cat sat on the mat", "a dog ran in 2019", "unseen words here", "the cat"]
    seconds = ["the cats sat", "a dog ran in 2020 again", "the dog", "the cat"]
    found = Overlap.fit(KNOWN).features(firsts, seconds)
    expected = [plain_features(*pair) for pair in zip(firsts, seconds, strict=True)]
    assert found.shape == (4, len(NAMES))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_empty_texts_have_finite_features():
    assert np.isfinite(Overlap.fit(KNOWN).features(["", "a"], ["", ""])).all()
