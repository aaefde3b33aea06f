"""Abbreviations and sentence starters by language, for sentence splitting."""

from __future__ import annotations

from typing import NamedTuple


class Language(NamedTuple):
    """Words of one language; abbreviations are in lower case and without the last period.

    within: abbreviations that never end a sentence (Dr., e.g.). either: those that may (etc., Inc.). numbered: those
    that do not end a sentence before a number (No. 5). starters: capitalized words that start a sentence after an
    ambiguous period. ordinals: whether "3." means third.
    """

    within: frozenset[str]
    either: frozenset[str]
    numbered: frozenset[str]
    starters: frozenset[str]
    ordinals: bool = False


def _language(within: str, either: str, numbered: str, starters: str, ordinals: bool = False) -> Language:
    return Language(
        within=frozenset(within.split()),
        either=frozenset(either.split()),
        numbered=frozenset(numbered.split()),
        starters=frozenset(starters.split()),
        ordinals=ordinals,
    )


LANGUAGES: dict[str, Language] = {
    "en": _language(
        "mr mrs ms mx dr prof rev fr hon st sr messrs gen col maj capt cmdr lt sgt cpl pvt adm gov sen rep "
        "pres supt e.g i.e eg ie viz cf al vs v approx ca mt ft hwy ave blvd",
        "etc inc ltd co corp llc plc bros jr sr esq ph.d m.d b.a m.a b.sc m.sc a.m p.m am pm u.s u.k u.n "
        "e.u d.c l.a b.c a.d jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thurs "
        "fri sat sun dept univ assn est ed eds trans rd sq in oz lb lbs min max",
        "no nos p pp vol vols fig figs sec ch chap art eq eqs para pt nr ver",
        "A After All Although An And Another Any As At Because Before But By Did Do Does During Each Even "
        "Every For From Had Has Have He Her Here His How However I If In Instead Is It Its Later Many Maybe "
        "Meanwhile More Most My Nevertheless No Nobody Not Nothing Now On Once One Only Or Other Our "
        "Perhaps She Since So Some Soon Still Such That The Their Then There Therefore These They This "
        "Those Though Thus To Today Two Under Until Was We Were What When Where Whether Which While Who Why "
        "Will With Would Yes Yet You Your",
    ),
    "de": _language(
        "dr prof hr fr hrn frl dipl ing st z.b zb d.h dh u.a ua i.d.r idr bzw vgl sog evtl ggf ca inkl exkl "
        "zzgl bspw insb allg ehem geb gest gegr u.u o.ä z.t zt z.z v.a va i.a s.o s.u m.e max min mio mrd "
        "tsd num",
        "usw etc u.s.w uvm u.v.m o.g co jh jhdt v.chr n.chr jan feb febr mär apr jun jul aug sept okt nov "
        "dez str abs tel hrsg verl aufl",
        "nr nrn s bd abb kap art ziff anm tab",
        "Aber Alle Als Also Am An Auch Auf Aus Bei Beim Bis Da Dabei Dafür Damit Danach Dann Darum Das Dass "
        "Dem Den Denn Der Des Deshalb Die Dies Diese Dieser Dieses Doch Dort Du Durch Ein Eine Einen Einer "
        "Er Es Für Gestern Hat Heute Hier Ich Ihr Ihre Im In Ist Ja Jede Jeder Jetzt Kein Keine Man Mein "
        "Mit Morgen Nach Nein Nicht Noch Nun Nur Ob Oder Ohne Schon Sein Seine Seit Sie Sind So Und Unter "
        "Viele Vom Von Vor War Warum Was Weil Wenn Wer Wie Wir Wo Zu Zum Zur Zwar",
        ordinals=True,
    ),
    "fr": _language(
        "m mm mme mmes mlle mlles me dr pr st ste mgr p.ex p.e cf c.-à-d env av bd chap éd vs",
        "etc cie j.-c apr janv févr avr juil sept oct nov déc",
        "n no art fig p pp vol t",
        "Alors Après Au Aussi Avec Car Ce Ces Cet Cette Chaque Comme Dans De Depuis Des Du Elle Elles En "
        "Enfin Ensuite Et Il Ils J' Je L' La Le Les Leur Lorsque Mais Même Mon Nous On Or Ou Par Pendant "
        "Pour Pourquoi Puis Quand Que Qui Sa Selon Si Son Sur Tous Tout Tu Un Une Vous",
    ),
    "es": _language(
        "sr sra srta sres dr dra d da dña prof ud uds vd vds p.ej ej fdo gral lic ing st sto sta avda av c",
        "etc cía s.a s.l ee.uu a.c d.c ene feb mar abr jun jul ago sept oct nov dic",
        "n núm art fig pág págs p pp vol cap",
        "A Además Al Algunos Antes Aquel Así Aunque Cada Como Con Cuando De Desde Después Donde Dos El Ella "
        "Ellos En Entonces Era Es Ese Esta Este Esto Estos Fue Ha Hay La Las Lo Los Luego Mientras Mi "
        "Muchos No Nos Para Pero Por Porque Que Quien Se Según Si Sin Sobre Su Sus También Tras Un Una Y Ya "
        "Yo",
    ),
    "it": _language(
        "sig sigg sig.ra sig.na dott dott.ssa prof prof.ssa ing avv arch geom rag on sen mons don s ss p.es "
        "es cfr ca",
        "ecc etc s.p.a spa s.r.l srl a.c d.c gen feb mar apr mag giu lug ago set ott nov dic",
        "n nn num art fig pag pagg p pp vol cap",
        "A Ai Al Alla Anche Che Chi Ci Come Con Così Da Dal Dalla Del Della Dopo Dove Due E È Ed Era Erano "
        "Fu Gli Ha Hanno I Il In Io La Le Lei Lo Loro Lui Ma Mentre Molti Nel Nella No Noi Non O Ogni Ora "
        "Per Perché Però Più Poi Quando Quella Quello Questa Questo Qui Se Secondo Si Sono Su Tra Tutti "
        "Tutto Un Una Uno",
    ),
    "nl": _language(
        "dhr mevr mw dr drs prof ing ir mr st bijv bv d.w.z dwz o.a oa m.b.t mbt i.p.v ipv t.o.v vgl ca "
        "incl excl z.g zgn a.u.b aub m.a.w n.a.v t.a.v jl",
        "enz etc b.v n.v bv nv jan feb mrt apr jun jul aug sept okt nov dec",
        "nr nrs blz p art fig hfst",
        "Aan Al Alle Alleen Als Bij Daar Daarna Dan Dat De Deze Die Dit Door Drie Een Eerst En Er Haar Had "
        "Heeft Het Hier Hij Hoe Hun Ik In Is Ja Je Maar Man Meer Men Met Mijn Na Naar Nee Niet Nog Nu Of Om "
        "Omdat Onder Ook Op Over Sinds Te Toch Toen Tot Twee U Uit Van Veel Volgens Voor Waar Waarom Want "
        "Was Wat We Wel Welke Wie Wij Ze Zij Zijn Zo Zoals",
    ),
    "ru": _language(
        "т.е т.к т.н напр см ср им проф акад доц св ул пл пр просп пер обл р-н гр г-н г-жа и.о к.т.н д.т.н",
        "т.д т.п др пр г гг в вв руб коп тыс млн млрд стр эт кв янв февр апр авг сент окт нояб дек",
        "№ рис табл гл п пп с д",
        "А Без Более Были Было Был Быть В Во Вот Все Всё Вы Где Да Для До Его Если Есть Ещё Же За Здесь И "
        "Из Или Именно Их К Как Когда Кроме Кто Мы На Над Не Но О Об Однако Он Она Они Оно От Ответ По Под "
        "Поэтому При С Сегодня Со Так Также Там Теперь То Тогда Только Ты У Уже Что Чтобы Это Эти Этот Я",
    ),
}

ALL_LANGUAGES = Language(
    within=frozenset().union(*(language.within for language in LANGUAGES.values()))
    - frozenset().union(*(language.either for language in LANGUAGES.values())),
    either=frozenset().union(*(language.either for language in LANGUAGES.values())),
    numbered=frozenset().union(*(language.numbered for language in LANGUAGES.values())),
    starters=frozenset().union(*(language.starters for language in LANGUAGES.values())),
)
"""For text in an unknown language: the abbreviations of all languages."""
