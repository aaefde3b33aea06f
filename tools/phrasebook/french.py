"""French word forms and French spelling: gender, number, conjugation, elision, contraction."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Adjective(NamedTuple):
    """The five forms of an adjective; `liaison` stands before a masculine singular vowel (un bel
    arbre).
    """

    masculine: str
    feminine: str
    masculine_plural: str
    feminine_plural: str
    liaison: str

    def agree(self, feminine: bool, plural: bool) -> str:
        """The form for a noun of this gender and number."""
        return self[2 * plural + feminine]


# infinitive: present of je, tu, il, nous, vous, ils | stem of the future | past participle.
# A verb that ends like one of these is conjugated like it: revenir like venir.
IRREGULAR = """
être:      suis es est sommes êtes sont                             | ser      | été
avoir:     ai as a avons avez ont                                   | aur      | eu
aller:     vais vas va allons allez vont                            | ir       | allé
pouvoir:   peux peux peut pouvons pouvez peuvent                    | pourr    | pu
vouloir:   veux veux veut voulons voulez veulent                    | voudr    | voulu
devoir:    dois dois doit devons devez doivent                      | devr     | dû
savoir:    sais sais sait savons savez savent                       | saur     | su
voir:      vois vois voit voyons voyez voient                       | verr     | vu
recevoir:  reçois reçois reçoit recevons recevez reçoivent          | recevr   | reçu
prendre:   prends prends prend prenons prenez prennent              | prendr   | pris
mettre:    mets mets met mettons mettez mettent                     | mettr    | mis
lire:      lis lis lit lisons lisez lisent                          | lir      | lu
écrire:    écris écris écrit écrivons écrivez écrivent              | écrir    | écrit
boire:     bois bois boit buvons buvez boivent                      | boir     | bu
venir:     viens viens vient venons venez viennent                  | viendr   | venu
tenir:     tiens tiens tient tenons tenez tiennent                  | tiendr   | tenu
dormir:    dors dors dort dormons dormez dorment                    | dormir   | dormi
partir:    pars pars part partons partez partent                    | partir   | parti
sortir:    sors sors sort sortons sortez sortent                    | sortir   | sorti
mentir:    mens mens ment mentons mentez mentent                    | mentir   | menti
servir:    sers sers sert servons servez servent                    | servir   | servi
ouvrir:    ouvre ouvres ouvre ouvrons ouvrez ouvrent                | ouvrir   | ouvert
offrir:    offre offres offre offrons offrez offrent                | offrir   | offert
connaître: connais connais connaît connaissons connaissez connaissent | connaîtr | connu
uire:      uis uis uit uisons uisez uisent                          | uir      | uit
suivre:    suis suis suit suivons suivez suivent                    | suivr    | suivi
rire:      ris ris rit rions riez rient                             | rir      | ri
courir:    cours cours court courons courez courent                 | courr    | couru
peindre:   peins peins peint peignons peignez peignent              | peindr   | peint
envoyer:   envoie envoies envoie envoyons envoyez envoient          | enverr   | envoyé
"""

# ending of the infinitive: endings of the present | stem of the future | past participle
REGULAR = {
    "er": ("e es e ons ez ent", "er", "é"),
    "ir": ("is is it issons issez issent", "ir", "i"),
    "re": ("s s  ons ez ent", "r", "u"),
}
FUTURE = ("ai", "as", "a", "ons", "ez", "ont")
PAST = ("ais", "ais", "ait", "ions", "iez", "aient")
NOUS = 3

# These double the consonant where others take an accent: j'appelle, but j'achète.
DOUBLING = ("appeler", "jeter")
WITH_ETRE = frozenset(
    "aller venir revenir arriver partir sortir rester tomber entrer rentrer retourner".split()
)

FEMININE_RULES = [
    (r"e$", "e"),
    (r"eux$", "euse"),
    (r"f$", "ve"),
    (r"er$", "ère"),
    (r"((?<=[eo])n|(?<=[ei])l)$", r"\1\1e"),
    (r"$", "e"),
]
PLURAL_RULES = [
    (r"([sxz])$", r"\1"),
    (r"(eau|neveu|cheveu|hibou|genou)$", r"\1x"),
    (r"al$", "aux"),
    (r"$", "s"),
]
VOWEL = r"[aàâeéèêëiîïoôœuûh]"
# Aspirated h, and two words with a vowel that behaves like a consonant.
ASPIRATED = r"(?!haricot|hibou|haut|harpe|handball|hockey|onze|huit|homard)"
ELISION = re.compile(rf"\b(je|ne|le|la|de|que|me|te|se) (?={ASPIRATED}{VOWEL})", re.IGNORECASE)
LIAISON = re.compile(rf"\b(ma|ta|sa|ce) (?={ASPIRATED}{VOWEL})", re.IGNORECASE)
LIAISON_FORMS = {"ma": "mon ", "ta": "ton ", "sa": "son ", "ce": "cet "}
CONTRACTION = re.compile(r"\b(de|à) (le|les) ")
CONTRACTION_FORMS = {"de le": "du ", "de les": "des ", "à le": "au ", "à les": "aux "}


def _first_rule(rules: list[tuple[str, str]], word: str) -> str:
    """Apply the first matching rule."""
    for pattern, replacement in rules:
        if re.search(pattern, word):
            return re.sub(pattern, replacement, word, count=1)
    raise AssertionError(f"no rule fits {word!r}")


def plural(noun: str) -> str:
    """The plural; of a compound (pomme de terre) the first word takes it, of grand-mère both."""
    head, space, rest = noun.partition(" ")
    if "-" in head:
        return "-".join(map(plural, head.split("-")))
    return _first_rule(PLURAL_RULES, head) + space + rest


def starts_with_vowel(word: str) -> bool:
    """Whether le and la lose their vowel before this word."""
    return re.match(ASPIRATED + VOWEL, word) is not None


def adjective(masculine: str, feminine: str = "", liaison: str = "") -> Adjective:
    """All forms; the feminine and the form before a vowel are given if they are irregular."""
    feminine = feminine or _first_rule(FEMININE_RULES, masculine)
    return Adjective(masculine, feminine, plural(masculine), plural(feminine), liaison or masculine)


def irregular_model(infinitive: str) -> str | None:
    """The entry of the irregular table with the longest matching ending, None if there is none."""
    models = (line.partition(":")[0] for line in IRREGULAR.split("\n") if line)
    return max((model for model in models if infinitive.endswith(model)), key=len, default=None)


@cache
def principal_parts(infinitive: str) -> tuple[tuple[str, ...], str, str]:
    """Six forms of the present, the stem of the future, and the past participle."""
    model = irregular_model(infinitive)
    if model is not None:
        prefix = infinitive.removesuffix(model)
        row = re.search(rf"^{model}: (.*)$", IRREGULAR, re.MULTILINE)
        assert row is not None
        forms, future, participle = (cell.strip() for cell in row[1].split("|"))
        return tuple(prefix + form for form in forms.split()), prefix + future, prefix + participle
    stem, ending = infinitive[:-2], infinitive[-2:]
    endings, future, participle = REGULAR[ending]
    present = [stem + e for e in endings.split(" ")]
    future_stem = stem + future
    if ending == "er":
        mute = mute_stem(infinitive)
        present = [
            form if i in (3, 4) else mute + form[len(stem) :] for i, form in enumerate(present)
        ]
        if "é" not in stem[-3:]:  # je préfère, but je préférerai
            future_stem = mute + future
        present[NOUS] = re.sub(r"c(?=ons$)", "ç", re.sub(r"g(?=ons$)", "ge", present[NOUS]))
    return tuple(present), future_stem, stem + participle


def mute_stem(infinitive: str) -> str:
    """The stem of an -er verb before a silent ending: achèt-, préfèr-, appell-, nettoi-."""
    stem = infinitive[:-2]
    if infinitive.endswith(DOUBLING):
        return stem + stem[-1]
    if re.search(r"[ou]y$", stem):
        return stem[:-1] + "i"
    return re.sub(r"[eé]([bcdfglmnprstv])$", r"è\1", stem)


def present(infinitive: str, person: int) -> str:
    """je mange … ils mangent, person 0 to 5."""
    return principal_parts(infinitive)[0][person]


def future(infinitive: str, person: int) -> str:
    """je mangerai … ils mangeront."""
    return principal_parts(infinitive)[1] + FUTURE[person]


def conditional(infinitive: str, person: int) -> str:
    """je voudrais … ils voudraient."""
    return principal_parts(infinitive)[1] + PAST[person]


def imperfect(infinitive: str, person: int) -> str:
    """j'avais … ils avaient; built from the present of nous, except for être."""
    stem = "ét" if infinitive == "être" else present(infinitive, NOUS).removesuffix("ons")
    return stem + PAST[person]


def participle(infinitive: str, feminine: bool = False, plural: bool = False) -> str:
    """The past participle, agreeing: allé, allée, allés, allées; pris keeps its s."""
    form = principal_parts(infinitive)[2]
    if feminine:
        form = "due" if form == "dû" else form + "e"
    return form if not plural or form.endswith("s") else form + "s"


def imperative(infinitive: str, person: int) -> str:
    """Of tu, nous, vous (1, 3, 4); the tu of -er verbs and of ouvrir loses its s."""
    if infinitive == "être":
        return {1: "sois", 3: "soyons", 4: "soyez"}[person]
    form = present(infinitive, person)
    return form[:-1] if person == 1 and form.endswith("es") else form


def spell(text: str) -> str:
    """Apply elision, contraction and capitalization: j'aime, mon amie, cet arbre, du pain, aux
    enfants.
    """
    text = " ".join(text.split())
    text = LIAISON.sub(lambda m: LIAISON_FORMS[m[1].lower()], text)
    text = ELISION.sub(lambda m: m[1][:-1] + "'", text)
    text = CONTRACTION.sub(lambda m: CONTRACTION_FORMS[f"{m[1]} {m[2]}"], text)
    text = text.replace(" ,", ",")
    return text[0].upper() + text[1:]
