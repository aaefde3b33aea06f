"""Sentence splitting on real texts; no character is lost."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from trifold.errors import SettingsError
from trifold.text.sentences import read_language, split_sentences

# | marks the start of each sentence but the first.
CASES = {
    "en": [
        "He left. |She stayed! |Why? |Nobody knows.",
        "Mr. and Mrs. Dursley of No. 4 Privet Drive were proud. |They were normal.",
        "Dr. J. R. Smith Jr. lives in Washington D.C. and works for the U.S. Army. |He likes it.",
        "I met him at 5 p.m. on Monday. |It was late.",
        "The shop closes at 5 p.m. |The owner goes home.",
        "Apples, pears, etc. are fruit. |Bring pens, paper, etc. |We start at nine.",
        "Pi is 3.14159, and e is 2.718. |Version 2.0.1 is out at example.com. |Get it!",
        "It cost $1.50. |Then it cost .75 more.",
        "That was in 1999. |The year after was worse.",
        "See Fig. 3 and pp. 12-14, e.g. Smith et al. (2003), cf. Jones. |We agree.",
        '"I know," she said. |"I was there." |He nodded.',
        "“Is it you?” he asked. |“It is I.” |They laughed.",
        '"Really?" he asked. |"Yes!" she said.',
        "He said (and I quote. Really. I do.) that it works. |Fine.",
        "It works. |(Most of the time. Not always.) |So they say.",
        "Wait... |What was that? |Well... perhaps not.",
        "Hm… I do not know. |Nor do you.",
        "So do I. |The others do not.",
        "Yahoo! is a company. |What?! |No way!!!",
        "1. Open the box. |2. Take it out.",
        "The U.N. said so. |George W. Bush did not.",
        "Apple Inc. is rich. |He works at Apple Inc. |She does not.",
        "A line\nthat goes on. |And\nanother.",
        "No point at the end\n\n|A heading\n \n|And text.",
        "The poet e.e. cummings wrote small. |He did.",
        "Elizabeth II. |The queen of Canada, as of World War II. |Not more.",
    ],
    "de": [
        "Am 3. Oktober 1990 war es so weit. |Alle feierten.",
        "Das ist z. B. so, d.h. fast immer, vgl. Abb. 3 auf S. 12. |Das reicht.",
        "Prof. Dr. Müller kam usw. |Er blieb.",
        "Er ist 30. |Sie ist 20.",
        "Im 19. Jahrhundert lebte Friedrich II. von Preußen nicht mehr. |Er starb 1786.",
        "„Komm!“, rief er. |„Nein.“ |Sie ging.",
        "Es kostet 3.000,50 Euro bzw. mehr. |Zu viel!",
    ],
    "fr": [
        "M. Dupont et Mme. Durand sont là. |Où est-il ? |Ici !",
        "« Viens ! » dit-il. |« Non. » |Elle partit.",
        "Il est né en 50 av. J.-C. |Il mourut tard.",
    ],
    "es": [
        "¿Dónde está el Sr. García? |¡Aquí! |Vive en EE.UU. y viaja.",
        "Compró pan, leche, etc. |Luego salió.",
    ],
    "it": ["Il sig. Rossi e il dott. Bianchi parlano. |Dove sono? |Qui, ecc. |Ma non sempre."],
    "nl": [
        "Dhr. Jansen woont op nr. 5, d.w.z. hier. |Hij is thuis.",
        "Appels, peren enz. |Wij eten.",
    ],
    "ru": [
        "Он жил в 1990 г. в Москве, т.е. здесь. |Потом уехал.",
        "А. С. Пушкин писал стихи. |Они известны.",
    ],
    None: [
        "我来了。|你呢？|“好！”|他说。",
        "「行こう。」と彼は言った。|雨が降った！|寒い。",
        "今天是3.5度。|很冷！！|是吗？！|是。",
        "他说：“走吧。”|我们走了（真的。是的。）。|完。",
        "مرحبا. |كيف حالك؟ |بخير.",
        "वह आया। |वह गया।",
        "Καλημέρα. |Τι κάνεις; Καλά.",
        "Mr. Weiß wohnt z.B. hier. |He likes it.",
    ],
}


@pytest.mark.parametrize(
    ("language", "marked"),
    [(language, case) for language, cases in CASES.items() for case in cases],
)
def test_real_texts(language: str | None, marked: str) -> None:
    expected = marked.split("|")
    assert split_sentences(marked.replace("|", ""), language) == expected


PIECES = st.sampled_from([*'aB3.!?…。」"()[ ß', "Mr", "etc", "  ", "\n", "\n\n", "\u2028", "\r\n"])


@given(text=st.one_of(st.lists(PIECES, max_size=40).map("".join), st.text(max_size=60)))
@pytest.mark.parametrize("language", [None, "en", "de"])
def test_joined_sentences_are_the_text(language: str | None, text: str) -> None:
    sentences = split_sentences(text, language)
    assert "".join(sentences) == text
    assert all(sentence.strip() for sentence in sentences) or not text.strip()
    assert (sentences == []) == (text == "")


def test_white_space_belongs_to_the_preceding_sentence() -> None:
    assert split_sentences("  One.  \n Two. ", "en") == ["  One.  \n ", "Two. "]
    assert split_sentences(" \n\n A.\n\n\n\nB", "en") == [" \n\n A.\n\n\n\n", "B"]
    assert split_sentences("  ") == ["  "]


def test_the_language_changes_the_result_and_is_checked() -> None:
    text = "Am 3. Oktober kam er."
    assert len(split_sentences(text, "de")) == 1
    assert len(split_sentences(text, "en")) == 2
    with pytest.raises(SettingsError, match="language: 'dee' is not known; did you mean 'de'"):
        split_sentences("a", "dee")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 50_000,
        "a. " * 50_000,
        "." * 100_000,
        "(a. " * 30_000,
        " \n" * 50_000,
        "…)" * 50_000,
        '"' * 100_000,
        " " * 200_000,
        "x\n" + " " * 200_000,
        "3. " * 50_000,
    ],
)
def test_time_is_linear_in_hostile_text(text: str) -> None:
    start = time.process_time()
    assert "".join(split_sentences(text)) == text
    assert time.process_time() - start < 5


def test_tables_are_well_formed() -> None:
    """Entries with a final period, with capitals, or in two contradictory tables would never match."""
    for language in (None, "en", "de"):
        habits = read_language(language)
        for table in (habits.within, habits.either, habits.numbered):
            assert all(word == word.lower() and not word.endswith(".") for word in table)
        assert all(word[0].isupper() for word in habits.starters)
