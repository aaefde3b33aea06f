"""Models by name, at the sizes in which they were published: `trifold show gpt2`.

Each is what its config.json says, read by its family; nothing is allocated or fetched. Beside it stands the number of
parameters that was announced, which is not always the number that there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trifold.hub.families import FAMILIES
from trifold.nn import ModelConfig

UNITS = {"M": 10**6, "B": 10**9}


@dataclass(frozen=True)
class Preset:
    """`values` are the keys of a config.json that are not at its family's defaults.

    `announced` is like "117 M", where anything was.
    """

    announced: str | None
    model_type: str
    architecture: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> dict[str, Any]:
        """The config.json."""
        return {"model_type": self.model_type, "architectures": [self.architecture], **self.values}

    @property
    def config(self) -> ModelConfig:
        return FAMILIES[self.model_type].read(self.file)

    def agrees(self, parameters: int) -> bool:
        """Whether what was announced is that number, rounded."""
        if self.announced is None:
            return True
        number, unit = self.announced.split()
        decimals = len(number.partition(".")[2])
        return round(parameters / UNITS[unit], decimals) == float(number)


def _sizes(keys: str, *values: int) -> dict[str, int]:
    return dict(zip(keys.split(), values, strict=True))


# --- encoders ------------------------------------------------------------------------------------------

_BERT = "hidden_size num_hidden_layers num_attention_heads intermediate_size"


def _bert(announced: str, *sizes: int) -> Preset:
    """Devlin et al. 2019, section 3."""
    return Preset(announced, "bert", "BertForMaskedLM", _sizes(_BERT, *sizes))


def _roberta(announced: str, *sizes: int) -> Preset:
    """Liu et al. 2019."""
    more = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    return Preset(announced, "roberta", "RobertaForMaskedLM", _sizes(_BERT, *sizes) | more)


def _albert(announced: str, *sizes: int) -> Preset:
    """Lan et al. 2020, table 1; the vocabulary and the activation are those of its second version."""
    return Preset(announced, "albert", "AlbertForMaskedLM", _sizes(_BERT, *sizes))


def _xlnet(*sizes: int) -> Preset:
    """Yang et al. 2019, appendix A.4.1; both with capitals."""
    keys = "d_model n_layer n_head d_inner"
    return Preset(None, "xlnet", "XLNetLMHeadModel", _sizes(keys, *sizes))


def _vit(announced: str, patch: int, *sizes: int) -> Preset:
    """Dosovitskiy et al. 2021, table 1; with the 1,000 classes of ImageNet."""
    more = {"patch_size": patch, "image_size": 224, "num_labels": 1000}
    return Preset(announced, "vit", "ViTForImageClassification", _sizes(_BERT, *sizes) | more)


_ENCODERS = {
    "bert-base": _bert("110 M", 768, 12, 12, 3072),
    "bert-large": _bert("340 M", 1024, 24, 16, 4096),
    "roberta-base": _roberta("125 M", 768, 12, 12, 3072),
    "roberta-large": _roberta("355 M", 1024, 24, 16, 4096),
    "distilbert": Preset("66 M", "distilbert", "DistilBertForMaskedLM"),
    "albert-base": _albert("12 M", 768, 12, 12, 3072),
    "albert-large": _albert("18 M", 1024, 24, 16, 4096),
    "albert-xlarge": _albert("60 M", 2048, 24, 16, 8192),
    "albert-xxlarge": _albert("235 M", 4096, 12, 64, 16384),
    "xlnet-base": _xlnet(768, 12, 12, 3072),
    "xlnet-large": _xlnet(1024, 24, 16, 4096),
    "vit-b": _vit("86 M", 16, 768, 12, 12, 3072),
    "vit-l": _vit("307 M", 16, 1024, 24, 16, 4096),
    "vit-h": _vit("632 M", 14, 1280, 32, 16, 5120),
}

# --- decoders ------------------------------------------------------------------------------------------


def _gpt2(announced: str, *sizes: int, **more: int) -> Preset:
    """Radford et al. 2019, table 2; GPT-3 (Brown et al. 2020, table 2.1) counts as its shape does.

    The heads of gpt3-1.3b and the width of gpt3-13b are misprinted there (24 heads of 128 in a width of 2,048; 5,140).
    """
    return Preset(announced, "gpt2", "GPT2LMHeadModel", _sizes("n_embd n_layer n_head", *sizes) | more)


def _gpt3(announced: str, *sizes: int) -> Preset:
    return _gpt2(announced, *sizes, n_positions=2048)


def _gpt_neo(announced: str, hidden: int, layers: int, heads: int) -> Preset:
    """Black et al. 2021."""
    kinds = {"attention_types": [[["global", "local"], layers // 2]]}
    sizes = {"hidden_size": hidden, "num_layers": layers, "num_heads": heads}
    return Preset(announced, "gpt_neo", "GPTNeoForCausalLM", sizes | kinds)


def _palm(announced: str, width: int, layers: int, heads: int) -> Preset:
    """Chowdhery et al. 2022, table 1 and section 2: one head of keys and values, no biases, a shared table."""
    values = {
        "shape": "decoder",
        "vocab_size": 256_000,
        "max_positions": 2048,
        "d_model": width,
        "n_layers": layers,
        "n_heads": heads,
        "n_kv_heads": 1,
        "d_head": 256,
        "d_ff": 4 * width,
        "positions": "rotary",
        "scale_embeddings": False,
        "residual": "parallel",
        "norm_placement": "pre",
        "norm_bias": False,
        "activation": "silu",
        "gated": True,
        "feed_forward_bias": False,
        "dropout": 0.0,
    }
    return Preset(announced, "trifold", "Transformer", values)


_LLAMA = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"


def _llama(announced: str, *sizes: int, **more: Any) -> Preset:
    """Touvron et al. 2023, table 2; LLaMA 2 (table 1 there) and Llama 3 (Grattafiori et al. 2024, table 3)."""
    return Preset(announced, "llama", "LlamaForCausalLM", _sizes(_LLAMA, *sizes) | more)


_LLAMA_2 = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
_LLAMA_3 = {
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
}


def _codegen(announced: str, width: int, layers: int, heads: int, turned: int) -> Preset:
    """Nijkamp et al. 2022, table 6."""
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "rotary_dim": turned, "vocab_size": 51200}
    return Preset(announced, "codegen", "CodeGenForCausalLM", sizes | {"n_positions": 2048, "n_ctx": 2048})


def _starcoder2(announced: str, *sizes: int) -> Preset:
    """Lozhkov et al. 2024, table 6."""
    more = {"max_position_embeddings": 16384, "sliding_window": 4096}
    return Preset(announced, "starcoder2", "Starcoder2ForCausalLM", _sizes(_LLAMA, *sizes) | more)


_FALCON_7B = {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}
_FALCON_40B = {
    **{"hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8},
    "new_decoder_architecture": True,
}
_STARCODER = {
    **{
        "vocab_size": 49152,
        "n_positions": 8192,
        "n_embd": 6144,
        "n_layer": 40,
        "n_head": 48,
        "n_inner": 24576,
    },
    **{"bos_token_id": 0, "eos_token_id": 0},
}

_DECODERS = {
    "gpt": Preset("117 M", "openai-gpt", "OpenAIGPTLMHeadModel"),
    "gpt2": _gpt2("117 M", 768, 12, 12),
    "gpt2-medium": _gpt2("345 M", 1024, 24, 16),
    "gpt2-large": _gpt2("762 M", 1280, 36, 20),
    "gpt2-xl": _gpt2("1542 M", 1600, 48, 25),
    "gpt3-125m": _gpt3("125 M", 768, 12, 12),
    "gpt3-350m": _gpt3("350 M", 1024, 24, 16),
    "gpt3-760m": _gpt3("760 M", 1536, 24, 16),
    "gpt3-1.3b": _gpt3("1.3 B", 2048, 24, 16),
    "gpt3-2.7b": _gpt3("2.7 B", 2560, 32, 32),
    "gpt3-6.7b": _gpt3("6.7 B", 4096, 32, 32),
    "gpt3-13b": _gpt3("13.0 B", 5120, 40, 40),
    "gpt3-175b": _gpt3("175.0 B", 12288, 96, 96),
    "gpt-j-6b": Preset("6 B", "gptj", "GPTJForCausalLM"),
    "gpt-neo-1.3b": _gpt_neo("1.3 B", 2048, 24, 16),
    "gpt-neo-2.7b": _gpt_neo("2.7 B", 2560, 32, 20),
    "palm-8b": _palm("8.63 B", 4096, 32, 16),
    "palm-62b": _palm("62.50 B", 8192, 64, 32),
    "palm-540b": _palm("540.35 B", 18432, 118, 48),
    "llama-7b": _llama("6.7 B", 4096, 11008, 32, 32, 32),
    "llama-13b": _llama("13.0 B", 5120, 13824, 40, 40, 40),
    "llama-33b": _llama("32.5 B", 6656, 17920, 60, 52, 52),
    "llama-65b": _llama("65.2 B", 8192, 22016, 80, 64, 64),
    "llama2-7b": _llama("7 B", 4096, 11008, 32, 32, 32, **_LLAMA_2),
    "llama2-13b": _llama("13 B", 5120, 13824, 40, 40, 40, **_LLAMA_2),
    "llama2-70b": _llama("70 B", 8192, 28672, 80, 64, 8, **_LLAMA_2),
    "llama3-8b": _llama("8 B", 4096, 14336, 32, 32, 8, **_LLAMA_3),
    "llama3-70b": _llama("70 B", 8192, 28672, 80, 64, 8, **_LLAMA_3),
    "mistral-7b": Preset("7.3 B", "mistral", "MistralForCausalLM", {"max_position_embeddings": 32768}),
    "falcon-7b": Preset("7 B", "falcon", "FalconForCausalLM", _FALCON_7B),
    "falcon-40b": Preset("40 B", "falcon", "FalconForCausalLM", _FALCON_40B),
    "codegen-350m": _codegen("350 M", 1024, 20, 16, 32),
    "codegen-2b": _codegen("2.7 B", 2560, 32, 32, 64),
    "codegen-6b": _codegen("6.1 B", 4096, 33, 16, 64),
    "codegen-16b": _codegen("16.1 B", 6144, 34, 24, 64),
    "starcoder": Preset("15.5 B", "gpt_bigcode", "GPTBigCodeForCausalLM", _STARCODER),
    "starcoder2-3b": _starcoder2("3 B", 3072, 12288, 30, 24, 2),
    "starcoder2-7b": _starcoder2("7 B", 4608, 18432, 32, 36, 4),
    "starcoder2-15b": _starcoder2("15 B", 6144, 24576, 40, 48, 4),
}

# --- encoder-decoders ----------------------------------------------------------------------------------

_T5 = "d_model d_kv d_ff num_layers num_heads"


def _t5(announced: str, *sizes: int, **more: Any) -> Preset:
    """Raffel et al. 2020, section 3.7."""
    return Preset(announced, "t5", "T5ForConditionalGeneration", _sizes(_T5, *sizes) | more)


def _flan(announced: str, *sizes: int) -> Preset:
    """Chung et al. 2022: the sizes of T5 1.1, gated, with a table of the head's own."""
    return _t5(announced, *sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False)


