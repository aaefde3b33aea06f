"""config.json of each family: every key is supported or an error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hub.checkpoints import edit
from tests.hub.tiny import TINY

from trifold.errors import CheckpointError
from trifold.hub import families, load_model, read_config

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

Saved = Callable[..., Path]
DECODERS = [family for family, tiny in TINY.items() if tiny.buffer]
ENCODERS = ["bert", "roberta", "camembert", "xlm-roberta", "distilbert", "albert", "xlnet", "vit"]
ENCODERS += ["modernbert", "eurobert", "electra", "mpnet", "deberta-v2", "big_bird", "longformer"]


def test_the_table_has_all_families() -> None:
    assert set(TINY) | {"trifold"} == set(families.FAMILIES)


@pytest.mark.parametrize("family", TINY)
def test_every_key_of_the_reference_is_known(family: str, saved: Saved) -> None:
    folder = saved(family)
    config = read_config(folder)
    reference = getattr(transformers, TINY[family].config_class)
    edit(folder, **reference.from_pretrained(folder).to_dict())
    assert read_config(folder) == config


@pytest.mark.parametrize("family", TINY)
def test_defaults_are_those_of_the_reference(family: str, tmp_path: Path) -> None:
    reference = getattr(transformers, TINY[family].config_class)()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}), encoding="utf-8")
    config = read_config(tmp_path)
    if family != "falcon":
        assert config.d_model == getattr(reference, "encoder", reference).hidden_size
    edit(
        tmp_path,
        **{key: value for key, value in reference.to_dict().items() if key != "model_type"},
    )
    assert read_config(tmp_path) == config


REJECTED_BY_ALL: list[tuple[str, object, str]] = [
    ("auto_map", {"AutoModel": "evil.Model"}, "auto_map: the folder brings Python code of its own"),
    ("vocab_size", "40", "vocab_size: .*got '40'"),
    ("architectures", ["GPT2DoubleHeadsModel"], "architectures: .* is not known; known: "),
    ("architectures", "BertModel", "architectures: .* is not known; known: "),
]
# Images have no vocabulary; code that is older than the class of the reference is left out.
ACCEPTED = [("vit", "vocab_size")]
ACCEPTED += [(family, "auto_map") for family in ("falcon", "deepseek_v3", "phi3", "eurobert")]
REJECTED: dict[str, list[tuple[str, object, str]]] = {
    "decoder": [
        ("add_cross_attention", True, "add_cross_attention"),
        ("is_encoder_decoder", True, "is_enc"),
    ],
    "encoder": [
        ("add_cross_attention", True, "add_cross_attention"),
        ("is_encoder_decoder", True, "is_encoder_decoder"),
        ("is_decoder", True, "is_decoder"),
    ],
    "gpt2": [
        ("activation_function", "mish", "activation_function: 'mish' is not known; known: relu"),
        ("resid_pdrop", 1.5, "resid_pdrop: .*got 1.5"),
        ("n_head", 3, "n_heads 3 does not divide d_model 16"),
    ],
    "openai-gpt": [("afn", "gelu_new", "afn: 'gelu_new' is not known")],
    "gpt_bigcode": [("multi_query", 1, "multi_query")],
    "gptj": [
        ("rotary_dim", None, "rotary_dim"),
        ("activation_function", "relu6", "'relu6' is not known"),
    ],
    "codegen": [
        ("n_head", 2, "n_head: 2 is not a multiple of 4"),
        ("rotary_dim", 3, "rotary_width 3 must be even"),
    ],
    "gpt_neo": [
        ("attention_types", [[["global", "sparse"], 1]], "attention_types: .*sparse.* is not"),
        (
            "attention_layers",
            ["local", "local"],
            "attention_layers: .* contradicts attention_types",
        ),
        ("attention_types", [[["global"], 9_999]] * 10**5, "attention_types: has 999900000 layers"),
        ("attention_types", [[["global"], -1]], "attention_types: .* is not"),
        ("num_layers", 3, "attention_types: has 2 layers, but num_layers is 3"),
        ("window_size", 0, "window_size"),
    ],
    "gpt_neox": [
        (
            "rope_parameters",
            {"rope_type": "longrope", "factor": 2.0},
            "needs short_factor and long_factor",
        ),
        (
            "rope_parameters",
            {"rope_type": "llama3", "factor": 2.0},
            "needs low_freq_factor and high",
        ),
        ("rope_theta", 3.5, "rope_theta: 3.5 contradicts 10000.0"),
        ("rotary_pct", 1.5, "rotary_pct"),
    ],
    "llama": [
        (
            "rope_parameters",
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor: 0.5 is not supported",
        ),
        ("partial_rotary_factor", 0.5, r"(?<!\.)partial_rotary_factor: 0.5 is not supported"),
        ("rope_scaling", {"type": "linear"}, "rope_scaling.factor: rope_type linear needs one"),
        ("sliding_window", 4, "sliding_window: 4 is not supported, and transformers"),
        (
            "layer_types",
            ["sliding_attention"] * 2,
            "layer_types: only full_attention in each of 2 layers",
        ),
        ("hidden_act", "mish", "hidden_act: 'mish' is not known"),
    ],
    "mistral": [
        ("attention_bias", True, "attention_bias"),
        (
            "layer_types",
            ["sliding_attention", "full_attention"],
            "layer_types: only sliding_attention in each",
        ),
    ],
    "qwen2": [
        (
            "layer_types",
            ["sliding_attention"] * 2,
            "layer_types: layers with a window need sliding_window",
        ),
        ("layer_types", ["full_attention"] * 3, "layer_types: has 3 layers, but there are 2"),
        ("layer_types", ["full_attention", "linear_attention"], "layer_types"),
    ],
    "qwen3": [("head_dim", None, "head_dim")],
    "smollm3": [
        ("no_rope_layers", [1], "no_rope_layers: has 1 layers, but there are 2"),
        ("no_rope_layers", [1, 2], "no_rope_layers"),
        ("no_rope_layer_interval", 0, "no_rope_layer_interval"),
        (
            "layer_types",
            ["sliding_attention"] * 2,
            "layer_types: layers with a window need sliding_window",
        ),
    ],
    "phi3": [
        (
            "rope_parameters",
            {"rope_type": "yarn", "factor": 2.0},
            "yarn is not supported; known: default, longrope",
        ),
        ("rope_parameters", {"rope_type": "longrope"}, "needs short_factor and long_factor"),
        ("rope_scaling", {"type": "su"}, "rope_scaling.type"),
        (
            "rope_scaling",
            {"type": "linear", "factor": 2.0},
            "rope_scaling.type: linear is not supported",
        ),
        ("attention_bias", True, "attention_bias"),
    ],
    "olmo2": [
        ("sliding_window", 4, "sliding_window: 4 is not supported, and transformers"),
    ],
    "olmo3": [
        ("layer_types", ["full_attention"], "layer_types: has 1 layers, but there are 2"),
        (
            "partial_rotary_factor",
            0.5,
            "partial_rotary_factor: 0.5 is not supported, and transformers",
        ),
        (
            "rope_parameters",
            {"rope_theta": 300.0},
            "rope_parameters: needs sliding_attention and full_attention",
        ),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, "name it rope_type"),
        (
            "rope_parameters",
            {"sliding_attention": {"rope_type": "linear", "factor": 2.0}},
            "layers with a window are not scaled",
        ),
    ],
    "nanochat": [
        (
            "rope_parameters",
            {"rope_type": "yarn", "factor": 2.0},
            "yarn is not supported; known: default, linear",
        ),
    ],
    "granite": [
        ("residual_multiplier", 0.0, "residual_"),
        ("logits_scaling", 0.0, "logits_scaling"),
        ("attention_multiplier", -1.0, "attention_multiplier"),
    ],
    "glm4": [
        ("partial_rotary_factor", 1.5, "partial_rotary_factor"),
    ],
    "cohere2": [
        ("use_qk_norm", True, "use_qk_norm"),
        ("use_parallel_block", False, "use_parallel_block"),
        ("order_of_interleaved_layers", "global_attn_first", "order_of_interleaved_layers"),
    ],
    "mixtral": [
        ("num_local_experts", 1, "num_local_experts: .*got 1"),
        ("num_experts_per_tok", 5, "experts.per_token 5 exceeds"),
        ("quantization_config", {"quant_method": "awq"}, "weights in AWQ are not supported"),
    ],
    "qwen3_moe": [
        ("mlp_only_layers", [0], r"mlp_only_layers: \[0\] is not supported"),
        ("decoder_sparse_step", 2, "decoder_sparse_step"),
        ("num_experts", 5, "num_local_experts: 6 contradicts num_experts 5"),
    ],
    "gpt_oss": [
        ("swiglu_alpha", 1.5, "swiglu_alpha: input should be 1.702, got 1.5"),
        ("layer_types", ["full_attention"], "layer_types: has 1 layers, but there are 2"),
        ("layer_types", ["full_attention", "chunked_attention"], "layer_types"),
        ("quantization_config", {"quant_method": "mxfp4"}, "weights in MXFP4 are not supported"),
    ],
    "deepseek_v3": [
        ("scoring_func", "softmax", "scoring_func"),
        ("num_key_value_heads", 2, "num_key_value_heads: 2 contradicts num_attention_heads 4"),
        ("n_shared_experts", 0, "n_shared_experts: 0 is not supported"),
        ("n_group", 3, "experts.groups 3 does not divide experts.count 8"),
        ("qk_rope_head_dim", 3, "head_dim: 4 contradicts 3"),
        ("moe_layer_freq", 2, "moe_layer_freq"),
        ("quantization_config", {"quant_method": "fp8"}, "weights in FP8 are not supported"),
    ],
    "starcoder2": [("mlp_type", "gated", "mlp_type"), ("norm_type", "rms_norm", "norm_type")],
    "falcon": [
        ("num_ln_in_parallel_attn", 2, "needs new_decoder_architecture: true"),
        (
            "apply_residual_connection_post_layernorm",
            True,
            "apply_residual_connection_post_layernorm",
        ),
    ],
    "gemma": [
        ("hidden_activation", "silu", "hidden_activation: 'silu' contradicts hidden_act"),
        ("hidden_act", "mish", "hidden_act: 'mish' is not known"),
        ("use_bidirectional_attention", True, "use_bidirectional_attention"),
        ("sliding_window", 4, "sliding_window: 4 is not supported, and transformers"),
    ],
    "gemma2": [
        ("use_bidirectional_attention", True, "use_bidirectional_attention"),
        ("sliding_window_pattern", 6, "sliding_window_pattern"),
        ("layer_types", ["chunked_attention"] * 3, "layer_types"),
        ("query_pre_attn_scalar", 0, "query_pre_attn_scalar"),
        ("attn_logit_softcapping", 0.0, "attn_logit_softcapping"),
    ],
    "gemma3_text": [
        ("layer_types", ["full_attention"], "layer_types: has 1 layers, but there are 3"),
        (
            "rope_parameters",
            {"sliding_attention": {"type": "linear", "factor": 2.0}},
            "sliding_attention",
        ),
        (
            "rope_parameters",
            {"full_attention": {}, "rope_theta": 3.0, "factor": 2.0},
            r"move factor into them$",
        ),
    ],
    "t5gemma": [
        ("is_encoder_decoder", False, "is_encoder_decoder: False is not supported for this class"),
        (
            "decoder",
            {"rms_norm_eps": 0.1},
            r"decoder\.rms_norm_eps: 0.1 differs from that of the encoder, 1e-06",
        ),
        (
            "encoder",
            {"hidden_act": "silu", "per_layer_config": {"0": {}}},
            r"encoder\.per_layer_config: .* is not supported, and transformers",
        ),
        ("decoder", {"layer_types": ["full_attention"] * 26}, r"decoder\."),
        ("eos_token_id", [], "eos_token_id"),
    ],
    "opt": [
        ("layer_norm_elementwise_affine", False, "layer_norm_elementwise_affine"),
        ("_remove_final_layer_norm", 1, "remove_final_layer_norm"),
        ("activation_function", "mish", "'mish' is not known"),
    ],
    "bloom": [
        (
            "apply_residual_connection_post_layernorm",
            True,
            "apply_residual_connection_post_layernorm",
        ),
        ("slow_but_exact", True, "slow_but_exact"),
    ],
    "bert": [
        ("hidden_act", "mish", "hidden_act: 'mish' is not known; known: relu"),
        ("hidden_dropout_prob", 1.5, "hidden_dropout_prob: .*got 1.5"),
        ("num_attention_heads", 3, "n_heads 3 does not divide d_model 16"),
        ("position_embedding_type", "relative_key", "position_embedding_type"),
    ],
    "roberta": [
        ("max_position_embeddings", 2, "max_position_embeddings: 2 leaves no position"),
        ("pad_token_id", None, "pad_token_id: null"),
        ("pad_token_id", 40, "pad_token_id: 40 is outside the vocabulary of 40"),
    ],
    "distilbert": [
        ("activation", "mish", "activation: 'mish' is not known"),
        ("n_heads", 3, "n_heads 3"),
    ],
    "albert": [
        ("num_hidden_groups", 4, "num_hidden_groups: 4 of 1 for 3 layers"),
        ("inner_group_num", 5_000, "num_hidden_groups: .* 10,000 layers are the most"),
    ],
    "vit": [
        ("patch_size", 5, "does not divide image_size"),
        ("patch_size", 0, "patch_size: 0 is neither"),
        ("image_size", [12, 12, 12], "image_size: .* is neither"),
        ("image_size", "12", "image_size: "),
        ("image_size", 2**40, "image_size: "),
        ("pooler_act", "sine", "pooler_act: 'sine' is not known"),
        ("architectures", ["ViTForMaskedImageModeling"], "architectures: .* is not known"),
    ],
    "xlnet": [
        ("ff_activation", "mish", "ff_activation: 'mish' is not known"),
        ("n_head", 3, "n_heads 3 does not divide d_model 16"),
        ("attn_type", "uni", "attn_type: .*got 'uni'"),
        ("bi_data", True, "bi_data"),
        ("untie_r", False, "untie_r"),
        ("d_head", 5, "d_head: 5 is not d_model 16 / n_head 4"),
        ("summary_type", "mean", "summary_type"),
    ],
    "reformer": [
        ("is_decoder", False, "is_decoder: False contradicts the class, which is for decoders"),
        ("tie_word_embeddings", True, "tie_word_embeddings"),
        ("sinusoidal_pos_embds", True, "sinusoidal_pos_embds"),
        ("attn_layers", ["local", "full"], "attn_layers"),
        ("attn_layers", [], "attn_layers"),
        ("num_buckets", 3, "num_buckets"),
        ("num_buckets", [4, 3], "num_buckets"),
        ("lsh_attn_chunk_length", None, "lsh_attn_chunk_length"),
        ("local_num_chunks_after", 1, "local_num_chunks_after"),
        ("lsh_num_chunks_before", 2, "lsh_num_chunks_before"),
        ("axial_pos_embds", False, "axial_pos_embds"),
        ("axial_pos_shape", [2, 2, 6], "axial_pos_shape"),
        ("axial_pos_shape", [4, 5], "axial positions need axial_shape, whose product"),
        ("axial_pos_embds_dim", [4, 13], "axial positions need axial_widths, whose sum"),
    ],
    "bart": [
        ("normalize_before", True, "normalize_before"),
        ("tie_word_embeddings", False, "tie_word_embeddings"),
        ("num_hidden_layers", 3, "contradicts encoder_layers 2"),
        ("activation_function", "mish", "mish"),
        ("is_decoder", True, "is_decoder"),
        ("encoder_layerdrop", 0.2, "encoder_layerdrop"),
    ],
    "modernbert": [
        ("attention_dropout", 0.1, "attention_dropout"),
        ("layer_types", ["full_attention"], "layer_types: has 1 layers, but there are 4"),
        ("layer_types", ["chunked_attention"] * 4, "layer_types"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, "rope_scaling"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 500.0}, "rope_parameters"),
        ("classifier_activation", "mish", "classifier_activation: 'mish' is not known"),
        ("local_attention", 0, "local_attention"),
    ],
    "eurobert": [
        ("clf_pooling", "mean", "clf_pooling"),
        ("hidden_dropout", 0.1, "hidden_dropout"),
        (
            "rope_parameters",
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor: 0.5 is not supported",
        ),
    ],
    "electra": [
        ("summary_type", "mean", "summary_type"),
        ("summary_use_proj", False, "summary_use_proj"),
        ("summary_activation", "tanh", "summary_activation"),
        ("position_embedding_type", "relative_key", "position_embedding_type"),
    ],
    "mpnet": [
        ("pad_token_id", 0, "pad_token_id"),
        ("relative_attention_num_buckets", 16, "relative_attention_num_buckets"),
        ("max_position_embeddings", 2, "max_position_embeddings: 2 leaves no position"),
    ],
    "deberta-v2": [
        ("conv_kernel_size", 4, "convolution: kernel 4 must be odd"),
        ("conv_kernel_size", 2**31 - 1, "convolution.kernel"),
        ("conv_act", "mish", "conv_act"),
        ("conv_groups", 0, "conv_groups"),
        ("norm_rel_ebd", "batch", "norm_rel_ebd: 'batch' is not known"),
        ("pos_att_type", "p2p", "pos_att_type: 'p2p' is not known"),
        ("pos_att_type", None, "pos_att_type: None is not known"),
        ("relative_attention", False, "pos_att_type: .* needs relative_attention: true"),
        ("embedding_size", 8, "embedding_size: 8 contradicts hidden_size 16"),
        ("pooler_hidden_size", 8, "pooler_hidden_size: 8 contradicts hidden_size 16"),
        ("pooler_dropout", 0.1, "pooler_dropout"),
        (
            "max_relative_positions",
            2,
            "max_relative_positions: 2 is not supported; .* at least 3 positions",
        ),
        ("position_buckets", 1, "position_buckets: 1 with .* choose other buckets than 1"),
        ("attention_head_size", 8, "attention_head_size: 8 contradicts hidden_size 16"),
    ],
    "longformer": [
        (
            "attention_window",
            [4, 5],
            r"attention_window: \[4, 5\] is not supported; give one even number",
        ),
        ("attention_window", [4, 8, 4], "attention_window: .*, or one for each of 2 layers"),
        ("attention_window", [4, 0], "attention_window"),
        ("attention_window", 5, "attention_window: 5 is not supported"),
        ("attention_window", 0, "attention_window"),
        ("sep_token_id", 5, "sep_token_id: 5 is not supported; it must equal eos_token_id"),
        ("position_embedding_type", "relative_key", "position_embedding_type"),
        ("pad_token_id", None, "pad_token_id: null"),
    ],
    "mbart": [
        ("normalize_before", False, "normalize_before"),
        ("encoder_layerdrop", 0.2, "encoder_layerdrop"),
        ("architectures", ["MBartForCausalLM"], "architectures: .* is not known"),
    ],
    "pegasus": [
        ("architectures", ["PegasusForSequenceClassification"], "architectures: .* is not known"),
        ("static_position_embeddings", False, "static_position_embeddings"),
    ],
    "m2m_100": [
        ("pad_token_id", None, "pad_token_id"),
        ("tie_word_embeddings", False, "tie_word_embeddings"),
    ],
    "big_bird": [
        ("attention_type", "sliding", "attention_type"),
        ("num_random_blocks", 0, "num_random_blocks"),
        ("position_embedding_type", "relative_key", "position_embedding_type"),
        ("architectures", ["BigBirdForCausalLM"], "architectures: .* is not known"),
    ],
    "bigbird_pegasus": [
        ("block_size", 0, "block_size"),
        ("architectures", ["BigBirdPegasusForCausalLM"], "architectures: .* is not known"),
    ],
    "led": [
        ("attention_window", [4, 6, 8], "attention_window: .* is not supported"),
        ("scale_embedding", True, "scale_embedding"),
        (
            "max_position_embeddings",
            24,
            "max_position_embeddings: 24 is not supported, and transformers",
        ),
        ("architectures", ["LEDForSequenceClassification"], "architectures: .* is not known"),
    ],
    "longt5": [
        (
            "encoder_attention_type",
            "global",
            "encoder_attention_type: 'global' is not known; known: local, trans",
        ),
        ("local_radius", -1, "local_radius"),
        ("global_block_size", 0, "global_block_size"),
    ],
    "t5": [
        ("dense_act_fn", "swiglu", "dense_act_fn: 'swiglu' is not known"),
        ("d_kv", "8", "d_kv"),
    ],
}
for group, members in (("decoder", DECODERS), ("encoder", ENCODERS)):
    for member in members:
        REJECTED[member] = REJECTED[group] + REJECTED.get(member, [])


def error_of(folder: Path) -> str:
    try:
        read_config(folder)
    except CheckpointError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("family", TINY)
def test_unsupported_values_are_errors(family: str, saved: Saved) -> None:
    folder = saved(family)
    before = (folder / "config.json").read_text(encoding="utf-8")
    for key, value, message in REJECTED.get(family, []) + REJECTED_BY_ALL:
        if (family, key) not in ACCEPTED:
            edit(folder, **{key: value})
            found = error_of(folder)
            assert re.search(rf"config\.json: .*{message}", found), (key, value, found)
            (folder / "config.json").write_text(before, encoding="utf-8")


@pytest.mark.parametrize("family", ENCODERS)
def test_absurd_sizes_are_rejected_early(family: str, saved: Saved) -> None:
    folder = saved(family)
    before = (folder / "config.json").read_text(encoding="utf-8")
    sizes = [key for key, value in TINY[family].sizes.items() if type(value) is int]
    harmless = {
        "bos_token_id",
        "eos_token_id",
        "cls_token_id",
        "sep_token_id",
        "local_attention",
        "attention_window",
        *("block_size", "num_random_blocks"),  # with more blocks than a text has, attention is full
    }
    if family in ("modernbert", "eurobert", "deberta-v2"):  # without a table of positions
        harmless.add("max_position_embeddings")
    for key in [
        *(key for key in sizes if key not in harmless),
        *(["pad_token_id"] if family != "vit" else ["num_channels"]),
    ]:
        for absurd in (2**52, 2**31 - 1):
            edit(folder, **{key: absurd})
            with pytest.raises(CheckpointError):
                load_model(folder)
            (folder / "config.json").write_text(before, encoding="utf-8")


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("llama", "layer_types", ["full_attention"] * 2),
        ("mistral", "layer_types", ["sliding_attention"] * 2),
        ("mixtral", "router_jitter_noise", 0.1),
        ("opt", "layerdrop", 0.1),
        ("gemma3_text", "attn_logit_softcapping", 50.0),
    ],
)
def test_keys_without_effect_on_results_are_accepted(
    family: str, key: str, value: object, saved: Saved
) -> None:
    folder = saved(family)
    before = read_config(folder)
    edit(folder, **{key: value})
    assert read_config(folder) == before


def test_special_token_ids_follow_config_json(saved: Saved) -> None:
    folder = saved("llama")

    def ids(**values: object) -> tuple[int, int, int]:
        edit(folder, **values)
        config = read_config(folder)
        return config.pad_id, config.bos_id, config.eos_id

    assert ids() == (0, 1, 2)
    assert ids(eos_token_id=[7, 8]) == (0, 1, 7)
    assert ids(pad_token_id=-1) == (7, 1, 7)  # LLaMA of 2023
    assert ids(pad_token_id=None, bos_token_id=None) == (7, 7, 7)
    assert ids(eos_token_id=None) == (0, 0, 40)  # beyond the vocabulary


def test_rotary_positions_of_old_configs(saved: Saved) -> None:
    folder = saved("llama")
    edit(folder, rope_parameters=None, rope_theta=500, rope_scaling={"type": "linear", "factor": 2})
    config = read_config(folder)
    assert config.rotary_theta == 500.0
    assert config.rotary_scaling is not None
    assert (config.rotary_scaling.kind, config.rotary_scaling.factor) == ("linear", 2.0)
    edit(
        folder,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4},
    )
    scaling = read_config(folder).rotary_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.original_positions) == ("yarn", 4)
    edit(folder, rope_scaling=None, rope_theta=None)
    assert read_config(folder).rotary_theta == 10_000.0
    assert read_config(folder).rotary_scaling is None


def test_layer_types_name_the_switch_of_the_window(saved: Saved) -> None:
    folder = saved("qwen2")
    edit(folder, sliding_window=3, layer_types=["sliding_attention"] * 2)
    with pytest.raises(
        CheckpointError, match="layer_types: layers with a window need use_sliding_window: true"
    ):
        read_config(folder)


def test_rope_scaling_changes_the_keys_of_layers_without_a_window(saved: Saved) -> None:
    folder = saved("gemma3_text")
    layers = {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0}}
    for theta in ({}, {"rope_theta": 99.0}):  # as in `transformers`
        edit(folder, rope_parameters=layers, rope_scaling={"factor": 4.0} | theta)
        config = read_config(folder)
        assert config.rotary_scaling is not None
        assert (config.rotary_scaling.kind, config.rotary_scaling.factor) == ("linear", 4.0)
        assert config.rotary_theta == theta.get("rope_theta", 300.0)
