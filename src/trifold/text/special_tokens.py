"""Special and added tokens: read them by role from a folder's files, and add them to a library
tokenizer.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from tokenizers import AddedToken, Tokenizer as Library

from trifold.errors import CheckpointError
from trifold.folders import UntrustedPath
from trifold.jsonfiles import read_json
from trifold.text.validation import Rejected, check_id

Names: TypeAlias = dict[str, str]  # role -> token

PAD = "<pad>"
BOS = "<s>"
EOS = "</s>"
UNK = "<unk>"
SPECIAL = [PAD, BOS, EOS, UNK]  # ids 0, 1, 2, 3 of a tokenizer that is trained here
# Tokens that are added for roles that no token of the library takes.
_ADDED = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS}
# Roles of tokens that may not be marked as special.
_NORMAL_ROLES = (*_ADDED, "unk_token")
NAMED_ROLES = (*_NORMAL_ROLES, "cls_token", "sep_token", "mask_token")
# What takes a role that the files leave open, most suitable first: a token, or the token of an
# earlier role.
_SUBSTITUTES = {
    "cls_token": ["[CLS]"],
    "sep_token": ["[SEP]"],
    "mask_token": ["[MASK]"],
    "eos_token": [EOS, "sep_token"],
    "bos_token": [BOS, "cls_token", "eos_token"],
    "pad_token": [PAD, "[PAD]", "eos_token"],
    "unk_token": [UNK, "[UNK]"],
}
# `transformers` adds missing tokens in this order.
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# Types of entries of tokenizer_config.json that are not tokens.
_TYPES: dict[str, type] = {"model_input_names": list}
_HOLE = re.compile(r"<mask>|<extra_id_\d+>")
_MAX_INTEGER = 10**31  # tokenizer_config.json writes 10^30 for "no limit"


def content_of(entry: object) -> str | None:
    """The text of a token, which a file may give as a string or as an object."""
    name = entry.get("content") if isinstance(entry, dict) else entry
    if isinstance(name, str) and name:
        return name
    return None


def is_hole(name: str) -> bool:
    """Whether a special token that is trained here stands for missing text: the mask, a
    sentinel.
    """
    return _HOLE.fullmatch(name) is not None


def names_of(settings: Mapping[str, Any], defaults: Names) -> Names:
    """Tokens by role: from the settings (null removes a role), else the defaults of the class."""
    named = {role: content_of(settings[role]) for role in ROLES if role in settings}
    return {role: name for role, name in (defaults | named).items() if name is not None}


def complete_names(library: Library, names: Mapping[str, str]) -> dict[str, str]:
    """Tokens by role: `names`; for other roles tokens of the library, or else those that are
    added.
    """
    special = {
        token.content for token in library.get_added_tokens_decoder().values() if token.special
    }
    found: dict[str, str | None] = {}
    for role, substitutes in _SUBSTITUTES.items():
        options = [found.get(each, each) for each in substitutes]
        is_normal = role in _NORMAL_ROLES
        known = [
            name
            for name in options
            if name in special or (is_normal and library.token_to_id(name or "") is not None)
        ]
        found[role] = names.get(role) or next(iter(known), _ADDED.get(role))
    return {role: name for role in NAMED_ROLES if (name := found[role]) is not None}


def merge_files(folder: UntrustedPath) -> dict[str, Any]:
    """The three settings files of a folder, merged as in `transformers`. Raises CheckpointError."""
    settings, special, added = (read_optional(folder / name) for name in SETTINGS)
    _check_roles(settings, folder / SETTINGS[0])
    _check_roles(special, folder / SETTINGS[1])
    _check_added_ids(added, folder / SETTINGS[2])
    for key, kind in _TYPES.items():
        value = settings.get(key)
        if value is not None and not isinstance(value, kind):
            raise CheckpointError(
                f"{folder / SETTINGS[0]}: {key} is {value!r:.40}, not a {kind.__name__}; correct "
                "it, or copy the file again"
            )
    if "added_tokens_decoder" not in settings:
        settings = settings | special
        roles = {content_of(settings.get(role)) for role in ROLES}
        tokens = {
            str(n): {"content": token, "special": token in roles} for token, n in added.items()
        }
        settings["added_tokens_decoder"] = tokens
    return settings


def _check_roles(settings: Mapping[str, Any], file: UntrustedPath) -> None:
    """Raise CheckpointError for a role whose value is no token; null and "" are none."""
    for role in ROLES:
        value = settings.get(role)
        if value not in (None, "") and content_of(value) is None:
            raise CheckpointError(
                f"{file}: {role} is {value!r:.40}, not the text of a token; write the token, or "
                "null if there is none"
            )


def _check_added_ids(added: Mapping[str, Any], file: UntrustedPath) -> None:
    """Raise CheckpointError unless the file maps each token to an id."""
    try:
        for token, number in added.items():
            check_id(number, f"{token[:40]!r}")
    except Rejected as error:
        raise CheckpointError(f"{file}: {error}; correct it, or copy the file again") from None


def read_optional(file: UntrustedPath) -> dict[str, Any]:
    """The content of a JSON file of a folder, if there is one. Raises CheckpointError."""
    if not file.exists():
        return {}
    return read_json(file, largest=_MAX_INTEGER)


def extra_tokens(settings: Mapping[str, Any]) -> Any:
    """What the settings say about special tokens without a role: a list, or an object by name."""
    return settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []


def added_tokens(document: Mapping[str, Any], settings: Mapping[str, Any]) -> list[AddedToken]:
    """The added tokens of a `tokenizer.json`, unless the settings list them."""
    if settings.get("added_tokens_decoder"):
        return []
    return [_make_token(entry) for entry in document.get("added_tokens") or []]


def new_tokens(
    library: Library, first: list[AddedToken], settings: Mapping[str, Any], names: Names
) -> list[AddedToken]:
    """`first`, tokens that the settings list by id, those of the roles, other special tokens: what
    `library` lacks.
    """
    tokens = {token.content: token for token in first}
    tokens |= {str(token.content): token for token in _listed_tokens(settings)}
    for role in ROLES:
        if role in names:
            entry = settings.get(role)
            name = names[role]
            if isinstance(entry, dict) or name not in tokens:
                tokens[name] = _make_special(entry, name)
            tokens[name].special = True
    extra = extra_tokens(settings)
    if isinstance(extra, dict):
        extra = list(extra.values())
    for entry in extra if isinstance(extra, list) else []:
        if (other := content_of(entry)) is not None:
            tokens.setdefault(other, _make_special(entry, other))
    special = {
        token.content: token.special for token in library.get_added_tokens_decoder().values()
    }
    return [
        token
        for name, token in tokens.items()
        if name not in special or token.special > special[name]
    ]


def _listed_tokens(settings: Mapping[str, Any]) -> Iterator[AddedToken]:
    table = settings.get("added_tokens_decoder") or {}
    place = "tokenizer_config.json: added_tokens_decoder"
    if not isinstance(table, dict) or not all(
        isinstance(e, dict) and content_of(e) for e in table.values()
    ):
        raise CheckpointError(f"{place} is not a list of tokens by id")
    try:
        for key in table:
            check_id(_number_of(key), f"{content_of(table[key])!r:.40}")
    except Rejected as error:
        raise CheckpointError(f"{place}: {error}; correct it, or copy the file again") from None
    return (_make_token(table[key]) for key in sorted(table, key=int))


def _number_of(key: str) -> int | str:
    """The id that is the key of an object, or the key if that is no id."""
    if re.fullmatch("[0-9]{1,20}", key):
        return int(key)
    return key


def _make_special(entry: object, name: str) -> AddedToken:
    options = entry if isinstance(entry, dict) else {}
    return _make_token({**options, "content": name, "special": True})


def _make_token(entry: Mapping[str, Any]) -> AddedToken:
    special = bool(entry.get("special", False))
    flags = {flag: bool(entry.get(flag, False)) for flag in ("single_word", "lstrip", "rstrip")}
    normalized = bool(entry.get("normalized", not special))
    return AddedToken(str(entry["content"]), special=special, normalized=normalized, **flags)
