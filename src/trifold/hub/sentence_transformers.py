"""Folders of sentence-transformers: modules.json names the modules after the Transformer, which pool and normalize.

Names of classes are compared, never imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from trifold.errors import CheckpointError
from trifold.hub.files import write_json
from trifold.jsonfiles import MAX_JSON, parse_json, read_bytes, read_json

MODULES, POOLING, LIMITS = "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"
PROMPTS, TOKENIZER = "config_sentence_transformers.json", "tokenizer_config.json"
STEPS = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]  # folders and classes
# Poolings in old folders, each with a boolean, and in new ones -> ours.
OLD = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
POOLINGS = OLD | {"cls": "cls", "mean": "mean", "max": "max"}
NO_LIMIT = 10**30  # as model_max_length


class SentenceModules(NamedTuple):
    """How the states of a text become its vector. max_length: the tokens of a text, which is truncated.

    problem: the modules or the setting that are not supported, if any.
    prompts: names of texts to be put before a text, by its purpose, and these texts; empty ones are left out.
    default_prompt: the name of the one that is used if none is chosen.
    """

    pooling: str = "mean"
    normalise: bool = False
    max_length: int | None = None
    problem: str | None = None
    prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str | None = None


def read_modules(folder: Path) -> SentenceModules | None:
    """The modules of a folder; None if it has no modules.json. Raises CheckpointError for an invalid file."""
    place = folder / MODULES
    if not place.is_file():
        return None
    found = parse_json(b'{"": %b}' % read_bytes(place, MAX_JSON), str(place))[""]
    listed = [step for step in found if isinstance(step, dict)] if isinstance(found, list) else []
    steps = [(str(step.get("path")), str(step.get("type")).rpartition(".")[2]) for step in listed]
    if steps not in (STEPS, STEPS[:2]):
        return SentenceModules(problem=f"{place}: {', '.join(name for _, name in steps)}")
    pooling, limits, prompts, tokenizer = (
        read_json(folder / name, largest=10 * NO_LIMIT) if (folder / name).is_file() else {}
        for name in (POOLING, LIMITS, PROMPTS, TOKENIZER)
    )
    modes = [key[13:] for key, chosen in pooling.items() if key.startswith("pooling_mode_") and chosen]
    mode: Any = pooling.get("pooling_mode", modes[0] if len(modes) == 1 else modes)
    all_prompts: Any = prompts.get("prompts") or {}
    named = (
        {name: text for name, text in all_prompts.items() if text} if isinstance(all_prompts, dict) else {}
    )
    default = prompts.get("default_prompt_name")
    valid = isinstance(all_prompts, dict) and all(isinstance(text, str) for text in named.values())
    lower = limits.get("do_lower_case")
    for file, key, value, supported in (
        (LIMITS, "do_lower_case", lower, not lower or tokenizer.get("do_lower_case") is True),
        (PROMPTS, "prompts", all_prompts, valid),
        (PROMPTS, "default_prompt_name", default, default is None or (valid and str(default) in all_prompts)),
        (
            POOLING,
            "include_prompt",
            pooling.get("include_prompt"),
            not named or pooling.get("include_prompt", True),
        ),
    ):
        if not supported:
            return SentenceModules(problem=f"{folder / file}: {key} {value!r:.60}")
    if not isinstance(mode, str) or mode not in POOLINGS:
        return SentenceModules(problem=f"{folder / POOLING}: pooling {mode!r:.60}")
    length = limits.get("max_seq_length") or tokenizer.get("model_max_length")
    limit = length if isinstance(length, int) and 0 < length < NO_LIMIT else None
    default = default if isinstance(default, str) and default in named else None
    return SentenceModules(POOLINGS[mode], steps == STEPS, limit, None, tuple(sorted(named.items())), default)


def write_modules(folder: Path, modules: SentenceModules, width: int, positions: int) -> None:
    """Write the inverse of `read_modules` for a model of this width. Raises CheckpointError for unsupported modules."""
    if modules.problem:
        raise CheckpointError(f"{modules.problem} is not supported; remove modules.json to keep the states")
    steps = STEPS[: 2 + modules.normalise]
    for path, _ in steps:
        (folder / path).mkdir(parents=True, exist_ok=True)
    modes = {f"pooling_mode_{name}": ours == modules.pooling for name, ours in OLD.items()}
    write_json(folder / POOLING, {"word_embedding_dimension": width, **modes})
    limit = min(modules.max_length or positions, positions)
    write_json(folder / LIMITS, {"max_seq_length": limit, "do_lower_case": False})
    if modules.prompts:
        write_json(
            folder / PROMPTS,
            {"prompts": dict(modules.prompts), "default_prompt_name": modules.default_prompt},
        )
    types = [(path, f"sentence_transformers.models.{name}") for path, name in steps]
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(types)]
    write_json(folder / MODULES, listed)
