"""Models whose queries attend to some of the keys: global tokens, blocks, segments."""

from typing import Any

import pytest
import torch
from torch import Tensor

from trifold.errors import SettingsError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.masks import Mask
from trifold.nn.variants.global_tokens import find_globals
from trifold.nn.variants.recurrence import Segment
from trifold.nn.variants.summaries import Summaries, with_summaries

SMALL: dict[str, Any] = {
    "vocab_size": 30, "d_model": 32, "n_heads": 4, "n_layers": 3, "d_ff": 48, "max_positions": 64, "dropout": 0.0,
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    "global": {"sliding_window": 4, "global_tokens": "first"},
    "projections": {
        "sliding_window": 4,
        "global_tokens": "question",
        "global_projections": True,
        "n_layers": 2,
    },
    "windows": {
        "sliding_window": 7,
        "window_pattern": ("local", 3, "global"),
        "global_tokens": "first",
    },
    "projections, windows": {
        **{"sliding_window": 3, "window_pattern": ("local", 6, 9)},
        **{"global_tokens": "first", "global_projections": True},
    },
    "summaries": {
        **{
            "sliding_window": 4,
            "summary_block": 3,
            "positions": "relative",
            "norm": "rms",
            "norm_placement": "pre",
        },
        **{"relative_buckets": 8, "relative_distance": 12, "n_layers": 2},
    },
    "summaries, global tokens": {
        "sliding_window": 4,
        "summary_block": 10,
        "global_tokens": "first",
    },
    "blocks": {"sparse_blocks": {"size": 4, "random": 1}},
    "first block": {"sparse_blocks": {"size": 4, "random": 2, "only_in_training": True}},
    "reversible": {
        "sparse_blocks": {"size": 4, "random": 1},
        "residual": "reversible",
        "norm_placement": "pre",
    },
}
SEGMENTS = {
    "shape": "decoder",
    "positions": "relative-sinusoidal",
    "recurrence": {"size": 6, "reach": 4},
}


def model(**options: Any) -> Transformer:
    torch.manual_seed(0)
    return Transformer(ModelConfig(**SMALL | options)).eval()


def rows(*lengths: int) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 30, (len(lengths), max(lengths)), generator=generator)
    tokens[:, 3] = 2
    return Inputs(tokens, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])


def alone(inputs: Inputs, row: int) -> Inputs:
    assert inputs.attend is not None
    return Inputs(inputs.tokens[row : row + 1, : int(inputs.attend[row].sum())])


def test_only_global_tokens_carry_information_across_the_text() -> None:
    inputs = rows(60)
    for tokens, carries in (("none", False), ("first", True)):
        encoder = model(shape="encoder", sliding_window=3, global_tokens=tokens)
        before, changed = encoder(inputs), Inputs(inputs.tokens.clone())
        changed.tokens[0, 50] = 7 + (inputs.tokens[0, 50] == 7)
        assert bool((before[0, 30] != encoder(changed)[0, 30]).any()) == carries


def test_inputs_choose_global_tokens() -> None:
    encoder, inputs = model(shape="encoder", sliding_window=4, global_tokens="first"), rows(40)
    default = encoder(inputs)
    inputs.globals = torch.arange(40)[None] == 0
    assert torch.equal(default, encoder(inputs))
    inputs.globals = torch.arange(40)[None] == 9
    assert not torch.allclose(default, encoder(inputs))


@pytest.mark.parametrize("kind", ["first", "question", "answer"])
def test_padding_on_the_left_is_never_global(kind: str) -> None:
    encoder = model(shape="encoder", **ENCODERS["projections"] | {"global_tokens": kind})
    row = alone(rows(30), 0)
    row.tokens[0, 20] = 2
    padded = Inputs(torch.zeros(1, 37, dtype=torch.int64), torch.arange(37)[None] >= 7)
    padded.tokens[:, 7:] = row.tokens
    torch.testing.assert_close(encoder(padded)[:, 7:], encoder(row), atol=1e-5, rtol=1e-4)
    found = find_globals(kind, row, encoder.config.eos_id)
    assert found[0].nonzero()[:, 0].tolist() == {"first": [0], "question": [0, 1, 2]}.get(
        kind, [*range(21, 30)]
    )


def test_global_tokens_have_their_own_projections() -> None:
    encoder, inputs = model(shape="encoder", **ENCODERS["projections"] | {"n_layers": 1}), rows(40)
    before = encoder(inputs)
    layer = encoder.encoder.blocks[0].self_attention.sublayer
    torch.nn.init.normal_(layer.global_v_proj.weight)
    # In the last layer, others do not read them.
    assert torch.equal(before[:, 3:], encoder(inputs)[:, 3:])
    assert not torch.allclose(before[:, :3], encoder(inputs)[:, :3])


def test_tokens_after_the_last_whole_block_belong_to_it() -> None:
    keys = torch.arange(8) < torch.tensor([[7], [4], [2]])
    mask = with_summaries(Mask(keys), 3, 8, torch.device("cpu"))
    summaries = mask.rule(Summaries)
    assert mask.keys is not None and summaries is not None
    rows, none = [[0, 0, 0, 1, 1, 1, 1, -1], [0, 0, 0, 0, *[-1] * 4], [-1] * 8], [0, 1]
    assert summaries.blocks.tolist() == [row + none for row in rows]
    assert mask.keys[:, 8:].tolist() == [[True, True], [True, False], [False, False]]
    x = torch.arange(24.0).view(3, 8, 1)
    assert summaries.sums(x)[..., 0].tolist() == [[3, 18], [38, 0], [0, 0]]


