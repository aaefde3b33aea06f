"""Write a random model of a setting in bf16: python random_model.py NAME FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from setting import MODELS

from trifold.hub import save_model
from trifold.hub.families import FAMILIES
from trifold.nn import Transformer


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    keys = dict(MODELS[name] or {})
    family = keys.pop("model_type")
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    model = Transformer(FAMILIES[family].read(keys))
    model.family = family
    save_model(folder, model)
    print(json.dumps({"parameters": sum(each.numel() for each in model.parameters())}))


if __name__ == "__main__":
    main()
