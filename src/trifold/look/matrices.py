"""Attention on chosen matrices, step by step: a worked example from a file.

The steps are those of `ops.attend`, the code of every model, in float64:

    Q = X W_q,  K = M W_k,  V = M W_v        if X is given; M is `memory`, or X
    S = Q Kᵀ · scale                          scale is 1/√d_k unless the file has another
    P = softmax(S), over the allowed keys
    O = P V                                   of each head; the heads side by side, times W_o
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from trifold.errors import CheckpointError, DataError, SettingsError
from trifold.folders import AnyPath, read_text
from trifold.nn import ops
from trifold.nn.attention import merge_heads, split_heads
from trifold.nn.hooks import HookPoint, capture
from trifold.nn.masks import Mask
from trifold.settings import Settings
from trifold.yaml_dialect import parse

MAX_BYTES = 2**18  # of a file
MAX_ROWS, MAX_COLUMNS = 64, 256  # of a matrix
MAX_NUMBER = 1e6  # larger ones leave no digits of the others
Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Row = Annotated[list[Number], Field(min_length=1, max_length=MAX_COLUMNS)]
Matrix = Annotated[list[Row], Field(min_length=1, max_length=MAX_ROWS)]
Labels = Annotated[list[str], Field(max_length=MAX_ROWS)]


class MatrixExample(Settings):
    """The matrices of a file: Q, K and V; or X, with W_q, W_k and W_v, of which a missing one is
    the identity.
    """

    q: Matrix | None = None
    k: Matrix | None = None
    v: Matrix | None = None
    x: Matrix | None = None
    memory: Matrix | None = None
    w_q: Matrix | None = None
    w_k: Matrix | None = None
    w_v: Matrix | None = None
    w_o: Matrix | None = None
    mask: Literal["causal"] | Matrix | None = None
    scale: Number | None = None
    heads: int = Field(1, ge=1, le=16)
    queries: Labels = Field(default_factory=list)
    keys: Labels = Field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """A step: its formula, and a matrix for each head, with the labels of rows and columns."""

    name: str
    formula: str
    matrices: list[Tensor]
    rows: list[str]
    columns: list[str]


class Worked(NamedTuple):
    """All steps of an example, and the weights (H, T, S)."""

    steps: list[Step]
    weights: Tensor
    queries: list[str]
    keys: list[str]


def read_example(path: AnyPath) -> MatrixExample:
    """The example of a file: YAML, JSON, or a CSV table, which is X. Raises DataError for a file
    that cannot be read, SettingsError for wrong keys and values.
    """
    try:
        text = read_text(path, MAX_BYTES)
    except CheckpointError as error:
        reason = error.message.removesuffix("; is this the folder of a model?")
        raise DataError(f"{reason}; name a file with matrices") from None
    if str(path).endswith(".csv"):
        values = _of_table(text, str(path))
    else:
        values = parse(text, str(path), "a file of matrices")
    lower = {str(key).lower(): value for key, value in values.items()}
    if len(lower) < len(values):
        raise SettingsError(f"{path}: a matrix is there twice; upper and lower case are the same")
    for name in ("queries", "keys", "values"):
        if _is_matrix(lower.get(name)):
            raise SettingsError(
                f"{path}: {name}: the matrices are named q, k and v; queries and keys are the "
                "labels of their rows"
            )
    try:
        return MatrixExample.parse(lower)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error.message}") from None


def work_file(path: AnyPath) -> Worked:
    """The steps of a file. Raises DataError and SettingsError with its name."""
    example = read_example(path)
    try:
        return work(example)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error.message}") from None


def _is_matrix(value: Any) -> bool:
    """Whether it has a row."""
    return isinstance(value, list) and any(isinstance(row, list) for row in value)


def _of_table(text: str, place: str) -> dict[str, Any]:
    """The rows of a CSV table as X; a first column without numbers has the names of the rows.
    Raises SettingsError.
    """
    rows = [row for row in csv.reader(text.splitlines()) if row]
    names = list[str]()
    if rows and not all(_is_number(row[0]) for row in rows):
        names = [row[0] for row in rows]
        rows = [row[1:] for row in rows]
    for number, row in enumerate(rows, start=1):
        for cell in row:
            if not _is_number(cell):
                raise SettingsError(f"{place}: row {number}: {cell!r:.40} is not a number")
    return {"x": [[float(cell) for cell in row] for row in rows], "queries": names}


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def work(example: MatrixExample) -> Worked:
    """Every step of the attention. Raises SettingsError for matrices that do not fit together."""
    q, k, v, first = _projected(example)
    queries = _labels("queries", example.queries, len(q))
    keys = _labels("keys", example.keys or (example.queries if len(k) == len(q) else []), len(k))
    heads = [_heads(name, x, example.heads) for name, x in (("Q", q), ("K", k), ("V", v))]
    if q.shape[1] != k.shape[1]:
        raise SettingsError(
            f"Q has {q.shape[1]} columns and K {k.shape[1]}; their product needs as many"
        )
    if len(k) != len(v):
        raise SettingsError(f"K has {len(k)} rows and V {len(v)}; every key needs a value")
    width = heads[0].shape[-1]
    scale = example.scale
    if scale is None:
        scale = 1 / math.sqrt(width)
    allowed = _allowed(example.mask, len(q), len(k))
    points = _Points()
    # `attend` divides by √D.
    scaled = heads[0] * (scale * math.sqrt(width))
    bias = None
    if allowed is not None:
        bias = torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, -math.inf)
        bias = bias[None, None]
    with capture(points) as recorded:
        out = ops.attend(scaled, heads[1], heads[2], Mask(), bias=bias, hooks=points)
    products = heads[0] @ heads[1].transpose(-1, -2)
    name = "1/√d_k" if example.scale is None else f"{scale:g}"
    masked = "" if allowed is None else ", and -∞ where the mask has 0"
    formula = f"Q Kᵀ · {name} = Q Kᵀ · {scale:.4f}{masked}"
    scores = [*recorded["scores"][0]]
    weights = [*recorded["pattern"][0]]
    steps = [
        *first,
        Step("products", "Q Kᵀ", [*products[0]], queries, keys),
        Step("scores", formula, scores, queries, keys),
        Step("weights", "softmax of each row", weights, queries, keys),
        Step("output", "weights · V", [*out[0]], queries, _numbers(out.shape[-1])),
    ]
    merged = merge_heads(out)[0]
    if example.heads > 1:
        steps.append(
            Step("heads", "the outputs side by side", [merged], queries, _numbers(merged.shape[1]))
        )
    if example.w_o is not None:
        final = _product("heads", merged, "W_o", _matrix("W_o", example.w_o))
        steps.append(Step("result", "heads · W_o", [final], queries, _numbers(final.shape[1])))
    return Worked(steps, recorded["pattern"][0], queries, keys)


class _Points(nn.Module):
    """The hook points of `ops.attend`."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = HookPoint()
        self.pattern = HookPoint("pattern")


