"""The training run that a model belongs to: its curves and samples, and a head in each of its
checkpoints.
"""

import csv
from collections import defaultdict
from copy import copy, deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from trifold.errors import CheckpointError, UsageError
from trifold.folders import AnyPath, UntrustedPath, named, read_text
from trifold.jsonfiles import finite, iter_metrics
from trifold.look.attention import HOOKS
from trifold.look.session import Answer, Session
from trifold.look.views import attention
from trifold.pipeline import Pipeline
from trifold.predict.trace import Trace, check_index
from trifold.train.checkpoint import list_checkpoints, load, step_of

MAX_POINTS = 2_000  # of a curve
MAX_SAMPLES = 20  # of a step
MAX_SAMPLE_BYTES = 100 * 2**20  # of the file of a step


def run_folder(model: str) -> Path | None:
    """The run of a model folder or of a run, or None."""
    model_folder = Path(model).expanduser()
    for folder in (model_folder, model_folder.parent):
        if (named(folder) / "metrics.jsonl").exists():
            return folder
    return None


def _folder(session: Session) -> UntrustedPath:
    if session.folder is None:
        raise UsageError(
            "the model does not belong to a run; name the folder that `trifold train` wrote"
        )
    return named(session.folder)


def run(session: Session) -> Answer:
    """curves: "steps" and "values" by name, from metrics.jsonl, at most 2,000 points evenly chosen.
    samples: "rows" of source, reference and output by "step". checkpoints: the steps of those that
    exist.

    Raises UsageError if the model does not belong to a run.
    """
    folder = _folder(session)
    curves = defaultdict[str, dict[float, float]](dict)
    for line in iter_metrics(folder / "metrics.jsonl"):
        for name, value in line.items():
            number = finite(value)
            if name != "step" and number is not None:
                curves[name][line["step"]] = number
    samples = []
    for file in (folder / "samples").glob("step-*.tsv"):
        lines = StringIO(read_text(file, MAX_SAMPLE_BYTES), newline="")
        header, *rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        samples.append(
            {
                "step": int(file.stem.removeprefix("step-")),
                "header": header,
                "rows": rows[:MAX_SAMPLES],
            }
        )
    return {
        "name": folder.name,
        "curves": {name: _thin(points) for name, points in curves.items()},
        "samples": samples,
        "checkpoints": [step_of(path) for path in list_checkpoints(folder / "checkpoints")],
    }


def _thin(points: dict[float, float]) -> dict[str, Any]:
    """At most MAX_POINTS points of a curve, evenly chosen."""
    with np.errstate(over="ignore"):  # a diverging loss
        values = np.array([*points.items()], dtype=np.float64).reshape(-1, 2).astype(np.float32)
    rows = np.linspace(0, len(values) - 1, min(len(values), MAX_POINTS)).round().astype(int)
    chosen = values[np.unique(rows)]
    return {"steps": chosen[:, 0], "values": chosen[:, 1]}


def at_checkpoint(finished: Pipeline, checkpoint: AnyPath) -> Pipeline:
    """A copy of the model of a run with the weights of a checkpoint. Raises CheckpointError for
    other weights.
    """
    pipeline = copy(finished)
    pipeline.model = deepcopy(finished.model)
    saved = load(checkpoint, optimizer=False).weights
    weights = pipeline.model.state_dict()
    if any(
        name not in weights or weights[name].shape != value.shape for name, value in saved.items()
    ):
        raise CheckpointError(f"{checkpoint}: its weights are not those of the model")
    pipeline.model.load_state_dict(saved, strict=False)
    return pipeline


def head_over_checkpoints(
    session: Session, text: str, target: str | None = None, *, kind: str, layer: int, head: int
) -> Answer:
    """steps: of the checkpoints; weights: of a head in each (checkpoints, T, S).

    The output that the decoder reads is the target, by default that of the finished model. Raises
    CheckpointError for weights that are damaged, or of another model.
    """
    folder = _folder(session)
    finished = session.pipeline
    shape = attention(session, text, target, kind, layer)["weights"].shape
    check_index("head", head, shape[0])
    example = session.trace(text, target).example
    steps = list[int]()
    weights = []
    for checkpoint in list_checkpoints(folder / "checkpoints"):
        steps.append(step_of(checkpoint))
        trace = Trace(at_checkpoint(finished, checkpoint), example, {})
        weights.append(trace[HOOKS[kind].format(layer)][head].float().cpu().numpy())
    return {"steps": steps, "weights": np.array(weights, np.float32).reshape(-1, *shape[1:])}
