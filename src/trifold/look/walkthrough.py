"""The arithmetic of one token: every step of the forward pass with its formula, operands and
result.

Each step is computed from the weights and the results before it.
"""

import json
import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor, nn

from trifold.errors import UsageError
from trifold.generate.decoding import eval_mode
from trifold.look.trace import Trace, check_index
from trifold.nn import ModelConfig, Transformer
from trifold.nn.attention import Attention, merge_heads, split_heads
from trifold.nn.experts import MixtureOfExperts
from trifold.nn.hooks import record_calls
from trifold.nn.layers import LayerNorm
from trifold.nn.masks import PairBias
from trifold.nn.ops import share_keys
from trifold.nn.relative import RelativeScores
from trifold.nn.spans import Spans
from trifold.nn.stack import ConvolutionBlock, ReversibleBlock
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer

SOFTMAX = ("softmax", "exp(z_i) / Σ exp(z_j)")
MAX_OPERAND = 2**14  # elements; larger operands are left out
_ONE_STEP = {"GlobalAttention": "Attention; of global tokens with their own W_q, W_k and W_v"}


@dataclass(frozen=True)
class Step:
    """hook: the hook point, or "logits", whose row for the token equals `result`; None if there is
    none.
    """

    title: str
    formula: str
    operands: dict[str, Tensor]
    result: Tensor
    hook: str | None = None


@torch.no_grad()
def walkthrough(trace: Trace, side: str | None = None, position: int = -1) -> list[Step]:
    """The steps of the token at `position` through one side (default: the last), then through the
    head.
    """
    model, (first, second) = (
        trace.pipeline.model,
        (trace.example.inputs, trace.example.decoder_inputs),
    )
    side = side or trace.side
    if f"{side}_embeddings.output" not in trace:
        raise UsageError(f"side {side!r}: this model has {' and '.join(trace.tokens)}")
    stack, embeddings = getattr(model, side), getattr(model, f"{side}_embeddings")
    steps = _Steps()
    steps.position = check_index("position", position, len(trace.tokens[side]))
    with eval_mode(model), ExitStack() as contexts:
        calls = [iter(contexts.enter_context(record_calls(block))) for block in stack.blocks]
        model(first, second)
        x = steps.embeddings(embeddings, second if side == "decoder" and second else first, side)
        if stack.streams == 2:
            x = steps.add("two streams", "[x; x]", x.repeat(1, 1, 2), x=x)
        for layer, number in enumerate(stack.order):
            steps.place, inputs = f"layer {layer + 1}: ", next(calls[number]).args[1]
            if layer == 0 and (spans := inputs.mask.rule(Spans)) is not None:
                x = spans.rows(x)
            x = steps.block(stack.blocks[number], x, inputs, f"{side}.blocks.{layer}")
        steps.place = ""
        x = steps.norm("final norm", stack.final_norm, x, f"{side}.final_norm")
        if side == trace.side and model.projection is not None:
            x = steps.linear("projection", model.projection, x)
        if side == trace.side and trace.head is not None:
            head: Any = model.lm_head if trace.head == "lm" else None
            if head is not None and (head.dense or head.scale != 1.0):
                steps.add("head", "norm(activation(W x + b)) · scale", head.features(x), x=x)
            logits, weight = trace.apply_head(x[0]), getattr(head, "weight", None)
            logits = logits[None] if logits.dim() > 1 else logits
            steps.add("logits", "W x + b" if head else "head(x)", logits, "logits", x=x, W=weight)
            if not trace.is_number:
                kind = ("sigmoid", "1 / (1 + exp(-z_i))") if trace.several else SOFTMAX
                steps.add(*kind, trace.probabilities(logits), z=logits)
    return steps


def teaching_model() -> Pipeline:
    """A decoder of width 4 with two heads and small round weights, for the text "the cat sat"."""
    data = json.loads(files(__package__).joinpath("teaching.json").read_text("utf-8"))
    codec = train_tokenizer([data["text"]], TokenizerSettings(kind="word", min_frequency=1))
    model = Transformer(ModelConfig.parse(data["config"] | {"vocab_size": codec.vocab_size}))
    model.load_state_dict(
        {name: torch.tensor(x) for name, x in data["weights"].items()}, strict=False
    )
    return Pipeline(model.eval(), codec)


