"""Small random models of transformers in folders, loaded by both libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.hub.parity import with_large_heads
from tests.text import folders

import trifold
from trifold.pipeline import Pipeline

SIZES = {
    "max_position_embeddings": 66,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
DISTILBERT_SIZES = {
    "max_position_embeddings": 66,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
}

# model_type -> prefix of its classes, writer of its tokenizer files, sizes.
FAMILIES: dict[str, tuple[str, Callable[[Path], Path], dict[str, Any]]] = {
    "bert": ("Bert", folders.OLD["bert uncased"], SIZES),
    "roberta": ("Roberta", folders.OLD["roberta"], SIZES),
    "xlm-roberta": ("XLMRoberta", folders.OLD["xlm-roberta"], SIZES),
    "mpnet": ("MPNet", folders.OLD["mpnet"], SIZES),
    "deberta-v2": (
        "DebertaV2",
        folders.OLD["deberta v3"],
        SIZES
        | {"relative_attention": True, "position_biased_input": False, "position_buckets": 8}
        | {"pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    ),
    "electra": ("Electra", folders.OLD["electra"], SIZES | {"embedding_size": 16}),
    "modernbert": ("ModernBert", folders.modernbert, SIZES | {"local_attention": 6}),
    "distilbert": ("DistilBert", folders.OLD["distilbert"], DISTILBERT_SIZES),
    # One layer, because several random layers with shared weights give all tokens similar states.
    "albert": (
        "Albert",
        folders.OLD["albert"],
        SIZES | {"embedding_size": 16, "num_hidden_layers": 1},
    ),
}
TEXTS = [
    "the quick brown fox played with naïve wolves",
    "don't we've 12,5 % hello world playing École",
    "fox",
    "Señor coöperate: def f(x): return 2017 «the école» unheardof 日本語",
]


class Both(NamedTuple):
    """The same folder, loaded by trifold and by transformers."""

    ours: Pipeline
    theirs: Any  # a model
    tokenizer: Any
    folder: Path

    def pipeline(self, task: str, **options: Any) -> Any:
        """The pipeline of transformers."""
        transformers = pytest.importorskip("transformers")
        return transformers.pipeline(task, model=self.theirs, tokenizer=self.tokenizer, **options)


def both(folder: Path, family: str, suffix: str, **options: Any) -> Both:
    """A model of the class with this suffix, with the vocabulary of the tokenizer."""
    import torch

    transformers = pytest.importorskip("transformers")
    stem, write, sizes = FAMILIES[family]
    write(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = {
        f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")
    }
    config = getattr(transformers, f"{stem}Config")(
        **sizes, **ids, vocab_size=len(tokenizer), **options
    )
    torch.manual_seed(11)
    model = with_large_heads(getattr(transformers, stem + suffix)(config)).eval()
    model.save_pretrained(folder)
    return Both(trifold.load(folder), model, tokenizer, folder)


def close(got: float, expected: float) -> bool:
    # The order of fp32 sums depends on the kernels, and changed a probability by 1.1e-5.
    return got == pytest.approx(float(expected), rel=1e-5, abs=2e-5)


def assert_same(got: list[Any], expected: list[dict[str, Any]], **fields: str) -> None:
    """Equal fields (our name=name in transformers), and approximately equal scores."""
    for own, name in fields.items():
        assert [getattr(one, own) for one in got] == [one[name] for one in expected]
    assert all(close(a.score, b["score"]) for a, b in zip(got, expected, strict=True))
