"""transformers' `Trainer` on a cell, from the weights of a published encoder, as its examples do.

    python benchmarks/defaults/trainer_runner.py FOLDER SET ROWS SEED --start MODEL

The examples are run_glue.py, run_ner.py and run_qa.py: three epochs at the default rate of
`TrainingArguments`, 5e-5, in batches of 32, with dynamic padding; questions in windows of 384
tokens that share 128. bf16 or fp32, whichever is faster on a batch. A line of JSON has the scores
and the CPU seconds of training, imports and tokenization included.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rows import Row, draw, read
from scoring import score
from setting import SETS
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

BATCH = 32
EPOCHS = 3
WINDOW, STRIDE = 384, 128  # tokens of a question with its context, as in run_qa.py
CANDIDATES, LONGEST_ANSWER = 20, 30
IGNORED = -100  # label of tokens without one
PREDICTED_ROWS = 64  # of a batch
Features = list[dict[str, Any]]


class Task(NamedTuple):
    """A model with the functions that make its inputs and read its outputs."""

    model: Any
    collate: Any
    encode: Callable[[Sequence[Row], bool], Features]
    decode: Callable[[Sequence[Row], Features, Any], list[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("set", choices=[*SETS])
    parser.add_argument("rows", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--start", required=True)
    parser.add_argument("--no-test", action="store_true")
    print(json.dumps(measure(parser.parse_args())))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    made_of = SETS[options.set].made_of
    splits = read(options.set)
    train = draw(splits.train, options.rows, options.seed)
    torch.manual_seed(options.seed)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    tokenizer = AutoTokenizer.from_pretrained(options.start)
    task = TASKS[made_of](tokenizer, options.start, train)
    encoded = task.encode(train, True)
    before = time.process_time()
    is_bf16 = is_faster_in_bf16(task, encoded)
    probed = time.process_time() - before
    trainer = Trainer(
        model=task.model,
        args=TrainingArguments(
            output_dir=str(options.folder / "run"),
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=PREDICTED_ROWS,
            num_train_epochs=EPOCHS,
            use_cpu=True,
            bf16=is_bf16,
            seed=options.seed,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=encoded,
        data_collator=task.collate,
    )
    trainer.train()
    found: dict[str, Any] = {
        "rows": len(train),
        "cpu_s": time.process_time() - probed,
        "precision": "bf16" if is_bf16 else "fp32",
    }
    parts = {"valid": splits.valid, "test": splits.test}
    for name, rows in parts.items():
        if name == "test" and options.no_test:
            continue
        features = task.encode(rows, False)
        outputs = trainer.predict([_inputs(each) for each in features]).predictions
        found[name] = score(made_of, rows, task.decode(rows, features, outputs))
    return found


def _inputs(features: dict[str, Any]) -> dict[str, Any]:
    """What the model reads; the rest is for `decode`."""
    return {key: features[key] for key in ("input_ids", "attention_mask", "token_type_ids")}


def is_faster_in_bf16(task: Task, encoded: Features) -> bool:
    """Whether a training step on a batch takes less time in bf16."""
    batch = task.collate(encoded[:BATCH])
    seconds = {}
    for is_bf16 in (False, True):
        times = []
        for _ in range(3):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
                loss = task.model(**batch).loss
            loss.backward()
            times.append(time.perf_counter() - start)
        seconds[is_bf16] = min(times)
    task.model.zero_grad()
    return seconds[True] < seconds[False]


# --- texts and pairs ------------------------------------------------------------------------------


def _labels_task(tokenizer: Any, start: str, train: Sequence[Row], *, numbers: bool) -> Task:
    names = sorted({row["label"] for row in train})
    count = 1 if numbers else len(names)
    model = AutoModelForSequenceClassification.from_pretrained(start, num_labels=count)

    def encode(rows: Sequence[Row], is_training: bool) -> Features:
        texts = [[row["text"] for row in rows]]
        if "pair" in rows[0]:
            texts.append([row["pair"] for row in rows])
        columns = tokenizer(
            *texts, truncation=True, max_length=model.config.max_position_embeddings
        )
        features = _by_row(columns)
        if is_training:
            for each, row in zip(features, rows, strict=True):
                each["label"] = float(row["label"]) if numbers else names.index(row["label"])
        return features

    def decode(rows: Sequence[Row], features: Features, outputs: Any) -> list[Any]:
        if numbers:
            return [float(number) for number in outputs[:, 0]]
        return [names[number] for number in outputs.argmax(1)]

    return Task(model, DataCollatorWithPadding(tokenizer), encode, decode)


def classes_task(tokenizer: Any, start: str, train: Sequence[Row]) -> Task:
    return _labels_task(tokenizer, start, train, numbers=False)


def numbers_task(tokenizer: Any, start: str, train: Sequence[Row]) -> Task:
    return _labels_task(tokenizer, start, train, numbers=True)


def _by_row(columns: Any) -> Features:
    return [
        {key: columns[key][number] for key in columns}
        for number in range(len(columns["input_ids"]))
    ]


# --- words ----------------------------------------------------------------------------------------


def words_task(tokenizer: Any, start: str, train: Sequence[Row]) -> Task:
    """The first token of each word has its tag, as in run_ner.py."""
    names = sorted({tag for row in train for tag in row["tags"]})
    model = AutoModelForTokenClassification.from_pretrained(start, num_labels=len(names))

    def encode(rows: Sequence[Row], is_training: bool) -> Features:
        columns = tokenizer(
            [row["words"] for row in rows],
            is_split_into_words=True,
            truncation=True,
            max_length=model.config.max_position_embeddings,
        )
        features = _by_row(columns)
        for number, each in enumerate(features):
            each["first"] = _first_tokens(columns.word_ids(number))
            if is_training:
                first = each.pop("first")
                each["labels"] = [IGNORED] * len(each["input_ids"])
                for word, place in first.items():
                    each["labels"][place] = names.index(rows[number]["tags"][word])
        return features

    def decode(rows: Sequence[Row], features: Features, outputs: Any) -> list[Any]:
        found = outputs.argmax(2)
        return [
            [
                names[tags[each["first"][word]]] if word in each["first"] else "O"
                for word in range(len(row["words"]))
            ]
            for row, each, tags in zip(rows, features, found, strict=True)
        ]

    return Task(model, DataCollatorForTokenClassification(tokenizer), encode, decode)


def _first_tokens(words: Sequence[int | None]) -> dict[int, int]:
    """The first token of each word."""
    first: dict[int, int] = {}
    for place, word in enumerate(words):
        if word is not None:
            first.setdefault(word, place)
    return first


# --- questions ------------------------------------------------------------------------------------


def questions_task(tokenizer: Any, start: str, train: Sequence[Row]) -> Task:
    """Windows of the context; those without the answer point to the first token."""
    model = AutoModelForQuestionAnswering.from_pretrained(start)

    def encode(rows: Sequence[Row], is_training: bool) -> Features:
        columns = tokenizer(
            [row["question"] for row in rows],
            [row["context"] for row in rows],
            truncation="only_second",
            max_length=WINDOW,
            stride=STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding=not is_training and "max_length",
        )
        owners = columns.pop("overflow_to_sample_mapping")
        features = _by_row(columns)
        for number, (each, owner) in enumerate(zip(features, owners, strict=True)):
            is_context = [part == 1 for part in columns.sequence_ids(number)]
            each |= {"row": owner, "is_context": is_context}
            if is_training:
                _point(each, rows[owner])
        return features

    def decode(rows: Sequence[Row], features: Features, outputs: Any) -> list[Any]:
        best: list[tuple[float, str]] = [(-np.inf, "")] * len(rows)
        for each, starts, ends in zip(features, *outputs, strict=True):
            context = rows[each["row"]]["context"]
            best[each["row"]] = max(best[each["row"]], _best_span(each, starts, ends, context))
        return [text for _, text in best]

    return Task(model, DataCollatorWithPadding(tokenizer), encode, decode)


def _point(features: dict[str, Any], row: Row) -> None:
    """Add the tokens of the answer, and remove what only `decode` needs."""
    offsets, is_context = features.pop("offset_mapping"), features.pop("is_context")
    del features["row"]
    begin, end = row["start"], row["start"] + len(row["answer"])
    inside = [
        place
        for place, (first, last) in enumerate(offsets)
        if is_context[place] and first < end and last > begin
    ]
    context = [place for place, is_one in enumerate(is_context) if is_one]
    is_whole = inside and offsets[context[0]][0] <= begin and offsets[context[-1]][1] >= end
    ends = (inside[0], inside[-1]) if is_whole else (0, 0)
    features |= {"start_positions": ends[0], "end_positions": ends[1]}


def _best_span(features: dict[str, Any], starts: Any, ends: Any, context: str) -> tuple[float, str]:
    """The span with the largest sum of logits, of the likeliest starts and ends."""
    best = (-np.inf, "")
    for start in np.argsort(starts)[-CANDIDATES:]:
        for end in np.argsort(ends)[-CANDIDATES:]:
            is_span = start <= end < start + LONGEST_ANSWER
            if is_span and features["is_context"][start] and features["is_context"][end]:
                offsets = features["offset_mapping"]
                text = context[offsets[start][0] : offsets[end][1]]
                best = max(best, (float(starts[start] + ends[end]), text))
    return best


TASKS: dict[str, Callable[[Any, str, Sequence[Row]], Task]] = {
    "texts": classes_task,
    "pairs": classes_task,
    "numbers": numbers_task,
    "words": words_task,
    "questions": questions_task,
}

if __name__ == "__main__":
    main()
