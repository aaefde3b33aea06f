from __future__ import annotations

import torch

from trifold.hub.lazy import Aliased, Each, Made


def test_made_when_asked_for_and_neighbours_once() -> None:
    made: list[str] = []

    def pair() -> list[torch.Tensor]:
        made.append("pair")
        return [torch.tensor(1), torch.tensor(2)]

    tensors = Made({("a", "b"): pair, ("c",): lambda: [torch.tensor(3)]})
    assert list(tensors) == ["a", "b", "c"] and len(tensors) == 3 and not made
    assert {name: int(tensor) for name, tensor in tensors.items()} == {"a": 1, "b": 2, "c": 3}
    assert made == ["pair"]
    assert int(tensors["a"]) == 1 and made == ["pair", "pair"]


def test_other_names_and_every_tensor_changed() -> None:
    tensors = {"a": torch.tensor(1), "b": torch.tensor(2)}
    changed = Each(
        Aliased(tensors, {"x": "b", "y": "b"}), lambda name, tensor: tensor * (2 if name == "x" else 3)
    )
    assert {name: int(tensor) for name, tensor in changed.items()} == {"x": 4, "y": 6}
    assert len(changed) == 2
