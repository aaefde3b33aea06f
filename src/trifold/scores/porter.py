"""The stemmer of Porter (1980) with the extensions of NLTK, as in rouge-score."""

from functools import lru_cache

IRREGULAR = """sky:sky skies:sky dying:die lying:lie tying:tie news:news innings:inning inning:inning outings:outing
    outing:outing cannings:canning canning:canning howe:howe proceed:proceed exceed:exceed succeed:succeed"""
STEP_2 = """ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous ization:ize
    ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive biliti:ble fulli:ful"""
STEP_3 = "icate:ic ative: alize:al iciti:ic ical:ic ful: ness:"
STEP_4 = "al: ance: ence: er: ic: able: ible: ant: ement: ment: ent: ion: ou: ism: ate: iti: ous: ive: ize:"


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """The stem of a lower-case word of at least three letters."""
    for form in IRREGULAR.split():
        if form.startswith(f"{word}:"):
            return form.removeprefix(f"{word}:")
    word = _replace(word, f"ies:{'ie' if len(word) == 4 else 'i'} sses:ss ss:ss s:")
    word = _remove_ed_and_ing(word)
    if _shape(word[:-1]).endswith(("cc", "vc")):
        word = _replace(word, "y:i")
    if word.endswith("alli") and _shape(word[:-4]).count("vc"):
        word = word[:-2]
    if word.endswith("logi") and _shape(word[:-3]).count("vc"):
        word = word[:-1]
    word = _replace(_replace(word, STEP_2, 1), STEP_3, 1)
    if not word.endswith("ion") or word.endswith(("sion", "tion")):
        word = _replace(word, STEP_4, 2)
    word = _replace(word, "e:", 2 if _ends_cvc(word[:-1]) else 1)
    return word[:-1] if word.endswith("ll") and _shape(word[:-1]).count("vc") > 1 else word


def _remove_ed_and_ing(word: str) -> str:
    if word.endswith(("ied", "eed")):
        word = _replace(word, "eed:ee", 1)
        return _replace(word, f"ied:{'ie' if len(word) == 4 else 'i'}")
    base = _replace(word, "ed: ing:")
    if base == word or "v" not in _shape(base):
        return word
    if base.endswith(("at", "bl", "iz")) or (_shape(base).count("vc") == 1 and _ends_cvc(base)):
        return base + "e"
    doubled = base[-1:] == base[-2:-1] and _shape(base).endswith("c") and base[-1] not in "lsz"
    return base[:-1] if doubled else base


def _replace(word: str, rules: str, least: int = 0) -> str:
    """Apply the first rule whose suffix the word has, if `least` or more consonants of the rest follow a vowel."""
    for suffix, new in (rule.split(":") for rule in rules.split()):
        if word.endswith(suffix):
            rest = word.removesuffix(suffix)
            return rest + new if _shape(rest).count("vc") >= least else word
    return word


def _shape(word: str) -> str:
    """A letter c for each consonant and v for each vowel; y after a consonant is a vowel."""
    shape = ""
    for letter in word:
        shape += "v" if letter in "aeiou" or (letter == "y" and shape.endswith("c")) else "c"
    return shape


def _ends_cvc(word: str) -> bool:
    shape = _shape(word)
    return shape == "vc" or (shape.endswith("cvc") and word[-1] not in "wxy")
