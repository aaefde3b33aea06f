"""Longformer (Beltagy et al. 2020): RoBERTa with a window, and global tokens with projections of their own.

Which tokens are global depends on the class: the first for sequences, the question for spans, the answer for choices.
Other classes have none by default; `Inputs.globals` chooses them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trifold.errors import SettingsError
from trifold.hub.families.bert import CHOICE, ENTRIES, ROBERTA, ROBERTA_RULES, TEXT_ENCODER
from trifold.hub.family import in_layer
from trifold.hub.rows import SIZE, Entry, Fields, revise
from trifold.nn import ModelConfig


def _load_window(file: Any, fields: Fields) -> Fields:
    """Theirs counts the tokens on both sides, ours those on one side and the token itself."""
    layers, window = fields["n_layers"], file.attention_window
    sizes = window if isinstance(window, list) else [window] * layers
    if len({*sizes}) != 1 or len(sizes) != layers or sizes[0] % 2:
        raise SettingsError(
            f"attention_window: {window} is not supported; give one even number, or it {layers} times"
        )
    return {"sliding_window": sizes[0] // 2 + 1}


def _save_window(config: ModelConfig) -> Fields:
    window = config.sliding_window
    if window is None or window < 2 or config.window_pattern != ("local",):
        raise SettingsError("sliding_window: every layer needs one of at least 2 tokens in this family")
    return {"attention_window": [2 * window - 2] * config.n_layers}


WINDOW = Entry({"attention_window": (SIZE | list[SIZE], 512)}, _load_window, _save_window)


def _check_separator(file: Any, fields: Fields) -> Fields:
    if file.sep_token_id not in (None, fields["eos_id"]):
        raise SettingsError(f"sep_token_id: {file.sep_token_id} is not supported; it must equal eos_token_id")
    return {}


SEPARATOR = Entry(
    {"sep_token_id": (int | None, 2)}, _check_separator, lambda config: {"sep_token_id": config.eos_id}
)
PROJECTIONS = {
    f"self_attention.sublayer.global_{name[0]}_proj": f"attention.self.{name}_global"
    for name in ("query", "key", "value")
}
CLASSES = {name: ROBERTA.classes[name] for name in ("ForMaskedLM", *ROBERTA.classes)}
LONGFORMER = replace(
    ROBERTA,
    model_type="longformer",
    stem="Longformer",
    classes={
        **CLASSES,
        "ForSequenceClassification": CLASSES["ForSequenceClassification"] | {"global_tokens": "first"},
        "ForQuestionAnswering": CLASSES["ForQuestionAnswering"] | {"global_tokens": "question"},
        "ForMultipleChoice": CHOICE | {"global_tokens": "answer"},
    },
    entries=revise(ENTRIES, WINDOW, SEPARATOR, without="classifier_dropout position_embedding_type"),
    constants=TEXT_ENCODER | {"global_projections": True},
    rules=replace(
        ROBERTA_RULES,
        prefix="longformer",
        names=ROBERTA_RULES.names | in_layer(".encoder.layer.{i}.", PROJECTIONS),
    ),
    ignored="attention_mode ignore_attention_mask onnx_export",  # of the first release, and of exports
)