def _mt5(announced: str, *sizes: int) -> Preset:
    """Xue et al. 2021, table 2; its published weights have a table of the head's own."""
    more = {"tie_word_embeddings": False}
    return Preset(announced, "mt5", "MT5ForConditionalGeneration", _sizes(_T5, *sizes) | more)


def _bart(announced: str, width: int, layers: int, heads: int) -> Preset:
    """Lewis et al. 2020, section 3. The bias of its logits is never learnt."""
    values: dict[str, object] = {"d_model": width, "lm_head_bias": False}
    for side in ("encoder", "decoder"):
        each = {"layers": layers, "attention_heads": heads, "ffn_dim": 4 * width}
        values |= {f"{side}_{key}": value for key, value in each.items()}
    return Preset(announced, "bart", "BartForConditionalGeneration", values)


_MARIAN = {
    **{
        "d_model": 512,
        "max_position_embeddings": 512,
        "scale_embedding": True,
        "activation_function": "swish",
    },
    **{"encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048},
    **{"decoder_layers": 6, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048},
    "lm_head_bias": False,  # of published files it is not zero, but it is no parameter there
}

_ENCODER_DECODERS = {
    "t5-small": _t5("60 M", 512, 64, 2048, 6, 8),
    "t5-base": _t5("220 M", 768, 64, 3072, 12, 12),
    "t5-large": _t5("770 M", 1024, 64, 4096, 24, 16),
    "t5-3b": _t5("3 B", 1024, 128, 16384, 24, 32),
    "t5-11b": _t5("11 B", 1024, 128, 65536, 24, 128),
    "flan-t5-small": _flan("80 M", 512, 64, 1024, 8, 6),
    "flan-t5-base": _flan("250 M", 768, 64, 2048, 12, 12),
    "flan-t5-large": _flan("780 M", 1024, 64, 2816, 24, 16),
    "flan-t5-xl": _flan("3 B", 2048, 64, 5120, 24, 32),
    "flan-t5-xxl": _flan("11 B", 4096, 64, 10240, 24, 64),
    "mt5-small": _mt5("300 M", 512, 64, 1024, 8, 6),
    "mt5-base": _mt5("580 M", 768, 64, 2048, 12, 12),
    "mt5-large": _mt5("1.2 B", 1024, 64, 2816, 24, 16),
    "mt5-xl": _mt5("3.7 B", 2048, 64, 5120, 24, 32),
    "mt5-xxl": _mt5("13 B", 4096, 64, 10240, 24, 64),
    "bart-base": _bart("140 M", 768, 6, 12),
    "bart-large": _bart("400 M", 1024, 12, 16),
    "marian": Preset(None, "marian", "MarianMTModel", _MARIAN),
}

# Of a family whose name alone is asked for, the size that is used most.
_ALIASES = {
    "roberta": "roberta-base",
    "llama-30b": "llama-33b",
    "llama2": "llama2-7b",
    "llama3": "llama3-8b",
    "codegen": "codegen-350m",
    "mt5": "mt5-small",
    "distilbert-base": "distilbert",
}
_SIZED = _ENCODERS | _DECODERS | _ENCODER_DECODERS
PRESETS: dict[str, Preset] = _SIZED | {alias: _SIZED[name] for alias, name in _ALIASES.items()}
