"""Commands on folders with hostile sizes take less than 1 GB and 5 s, imports excluded, and name
what is wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.hub.checkpoints import edit
from tests.hub.forging import split
from tests.models import TWO_LAYERS

from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer

SECONDS, BYTES = 5.0, 10**9
TEXT = "the fox"
LINES = "the quick fox " * 480 + "\n="  # 6.7 KB
SIZES = TWO_LAYERS | {"max_positions": 16}
NEO = {
    "model_type": "gpt_neo",
    "architectures": ["GPTNeoForCausalLM"],
    "hidden_size": 16,
    "num_layers": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"shape": "decoder", "positions": "learned", "norm_placement": "pre", "scale_embeddings": False,
             "attention_bias": True, "activation": "gelu-tanh"},
    "marian": {},
    "classes": {"shape": "encoder", "positions": "learned", "heads": ("sequence",)},
    "llama": {"shape": "decoder", "positions": "rotary", "norm": "rms", "norm_placement": "pre", "gated": True,
              "scale_embeddings": False, "feed_forward_bias": False, "activation": "silu", "max_positions": 2**24},
}  # fmt: skip
# name: model, file, values, commands, text, words of the message
FOLDERS: dict[str, tuple[str, str, dict[str, Any], str, str, str]] = {
    "attention types": ("gpt2", "config.json", {**NEO, "attention_types": [[["global"], 9_999]] * 10**5},
                        "show generate", TEXT, "attention_types: has 999900000 layers"),
    "positions": ("marian", "config.json", {"max_position_embeddings": 2**24}, "generate", TEXT, "are too many"),
    "layers": ("gpt2", "config.json", {"n_layer": 3 * 10**6}, "show generate", TEXT, "n_layer: "),
    "layers of both stacks": ("marian", "config.json", {"encoder_layers": 3 * 10**6}, "show", TEXT, "encoder_layers: "),
    "classes": ("classes", "config.json", {"n_labels": 2**52}, "show predict", TEXT, "n_labels: "),
    "labels": ("classes", "config.json", {"label_names": ["a\x1b[2J" * 10**5, "b"]}, "predict", TEXT, ""),
    "beams": ("gpt2", "generation_config.json", {"num_beams": 10**5}, "generate", TEXT, "num_beams: 100000"),
    "outputs": ("gpt2", "generation_config.json", {"num_return_sequences": 10**5, "do_sample": True}, "generate", TEXT,
                "num_return_sequences: 100000"),
    "long beams": ("gpt2", "generation_config.json", {"num_beams": 100, "max_new_tokens": 32_768}, "generate", TEXT,
                   "num_beams: 100 outputs of max_new_tokens 32768 are 3,276,800 tokens, more than 262,144"),
    "long outputs": ("gpt2", "generation_config.json", {"num_return_sequences": 500, "do_sample": True,
                     "max_new_tokens": 2**16}, "generate", TEXT, "num_return_sequences: 500 outputs"),
    "long candidates": ("gpt2", "generation_config.json", {"penalty_alpha": 0.5, "top_k": 500, "max_new_tokens": 2**16},
                        "generate", TEXT, "top_k: 500 outputs"),
    "forced words": ("gpt2", "generation_config.json", {"force_words_ids": [[1]] * 4_600, "num_beams": 2}, "generate",
                     TEXT, "force_words_ids: 4600 ids or characters is more than 500"),
    "tokens": ("gpt2", "generation_config.json", {"max_new_tokens": 2**53}, "generate", TEXT, "max_new_tokens: "),
    "static cache": ("llama", "generation_config.json", {"max_length": 2**24, "cache": "static"}, "generate", TEXT,
                     "max_length: 16777216"),
    "groups": ("gpt2", "generation_config.json", {"num_beams": 1000, "num_beam_groups": 1000, "diversity_penalty": 1.0},
               "generate", TEXT, "num_beam_groups: 1000"),
    "phrases": ("gpt2", "generation_config.json", {"bad_words_ids": [[1] * 500] * 2000}, "generate", TEXT,
                "bad_words_ids: 1000000 ids or characters is more than 10,000"),
    "ends": ("gpt2", "generation_config.json", {"eos_token_id": [6] * 10**6}, "generate", TEXT, "eos_token_id: "),
    "words": ("gpt2", "generation_config.json", {"bad_words": ["x" * 999] * 9999}, "generate", TEXT, "bad_words: "),
    "words that are read": ("gpt2", "generation_config.json", {"bad_words": ["the quick " * 100 + "x"] * 9}, "generate",
                            TEXT, ""),
    "pattern": ("gpt2", "tokenizer.json", {"pre_tokenizer": split(".*.*.*.*=")}, "generate", LINES, "cannot be run"),
    "key": ("gpt2", "config.json", {"evil\x1b[2J" * 10**5: 1}, "show generate", TEXT, ""),  # ignored
}  # fmt: skip

# Runs commands in one process, after commands that import everything, and prints what each took.
CHILD = """
import contextlib, io, json, resource, sys, time
from tests.command_line import run_command

def measure(command, folder, text):
    before = time.perf_counter()
    done = run_command(command, folder, *([text] if command != "show" else []))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"code": done.code, "err": done.err, "out": done.out, "seconds": time.perf_counter() - before, "peak": peak}

requests = json.loads(sys.stdin.read())
print(json.dumps([measure(*request) for request in requests]))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tokenizer = train_tokenizer(
        ["the quick fox ="], TokenizerSettings(kind="char", min_frequency=1)
    )
    folders = {name: tmp_path_factory.mktemp(name) for name in MODELS}
    for name, folder in folders.items():
        config = ModelConfig.parse(SIZES | {"vocab_size": tokenizer.vocab_size} | MODELS[name])
        Pipeline(Transformer(config), tokenizer).save(folder)
    return folders


@pytest.mark.slow
def test_commands_on_hostile_folders_take_little_memory_and_time(
    models: dict[str, Path], tmp_path: Path
) -> None:
    imports = [[command, str(models["gpt2"]), TEXT] for command in ("show", "generate")]
    requests, words = [*imports, ["predict", str(models["classes"]), TEXT]], ["", "", ""]
    for name, (model, file, values, commands, text, message) in FOLDERS.items():
        folder = Path(shutil.copytree(models[model], tmp_path / name))
        if "model_type" in values:
            (folder / file).write_text("{}", encoding="utf-8")
        edit(folder, file, **values)
        if "max_length" in values:  # without the key that takes precedence
            edit(folder, file, max_new_tokens="absent")
        requests += [[command, str(folder), text] for command in commands.split()]
        words += [message] * len(commands.split())
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])
    }
    done = subprocess.run([sys.executable, "-c", CHILD], input=json.dumps(requests), capture_output=True, text=True,
                          env=environment, timeout=300, check=True)  # fmt: skip
    found = json.loads(done.stdout)
    assert [one["code"] for one in found[:3]] == [0, 0, 0]
    for (command, folder, _), message, one in list(zip(requests, words, found, strict=True))[3:]:
        what = f"{command} {Path(folder).name}: {one}"[:2000]
        assert one["code"] == (1 if message else 0) and message in " ".join(one["err"].split()), (
            what
        )
        assert one["seconds"] < SECONDS and one["peak"] - found[2]["peak"] < BYTES, what
        assert "\x1b" not in one["err"] + one["out"] and len(one["err"] + one["out"]) < 5_000, what
