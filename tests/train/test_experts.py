"""Training of models with experts: the losses of routers do not depend on how a batch is split, and
do their work.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.runs import overrides, values_of
from torch import Tensor

import trifold
from trifold.errors import SettingsError
from trifold.nn import Inputs
from trifold.nn.variants.experts import record_routers
from trifold.objectives.causal import CausalSettings
from trifold.recipe import load_recipe
from trifold.train.data import load_data
from trifold.train.device import Machine
from trifold.train.initial_weights import new_model
from trifold.train.monitor import View
from trifold.train.trainer import Trainer

CPU = torch.device("cpu")
MODEL = {
    "shape": "decoder", "positions": "rotary", "norm": "rms", "norm_placement": "pre", "gated": True,
    "activation": "silu", "feed_forward_bias": False, "scale_embeddings": False, "tie_lm_head": False,
    "experts": {"count": 4, "per_token": 2, "d_ff": 32}, "n_layers": 2, "dropout": 0.0,
}  # fmt: skip
CAUSAL: dict[str, Any] = {"task__kind": "causal", "task__best_by": "loss", "data__field": "target"}
CAUSAL |= {f"model__{key}": value for key, value in MODEL.items()}
DEEPSEEK = {"count": 4, "per_token": 2, "d_ff": 16, "shared": 1, "score": "sigmoid", "groups": 2}
DEEPSEEK |= {"groups_per_token": 1, "correction": True, "dense_layers": 1}
MODELS: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "deepseek": {
        "model__experts": DEEPSEEK,
        "model__latent": {"width": 8, "d_rotary": 4, "d_value": 8},
        "model__dropout": 0.2,
    },
    "one block for both layers": {"model__block_of_layer": [0, 0]},
}
WEIGHTS = {"task__balance_loss": 0.5, "task__router_z_loss": 0.2}


@pytest.fixture
def gradient_of(tmp_path):
    """The gradient of an update with the rows between the given places, a micro-batch each."""

    def gradient_of(
        *places: int, workers: int = 1, compiles: bool = False, **changes: Any
    ) -> Tensor:
        data = load_data(
            load_recipe("smoke", overrides(**CAUSAL | WEIGHTS | changes)), tmp_path, View()
        )
        machine = Machine(CPU, torch.float32, workers, compiles=compiles)
        trainer = Trainer(new_model(data), data.objective, data.recipe.train, machine)
        received: list[Tensor] = []
        trainer.optimizer.step = lambda gradient, rate: received.append(gradient.clone())
        examples = data.examples(0)
        rows = [np.arange(a, b) for a, b in pairwise(places)]
        trainer.update([data.objective.batch(examples, each) for each in rows], 1)
        trainer.close()
        return received[0]

    return gradient_of


@pytest.mark.slow
def test_splitting_a_batch_does_not_change_the_gradient(gradient_of):
    whole = gradient_of(0, 13)
    for places in ((0, 1, 13), (0, 6, 9, 13)):
        for workers in (1, 2):
            torch.testing.assert_close(
                gradient_of(*places, workers=workers), whole, rtol=1e-4, atol=1e-6
            )
    for key in WEIGHTS:
        assert (gradient_of(0, 13, **{key: 0.0}) - whole).norm() > 0.01 * whole.norm()


@pytest.mark.slow
@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_recomputed_blocks_do_not_change_bits(gradient_of, changes):
    places = (0, 6, 13)
    assert torch.equal(
        gradient_of(*places, **changes, train__recompute="blocks"), gradient_of(*places, **changes)
    )


def test_blocks_with_experts_are_not_compiled(gradient_of):
    assert torch.equal(gradient_of(0, 4, compiles=True), gradient_of(0, 4))


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_the_terms_follow_their_definitions(tmp_path, changes):
    recipe = load_recipe("smoke", overrides(**CAUSAL | WEIGHTS | changes))
    data = load_data(recipe, tmp_path, View())
    objective, model = data.objective, new_model(data).eval()
    batch = objective.batch(data.examples(0), np.arange(5))
    terms, lengths = objective.loss(model, batch), batch.inputs.packing.starts.diff().tolist()
    layers = 1 if "model__experts" in changes else 2
    assert {name: term.count for name, term in terms.items()} == objective.counts(batch)
    assert objective.counts(batch) == {
        "tokens": sum(lengths),
        "balance": 5,
        "router_z": layers * sum(lengths),
    }
    assert (terms["balance"].weight, terms["router_z"].weight) == (0.5, 0.2)
    balance, z = torch.zeros(()), torch.zeros(())
    for row in batch.inputs.tokens[0, : sum(lengths)].split(lengths):
        with record_routers(model) as calls:
            model(Inputs(row[None]))
        assert sum(map(len, calls)) == layers
        for logits, _, _, chosen in (call.out for each in calls for call in each):
            shares = torch.bincount(chosen.flatten(), minlength=4) / chosen.numel()
            scores = logits.sigmoid() if "model__experts" in changes else logits.exp()
            balance = balance + 4 * (shares * (scores / scores.sum(-1, keepdim=True)).mean(0)).sum()
            z = z + logits.exp().sum(-1).log().square().sum()
    torch.testing.assert_close(terms["balance"].sum, balance)
    torch.testing.assert_close(terms["router_z"].sum, z)
    alone = replace(objective.routers, weights={})
    assert alone.run(model, batch.inputs)[1] == alone.counts(batch.inputs.packing) == {}


def test_default_weights_apply_to_experts_only(tmp_path):
    for changes, expected in (
        ({}, {"tokens", "balance", "router_z"}),
        ({"task__balance_loss": 0}, {"tokens", "router_z"}),
        ({"model__experts": None}, {"tokens"}),
        ({"model__experts": DEEPSEEK | {"dense_layers": 2}}, {"tokens"}),
    ):
        data = load_data(load_recipe("smoke", overrides(**CAUSAL | changes)), tmp_path, View())
        assert (
            set(data.objective.counts(data.objective.batch(data.examples(0), np.arange(3))))
            == expected
        )
    routers = CausalSettings().router_loss(data.config.model_copy(update={"experts": None}))
    assert (routers.weights, routers.layers) == ({}, 0)


@pytest.mark.parametrize("key", ["balance_loss", "router_z_loss"])
def test_a_weight_without_experts_is_an_error(key):
    with pytest.raises(
        SettingsError, match=rf"model.experts: missing, and task\.{key} needs layers with experts"
    ):
        load_recipe("smoke", overrides(**CAUSAL | {f"task__{key}": 0.1, "model__experts": None}))


@pytest.mark.slow
def test_a_small_language_model_trains_generates_and_is_saved(run, tmp_path):
    changes = CAUSAL | {"train__steps": 30, "train__validate_every": 30, "train__save_every": 30}
    outcome = run(**changes)
    losses = [loss for _, loss in values_of(tmp_path / "run", "train/loss")]
    assert outcome.finished and losses[-1] < losses[0] - 0.5
    assert json.loads((tmp_path / "run/model/config.json").read_text())["model_type"] == "mixtral"
    pipe = trifold.load(tmp_path / "run")
    prompt = torch.tensor([[1, 5, 6, 7]])
    assert pipe.generate_tokens(prompt, max_new_tokens=12, do_sample=False) == [
        _uncached(pipe.model, prompt, 12)
    ]
    pipe.save(tmp_path / "copy")
    again = trifold.load(tmp_path / "copy")
    assert again.config == pipe.config
    assert torch.equal(again.model(Inputs(prompt)), pipe.model(Inputs(prompt)))


@torch.no_grad()
def _uncached(model: Any, tokens: Tensor, steps: int) -> list[int]:
    """Greedy tokens, each from the whole text before it, up to the end token; padding is not
    generated.
    """
    found: list[int] = []
    while len(found) < steps:
        logits = model.head_outputs(Inputs(tokens))["lm"][0, -1]
        logits[model.config.pad_id] = -torch.inf
        if (best := int(logits.argmax())) == model.config.eos_id:
            break
        found.append(best)
        tokens = torch.cat([tokens, torch.tensor([[best]])], 1)
    return found


@pytest.mark.slow
def test_the_balance_loss_makes_shares_more_equal(run, tmp_path):
    changes = CAUSAL | {"train__steps": 40, "train__validate_every": 40, "train__save_every": 40}
    changes |= {"model__experts": {"count": 4, "per_token": 1, "d_ff": 16}}
    spread = {}
    for weight in (0.0, 2.0):
        run(f"run-{weight}", **changes | {"task__balance_loss": weight})
        data = load_data(load_recipe(tmp_path / f"run-{weight}" / "recipe.yaml"), tmp_path, View())
        batch, model = (
            data.objective.batch(data.examples(0), np.arange(60)),
            trifold.load(tmp_path / f"run-{weight}").model,
        )
        with torch.no_grad(), record_routers(model) as calls:
            model(batch.inputs)
        real = batch.inputs.packing.n_real
        shares = [
            torch.bincount(each[0].out.chosen[:real, 0], minlength=4) / real for each in calls
        ]
        spread[weight] = float(torch.stack(shares).std(1).mean())
    assert spread[2.0] < 0.5 * spread[0.0], spread


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, MODELS["deepseek"] | {"train__recompute": "blocks", "train__workers": 2}]
)
def test_a_resumed_run_is_bit_identical(assert_resumable, changes):
    assert_resumable([5], **CAUSAL | changes)
