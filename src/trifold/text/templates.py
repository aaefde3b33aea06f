"""Special tokens around a text, as post-processors of the tokenizer library."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tokenizers import Tokenizer as Library, processors

from trifold.errors import CheckpointError
from trifold.text.special_tokens import Names

Settings: TypeAlias = Mapping[str, Any]
# The special tokens around a text and around a pair, by role (`{sep}` is the separator), or a
# function that makes the post-processor.
Around: TypeAlias = tuple[str, str] | Callable[[Library, Settings, Names], Any]


def post_processor(around: Around, library: Library, settings: Settings, names: Names) -> Any:
    """Adds the special tokens around a text."""
    if callable(around):
        return around(library, settings, names)
    roles = {role.removesuffix("_token"): name for role, name in names.items()}
    return template(library, *(text.format(**roles) for text in around))


def id_of(library: Library, token: str) -> int:
    """The id of a special token. Raises CheckpointError if the vocabulary lacks it."""
    found = library.token_to_id(token)
    if found is None:
        raise CheckpointError(f"the special token {token!r} is not in the vocabulary")
    return found


def template(library: Library, single: str, pair: str) -> Any:
    """A post-processor; every word of the templates except $A and $B is a special token."""
    words = {word.split(":")[0] for word in f"{single} {pair}".split()} - {"$A", "$B"}
    ids = [(word, id_of(library, word)) for word in sorted(words)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def roberta(library: Library, settings: Settings, names: Names) -> Any:
    """`{cls} A {sep}`, and `{cls} A {sep} {sep} B {sep}` for a pair."""
    sep, cls = ((names[role], id_of(library, names[role])) for role in ("sep_token", "cls_token"))
    trim = bool(settings.get("trim_offsets", True))
    prefix = bool(settings.get("add_prefix_space"))
    return processors.RobertaProcessing(sep, cls, trim, prefix)


def bos_and_eos(library: Library, settings: Settings, names: Names) -> Any:
    """Begin and end tokens if `add_bos_token` and `add_eos_token` are set."""
    bos = names.get("bos_token") if settings.get("add_bos_token") else None
    eos = names.get("eos_token") if settings.get("add_eos_token") else None

    def surround(text: str, number: int) -> str:
        return " ".join(f"{token}:{number}" for token in (bos, text, eos) if token)

    single = surround("$A", 0)
    return template(library, single, f"{single} {surround('$B', 1)}")


def language(default: str, *, first: bool) -> Around:
    """The end token after a text, and the source language, by default `default`, before it or after
    both.
    """

    def around(library: Library, settings: Settings, names: Names) -> Any:
        code = settings.get("src_lang") or default
        eos = names["eos_token"]
        if first and not settings.get("legacy_behaviour"):
            return template(library, f"{code} $A {eos}", f"{code} $A $B {eos}")
        return template(library, f"$A {eos} {code}", f"$A $B {eos} {code}")

    return around
