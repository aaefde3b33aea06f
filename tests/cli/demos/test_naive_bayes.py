"""Naive Bayes against its formula, in fractions."""

from __future__ import annotations

from fractions import Fraction
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from trifold.cli.demos.naive_bayes import NaiveBayes, words

texts = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=6).map(" ".join)
rows = st.lists(st.tuples(texts, st.sampled_from("xyz")), min_size=1, max_size=8)


@given(rows, texts)
def test_it_is_the_formula(rows, text):
    known = {word for said, _ in rows for word in words(said)}

    def likely(label):
        own = [word for said, its in rows if its == label for word in words(said)]
        prior = Fraction(sum(its == label for _, its in rows), len(rows))
        size = len(own) + len(known)
        return prior * prod(Fraction(own.count(word) + 1, size) for word in words(text) if word in known)

    found = NaiveBayes([said for said, _ in rows], [label for _, label in rows])(text)
    assert likely(found) == max(likely(label) for _, label in rows)


def test_words_are_runs_of_letters_whatever_their_case():
    assert words("Return the _name (or None), e.g. x2.") == "return the _name or none e g x2".split()


def test_a_word_that_nobody_has_says_nothing():
    model = NaiveBayes(["a b", "a c", "d"], ["x", "x", "y"])
    assert model("unheard of") == "x"
    assert model("d unheard of d") == "y"
