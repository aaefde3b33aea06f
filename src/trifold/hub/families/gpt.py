"""GPT and its relatives.

GPT (Radford et al. 2018) is the decoder of 2017 without cross-attention, post-norm, with learned
positions. GPT-2 (Radford et al. 2019) is pre-norm; DistilGPT2 is one of six layers. Their matrices
are stored as (in, out), and one of them holds queries, keys and values. GPT-BigCode (StarCoder; Li
et al. 2023) is GPT-2 whose heads may all share one pair of keys and values. GPT-Neo (Black et al.
2021) is GPT-2 with unscaled scores; some layers attend to a window only.

GPT-J (Wang & Komatsuzaki 2021) has parallel attention and feed-forward on one norm, and rotary
positions. CodeGen (Nijkamp et al. 2022) is GPT-J whose queries, values and keys are stored in the
four parts of its tensor parallelism. GPT-NeoX and Pythia (Black et al. 2022) have two norms, and
queries, keys and values in one matrix, head by head.
"""

from typing import Any

from trifold.errors import SettingsError
from trifold.hub.family import Family, TensorRules
from trifold.hub.rope import rope, window_fields
from trifold.hub.rows import SIZE, Entry, Fields, fixed, ids, resized, row, rows, sizes
from trifold.hub.rules import Renamed
from trifold.hub.transforms import SAME, TRANSPOSED, Transform, interleaved
from trifold.nn import ModelConfig

# --- what decoders share --------------------------------------------------------------------------

DECODER: Fields = {"shape": "decoder", "norm_placement": "pre", "scale_embeddings": False}

CLASSES: dict[str, Fields] = {
    "ForCausalLM": {"heads": ("lm",)},
    "Model": {"heads": ()},
    "ForSequenceClassification": {
        "heads": ("sequence",),
        "classifier_input": "last",
        "classifier_bias": False,
        "classifier_dropout": 0.0,
    },
    "ForTokenClassification": {"heads": ("token",)},
    "ForQuestionAnswering": {"heads": ("span",), "classifier_dropout": 0.0},
}


def classes(*without: str, lm: str = "ForCausalLM") -> dict[str, Fields]:
    """The classes of a family that lacks some; `lm` is the ending of the one that generates."""
    renamed = {"ForCausalLM": lm}
    table = {renamed.get(name, name): fields for name, fields in CLASSES.items()}
    return {name: fields for name, fields in table.items() if name not in without}


def four_times(fields: Fields) -> int:
    """The width of a feed-forward network if it is missing."""
    return 4 * int(fields["d_model"])


