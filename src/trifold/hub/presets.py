"""Models by name, in their published sizes: `trifold show gpt2`.

Each is the content of a config.json that its family reads; nothing is allocated or downloaded. The number of parameters
is the one its authors announced, which is not always the number it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trifold.hub.families import FAMILIES
from trifold.nn import ModelConfig

UNITS = {"M": 10**6, "B": 10**9}


@dataclass(frozen=True)
class Preset:
    """A published model.

    announced: the number of parameters, like "117 M", if one was announced.
    values: the keys of its config.json that differ from the defaults of the family.
    """

    announced: str | None
    model_type: str
    architecture: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> dict[str, Any]:
        """The content of config.json."""
        return {"model_type": self.model_type, "architectures": [self.architecture], **self.values}

    @property
    def config(self) -> ModelConfig:
        return FAMILIES[self.model_type].read(self.file)

    def agrees(self, parameters: int) -> bool:
        """Whether the announced number is this one, rounded."""
        if self.announced is None:
            return True
        number, unit = self.announced.split()
        decimals = len(number.partition(".")[2])
        return round(parameters / UNITS[unit], decimals) == float(number)


# Groups of models. The first line of a group is the source of its numbers. The second has the model type, the class,
# common values, and the keys of the columns. Each other line has a name, the announced number of parameters, and the
# values of the columns. Values are JSON.
TABLE = """
Devlin et al. 2019, section 3
bert BertForMaskedLM hidden_size num_hidden_layers num_attention_heads intermediate_size
bert-base 110M 768 12 12 3072
bert-large 340M 1024 24 16 4096

Liu et al. 2019
roberta RobertaForMaskedLM vocab_size=50265 max_position_embeddings=514 type_vocab_size=1 layer_norm_eps=1e-5 \
    hidden_size num_hidden_layers num_attention_heads intermediate_size
roberta-base 125M 768 12 12 3072
roberta-large 355M 1024 24 16 4096

Sanh et al. 2019
distilbert DistilBertForMaskedLM
distilbert 66M

Lan et al. 2020, table 1; the vocabulary and the activation are those of its second version
albert AlbertForMaskedLM hidden_size num_hidden_layers num_attention_heads intermediate_size
albert-base 12M 768 12 12 3072
albert-large 18M 1024 24 16 4096
albert-xlarge 60M 2048 24 16 8192
albert-xxlarge 235M 4096 12 64 16384

Yang et al. 2019, appendix A.4.1; both cased
xlnet XLNetLMHeadModel d_model n_layer n_head d_inner
xlnet-base - 768 12 12 3072
xlnet-large - 1024 24 16 4096

Dosovitskiy et al. 2021, table 1; with the 1,000 classes of ImageNet
vit ViTForImageClassification image_size=224 num_labels=1000 \
    patch_size hidden_size num_hidden_layers num_attention_heads intermediate_size
vit-b 86M 16 768 12 12 3072
vit-l 307M 16 1024 24 16 4096
vit-h 632M 14 1280 32 16 5120

Radford et al. 2018
openai-gpt OpenAIGPTLMHeadModel
gpt 117M

Radford et al. 2019, table 2
gpt2 GPT2LMHeadModel n_embd n_layer n_head
gpt2 117M 768 12 12
gpt2-medium 345M 1024 24 16
gpt2-large 762M 1280 36 20
gpt2-xl 1542M 1600 48 25

Brown et al. 2020, table 2.1, where the heads of 1.3b (24) and the width of 13b (5,140) are misprinted
gpt2 GPT2LMHeadModel n_positions=2048 n_embd n_layer n_head
gpt3-125m 125M 768 12 12
gpt3-350m 350M 1024 24 16
gpt3-760m 760M 1536 24 16
gpt3-1.3b 1.3B 2048 24 16
gpt3-2.7b 2.7B 2560 32 32
gpt3-6.7b 6.7B 4096 32 32
gpt3-13b 13.0B 5120 40 40
gpt3-175b 175.0B 12288 96 96

Wang & Komatsuzaki 2021
gptj GPTJForCausalLM
gpt-j-6b 6B

Black et al. 2021
gpt_neo GPTNeoForCausalLM hidden_size num_layers num_heads attention_types
gpt-neo-1.3b 1.3B 2048 24 16 [[["global","local"],12]]
gpt-neo-2.7b 2.7B 2560 32 20 [[["global","local"],16]]

PaLM: Chowdhery et al. 2022, table 1 and section 2; one head of keys and values, no biases, tied tables
trifold Transformer shape="decoder" vocab_size=256000 max_positions=2048 n_kv_heads=1 d_head=256 \
    positions="rotary" scale_embeddings=false residual="parallel" norm_placement="pre" norm_bias=false \
    activation="silu" gated=true feed_forward_bias=false dropout=0.0 d_model n_layers n_heads d_ff
palm-8b 8.63B 4096 32 16 16384
palm-62b 62.50B 8192 64 32 32768
palm-540b 540.35B 18432 118 48 73728

Touvron et al. 2023a, table 2
llama LlamaForCausalLM \
    hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
llama-7b 6.7B 4096 11008 32 32 32
llama-13b 13.0B 5120 13824 40 40 40
llama-33b 32.5B 6656 17920 60 52 52
llama-65b 65.2B 8192 22016 80 64 64

