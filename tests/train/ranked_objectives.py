"""`ranked_objectives.py FOLDER [OBJECTIVE…] [--all]` trains every objective for two updates, with one
rank and sharded over two, as forks of one process; with --all also with two ranks.

Prints the losses of the updates as JSON: objective -> precision -> form -> losses, or an error.
"""

from __future__ import annotations

import gc
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.faults.groups import ranked
from tests.models import ONE_LAYER
from tests.recipes import (
    BERT,
    GPT2,
    MASKS,
    PRETRAINED_BERT,
    SENTINELS,
    SIZES,
    WEATHER,
    XLNET,
    weather_text,
)

from trifold.hub import save_model
from trifold.nn import Transformer
from trifold.recipe import Recipe, load_recipe
from trifold.train.data import TrainingData, iterate_batches, load_data
from trifold.train.device import find_machine
from trifold.train.initial_weights import new_model
from trifold.train.launch import join_ranks
from trifold.train.monitor import View
from trifold.train.ranks import Ranks
from trifold.train.trainer import Trainer

BASE = Path(sys.argv[1])
UPDATES = 2
WORLDS = {"1": 1, "2": 2, "2 sharded": 2}
ALL_FORMS = "--all" in sys.argv  # for the table of docs/machines.md
# Without --all: objectives that compute as another one does, and those that run in bfloat16 too.
SIMILAR = (
    *("summarize", "text-to-text", "denoise", "distill", "masked"),
    *("answer, decoder", "text-to-text, decoder"),
)
IN_BFLOAT16 = (
    "causal",
    "images",
    "images, stem",
    "permutation",
    "classify",
    "tag",
    "embed, ranking",
)

CHARACTERS = {"kind": "char"}
LONG = SIZES | {"max_positions": 64}
DECODER = SIZES | {"shape": "decoder", "norm_placement": "pre"}
ENCODER = {key: value for key, value in BERT.items() if not key.startswith("lm_head")}
POOLED = ENCODER | {"heads": ["pooler", "sequence"], "classifier_input": "pooler"}
EMBEDDER = ENCODER | {"heads": ["pooler"]}
VIT = ONE_LAYER | {
    "shape": "encoder", "positions": "learned", "norm_placement": "pre", "attention_bias": True,
    "dropout": 0.0, "heads": ["sequence"], "image_size": [8, 8], "patch_size": [4, 4],
    "max_positions": 5, "scale_embeddings": False,
}  # fmt: skip
CAUSAL = {"kind": "causal"}
DISTILL = {"kind": "distill", "of": CAUSAL, "teacher": "TEACHER"}
PARTS = {"a": {"train": "pairs.tsv", "valid": "pairs.tsv", "input": "a: {source}"}}
WEIGHTED = {"kind": "classify", "class_weights": "balanced", "r_drop": 1.0, "label_smoothing": 0.1}
EXPERTS = {"experts": {"count": 4, "per_token": 2}}

