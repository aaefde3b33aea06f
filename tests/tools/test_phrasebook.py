"""The shipped phrasebook: its content, its French, its split, and the grammar of its generator."""

from __future__ import annotations

import bz2
import hashlib
import re
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st
from tools.phrasebook import book, english, french, generate, grammar

from trifold.data.embedded import load_splits
from trifold.errors import UsageError

Pairs = list[tuple[str, str]]


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return [
        (row["english"], row["french"])
        for rows in load_splits("phrasebook").values()
        for row in rows
    ]


# --- the shipped file -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_file_has_the_recorded_hash() -> None:
    assert hashlib.sha256(bz2.decompress(generate.FILE.read_bytes())).hexdigest() == generate.SHA256
    splits = load_splits("phrasebook")
    sizes = {split: len(rows) for split, rows in splits.items()}
    assert sizes == {"train": 45_000, "valid": 500, "test": 500}
    assert splits["train"][0] == {
        "source": "I ate the apple.", "target": "J'ai mangé la pomme.",
        "english": "I ate the apple.", "french": "J'ai mangé la pomme.",
        "text": "I ate the apple. = J'ai mangé la pomme.",
    }  # fmt: skip


def test_every_english_sentence_has_one_translation(pairs: Pairs) -> None:
    assert len({source for source, _ in pairs}) == len(pairs)
    assert sum(pair == ("I love dogs.", "J'aime les chiens.") for pair in pairs) == 1


def test_sentences_are_short_capitalized_and_punctuated(pairs: Pairs) -> None:
    for source, target in pairs:
        assert 2 <= len(source.split()) <= 10, source
        assert target.endswith("." if source[-1] == "." else " " + source[-1]), target
        assert source[0].isupper() and target[0].isupper(), source
        assert not re.search(r"  |’|\u00a0| \.| ,", source + target), (source, target)


def test_french_elides_and_contracts_everywhere(pairs: Pairs) -> None:
    wrong = re.compile(
        r"\b(je|ne|le|la|de|que|me|te) (?!haricot|hibou|harpe|handball|hockey|onze)[aeiouhéèêâîœ]"
        r"|\b(de|à) les? |\b(ma|sa|ta|ce|beau|nouveau) (?!haricot|hibou|harpe|handball|hockey)[aeiouhéèêâîœ]"
        r"|\w' | des (grand|petit|beaux|belles|jolis|jolies|vieux|vieilles|nouve|bon|mauvais|jeunes)",
        re.IGNORECASE,
    )
    for english_text, french_text in pairs:
        assert not wrong.search(french_text), (english_text, french_text)


def test_english_articles_and_do_support(pairs: Pairs) -> None:
    wrong = re.compile(
        r"\ba (?!uni|use)[aeiou]|\ban [^aeiouh]"
        r"|\b(does|did|will|can|do) not \w+(ed|oes) |^(he|she) (have|do|are)\b",
        re.IGNORECASE,
    )
    for english_text, french_text in pairs:
        assert not wrong.search(re.sub(r" (need|feed)\b", "", english_text)), (
            english_text,
            french_text,
        )


def test_negation_has_two_parts(pairs: Pairs) -> None:
    for english_text, french_text in pairs:
        if english_text.count(" not ") + english_text.count("cannot") == 1:
            assert re.search(r"\b(ne |n')(\S+ ){1,2}pas\b|N'\w+ pas|Ne \w+ pas", french_text), (
                english_text,
                french_text,
            )
        if " never " in english_text:
            assert re.search(r"\b(ne |n')\S+ jamais\b", french_text), (english_text, french_text)


# --- the generator --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_generator_reproduces_the_file() -> None:
    assert hashlib.sha256(generate.generate().encode()).hexdigest() == generate.SHA256


