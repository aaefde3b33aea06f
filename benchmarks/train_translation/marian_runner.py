"""Hugging Face's MarianMTModel of the same size, trained from scratch in a plain loop."""

from __future__ import annotations

import torch
from batches import Batch, endless_batches
from measure import Clock, arguments, run_timed, setting_of
from prepare import BOS, EOS, PAD
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

# Two products and a softmax: faster than "sdpa" for sentences this short, in both precisions.
ATTENTION = "eager"


def main() -> None:
    args = arguments(__doc__)
    setting = setting_of(args.data)
    config = MarianConfig(
        vocab_size=setting.vocab_size,
        d_model=setting.d_model,
        encoder_layers=setting.n_layers,
        decoder_layers=setting.n_layers,
        encoder_attention_heads=setting.n_heads,
        decoder_attention_heads=setting.n_heads,
        encoder_ffn_dim=setting.d_ff,
        decoder_ffn_dim=setting.d_ff,
        dropout=setting.dropout,
        attention_dropout=setting.attention_dropout,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        init_std=setting.d_model**-0.5,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        forced_eos_token_id=EOS,
        decoder_start_token_id=BOS,
        use_cache=False,
        attn_implementation=ATTENTION,
    )
    model = MarianMTModel(config).train()
    optimizer = torch.optim.Adam(
        model.parameters(),
        lr=setting.learning_rate,
        betas=setting.betas,
        eps=setting.eps,
        fused=True,
    )

    def train_step(batch: Batch) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            logits = model(
                input_ids=batch.source,
                attention_mask=batch.source != PAD,
                decoder_input_ids=batch.target_in,
            ).logits
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

    run_timed(
        Clock("Hugging Face Marian", args),
        endless_batches(args.data, setting.batch_tokens),
        train_step,
    )


if __name__ == "__main__":
    main()
