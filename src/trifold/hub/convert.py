"""A model folder in another form: of Hugging Face or our own, of another precision, in shards or one file.

No model is built. Every tensor goes through two tables, that of the family it comes from and that of the one it goes
to, when it is its turn to be written; what is in memory at a time is one of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.hub import rules
from trifold.hub.families import FAMILIES
from trifold.hub.family import Family
from trifold.hub.files import check_inside, new_folder, read_bytes, read_json, write_json
from trifold.hub.folder import (
    CONFIG,
    families_for,
    family_and_config,
    generation_of,
    settled,
    write_settings,
)
from trifold.hub.lazy import Each
from trifold.hub.pickles import unpickled
from trifold.hub.sharding import LARGEST_SHARD, size_of
from trifold.hub.weights import dtype_name, has_weights, read_weights, write_weights
from trifold.nn import ModelConfig

Form = Literal["hugging-face", "native"]
NATIVE = "trifold"  # its model_type

# Keys of config.json that say nothing about the numbers and much to people.
TOLD = ("id2label", "label2id", "problem_type", "task_specific_params", "finetuning_task")
# Files that belong to a model and hold no weights: they go along as they are.
ALONG = """
    tokenizer.json target_tokenizer.json special_tokens_map.json added_tokens.json chat_template.jinja
    vocab.json target_vocab.json vocab.txt merges.txt bpe.codes
    spiece.model sentencepiece.bpe.model tokenizer.model source.spm target.spm
    README.md LICENSE LICENSE.txt LICENSE.md NOTICE
""".split()
SETTINGS = ("tokenizer_config.json", "preprocessor_config.json")  # … but for the code that they may name
TEMPLATES = "additional_chat_templates"
LARGEST_FILE = 100 * 2**20  # bytes, of those that go along
LARGEST_INTEGER = 10**31  # "no limit" is written 10^30 in these files


class Converted(NamedTuple):
    """What was written: families before and after, tensors, their bytes and precision, names of files."""

    was: str
    family: str
    tensors: int
    bytes: int
    dtype: str
    files: list[str]


def convert(
    old: Path,
    new: Path,
    *,
    to: Form | None = None,
    dtype: torch.dtype | None = None,
    max_shard_size: int | str = LARGEST_SHARD,
    trust_pickle: bool = False,
    on_written: Callable[[int, int], None] | None = None,
) -> Converted:
    """Write the model in the folder `old` to `new`, which must not exist or be empty.

    to: unless given, a family stays what it is, and our own form becomes that of the first family that has all of
    its parts. dtype: of every tensor; as it is unless given. Weights of more than max_shard_size are dealt out to
    shards. trust_pickle: open pickled weights, in a process of their own. `on_written` hears the bytes of
    all tensors, and of the one just written.

    Raises CheckpointError where `old` cannot be read, does not fit the form or the precision, and where `new` is taken
    or cannot be written; then nothing is left of it. Raises UsageError for a size that is none.
    """
    size_of(max_shard_size)
    values = read_json(old / CONFIG)
    source, config = family_and_config(values, old / CONFIG)
    with new_folder(new) as folder, _weights(old, folder, trust_pickle) as weights:
        config, held = settled(source, config, weights, old / CONFIG)
        target = _target(source, config, values.get("family"), to, old)
        table = source.rules(config)
        theirs = rules.checked(table, weights, held, str(old))

        def translated(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            made = rules.saving(target.rules(config), rules.loading(table, tensors, held))
            return made if dtype is None else Each(made, partial(_cast, dtype))

        # What the same steps make of tensors without content are the shapes, and so the sizes of the files.
        shapes = dict(translated(Each(theirs, lambda name, t: torch.empty_like(t, device="meta"))))
        total = sum(tensor.numel() * tensor.itemsize for tensor in shapes.values())
        heard = None if on_written is None else partial(on_written, total)
        write_weights(
            folder, translated(theirs), shapes=shapes, max_shard_size=max_shard_size, on_written=heard
        )

        _carry(old, folder)
        kept = dtype or _commonest(shapes)
        generation = generation_of(old, config, values)
        write_settings(folder, target, config, generation, kept, _told(values, source, target))
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return Converted(source.model_type, target.model_type, len(shapes), total, dtype_name(kept), files)


def _target(source: Family, config: ModelConfig, came_from: object, to: Form | None, old: Path) -> Family:
    """The family to write; `came_from` is what a folder of our own form says."""
    if to == "native":
        return FAMILIES[NATIVE]
    if source.model_type != NATIVE:
        return source
    for family in families_for(config, came_from):
        if family.model_type != NATIVE or to is None:
            return family
    raise CheckpointError(
        f"{old}: no family of Hugging Face has all of its parts; leave out --to, and it stays in our own form"
    )


@contextmanager
def _weights(old: Path, new: Path, trust_pickle: bool) -> Iterator[Mapping[str, Tensor]]:
    if has_weights(old) or not trust_pickle:
        yield read_weights(old)
        return
    # On the disk that the weights are meant for, as it may be the only one with room for them.
    scratch = Path(tempfile.mkdtemp(prefix=f"{new.name}-", dir=new.parent))
    try:
        yield unpickled(old, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _cast(dtype: torch.dtype, name: str, tensor: Tensor) -> Tensor:
    cast = tensor.to(dtype)
    if cast.is_meta or not cast.numel():
        return cast
    # (isinf would make copies of its own.)
    if any(bool(edge.isinf()) for edge in cast.aminmax()) and tensor.isfinite().all():
        raise CheckpointError(
            f"{name}: {float(tensor.abs().max()):g} is beyond {dtype_name(dtype)}: choose bfloat16 or float32"
        )
    return cast


def _commonest(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """Of most numbers."""
    count: Counter[torch.dtype] = Counter()
    for tensor in tensors.values():
        count[tensor.dtype] += tensor.numel()
    return count.most_common(1)[0][0]


def _told(values: Mapping[str, Any], source: Family, target: Family) -> dict[str, object]:
    """What the old config.json tells people; and where our own form came from."""
    told: dict[str, object] = {key: values[key] for key in TOLD if isinstance(values.get(key), (dict, str))}
    if target.model_type == NATIVE:
        came_from = values.get("family") if source is target else source.model_type
        told |= {"family": came_from} if isinstance(came_from, str) else {}
    return told


def _carry(old: Path, new: Path) -> None:
    """Copy what goes along. Settings lose the names of code: code is never passed on."""
    for name in ALONG:
        if (old / name).is_file():
            (new / name).write_bytes(read_bytes(old / name, LARGEST_FILE))
    for name in SETTINGS:
        if (old / name).is_file():
            settings = read_json(old / name, largest=LARGEST_INTEGER)
            if settings.pop("auto_map", None) is None:
                (new / name).write_bytes(read_bytes(old / name, LARGEST_FILE))
            else:
                write_json(new / name, settings)
    check_inside(old / TEMPLATES)
    for path in sorted((old / TEMPLATES).glob("*.jinja"))[:32]:
        (new / TEMPLATES).mkdir(exist_ok=True)
        (new / TEMPLATES / path.name).write_bytes(read_bytes(path, LARGEST_FILE))
