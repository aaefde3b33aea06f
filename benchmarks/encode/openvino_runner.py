"""OpenVINO, compiled for latency, on batches of similar length."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import plain
from measure import Encode, arguments, measure
from setting import SHAPES

# precision -> file, and the precision of the operators that are not in int8
FORMS = {"fp32": ("fp32", "f32"), "bf16": ("fp32", "bf16"), "int8": ("int8", "f32")}


def main() -> None:
    args = arguments(__doc__)
    batches = plain.BATCHES[SHAPES[args.model].reads]
    form, precision = FORMS[args.precision]

    def load() -> Encode:
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": args.threads,
            "INFERENCE_PRECISION_HINT": precision,
        }
        file = args.folder / f"openvino-{form}.xml"
        request = openvino.Core().compile_model(file, "CPU", options).create_infer_request()

        def run(*arrays: np.ndarray) -> np.ndarray:
            return request.infer(list(arrays))[0].copy()

        def encode(inputs: list[Any]) -> np.ndarray:
            return plain.encode(run, batches(args.folder / "model", inputs))

        return encode

    measure("OpenVINO", args, load)


if __name__ == "__main__":
    main()
