"""sentence-transformers' `encode`; images by Hugging Face's model in batches."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import plain
import torch
from measure import Encode, arguments, measure
from prepare import load_encoder
from sentence_transformers import SentenceTransformer
from setting import ROWS, SHAPES
from transformers.utils import logging

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    args = arguments(__doc__)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    dtype = DTYPES[args.precision]

    def load_texts() -> Encode:
        options = {"dtype": dtype}
        model = SentenceTransformer(
            str(args.folder / "model"), device="cpu", model_kwargs=options
        ).eval()
        return partial(model.encode, batch_size=ROWS, normalize_embeddings=True)

    def load_images() -> Encode:
        run = plain.torch_run(load_encoder(args.folder, args.model).to(dtype))

        def encode(images: list[Any]) -> np.ndarray:
            return plain.encode(run, plain.image_batches(args.folder, images))

        return encode

    if SHAPES[args.model].reads == "images":
        measure("Hugging Face", args, load_images)
    else:
        measure("sentence-transformers", args, load_texts)


if __name__ == "__main__":
    main()
