"""ONNX Runtime on batches of similar length."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import plain
from measure import Encode, arguments, measure
from setting import SHAPES


def main() -> None:
    args = arguments(__doc__)
    batches = plain.BATCHES[SHAPES[args.model].reads]

    def load() -> Encode:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = args.threads
        file = args.folder / f"onnx-{args.precision}.onnx"
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        names = [read.name for read in session.get_inputs()]

        def run(*arrays: np.ndarray) -> np.ndarray:
            return session.run(None, dict(zip(names, arrays, strict=True)))[0]

        def encode(inputs: list[Any]) -> np.ndarray:
            return plain.encode(run, batches(args.folder / "model", inputs))

        return encode

    measure("ONNX Runtime", args, load)


if __name__ == "__main__":
    main()