Touvron et al. 2023b, table 1
llama LlamaForCausalLM max_position_embeddings=4096 rms_norm_eps=1e-5 \
    hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
llama2-7b 7B 4096 11008 32 32 32
llama2-13b 13B 5120 13824 40 40 40
llama2-70b 70B 8192 28672 80 64 8

Grattafiori et al. 2024, table 3
llama LlamaForCausalLM vocab_size=128256 max_position_embeddings=8192 rms_norm_eps=1e-5 rope_theta=500000.0 \
    bos_token_id=128000 eos_token_id=128001 \
    hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
llama3-8b 8B 4096 14336 32 32 8
llama3-70b 70B 8192 28672 80 64 8

Jiang et al. 2023
mistral MistralForCausalLM max_position_embeddings
mistral-7b 7.3B 32768

Almazrouei et al. 2023
falcon FalconForCausalLM \
    hidden_size num_hidden_layers num_attention_heads num_kv_heads new_decoder_architecture
falcon-7b 7B 4544 32 71 null false
falcon-40b 40B 8192 60 128 8 true

Nijkamp et al. 2022, table 6
codegen CodeGenForCausalLM vocab_size=51200 n_positions=2048 n_ctx=2048 n_embd n_layer n_head rotary_dim
codegen-350m 350M 1024 20 16 32
codegen-2b 2.7B 2560 32 32 64
codegen-6b 6.1B 4096 33 16 64
codegen-16b 16.1B 6144 34 24 64

Li et al. 2023
gpt_bigcode GPTBigCodeForCausalLM bos_token_id=0 eos_token_id=0 \
    vocab_size n_positions n_embd n_layer n_head n_inner
starcoder 15.5B 49152 8192 6144 40 48 24576

Lozhkov et al. 2024, table 6
starcoder2 Starcoder2ForCausalLM max_position_embeddings=16384 sliding_window=4096 \
    hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
starcoder2-3b 3B 3072 12288 30 24 2
starcoder2-7b 7B 4608 18432 32 36 4
starcoder2-15b 15B 6144 24576 40 48 4

Raffel et al. 2020, section 3.7
t5 T5ForConditionalGeneration d_model d_kv d_ff num_layers num_heads
t5-small 60M 512 64 2048 6 8
t5-base 220M 768 64 3072 12 12
t5-large 770M 1024 64 4096 24 16
t5-3b 3B 1024 128 16384 24 32
t5-11b 11B 1024 128 65536 24 128

Chung et al. 2022: the sizes of T5 1.1, gated, with an output table of its own
t5 T5ForConditionalGeneration feed_forward_proj="gated-gelu" tie_word_embeddings=false \
    d_model d_kv d_ff num_layers num_heads
flan-t5-small 80M 512 64 1024 8 6
flan-t5-base 250M 768 64 2048 12 12
flan-t5-large 780M 1024 64 2816 24 16
flan-t5-xl 3B 2048 64 5120 24 32
flan-t5-xxl 11B 4096 64 10240 24 64

Xue et al. 2021, table 2; its published weights have an output table of their own
mt5 MT5ForConditionalGeneration tie_word_embeddings=false d_model d_kv d_ff num_layers num_heads
mt5-small 300M 512 64 1024 8 6
mt5-base 580M 768 64 2048 12 12
mt5-large 1.2B 1024 64 2816 24 16
mt5-xl 3.7B 2048 64 5120 24 32
mt5-xxl 13B 4096 64 10240 24 64

Lewis et al. 2020, section 3; the bias of its logits is never trained
bart BartForConditionalGeneration lm_head_bias=false d_model encoder_layers encoder_attention_heads \
    encoder_ffn_dim decoder_layers decoder_attention_heads decoder_ffn_dim
bart-base 140M 768 6 12 3072 6 12 3072
bart-large 400M 1024 12 16 4096 12 16 4096

Tiedemann & Thottingal 2020; the bias of the logits is not zero in published files, but no parameter there
marian MarianMTModel d_model=512 max_position_embeddings=512 scale_embedding=true activation_function="swish" \
    lm_head_bias=false encoder_layers encoder_attention_heads encoder_ffn_dim decoder_layers \
    decoder_attention_heads decoder_ffn_dim
marian - 6 8 2048 6 8 2048
"""
# Other names, and the most used size of a family.
ALIASES = {
    "roberta": "roberta-base",
    "llama-30b": "llama-33b",
    "llama2": "llama2-7b",
    "llama3": "llama3-8b",
    "codegen": "codegen-350m",
    "mt5": "mt5-small",
    "distilbert-base": "distilbert",
}


def _read(table: str) -> Iterator[tuple[str, Preset]]:
    for group in table.strip().split("\n\n"):
        _, header, *rows = group.splitlines()
        model_type, architecture, *keys = header.split()
        pairs = [key.split("=") for key in keys if "=" in key]
        common = {key: json.loads(value) for key, value in pairs}
        columns = [key for key in keys if "=" not in key]
        for row in rows:
            name, announced, *cells = row.split()
            number = None if announced == "-" else f"{announced[:-1]} {announced[-1]}"
            values = common | dict(zip(columns, map(json.loads, cells), strict=True))
            yield name, Preset(number, model_type, architecture, values)


PRESETS: dict[str, Preset] = dict(_read(TABLE))
PRESETS |= {alias: PRESETS[name] for alias, name in ALIASES.items()}
