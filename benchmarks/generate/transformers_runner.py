"""Hugging Face `generate`."""

from __future__ import annotations

import torch
from measure import Write, arguments, measure
from setting import Work
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.utils import logging

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CLASSES = {"gpt2": AutoModelForCausalLM, "marian": AutoModelForSeq2SeqLM}


def main() -> None:
    args = arguments(__doc__)
    logging.set_verbosity_error()
    torch.set_num_threads(args.threads)

    def writer(work: Work) -> Write:
        kind = CLASSES[work.model]
        model = kind.from_pretrained(args.folder / work.model, dtype=DTYPES[args.precision]).eval()
        prompt = 1 if work.model == "marian" else work.width

        @torch.inference_mode()
        def write(rows: list[list[int]]) -> list[list[int]]:
            tokens = torch.tensor(rows)
            out = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=work.new,
                min_new_tokens=work.new,
                num_beams=work.beams,
                do_sample=False,
                pad_token_id=model.config.pad_token_id or model.config.eos_token_id,
            )
            return out[:, prompt:].tolist()

        return write

    measure("Hugging Face", args, writer)


if __name__ == "__main__":
    main()
