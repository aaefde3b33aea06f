"""Sizes of a recipe that leaves them to its data: model, batches, steps.

Before the data has been read its size is estimated (`estimate_sizes`), which `trifold show` prints
and the tokenizer begins with. Training counts the tokens of the encoded rows (`measure_examples`)
and computes the same settings from the counts (`sizes_for`, `schedule`). `plans` has the rules of
steps and batches.
"""

from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

import numpy as np

from trifold.batches import Blocks
from trifold.data import DataSettings
from trifold.data.image_sets import measure_images
from trifold.errors import TrifoldError
from trifold.nn.variants import ModelConfig
from trifold.objectives import DEFAULT_KIND, settings_class
from trifold.objectives.batch import Examples
from trifold.objectives.data_size import measure_texts
from trifold.objectives.plans import NEW, PATH, PATH_BY_DEFAULT, Plan, plan_for
from trifold.objectives.rates import RATE_WITH_PATH, fine_tuning_rate, new_rate
from trifold.predict.answer import MAX_ANSWER_LENGTH

# Limit of the tokens of the data, width and layers of a model for less.
WIDTHS = ((50_000, 64, 2), (1_000_000, 128, 2), (inf, 256, 4))
GRAY = ("1", "L", "LA", "I", "I;16")  # modes of Pillow without colors
HELD_OUT = 500_000  # most tokens of the held-out tenth
# The tasks of which folds choose the steps, for so many rows (with the header of a table); a new
# model of the smallest size also for more rows. A larger one learns what two thirds of the rows do
# not show: its steps are better chosen by a tenth.
FOLDED = ("classify",)
FOLDED_ROWS = range(50, 2_001)
MORE_FOLDED_ROWS = range(50, 5_002)
FOLDED_TOKENS = WIDTHS[0][0]
FOLDS = "folds:3"
# More tokens of so many rows: one fold, as large as a part that is held out once. The model that is
# saved is trained on all rows, too, which takes twice the time of training.
ONE_FOLD_TOKENS = 150_000
ONE_FOLD = "folds:1/10"
FEWEST_POSITIONS = 64
MOST_POSITIONS = 512
ROOM = 1.5  # times the length of a long row, for longer ones that the model is used on
LONG = 99.9  # percentile of the lengths that the model reads as a whole
FEWEST_UPDATES = 75  # of an epoch, where the data allow
SMALLEST_BATCH = 512  # tokens
LARGEST_BATCH = 4096
FEWEST_ROWS = 8  # of a batch, on average
DROPOUT_WITH_PATH = 0.3
WITH_PATHS = ("classify", "tag")  # tasks whose new models have a linear path by default
# Tasks whose model may read two texts to compare -> its head.
COMPARING = {"answer": "span", "choose": "choice", "classify": "sequence"}
ROUNDED = 64  # batches have a multiple of these tokens
Groups = Mapping[str, Mapping[str, Any]]  # of a recipe


class DataSize(NamedTuple):
    """The size of training data.

    tokens: of all rows. side: of the side that fills the batches, the longer one. longest: of a
    long row. rows: 0 if they are not known.
    """

    tokens: int
    side: int
    longest: float
    rows: int = 0

    @property
    def mean(self) -> float:
        """The tokens of a row on average; 0 if the rows are not known."""
        return self.side / max(1, self.rows) if self.rows else 0.0


def measure_examples(examples: Examples) -> DataSize:
    """The size of encoded rows."""
    if isinstance(examples, Blocks):
        return DataSize(examples.tokens, examples.tokens, examples.width, len(examples))
    lengths = examples.lengths
    longest = np.percentile(lengths.max(axis=1), LONG, method="higher")
    side = int(lengths.sum(axis=0).max())
    return DataSize(int(lengths.sum()), side, float(longest), len(lengths))


# --- before the data has been read ----------------------------------------------------------------


def is_unsized_student(groups: Groups, *, wraps: bool) -> bool:
    """Whether a recipe trains a student on data, and leaves steps or rate to the size of it."""
    is_sized = groups["train"].keys() >= {"steps", "learning_rate"}
    return wraps and not is_sized and bool(groups["data"].get("train"))


def sizes_of_student(groups: Groups, student: ModelConfig | None) -> dict[str, dict[str, Any]]:
    """Estimated settings of training, by group, for the data of a student, whose model is that of
    its teacher. The rate is that of a new model.
    """
    wrapped = {
        **groups,
        "task": groups["task"].get("of") or {"kind": "causal"},
        "batch": {"tokens": LARGEST_BATCH, **groups["batch"]},
    }
    student = student or ModelConfig.parse({})
    chosen = estimate_sizes(wrapped, student, NEW)
    chosen["train"]["learning_rate"] = float(f"{new_rate(student.d_model):.2g}")
    return {name: chosen[name] for name in ("train", "data") if name in chosen}


