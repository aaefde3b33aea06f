"""All families by `model_type`, in the order in which they are tried for a config that was made here."""

from __future__ import annotations

from trifold.hub.families import bart, bert, bloom, falcon, gpt, llama, mbart, native, opt, t5, vit, xlnet
from trifold.hub.family import Family

NATIVE = "trifold"  # the model_type of our own format
FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        *(bert.ALBERT, bert.FAMILY, bert.DISTILBERT, bert.ROBERTA, bert.CAMEMBERT, bert.XLM_ROBERTA),
        *(bart.BART, bart.MARIAN),
        *(gpt.GPT2, gpt.BIGCODE, gpt.OPENAI, gpt.NEO, gpt.NEOX, gpt.GPTJ, gpt.CODEGEN),
        *(llama.LLAMA, llama.MISTRAL, llama.STARCODER2),
        *(t5.FAMILY, t5.MT5),
        *(vit.FAMILY, xlnet.FAMILY, falcon.FAMILY),
        *(opt.FAMILY, bloom.FAMILY),
        *(mbart.MBART, mbart.PEGASUS, mbart.M2M, native.FAMILY),
    )
}
