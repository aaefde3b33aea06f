"""docs/architecture.md, "Where to add things", is true: each addition changes few files of a copy of
the package, and works from the command line at the size where the fast code runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.nn.removal import copy_of_package

SIZES = "model.d_model=256 model.n_layers=6 model.n_heads=8 model.d_ff=1024"  # 5 million weights

ATTENTION = '''"""Gated heads: g_h · softmax(Q K^T / sqrt(D)) V over keys at even distances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trifold.nn.attention import Attention, AttentionInputs
from trifold.nn.cache import GrowingKeys
from trifold.nn.config import CoreConfig
from trifold.nn.masks import Mask, MaskPart, Rule
from trifold.nn.parts import AttentionPart, RulePart
from trifold.settings import Settings


class GateSettings(Settings):
    """start: the gates at first."""

    start: float = 0.5


@dataclass(frozen=True)
class EvenDistances(Rule):
    """A query attends to keys at even distances."""

    @property
    def sentence(self) -> str:
        return "even distances"

    def allowed(self, part: MaskPart) -> Tensor:
        own, others = part.at_pairs(part.positions)
        return (others - own) % 2 == 0


class CountingKeys(GrowingKeys):
    """Keys that count how often they were read."""

    reads = 0

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.reads += 1
        return super().update(keys, values)


class GatedAttention(Attention):
    """Attention whose heads have gates (H,)."""

    def __init__(self, config: CoreConfig, layer: int, start: float) -> None:
        super().__init__(config, layer)
        self.gates, self.start = nn.Parameter(torch.empty(config.n_heads)), start

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        return super().weigh(q, k, v, inputs) * (self.start + self.gates)[:, None, None]


class GatedPart(AttentionPart):
    """The attention."""

    value = "gated"
    settings = GateSettings

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return GatedAttention(config, layer, self.options(config).start)

    def new_keys(self, usual: Callable[[], GrowingKeys]) -> GrowingKeys:
        return CountingKeys()

    def terms(self, config: CoreConfig) -> list[str]:
        return [*super().terms(config), "H"]


class EvenPart(RulePart):
    """Its rule."""

    key = "attention"
    value = "gated"

    def of_layer(
        self, config: CoreConfig, layer: int, mask: Mask, queries: int, *, training: bool
    ) -> Rule:
        return EvenDistances()

    def keys_read(self, config: CoreConfig, layer: int, keys: int, side: str) -> int:
        return (keys + 1) // 2


PARTS = (GatedPart(), EvenPart())
'''
POSITIONS = '''"""Ramp positions: x_p + p / P · r, with a learned vector r."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trifold.nn.config import CoreConfig
from trifold.nn.formulas import FormulaRow
from trifold.nn.parts import PositionsPart


class RampPositions(nn.Module):
    """Adds p / P times a learned vector (E,)."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        self.ramp, self.most = nn.Parameter(torch.empty(config.sum_width)), config.max_positions

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + (positions / self.most)[..., None].to(x.dtype) * self.ramp


class RampPart(PositionsPart):
    """The positions."""

    key = "positions"
    value = "ramp"

    def new(self, config: CoreConfig) -> nn.Module:
        return RampPositions(config)

    def parameters(self, config: CoreConfig, side: str):
        yield FormulaRow(f"{side} positions", "E")


PARTS = (RampPart(),)
'''
COMMAND = '''"""`trifold hello`: greet."""

EXAMPLES = ("trifold hello",)


def run() -> None:
    """Greet."""
    print("hello")
'''
OBJECTIVE = '''"""Causal language modelling under another name."""

from typing import Literal

from trifold.objectives.causal import CausalSettings


class StorySettings(CausalSettings):
    """See `CausalSettings`."""

    kind: Literal["story"] = "story"
'''
FAMILY = '''"""GPT-2 under another name."""

from trifold.hub.families import gpt

FAMILY = gpt.GPT2.related("my_gpt")
'''
READER = '''"""Lines of a label, ` | ` and a text."""

