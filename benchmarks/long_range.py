"""ListOps and bytes of long texts with each kind of attention, from scratch and after masked
pretraining.

    TRIFOLD_DATA=… python benchmarks/long_range.py --out runs/long-range TRIFOLD_DATA=… python
    benchmarks/long_range.py --tasks text --kinds favor --starts pretrained --seeds 2 python
    benchmarks/long_range.py --table

The tasks follow Long Range Arena (Tay et al. 2021), in sizes for a CPU:

listops-512   16 to 512 tokens, lists of 2 to 5 arguments       (tools/listops.py)
listops-2000  501 to 2,000 tokens, lists of 2 to 10 arguments, as in Long Range Arena
text          1,000 to 1,300 bytes of consecutive lines of one of five sources: abstracts of papers,
              captions of photos, news, plays, and example sentences. Only lower-cased letters and
              spaces remain. This is not IMDb, which Long Range Arena reads, and it is easier: a few
              words tell the source.

All kinds have the same encoder and the same number of updates of the same number of tokens. With
pretraining, the first half of the updates predicts masked tokens of the training texts, and the
second half classifies. The last weights are measured on the test set once. Each finished run is a
line of results.jsonl in --out, and is not repeated."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
WORDS = {"kind": "word", "vocab_size": 64, "punctuation": False, "special": ["cls", "sep", "mask"]}
LONGEST_DOCUMENT = 1300
BYTES = {"kind": "byte-bpe", "vocab_size": 263, "special": ["cls", "sep", "mask"]}


class Task(NamedTuple):
    """A dataset: its tokenizer, the most tokens of a text with special tokens, updates and tokens
    of an update.
    """

    tokenizer: dict[str, Any]
    longest: int
    updates: int
    tokens: int
    arguments: tuple[str, ...] = ()  # of tools/listops.py


TASKS = {
    "listops-512": Task(WORDS, 514, 200, 2048, (*"--rows 10000 50 1000".split(),)),
    "listops-2000": Task(
        WORDS,
        2002,
        200,
        4096,
        (*"--shortest 501 --longest 2000 --arguments 10 --rows 1000 20 400".split(),),
    ),
    "text": Task(BYTES, LONGEST_DOCUMENT + 2, 250, 4096),
}
MODEL = {
    "shape": "encoder",
    "positions": "rotary",
    "norm_placement": "pre",
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 128,
    "activation": "gelu",
    "scale_embeddings": False,
    "dropout": 0.0,
}
TRAIN: dict[str, Any] = {
    "schedule": "linear",
    "optimizer": "muon",
    "muon_iterations": 3,
    "muon_polynomial": "polar-express",
    "learning_rate": 0.005,
    "beta2": 0.99,
    "weight_decay": 0.01,
    "clip": 1.0,
    "keep_last": 1,
    "samples": 0,
}


class Kind(NamedTuple):
    """A kind of attention: changes of the model, and the name and accuracy of ListOps and Text in
    Table 1 of Long Range Arena."""

    model: dict[str, Any]
    published: tuple[str, float, float] | None = None


KINDS = {
    "softmax": Kind({}, ("Transformer", 36.37, 64.27)),
    "window": Kind({"sliding_window": 32}, ("Local Attention", 15.82, 52.98)),
    "global": Kind({"sliding_window": 32, "global_tokens": "first"}, ("Longformer", 35.63, 62.85)),
    "blocks": Kind({"sparse_blocks": {"size": 16, "random": 2}}, ("BigBird", 36.05, 64.02)),
    "lsh": Kind({"attention": "lsh"}, ("Reformer", 37.27, 56.10)),
    "spans": Kind({"attention": "spans", "positions": "none"}),
    "elu": Kind({"attention": "elu"}, ("Linear Transformer", 16.13, 65.90)),
    "favor": Kind({"attention": "favor", "n_features": 64}, ("Performer", 18.01, 65.40)),
    "low-rank": Kind({"attention": "low-rank", "rank": 128}, ("Linformer", 35.70, 53.94)),
}
STARTS = ("scratch", "pretrained")


# --- data -----------------------------------------------------------------------------------------


def write_data(task: str, folder: Path) -> None:
    """train.tsv, valid.tsv and test.tsv of a task."""
    if task == "text":
        write_sources(folder, Path(os.environ["TRIFOLD_DATA"]))
    else:
        command = [sys.executable, ROOT / "tools" / "listops.py", folder, *TASKS[task].arguments]
        subprocess.run(command, check=True, stdout=sys.stderr)


def write_sources(folder: Path, data: Path) -> None:
    """Documents of each source. Test documents are from other files, or from the end of
    Shakespeare.
    """
    plays = read(data / "tinyshakespeare/input.txt.gz")
    news = (read(data / f"newstest_ende/newstest{year}.en.gz") for year in range(2008, 2013))
    captions = [
        read(data / f"multi30k/{name}.en.gz") for name in ("train", "val", "test_2016_flickr")
    ]
    papers = ([*abstracts(data / f"scitldr_a/{name}.jsonl.gz")] for name in ("train", "test"))
    sources = {
        "abstracts": (*papers,),
        "captions": (captions[0], captions[1] + captions[2]),
        "news": (sum(news, list[str]()), read(data / "newstest_ende/newstest2013.en.gz")),
        "plays": (plays[:36_000], plays[36_000:]),
        "sentences": tuple(read(data / f"tatoeba_ende/{name}.en.gz") for name in ("train", "dev")),
    }
    folder.mkdir(parents=True)
    for split, index, count in (("train", 0, 200), ("valid", 1, 10), ("test", 1, 60)):
        found = (
            (text, name)
            for name in sources
            for text in islice(documents(sources[name][index]), count)
        )
        rows = ["text\tlabel\n", *(f"{text}\t{name}\n" for text, name in found)]
        (folder / f"{split}.tsv").write_text("".join(rows), encoding="utf-8", newline="\n")


def read(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def abstracts(path: Path) -> Iterator[str]:
    for line in read(path):
        yield from json.loads(line)["source"]


def documents(lines: Iterable[str]) -> Iterator[str]:
    """Texts of 1,000 bytes or a little more: consecutive lines, of which only lower-cased letters
    remain.
    """
    text = ""
    for line in lines:
        text = " ".join([text, *re.findall("[a-z]+", line.lower())]).strip()
        if len(text) >= 1000:
            yield text[:LONGEST_DOCUMENT].strip()
            text = ""


# --- runs -----------------------------------------------------------------------------------------


def recipe(task: str, kind: str, start: str, seed: int, scale: float, data: Path) -> dict[str, Any]:
    """Settings of the recipe `classify`. The only validation is that of the last weights, on the
    test set.
    """
    updates = round(TASKS[task].updates * scale)
    stage = updates // 2 if start == "pretrained" else updates
    schedule = {"steps": stage, "warmup": stage // 10, "validate_every": stage, "save_every": stage}
    settings = {
        "data": {"train": str(data / "train.tsv"), "valid": str(data / "test.tsv")},
        "tokenizer": TASKS[task].tokenizer,
        "model": MODEL | {"max_positions": TASKS[task].longest} | KINDS[kind].model,
        "batch": {"tokens": TASKS[task].tokens},
        "train": TRAIN | schedule | {"seed": seed},
    }
    if start == "pretrained":
        settings["pretrain"] = {"data": {"valid": str(data / "valid.tsv")}}
    return settings


def measure(task: str, kind: str, start: str, seed: int, scale: float, out: Path) -> dict[str, Any]:
    """Train and test: accuracy in percent, and CPU seconds of both."""
    import trifold

    settings = recipe(task, kind, start, seed, scale, out / task)
    before = time.process_time()
    outcome = trifold.train(
        "classify", out=out / f"{task}-{kind}-{start}-{seed}", resume="auto", **settings
    )
    if not outcome.finished:
        raise SystemExit(outcome.exit_code)
    found = {"task": task, "kind": kind, "start": start, "seed": seed, "scale": scale}
    return found | {
        "accuracy": outcome.scores["accuracy"],
        "seconds": round(time.process_time() - before, 1),
    }


# --- tables ---------------------------------------------------------------------------------------


def baseline(task: str, folder: Path) -> str:
    """Test accuracy without a network: of naive Bayes on words, or of the most frequent value of
    the outer operator.
    """
    train, test = (
        [line.split("\t") for line in (folder / f"{split}.tsv").read_text("utf-8").splitlines()[1:]]
        for split in ("train", "test")
    )
    if task == "text":
        sys.path.insert(0, str(ROOT / "examples"))
        from naive_bayes import NaiveBayes

        name, accuracy = (
            "naive Bayes",
            NaiveBayes(*zip(*train, strict=True)).accuracy(*zip(*test, strict=True)),
        )
    else:
        values: dict[str, Counter[str]] = {}
        for text, value in train:
            values.setdefault(text.split()[0], Counter())[value] += 1
        best = {operator: counts.most_common(1)[0][0] for operator, counts in values.items()}
        name, accuracy = (
            "outer operator",
            mean(best[text.split()[0]] == value for text, value in test),
        )
    label = Counter(label for _, label in train).most_common(1)[0][0]
    constant = mean(own == label for _, own in test)
    return f"{len(test):,} test texts; most frequent label {constant:.1%}, {name} {accuracy:.1%}"


def print_table(task: str, results: list[dict[str, Any]]) -> None:
    """Mean accuracy over seeds, half the range of the seeds, CPU seconds, and the published
    accuracy.
    """
    print(f"\n| {task} | from scratch | seconds | after pretraining | seconds | published |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, kind in KINDS.items():
        cells = []
        for start in STARTS:
            runs = [
                each
                for each in results
                if each["task"] == task and each["kind"] == name and each["start"] == start
            ]
            scores = [each["accuracy"] for each in runs]
            spread = f" ± {(max(scores) - min(scores)) / 2:.1f}" if len(scores) > 1 else ""
            cells += [f"{mean(scores):.1f}{spread}" if runs else ""]
            cells += [f"{mean(each['seconds'] for each in runs):.0f}" if runs else ""]
        published, *accuracies = kind.published or ("", "", "")
        cells.append(f"{accuracies[task == 'text']} {published}")
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/long-range"))
    parser.add_argument("--tasks", nargs="+", default=[*TASKS], choices=TASKS)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=KINDS)
    parser.add_argument("--starts", nargs="+", default=STARTS, choices=STARTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the updates")
    parser.add_argument("--table", action="store_true", help="only print the tables")
    options = parser.parse_args()
    file = options.out / "results.jsonl"
    results = (
        [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        if file.is_file()
        else []
    )
    done = {(each["task"], each["kind"], each["start"], each["seed"]) for each in results}
    wanted = (
        (task, kind, start, seed)
        for seed in options.seeds
        for task in options.tasks
        for kind in options.kinds
        for start in options.starts
    )
    for each in wanted:
        if options.table or each in done:
            continue
        if not (options.out / each[0]).is_dir():
            write_data(each[0], options.out / each[0])
        results.append(measure(*each, options.scale, options.out))
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(results[-1]) + "\n")
    for task in options.tasks:
        print_table(task, results)
        if (options.out / task).is_dir():
            print(f"\n{task}: {baseline(task, options.out / task)}")


if __name__ == "__main__":
    main()