# --- segments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(23,), (40, 17)])
def test_recurrence_equals_its_mask(lengths: tuple[int, ...]) -> None:
    decoder, inputs = model(**SEGMENTS), rows(*lengths)
    recurrent = decoder(inputs)
    with torch.no_grad():
        masked = decoder(inputs)
    torch.testing.assert_close(
        recurrent[inputs.attend], masked[inputs.attend], atol=1e-5, rtol=1e-4
    )


def test_recurrence_reads_padding_anywhere() -> None:
    decoder, inputs = model(**SEGMENTS), rows(20)
    attend = torch.ones(1, 25, dtype=torch.bool)
    attend[0, [0, 1, 2, 9, 24]] = False
    tokens = torch.zeros(1, 25, dtype=torch.int64).masked_scatter(attend, inputs.tokens)
    torch.testing.assert_close(decoder(Inputs(tokens, attend))[attend], decoder(inputs)[0])


def test_gradients_end_at_segments() -> None:
    decoder, inputs = model(**SEGMENTS), rows(18)
    captured: list[Tensor] = []
    decoder.decoder_embeddings.register_forward_hook(lambda *call: captured.append(call[-1]))
    hidden = decoder(inputs)
    (gradient,) = torch.autograd.grad(hidden[0, 14].sum() + hidden[0, 14].square().sum(), captured)
    reached = gradient[0].abs().sum(-1) > 0
    assert reached.tolist() == [12 <= token <= 14 for token in range(18)]
    # The values reach farther: four keys before the segment, in each layer.
    with torch.no_grad():
        before = decoder(inputs)[0, 14]
        for token, reaches in ((3, True), (11, True)):
            changed = inputs.tokens.clone()
            changed[0, token] = 7 + (changed[0, token] == 7)
            assert bool((decoder(Inputs(changed))[0, 14] != before).any()) == reaches


def test_a_dense_mask_of_segments() -> None:
    allowed = Mask(causal=True, rules=(Segment(3, 1),)).dense(7, 7, torch.device("cpu"))
    assert allowed is not None
    visible = [[key for key in range(7) if allowed[0, 0, query, key]] for query in range(7)]
    assert visible == [[0], [0, 1], [0, 1, 2], [2, 3], [2, 3, 4], [2, 3, 4, 5], [5, 6]]


LATENT = {"positions": "none", "latent": {"width": 8, "d_rotary": 2, "d_value": 8}}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"shape": "encoder", "global_tokens": "first"}, "sliding_window"),
        ({"shape": "encoder", "global_projections": True}, "sliding_window"),
        ({"shape": "decoder", "sparse_blocks": {}}, "shape"),
        (
            {"shape": "encoder", "sparse_blocks": {}, "attention": "elu"},
            "sparse_blocks excludes attention: elu",
        ),
        ({"shape": "encoder", "sparse_blocks": {}} | LATENT, "sparse_blocks excludes latent"),
        ({"shape": "decoder", "sliding_window": 3, "global_tokens": "first"}, "shape"),
        (
            {
                "shape": "encoder",
                "sliding_window": 3,
                "global_projections": True,
                "positions": "alibi",
            },
            "positions",
        ),
        (
            {
                "shape": "encoder",
                "sliding_window": 3,
                "global_projections": True,
                "qk_norm": "head",
            },
            "qk_norm",
        ),
        ({"shape": "encoder", "summary_block": 4}, "sliding_window"),
        (
            {"shape": "encoder", "summary_block": 4, "sliding_window": 3, "positions": "rotary"},
            "no position",
        ),
        ({"shape": "decoder", "recurrence": {"size": 4, "reach": 2}}, "positions"),
        (SEGMENTS | {"experts": {"count": 2, "per_token": 1}}, "recurrence excludes"),
        (
            {
                "shape": "encoder",
                "sparse_blocks": {},
                "positions": "relative-sinusoidal",
                "query_stream": True,
            },
            "sparse_blocks excludes .*query_stream",
        ),
    ],
)
def test_contradictory_options_are_errors(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        ModelConfig(**options)


@pytest.mark.parametrize(("layers", "reach"), [(3, 0), (1, 4)])
def test_gradients_of_recurrence_equal_those_of_its_mask(
    layers: int, reach: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory in all layers; of the only layer, whose memory are embeddings, but not those
    of the embeddings.
    """
    options = SEGMENTS | {"n_layers": layers, "recurrence": {"size": 6, "reach": reach}}
    decoder, inputs, found = model(**options).double(), rows(23, 14), []
    names, weights = zip(*decoder.named_parameters(), strict=True)
    for _ in range(2):
        hidden = decoder(inputs)[inputs.attend]
        found.append(
            torch.autograd.grad(
                hidden[:, 0].sum() + hidden.pow(3).sum(), weights, allow_unused=True
            )
        )
        monkeypatch.setattr(torch, "is_grad_enabled", lambda: False)
    monkeypatch.undo()
    for name, ours, masked in zip(names, *found, strict=True):
        if ours is not None and (layers == 3 or "embeddings" not in name):
            torch.testing.assert_close(ours, masked, msg=name)