from collections.abc import Iterator

from trifold.data.lines import iter_lines
from trifold.data.settings import DataSettings
from trifold.data.formats import NumberedRow


def iter_ndtxt(file: str, settings: DataSettings) -> Iterator[NumberedRow]:
    """A row for each line."""
    for number, line in enumerate(iter_lines(file, settings.max_line_bytes), start=1):
        label, _, text = line.partition(" | ")
        yield number, f"{file}:{number}", {"label": label, "text": text}
'''
NORM = '''class ScaleNorm(Norm):
    """g · x / |x| with one g (Nguyen & Salazar 2019, equation 5)."""

    label = "scale norm"
    saved = 2

    def __init__(self, config: CoreConfig, width: int | None = None) -> None:
        super().__init__(config, width)
        self.weight = nn.Parameter(torch.full((1,), self.width**0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.square().sum(-1, keepdim=True) + self.epsilon).sqrt()

    @staticmethod
    def parameters_of(config: CoreConfig, letter: str) -> str:
        return "1"

    @torch.no_grad()
    def reset(self) -> None:
        self.weight.fill_(self.width**0.5)

    def equation(self, x: Tensor) -> tuple[str, dict[str, Tensor]]:
        return "weight · x / √(|x|² + ε)", {"|x|²": x.square().sum()}


NORMS: '''
SCORE = '''def mean_recall(table: Counts) -> float:
    """Percent: the mean over the classes that occur of the share that is found."""
    occurs = table.sum(1) > 0
    return 100 * float((np.diag(table)[occurs] / table.sum(1)[occurs]).mean())


class ClassificationScore'''
FILTER = '''def top_a(logits: Tensor, value: float) -> Tensor:
    """Keep tokens at least `value` times the square of the highest probability."""
    probabilities = logits.softmax(-1)
    least = value * probabilities.amax(-1, keepdim=True).square()
    return logits.masked_fill(probabilities < least, NEVER)


# Setting -> filter'''

# addition -> file -> its content, or what is replaced in it: (old, new), the first time
ADDITIONS: dict[str, dict[str, str | tuple[tuple[str, str], ...]]] = {
    "an activation": {
        "nn/layers.py": (('    "silu": F.silu,\n', '    "silu": F.silu,\n    "softsign": F.softsign,\n'),),
        "nn/config.py": (('"silu", "tanh"]', '"silu", "tanh", "softsign"]'),),
    },
    "a norm": {
        "nn/norms.py": (("NORMS: ", NORM), ('"rms": RMSNorm}', '"rms": RMSNorm, "scale": ScaleNorm}')),
        "nn/config.py": (('norm: Literal["layer", "rms"]', 'norm: Literal["layer", "rms", "scale"]'),),
    },
    "a positional encoding": {
        "nn/variants/ramp.py": POSITIONS,
        "nn/variants/__init__.py": (("    axial,\n", "    axial,\n    ramp,\n"), ("    axial,\n    # Scores", "    axial,\n    ramp,\n    # Scores")),
    },
    "an attention with settings, a cost, a rule and a cache": {
        "nn/variants/gated.py": ATTENTION,
        "nn/variants/__init__.py": (("    axial,\n", "    axial,\n    gated,\n"), ("    latent,\n    # Rules", "    latent,\n    gated,\n    # Rules")),
    },
    "a sampling method": {
        "generate/sampling.py": (("# Setting -> filter", FILTER), ("top_p, min_p, typical_p)\nFILTERS", "top_p, min_p, typical_p, top_a)\nFILTERS")),
        "generation_config.py": (
            ('"min_p", "typical_p")', '"min_p", "typical_p", "top_a")'),
            ("    seed: int | None = Field(", '    top_a: float | None = Field(None, ge=0, le=1, description="share of a square")\n    seed: int | None = Field('),
        ),
    },
    "a data format": {
        "data/ndtxt.py": READER,
        "data/formats.py": (('    "squad":', '    "ndtxt": FileFormat((".ndtxt",), ("pairs", "rows"), "ndtxt:iter_ndtxt"),\n    "squad":'),),
    },
    "a score": {
        "scores/classification.py": (("class ClassificationScore", SCORE), ('values["matthews"]', 'values["mean_recall"] = mean_recall(self.table)\n        values["matthews"]')),
        "objectives/labels.py": (('"f1", "matthews")', '"f1", "matthews", "mean_recall")'),),
    },
    "an objective": {
        "objectives/story.py": OBJECTIVE,
        "objectives/__init__.py": (('    "causal":', '    "story": "story.StorySettings",\n    "causal":'),),
    },
    "a family": {
        "hub/families/my_gpt.py": FAMILY,
        "hub/families/__init__.py": (("    mbart,\n", "    mbart,\n    my_gpt,\n"), ("        native.FAMILY,\n", "        my_gpt.FAMILY,\n        native.FAMILY,\n")),
    },
    "a command": {
        "cli/hello.py": COMMAND,
        "cli/__init__.py": (('    "doctor":', '    "hello": "greet",\n    "doctor":'),),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package and all additions."""
    folder = tmp_path_factory.mktemp("copy")
    copy_of_package(folder)
    for files in ADDITIONS.values():
        for name, change in files.items():
            place = folder / "trifold" / name
            if isinstance(change, str):
                place.write_text(change, "utf-8")
                continue
            text = place.read_text("utf-8")
            for old, new in change:
                assert old in text, (name, old)
                text = text.replace(old, new, 1)
            place.write_text(text, "utf-8")
    return folder


# Executes commands and answers with their outputs. Libraries that print or read have other streams.
PROGRAM = """
import contextlib, io, json, os, sys

requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)

from trifold.cli import main

stdout = sys.stdout
for line in requests:
    outputs = []
    for command in json.loads(line):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = main(command.split())
        assert code == 0, f"{command}: exit code {code}"
        assert sys.stdout is stdout, f"{command}: stdout was replaced by {sys.stdout}"
        outputs.append(out.getvalue())
    print(json.dumps(outputs), file=answers, flush=True)
"""


@pytest.fixture(scope="module")
def run(copy: Path) -> Iterator[Callable[..., list[str]]]:
    """Execute commands with the copy, in one process for all tests; returns the output of each."""
    with (
        (copy / "errors.txt").open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"PYTHONPATH": str(copy)},
            cwd=copy,
        ) as process,
    ):

        def run(*commands: str) -> list[str]:
            assert process.stdin is not None and process.stdout is not None
            print(json.dumps(commands), file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer, (copy / "errors.txt").read_text("utf-8")[-3000:]
            outputs: list[str] = json.loads(answer)
            return outputs

        yield run


# The first words of the row of the page.
ROWS = {
    "a positional encoding": "an attention, a positional encoding, ",
    "an attention with settings, a cost, a rule and a cache": "an attention, a positional encoding, ",
    "a data format": "a file format",
    "a family": "a family of checkpoints",
}


@pytest.mark.parametrize("name", ADDITIONS)
def test_an_addition_changes_few_files(name: str) -> None:
    assert len(ADDITIONS[name]) <= 2


@pytest.mark.parametrize("name", ADDITIONS)
def test_the_page_names_the_files_of_an_addition(name: str) -> None:
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text("utf-8")
    table = page.partition("## Where to add things")[2].partition("\n\n")[2].partition("\n\n")[0]
    (row,) = [line for line in table.splitlines() if line.startswith(f"| {ROWS.get(name, name)}")]
    for file, change in ADDITIONS[name].items():
        is_in_folder = isinstance(change, str) or file.endswith("__init__.py")
        named = Path(file).parent.as_posix() if is_in_folder else file
        assert f"`{named}`" in row, file


@pytest.mark.slow
def test_additions_work_from_the_command_line(copy: Path, run: Callable[..., list[str]]) -> None:
    text = "".join(f"the dog number {n} runs and the cat sleeps\n" for n in range(60))
    (copy / "text.txt").write_text(text, "utf-8")
    (copy / "mine.yaml").write_text(
        "model: {shape: decoder, norm_placement: pre, max_positions: 32, attention: gated, "
        "positions: ramp, activation: softsign, norm: scale, options: {gated: {start: 0.7}}}\n"
        "task: {kind: story}\ndata: {train: text.txt, holdout: 8}\n"
        "train: {steps: 2, warmup: 1, check_memory: false}\nbatch: {tokens: 256}\n",
        "utf-8",
    )
    plain = (
        "model.attention=softmax model.positions=learned model.activation=gelu-tanh "
        "model.norm=layer model.options={} model.scale_embeddings=false model.attention_bias=true "
        "model.d_model=16 model.n_layers=1 model.n_heads=2 model.d_ff=64"
    )
    trained, written, shown, facts, page, greeting, *_ = run(
        f"train mine.yaml --out run {SIZES}",
        "generate run dog --max-new-tokens 4 --top-a 0.1 --seed 1",
        "show run",
        "show run --json",
        "look run dog --out page.html",
        "hello",
        f"train mine.yaml --out plain train.steps=1 {plain}",
    )
    assert "perplexity" in trained and "dog" in written and greeting == "hello\n"
    assert '"gated"' in facts and '"ramp"' in facts and "scale norms" in shown
    assert "weight \u00b7 x / \u221a" in (copy / "page.html").read_text("utf-8")
    weights = load_file(copy / "run" / "model" / "model.safetensors")
    parameters = sum(tensor.numel() for tensor in weights.values())
    assert json.loads(facts)["parameters"] == parameters
    norms = [tensor for tensor in weights.values() if tensor.numel() == 1]
    assert norms and all(abs(float(norm) / float(norms[0]) - 1) < 0.1 for norm in norms)
    folder = copy / "plain" / "model"
    config = (folder / "config.json").read_text("utf-8")
    assert '"gpt2"' in config
    (folder / "config.json").write_text(
        config.replace('"gpt2"', '"my_gpt"').replace("GPT2", "MyGpt"), "utf-8"
    )
    (again,) = run("generate plain/model dog --max-new-tokens 2")
    assert again.strip() and page


@pytest.mark.slow
def test_a_format_and_a_score_work_from_the_command_line(
    copy: Path, run: Callable[..., list[str]]
) -> None:
    labels = ["good"] * 6 + ["bad"] * 3
    lines = [f"{label} | {label} number {n}\n" for n, label in enumerate(labels)]
    rows = copy / "rows" / "test.ndtxt"
    rows.parent.mkdir()
    rows.write_text("".join(lines), "utf-8")
    small = "model.d_model=16 model.n_layers=1 model.n_heads=2 model.d_ff=32 tokenizer.kind=word"
    small += " model.linear_path=false"  # which would learn these rows before the first step
    trained, _, scored, *_ = run(
        "train classify data.train=rows/test.ndtxt data.valid=rows --out classes train.steps=3 "
        f"train.warmup=1 task.best_by=mean_recall {small}",
        "predict classes rows/test.ndtxt --out found.jsonl",
        "eval classes rows/test.ndtxt --json",
        "predict classes rows --out folder.jsonl",
        # A file of such rows also holds pairs: of a text and its class.
        "train smoke data.train=rows/test.ndtxt data.valid=rows/test.ndtxt "
        "train.steps=2 train.warmup=1 --out pairs",
    )
    found = [json.loads(line) for line in (copy / "found.jsonl").read_text("utf-8").splitlines()]
    assert [each["text"] for each in found] == [line.split(" | ")[1].strip() for line in lines]
    right = [each["prediction"] == label for each, label in zip(found, labels, strict=True)]
    recall = 50 * (sum(right[:6]) / 6 + sum(right[6:]) / 3)
    scores = json.loads(scored)["scores"]
    assert scores["mean_recall"] == pytest.approx(recall)
    assert "recall 50.00" in trained
    assert (copy / "pairs" / "model").is_dir()
