"""Hugging Face's GPT2LMHeadModel of the same size, trained from nothing in a plain loop."""

from __future__ import annotations

import torch
from measure import arguments, run_timed, windows
from setting import Setting
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel
from wide import WIDE, random_windows


def main() -> None:
    args = arguments(__doc__)
    setting = WIDE if args.wide else Setting()
    config = GPT2Config(
        vocab_size=setting.vocab_size,
        n_positions=setting.context,
        n_embd=setting.d_model,
        n_layer=setting.n_layers,
        n_head=setting.n_heads,
        resid_pdrop=setting.dropout,
        embd_pdrop=setting.dropout,
        attn_pdrop=setting.attention_dropout,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        setting.learning_rate,
        setting.betas,
        weight_decay=setting.weight_decay,
        fused=True,
    )
    batches = random_windows() if args.wide else windows(setting)

    def step() -> tuple[float, int]:
        read, wanted = next(batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            logits = model(input_ids=read).logits
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), setting.clip)
        optimizer.step()
        return loss.item(), wanted.numel()

    run_timed("Hugging Face GPT-2", args, step)


if __name__ == "__main__":
    main()
