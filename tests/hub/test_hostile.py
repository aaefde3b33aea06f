"""Hostile files in a model folder: every row of the table is a file that attacks.

Each is put into an otherwise valid folder, which is then loaded. Loading must end soon in one of
our errors, name the file, and start no process, open no connection and read no file outside the
folder."""

from __future__ import annotations

import pickle
import shutil
import time
from functools import partial
from pathlib import Path

import pytest
from tests.hub.forging import (
    INDEX,
    SHARD,
    WATCH,
    WEIGHTS,
    Make,
    added,
    changed,
    entry,
    evil,
    field,
    first,
    header,
    in_model,
    inserted,
    linked,
    misplaced,
    piece,
    placed,
    sized,
    split,
    tensors,
    use,
    varint,
)

import trifold
from trifold.errors import TrifoldError
from trifold.text import tokenizer as text_tokenizer
from trifold.text.chat import render

MILLION = 10**6
SECONDS = 3  # of processor time for any file, on a slow machine
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
# Files that take precedence and are removed.
REMOVED = {
    "spiece.model": TOKENIZER,
    "vocab.json": TOKENIZER,
    "merges.txt": TOKENIZER,
    "vocab.txt": TOKENIZER,
}
ADDED = {
    "merges.txt": {"vocab.json": b'{"a": 0, "b": 1, "ab": 2}'},
    "vocab.json": {"merges.txt": b"a b\n"},
}
# Errors that name the part instead of the file.
NAMES_IN_ERRORS = {"chat_template.jinja": "chat template"}

PIECES = piece(b"<unk>", kind=2) + piece(b"a")
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"

# --- the table: "file: attack" -> how the file is made, and the error message ---------------------

