"""Special and added tokens: which there are, by role, and how they get into a library's tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from trifold.errors import CheckpointError, DataError
from trifold.jsonfiles import read_json
from trifold.text.assembly import Names
from trifold.text.checks import MOST_TOKENS

TOLD = ("split_special_tokens", "model_max_length", "model_input_names")

# In this order the reference adds what a vocabulary lacks.
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def content(entry: object) -> str | None:
    """The text of a token, which files write as a text or as an object."""
    name = entry.get("content") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) and name else None


def names_of(settings: Mapping[str, Any], usual: Names) -> Names:
    """Role -> token: the settings' own (null takes a role away), else what is usual for the class."""
    named = {role: content(settings[role]) for role in ROLES if role in settings}
    return {role: name for role, name in (usual | named).items() if name is not None}


def named_in(folder: Path, roles: Iterable[str]) -> dict[str, str]:
    """Role -> token, of these roles, as the Hugging Face files in `folder` give them, if there are any.

    Raises DataError for a file that is no sound JSON.
    """
    names: dict[str, str] = {}
    for file in (folder / "special_tokens_map.json", folder / "tokenizer_config.json"):
        try:
            entries = read_json(file, largest=10**31) if file.is_file() else {}
        except CheckpointError as error:
            raise DataError(f"{error}; mend or remove it") from None
        names |= {role: name for role in roles if (name := content(entries.get(role))) is not None}
    return names


def settings_in(folder: Path) -> dict[str, Any]:
    """What a tokenizer that was trained here says of itself in `folder`: limits, and what a model is to hear."""
    file = folder / "tokenizer_config.json"
    try:
        entries = read_json(file, largest=10**31) if file.is_file() else {}
    except CheckpointError as error:
        raise DataError(f"{error}; mend or remove it") from None
    return {key: entries[key] for key in TOLD if key in entries} if TOLD[-1] in entries else {}


def in_file(document: Mapping[str, Any], settings: Mapping[str, Any]) -> list[AddedToken]:
    """The added tokens of a `tokenizer.json`, which count where the settings list none."""
    if settings.get("added_tokens_decoder"):
        return []
    return [_token(entry) for entry in document.get("added_tokens") or []]


def add(library: Library, first: list[AddedToken], settings: Mapping[str, Any], names: Names) -> None:
    """Add `first`, then what the settings list by number, then the tokens of the roles, then other special ones."""
    tokens = {token.content: token for token in first}
    tokens |= {str(token.content): token for token in _listed(settings.get("added_tokens_decoder") or {})}
    for role in ROLES:
        if role in names:
            entry, known = settings.get(role), tokens.get(names[role])
            given = _special(entry, names[role]) if isinstance(entry, dict) else known
            token = given or _special(names[role], names[role])
            token.special = True
            tokens[names[role]] = token
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    for entry in extra.values() if isinstance(extra, dict) else extra if isinstance(extra, list) else []:
        name = content(entry)
        if name is not None:
            tokens.setdefault(name, _special(entry, name))
    special = {token.content: token.special for token in library.get_added_tokens_decoder().values()}
    new = [token for name, token in tokens.items() if name not in special or token.special > special[name]]
    library.add_tokens(new)


def _listed(listed: object) -> Iterator[AddedToken]:
    place = "tokenizer_config.json: added_tokens_decoder"
    if not isinstance(listed, dict) or not all(isinstance(e, dict) and content(e) for e in listed.values()):
        raise CheckpointError(f"{place} is not a list of tokens by id")
    if any(not key.isdecimal() or len(key) > 9 or int(key) >= MOST_TOKENS for key in listed):
        raise CheckpointError(f"{place} has an id that is not below {MOST_TOKENS:,}")
    return (_token(listed[key]) for key in sorted(listed, key=int))


def _special(entry: object, name: str) -> AddedToken:
    return _token({**(entry if isinstance(entry, dict) else {}), "content": name, "special": True})


def _token(entry: Mapping[str, Any]) -> AddedToken:
    special = bool(entry.get("special", False))
    flags = {flag: bool(entry.get(flag, False)) for flag in ("single_word", "lstrip", "rstrip")}
    normalized = bool(entry.get("normalized", not special))
    return AddedToken(str(entry["content"]), special=special, normalized=normalized, **flags)
