"""A GPT in eager PyTorch and a plain loop, as an experienced user would write it."""

from __future__ import annotations

from measure import arguments
from plain import train_plainly
from setting import Setting
from torch import Tensor, nn
from torch.nn import functional as F
from wide import WIDE


class Block(nn.Module):
    def __init__(self, setting: Setting) -> None:
        super().__init__()
        d = setting.d_model
        self.heads, self.p, self.gelu = setting.n_heads, setting.attention_dropout, setting.gelu
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.drop = nn.Dropout(setting.dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)), approximate=self.gelu)))


class GPT(nn.Module):
    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.tokens = nn.Embedding(setting.vocab_size, setting.d_model)
        self.positions = nn.Embedding(setting.context, setting.d_model)
        self.drop = nn.Dropout(setting.dropout)
        self.blocks = nn.ModuleList(Block(setting) for _ in range(setting.n_layers))
        self.norm = nn.LayerNorm(setting.d_model)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.tokens(x) + self.positions.weight[: x.shape[1]])
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def main() -> None:
    args = arguments(__doc__)
    setting = WIDE if args.wide else Setting()
    model = GPT(setting).train()
    train_plainly("plain PyTorch", args, setting, model, model)


if __name__ == "__main__":
    main()
