"""All families by `model_type`, in the order in which they are tried for a config that was made
here.
"""

from trifold.hub.families import (
    bart,
    bert,
    bigbird,
    decoders,
    encoders,
    experts,
    falcon,
    gemma,
    gpt,
    llama,
    longformer,
    mbart,
    native,
    reformer,
    t5,
    vit,
    xlnet,
)
from trifold.hub.family import Family

NATIVE = "trifold"  # the model_type of our own format
# Known kinds that are not supported -> the reason.
UNSUPPORTED = {"gemma3": "it reads images too; text models of Gemma 3 have model_type gemma3_text"}
FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        *(
            bert.ALBERT,
            bert.FAMILY,
            bert.DISTILBERT,
            bert.ROBERTA,
            bert.CAMEMBERT,
            bert.XLM_ROBERTA,
        ),
        *(bart.BART, bart.MARIAN),
        *(gpt.GPT2, gpt.BIGCODE, gpt.OPENAI, gpt.NEO, gpt.NEOX, gpt.GPTJ, gpt.CODEGEN),
        *(llama.LLAMA, llama.MISTRAL, llama.STARCODER2),
        *(t5.FAMILY, t5.MT5),
        *(vit.FAMILY, xlnet.FAMILY, falcon.FAMILY),
        *(
            decoders.QWEN2,
            decoders.QWEN3,
            llama.SMOLLM3,
            llama.PHI3,
            decoders.OLMO2,
            decoders.OLMO3,
        ),
        *(decoders.NANOCHAT, llama.GRANITE, decoders.GLM4, decoders.COHERE2),
        *(gemma.GEMMA, gemma.GEMMA2, gemma.GEMMA3, gemma.T5GEMMA),
        *(experts.MIXTRAL, experts.QWEN3_MOE, experts.GPT_OSS, experts.DEEPSEEK_V3),
        *(
            encoders.MODERNBERT,
            encoders.EUROBERT,
            encoders.ELECTRA,
            encoders.MPNET,
            encoders.DEBERTA,
        ),
        *(mbart.OPT, falcon.BLOOM, mbart.MBART, mbart.PEGASUS, mbart.M2M),
        reformer.FAMILY,
        *(bigbird.BIG_BIRD, bigbird.BIGBIRD_PEGASUS),
        *(longformer.LONGFORMER, t5.LONGT5, longformer.LED),
        native.FAMILY,
    )
}
