"""BigBird: unused poolers, and what its config cannot say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.hub.checkpoints import edit, equal, read, write
from tests.hub.parity import make

from trifold.errors import CheckpointError
from trifold.hub import load_model, save_model
from trifold.hub.families import FAMILIES
from trifold.nn import Inputs
from trifold.nn.packing import Packing

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")
Saved = Callable[..., Path]


def test_a_pooler_that_nothing_reads_is_kept(saved: Saved, tmp_path: Path) -> None:
    folder = saved("big_bird")
    ours, tensors = load_model(folder)[0], read(folder)
    assert "bert.pooler.weight" in tensors
    write(folder, {name: tensor for name, tensor in tensors.items() if "pooler" not in name})
    without, _ = load_model(folder)
    assert equal(ours, without)
    save_model(tmp_path / "again", without)
    assert read(tmp_path / "again").keys() == tensors.keys()


def test_random_blocks_outside_of_training_are_not_of_these_families(saved: Saved) -> None:
    config = load_model(saved("big_bird"))[0].config
    assert config.sparse_blocks is not None and FAMILIES["big_bird"].fits(config)
    always = config.sparse_blocks.model_copy(update={"only_in_training": False})
    assert not FAMILIES["big_bird"].fits(config.model_copy(update={"sparse_blocks": always}))


@pytest.mark.parametrize("length", [9, 47])
@torch.no_grad()
def test_the_reference_excludes_the_question_from_answers(length: int, tmp_path: Path) -> None:
    """It subtracts 1e6 from the logits of the question and of the first separator; `predict.answer`
    reads the rest.
    """
    model = make("big_bird", "ForQuestionAnswering", vocab_size=70)
    model.save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path)
    tokens = torch.randint(6, 66, (2, length), generator=torch.Generator().manual_seed(0))
    ends, columns = torch.tensor([[3], [6]]), torch.arange(length)
    tokens = torch.where((columns == ends) | (columns == length - 1), 66, tokens)
    out = model(tokens)
    theirs = torch.stack([out.start_logits, out.end_logits], -1)
    got = ours.head_outputs(Inputs(tokens))["span"]
    hidden = (columns <= ends) & (columns > 0)
    torch.testing.assert_close(got[~hidden], theirs[~hidden], rtol=0, atol=1e-4)
    assert theirs[hidden].max() < -9e5


@torch.no_grad()
def test_tokens_after_the_first_separator_have_another_type(tmp_path: Path) -> None:
    """Alone as in the reference, the last row without a separator; equally padded and packed."""
    model = make("big_bird", "ForQuestionAnswering", sep_token_id=3, attention_type="original_full")
    model.save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path)
    assert ours.config.separator_id == 3 and FAMILIES["big_bird"].fits(ours.config)
    tokens = torch.randint(6, 40, (3, 9), generator=torch.Generator().manual_seed(0))
    tokens[0, 2] = tokens[0, 6] = tokens[1, 3] = 3
    lengths, expected = torch.tensor([9, 5, 7]), []
    for row, length, first in zip(tokens, lengths, (2, 3, 0), strict=True):
        out = model(row[None, :length])
        expected.append(torch.stack([out.start_logits, out.end_logits], -1)[0, first + 1 :])
    attend = torch.arange(9) < lengths[:, None]
    packing = Packing.of(lengths)
    packed = Inputs(packing.flat(tokens[..., None])[..., 0], packing=packing)
    shifted = torch.zeros_like(tokens).masked_scatter(
        attend.flip(1), tokens[attend]
    )  # padding first
    for inputs in (Inputs(tokens, attend), Inputs(shifted, attend.flip(1)), packed):
        found, real = (
            ours.head_outputs(inputs)["span"],
            attend if inputs.attend is None else inputs.attend,
        )
        for row, mask, theirs in zip(found, real, expected, strict=True):
            torch.testing.assert_close(row[mask][-len(theirs) :], theirs, rtol=0, atol=1e-4)


def test_answers_need_a_separator(tmp_path: Path) -> None:
    make("big_bird", "ForQuestionAnswering", vocab_size=70).save_pretrained(tmp_path)
    keys = json.loads((tmp_path / "config.json").read_text("utf-8"))
    del keys["sep_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    assert load_model(tmp_path)[0].config.separator_id == transformers.BigBirdConfig().sep_token_id
    edit(tmp_path, sep_token_id=None)
    with pytest.raises(CheckpointError, match="sep_token_id"):
        load_model(tmp_path)


def test_other_classes_may_have_any_separator(saved: Saved) -> None:
    folder = saved("big_bird")
    edit(folder, sep_token_id=3)
    load_model(folder)


def test_a_pooler_in_a_file_with_answers_is_ignored(saved: Saved, tmp_path: Path) -> None:
    folder = saved("big_bird", "ForQuestionAnswering")
    ours, tensors = load_model(folder)[0], read(folder)
    assert not any("pooler" in name for name in tensors)
    extra = {"bert.pooler.weight": torch.zeros(16, 16), "bert.pooler.bias": torch.zeros(16)}
    write(folder, tensors | extra)
    assert equal(ours, load_model(folder)[0])
