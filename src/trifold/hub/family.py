"""What a family is: a translation of config.json and a table of rules. One small file each, in families/."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from trifold.hub.generation import GENERATION_KEYS
from trifold.hub.rules import AnyRule
from trifold.nn import ModelConfig
from trifold.settings import Settings


@dataclass(frozen=True)
class Family:
    """How one `model_type` of config.json is read and written.

    fits: whether this family can say everything that the config says.
    write: our config as the keys of theirs (model_type left out).
    read: theirs as ours; raises SettingsError for a key that is not known or not supported.
    rules: which of our parameters are which of their tensors.
    """

    model_type: str
    architecture: str
    fits: Callable[[ModelConfig], bool]
    write: Callable[[ModelConfig], dict[str, object]]
    read: Callable[[Mapping[str, Any]], ModelConfig]
    rules: Callable[[ModelConfig], Sequence[AnyRule]]


# Keys that the reference library writes into every config and that do not change what the model computes.
HARMLESS = frozenset(
    """
    _attn_implementation_autoset _name_or_path _num_labels architectures chunk_size_feed_forward dtype
    finetuning_task gradient_checkpointing id2label label2id model_type output_attentions output_hidden_states
    problem_type return_dict task_specific_params tokenizer_class torch_dtype torchscript transformers_version
    use_cache use_return_dict
    """.split()
)

File = TypeVar("File", bound=Settings)


def parse_config(kind: type[File], values: Mapping[str, Any]) -> File:
    """The keys that a family reads, typed by its settings class; an absent key is at the reference's default.

    Harmless keys are passed over, and so are null ones that the class does not know. Any other is refused.
    """
    kept = {
        key: value
        for key, value in values.items()
        if key in kind.model_fields
        or (value is not None and key not in HARMLESS and key not in GENERATION_KEYS)
    }
    return kind.parse(kept)