def grouped(config: ModelConfig) -> Transform:
    """Grouped-query attention: for each key/value head its query heads, then the keys, then the
    values.
    """
    return interleaved(config.kv_heads, (config.n_heads // config.kv_heads, 1, 1))


# Keys that every family has.
COMMON = (
    row("tie_word_embeddings", "tie_lm_head", True),
    row(
        "classifier_dropout",
        "classifier_dropout",
        None,
        otherwise=lambda fields: 0.1,
        heads=("token",),
    ),
    fixed(is_encoder_decoder=False, add_cross_attention=False),
)
BASE = Family("", "", classes(), COMMON, DECODER, lambda config: ())

# GPT-2's keys and defaults, which other families took over.
GPT = BASE.related(
    "",
    *rows(vocab_size=50257, max_positions=("n_positions", 1024), d_model=("n_embd", 768)),
    *rows(
        n_layers=("n_layer", 12), n_heads=("n_head", 12), norm_epsilon=("layer_norm_epsilon", 1e-5)
    ),
    row("n_inner", "d_ff", None, otherwise=four_times),
    row("activation_function", "activation", "gelu_new"),
    *rows(dropout=("resid_pdrop", 0.1), embedding_dropout=("embd_pdrop", 0.1)),
    row("attn_pdrop", "attention_dropout", 0.1),
    ids(bos=50256, eos=50256),
)
# Keys of a second head, which is not read.
GPT_IGNORED = """
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    summary_last_dropout
"""

HEADS = {
    "heads.token.out_proj": "classifier",
    "heads.sequence.out_proj": "score",
    "heads.span.out_proj": "qa_outputs",
}

# --- GPT ------------------------------------------------------------------------------------------

LAYER = {  # norms come after in GPT
    "self_attention.{place:enter|after}": "ln_1",
    "self_attention.sublayer.o_proj": "attn.c_proj",
    "feed_forward.{place:enter|after}": "ln_2",
    "feed_forward.sublayer.in_proj": "mlp.c_fc",
    "feed_forward.sublayer.out_proj": "mlp.c_proj",
}
RULES = TensorRules(
    "transformer",
    ".wte",
    {"decoder_embeddings.positions": ".wpe", "decoder.final_norm": ".ln_f", **HEADS, **LAYER},
    layer=".h.{i}.",
    lm_head="lm_head",
    qkv=".h.{i}.attn.c_attn",
    matrix=TRANSPOSED,
    buffers=".h.{i}.attn.{buffer:bias|masked_bias}",
)
GPT2 = GPT.related(
    "gpt2",
    row(
        "scale_attn_weights", "attention_scale", True, map={True: None, False: 1.0}, explicit=False
    ),
    row("scale_attn_by_inverse_layer_idx", "attention_scale_by_layer", False),
    stem="GPT2",
    classes=classes(lm="LMHeadModel"),
    constants={"positions": "learned", "attention_bias": True},
    rules=RULES,
    ignored=f"{GPT_IGNORED} reorder_and_upcast_attn",  # the same numbers, rounded later
)


def _load_multi_query(file: Any, fields: Fields) -> Fields:
    """One head of keys and values, or as many as of queries."""
    if file.multi_query:
        return {"n_kv_heads": 1}
    return {"n_kv_heads": None}


BIGCODE = GPT2.related(
    "gpt_bigcode",
    Entry(
        {"multi_query": (bool, True)},
        _load_multi_query,
        lambda config: {"multi_query": config.kv_heads == 1},
    ),
    stem="GPTBigCode",
    classes=classes("ForQuestionAnswering"),
    rules=RULES.related(split=grouped, matrix=SAME),
    # The precision of softmax, and the settings of an inference server.
    ignored=f"""
    {GPT_IGNORED} attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner
    max_batch_size max_sequence_length num_key_value_heads pad_key_length pre_allocate_kv_cache
    validate_runner_input
    """,
    without="scale_attn_by_inverse_layer_idx",
    activation_function="gelu_pytorch_tanh",
)

OPENAI_ACTIVATIONS = {"gelu": "gelu-tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
OPENAI = GPT2.related(
    "openai-gpt",
    ids(),
    row("afn", "activation", "gelu", map=OPENAI_ACTIVATIONS),
    stem="OpenAIGPT",
    classes=classes("ForTokenClassification", "ForQuestionAnswering", lm="LMHeadModel"),
    constants={"norm_placement": "post", "d_ff": four_times},
    rules=RULES.related(
        {"decoder_embeddings.positions": ".positions_embed"},
        tokens=".tokens_embed",
        buffers=".h.{i}.attn.bias .position_ids",
    ),
    ignored=GPT_IGNORED,
    without="n_inner activation_function scale_attn_weights scale_attn_by_inverse_layer_idx",
    **resized(vocab=40478, n_positions=512),
)

# --- GPT-Neo --------------------------------------------------------------------------------------

WINDOW = 256


def _load_layers(file: Any, fields: Fields) -> Fields:
    """The windows of layers. Raises SettingsError for items that are not kinds with repetitions,
    and for another number of layers.
    """
    types: list[Any] = file.attention_types
    if types is None:
        types = [[["global", "local"], 12]]
    count = sum(_count_layers(item) for item in types)  # before they are expanded
    if count != file.num_layers:
        raise SettingsError(
            f"attention_types: has {count} layers, but num_layers is {file.num_layers}"
        )
    layers: list[str] = [kind for kinds, times in types for kind in kinds * times]
    given = file.attention_layers
    if given not in (None, layers):
        raise SettingsError(
            f"attention_layers: {given} contradicts attention_types, which gives {layers}"
        )
    return window_fields(layers, file.window_size)


def _count_layers(item: Any) -> int:
    """The layers that an item of attention_types stands for."""
    match item:
        case [[*kinds], int(times)] if times >= 0 and all(
            kind in ("global", "local") for kind in kinds
        ):
            return times * len(kinds)
    raise SettingsError(
        f"attention_types: {item!r} is not [kinds, repetitions] with the kinds global and local"
    )


def _save_layers(config: ModelConfig) -> Fields:
    """The inverse of `_load_layers`."""
    layers = ["local" if config.window(n) else "global" for n in range(config.n_layers)]
    window = config.sliding_window or WINDOW
    return {"attention_types": [[layers, 1]], "attention_layers": layers, "window_size": window}


NEO_ATTENTION = {
    "self_attention.sublayer.{p:q|k|v}_proj": "attn.attention.{p}_proj",
    "self_attention.sublayer.o_proj": "attn.attention.out_proj",
}
NEO = GPT.related(
    "gpt_neo",
    *rows(max_positions=("max_position_embeddings", 2048), d_model=("hidden_size", 2048)),
    *rows(n_layers=("num_layers", 24), n_heads=("num_heads", 16)),
    row("intermediate_size", "d_ff", None, otherwise=four_times),
    *rows(
        dropout=("resid_dropout", 0.0),
        embedding_dropout=("embed_dropout", 0.0),
        attention_dropout=0.0,
    ),
    Entry(
        {
            "attention_types": (list[Any] | None, None),
            "attention_layers": (list[str] | None, None),  # repeats attention_types
            "window_size": (SIZE, WINDOW),
        },
        _load_layers,
        _save_layers,
    ),
    stem="GPTNeo",
    constants={"positions": "learned", "attention_scale": 1.0, "attention_out_bias": True},
    without="n_positions n_embd n_layer n_head n_inner resid_pdrop embd_pdrop attn_pdrop",
    rules=RULES.related(
        NEO_ATTENTION,
        qkv="",
        matrix=SAME,
        buffers=".h.{i}.attn.attention.{buffer:bias|masked_bias}",
    ),
    ignored=GPT_IGNORED,
)

# --- GPT-J and GPT-NeoX ---------------------------------------------------------------------------

J_RULES = RULES.related(
    {
        "self_attention.sublayer.{p:q|k|v}_proj": "attn.{p}_proj",
        "self_attention.sublayer.o_proj": "attn.out_proj",
        "feed_forward.sublayer.in_proj": "mlp.fc_in",
        "feed_forward.sublayer.out_proj": "mlp.fc_out",
    },
    qkv="",
    matrix=SAME,
    buffers=".h.{i}.attn.{buffer:bias|masked_bias|causal_mask|embed_positions}",
)
GPTJ = GPT.related(
    "gptj",
    row("rotary_dim", "rotary_width", 64),
    stem="GPTJ",
    classes=classes("ForTokenClassification"),
    constants={"positions": "rotary", "rotary_pairs": "interleaved"}
    | {"residual": "parallel", "lm_head_bias": True},
    rules=J_RULES,
    ignored=f"{GPT_IGNORED} rotary scale_attn_weights",
    **resized(vocab=50400, n_positions=2048, n_embd=4096, n_layer=28, n_head=16),
    **resized(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False),
)

N_PARTS = 4  # of the stored projections of CodeGen


def _check_heads(file: Any, fields: Fields) -> Fields:
    if file.n_head % N_PARTS:
        raise SettingsError(
            f"n_head: {file.n_head} is not a multiple of {N_PARTS}, as CodeGen requires"
        )
    return {}


CODEGEN = GPTJ.related(
    "codegen",
    Entry({}, _check_heads),
    stem="CodeGen",
    classes=classes("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    rules=J_RULES.related(
        without="q|k|v",
        qkv=".h.{i}.attn.qkv_proj",
        order="qvk",
        split=lambda config: interleaved(N_PARTS, (1, 1, 1)),
    ),
)

NEOX = BASE.related(
    "gpt_neox",
    *sizes(
        vocab=50432, width=6144, inner=24576, layers=44, heads=64, positions=2048, activation="gelu"
    ),
    *rows(attention_dropout=0.0, attention_bias=True, dropout=("hidden_dropout", 0.0)),
    row("layer_norm_eps", "norm_epsilon", 1e-5),
    row(
        "use_parallel_residual",
        "residual",
        True,
        map={True: "parallel-two-norms", False: "sequential"},
    ),
    rope(part="rotary_pct", theta="rotary_emb_base"),
    ids(bos=0, eos=2),
    stem="GPTNeoX",
    tie_word_embeddings=False,
    rules=TensorRules(
        "gpt_neox",
        ".embed_in",
        {
            "decoder.final_norm": ".final_layer_norm",
            **HEADS,
            "self_attention.enter": "input_layernorm",
            "self_attention.sublayer.o_proj": "attention.dense",
            "feed_forward.enter": "post_attention_layernorm",
            "feed_forward.sublayer.in_proj": "mlp.dense_h_to_4h",
            "feed_forward.sublayer.out_proj": "mlp.dense_4h_to_h",
        },
        layer=".layers.{i}.",
        lm_head="embed_out",
        qkv=".layers.{i}.attention.query_key_value",
        split=grouped,
        more=lambda config, base: [Renamed("lm_head.weight", "embed_out.weight")],
        buffers=".layers.{i}.attention.{buffer:bias|masked_bias} "
        ".layers.{i}.attention.rotary_emb.inv_freq",
    ),
    ignored="attention_probs_dropout_prob hidden_dropout_prob",  # `transformers` does not read them
)
