"""The arithmetic of one token: every step of the forward pass with its formula, operands and
result.

Each step is computed from the weights and the results before it.
"""

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor, nn

from trifold.errors import UsageError
from trifold.generate.decoding import eval_mode
from trifold.nn import ModelConfig, Transformer
from trifold.nn.attention import Attention, merge_heads, split_heads
from trifold.nn.embeddings import Embeddings
from trifold.nn.explain import formula_of
from trifold.nn.hooks import record_calls
from trifold.nn.layers import FeedForward
from trifold.nn.masks import PairBias
from trifold.nn.ops import share_keys
from trifold.pipeline import Pipeline
from trifold.predict.trace import Trace, check_index
from trifold.text import TokenizerSettings, train_tokenizer

SOFTMAX = ("softmax", "exp(z_i) / Σ exp(z_j)")
SIGMOID = ("sigmoid", "1 / (1 + exp(-z_i))")
MAX_OPERAND = 2**14  # elements; larger operands are left out
_NUMBERS = {2: "two"}
# The offset of the weight of an RMS norm -> the factor in its formula.


@dataclass(frozen=True)
class ArithmeticStep:
    """hook: the hook point, or "logits", whose row for the token equals `result`; None if there is
    none.
    """

    title: str
    formula: str
    operands: dict[str, Tensor]
    result: Tensor
    hook: str | None = None


@torch.no_grad()
def walkthrough(trace: Trace, side: str | None = None, position: int = -1) -> list[ArithmeticStep]:
    """The steps of the token at `position` through one side (default: the last), then through the
    head.
    """
    side = side or trace.side
    if f"{side}_embeddings.output" not in trace:
        raise UsageError(f"side {side!r}: this model has {' and '.join(trace.tokens)}")
    steps = _StepRecorder(check_index("position", position, len(trace.tokens[side])))
    with eval_mode(trace.pipeline.model):
        x = _record_stack(steps, trace, side)
        if side == trace.side:
            _record_head(steps, trace, x)
    return steps


def _record_stack(steps: "_StepRecorder", trace: Trace, side: str) -> Tensor:
    """The steps of a stack, from the embeddings to the final norm; -> its last states (1, T, E)."""
    model = trace.pipeline.model
    stack = getattr(model, side)
    inputs = trace.example.inputs
    if side == "decoder" and trace.example.decoder_inputs is not None:
        inputs = trace.example.decoder_inputs
    x = steps.embeddings(getattr(model, f"{side}_embeddings"), inputs, side)
    if stack.streams > 1:
        x = steps.streams(stack.streams, stack.to_streams(x), x)
    for layer, (block, layer_inputs) in enumerate(_block_calls(trace, stack)):
        if layer == 0:
            x = stack.rows(x, layer_inputs)
        in_layer = _StepRecorder(steps.position, f"layer {layer + 1}: ")
        x = in_layer.block(block, x, layer_inputs, f"{side}.blocks.{layer}")
        steps.extend(in_layer)
    return steps.norm("final norm", stack.final_norm, x, f"{side}.final_norm")


def _block_calls(trace: Trace, stack: Any) -> Iterator[tuple[nn.Module, Any]]:
    """The block of each layer of a stack, and the inputs that it gets beside the states."""
    with ExitStack() as contexts:
        recorded = [contexts.enter_context(record_calls(block)) for block in stack.blocks]
        trace.pipeline.model(trace.example.inputs, trace.example.decoder_inputs)
    calls_of_block = [iter(calls) for calls in recorded]
    for number in stack.block_of_layer:
        yield stack.blocks[number], next(calls_of_block[number]).args[1]


