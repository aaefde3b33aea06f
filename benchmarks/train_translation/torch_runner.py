"""torch.nn.Transformer in a plain loop, as an experienced user would write it."""

from __future__ import annotations

import math

import torch
from batches import Batch, endless_batches
from measure import Clock, arguments, run_timed, setting_of
from prepare import PAD
from setting import Setting
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


class Translator(nn.Module):
    """Shared embeddings, sinusoidal positions and `nn.Transformer`; returns logits (B, T, V)."""

    def __init__(self, setting: Setting, max_positions: int = 1024) -> None:
        super().__init__()
        self.scale = math.sqrt(setting.d_model)
        self.embedding = nn.Embedding(setting.vocab_size, setting.d_model, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=setting.d_model**-0.5)
        self.transformer = nn.Transformer(
            setting.d_model,
            setting.n_heads,
            setting.n_layers,
            setting.n_layers,
            setting.d_ff,
            setting.dropout,
            batch_first=True,
        )
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = setting.attention_dropout
            if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                module.dropout.p = 0.0  # inside the feed-forward, where the paper has none
        self.dropout = nn.Dropout(setting.dropout)
        angles = torch.arange(max_positions)[:, None] * torch.exp(
            -math.log(10_000) / setting.d_model * torch.arange(0, setting.d_model, 2)
        )
        self.register_buffer(
            "positions", torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens) * self.scale + self.positions[: tokens.size(1)])

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        padding = source == PAD
        # Target padding is on the right, where the causal mask hides it from real tokens.
        hidden = self.transformer(
            self.embed(source),
            self.embed(target_in),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target_in.size(1)),
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return F.linear(hidden, self.embedding.weight)


def main() -> None:
    args = arguments(__doc__)
    setting = setting_of(args.data)
    model = Translator(setting).train()
    optimizer = torch.optim.Adam(
        model.parameters(),
        lr=setting.learning_rate,
        betas=setting.betas,
        eps=setting.eps,
        fused=True,
    )

    def train_step(batch: Batch) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            logits = model(batch.source, batch.target_in)
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                batch.target_out.flatten(),
                ignore_index=PAD,
                label_smoothing=setting.label_smoothing,
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    # Two products and a softmax: faster than the fused kernel for such short sentences, especially
    # in bf16.
    with sdpa_kernel(SDPBackend.MATH):
        run_timed(
            Clock("torch.nn.Transformer", args),
            endless_batches(args.data, setting.batch_tokens),
            train_step,
        )


if __name__ == "__main__":
    main()
