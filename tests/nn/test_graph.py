"""Attention along the edges of a graph."""

from __future__ import annotations

import pytest
import torch
from tests.models import add_noise
from torch import Tensor

from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.attention import Attention
from trifold.nn.packing import Packing
from trifold.nn.variants.graph import tree_edges

HEADS = [2, 0, 2, 5, 3]  # of the words of a sentence; the second is the root


def model_of(**values: object) -> Transformer:
    sizes = {"shape": "encoder", "positions": "none", "d_model": 12, "n_heads": 3, "n_layers": 2}
    config = {"d_ff": 8, "vocab_size": 20, "dropout": 0.0}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return add_noise(Transformer(ModelConfig.parse(sizes | config | values)), 0.3).double()


def edges_of(rows: int, by_head: bool) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (rows, 3, 5, 5) if by_head else (rows, 5, 5)
    return torch.rand(shape, generator=generator) < 0.3


@pytest.mark.parametrize("by_head", [False, True])
def test_a_state_is_a_mean_over_the_neighbours(by_head: bool) -> None:
    """h_i = W_o ‖_h Σ_j a_ij V_h x_j with j in the neighbours of i and i, node by node."""
    model, edges = model_of(), edges_of(1, by_head)
    layer = model.encoder.blocks[0].self_attention.sublayer
    assert isinstance(layer, Attention)
    seen: list[tuple[Tensor, Tensor]] = []
    layer.register_forward_hook(lambda _, inputs, out: seen.append((inputs[0], out)))
    with torch.no_grad():
        model(Inputs(torch.arange(5)[None] + 3, edges=edges))
    x, out = seen[0][0][0], seen[0][1][0]
    for i in range(5):
        heads = []
        for head in range(3):
            own = slice(4 * head, 4 * head + 4)
            table = edges[0, head] if by_head else edges[0]
            near = [j for j in range(5) if table[i, j] or i == j]
            q = layer.q_proj.weight[own] @ x[i]
            scores = torch.stack([q @ (layer.k_proj.weight[own] @ x[j]) / 2 for j in near])
            values = torch.stack([layer.v_proj.weight[own] @ x[j] for j in near])
            heads.append(scores.softmax(0) @ values)
        expected = layer.o_proj.weight @ torch.cat(heads)
        torch.testing.assert_close(out[i], expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_permuted_nodes_have_permuted_states() -> None:
    """Without positions, a Transformer is a graph network."""
    model, edges, tokens = model_of(), edges_of(1, False), torch.arange(5)[None] + 3
    order = torch.tensor([3, 0, 4, 1, 2])
    states = model(Inputs(tokens, edges=edges))
    permuted = model(Inputs(tokens[:, order], edges=edges[:, order][:, :, order]))
    torch.testing.assert_close(permuted, states[:, order], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(model(Inputs(tokens)), states)


@torch.no_grad()
def test_padded_and_packed_graphs_are_those_alone() -> None:
    model, edges = model_of(positions="learned"), edges_of(2, False)
    tokens = torch.arange(10).view(2, 5) + 3
    alone = [model(Inputs(tokens[:1], edges=edges[:1]))]
    alone.append(model(Inputs(tokens[1:, :3], edges=edges[1:, :3, :3])))
    attend = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    padded = model(Inputs(tokens, attend, edges=edges))
    torch.testing.assert_close(padded[attend], torch.cat(alone, 1)[0], rtol=1e-12, atol=1e-12)
    packing = Packing.of(torch.tensor([5, 3]))
    row = torch.zeros(1, packing.length, dtype=torch.long)
    row[0, :8] = tokens[attend]
    packed = model(Inputs(row, packing=packing, edges=edges))[0, :8]
    torch.testing.assert_close(packed, padded[attend], rtol=1e-12, atol=1e-12)


def test_a_tree_is_read_from_the_heads_of_its_words() -> None:
    pairs = {(0, 1), (2, 1), (3, 4), (4, 2)}
    assert {tuple(pair) for pair in tree_edges(HEADS, both_ways=False).nonzero().tolist()} == pairs
    both = pairs | {(j, i) for i, j in pairs}
    assert {tuple(pair) for pair in tree_edges(HEADS).nonzero().tolist()} == both


def test_what_cannot_follow_edges() -> None:
    with pytest.raises(ValueError, match="word 2 has the head 4, but the sentence has 3 words"):
        tree_edges([0, 4, 1])
    inputs = Inputs(torch.arange(5)[None] + 3, edges=edges_of(1, False))
    for values, message in (
        ({"attention": "elu"}, "attention: elu has no weight for each pair of tokens"),
        ({"sliding_window": 2, "summary_block": 2}, "edges are between tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            model_of(**values)(inputs)
