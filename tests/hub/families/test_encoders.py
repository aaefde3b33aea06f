"""ModernBERT, EuroBERT, ELECTRA, MPNet and DeBERTa: published configs, and tensors of pretrained
models.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.hub.checkpoints import edit, equal, read, write
from tests.hub.parity import make
from tests.models import TWO_LAYERS

from trifold.costs import count_parameters
from trifold.hub import load_model, read_config, save_model
from trifold.hub.families import FAMILIES
from trifold.nn import Inputs, ModelConfig
from trifold.nn.variants.convolution import Convolution

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

Saved = Callable[..., Path]
PUBLISHED = Path(__file__).parents[1] / "published"
# Parameters of the reference; tied tensors count once.
PARAMETERS = {
    "modernbert-base": 149_655_232,
    "eurobert-210m": 310_266_624,
    "electra-small-discriminator": 13_549_057,
    "electra-small-generator": 13_546_682,
    "mpnet-base": 109_518_527,
    "deberta-v3-base": 183_831_552,
    "deberta-v2-xlarge": 884_593_152,
}
# Keys of a reference config that do not describe the model, or that are derived from others.
OTHER = {
    *("dtype", "transformers_version", "use_cache", "initializer_range", "classifier_pooling"),
    *(
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "max_relative_positions",
        "cls_token_id",
        "sep_token_id",
    ),
    *("mask_token_id", "pos_att_type", "architectures"),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_published_config_is_read_and_written(name: str, tmp_path: Path) -> None:
    values = json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    config = read_config(tmp_path)
    family = FAMILIES[values["model_type"]]
    written = {"architectures": [family.architecture(config)], **family.write(config)}
    assert family.fits(config) and family.read(written) == config
    reference = getattr(transformers, family.architecture(config))
    with torch.device("meta"):
        theirs = reference(reference.config_class.from_dict(values))
    expected = sum(p.numel() for p in theirs.parameters())
    assert count_parameters(config) == expected == PARAMETERS[name]
    before, after = (
        reference.config_class.from_dict({**each}).to_dict() for each in (values, written)
    )
    for key in reference.config_class().to_dict().keys() - OTHER:
        assert before[key] == after[key], key


def test_windows_and_bases_of_modernbert() -> None:
    config = FAMILIES["modernbert"].read(
        json.loads((PUBLISHED / "modernbert-base.json").read_text())
    )
    assert [config.window(layer) for layer in range(4)] == [None, 65, 65, None]
    assert (config.rotary_theta, config.rotary_local_theta) == (160_000.0, 10_000.0)


def test_a_window_of_one_token_is_written() -> None:
    family = FAMILIES["modernbert"]
    config = family.read({"local_attention": 1})
    assert config.window(1) == family.write(config)["local_attention"] == 1 and family.fits(config)


def test_distances_of_deberta_v3() -> None:
    config = FAMILIES["deberta-v2"].read(
        json.loads((PUBLISHED / "deberta-v3-base.json").read_text())
    )
    assert (config.relative_buckets, config.relative_distance, config.relative_log) == (
        512,
        512,
        True,
    )
    assert config.relative_shared and config.relative_norm and not config.learned_positions


def test_the_convolution_of_deberta_v2() -> None:
    family, values = (
        FAMILIES["deberta-v2"],
        json.loads((PUBLISHED / "deberta-v2-xlarge.json").read_text()),
    )
    config = family.read(values)
    assert config.convolution == Convolution(kernel=3, groups=1, activation="gelu")
    written = {"conv_kernel_size": 3, "conv_groups": 1, "conv_act": "gelu"}
    assert written.items() <= family.write(config).items()
    without = {key: value for key, value in values.items() if key != "conv_kernel_size"}
    for plain in (without, values | {"conv_kernel_size": 0}, values | {"conv_kernel_size": -1}):
        assert (found := family.read(plain)).convolution is None
        assert not written.keys() & family.write(found).keys()
    del values["conv_act"]
    assert family.read(values).convolution == Convolution(activation="tanh")


@pytest.mark.parametrize("left", [False, True])
def test_the_convolution_reads_no_padding(left: bool, tmp_path: Path) -> None:
    """As in the reference, on either side; and each row alone."""
    model = make("deberta-v2", "ForMaskedLM", conv_kernel_size=5, conv_groups=2)
    model.save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path)
    tokens = torch.randint(6, 38, (3, 9), generator=torch.Generator().manual_seed(0))
    lengths, columns = torch.tensor([9, 2, 5])[:, None], torch.arange(9)
    real = columns >= 9 - lengths if left else columns < lengths
    with torch.no_grad():
        expected = model(tokens, attention_mask=real.long()).logits
        got = ours.head_outputs(Inputs(tokens, real))["lm"]
        torch.testing.assert_close(got[real], expected[real], rtol=0, atol=1e-4)
        for row in range(3):
            alone = ours.head_outputs(Inputs(tokens[row : row + 1, real[row]]))["lm"]
            torch.testing.assert_close(alone[0], got[row, real[row]], rtol=0, atol=1e-4)


def test_deberta_has_two_names_of_its_language_model_head(tmp_path: Path) -> None:
    """Version 3 is published with the names that `legacy: false` selects, and without that key."""
    model = make("deberta-v2", "ForMaskedLM", legacy=False)
    model.save_pretrained(tmp_path / "theirs")
    ours, _ = load_model(tmp_path / "theirs")
    tokens = torch.arange(5, 14)[None]
    with torch.no_grad():
        expected = model(tokens).logits
        torch.testing.assert_close(
            ours.head_outputs(Inputs(tokens))["lm"], expected, rtol=0, atol=1e-4
        )
    edit(tmp_path / "theirs", legacy=True)
    tensors = read(tmp_path / "theirs")
    write(tmp_path / "theirs", tensors | {"mask_predictions.dense.weight": torch.ones(2, 2)})
    assert equal(load_model(tmp_path / "theirs")[0], ours)
    save_model(tmp_path / "ours", ours)
    again = transformers.DebertaV2ForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, expected, rtol=0, atol=1e-4)
    edit(tmp_path / "theirs", architectures=["DebertaV2Model"])
    assert load_model(tmp_path / "theirs")[0].config.chosen_heads == ()


@pytest.mark.parametrize("ending", ["Model", "ForSequenceClassification"])
def test_pretraining_heads_are_ignored_elsewhere(ending: str, saved: Saved) -> None:
    """Of the discriminator and of the generator."""
    folder = saved("electra", ending)
    expected = load_model(folder)[0]
    extra = {}
    for other in ("ForPreTraining", "ForMaskedLM"):
        extra |= {
            n: t
            for n, t in make("electra", other).state_dict().items()
            if not n.startswith("electra.")
        }
    write(folder, read(folder) | extra)
    assert equal(load_model(folder)[0], expected)


def test_a_choice_head_is_that_of_the_reference(tmp_path: Path) -> None:
    tokens = torch.randint(6, 38, (2, 3, 7), generator=torch.Generator().manual_seed(0))
    cases = {
        "modernbert": {"classifier_pooling": "mean"},
        "electra": {},
        "mpnet": {},
        "deberta-v2": {},
    }
    cases["big_bird"] = {}
    for family, options in cases.items():
        model = make(family, "ForMultipleChoice", **options)
        model.save_pretrained(tmp_path / family)
        ours, _ = load_model(tmp_path / family)
        real = torch.ones_like(tokens)
        with torch.no_grad():
            expected = model(tokens, attention_mask=real).logits
            got = ours.head_outputs(Inputs(tokens.flatten(0, 1)))["choice"].view(2, 3)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
        save_model(tmp_path / f"{family} saved", ours)
        before, after = read(tmp_path / family), read(tmp_path / f"{family} saved")
        assert before.keys() == after.keys() and all(
            torch.equal(before[n], after[n]) for n in before
        )


SIZES = TWO_LAYERS | {"shape": "encoder", "vocab_size": 40, "max_positions": 24}
MASKED = SIZES | {
    "scale_embeddings": False,
    "heads": ["lm"],
    "lm_head_transform": "gelu",
    "lm_head_bias": True,
}
POST = MASKED | {"embedding_norm": True, "attention_bias": True, "activation": "gelu"}
MODERN = MASKED | {
    "positions": "rotary",
    "norm_placement": "pre",
    "first_norm": False,
    "gated": True,
}
MODERN |= {"embedding_norm": True, "dropout": 0.0, "activation": "gelu", "classifier_dropout": 0.0}


@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("modernbert", MODERN | {"sliding_window": 4, "window_pattern": ["global", "local"]}),
        (
            "modernbert",
            MODERN | {"lm_head_bias": False, "transform_bias": False, "norm_bias": False},
        ),
        ("trifold", MODERN | {"attention_dropout": 0.1}),
        ("trifold", MODERN | {"first_norm": True}),
        (
            "electra",
            POST
            | {
                "positions": "learned",
                "heads": ["replaced"],
                "lm_head_transform": None,
                "lm_head_bias": False,
                "n_token_types": 2,
            },
        ),
        (
            "mpnet",
            POST
            | {
                "positions": "relative",
                "learned_positions": True,
                "position_offset": 2,
                "pad_id": 1,
                "bos_id": 0,
            },
        ),
        ("trifold", POST | {"positions": "relative"}),
        (
            "deberta-v2",
            POST | {"positions": "disentangled", "relative_shared": True, "relative_norm": True},
        ),
        (
            "deberta-v2",
            POST | {"positions": "disentangled", "relative_log": False, "learned_positions": True},
        ),
        ("deberta-v2", POST | {"positions": "none"}),
        (
            "deberta-v2",
            POST
            | {"positions": "disentangled", "convolution": {"groups": 2, "activation": "tanh"}},
        ),
        (
            "trifold",
            POST | {"positions": "learned", "n_token_types": 2, "norm": "rms", "convolution": {}},
        ),
        ("trifold", POST | {"positions": "disentangled", "attention_scale": 0.25}),
    ],
)
def test_a_new_model_is_saved_in_the_family_that_fits(
    family: str, values: dict[str, object]
) -> None:
    config = ModelConfig.parse(values)
    assert next(name for name, each in FAMILIES.items() if each.fits(config)) == family
