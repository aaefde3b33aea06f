"""Languages of multilingual translation models: each has a special token, before or after a text.

The lists are those of fairseq; their order is that of the ids.
"""

import re
from collections.abc import Mapping, Sequence

from trifold.errors import UsageError
from trifold.settings import nearest
from trifold.text.encoded import Encoded

MBART = """
    ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV
    my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN
""".split()
_MORE = """
    af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX
    sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
""".split()
MBART_50 = MBART + _MORE
M2M = {
    "m2m100": """
    af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha
    he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne
    nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo
    xh yi yo zh zu
""".split(),
    "wmt21": "en ha is ja cs ru zh de".split(),
}
# fra_Latn, fr_XX or __fr__
_TOKEN = re.compile(r"(__)?([a-z]{2,3}(?:_[A-Z][A-Za-z]{1,3})?)(?(1)__)")


def find_languages(special: Mapping[str, int]) -> dict[str, int]:
    """The codes of languages among special tokens -> their ids. Empty if there are fewer than
    two.
    """
    languages = {
        match[2]: number for token, number in special.items() if (match := _TOKEN.fullmatch(token))
    }
    return languages if len(languages) > 1 else {}


def language_id(key: str, code: str, languages: Mapping[str, int]) -> int:
    """The id of a language. Raises UsageError for an unknown one, which names the `key` and the
    nearest language.
    """
    if code not in languages:
        remedy = "; the tokenizer has no languages: leave it out"
        if languages:
            remedy = nearest(code, [*languages], "languages")
        raise UsageError(f"{key}: {code!r:.60} is not a language of this tokenizer{remedy}")
    return languages[code]


def set_language(
    rows: Sequence[Encoded], language: str, known: Mapping[str, int]
) -> list[list[int]]:
    """The ids of texts with the token of this source language instead of that of the tokenizer.

    Raises UsageError for an unknown language, and if the texts have no token of a language.
    """
    code = language_id("source_language", language, known)
    others = {*known.values()}
    if others.isdisjoint(rows[0].special):
        raise UsageError("source_language: the tokenizer adds no language to a text; leave it out")
    return [
        [
            code if text is None and token in others else token
            for token, text in zip(row.ids, row.texts, strict=True)
        ]
        for row in rows
    ]
