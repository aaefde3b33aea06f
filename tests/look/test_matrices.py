"""Attention on chosen matrices equals the equation in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trifold.errors import TrifoldError
from trifold.look.matrices import MatrixExample, read_example, work, work_file

IDENTITY = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


def steps_of(**values):
    return {step.name: step for step in work(MatrixExample.parse(values)).steps}


def test_the_weights_of_a_known_example_with_the_right_digits():
    """For scores 0, 1/√3, 0 a popular text prints .2119 .5762 .2119, which lacks the scale."""
    weights = steps_of(q=IDENTITY, k=IDENTITY, v=IDENTITY)["weights"].matrices[0]
    assert [round(value, 4) for value in weights[1].tolist()] == [0.2645, 0.4711, 0.2645]
    unscaled = steps_of(q=IDENTITY, k=IDENTITY, v=IDENTITY, scale=1.0)["weights"].matrices[0]
    assert [round(value, 4) for value in unscaled[1].tolist()] == [0.2119, 0.5761, 0.2119]


def test_the_output_of_a_known_example():
    two = [[1.0, 0.0], [0.0, 1.0]]
    output = steps_of(q=two, k=two, v=[[1.0, 2.0], [3.0, 4.0]])["output"].matrices[0]
    expected = [[1.6605, 2.6605], [2.3395, 3.3395]]
    np.testing.assert_allclose(output.numpy(), expected, atol=5e-5)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_every_step_is_the_equation(heads, mask):
    random = np.random.default_rng(0)
    x = random.normal(size=(5, 6))
    w_q, w_k, w_v, w_o = (random.normal(size=(6, 4)) for _ in range(4))
    w_o = random.normal(size=(4, 3))
    values = {"x": x, "w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
    found = steps_of(
        **{name: value.tolist() for name, value in values.items()}, heads=heads, mask=mask
    )
    outputs = []
    width = 4 // heads
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        q, k, v = (x @ w[:, part] for w in (w_q, w_k, w_v))
        scores = q @ k.T / np.sqrt(width)
        if mask:
            scores = np.where(np.tri(5) > 0, scores, -np.inf)
        weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        outputs.append(weights @ v)
        for name, expected in (("scores", scores), ("weights", weights), ("output", outputs[-1])):
            np.testing.assert_allclose(found[name].matrices[head], expected, rtol=1e-12)
        np.testing.assert_allclose(found["products"].matrices[head], q @ k.T, rtol=1e-12)
    result = found["result"].matrices[0]
    assert result.dtype == torch.float64
    np.testing.assert_allclose(result, np.concatenate(outputs, 1) @ w_o, rtol=1e-12)


def test_a_memory_gives_keys_and_values():
    found = steps_of(x=[[1.0, 2.0]], memory=[[3.0, 0.0], [0.0, 1.0]])
    assert found["products"].matrices[0].tolist() == [[3.0, 2.0]]
    assert (found["K"].formula, found["output"].matrices[0].shape) == ("memory", (1, 2))


def test_a_table_is_x_with_the_names_of_its_rows(tmp_path):
    (tmp_path / "x.csv").write_text("a,1,0\nb,0,2.5\n")
    example = read_example(tmp_path / "x.csv")
    assert (example.x, example.queries) == ([[1.0, 0.0], [0.0, 2.5]], ["a", "b"])
    assert work(example).keys == ["a", "b"]


ONE = "K: [[1, 2]]\nV: [[1]]"
ERRORS = {
    "a list": ("[1, 2]", "a file of matrices is a mapping of keys to values"),
    "a number": ("Q: 1", "q: input should be a valid list, got 1"),
    "uneven": (f"Q: [[1, 2], [3]]\n{ONE}", "Q: row 2 has 1 numbers, and row 1 has 2"),
    "empty": (f"Q: []\n{ONE}", "q: list should have at least 1 item"),
    "no V": ("Q: [[1]]\nK: [[1]]", "of which a missing one is the identity; there is no V"),
    "both": ("X: [[1]]\nV: [[1]]", "X and V are both there; leave one out"),
    "a weight without X": (f"Q: [[1, 2]]\n{ONE}\nW_q: [[1]]", "there is no X"),
    "not finite": (f"Q: [[.nan, 1]]\n{ONE}", "input should be a finite number, got nan"),
    "too large": (f"Q: [[1.0e7, 1]]\n{ONE}", "less than or equal to 1000000"),
    "text": (f"Q: [[a, 1]]\n{ONE}", "input should be a valid number, got 'a'"),
    "unknown": ("Z: 3", "z: unknown key; known keys: heads, k, keys"),
    "long names": ("queries: [[1]]", "queries: the matrices are named q, k and v"),
    "values": ("q: [[1]]\nk: [[1]]\nvalues: [[1]]", "values: the matrices are named"),
    "twice": ("q: [[1]]\nQ: [[1]]", "a matrix is there twice"),
    "other width": (f"Q: [[1]]\n{ONE}", "Q has 1 columns and K 2; their product needs as many"),
    "other values": ("Q: [[1]]\nK: [[1]]\nV: [[1], [2]]", "K has 1 rows and V 2"),
    "other weight": ("X: [[1, 2]]\nW_q: [[1]]", "X has 2 columns and W_q 1 rows"),
    "heads": ("X: [[1, 2, 3]]\nheads: 2", "heads: 2 do not divide the 3 columns of Q"),
    "mask of 0": ("X: [[1]]\nmask: [[0]]", "mask: row 1 allows no key"),
    "mask of 2": ("X: [[1]]\nmask: [[2]]", "mask: 1 where a query may attend to a key, and 0"),
    "mask of another size": ("X: [[1]]\nmask: [[1, 1]]", "mask: 1 × 2 numbers for 1 queries"),
    "names": ("X: [[1]]\nqueries: [a, b]", "queries: 2 names for 1 rows"),
    "many rows": (f"X: [{'[1],' * 65}]", "x: list should have at most 64 items"),
    "broken": ("Q: [[1", "not valid YAML"),
    "alias bomb": ("a: &a [1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a]\n" + "".join(f"c{n}: [*b,*b,*b,*b,*b]\n" for n in range(200)), "too many keys and values"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_name_the_file_and_the_matrix(tmp_path, text, message):
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(TrifoldError) as error:
        work_file(file)
    assert message in error.value.message and error.value.message.startswith(str(file))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff", "byte 0 is not UTF-8"), (b"X: 1 " * 60_000, "too large"), (None, "no such file")],
)
def test_files_that_cannot_be_read(tmp_path, content, message):
    file = tmp_path / "m.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TrifoldError, match=message):
        work_file(file)


def test_a_table_with_text_is_an_error(tmp_path):
    (tmp_path / "x.csv").write_text("a,1,x\n")
    with pytest.raises(TrifoldError, match="row 1: 'x' is not a number"):
        work_file(tmp_path / "x.csv")
