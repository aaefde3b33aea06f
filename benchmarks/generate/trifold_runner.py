"""trifold's own generation, through `pipe.generate_tokens`."""

from __future__ import annotations

import torch
from measure import Write, arguments, measure
from setting import Work

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

    def writer(work: Work) -> Write:
        pipe = trifold.load(args.folder / work.model, **LOADS[args.precision])
        asked = {"max_new_tokens": work.new, "min_new_tokens": work.new, "num_beams": work.beams}
        return lambda rows: pipe.generate_tokens(torch.tensor(rows), **asked)

    measure("trifold", args, writer)


if __name__ == "__main__":
    main()