# name -> task, data, tokenizer, model
OBJECTIVES: dict[str, tuple[dict[str, Any], str | None, dict[str, Any], dict[str, Any]]] = {
    "translate": ({"kind": "translate"}, "pairs.tsv", CHARACTERS, SIZES),
    "summarize": ({"kind": "summarize"}, "pairs.tsv", CHARACTERS, LONG),
    "text-to-text": ({"kind": "text-to-text", "parts": PARTS}, None, CHARACTERS, LONG),
    "translate, decoder": ({"kind": "translate"}, "pairs.tsv", CHARACTERS, DECODER | {"max_positions": 80}),
    "answer, decoder": ({"kind": "answer"}, "answers.jsonl", CHARACTERS, DECODER | {"max_positions": 99}),
    "text-to-text, decoder": ({"kind": "text-to-text", "parts": PARTS}, None, CHARACTERS, DECODER | {"max_positions": 80}),
    "causal": (CAUSAL, "text.txt", CHARACTERS, GPT2),
    "causal, experts": (CAUSAL | {"balance_loss": 0.5}, "text.txt", CHARACTERS, DECODER | EXPERTS),
    "masked": ({"kind": "masked"}, "text.txt", MASKS, BERT),
    "masked, boundary": (
        {"kind": "masked", "mask": "spans", "boundary": 1.0}, "text.txt", MASKS, BERT | {"heads": ["lm", "boundary"]},
    ),
    "permutation": ({"kind": "permutation", "share": 3}, "text.txt", MASKS, XLNET),
    "pairs": ({"kind": "pairs"}, "text.txt", MASKS, PRETRAINED_BERT),
    "denoise": ({"kind": "denoise", "written": 4}, "text.txt", SENTINELS, SIZES),
    "spans": ({"kind": "spans", "written": 4}, "text.txt", SENTINELS, SIZES),
    "distill": (DISTILL, "text.txt", {}, GPT2),
    "distill, relations": (DISTILL | {"relations": {"values": 1.0}}, "text.txt", {}, DECODER),
    "classify": ({"kind": "classify"}, "labels.tsv", MASKS, POOLED),
    "classify, weighted": (WEIGHTED, "labels.tsv", MASKS, POOLED),
    "classify, several": ({"kind": "classify", "label_separator": "|"}, "several.tsv", MASKS, POOLED),
    "classify, numbers": ({"kind": "classify"}, "numbers.tsv", MASKS, POOLED),
    "classify, decoder": (
        {"kind": "classify", "lm_loss": 0.5}, "labels.tsv", MASKS, DECODER | {"heads": ["sequence"], "classifier_input": "last"},
    ),
    "classify, linear path": (
        {"kind": "classify"}, "labels.tsv", MASKS, POOLED | {"linear_path": {"words": 64, "characters": 128}},
    ),
    "tag": ({"kind": "tag"}, "tags.conll", MASKS, ENCODER | {"heads": ["token"]}),
    "answer": (
        {"kind": "answer", "max_length": 24, "stride": 3}, "answers.jsonl", MASKS, ENCODER | {"heads": ["span"]},
    ),
    "choose": (
        {"kind": "choose"}, "choices.jsonl", MASKS, POOLED | {"heads": ["pooler", "choice"]},
    ),
    "embed, ranking": ({"kind": "embed"}, "related.tsv", MASKS, EMBEDDER),
    "embed, scores": ({"kind": "embed"}, "scored.tsv", MASKS, EMBEDDER),
    "embed, triplets": ({"kind": "embed"}, "triplets.tsv", MASKS, EMBEDDER),
    "images": ({"kind": "images"}, "images", {}, VIT),
    "images, stem": ({"kind": "images"}, "images", {}, VIT | {"stem": [4, 8, 8]}),
}  # fmt: skip


