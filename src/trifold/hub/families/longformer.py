"""Longformer (Beltagy et al. 2020): RoBERTa with a window, and global tokens with projections of
their own; LED, which has BART's decoder.

Which tokens are global depends on the class: the first for sequences, the question for spans, the
answer for choices. Other classes of Longformer have none by default. In LED it is the first, as in
the paper for summaries; `transformers` has none unless it gets a `global_attention_mask`.
`Inputs.globals` chooses any others.
"""

from typing import Any

from trifold.errors import SettingsError
from trifold.hub.families.bart import BART, RULES as BART_RULES, two_stacks
from trifold.hub.families.bert import CHOICE, ROBERTA, ROBERTA_RULES
from trifold.hub.rope import repeated
from trifold.hub.rows import SIZE, Entry, Fields, fixed, row


def _load_window(file: Any, fields: Fields) -> Fields:
    """Theirs counts the tokens on both sides, ours those on one side and the token itself."""
    layers = fields["n_layers"]
    window = file.attention_window
    sizes = window if isinstance(window, list) else [window] * layers
    if len(sizes) != layers or any(size % 2 for size in sizes):
        raise SettingsError(
            f"attention_window: {window} is not supported; give one even number, or one for "
            f"each of {layers} layers"
        )
    windows = [size // 2 + 1 for size in sizes]
    first = windows[0]
    pattern = repeated(["local" if window == first else window for window in windows])
    return {"sliding_window": first, "window_pattern": pattern}


WINDOW = Entry(
    {"attention_window": (SIZE | list[SIZE], 512)},
    _load_window,
    # 0, which cannot be read, for a layer without a window.
    lambda config: {
        "attention_window": [2 * (config.window(n) or 1) - 2 for n in range(config.n_layers)]
    },
)


def _check_separator(file: Any, fields: Fields) -> Fields:
    if file.sep_token_id not in (None, fields["eos_id"]):
        raise SettingsError(
            f"sep_token_id: {file.sep_token_id} is not supported; it must equal eos_token_id"
        )
    return {}


SEPARATOR = Entry(
    {"sep_token_id": (int | None, 2)},
    _check_separator,
    lambda config: {"sep_token_id": config.eos_id},
)
NAMES = ("query", "key", "value")
PROJECTIONS = {
    f"self_attention.sublayer.global_{name[0]}_proj": f"attention.self.{name}_global"
    for name in NAMES
}
CLASSES = {name: ROBERTA.classes[name] for name in ("ForMaskedLM", *ROBERTA.classes)}
LONGFORMER = ROBERTA.related(
    "longformer",
    *(WINDOW, SEPARATOR),
    vocab_size=30522,
    classes={
        **CLASSES,
        "ForSequenceClassification": CLASSES["ForSequenceClassification"]
        | {"global_tokens": "first"},
        "ForQuestionAnswering": CLASSES["ForQuestionAnswering"] | {"global_tokens": "question"},
        "ForMultipleChoice": CHOICE | {"global_tokens": "answer"},
    },
    without="classifier_dropout",
    constants={"global_projections": True},
    rules=ROBERTA_RULES.related(PROJECTIONS, prefix="longformer"),
    # Of the first release, and of exports.
    ignored="attention_mode ignore_attention_mask onnx_export",
)

# --- LED ------------------------------------------------------------------------------------------

OWN = "self_attn.longformer_self_attn."
ENCODER = {
    **{f"self_attention.sublayer.{name[0]}_proj": OWN + name for name in NAMES},
    **{f"self_attention.sublayer.global_{name[0]}_proj": f"{OWN}{name}_global" for name in NAMES},
    "self_attention.sublayer.o_proj": "self_attn.output",
}


LED = BART.related(
    "led",
    row("max_encoder_position_embeddings", "max_positions", 16384),
    row("max_decoder_position_embeddings", "max_decoder_positions", 1024),
    *(WINDOW, fixed(scale_embedding=False)),
    stem="LED",
    classes={
        name: fields for name, fields in BART.classes.items() if name != "ForSequenceClassification"
    },
    constants={
        **{"position_offset": 0, "scale_embeddings": False, "attention_bias": True},
        **{"decoder_window": 0, "global_tokens": "first", "global_projections": True},
    },
    rules=BART_RULES.related(two_stacks(ENCODER), without="attention feed_forward", prefix="led"),
    ignored=f"{BART.ignored} classifier_dropout",
    without="max_position_embeddings normalize_embedding classifier_dropout",
)
