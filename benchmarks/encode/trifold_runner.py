"""trifold's own vectors, through `pipe.embed`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from measure import Encode, arguments, measure
from PIL import Image
from setting import SHAPES

import trifold

# precision -> arguments of trifold.load
LOADS = {
    "fp32": {},
    "bf16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "weights": "int8"},
}


def main() -> None:
    args = arguments(__doc__)
    torch.set_num_threads(args.threads)
    reads_images = SHAPES[args.model].reads == "images"

    def load() -> Encode:
        pipe = trifold.load(args.folder / "model", **LOADS[args.precision])

        def encode(inputs: list[Any]) -> np.ndarray:
            read = [Image.fromarray(x) for x in inputs] if reads_images else inputs
            return torch.stack(pipe.embed(read, normalise=True)).numpy()

        return encode

    measure("trifold", args, load)


if __name__ == "__main__":
    main()
