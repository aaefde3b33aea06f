"""The phrasebook: what it promises about its size, its French, its one-to-one rule and its split."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trifold.data import phrasebook
from trifold.data.phrasebook import english, french, grammar
from trifold.errors import UsageError

pytestmark = pytest.mark.slow

BOOK = phrasebook.pairs()
FRENCH_OF = {phrase.english: phrase.french for phrase in BOOK}
TRAIN, VALID, TEST = phrasebook.split(40_000, 1_000)


# The whole book


def test_it_is_as_large_as_it_says() -> None:
    assert len(BOOK) >= 50_000
    assert len(phrasebook.lemmas()) >= 400
    assert len(phrasebook.constructions()) >= 30
    assert set(phrasebook.constructions()) == {phrase.construction for phrase in BOOK}


def test_every_english_sentence_has_one_french_one() -> None:
    # Not only among the rows kept: no construction may contradict another one behind the back of `pairs`.
    told: dict[str, str] = {}
    for construction in phrasebook.TABLE:
        for phrase in phrasebook.phrases_of(construction):
            assert told.setdefault(phrase.english, phrase.french) == phrase.french, phrase
    assert len(FRENCH_OF) == len(BOOK)


def test_sentences_are_short_capitalised_and_closed() -> None:
    for phrase in BOOK:
        assert 2 <= len(phrase.english.split()) <= 10, phrase
        mark = phrase.english[-1]
        assert phrase.french.endswith("." if mark == "." else " " + mark), phrase
        assert phrase.english[0].isupper() and phrase.french[0].isupper(), phrase
        assert not re.search(r"  |’|\u00a0| \.| ,", phrase.english + phrase.french), phrase


def test_french_elides_and_contracts_everywhere() -> None:
    wrong = re.compile(
        r"\b(je|ne|le|la|de|que|me|te) (?!haricot|hibou|harpe|handball|hockey|onze)[aeiouhéèêâîœ]"
        r"|\b(de|à) les? |\b(ma|sa|ta|ce|beau|nouveau) (?!haricot|hibou|harpe|handball|hockey)[aeiouhéèêâîœ]"
        r"|\w' | des (grand|petit|beaux|belles|jolis|jolies|vieux|vieilles|nouve|bon|mauvais|jeunes)",
        re.IGNORECASE,
    )
    for phrase in BOOK:
        assert not wrong.search(phrase.french), phrase


def test_english_articles_and_do_support() -> None:
    wrong = re.compile(
        r"\ba (?!uni|use)[aeiou]|\ban [^aeiouh]"
        r"|\b(does|did|will|can|do) not \w+(ed|oes) |^(he|she) (have|do|are)\b",
        re.IGNORECASE,
    )
    for phrase in BOOK:
        assert not wrong.search(re.sub(r" (need|feed)\b", "", phrase.english)), phrase


def test_negation_has_two_parts() -> None:
    for phrase in BOOK:
        if phrase.english.count(" not ") + phrase.english.count("cannot") == 1:
            assert re.search(r"\b(ne |n')(\S+ ){1,2}pas\b|N'\w+ pas|Ne \w+ pas", phrase.french), phrase
        if " never " in phrase.english:
            assert re.search(r"\b(ne |n')\S+ jamais\b", phrase.french), phrase


def test_every_phrase_knows_its_words() -> None:
    for phrase in BOOK:
        assert phrase.words, phrase
        for word in phrase.words:
            if word.endswith((".n", ".a")) and word != "good.a":  # better
                stem = word[:-2].replace("_", " ").lower()[:4]
                irregular = {"mous": "mice", "man.": "men", "foot": "feet", "toot": "teeth"}
                found = {stem, stem[:-1], irregular.get(stem, stem), "m"} if len(stem) > 2 else {stem[:1]}
                assert any(form in phrase.english.lower() for form in found), phrase


@pytest.mark.parametrize("seed", range(4))
def test_the_sentence_of_the_demo_is_in_the_book_and_dealt(seed: int) -> None:
    assert FRENCH_OF["I love dogs."] == "J'aime les chiens."
    parts = phrasebook.split(30_000, 500, seed)
    assert sum(phrase.english == "I love dogs." for part in parts for phrase in part) == 1


def test_the_book_is_always_the_same_and_needs_no_torch() -> None:
    code = (
        "import sys, zlib; from trifold.data import phrasebook;"
        "print(zlib.crc32(repr(phrasebook.pairs()).encode()), 'torch' in sys.modules)"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in "ab"
    }
    assert len(runs) == 1 and "False" in runs.pop()


# The words


@pytest.mark.parametrize(
    ("infinitive", "present", "je_future", "participle"),
    [
        ("manger", "mange manges mange mangeons mangez mangent", "mangerai", "mangé"),
        (
            "commencer",
            "commence commences commence commençons commencez commencent",
            "commencerai",
            "commencé",
        ),
        ("acheter", "achète achètes achète achetons achetez achètent", "achèterai", "acheté"),
        ("appeler", "appelle appelles appelle appelons appelez appellent", "appellerai", "appelé"),
        ("préférer", "préfère préfères préfère préférons préférez préfèrent", "préférerai", "préféré"),
        ("nettoyer", "nettoie nettoies nettoie nettoyons nettoyez nettoient", "nettoierai", "nettoyé"),
        ("envoyer", "envoie envoies envoie envoyons envoyez envoient", "enverrai", "envoyé"),
        ("finir", "finis finis finit finissons finissez finissent", "finirai", "fini"),
        ("vendre", "vends vends vend vendons vendez vendent", "vendrai", "vendu"),
        (
            "comprendre",
            "comprends comprends comprend comprenons comprenez comprennent",
            "comprendrai",
            "compris",
        ),
        ("revenir", "reviens reviens revient revenons revenez reviennent", "reviendrai", "revenu"),
        ("sourire", "souris souris sourit sourions souriez sourient", "sourirai", "souri"),
        (
            "construire",
            "construis construis construit construisons construisez construisent",
            "construirai",
            "construit",
        ),
        ("écrire", "écris écris écrit écrivons écrivez écrivent", "écrirai", "écrit"),
        ("être", "suis es est sommes êtes sont", "serai", "été"),
    ],
)
def test_conjugation(infinitive: str, present: str, je_future: str, participle: str) -> None:
    assert [french.present(infinitive, person) for person in range(6)] == present.split()
    assert french.future(infinitive, 0) == je_future
    assert french.participle(infinitive) == participle


def test_participles_imperatives_and_other_tenses() -> None:
    assert french.participle("aller", feminine=True, plural=True) == "allées"
    assert french.participle("prendre", plural=True) == "pris"
    assert french.imperfect("être", 3) == "étions" and french.imperfect("avoir", 5) == "avaient"
    assert french.conditional("vouloir", 0) == "voudrais"
    assert [french.imperative("manger", person) for person in (1, 3, 4)] == ["mange", "mangeons", "mangez"]
    assert french.imperative("finir", 1) == "finis" and french.imperative("ouvrir", 1) == "ouvre"


@pytest.mark.parametrize(
    ("masculine", "forms"),
    [
        ("grand", "grand grande grands grandes"),
        ("rouge", "rouge rouge rouges rouges"),
        ("heureux", "heureux heureuse heureux heureuses"),
        ("cher", "cher chère chers chères"),
        ("bon", "bon bonne bons bonnes"),
        ("gentil", "gentil gentille gentils gentilles"),
        ("gris", "gris grise gris grises"),
    ],
)
def test_adjectives_agree(masculine: str, forms: str) -> None:
    assert list(french.adjective(masculine)[:4]) == forms.split()


def test_plurals() -> None:
    words = "journal bateau souris nez genou trou pomme de terre;grand-mère"
    assert [french.plural(word) for word in words.split(" ")[:6]] == [
        "journaux", "bateaux", "souris", "nez", "genoux", "trous",
    ]  # fmt: skip
    assert french.plural("pomme de terre") == "pommes de terre"
    assert french.plural("grand-mère") == "grands-mères"
    assert [english.plural(w) for w in ("box", "story", "tomato", "piano", "boy")] == [
        "boxes", "stories", "tomatoes", "pianos", "boys",
    ]  # fmt: skip


def test_english_verbs_and_comparatives() -> None:
    assert english.verb("cry")[:5] == ("cry", "cries", "cried", "cried", "crying")
    assert english.verb("travel").past == "travelled"
    assert english.verb("run ran run").gerund == "running"
    assert english.verb("lie").gerund == "lying"
    assert english.verb("have had").third == "has"
    assert [english.comparative(a) for a in ("big", "noisy", "famous", "good", "brave")] == [
        "bigger", "noisier", "more famous", "better", "braver",
    ]  # fmt: skip


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_noun_phrase_agrees_with_its_noun(data: st.DataObject) -> None:
    noun = data.draw(st.sampled_from([noun for noun in grammar.NOUN.values() if not noun.mass]))
    adjective = data.draw(st.sampled_from([a for group in grammar.ADJECTIVES.values() for a in group]))
    plural = data.draw(st.booleans())
    words = french.spell(grammar.np("a", noun, plural, adjective).french).lower().split()
    head = noun.french_plural if plural else noun.french
    forms = {adjective.french.agree(noun.feminine, plural)}
    if not plural and not noun.feminine and french.starts_with_vowel(noun.french):
        forms.add(adjective.french.liaison)
    assert head.lower() in " ".join(words)
    assert forms & set(words)
    article = "un" + "e" * noun.feminine if not plural else "de" if adjective.before else "des"
    assert words[0].removesuffix("'") in (article, article[:1])
    assert (words.index((forms & set(words)).pop()) == 1) == adjective.before


# The split


def test_held_out_is_the_meeting_of_word_and_construction() -> None:
    met = {meeting for phrase in TRAIN for meeting in phrasebook.meetings(phrase)}
    for phrase in VALID + TEST:
        assert not phrasebook.meetings(phrase) <= met, phrase


def test_all_else_is_known_from_train() -> None:
    words = Counter(word for phrase in TRAIN for word in phrase.words)
    constructions = Counter(phrase.construction for phrase in TRAIN)
    forms = Counter(form for phrase in TRAIN for form in phrasebook.word_forms(phrase))
    verbs = Counter(verb for phrase in TRAIN for verb in phrase.verbs)
    for phrase in VALID + TEST:
        assert all(words[word] >= 5 for word in phrase.words), phrase
        assert constructions[phrase.construction] >= 5, phrase
        assert all(forms[form] >= 5 for form in phrasebook.word_forms(phrase)), phrase
        assert all(verbs[verb] >= 5 for verb in phrase.verbs), phrase


def test_the_parts_are_full_and_apart() -> None:
    assert [len(part) for part in (TRAIN, VALID, TEST)] == [40_000, 1_000, 1_000]
    assert len({phrase.english for part in (TRAIN, VALID, TEST) for phrase in part}) == 42_000
    assert len({phrase.construction for phrase in TEST}) >= 0.9 * len(phrasebook.constructions())


def test_the_seed_decides() -> None:
    assert phrasebook.split(20_000, 20, seed=3) == phrasebook.split(20_000, 20, seed=3)
    assert phrasebook.split(20_000, 20, seed=3) != phrasebook.split(20_000, 20, seed=4)


def test_more_than_there_is_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match="ask for fewer"):
        phrasebook.split(10**6, 10)
    with pytest.raises(UsageError, match="or train on more"):
        phrasebook.split(1_000, 10**6)
