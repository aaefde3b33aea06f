"""Compare this source tree with a reference commit, bit by bit: losses, checkpoint tensors,
generated text.

    python tools/compare_reference.py        against 909037c, the last commit before the refactoring
    python tools/compare_reference.py --reference HEAD~1
                                                against another commit, or a folder with its sources
    python tools/compare_reference.py --only smoke           chosen cases; --list names them

Both trees execute the same commands with the same seeds, in one environment. Cases that need the
public datasets read them from TRIFOLD_DATA and are skipped without it. Exit code 0: every digest is
equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors import safe_open

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "909037c"

# A decoder large enough for the compiled decoding step.
DECODER = """
description: A causal model with random text, for a comparison of bits.
task: {kind: causal}
data: {train: "embedded:smoke", valid: "embedded:smoke", field: source}
tokenizer: {kind: char, vocab_size: 60}
model: {preset: gpt2, n_layers: 3, d_model: 384, n_heads: 6, d_ff: 1536, max_positions: 128}
batch: {tokens: 1024}
train: {steps: 6, learning_rate: 0.001, warmup: 2, validate_every: 6, save_every: 6,
  keep_last: 1, log_every: 1}
"""
SHORT = (
    "train.steps={0} train.warmup=1 train.validate_every={0} train.save_every={0} train.log_every=1"
)
TRAINING = {
    "smoke": "smoke " + SHORT.format(40),
    "smoke-workers": "smoke train.workers=2 train.accumulate=2 " + SHORT.format(20),
    "smoke-muon": "smoke train.optimizer=muon train.learning_rate=0.01 train.ema=0.9 "
    + SHORT.format(20),
    "smoke-adafactor": "smoke train.optimizer=adafactor train.recompute=blocks " + SHORT.format(20),
    "smoke-bf16": "smoke train.precision=bfloat16 " + SHORT.format(20),
    "demo": "demo " + SHORT.format(12),
    "decoder": "decoder.yaml",
    "shakespeare-char-tiny": "shakespeare-char-tiny " + SHORT.format(20),
    "mlm-plain": "mlm-plain " + SHORT.format(6),
    "denoise": "multi30k-denoise " + SHORT.format(3),
    # Its position dropout draws different masks than 909037c (changelog, Numbers), so dropout is
    # off.
    "permutation": "permutation model.dropout=0 model.attention_dropout=0 " + SHORT.format(2),
    "sop": "sop " + SHORT.format(2),
    "span-corruption": "span-corruption " + SHORT.format(3),
    "text-to-text": "text-to-text " + SHORT.format(3),
}
# The case whose model is used, and the options of `trifold generate`.
GENERATION = {
    "generate-fp32": ("decoder", ""),
    "generate-bf16": ("decoder", "--dtype bfloat16"),
    "generate-int8": ("decoder", "--dtype bfloat16 --weights int8"),
    "generate-beams": ("decoder", "--num-beams 4 --num-return-sequences 2"),
    "generate-sample": ("decoder", "--temperature 0.9 --top-k 20 --top-p 0.9 --seed 3"),
    "generate-contrastive": ("decoder", "--penalty-alpha 0.6 --top-k 4"),
    "generate-lookup": ("decoder", "--prompt-lookup-num-tokens 3"),
    "translate-greedy": ("demo", "--num-beams 1"),
    "translate-beams": ("demo", "--num-beams 5 --num-return-sequences 3"),
    "translate-bf16": ("demo", "--dtype bfloat16"),
    "translate-int8": ("demo", "--weights int8"),
}
PROMPTS = [
    "one hundred and two",
    "seven",
    "I love dogs.",
    "She is sleeping in the garden of the house.",
]
NEED_DATA = (
    "shakespeare",
    "mlm",
    "denoise",
    "permutation",
    "sop",
    "span-corruption",
    "text-to-text",
)


def main() -> int:
    """Run the cases in both trees; 1 if any value differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--reference", default=REFERENCE, help="a commit, or a folder with src/")
    parser.add_argument("--only", action="append", help="these cases; repeatable")
    parser.add_argument("--list", action="store_true", help="list the cases")
    chosen = parser.parse_args()
    cases = chosen.only or [*TRAINING, *GENERATION]
    if chosen.list:
        print("\n".join(cases))
        return 0
    unequal = 0
    with tempfile.TemporaryDirectory(prefix="trifold-compare-") as folder:
        trees = {"reference": sources_of(chosen.reference, Path(folder)), "here": ROOT / "src"}
        for name in trees:
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "decoder.yaml").write_text(DECODER)
        for case in cases:
            if case.startswith(NEED_DATA) and "TRIFOLD_DATA" not in os.environ:
                print(f"{case:24} skipped: TRIFOLD_DATA is not set", flush=True)
                continue
            results = [_execute(case, tree, Path(folder) / name) for name, tree in trees.items()]
            different = sorted(key for key in results[0] if results[0][key] != results[1].get(key))
            unequal += bool(different) or results[0].keys() != results[1].keys()
            verdict = "DIFFERENT: " + ", ".join(different[:4]) if different else "equal"
            print(f"{case:24} {len(results[0]):4} values  {verdict}", flush=True)
    return 1 if unequal else 0


def sources_of(reference: str, folder: Path) -> Path:
    """The folder `src` of a commit or a folder."""
    if (Path(reference) / "src").is_dir():
        return Path(reference).resolve() / "src"
    tree = folder / "tree"
    tree.mkdir()
    archive = subprocess.run(
        ["git", "archive", reference, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    return tree / "src"


def _execute(case: str, source: Path, folder: Path) -> dict[str, str]:
    """Digests by name: losses and tensors of a training run, or generated text."""
    if case in TRAINING:
        run = folder / "runs" / case
        if not run.exists():
            _trifold(source, folder, ["train", *TRAINING[case].split(), "--out", str(run)])
        return _losses(run) | _tensors(run)
    trained, options = GENERATION[case]
    if not (folder / "runs" / trained).exists():
        _execute(trained, source, folder)
    words = ["generate", f"runs/{trained}", "-", "--max-new-tokens", "24", *options.split()]
    out = _trifold(source, folder, words, "\n".join(PROMPTS) + "\n")
    return {f"line {number}": line for number, line in enumerate(out.splitlines())}


def _trifold(source: Path, folder: Path, words: list[str], given: str = "") -> str:
    # One thread: the matrix products of some processors depend on how threads share them.
    single = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = os.environ | single | {"PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "trifold", *words]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed in {source}:\n{done.stderr[-3000:]}")
    return done.stdout


def _losses(run: Path) -> dict[str, str]:
    found = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        for key in ("train/loss", "train/gradient_norm", "valid/loss"):
            if key in values:
                found[f"{key} {values['step']}"] = repr(values[key])
    return found


def _tensors(run: Path) -> dict[str, str]:
    found = {}
    for file in sorted(
        [*run.glob("model/*.safetensors"), *run.glob("checkpoints/*/*.safetensors")]
    ):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                content = tensors.get_tensor(name).contiguous().view(-1).numpy(force=True).tobytes()
                found[f"{file.parent.name}/{file.name}/{name}"] = hashlib.sha256(
                    content
                ).hexdigest()
    return found


if __name__ == "__main__":
    sys.exit(main())