def write_data() -> None:
    """Files of every layout, about the weather."""
    rng = random.Random(5)
    (BASE / "text.txt").write_text(weather_text(rng), encoding="utf-8")
    sentences = [" ".join(rng.choices(WEATHER, k=rng.randint(2, 6))) for _ in range(48)]
    pairs = [*zip(sentences[::2], sentences[1::2], strict=True)]
    numbered = [(f"{a} {n}", b) for n, (a, b) in enumerate(pairs)]
    tables = {
        "pairs": ["source\ttarget", *(f"{s}\t{' '.join(s.split()[::-1])}" for s in sentences)],
        "labels": ["text\tlabel", *(f"{s}\t{'ab'[s.startswith('s')]}" for s in sentences)],
        "several": ["text\tlabel", *(f"{s}\t{'|'.join(sorted({*s.split()}))}" for s in sentences)],
        "numbers": ["text\tlabel", *(f"{s}\t{len(s) / 10}" for s in sentences)],
        "related": ["anchor\tpositive", *(f"{a}\t{b}" for a, b in numbered)],
        "scored": ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{len(a) % 5}" for a, b in pairs)],
        "triplets": [
            "anchor\tpositive\tnegative", *(f"{a}\t{b}\t{b[::-1]}" for a, b in numbered)
        ],
    }  # fmt: skip
    for name, lines in tables.items():
        (BASE / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    answers = []
    for sentence in sentences:
        last = sentence.split()[-1]
        found = [{"text": last, "answer_start": sentence.rindex(last)}]
        row = {"question": sentence.split()[0], "context": sentence, "answers": found}
        answers.append(json.dumps(row))
    (BASE / "answers.jsonl").write_text("\n".join(answers) + "\n", encoding="utf-8")
    choices = [json.dumps({"context": a, "choices": [a, b], "label": len(a) % 2}) for a, b in pairs]
    (BASE / "choices.jsonl").write_text("\n".join(choices) + "\n", encoding="utf-8")
    tags = ["\n".join(f"{word} {'OB'[word == 'sun']}" for word in s.split()) for s in sentences]
    (BASE / "tags.conll").write_text("\n\n".join(tags) + "\n", encoding="utf-8")
    pixels = np.random.default_rng(2)
    for name, low in (("dark", 0), ("light", 120)):
        folder = BASE / "images" / name
        folder.mkdir(parents=True)
        for number in range(8):
            values = pixels.integers(low, low + 130, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(values).save(folder / f"{number}.png")


def recipes_of(name: str) -> Iterator[tuple[str, str, Recipe]]:
    """The recipes of an objective, with their precision and form."""
    task, source, tokenizer, model = OBJECTIVES[name]
    data: dict[str, Any] = {}
    if source is not None:
        data = {"train": str(BASE / source), "valid": str(BASE / source)}
    values = {
        "task": task, "tokenizer": tokenizer, "model": model, "data": data, "batch": {"tokens": 200, "rows": 8},
        "train": {
            "steps": 9, "warmup": 1, "learning_rate": 0.01, "schedule": "constant", "device": "cpu",
            "check_memory": False,
        },
    }  # fmt: skip
    text = json.dumps(values).replace("pairs.tsv", str(BASE / "pairs.tsv"))
    if source == "pairs.tsv":
        text = json.dumps(values)
    file = BASE / "recipe.yaml"
    file.write_text(text.replace("TEACHER", str(BASE / "teacher")), encoding="utf-8")
    precisions = ["float64"]
    if ALL_FORMS or name in IN_BFLOAT16:
        precisions.append("bfloat16")
    for precision in precisions:
        for form in WORLDS:
            if form == "2" and not ALL_FORMS:
                continue
            changes = {"train.precision": precision}
            if form.endswith("sharded"):
                changes["train.sharding"] = "full"
            yield precision, form, load_recipe(file, changes)


def losses(data: TrainingData, recipe: Recipe, ranks: Ranks) -> list[float]:
    """Those of the first updates."""
    machine = find_machine(recipe.train, recipe.batch.tokens, ranks)
    trainer = Trainer(new_model(data), data.objective, recipe.train, machine)
    trainer.broadcast_weights()
    batches = islice(iterate_batches(data, 1, rank=ranks.rank, world=ranks.world), UPDATES)
    values = [
        trainer.update(batch.micro_batches, step, math.inf, batch.idle).loss
        for step, batch in enumerate(batches, start=1)
    ]
    trainer.close()
    return values


def save_teacher() -> None:
    """An untrained model of the objective `causal`."""
    _, _, recipe = next(recipes_of("causal"))
    data = load_data(recipe, BASE / "causal", View())
    torch.manual_seed(7)
    save_model(BASE / "teacher", Transformer(data.config))
    data.objective.save(BASE / "teacher")


def main(names: Sequence[str]) -> None:
    write_data()
    save_teacher()
    recipes: dict[str, dict[tuple[str, str], Recipe]] = {}
    loaded = {}
    for name in names:
        recipes[name] = {(p, form): recipe for p, form, recipe in recipes_of(name)}
        first = next(iter(recipes[name].values()))
        loaded[name] = load_data(first, BASE / name, View())
    results = BASE / "losses.jsonl"

    def work(rank: int, world: int) -> int:
        with join_ranks() as ranks:
            for name, chosen in recipes.items():
                for (precision, form), recipe in chosen.items():
                    if WORLDS[form] != world:
                        continue
                    values: Any
                    try:
                        values = losses(loaded[name], recipe, ranks)
                    except Exception as error:  # the same on both ranks
                        values = f"{type(error).__name__}: {error}"
                    if rank == 0:
                        with results.open("a", encoding="utf-8") as file:
                            file.write(json.dumps([name, precision, form, values]) + "\n")
        return 0

    gc.collect()
    gc.freeze()  # else collections in a rank write to, and so copy, the memory of this process
    for world in (1, 2):
        codes = ranked(lambda rank, world=world: work(rank, world), world)  # type: ignore[misc]
        assert set(codes) == {0}, codes
    print(results.read_text("utf-8"), end="")


named = [name for name in sys.argv[2:] if name in OBJECTIVES]
main(named or [name for name in OBJECTIVES if ALL_FORMS or name not in SIMILAR])
