"""Compare with transformers: equal hidden states, logits and gradients, and bit-identical tensors
after a round trip.

check(make("gpt2", "LMHeadModel", n_inner=48))
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.hub.tiny import TINY
from torch import Tensor
from torch.nn import functional as F

from trifold.hub import load_model, rules, save_model
from trifold.hub.families import FAMILIES
from trifold.nn import Inputs, Transformer

LENGTHS = (9, 5, 7)  # real tokens of the rows; the rest is padding
TARGETS = 6  # decoder tokens of each row of an encoder-decoder
# Matrices of heads with few classes, whose logits would be too small to compare.
HEADS = (
    *(
        "cls.seq_relationship",
        "discriminator_predictions.dense_prediction",
        "sop_classifier",
        "classifier",
        "qa_outputs",
        "score",
        "logits_proj",
    ),
    "classification_head.out_proj",
)
# The output table of language models, under its own name or that of the embeddings.
WITH_SEGMENTS = ("bert", "albert", "electra", "deberta-v2", "big_bird", "longformer")
OUTPUTS = (
    "lm_head.weight",
    "lm_head.decoder",
    "cls.predictions.decoder",
    "generator_lm_head",
    "decoder.weight",
    "embed_out",
    "vocab_projector",
    "lm_loss",
)
# Settings that no forward pass in evaluation mode and in fp32 reads, or that are ours only.
UNUSED_SETTINGS = ("_name_or_path", "transformers_version", "dtype", "bos_token_id")
UNUSED_SETTINGS += ("forced_eos_token_id", "max_positions", "use_cache")
SYNONYMS = {"gelu_new": "gelu_pytorch_tanh"}
BUFFERS = ("final_logits_bias", "e_score_correction_bias")  # which belong to the weights
TABLES = ("word_embedding", "tok_embeddings", "wte", "embed_in", "embed_tokens", "shared.weight")


def make(family: str, ending: str | None = None, **options: Any) -> Any:
    """A tiny model of the reference with random parameters; `own_head` unties the output embeddings
    of T5.
    """
    transformers = pytest.importorskip("transformers")
    tiny = TINY[family]
    own_head = options.pop("own_head", False)
    config = getattr(transformers, tiny.config_class)(**tiny.sizes | options)
    ending = next(iter(tiny.cases.values()))[0] if ending is None else ending
    model = getattr(transformers, tiny.stem + ending)(config)
    if own_head:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    return with_large_heads(model)


def randomised(model: Any, seed: int = 0) -> Any:
    """The model in evaluation mode with random parameters of natural size: a zero or a one hides a
    wrong rule.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    buffers = [(name, b) for name, b in model.named_buffers() if name.endswith(BUFFERS)]
    with torch.no_grad():
        for name, tensor in parameters + buffers:
            noise = torch.randn(tensor.shape, generator=generator)
            norm = tensor.dim() == 1 and name.endswith("weight")
            small_head = (
                tensor.dim() == 2 and min(tensor.shape) < 8
            )  # labels: their logits must differ too
            tensor.copy_(noise * (0.7 if small_head else 0.25 if tensor.dim() > 1 else 0.3) + norm)
    return model.eval()


def with_large_heads(model: Any) -> Any:
    """`randomised`, with larger matrices where logits would be too small to compare."""
    scaled = getattr(model.config, "scale_decoder_outputs", False)
    with torch.no_grad():
        for name, parameter in randomised(model).named_parameters():
            if name.startswith(HEADS) and parameter.dim() == 2:
                parameter.mul_(3.5 if len(parameter) > 1 else 9.0)
            elif (name.startswith(OUTPUTS) and parameter.dim() == 2) or any(
                table in name for table in TABLES
            ):
                parameter.mul_(5 if scaled else 2)
    return model