def _projected(example: MatrixExample) -> tuple[Tensor, Tensor, Tensor, list[Step]]:
    """Q, K and V, and the steps that lead to them. Raises SettingsError without one of them."""
    given = {"Q": example.q, "K": example.k, "V": example.v}
    if example.x is None:
        weights = (example.w_q, example.w_k, example.w_v, example.memory)
        missing = [name for name, matrix in given.items() if matrix is None]
        if missing or any(weight is not None for weight in weights):
            raise SettingsError(
                "give Q, K and V; or X, with W_q, W_k and W_v, of which a missing one is the "
                f"identity; there is no {' and '.join(missing) or 'X'}"
            )
        q, k, v = (_matrix(name, matrix or []) for name, matrix in given.items())
        return q, k, v, []
    both = [name for name, matrix in given.items() if matrix is not None]
    if both:
        raise SettingsError(f"X and {both[0]} are both there; leave one out")
    x = _matrix("X", example.x)
    memory = x
    letter = "X"
    if example.memory is not None:
        memory = _matrix("memory", example.memory)
        letter = "memory"
    projections: list[tuple[str, str, Tensor, Any]] = [
        ("Q", "X", x, example.w_q),
        ("K", letter, memory, example.w_k),
        ("V", letter, memory, example.w_v),
    ]
    results = list[Tensor]()
    steps = list[Step]()
    for name, source, states, weight in projections:
        result = states
        formula = source
        if weight is not None:
            label = f"W_{name.lower()}"
            result = _product(source, states, label, _matrix(label, weight))
            formula = f"{source} · {label}"
        results.append(result)
        steps.append(
            Step(name, formula, [result], _numbers(len(result)), _numbers(result.shape[1]))
        )
    q, k, v = results
    return q, k, v, steps


def _matrix(name: str, rows: Sequence[Sequence[float]]) -> Tensor:
    """Rows as a matrix in float64. Raises SettingsError for rows of different lengths."""
    lengths = [len(row) for row in rows]
    for number, length in enumerate(lengths, start=1):
        if length != lengths[0]:
            raise SettingsError(
                f"{name}: row {number} has {length} numbers, and row 1 has {lengths[0]}"
            )
    return torch.tensor(rows, dtype=torch.float64)


def _product(name: str, x: Tensor, other: str, weight: Tensor) -> Tensor:
    """The product of two matrices. Raises SettingsError if they do not fit."""
    if x.shape[1] != len(weight):
        raise SettingsError(
            f"{name} has {x.shape[1]} columns and {other} {len(weight)} rows; they must be as many"
        )
    return x @ weight


def _heads(name: str, x: Tensor, heads: int) -> Tensor:
    """The columns of a matrix (N, H·D) as heads (1, H, N, D). Raises SettingsError."""
    if x.shape[1] % heads:
        raise SettingsError(
            f"heads: {heads} do not divide the {x.shape[1]} columns of {name}; choose a divisor"
        )
    return split_heads(x[None], x.shape[1] // heads)


def _allowed(mask: Any, queries: int, keys: int) -> Tensor | None:
    """Whether each query may attend to each key (T, S); None for all. Raises SettingsError."""
    if mask is None:
        return None
    if mask == "causal":
        return torch.ones(queries, keys, dtype=torch.bool).tril()
    table = _matrix("mask", mask)
    if table.shape != (queries, keys):
        size = " × ".join(map(str, table.shape))
        raise SettingsError(f"mask: {size} numbers for {queries} queries and {keys} keys")
    if not bool(((table == 0) | (table == 1)).all()):
        raise SettingsError("mask: 1 where a query may attend to a key, and 0 where not")
    allowed = table == 1
    empty = (~allowed.any(1)).nonzero().flatten().tolist()
    if empty:
        raise SettingsError(f"mask: row {empty[0] + 1} allows no key; a query needs one")
    return allowed


def _labels(name: str, given: Sequence[str], count: int) -> list[str]:
    """The names of rows, or their numbers. Raises SettingsError for another number of names."""
    if given and len(given) != count:
        raise SettingsError(f"{name}: {len(given)} names for {count} rows")
    return [*given] or _numbers(count)


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def report(worked: Worked) -> dict[str, Any]:
    """The steps for programs: a list of matrices, one for each head or a single one."""
    steps: list[Mapping[str, Any]] = [
        {
            "name": step.name,
            "formula": step.formula,
            "matrices": [matrix.tolist() for matrix in step.matrices],
        }
        for step in worked.steps
    ]
    return {"queries": worked.queries, "keys": worked.keys, "steps": steps}
