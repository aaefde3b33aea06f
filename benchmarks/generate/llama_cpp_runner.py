"""llama.cpp through llama-cpp-python, greedy, batch size 1. `run.py --llama` builds it in ten
minutes.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from measure import Write, arguments, measure
from safetensors.numpy import load_file
from setting import GPT2, Work

KINDS = {
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
# Name in llama.cpp -> name in a Hugging Face GPT-2, and whether the latter is stored as (in, out).
LAYER = {
    "attn_norm": ("ln_1", False),
    "attn_qkv": ("attn.c_attn", True),
    "attn_output": ("attn.c_proj", True),
    "ffn_norm": ("ln_2", False),
    "ffn_up": ("mlp.c_fc", True),
    "ffn_down": ("mlp.c_proj", True),
}


def write_gguf(folder: Path, out: Path, precision: str) -> Path:
    """The same weights in the format of llama.cpp, without a vocabulary; norms, biases and
    positions stay fp32.
    """
    if out.is_file():
        return out
    theirs = {
        name.removeprefix("transformer."): t
        for name, t in load_file(folder / "model.safetensors").items()
    }
    writer = gguf.GGUFWriter(out, "gpt2")
    writer.add_context_length(GPT2["n_positions"])
    writer.add_embedding_length(GPT2["n_embd"])
    writer.add_feed_forward_length(4 * GPT2["n_embd"])
    writer.add_block_count(GPT2["n_layer"])
    writer.add_head_count(GPT2["n_head"])
    writer.add_layer_norm_eps(1e-5)
    writer.add_vocab_size(GPT2["vocab_size"])
    writer.add_tokenizer_model("no_vocab")

    def add(name: str, tensor: np.ndarray, *, matrix: bool = False) -> None:
        tensor = np.ascontiguousarray(tensor, np.float32)
        if matrix:
            writer.add_tensor(
                name, gguf.quants.quantize(tensor, KINDS[precision]), raw_dtype=KINDS[precision]
            )
        else:
            writer.add_tensor(name, tensor)

    add("token_embd.weight", theirs["wte.weight"], matrix=True)
    add("position_embd.weight", theirs["wpe.weight"])
    for part in ("weight", "bias"):
        add(f"output_norm.{part}", theirs[f"ln_f.{part}"])
    for layer in range(GPT2["n_layer"]):
        for ours, (name, transposed) in LAYER.items():
            weight = theirs[f"h.{layer}.{name}.weight"]
            add(f"blk.{layer}.{ours}.weight", weight.T if transposed else weight, matrix=transposed)
            add(f"blk.{layer}.{ours}.bias", theirs[f"h.{layer}.{name}.bias"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def main() -> None:
    args = arguments(__doc__)

    def writer(work: Work) -> Write:
        path = write_gguf(
            args.folder / work.model, args.folder / f"{args.precision}.gguf", args.precision
        )
        room = work.width + work.new + 8
        llama = llama_cpp.Llama(
            str(path),
            n_ctx=room,
            n_threads=args.threads,
            n_threads_batch=args.threads,
            verbose=False,
        )

        def write(rows: list[list[int]]) -> list[list[int]]:
            return [
                list(islice(llama.generate(row, temp=0.0, repeat_penalty=1.0), work.new))
                for row in rows
            ]

        return write

    measure("llama.cpp", args, writer)


if __name__ == "__main__":
    main()