@pytest.mark.slow
def test_test_sentences_combine_known_words_with_known_constructions() -> None:
    train, valid, test = book.split(generate.TRAIN_ROWS, generate.TEST_ROWS, generate.SEED)
    known = {combination for phrase in train for combination in book.combinations(phrase)}
    words = Counter(word for phrase in train for word in phrase.words)
    constructions = Counter(phrase.construction for phrase in train)
    forms = Counter(form for phrase in train for form in book.word_forms(phrase))
    verbs = Counter(verb for phrase in train for verb in phrase.verbs)
    for phrase in valid + test:
        assert not book.combinations(phrase) <= known, phrase
        assert all(words[word] >= 5 for word in phrase.words), phrase
        assert constructions[phrase.construction] >= 5, phrase
        assert all(forms[form] >= 5 for form in book.word_forms(phrase)), phrase
        assert all(verbs[verb] >= 5 for verb in phrase.verbs), phrase
    assert len({phrase.construction for phrase in test}) >= 0.9 * len(book.constructions())


@pytest.mark.slow
def test_more_rows_than_available_is_an_error() -> None:
    with pytest.raises(UsageError, match="request fewer"):
        book.split(10**6, 10)
    with pytest.raises(UsageError, match="or more training rows"):
        book.split(1_000, 10**6)


CONJUGATIONS = """
manger | mange manges mange mangeons mangez mangent | mangerai | mangé
commencer | commence commences commence commençons commencez commencent | commencerai | commencé
acheter | achète achètes achète achetons achetez achètent | achèterai | acheté
appeler | appelle appelles appelle appelons appelez appellent | appellerai | appelé
préférer | préfère préfères préfère préférons préférez préfèrent | préférerai | préféré
nettoyer | nettoie nettoies nettoie nettoyons nettoyez nettoient | nettoierai | nettoyé
envoyer | envoie envoies envoie envoyons envoyez envoient | enverrai | envoyé
finir | finis finis finit finissons finissez finissent | finirai | fini
vendre | vends vends vend vendons vendez vendent | vendrai | vendu
comprendre | comprends comprends comprend comprenons comprenez comprennent | comprendrai | compris
revenir | reviens reviens revient revenons revenez reviennent | reviendrai | revenu
sourire | souris souris sourit sourions souriez sourient | sourirai | souri
construire | construis construis construit construisons construisez construisent | construirai | construit
écrire | écris écris écrit écrivons écrivez écrivent | écrirai | écrit
être | suis es est sommes êtes sont | serai | été
"""


@pytest.mark.parametrize("line", CONJUGATIONS.strip().splitlines())
def test_conjugation(line: str) -> None:
    infinitive, present, future, participle = line.split(" | ")
    assert [french.present(infinitive, person) for person in range(6)] == present.split()
    assert french.future(infinitive, 0) == future
    assert french.participle(infinitive) == participle


def test_participles_imperatives_and_other_tenses() -> None:
    assert french.participle("aller", feminine=True, plural=True) == "allées"
    assert french.participle("prendre", plural=True) == "pris"
    assert french.imperfect("être", 3) == "étions" and french.imperfect("avoir", 5) == "avaient"
    assert french.conditional("vouloir", 0) == "voudrais"
    assert [french.imperative("manger", person) for person in (1, 3, 4)] == [
        "mange",
        "mangeons",
        "mangez",
    ]
    assert french.imperative("finir", 1) == "finis" and french.imperative("ouvrir", 1) == "ouvre"


@pytest.mark.parametrize(
    "forms",
    [
        "grand grande grands grandes",
        "rouge rouge rouges rouges",
        "heureux heureuse heureux heureuses",
        "cher chère chers chères",
        "bon bonne bons bonnes",
        "gentil gentille gentils gentilles",
        "gris grise gris grises",
    ],
)
def test_adjectives_agree(forms: str) -> None:
    assert list(french.adjective(forms.split(maxsplit=1)[0])[:4]) == forms.split()


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
@settings(max_examples=50, deadline=None)
def test_a_noun_phrase_agrees_with_its_noun(data: st.DataObject) -> None:
    noun = data.draw(st.sampled_from([noun for noun in grammar.NOUN.values() if not noun.mass]))
    adjective = data.draw(
        st.sampled_from([a for group in grammar.ADJECTIVES.values() for a in group])
    )
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
