"""Naive Bayes against its formula, in fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from trifold.cli.demos.naive_bayes import ALPHAS, NaiveBayes, chosen, words

texts = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=6).map(" ".join)
rows = st.lists(st.tuples(texts, st.sampled_from("xyz")), min_size=1, max_size=8)


def counted(text, pairs):
    found = words(text)
    return found + [f"{one} {other}" for one, other in pairwise(found)] * pairs


@given(rows, texts, st.sampled_from([1.0, 0.5, 0.125]), st.booleans())
def test_it_is_the_formula(rows, text, alpha, pairs):
    known = {word for said, _ in rows for word in counted(said, pairs)}

    def likely(label):
        own = [word for said, its in rows if its == label for word in counted(said, pairs)]
        prior = Fraction(sum(its == label for _, its in rows), len(rows))
        size = len(own) + Fraction(alpha) * len(known)
        said = [word for word in counted(text, pairs) if word in known]
        return prior * prod((own.count(word) + Fraction(alpha)) / size for word in said)

    model = NaiveBayes([said for said, _ in rows], [label for _, label in rows], alpha=alpha, pairs=pairs)
    assert likely(model(text)) == max(likely(label) for _, label in rows)


@given(rows, rows)
def test_what_is_chosen_is_the_best_on_the_held_out_texts(rows, held):
    (texts, labels), (said, wanted) = (list(zip(*some, strict=True)) for some in (rows, held))
    found = chosen(texts, labels, said, wanted)
    every = [
        NaiveBayes(texts, labels, alpha=alpha, pairs=pairs) for alpha in ALPHAS for pairs in (False, True)
    ]
    assert found.right(said, wanted) == max(model.right(said, wanted) for model in every)


def test_pairs_tell_what_words_do_not():
    texts, labels = ["not good", "good not bad", "bad not", "good and bad"], ["x", "x", "y", "y"]
    assert NaiveBayes(texts, labels).right(texts, labels) < 4
    assert chosen(texts, labels, texts, labels).pairs


def test_words_are_runs_of_letters_whatever_their_case():
    assert words("Return the _name (or None), e.g. x2.") == "return the _name or none e g x2".split()


def test_a_word_that_nobody_has_says_nothing():
    model = NaiveBayes(["a b", "a c", "d"], ["x", "x", "y"])
    assert model("unheard of") == "x"
    assert model("d unheard of d") == "y"