def inputs_for(model: Any) -> dict[str, Any]:
    """Arguments of `check` for models that do not accept any tokens padded on the right."""
    config = model.config
    generator = torch.Generator().manual_seed(3)
    if config.model_type == "vit":
        size = config.image_size
        pixels = (4, config.num_channels, *([size, size] if isinstance(size, int) else size))
        return {"pixel_values": torch.randn(pixels, generator=generator)}
    if type(model).__name__.endswith(
        "EncoderModel"
    ):  # whose config may be that of an encoder-decoder
        return {"decoder": False}
    shape = (len(LENGTHS), max(LENGTHS))
    lengths, columns = torch.tensor(LENGTHS)[:, None], torch.arange(max(LENGTHS))
    tokens = torch.randint(6, 38, shape, generator=generator)
    if config.is_encoder_decoder and "ForSequenceClassification" in type(model).__name__:
        tokens = tokens.where(
            columns < lengths, config.pad_token_id
        )  # the class is read at the only end token
        tokens[range(len(LENGTHS)), [length - 1 for length in LENGTHS]] = config.eos_token_id
        return {"tokens": tokens, "decoder": False}
    if (
        config.model_type == "reformer"
    ):  # the states of the reference depend on the padding of a batch
        return {"tokens": torch.cat([tokens, tokens[:, 3:5]], 1)}
    if config.model_type == "led":  # ours has this default
        return {"global_attention_mask": (columns == 0).long().expand(shape)}
    kinds = getattr(config, "type_vocab_size", 3)
    segments = torch.randint(max(kinds, 1), shape, generator=generator)
    if config.model_type == "longformer" and "ForQuestionAnswering" in type(model).__name__:
        tokens = tokens.where(
            columns < lengths, config.pad_token_id
        )  # there must be three separators
        for place in (lengths[:, 0] - 1, lengths[:, 0] // 2 - 1, lengths[:, 0] // 2):
            tokens[range(len(LENGTHS)), place] = config.sep_token_id
        return {"tokens": tokens, "token_type_ids": segments}
    if config.model_type == "xlnet":
        # The reference reads the first column even if it is padding.
        first = getattr(config, "summary_type", "last") == "first"
        real = columns < lengths if first else columns >= max(LENGTHS) - lengths
        return {"tokens": tokens.where(real, config.pad_token_id), "token_type_ids": segments}
    return {"token_type_ids": segments} if kinds and config.model_type in WITH_SEGMENTS else {}


def check(
    model: Any,
    *,
    tokens: Tensor | None = None,
    decoder: bool = True,
    tolerance: float = 1e-4,
    file: Mapping[str, Any] | None = None,
    **inputs: Any,
) -> Transformer:
    """Load what the reference saves, compare, save it and compare the files. Where the reference
    reads other settings from our folder than from its own, load it again and compare. Returns our
    model.

    tokens: (B, T) ids, padded on the right; random by default.
    decoder: pass the second input of an encoder-decoder too (otherwise it derives one from the
        first).
    file: the content of config.json, from which the reference is loaded too; the logits of such a
        model may be small, and its gradients are not compared.
    inputs: more arguments of the reference; token_type_ids and pixel_values are ours too.
    """
    with tempfile.TemporaryDirectory() as folder:
        theirs, saved = Path(folder) / "theirs", Path(folder) / "saved"
        model.save_pretrained(theirs)
        if file is not None:
            (theirs / "config.json").write_text(json.dumps(file), encoding="utf-8")
            model = type(model).from_pretrained(theirs).eval()
        ours, _ = load_model(theirs)
        read, given = _inputs(model, tokens, decoder, inputs)
        if model.config.model_type == "reformer":
            keep_streams(model)

        model.zero_grad()
        out = model(**given, output_hidden_states=True)
        _compare_states(ours, out, read, tolerance)
        pairs = _compare_outputs(ours, out, read, tolerance, check_size=file is None)
        if file is None:
            _compare_gradients(ours, model, pairs)

        save_model(saved, ours)
        _compare_files(theirs, saved)
        if _settings(type(model), saved) == _settings(type(model), theirs):
            return ours  # equal settings and tensors make the same model
        _compare_reloaded(type(model), saved, given, out, tolerance)
    return ours


def _settings(kind: Any, folder: Path) -> dict[str, Any]:
    """The settings that the reference reads from a folder, with its defaults, and that have an
    effect here.
    """
    settings = kind.config_class.from_pretrained(folder).to_dict().items()
    return {
        key: SYNONYMS.get(str(value), value)
        for key, value in settings
        if key not in UNUSED_SETTINGS and not re.search("drop(out)?(_|$)", key)
    }


def _compare_reloaded(
    kind: Any, saved: Path, given: dict[str, Any], out: Any, tolerance: float
) -> None:
    """The reference loads our folder: it lacks no tensor, knows each, and computes what it did."""
    reloaded, report = kind.from_pretrained(saved, output_loading_info=True)
    wrong = {
        key: report[key]
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if report[key]
    }
    assert not wrong, wrong
    with torch.no_grad():
        repeated = reloaded.eval()(**given, output_hidden_states=True)
    for name in (
        "logits",
        "prediction_logits",
        "start_logits",
        "pooler_output",
        "last_hidden_state",
    ):
        if getattr(out, name, None) is not None:
            _close(
                getattr(repeated, name),
                getattr(out, name),
                tolerance,
                f"{name} of the reference, from our folder",
            )


def keep_streams(model: Any) -> None:
    """The reference returns the states of one stream only; and its backward pass needs layers in
    training.
    """
    body, states = getattr(model, "reformer", model), list[Any]()

    def add(module: Any, inputs: Any, out: Any) -> None:
        states.append(torch.cat([out.attn_output, out.hidden_states], -1))

    def finish(module: Any, inputs: Any, given: Any, out: Any) -> None:
        out["hidden_states"] = [x[:, : given["input_ids"].shape[1]] for x in states]

    body.embeddings.register_forward_hook(
        lambda module, inputs, out: states.__setitem__(slice(None), [out])
    )
    for layer in body.encoder.layers:
        layer.training = True
        layer.register_forward_hook(add)
    body.encoder.register_forward_hook(
        lambda module, inputs, out: states.__setitem__(-1, out.hidden_states)
    )
    model.register_forward_hook(finish, with_kwargs=True)


def _inputs(
    model: Any, tokens: Tensor | None, decoder: bool, more: dict[str, Any]
) -> tuple[tuple[Inputs, Inputs | None], dict[str, Any]]:
    """(first input, second input) for our model, and the arguments of the reference."""
    if "pixel_values" in more:
        return (Inputs(pixels=more["pixel_values"]), None), more
    config, generator = model.config, torch.Generator().manual_seed(1)
    pad = 0 if getattr(config, "pad_token_id", None) is None else config.pad_token_id
    bos, eos = (getattr(config, key, None) for key in ("bos_token_id", "eos_token_id"))
    special = {pad, bos, *(eos if isinstance(eos, list) else [eos])}
    vocabulary = torch.tensor([id for id in range(config.vocab_size) if id not in special])
    if tokens is None:
        tokens = vocabulary[
            torch.randint(len(vocabulary), (len(LENGTHS), max(LENGTHS)), generator=generator)
        ]
        tokens = tokens.where(torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None], pad)
    real = tokens != pad
    first, second = Inputs(tokens, real, segments=more.get("token_type_ids")), None
    given = {"input_ids": tokens, "attention_mask": real.long(), **more}
    if decoder and config.is_encoder_decoder:
        vocabulary = vocabulary[
            vocabulary < (getattr(config, "decoder_vocab_size", None) or config.vocab_size)
        ]
        targets = vocabulary[
            torch.randint(len(vocabulary), (len(tokens), TARGETS), generator=generator)
        ]
        second, given["decoder_input_ids"] = Inputs(targets), targets
    return (first, second), given