class _Steps(list[Step]):
    """Steps of the token at `position`. Activations are those of all tokens, (1, T, E) or (1, H, T,
    D).
    """

    position, place = 0, ""

    def row(self, x: Tensor) -> Tensor:
        """That of the token; parameters, which have at most two axes, as they are."""
        return x[0].select(-2, self.position) if x.dim() > 2 else x

    def add(
        self, title: str, formula: str, y: Tensor, hook: str | None = None, **operands: Any
    ) -> Tensor:
        rows = {name: self.row(x).float() for name, x in operands.items() if isinstance(x, Tensor)}
        small = {name: x for name, x in rows.items() if x.numel() <= MAX_OPERAND}
        self.append(Step(self.place + title, formula, small, self.row(y).float(), hook))
        return y

    def equals(self, hook: str) -> None:
        self[-1] = replace(self[-1], hook=hook)

    def norm(self, title: str, module: Any, x: Tensor, hook: str | None = None) -> Tensor:
        if isinstance(module, nn.Identity):
            return x
        weight = {0.0: " · weight", 1.0: " · (1 + weight)"}[getattr(module, "offset", 0.0)]
        formula = "x / √(mean x² + ε)" + ("" if module.weight is None else weight)
        row = self.row(x).float()
        values = {"mean x²": row.square().mean()}
        if isinstance(module, LayerNorm):
            formula = "(x − mean) / √(var + ε) · weight" + (
                " + bias" if module.bias is not None else ""
            )
            values = {"mean": row.mean(), "var": row.var(correction=0)}
        return self.add(
            title, formula, module(x), hook, x=x, **values, **dict(module.named_parameters())
        )

    def linear(
        self, title: str, layer: Any, x: Tensor, hook: str | None = None, head: int = 0
    ) -> Tensor:
        """head: the width of the heads into which the result is split; 0: it is not."""
        formula, y = "W x" if layer.bias is None else "W x + b", layer(x)
        result = split_heads(y, head) if head else y
        return self.add(title, formula, result, hook, x=x, W=layer.weight, b=layer.bias)

    def embeddings(self, module: Any, inputs: Any, side: str) -> Tensor:
        if inputs.pixels is not None:  # positions are part of the result
            return self.add(
                "embedding", "W patch + b + p", module(inputs), f"{side}_embeddings.output"
            )
        x = self.add("embedding", "E[token]", module.tokens(inputs.tokens))
        if module.projection is not None and module.projects_tokens:
            x = self.linear("projection", module.projection, x)
        if module.scale != 1.0:
            x = self.add("scale", "x · √d_model", x * module.scale, x=x)
        moved = module.positions(x, torch.arange(x.shape[1], device=x.device)[None])
        x = self.add("position", "x + p", moved, x=x, p=moved - x) if moved is not x else x
        if module.token_types is not None:
            x = self.add("segment", "x + E[segment]", x + module.token_types(inputs.segments), x=x)
        if module.norm is not None:
            x = self.norm("norm", module.norm, x, f"{side}_embeddings.norm")
        if module.projection is not None and not module.projects_tokens:
            x = self.linear("projection", module.projection, x)
        self.equals(f"{side}_embeddings.output")
        return x

    def block(self, block: Any, x: Tensor, inputs: Any, name: str) -> Tensor:
        attention, feed_forward = block.self_attention, block.feed_forward
        if isinstance(attention, nn.ModuleDict):
            y = self.norm("norm", attention["enter"], x, f"{name}.self_attention.enter")
            a = self.attention(attention["sublayer"], y, inputs, f"{name}.self_attention")
            self.equals(f"{name}.self_attention.output")
            z = x if block.two_norms else y
            z = self.norm("norm", feed_forward["enter"], z, f"{name}.feed_forward.enter")
            f = self.feed_forward(feed_forward["sublayer"], z, inputs, f"{name}.feed_forward")
            self.equals(f"{name}.feed_forward.output")
            state = name.replace("blocks", "states")
            return self.add("residual", "x + (a + f)", x + (a + f), state, x=x, a=a, f=f)
        first, (other, x) = x, x.chunk(2, -1) if isinstance(block, ReversibleBlock) else (None, x)
        for part in ("self_attention", "cross_attention", "feed_forward"):
            if (residual := getattr(block, part)) is not None:
                point, run = (
                    f"{name}.{part}",
                    self.feed_forward if part == "feed_forward" else self.attention,
                )
                y = self.norm("norm", residual.enter, x, f"{point}.enter")
                y = self.norm(
                    "norm of the output", residual.exit, run(residual.sublayer, y, inputs, point)
                )
                if residual.scale != 1:
                    y = self.add("scale", "c · dx", y * residual.scale, dx=y)
                self.equals(f"{point}.output")
                base, other = (x, None) if other is None else (other, x)
                x = self.add("residual", "x + dx", base + y, x=base, dx=y)
                x = self.norm("norm", residual.after, x)
                self.equals(point)
        if isinstance(block, ConvolutionBlock):  # one step
            y = block.convolve(first, inputs.mask)
            self.add("convolution", "f(Σ W_j x_(t+j) + b)", y, f"{name}.convolved", x=first)
            x = self.add("residual", "x + dx", x + y, x=x, dx=y)
            x = self.norm("norm", block.norm, x, f"{name}.norm")
        if other is None:
            return x
        state = name.replace("blocks", "states")
        return self.add("two streams", "[x; z]", torch.cat([other, x], -1), state, x=other, z=x)

    def attention(self, layer: Any, x: Tensor, inputs: Any, name: str) -> Tensor:
        if type(layer) is not Attention:  # one step
            y, kind = (
                layer(x, mask=inputs.mask, bias=inputs.bias, rotary=inputs.rotary),
                type(layer).__name__,
            )
            return self.add("attention", _ONE_STEP.get(kind, kind), y, x=x)
        crosses, point, width = (
            name.endswith("cross_attention"),
            f"{name}.sublayer",
            layer.head_width,
        )
        rotary, kind = None if crosses else inputs.rotary, "cross-attention " if crosses else ""
        q = self.linear(f"{kind}query", layer.q_proj, x, head=width)
        if layer.q_norm is not None:
            normed = split_heads(layer.normed(layer.q_norm, merge_heads(q)), width)
            q = self.add("query norm", "norm(q)", normed, q=q)
        if rotary is not None:
            q = self.add("rotated query", "q rotated by position · ω", rotary(q), q=q)
        before = q if crosses else layer.project(x)[1]
        scaled, bias = layer.queries_and_bias(q, before, None if crosses else inputs.bias)
        if scaled is not q:
            formula = "c · (q + u)" if isinstance(layer.relative, RelativeScores) else "c · q"
            c = torch.tensor(layer.query_scale)  # scores are divided by √D below
            q = self.add("scaled query", f"{formula}, c = scale · √D", scaled, q=q, c=c)
        self.equals(f"{point}.queries")
        if crosses:
            k = split_heads(layer.normed(layer.k_norm, layer.k_proj(inputs.memory)), width)
            v = split_heads(layer.v_proj(inputs.memory), width)
        else:
            k = self.linear("key", layer.k_proj, x, head=width)
            if layer.k_norm is not None:
                normed = split_heads(layer.normed(layer.k_norm, merge_heads(k)), width)
                k = self.add("key norm", "norm(k)", normed, k=k)
            if rotary is not None:
                k = self.add("rotated key", "k rotated by position · ω", rotary(k), k=k)
            self.equals(f"{point}.keys")
            v = self.linear("value", layer.v_proj, x, f"{point}.values", width)
        q, k, v = share_keys(q, k, v)
        keys, values = (each.transpose(1, 2)[0].flatten(1) for each in (k, v))  # (S, H·D)
        s = self.add(f"{kind}scores", "q · k_j / √D", q @ k.mT / math.sqrt(width), q=q, keys=keys)
        if layer.soft_cap is not None:
            s = self.add(
                "soft cap", "c · tanh(s / c)", layer.soft_cap * torch.tanh(s / layer.soft_cap), s=s
            )
        mask = inputs.memory_mask if crosses else inputs.mask
        if isinstance(bias, PairBias):
            bias = bias.dense(*s.shape[-2:])
        if (offsets := mask.additive(s.shape[-2], s.shape[-1], s, bias)) is not None:
            rules = "; ".join(rule.sentence for rule in mask.rules)
            title = f"mask ({rules}) and offsets" if rules else "mask and offsets"
            s = self.add(title, "s_j + o_j", s + offsets, s=s, o=offsets.expand_as(s))
        self.equals(f"{point}.scores")
        formula, weights = "exp(s_j) / Σ exp(s_i)", s.softmax(-1)
        if layer.sinks is not None:
            formula = "exp(s_j) / (exp(sink) + Σ exp(s_i))"
            weights = weights * torch.sigmoid(
                s.logsumexp(-1, keepdim=True) - layer.sinks[:, None, None]
            )
        a = self.add("softmax", formula, weights, f"{point}.pattern", s=s)
        y = self.add("weighted sum", "Σ a_j · v_j", a @ v, f"{point}.heads", a=a, values=values)
        return self.linear(f"{kind}output", layer.o_proj, merge_heads(y))

    def feed_forward(self, layer: Any, x: Tensor, inputs: Any, name: str) -> Tensor:
        if isinstance(layer, MixtureOfExperts):  # one step
            weights = layer.router(x.flatten(0, -2)).weights[None]
            return self.add("experts", "Σ g_i · FFN_i(x)", layer(x), x=x, g=weights)
        kind, point, gate = layer.activation_name, f"{name}.sublayer.inner", layer.gate_proj
        up = self.linear("feed-forward in", layer.in_proj, x)
        g = up if gate is None else self.linear("gate", gate, x)
        if layer.limit is not None:
            g, up = g.clamp(max=layer.limit), up.clamp(-layer.limit, layer.limit) + 1
        y, formula = layer.activation(g), f"{kind}(g)"
        if gate is not None:
            y, formula = y * up, f"{formula} · x"
        self.add("activation", formula, y, point, g=g, x=None if gate is None else up)
        return self.linear("feed-forward out", layer.out_proj, y)
