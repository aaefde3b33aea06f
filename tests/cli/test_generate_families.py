"""`trifold generate` with a folder of every family that writes: the text of the reference's own
tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.generate.families import DECODERS, FAMILIES, new_reference
from tests.text import folders

from trifold.cli.batch import one_line
from trifold.pipeline import Pipeline, load
from trifold.text import read_tokenizer

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]

TEXT = "the quick brown fox"
LIMIT = 8

# Which tokenizer lies in the folder: files of its own layout, or those of the first as a
# tokenizer.json.
LAYOUTS: dict[str, tuple[str, bool]] = {
    "openai-gpt": ("gpt 2018", False),
    "gpt2": ("gpt2", False),
    "gpt_bigcode": ("gpt2", True),
    "gpt_bigcode, all heads": ("gpt2", True),
    "gptj": ("gpt2", True),
    "codegen": ("codegen", False),
    "gpt_neo": ("gpt2", True),
    "gpt_neox": ("neox", False),
    "llama": ("llama", False),
    "mistral": ("mistral", False),
    "starcoder2": ("gpt2", True),
    "mixtral": ("mistral", False),
    "qwen3_moe": ("gpt2", True),
    "gpt_oss": ("gpt2", True),
    "deepseek_v3": ("gpt2", True),
    "falcon 7b": ("gpt2", True),
    "falcon 40b": ("gpt2", True),
    "falcon, ALiBi": ("gpt2", True),
    "opt": ("gpt2", True),
    "opt, 350m": ("gpt2", True),
    "bloom": ("gpt2", True),
    "mbart": ("bart", False),
    "pegasus": ("bart", False),
    "bigbird_pegasus": ("bart", False),
    "m2m_100": ("bart", False),
    "t5": ("t5", False),
    "t5 1.1": ("t5", False),
    "mt5": ("mt5", False),
    "longt5": ("t5", False),
    "bart": ("bart", False),
    "led": ("bart", False),
    "marian": ("marian", False),
}


class Case(NamedTuple):
    """A folder, the output of the reference, and the model that we load."""

    folder: Path
    reference: Any
    pipeline: Pipeline


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """The case of a family, created once."""
    cases: dict[str, Case] = {}

    def of(family: str) -> Case:
        if family not in cases:
            cases[family] = _made(family, tmp_path_factory.mktemp("family"))
        return cases[family]

    return of


def _made(family: str, folder: Path) -> Case:
    layout, as_json = LAYOUTS[family]
    files = folders.OLD[layout](folder / "files" if as_json else folder)
    tokenizer = read_tokenizer(files)
    if as_json:
        tokenizer.save(folder)
    size = max(tokenizer.library.get_vocab(with_added_tokens=True).values()) + 1
    changes: dict[str, Any] = {"vocab_size": size}
    if tokenizer.eos_id is not None:
        changes["eos_token_id"] = tokenizer.eos_id
    if family == "marian":
        changes |= {"pad_token_id": tokenizer.pad_id, "decoder_start_token_id": tokenizer.pad_id}
    reference = new_reference(family, **changes)
    reference.save_pretrained(folder)
    return Case(folder, reference, load(folder))


def expected(case: Case, text: str, **requested: Any) -> list[str]:
    """Each of the reference's outputs for one text, as one line."""
    tokens = torch.tensor(case.pipeline.read([text]))
    if case.reference.config.model_type == "led":  # in ours, the first token is global
        requested["global_attention_mask"] = (torch.arange(tokens.shape[1]) == 0).long()[None]
    with torch.no_grad():
        rows = case.reference.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=LIMIT,
            do_sample=False,
            **requested,
        )
    start = 1 if case.reference.config.is_encoder_decoder else tokens.shape[1]
    end = case.pipeline.config.eos_id
    message = [list(takewhile(lambda token: token != end, row)) for row in rows[:, start:].tolist()]
    return [one_line(text) for text in case.pipeline.writer.decode(message)]


LENGTH = ("--max-new-tokens", str(LIMIT))


def without_repetition(notes: str) -> str:
    """The notes about an output without that about repeated words, which random weights write."""
    return re.sub(r"warning: the output ended in repeated words:.*\n", "", notes)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_generates_the_reference_text(trifold, case, family):
    it = case(family)
    text = f"translate English to French: {TEXT}" if "t5" in family else TEXT
    once = trifold("generate", str(it.folder), text, *LENGTH)
    assert once.code == 0
    noted = without_repetition(once.err)
    assert not noted or ("t5" in family and noted.startswith("warning: unknown words"))
    assert once.out == expected(it, text)[0] + "\n"
    assert once.out.strip()

    # Lines of different lengths, in batches, one of them blank.
    lines = [text, "a dog", "", "jumps over the lazy dog", "hello world"]
    beams = "--num-beams 3 --num-return-sequences 2 --repetition-penalty 1.3 --json".split()
    stdin = "".join(f"{line}\n" for line in lines).encode()
    done = trifold("generate", str(it.folder), "-", *LENGTH, *beams, stdin=stdin)
    assert done.code == 0, done.err
    assert "1 of 5 lines are blank" in done.err
    rows = [json.loads(row) for row in done.out.splitlines()]
    assert [row["source"] for row in rows] == lines
    for row in rows:
        written = [one_line(output["text"]) for output in row["outputs"]]
        both = {"num_beams": 3, "num_return_sequences": 2, "repetition_penalty": 1.3}
        assert written == (expected(it, row["source"], **both) if row["source"] else [])


@pytest.mark.parametrize("family", DECODERS)
def test_decoders_stream(trifold, case, family):
    it = case(family)
    others = (("--temperature", "1.5", "--seed", "3"), ("--prompt-lookup-num-tokens", "3"))
    for options in ((), others[list(DECODERS).index(family) % 2]):
        whole = trifold("generate", str(it.folder), TEXT, *LENGTH, *options)
        stream = trifold("generate", str(it.folder), TEXT, *LENGTH, *options, "--stream")
        assert (stream.code, without_repetition(stream.err)) == (0, "")
        assert one_line(stream.out.removesuffix("\n")) == whole.out.removesuffix("\n")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reports_a_line_that_is_too_long(trifold, case, family):
    it = case(family)
    stdin = f"{TEXT}\n{'a b ' * 60}\n".encode()
    long = trifold("generate", str(it.folder), "-", *LENGTH, stdin=stdin)
    if it.pipeline.config.max_positions == 48:
        assert long.code == 1
        assert long.err.startswith("error: line 2: ")
        assert "the model reads at most 48; split the line" in long.err
    else:
        assert long.code == 0


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "marian"])
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("",), 1, "no tokens"),
        ((TEXT, "--temperature", "0"), 2, "temperature: 0.0 is below 1e-30"),
        ((TEXT, "--force-words", "dog"), 2, "set num_beams to 2 or more"),
        ((TEXT, "--num-beams", "2", "--stream"), 2, "only one output per row can be streamed"),
    ],
)
def test_wrong_input_is_reported(trifold, case, family, arguments, code, message):
    done = trifold("generate", str(case(family).folder), *arguments)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: ") and message in done.err


def test_generate_with_an_encoder_is_rejected(trifold, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    folders.bert(tmp_path)
    transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=500)).save_pretrained(
        tmp_path
    )
    done = trifold("generate", str(tmp_path), TEXT)
    assert (done.code, done.out) == (2, "")
    assert "an encoder cannot generate text; use `trifold predict`" in done.err
