from __future__ import annotations

import pytest

from trifold.dtypes import dtype_name
from trifold.recipe import load_recipe

NAMES = {
    "bf16": "bfloat16",
    "BF16": "bfloat16",
    "torch.bfloat16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "half": "float16",
    "fp16": "float16",
    "double": "float64",
    "auto": "auto",
    "fp8": "fp8",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_other_programs(name):
    assert dtype_name(name) == NAMES[name]


def test_precision_of_a_recipe():
    assert load_recipe("smoke", ["train.precision=bf16"]).train.precision == "bfloat16"