HOSTILE: dict[str, tuple[bytes | Make, str]] = {
    # Invalid JSON: all cases for one file, and some for every JSON file.
    **{
        f"{name}: {what}": row
        for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", INDEX)
        for what, row in {
            "empty": (b"", "not JSON"),
            "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "not JSON"),
            "a list": (b"[1, 2]", "holds a list"),
            "a key twice": (inserted('"evil": 1, "evil": 2'), "'evil' occurs twice"),
            "NaN": (inserted('"evil": NaN'), "NaN is not a finite number"),
            "Infinity": (inserted('"evil": [-Infinity]'), "Infinity is not a finite number"),
            "1e999": (inserted('"evil": 1e999'), "1e999 is not a finite number"),
            "a number of a million digits": (inserted('"evil": ' + "9" * MILLION), "beyond the largest integer"),
            "deep": (b'{"a":' * 100_000, "nested too deeply"),
            "deep lists": (b'{"a":' + b"[" * MILLION, "nested too deeply"),
            "not UTF-8": (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
            "a gigabyte": (sized(2**30, b"{"), "too large; at most"),
            "a link that leads out": (linked("{outside}"), "a link that leads out of its folder"),
        }.items()
        if name == "config.json" or what in ("a key twice", "NaN", "a gigabyte", "a link that leads out")
    },
    # config.json: code, places, and sizes.
    "config.json: a link to itself": (linked("{name}"), "a link that leads nowhere"),
    "config.json: code to fetch": (changed(auto_map=evil("AutoModelForCausalLM")), "auto_map: the folder brings Python code"),
    "config.json: a kernel of the hub": (
        changed(_attn_implementation_internal="evil/kernels"), "_attn_implementation_internal: 'evil/kernels' is not"
    ),
    "config.json: another kernel": (changed(attn_implementation="evil/kernels"), "attn_implementation: 'evil/kernels' is not"),
    "config.json: a pipeline of code": (changed(custom_pipelines={"x": {"impl": "evil.E"}}), "custom_pipelines: the folder brings Python code"),
    "config.json: a plugin that unpacks weights": (changed(quantization_config={"quant_method": "evil"}), "weights in evil"),
    "config.json: weights of another place": (changed(transformers_weights="../outside/x"), "transformers_weights: '../outside/x' is not"),
    "config.json: a family that is a path": (changed(model_type="../../evil"), "'../../evil' is not known"),
    "config.json: a family that is none": (changed(model_type={"evil": 1}), "is not known"),
    "config.json: a class that is code": (changed(architectures=["os.system"]), r"architectures: .* is not known"),
    "config.json: classes that are none": (changed(architectures={"a": 1}), "architectures: .* is not known"),
    "config.json: an activation that is code": (
        changed(activation_function="__import__('os').system('true')"), "activation_function: .* is not known"
    ),
    "config.json: a billion layers": (changed(n_layer=10**9), "n_layer: .*less than or equal to 10000"),
    "config.json: layers that are not there": (changed(n_layer=3), r"missing: transformer\.h\.2\."),
    "config.json: more layers than tensors": (changed(n_layer=99), "99 layers, but the weights are"),
    "config.json: no layer": (changed(n_layer=0), "n_layer: .*greater than 0"),
    "config.json: half a layer": (changed(n_layer=0.5), "n_layer: .*integer"),
    "config.json: true layers": (changed(n_layer=True), "n_layer: .*integer"),
    "config.json: layers in words": (changed(n_layer="2"), "n_layer: .*integer"),
    "config.json: a list of layers": (changed(n_layer=[2] * 1000), "n_layer: .*integer"),
    "config.json: a negative width": (changed(n_embd=-16), "n_embd: .*greater than 0"),
    "config.json: a width beyond all": (changed(n_embd=2**52), "too many|too large"),
    "config.json: a feed-forward beyond all": (changed(n_inner=2**52), "too large"),
    "config.json: positions beyond all": (changed(n_positions=2**52), "n_positions: 4503599627370496 is too large"),
    "config.json: a vocabulary beyond all": (changed(vocab_size=2**52), "too large"),
    "config.json: heads that divide nothing": (changed(n_head=7), "n_heads 7 does not divide"),
    "config.json: classes beyond all": (
        changed(architectures=["GPT2ForSequenceClassification"], num_labels=2**53, id2label=None), "classes are too many"
    ),
    "config.json: no number for an epsilon": (changed(layer_norm_epsilon=-1), "layer_norm_epsilon: "),
    "config.json: the number after the largest": (changed(vocab_size=2**53 + 1), "beyond the largest integer"),
    # generation_config.json
    "generation_config.json: code": (changed(custom_generate="evil/repo"), "custom_generate: 'evil/repo' is not supported"),
    "generation_config.json: another model": (changed(assistant_model="/etc"), "assistant_model: '/etc' is not supported"),
    "generation_config.json: an end that no token has": (changed(eos_token_id=[2, 10**9]), "1000000000 is not a token"),
    "generation_config.json: a negative end": (changed(eos_token_id=-7), "-7 is not a token"),
    "generation_config.json: an end in words": (changed(eos_token_id="</s>"), "eos_token_id: "),
    "generation_config.json: a length in words": (changed(max_new_tokens="long"), "max_new_tokens: .* got 'long'"),
    "generation_config.json: deep words": (changed(bad_words_ids=[[[[[[1]]]]]]), "bad_words_ids"),
    **{
        f"generation_config.json: {key} of {value}": (changed(**{key: value}), rf"{key}: {value} is more than \d+")
        for key, value in (
            ("num_beams", 10**5), ("num_return_sequences", 10**5), ("max_new_tokens", 2**53),
            ("prompt_lookup_num_tokens", 2**40), ("num_assistant_tokens", 2**40),
        )
    },
    "generation_config.json: half a beam": (changed(num_beams=1.5), "num_beams: "),
    # model.safetensors
    f"{WEIGHTS}: empty": (b"", "damaged or truncated"),
    f"{WEIGHTS}: five bytes": (b"\x01\0\0\0\0", "damaged or truncated"),
    f"{WEIGHTS}: cut off": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "damaged or truncated"),
    f"{WEIGHTS}: a byte too many": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "damaged or truncated"),
    f"{WEIGHTS}: another file behind it": (lambda path: path.write_bytes(path.read_bytes() + b"PK\3\4" * 99), "damaged"),
    f"{WEIGHTS}: a pickle": (pickle.dumps({"a": 1}), "damaged or truncated"),
    f"{WEIGHTS}: a header longer than the file": (tensors({"a": entry()}, bytes(4), 10**4), "header does not fit"),
    f"{WEIGHTS}: a header of 2^64 bytes": (b"\xff" * 8 + b"{}", "header does not fit"),
    f"{WEIGHTS}: a header shorter than it is": (tensors({"a": entry()}, bytes(4), 9), "not JSON"),
    f"{WEIGHTS}: a header of 100 MB": (sized(10**8 + 99, (10**8).to_bytes(8, "little") + b"{"), "header of 100,000,000"),
    f"{WEIGHTS}: a header that is a list": (tensors([1]), "holds a list"),
    f"{WEIGHTS}: a header that is no JSON": (tensors(b"hello"), "not JSON"),
    f"{WEIGHTS}: a header that is not UTF-8": (tensors(b'{"\xff": 1}'), "not UTF-8"),
    f"{WEIGHTS}: a deep header": (tensors(b'{"a":' * 100_000), "nested too deeply"),
    f"{WEIGHTS}: a tensor twice": (tensors(b'{"a": {}, "a": {}}'), "'a' occurs twice"),
    f"{WEIGHTS}: text that is no text": (header(lambda h: h.update(__metadata__={"a": 1})), "damaged or truncated"),
    f"{WEIGHTS}: two tensors in one place": (
        tensors({"a": entry(), "b": entry()}, bytes(4)), "damaged or truncated"
    ),
    f"{WEIGHTS}: a hole": (tensors({"a": entry(offsets=(4, 8))}, bytes(8)), "damaged or truncated"),
    f"{WEIGHTS}: beyond the end": (first("data_offsets", lambda old: [old[0] + 2**40, old[1] + 2**40]), "damaged"),
    f"{WEIGHTS}: backwards": (first("data_offsets", lambda old: old[::-1]), "damaged or truncated"),
    f"{WEIGHTS}: a negative place": (first("data_offsets", lambda old: [-4, 0]), "damaged or truncated"),
    f"{WEIGHTS}: a negative shape": (first("shape", lambda old: [-1, *old[1:]]), "damaged or truncated"),
    f"{WEIGHTS}: half a shape": (first("shape", lambda old: [0.5]), "damaged or truncated"),
    f"{WEIGHTS}: a huge shape": (first("shape", lambda old: [2**40, *old[1:]]), "damaged or truncated"),
    f"{WEIGHTS}: a shape that overflows": (first("shape", lambda old: [2**33, 2**31, *old]), "damaged or truncated"),
    f"{WEIGHTS}: a shape of 10,000 axes": (first("shape", lambda old: [1] * 10_000 + old), "wrong shape|damaged"),
    f"{WEIGHTS}: an empty shape beyond all": (added("a", (0, 2**52)), "not known: 'a'"),
    f"{WEIGHTS}: another type of that size": (first("dtype", lambda old: "I32"), r"wrong type: .* is torch\.int32"),
    f"{WEIGHTS}: a type of another size": (first("dtype", lambda old: "F64"), "damaged or truncated"),
    f"{WEIGHTS}: no type": (first("dtype", lambda old: "evil"), "is of 'evil'"),
    f"{WEIGHTS}: a type that is none": (first("dtype", lambda old: ["F32"]), r"is of \['F32'\]"),
    f"{WEIGHTS}: numbers of a byte without scales": (first("dtype", lambda old: "F8_E4M3"), "is of 'F8_E4M3'"),
    f"{WEIGHTS}: tensors that nobody knows": (added("evil\x1b[2J", (0,)), r"not known: 'evil\\x1b"),
    f"{WEIGHTS}: a link that leads out": (linked("{outside}"), "a link that leads out of its folder"),
    f"{WEIGHTS}: a folder": (lambda path: (path.unlink(), path.mkdir()), "a folder, not"),
    # Shards and their index
    **{
        f"{INDEX}: {shard!r}": (placed(shard), "not the plain name of a safetensors file")
        for shard in (
            "../model.safetensors", "/etc/passwd", "/etc/model.safetensors", "sub/../../model.safetensors",
            "sub/model.safetensors", "..\\model.safetensors", "C:\\model.safetensors", "\\\\evil\\model.safetensors",
            "http://127.0.0.1:9/model.safetensors", "file:///etc/model.safetensors", "~/model.safetensors",
            "$HOME/model.safetensors", "model\0.safetensors", "model.safetensors\n", ".safetensors",
            "-model.safetensors/..", "pytorch_model.bin", "", None, 7, ["model.safetensors"],
        )
    },
    f"{INDEX}: no map": (changed(weight_map=None), "weight_map: an object"),
    f"{INDEX}: a list for a map": (changed(weight_map=["a"]), "weight_map: an object"),
    f"{INDEX}: a shard that is not there": (placed("model-00009-of-00009.safetensors"), "no such file"),
    f"{INDEX}: a shard without the tensor": (misplaced, "is listed in .* and is in"),
    f"{SHARD}: a link that leads out": (linked("{outside}"), "a link that leads out of its folder"),
    f"{SHARD}: cut off": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "damaged or truncated"),
    f"{SHARD}: missing": (lambda path: path.unlink(), "no such file"),
    # tokenizer.json and what lies beside it; more of them in tests/text
    "tokenizer.json: a model of code": (in_model(type="pickle"), "'pickle' is unknown"),
    "tokenizer.json: a path for a vocabulary": (in_model(vocab="/etc/passwd"), "model.vocab is not"),
    "tokenizer.json: an id beyond all": (in_model(vocab={"a": 2**32 - 1}), "has the id 4294967295"),
    "tokenizer.json: a pattern without end": (changed(pre_tokenizer=split("a" * 20_000)), "a text of 20,000 "),
    "tokenizer.json: a part that imports": (changed(pre_tokenizer={"type": "Import", "module": "evil"}), "tokenizer"),
    "tokenizer.json: text that grows": (
        changed(normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10**5}), "a text of 100,000"
    ),
    "tokenizer_config.json: tokens by no number": (changed(added_tokens_decoder=["x"]), "not a list of tokens by id"),
    "tokenizer_config.json: a token beyond all": (
        changed(added_tokens_decoder={"9" * 5000: {"content": "x"}}), "added_tokens_decoder"
    ),
    "vocab.json: a token twice": (b'{"a": 0, "a": 1}', "'a' occurs twice"),
    "vocab.json: a negative id": (b'{"a": -1}', "has the id -1"),
    "vocab.json: an id beyond all": (b'{"a": 4294967295}', "has the id 4294967295"),
    "vocab.json: a list": (b"[]", "holds a list"),
    "vocab.json: a link that leads out": (linked("{outside}"), "leads out of its folder"),
    "merges.txt: three pieces": (b"a b c\n", "is not a pair of tokens"),
    "merges.txt: not UTF-8": (b"\xff \xff\n", "byte 0 is not UTF-8"),
    "merges.txt: a gigabyte": (sized(2**30), "too large; at most"),
    "vocab.txt: not UTF-8": (b"caf\xe9\n", "byte 3 is not UTF-8"),
    "vocab.txt: empty": (b"", "0 lines"),
    # SentencePiece
    "spiece.model: empty": (b"", "not a SentencePiece model"),
    "spiece.model: text": (b"hello, I am no protobuf", "not a SentencePiece model"),
    "spiece.model: cut off": (PIECES[:-2], "not a SentencePiece model"),
    "spiece.model: a length that lies": (b"\x0a\xff\xff\xff\xff\x7f" + PIECES, "not a SentencePiece model"),
    "spiece.model: an endless number": (b"\x0a" + b"\xff" * MILLION, "not a SentencePiece model"),
    "spiece.model: a message in itself": (b"\x0b" * MILLION, "not a SentencePiece model"),
    "spiece.model: a piece of a megabyte": (PIECES + piece(b"a" * MILLION), "not a SentencePiece model"),
    "spiece.model: a score that is no number": (PIECES + piece(b"b", float("nan")), "not finite"),
    "spiece.model: a piece that is not UTF-8": (PIECES + piece(b"\xff\xfe"), "not a SentencePiece model"),
    "spiece.model: the unknown beyond the pieces": (PIECES + field(2, b"\xc0\x02" + varint(10**9)), "not a SentencePiece"),
    "spiece.model: a kind that is not read": (PIECES + field(2, b"\x18\x03"), "kind 3"),
    "spiece.model: a gigabyte": (sized(2**30), "too large; at most"),
    "spiece.model: a link that leads out": (linked("{outside}"), "leads out of its folder"),
    # Chat templates are rendered too; more of them in tests/text
    "chat_template.jinja: for ever": (ENDLESS.encode(), "ran for more than 1 s"),
    "chat_template.jinja: a walk to the classes": (b"{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    "chat_template.jinja: a walk by format": (b"{{ '{0.__class__}'.format(1) ~ x.y.z }}", "Error"),
    "chat_template.jinja: a walk through functions": (b"{{ cycler.__init__.__globals__.os.system('true') }}", "Error"),
    "chat_template.jinja: a file": (b"{% include '/etc/passwd' %}", "cannot be used"),
    "chat_template.jinja: a huge text": (b"{{ 'a' * 10**10 }}", "10,000,000,000 entries"),
    "chat_template.jinja: a huge output": (b"{% for a in range(99999) %}{{ 'a' * 9999 }}{% endfor %}", "entries|writes more"),
    "chat_template.jinja: a huge number": (b"{{ 10 ** 10 ** 8 }}", "a power that is too large"),
    "chat_template.jinja: itself": (b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "chat_template.jinja: not UTF-8": (b"\xff", "byte 0 is not UTF-8"),
    "chat_template.jinja: 2 MB": (sized(2 * MILLION), "too large; at most"),
    "chat_template.jinja: a link that leads out": (linked("{outside}"), "leads out of its folder"),
    "additional_chat_templates: a link that leads out": (linked("{outside}"), "leads out of its folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_ends_in_an_error(
    name: str, sound: dict[str, Path], watched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, (content, message) = name.partition(": ")[0], HOSTILE[name]
    shutil.copytree(sound["shards" if file in (INDEX, SHARD) else "one"], watched)
    for removed in REMOVED.get(file, ()):
        (watched / removed).unlink(missing_ok=True)
    for other, needed in ADDED.get(file, {}).items():
        (watched / other).write_bytes(needed)
    if callable(content):
        if not (watched / file).exists() and "." in file:
            (watched / file).write_bytes(b"{}")
        content(watched / file)
    else:
        (watched / file).write_bytes(content)
    monkeypatch.setattr(text_tokenizer, "render", partial(render, timeout=1))
    WATCH.folder, before = watched, time.process_time()
    with pytest.raises(TrifoldError, match=message) as caught:
        use(watched)
    assert time.process_time() - before < SECONDS
    WATCH.folder = None
    error = str(caught.value)
    assert any(
        name in error
        for name in (file, NAMES_IN_ERRORS.get(file, file), "the weights do not fit config.json")
    )
    assert len(error) < 10_000


# Keys that nothing reads: "file: attack" -> how the file is made, and the warning.
IGNORED: dict[str, tuple[Make, str]] = {
    "config.json: trust in code": (changed(trust_remote_code=True), ": trust_remote_code"),
    "config.json: a URL for the weights": (changed(weights_url="http://127.0.0.1:9/evil"), ": weights_url"),
    "config.json: a key that clears the screen": (
        inserted(r'"\u001b[2J\u009b31m' + "A" * MILLION + '": 1'), r": \x1b[2J\x9b31mAAA"
    ),
    "config.json: a hundred thousand keys": (
        inserted(", ".join(f'"hidden_{number}": 1' for number in range(100_000))), "99,980 more"
    ),
    "generation_config.json: trust": (changed(trust_remote_code=True), ": trust_remote_code"),
}  # fmt: skip


@pytest.mark.parametrize("name", IGNORED)
def test_a_key_that_nothing_reads_does_nothing(
    name: str, sound: dict[str, Path], watched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, message = IGNORED[name]
    shutil.copytree(sound["one"], watched)
    make(watched / name.partition(": ")[0])
    WATCH.folder, before = watched, time.process_time()
    trifold.load(watched)
    assert time.process_time() - before < SECONDS
    WATCH.folder = None
    printed = capsys.readouterr().err
    assert message in " ".join(printed.split())
    assert len(printed) < 3_000


def test_the_table_is_complete() -> None:
    assert len(HOSTILE) >= 150
    assert len({name.partition(": ")[0] for name in HOSTILE}) >= 12