def _compare_states(
    ours: Transformer, out: Any, read: tuple[Inputs, Inputs | None], tolerance: float
) -> None:
    first, second = read
    if first.pixels is not None:  # the last state of images has no final norm in the reference
        got = ours.hidden_states(first)["encoder"]
        last = getattr(out, "last_hidden_state", None)
        for index, one in enumerate([*out.hidden_states[:-1], *([] if last is None else [last])]):
            _close(got[index], one, tolerance, f"state {index} of images")
        return
    if ours.encoder is not None and ours.decoder is not None:
        theirs = {"encoder": out.encoder_hidden_states, "decoder": out.decoder_hidden_states}
    else:
        theirs = {"decoder" if ours.encoder is None else "encoder": out.hidden_states}
    if second is None and "encoder" in theirs:
        theirs.pop("decoder", None)  # the reference derives a second input; its output is compared
        states = ours.hidden_states(first, first if ours.decoder is not None else None)
    else:
        states = ours.hidden_states(first, second)
    for side, expected in theirs.items():
        attend = second.attend if second is not None and side == "decoder" else first.attend
        assert len(states[side]) == len(expected)
        for number, (got, state) in enumerate(zip(states[side], expected, strict=True)):
            state = state[:, : got.shape[1]]  # which the reference may have padded to whole blocks
            _close(_real(got, attend), _real(state, attend), tolerance, f"{side} state {number}")


