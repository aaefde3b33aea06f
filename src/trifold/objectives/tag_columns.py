"""Checks of the columns of words and tags: the scheme, types seen once, words that are numbers."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, pairwise

from trifold.data import Rows
from trifold.errors import DataError, plural
from trifold.scores.entities import count_invalid, find_entities

# Prefixes beside O -> the scheme that has them; the first one that fits.
SCHEMES = {"I": "IO", "BI": "BIO", "BIES": "BIOES", "BILU": "BILOU", "BMES": "BMES"}
_OTHER_SIGN = re.compile(r"([A-Za-z])[_:./ ](.+)")  # B_ORG
_PREFIX_LAST = re.compile(r"(.+)[-_:./ ]([BIESbies])")  # ORG-B
MANY_NUMBERS = 0.5  # share of the words, of which a column of numbers has more
FREQUENT = 20  # entities of the data, beside which a type that is seen once may be a typo


def check_columns(rows: Rows) -> None:
    """Raises DataError if words and tags are the same column."""
    words, tags = rows.columns["words"], rows.columns["tags"]
    if all(map(_are_equal, words, tags)):
        raise DataError(
            f"{rows.report.name}:{rows.lines[0]}: the words are also the tags, such as "
            f"{tags[0][0]!r:.40}; set data.columns.words and data.columns.tags to two columns"
        )


def _are_equal(words: Sequence[str], tags: Sequence[str]) -> bool:
    return [word.strip() for word in words] == [*tags]


def numbers_warning(rows: Rows) -> str | None:
    """A warning if most words are integers, as in a column that numbers the words."""
    words = [*chain(*rows.columns["words"])]
    numbers = [word for word in words if word.isdecimal()]
    if len(numbers) <= MANY_NUMBERS * len(words):
        return None
    share = 100 * len(numbers) / len(words)
    first = ", ".join(map(repr, numbers[:3]))
    return (
        f"warning: {rows.report.name}: {share:.0f} % of the words are numbers ({first}, …); if "
        "they number the words, set data.columns.words to the column of the words (from 0)"
    )


def describe_example(rows: Rows) -> str:
    """`'Port' → B-ORG`: the first word with a tag other than O, or the first one of all."""
    words, tags = (chain(*rows.columns[name]) for name in ("words", "tags"))
    pairs = [*zip(words, tags, strict=True)]
    word, tag = next((pair for pair in pairs if pair[1] != "O"), pairs[0])
    return f"such as {word!r:.40} → {tag:.40}"


# --- schemes --------------------------------------------------------------------------------------


def check_schemes(rows: Rows) -> None:
    """Raises DataError for tags that are not of entities."""
    columns = rows.columns
    for line, words, tags in zip(rows.lines, columns["words"], columns["tags"], strict=True):
        wrong = next((tag for tag in tags if not is_tag(tag)), None)
        if wrong is not None:
            place = f"{rows.report.name}:{line}"
            raise DataError(f"{place}: {_problem(wrong, words, tags, find_scheme(rows))}")


def are_of_entities(tags: Collection[str]) -> bool:
    """Whether some tag is O, or at least half of the different ones have prefixes or seem to be
    meant so; not parts of speech, such as NOUN. Numbers may stand for either.
    """
    if "O" in tags or all(map(str.isdecimal, tags)):
        return True
    alike = [tag for tag in tags if len(tag) > 1 and (is_tag(tag) or _meant(tag) is not None)]
    return len(alike) >= len(tags) / 2


def is_tag(text: str) -> bool:
    """Whether a text is a tag of an entity, or O."""
    try:
        list(find_entities([text]))
    except DataError:
        return False
    return True


def find_scheme(rows: Rows) -> str:
    """The name of the scheme of most tags; BIOES if none has a prefix."""
    tags = {*chain(*rows.columns["tags"])}
    prefixes = {tag[0] for tag in tags if tag[1:2] == "-" and is_tag(tag)}
    if not prefixes:
        return "BIOES"
    return next((name for letters, name in SCHEMES.items() if prefixes <= {*letters}), "BIOES")


def _problem(wrong: str, words: Sequence[str], tags: Sequence[str], scheme: str) -> str:
    """What is wrong with a tag, and the remedy."""
    remedy = "set data.columns.tags, or task.best_by=accuracy for tags that are not of entities"
    if all(map(str.isdecimal, tags)):
        return f"the tags are numbers without names; write names such as B-PER, or {remedy}"
    found = f"{wrong!r:.40} is not a tag of the scheme {scheme}"
    if all(map(is_tag, words)) and not all(map(is_tag, tags)):
        return (
            f"{found}, but the words look like tags ({words[0]!r:.40}); the columns are swapped: "
            "set data.columns.words and data.columns.tags (numbers from 0)"
        )
    meant = _meant(wrong)
    if meant is not None:
        return f"{found}; did you mean {meant!r:.40}? Write all tags so, or {remedy}"
    return f"{found}; a tag is O, or a prefix such as B- and a type; {remedy}"


def _meant(wrong: str) -> str | None:
    """The tag that one in another form, such as b-org, B_ORG and ORG-B, probably is."""
    forms = [wrong.upper(), wrong]
    if match := _OTHER_SIGN.fullmatch(wrong):
        forms.append(f"{match[1].upper()}-{match[2]}")
    if match := _PREFIX_LAST.fullmatch(wrong):
        forms.append(f"{match[2].upper()}-{match[1]}")
    fitting = (form for form in forms if form == "O" or (form[1:2] == "-" and is_tag(form)))
    return next(fitting, None)


def scheme_notes(rows: Rows) -> Iterator[str]:
    """Notes about tags that continue no entity of their type, and about types that are seen once
    beside frequent ones, which may be typos.
    """
    sentences = rows.columns["tags"]
    count = sum(map(count_invalid, sentences))
    if count:
        odd = next(filter(count_invalid, sentences))
        before, tag = next(pair for pair in pairwise(["O", *odd]) if _is_odd(pair))
        yield (
            f"{plural(count, 'I- or E- tag')} in no entity of that type (such as {tag:.40} after "
            f"{before:.40}): begin one"
        )
    types = Counter(entity.type for tags in sentences for entity in find_entities(tags))
    single = sorted(name for name, number in types.items() if number == 1)
    if single and types.total() >= FREQUENT:
        yield f"seen once, perhaps a typo: {', '.join(single[:5])}"


def _is_odd(pair: tuple[str, str]) -> bool:
    """Whether the second of two tags does not continue the first, but says so."""
    before, tag = pair
    prefix = [before] if before != "O" else []
    return count_invalid([*prefix, tag]) > count_invalid(prefix)
