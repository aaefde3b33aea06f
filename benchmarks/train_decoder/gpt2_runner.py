"""Hugging Face's GPT2LMHeadModel of the same size, trained from scratch in a plain loop."""

from __future__ import annotations

from measure import arguments
from plain import train_plainly
from setting import Setting
from transformers import GPT2Config, GPT2LMHeadModel
from wide import WIDE


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
        activation_function="gelu_pytorch_tanh",  # its own is the same in eight operators
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    model = GPT2LMHeadModel(config).train()
    train_plainly(
        "Hugging Face GPT-2", args, setting, model, lambda read: model(input_ids=read).logits
    )


if __name__ == "__main__":
    main()