def estimate_sizes(
    groups: Groups, start: ModelConfig | None, plan: Plan | None = None, *, may_fold: bool = False
) -> dict[str, dict[str, Any]]:
    """Settings, by group, for the estimated size of the training data. start: the config of
    start_from. plan: by default that of the task. may_fold: whether folds may choose the steps.
    """
    data = groups["data"]
    plan = plan or plan_for(_kind(groups), start, has_path=has_path(groups, start))
    of_images: dict[str, Any] = {}
    folds = None
    if _kind(groups) == "images":
        size, of_images = _size_of_images(data, start)
    else:
        size = _estimate_texts(groups)
        folds = _folds_of(size, data, is_new=start is None) if may_fold else None
        if plan.rows is None:  # the examples may be others than the rows
            size = size._replace(rows=0)
    chosen = sizes_for(groups, size, start, plan)
    if start is None:
        # The columns of a classification are not read here: one text, until its rows are.
        compares = _kind(groups) != "classify"
        chosen["model"] |= of_images | comparison_for(groups, compares=compares)
    batches = max(
        size.side / chosen["batch"]["tokens"], size.rows / chosen["batch"].get("rows", inf)
    )
    updates = batches / number_of(groups["train"], "accumulate", 1)
    chosen["train"] |= schedule(groups, updates, plan)
    if data.get("train") and not data.get("valid"):
        chosen["data"] = {"holdout": float(f"{min(0.1, HELD_OUT / size.tokens):.2g}")}
        if folds is not None:
            chosen["data"] = {"holdout": folds}
    return chosen


def _folds_of(size: DataSize, data: Mapping[str, Any], *, is_new: bool) -> str | None:
    """The folds that choose the steps of few rows; None of many, and of groups, of which there may
    be fewer than folds. is_new: of a new model.
    """
    if size.rows in FOLDED_ROWS:
        return FOLDS
    if not is_new or size.rows not in MORE_FOLDED_ROWS:
        return None
    if size.tokens < FOLDED_TOKENS:
        return FOLDS
    has_groups = data.get("group") is not None
    return ONE_FOLD if size.tokens < ONE_FOLD_TOKENS and not has_groups else None


def _estimate_texts(groups: Groups) -> DataSize:
    """Estimates of the tokens of the training data, and of a long row."""
    kind = _kind(groups)
    token_bytes = 4
    if groups["tokenizer"].get("kind") == "char":
        token_bytes = 1
    tokens, longest, rows = measure_texts(groups["data"], token_bytes, kind)
    if kind == "answer":
        longest = MOST_POSITIONS  # of windows; the lines of JSON are no rows
        rows = 0
    if groups["model"].get("shape") == "decoder":  # which reads both sides of a row
        longest *= 2
    side = tokens
    if reads_sides(groups):
        side //= 2
    return DataSize(tokens, side, longest, rows)


def _size_of_images(
    data: Mapping[str, Any], start: ModelConfig | None
) -> tuple[DataSize, dict[str, Any]]:
    """The patches of all images, and a model for the size of the first one, of at most 64 x 64
    pixels.
    """
    count = 1
    mode = "RGB"
    sides = [32, 32]
    with suppress(TrifoldError, OSError, TypeError):  # which training reports
        settings = DataSettings.parse({"columns": data.get("columns", {})})
        count, (mode, *sides) = measure_images(data["train"], settings)
    patch = 4 if max(sides) <= 32 else 8
    tall, wide = (max(1, round(min(side, 64) / patch)) for side in sides)
    positions = tall * wide + 1
    model = {
        "image_size": [tall * patch, wide * patch],
        "patch_size": [patch, patch],
        "max_positions": positions,
        "d_model": 128,
        "n_layers": 4,
        "d_ff": 256,
        "stem": [32, 64, 64, 128],
        "n_channels": 1 if mode in GRAY else 3,
    }
    if start is not None:
        positions = start.max_positions
    return DataSize(count * positions, count * positions, positions, count), model


# --- settings for a size --------------------------------------------------------------------------