def _record_head(steps: "_StepRecorder", trace: Trace, x: Tensor) -> None:
    """The steps from the last states (1, T, E) to logits and probabilities."""
    model = trace.pipeline.model
    if model.projection is not None:
        x = steps.linear("projection", model.projection, x)
    if trace.head is None:
        return
    logits = trace.apply_head(x[0])
    if logits.dim() > 1:
        logits = logits[None]
    if trace.head == "lm":
        head: Any = model.lm_head
        if head.dense is not None or head.scale != 1.0:
            steps.add("head", "norm(activation(W x + b)) · scale", head.features(x), x=x)
        steps.add("logits", "W x + b", logits, "logits", x=x, W=head.weight)
    else:
        steps.add("logits", "head(x)", logits, "logits", x=x)
    if not trace.is_number:
        title, formula = SIGMOID if trace.several else SOFTMAX
        steps.add(title, formula, trace.probabilities(logits), z=logits)


def teaching_model() -> Pipeline:
    """A decoder of width 4 with two heads and small round weights, for the text "the cat sat"."""
    data = json.loads(files(__package__).joinpath("teaching.json").read_text("utf-8"))
    codec = train_tokenizer([data["text"]], TokenizerSettings(kind="word", min_frequency=1))
    model = Transformer(ModelConfig.parse(data["config"] | {"vocab_size": codec.vocab_size}))
    model.load_state_dict(
        {name: torch.tensor(x) for name, x in data["weights"].items()}, strict=False
    )
    return Pipeline(model.eval(), codec)