# Our heads -> attributes of the reference's output; the first one that exists is compared.
OUTPUT_NAMES: dict[str, tuple[str, ...]] = {
    "lm": ("prediction_logits", "logits"),
    "next-sentence": ("seq_relationship_logits", "sop_logits", "logits"),
    "sequence": ("logits",),
    "token": ("logits",),
    "span": (),
    "pooler": ("pooler_output",),
    "replaced": ("logits",),
}


def _compare_outputs(
    ours: Transformer,
    out: Any,
    read: tuple[Inputs, Inputs | None],
    tolerance: float,
    *,
    check_size: bool,
) -> list[tuple[Tensor, Tensor]]:
    """Pairs (ours, theirs) of shape (N, classes) for every head whose output the reference returns."""
    first, second = read
    attend = first.attend if second is None else second.attend
    pairs = []
    for name in ours.config.chosen_heads:
        theirs = next(
            (
                getattr(out, key)
                for key in OUTPUT_NAMES[name]
                if getattr(out, key, None) is not None
            ),
            None,
        )
        if name == "span":
            theirs = torch.stack([out.start_logits, out.end_logits], -1)
        if theirs is None:
            assert name == "pooler", f"the reference has no output for {name}"
            continue
        got = ours.head_outputs(first, second, heads=[name])[name]
        theirs = theirs.reshape(got.shape)  # one logit per token may have no axis
        if got.dim() == 3:
            got, theirs = _real(got, attend), _real(theirs, attend)
        pairs.append((got, theirs))
        if name != "pooler" and check_size:
            assert theirs.std() >= 1, (
                f"{name}: logits with a deviation of {theirs.std():.2f} hide differences"
            )
        _close(got, theirs, tolerance, name)
    if not pairs:
        pairs = [(_real(ours(first, second), attend), _real(out.last_hidden_state, attend))]
    return pairs


def _compare_gradients(ours: Transformer, model: Any, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Gradients of a cross-entropy, tensor by tensor under their names, within 1e-3 of the norm of
    each.
    """
    generator = torch.Generator().manual_seed(2)
    for got, theirs in pairs:
        targets = torch.randint(got.shape[-1], (len(got),), generator=generator)
        F.cross_entropy(got, targets).backward(retain_graph=True)
        F.cross_entropy(theirs, targets).backward(retain_graph=True)
    table = FAMILIES[str(ours.family)].rules(ours.config)
    got = {
        name: p.grad if p.grad is not None else torch.zeros_like(p)
        for name, p in ours.named_parameters()
    }
    constants = {*rules.constants(table, got)}
    constants |= {rule.theirs for rule in table if isinstance(rule, rules.Unused)}
    gradients = {name: g for name, g in rules.saving(table, got).items() if name not in constants}
    found = {name: p.grad for name, p in model.named_parameters()}
    experts = {name for name in gradients if ".experts." in name}
    if experts:  # which the reference fuses in memory
        from transformers.core_model_loading import revert_weight_conversion

        given = {name: g for name, g in found.items() if g is not None}
        found = dict.fromkeys(found) | revert_weight_conversion(model, given)
    expected = {name: g for name, g in found.items() if name in gradients}
    assert expected
    assert experts <= expected.keys(), experts - expected.keys()
    largest = max(float(g.norm()) for g in expected.values() if g is not None)
    for name, theirs in expected.items():
        theirs = torch.zeros_like(gradients[name]) if theirs is None else theirs
        difference, size = float((gradients[name] - theirs).norm()), float(theirs.norm())
        assert difference <= 1e-3 * size + 1e-6 * largest, (
            f"gradient of {name}: {difference:.2e} off, of {size:.2e}"
        )


def _compare_files(theirs: Path, saved: Path) -> None:
    """Bit-identical, including tensors that nothing reads."""
    before, after = (load_file(folder / "model.safetensors") for folder in (theirs, saved))
    assert set(before) == set(after), sorted(set(before) ^ set(after))
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name


def _real(x: Tensor, attend: Tensor | None) -> Tensor:
    """(B, T, E) -> (N, E): the positions that are not padding."""
    return x.flatten(0, 1) if attend is None else x[attend]


def _close(got: Tensor, theirs: Tensor, tolerance: float, what: str) -> None:
    difference = float((got - theirs).detach().abs().max())
    assert difference <= tolerance * max(1.0, float(theirs.detach().std())), (
        f"{what}: {difference:.2e} difference"
    )
