"""Every family by its `model_type`, in the order in which they are asked whether a config fits."""

from trifold.hub.families import (
    albert,
    bart,
    bert,
    codegen,
    distilbert,
    falcon,
    gpt2,
    gpt_bigcode,
    gpt_neo,
    gpt_neox,
    gptj,
    llama,
    marian,
    mistral,
    native,
    openai_gpt,
    roberta,
    starcoder2,
    t5,
    vit,
    xlnet,
)
from trifold.hub.family import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        marian.FAMILY,
        bart.FAMILY,
        t5.FAMILY,
        t5.MT5,
        gpt2.FAMILY,
        gpt_bigcode.FAMILY,
        openai_gpt.FAMILY,
        gpt_neo.FAMILY,
        gptj.FAMILY,
        codegen.FAMILY,
        llama.FAMILY,
        mistral.FAMILY,
        gpt_neox.FAMILY,
        starcoder2.FAMILY,
        falcon.FAMILY,
        bert.FAMILY,
        roberta.FAMILY,
        roberta.CAMEMBERT,
        roberta.XLM_ROBERTA,
        distilbert.FAMILY,
        albert.FAMILY,
        xlnet.FAMILY,
        vit.FAMILY,
        native.FAMILY,  # the last: it can say everything
    )
}

__all__ = ["FAMILIES"]