class _StepRecorder(list[ArithmeticStep]):
    """Steps of the token at `position`, as `nn.explain.Steps`. Activations are those of all tokens,
    (1, T, E) or (1, H, T, D).

    prefix: of every title.
    """

    def __init__(self, position: int, prefix: str = "") -> None:
        super().__init__()
        self.position = position
        self.prefix = prefix

    def row(self, x: Tensor) -> Tensor:
        """That of the token; parameters, which have at most two axes, as they are."""
        if x.dim() <= 2:
            return x
        return x[0].select(-2, self.position).clone()  # a view would keep all of x in memory

    def add(
        self, title: str, formula: str, y: Tensor, hook: str | None = None, /, **operands: Any
    ) -> Tensor:
        """Append a step with the rows of its result y and its operands; -> y."""
        rows = {name: self.row(x).float() for name, x in operands.items() if isinstance(x, Tensor)}
        small = {name: x for name, x in rows.items() if x.numel() <= MAX_OPERAND}
        self.append(ArithmeticStep(self.prefix + title, formula, small, self.row(y).float(), hook))
        return y

    def equals(self, hook: str) -> None:
        """Name the hook point that the result of the last step equals."""
        self[-1] = replace(self[-1], hook=hook)

    def norm(self, title: str, module: Any, x: Tensor, hook: str | None = None) -> Tensor:
        if isinstance(module, nn.Identity):
            return x
        row = self.row(x).float()
        formula, statistics = module.equation(row)
        parameters = dict(module.named_parameters())
        return self.add(title, formula, module(x), hook, x=x, **statistics, **parameters)

    def linear(
        self, title: str, layer: Any, x: Tensor, hook: str | None = None, head: int = 0
    ) -> Tensor:
        """head: the width of the heads into which the result is split; 0: it is not."""
        formula = "W x" if layer.bias is None else "W x + b"
        y = layer(x)
        if head:
            y = split_heads(y, head)
        return self.add(title, formula, y, hook, x=x, W=layer.weight, b=layer.bias)

    def embeddings(self, module: Any, inputs: Any, side: str) -> Tensor:
        if not isinstance(module, Embeddings):  # one step
            hook = f"{side}_embeddings.output"
            return self.add("embedding", formula_of(module), module(inputs), hook)
        x = self.add("embedding", "E[token]", module.tokens(inputs.tokens))
        if module.projection is not None and module.projects_tokens:
            x = self.linear("projection", module.projection, x)
        if module.scale != 1.0:
            x = self.add("scale", "x · √d_model", x * module.scale, x=x)
        moved = module.positions(x, torch.arange(x.shape[1], device=x.device)[None])
        if moved is not x:
            x = self.add("position", "x + p", moved, x=x, p=moved - x)
        if module.token_types is not None:
            x = self.add("segment", "x + E[segment]", x + module.token_types(inputs.segments), x=x)
        marked = module.marked(x, inputs)
        if marked is not x:
            x = self.add("word match", "x + M[match]", marked, x=x)
        if module.norm is not None:
            x = self.norm("norm", module.norm, x, f"{side}_embeddings.norm")
        if module.projection is not None and not module.projects_tokens:
            x = self.linear("projection", module.projection, x)
        self.equals(f"{side}_embeddings.output")
        return x

    def streams(self, count: int, y: Tensor, x: Tensor) -> Tensor:
        """x in each of several streams."""
        copies = "; ".join("x" * count)
        return self.add(f"{_NUMBERS.get(count, count)} streams", f"[{copies}]", y, x=x)

    def block(self, block: Any, x: Tensor, inputs: Any, name: str) -> Tensor:
        if hasattr(block, "explain"):
            y: Tensor = block.explain(self, x, inputs, name)
            return y
        state = name.replace("blocks", "states")
        return self.add("block", formula_of(block), block(x, inputs), state, x=x)

    def residual(
        self, module: Any, x: Tensor, inputs: Any, name: str, onto: Tensor | None = None
    ) -> Tensor:
        """See `Steps.residual`."""
        y = self.norm("norm", module.enter, x, f"{name}.enter")
        if name.endswith("feed_forward"):
            y = self.feed_forward(module.sublayer, y, inputs, name)
        else:
            y = self.attention(module.sublayer, y, inputs, name)
        y = self.norm("norm of the output", module.exit, y)
        if module.scale != 1:
            y = self.add("scale", "c · dx", y * module.scale, dx=y)
        self.equals(f"{name}.output")
        base = x if onto is None else onto
        x = self.add("residual", "x + dx", base + y, x=base, dx=y)
        x = self.norm("norm", module.after, x)
        self.equals(name)
        return x

    # --- attention --------------------------------------------------------------------------------

    def attention(self, layer: Any, x: Tensor, inputs: Any, name: str) -> Tensor:
        if hasattr(layer, "explain"):
            y: Tensor = layer.explain(self, x, inputs, name)
            return y
        if type(layer) is not Attention:  # one step
            if name.endswith("cross_attention"):
                y = layer(x, inputs.memory, mask=inputs.memory_mask)
            else:
                y = layer(x, mask=inputs.mask, bias=inputs.bias, rotary=inputs.rotary)
            return self.add("attention", formula_of(layer), y, x=x)
        point = f"{name}.sublayer"
        kind = ""
        if name.endswith("cross_attention"):  # it reads the memory, without positions
            kind = "cross-attention "
            inputs = inputs._replace(mask=inputs.memory_mask, bias=None, rotary=None)
        q, bias = self.queries(layer, x, inputs, f"{kind}query")
        self.equals(f"{point}.queries")
        if kind:
            k = split_heads(
                layer.normed(layer.k_norm, layer.k_proj(inputs.memory)), layer.head_width
            )
            v = split_heads(layer.v_proj(inputs.memory), layer.value_width)
        else:
            k = self.keys(layer, x, inputs.rotary)
            self.equals(f"{point}.keys")
            v = self.linear("value", layer.v_proj, x, f"{point}.values", layer.value_width)
        q, k, v = share_keys(q, k, v)
        s = self.scores(layer, q, k, f"{kind}scores")
        s = self.masked(s, inputs.mask, bias)
        self.equals(f"{point}.scores")
        a = self.weights(layer, s, f"{point}.pattern")
        values = v.transpose(1, 2)[0].flatten(1)  # (S, H·Y)
        y = self.add("weighted sum", "Σ a_j · v_j", a @ v, f"{point}.heads", a=a, values=values)
        return self.linear(f"{kind}output", layer.o_proj, merge_heads(y))

    def queries(self, layer: Any, x: Tensor, inputs: Any, title: str) -> tuple[Tensor, Any]:
        """The scaled queries (1, H, T, D), and the bias of the scores."""
        width = layer.head_width
        rotary = inputs.rotary
        q = self.linear(title, layer.q_proj, x, head=width)
        if layer.q_norm is not None:
            normed = split_heads(layer.normed(layer.q_norm, merge_heads(q)), width)
            q = self.add("query norm", "norm(q)", normed, q=q)
        if rotary is not None:
            q = self.add("rotated query", "q rotated by position · ω", rotary(q), q=q)
        k = q if inputs.bias is None else layer.project(x)[1]  # read only for a bias
        scaled, bias = layer.queries_and_bias(q, k, inputs.bias)
        if scaled is not q:
            formula = f"c · {getattr(layer.relative, 'query_formula', 'q')}, c = scale · √D"
            c = torch.tensor(layer.query_scale)  # scores are divided by √D below
            q = self.add("scaled query", formula, scaled, q=q, c=c)
        return q, bias

    def keys(self, layer: Any, x: Tensor, rotary: Any) -> Tensor:
        """The keys (1, H', T, D) of self-attention."""
        k = self.linear("key", layer.k_proj, x, head=layer.head_width)
        if layer.k_norm is not None:
            normed = split_heads(layer.normed(layer.k_norm, merge_heads(k)), layer.head_width)
            k = self.add("key norm", "norm(k)", normed, k=k)
        if rotary is not None:
            k = self.add("rotated key", "k rotated by position · ω", rotary(k), k=k)
        return k

    def scores(self, layer: Any, q: Tensor, k: Tensor, title: str) -> Tensor:
        """The scores (1, H, T, S) of content."""
        keys = k.transpose(1, 2)[0].flatten(1)
        s = q @ k.mT / math.sqrt(layer.head_width)
        s = self.add(title, "q · k_j / √D", s, q=q, keys=keys)
        cap = layer.soft_cap
        if cap is not None:
            s = self.add("soft cap", "c · tanh(s / c)", cap * torch.tanh(s / cap), s=s)
        return s

    def masked(self, s: Tensor, mask: Any, bias: Any) -> Tensor:
        """The scores with the mask and the bias."""
        if isinstance(bias, PairBias):
            bias = bias.dense(*s.shape[-2:])
        offsets = mask.additive(s.shape[-2], s.shape[-1], s, bias)
        if offsets is None:
            return s
        rules = "; ".join(rule.sentence for rule in mask.rules)
        title = f"mask ({rules}) and offsets" if rules else "mask and offsets"
        return self.add(title, "s_j + o_j", s + offsets, s=s, o=offsets.expand_as(s))

    def weights(self, layer: Any, s: Tensor, hook: str) -> Tensor:
        """The softmax of the scores, to which sinks may belong."""
        formula = "exp(s_j) / Σ exp(s_i)"
        weights = s.softmax(-1)
        if layer.sinks is not None:
            formula = "exp(s_j) / (exp(sink) + Σ exp(s_i))"
            total = s.logsumexp(-1, keepdim=True)
            weights = weights * torch.sigmoid(total - layer.sinks[:, None, None])
        return self.add("softmax", formula, weights, hook, s=s)

    # --- feed-forward network ---------------------------------------------------------------------

    def feed_forward(self, layer: Any, x: Tensor, inputs: Any, name: str) -> Tensor:
        if hasattr(layer, "explain"):
            y: Tensor = layer.explain(self, x, inputs, name)
            return y
        if type(layer) is not FeedForward:  # one step
            return self.add("feed-forward", formula_of(layer), layer(x), x=x)
        point = f"{name}.sublayer.inner"
        formula = f"{layer.activation_name}(g)"
        up = self.linear("feed-forward in", layer.in_proj, x)
        if layer.gate_proj is None:
            y = self.add("activation", formula, layer.activation(up), point, g=up)
        else:
            g = self.linear("gate", layer.gate_proj, x)
            if layer.limit is not None:
                g = g.clamp(max=layer.limit)
                up = up.clamp(-layer.limit, layer.limit) + 1
            y = layer.activation(g) * up
            y = self.add("activation", f"{formula} · x", y, point, g=g, x=up)
        return self.linear("feed-forward out", layer.out_proj, y)
