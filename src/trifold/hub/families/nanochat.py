"""nanochat (Karpathy 2025): RMS norms without weights, relu², a soft cap on logits.

Norms also follow the embeddings, and apply to each head of queries and keys: after the rotation, which does not change
their length. Heads are rotated in the other direction than LLaMA's. (x₂, x₁) rotated by an angle is (x₁, x₂) rotated by
its negative, swapped: so the halves of each head are swapped in the matrices of queries and keys.
"""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.families.gpt import DECODER, classes
from trifold.hub.families.llama import ENTRIES, RULES
from trifold.hub.family import BLOCK, Family, in_layer
from trifold.hub.rope import rope
from trifold.hub.rows import ACTIVATIONS, ids, resized, revise, row
from trifold.hub.rules import AnyRule, Rule
from trifold.hub.transforms import permuted
from trifold.nn import ModelConfig

LAYER = {
    "self_attention.sublayer.{p:v|o}_proj": "self_attn.{p}_proj",
    "feed_forward.sublayer.in_proj": "mlp.fc1",
    "feed_forward.sublayer.out_proj": "mlp.fc2",
}


def _swapped(config: ModelConfig, base: str) -> list[AnyRule]:
    width, half = config.head_width, config.head_width // 2
    head = [*range(half, width), *range(half)]
    rules: list[AnyRule] = []
    for name, heads in (("q", config.n_heads), ("k", config.kv_heads)):
        order = [first + row for first in range(0, heads * width, width) for row in head]
        ours, theirs = f"{BLOCK}self_attention.sublayer.{name}_proj", f"layers.{{i}}.self_attn.{name}_proj"
        rules.append(Rule(f"{ours}.{{part}}", f"{base}{theirs}.{{part}}", permuted(order)))
    return rules


FAMILY = Family(
    model_type="nanochat",
    stem="NanoChat",
    classes=classes("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    entries=revise(
        ENTRIES,
        row("hidden_act", "activation", "relu2", map=ACTIVATIONS),
        row("final_logit_softcapping", "logit_soft_cap", 15.0, nullable=True),
        # The other kinds have a magnitude, and norms follow the rotation.
        rope(kinds=["linear", "dynamic", "llama3"]),
        ids(pad=1, bos=0, eos=1),
        without="mlp_bias",
        **resized(vocab=50304, width=768, inner=8192, layers=12, heads=6),
    ),
    constants=DECODER
    | {"norm": "rms", "norm_weight": "none", "embedding_norm": True, "qk_norm": "head"}
    | {"feed_forward_bias": False, "dropout": 0.0},
    rules=replace(RULES, names=in_layer(".layers.{i}.", LAYER), more=_swapped),
)
