"""Keys of config.json and generation_config.json that our tables lack: an error if the reference
reads them, ignored otherwise, with one line that lists them.

What the reference reads is in reference_keys.json, which tools/reference_keys.py writes for one
version of it.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from trifold.errors import SettingsError
from trifold.settings import similar, warn

MAX_LISTED = 20  # ignored keys in a line
CODE = ("auto_map", "custom_pipelines")  # they name Python code of a folder
# They select faster versions of the same numbers, unless they name a repository of code.
KERNELS = ("_attn_implementation", "attn_implementation", "experts_implementation")


class ReferenceKeys(NamedTuple):
    """The keys that a version of the reference reads, each with the values that do nothing, as far
    as they are known.

    shared: of every family. families: further ones by `model_type`. generation: of
    generation_config.json. rope: of the groups of rotary positions. adapter: of
    adapter_config.json, which another library reads. version, adapter_version: of the libraries.
    """

    version: str
    adapter_version: str
    shared: dict[str, list[Any]]
    families: dict[str, dict[str, list[Any]]]
    generation: dict[str, list[Any]]
    rope: frozenset[str]
    adapter: frozenset[str]


@cache
def reference_keys() -> ReferenceKeys:
    """The content of reference_keys.json."""
    table = json.loads(Path(__file__).with_name("reference_keys.json").read_text("utf-8"))
    return ReferenceKeys(
        table["transformers"],
        table["peft"],
        table["shared"],
        table["families"],
        table["generation"],
        frozenset(table["rope"]),
        frozenset(table["adapter"]),
    )


class UnknownKeys:
    """The keys of a group that our table lacks, sorted: `ignored` ones, and `refused` ones with the
    line of an error for each. Names are dotted. library: what reads the file, and its version.
    """

    def __init__(self, library: str = "transformers") -> None:
        self.library = library
        self.ignored: list[str] = []
        self.refused: list[str] = []

    def add(self, key: str, value: object, harmless: list[Any] | None, at: str = "") -> None:
        """Sort a key of the group `at`; harmless: the values with which the reference reads it
        without effect, None if it does not read it.
        """
        if key in KERNELS and "/" not in str(value):
            return
        if key in CODE:
            self.refused.append(
                f"{at}{key}: the folder brings Python code of its own, which is never run; use a "
                "folder of a family of transformers, or remove the key if its weights are those "
                "of this family"
            )
        elif harmless is None:
            self.ignored.append(f"{at}{key}")
        elif not any(type(value) is type(one) and value == one for one in harmless):
            self.refused.append(
                f"{at}{key}: {value!r:.60} is not supported, and {self.library} "
                f"{_version(self.library)} reads this key; use a model without it, or remove it if "
                "the weights were made without it"
            )

    def add_rope(self, group: object, known: Collection[str], at: str) -> None:
        """Sort the keys of a group of rotary positions, which may be in groups by type of layer."""
        if not isinstance(group, Mapping):
            return
        read = reference_keys().rope
        inner = {key: value for key, value in group.items() if isinstance(value, Mapping)}
        outer = {key: value for key, value in group.items() if key not in inner}
        groups = {at: outer} | {f"{at}{key}.": value for key, value in inner.items()}
        for place, keys in groups.items():
            for key, value in keys.items():
                if value is not None and key not in known:
                    self.add(key, value, [] if key in read else None, place)

    def check(self) -> None:
        """Raise SettingsError for refused keys."""
        if self.refused:
            raise SettingsError("\n".join(self.refused))


def model_keys(model_type: str) -> Mapping[str, list[Any]]:
    """The keys of config.json that the reference reads for a family."""
    table = reference_keys()
    return table.shared | table.families.get(model_type, {})


def warn_of_ignored(
    place: Path | str,
    unknown: UnknownKeys,
    known: Iterable[str],
    written_by: object,
) -> None:
    """Print one line that lists ignored keys, once for each file.

    known: keys of ours that are not in the file; one that is similar is suggested. written_by: the
    version of the library that wrote the file.
    """
    ignored = unknown.ignored
    if not ignored:
        return
    version = _version(unknown.library)
    candidates = [*known]
    listed = [f"{key:.60}{_suggestion(key, candidates)}" for key in [*ignored][:MAX_LISTED]]
    if len(ignored) > MAX_LISTED:
        listed.append(f"{len(ignored) - MAX_LISTED:,} more")
    names = ", ".join(listed)
    if is_newer(written_by, version):
        reason = (
            f"which {unknown.library} {version} does not read; the file is of version "
            f"{written_by!s:.20}, which may read them"
        )
    else:
        reason = f"which {unknown.library} {version} does not read either"
    plural = "s" if len(ignored) > 1 else ""
    _warn_once(f"{place}: ignored key{plural}, {reason}: {names}")


def _version(library: str) -> str:
    """The version of a library whose reads are known."""
    table = reference_keys()
    return {"transformers": table.version, "peft": table.adapter_version}[library]


def _suggestion(key: str, known: Iterable[str]) -> str:
    """(did you mean 'x'?) if a known key is similar to the last part of a dotted one."""
    hint = similar(key.rpartition(".")[2], known, 0.8)
    if not hint:
        return ""
    return f" ({hint.removeprefix('; ')})"


def is_newer(written_by: object, version: str) -> bool:
    """Whether the version that wrote a file is newer than this one."""
    return _numbers(str(written_by)) > _numbers(version)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers at the start of a version, such as 5.2 of 5.2.0.dev0; empty without any."""
    found = re.match(r"\d{1,6}(?:\.\d{1,6}){0,2}", version)
    if found is None:
        return ()
    return tuple(map(int, found[0].split(".")))


@lru_cache(maxsize=1024)
def _warn_once(line: str) -> None:
    warn(line)