def sizes_for(
    groups: Groups, size: DataSize, start: ModelConfig | None, plan: Plan
) -> dict[str, dict[str, Any]]:
    """Settings of model, batches and learning rate, by group, for the size of the training data.

    groups: what a user has set. The learning rate is that of new weights of this width, or with
    `start` that of fine-tuning.
    """
    model = dict[str, Any]()
    if start is None:
        width, layers = size_of_model(groups, size.tokens)
        width = number_of(groups["model"], "d_model", width)
        model = {
            "d_model": width,
            "n_layers": layers,
            "n_heads": 4,
            "d_ff": 4 * width,
            "max_positions": positions_for(size.longest),
        }
        rate = new_rate(width)
        if has_path(groups, start):
            model["dropout"] = DROPOUT_WITH_PATH
            rate = RATE_WITH_PATH
    else:
        rate = fine_tuning_rate(start.d_model, adapters=bool(groups["train"].get("lora")))
    of_task = dict[str, Any]()
    if _kind(groups) == "answer" and groups["model"].get("shape") != "decoder":
        of_task["max_answer_length"] = MAX_ANSWER_LENGTH
    return {
        "task": of_task,
        "model": model,
        "batch": batches_for(groups, size, plan),
        "train": {"learning_rate": float(f"{rate:.2g}")},
    }


def size_of_model(groups: Groups, tokens: int) -> tuple[int, int]:
    """Width and layers of a model for data with this many tokens. Of pairs, an encoder reads one
    side and a decoder the other.
    """
    if _kind(groups) == "images":
        return WIDTHS[0][1:]
    if reads_sides(groups):
        tokens //= 2
    return next((width, layers) for limit, width, layers in WIDTHS if tokens < limit)


def positions_for(longest: float) -> int:
    """The positions of a model that reads rows of this many tokens, and somewhat longer ones."""
    return min(MOST_POSITIONS, max(FEWEST_POSITIONS, 1 << int(ROOM * longest).bit_length()))


def comparison_for(groups: Groups, *, compares: bool) -> dict[str, Any]:
    """Settings of a new encoder that reads one text, or two that it `compares`: an embedding of the
    words that both have. A class then depends on the mean of all states instead of a first token's.
    An answer is near such words, which rotary positions tell.
    """
    head = COMPARING.get(_kind(groups))
    model = groups["model"]
    if head is None or model.get("shape") == "decoder":
        return {}
    compares = compares and model.get("word_matches", True) is True
    chosen: dict[str, Any] = {"word_matches": compares}
    if head == "span":
        chosen["positions"] = "rotary" if compares else "learned"
    elif not {"heads", "classifier_input"} & model.keys():
        chosen["classifier_input"] = "mean" if compares else "pooler"
        chosen["heads"] = (head,) if compares else ("pooler", head)
    return chosen


def batches_for(groups: Groups, size: DataSize, plan: Plan) -> dict[str, int]:
    """Settings of the batches: limits on rows and tokens, or on tokens only."""
    rows = plan.rows_for(size.rows)
    if rows is None or "tokens" in groups["batch"]:
        return {"tokens": number_of(groups["batch"], "tokens", batch_for(groups, size))}
    return {"tokens": LARGEST_BATCH, "rows": number_of(groups["batch"], "rows", rows)}


def batch_for(groups: Groups, size: DataSize) -> int:
    """The tokens of a batch: so few that an epoch has enough updates, but several rows. More for
    few rows would only cost updates.
    """
    accumulate = number_of(groups["train"], "accumulate", 1)
    wanted = size.side / (FEWEST_UPDATES * accumulate)
    fewest = max(SMALLEST_BATCH, min(LARGEST_BATCH, FEWEST_ROWS * size.mean))
    tokens = max(fewest, min(LARGEST_BATCH, wanted))
    return ROUNDED * round(tokens / ROUNDED)


def schedule(groups: Groups, updates: float, plan: Plan) -> dict[str, Any]:
    """Settings of the steps for so many updates of an epoch."""
    steps = number_of(groups["train"], "steps", plan.steps_for(updates))
    every = plan.interval(steps)
    return {
        "steps": steps,
        "warmup": steps // 10,
        "validate_every": every,
        "save_every": every,
    }


def has_path(groups: Groups, start: ModelConfig | None) -> bool:
    """Whether a new model has a linear path, which is a default of classification and tagging."""
    chosen = {**PATH_BY_DEFAULT, **groups["model"]}.get(PATH)
    return start is None and _kind(groups) in WITH_PATHS and chosen not in (None, False)


def reads_sides(groups: Groups) -> bool:
    """Whether the two texts of a row are read by an encoder and a decoder."""
    is_decoder = groups["model"].get("shape") == "decoder"
    return settings_class(_kind(groups)).data_kind == "pairs" and not is_decoder


def number_of(group: Mapping[str, Any], key: str, default: int) -> int:
    """A number that a user has set; another type is an error, which `Recipe` reports."""
    value = group.get(key)
    if isinstance(value, int) and value > 0:
        return value
    return default


def _kind(groups: Groups) -> str:
    return str(groups["task"].get("kind", DEFAULT_KIND))
