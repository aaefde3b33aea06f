"""Laws that hold for every objective: counts, independence of the batch, reproducible validations."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from tests.models import ONE_LAYER
from tests.objectives.common import eval_context, random_model

from trifold.batches import BatchSettings
from trifold.data import DataSettings
from trifold.generate import GenerationConfig
from trifold.nn import ModelConfig
from trifold.objectives.answer import AnswerSettings
from trifold.objectives.causal import CausalSettings
from trifold.objectives.classify import ClassifySettings
from trifold.objectives.denoise import DenoiseSettings, SpansSettings
from trifold.objectives.distill import Distill, DistillSettings
from trifold.objectives.embed import EmbedSettings
from trifold.objectives.masked import MaskedSettings
from trifold.objectives.objective import BuildContext
from trifold.objectives.permutation import PermutationSettings
from trifold.objectives.replaced import ReplacedSettings
from trifold.objectives.sentence_pairs import SentencePairSettings
from trifold.objectives.tag import TagSettings
from trifold.objectives.text_to_text import PartSettings, TextToTextSettings
from trifold.objectives.translate import TranslateSettings
from trifold.text import TokenizerSettings

SIZES = ONE_LAYER | {"max_positions": 24, "dropout": 0.0}
ENCODER = SIZES | {"shape": "encoder", "positions": "learned", "n_token_types": 2, "heads": ["lm"]}
DECODER = SIZES | {"shape": "decoder", "positions": "learned", "norm_placement": "pre"}
TWO_STREAMS = ENCODER | {
    "positions": "relative-sinusoidal",
    "query_stream": True,
    "segment_offsets": True,
}
MASKS = {"kind": "word", "min_frequency": 1, "special": ["cls", "sep", "mask"], "sentinels": 12}

PARTS = {"a": PartSettings(train="", valid="", input="a: {source}")}

# kind -> settings, model, data
KINDS = {
    "translate": (TranslateSettings(), SIZES, "pairs"),
    "causal": (CausalSettings(best_by="accuracy"), DECODER, "text"),
    "masked": (MaskedSettings(rate=0.3), ENCODER, "text"),
    "masked spans": (
        MaskedSettings(mask="spans", rate=0.3, boundary=0.5),
        ENCODER | {"heads": ["lm", "boundary"]},
        "text",
    ),
    "replaced": (ReplacedSettings(rate=0.3), ENCODER | {"heads": ["replaced"]}, "text"),
    "permutation": (PermutationSettings(share=3), TWO_STREAMS, "text"),
    "follows": (SentencePairSettings(), ENCODER | {"heads": ["lm", "pooler", "next-sentence"]}, "text"),
    "order": (
        SentencePairSettings(pairs="order", best_by="pairs_accuracy"),
        ENCODER | {"heads": ["lm", "pooler", "next-sentence"]},
        "text",
    ),
    "denoise": (DenoiseSettings(written=3), SIZES, "text"),
    "spans": (SpansSettings(rate=0.5, written=0), SIZES, "text"),
    "text-to-text": (TextToTextSettings(parts=PARTS), SIZES, "parts"),
    "classify": (ClassifySettings(), ENCODER | {"heads": ["pooler", "sequence"]}, "labels"),
    "answer": (AnswerSettings(max_length=14, stride=3), ENCODER | {"heads": ["span"]}, "answers"),
    "tag": (TagSettings(), ENCODER | {"heads": ["token"]}, "tags"),
    "embed": (EmbedSettings(loss="triplet"), ENCODER | {"heads": ["pooler"]}, "triplets"),
    "embed cls": (EmbedSettings(loss="triplet", pooling="cls"), ENCODER | {"heads": ["pooler"]}, "triplets"),
    "translate, decoder": (TranslateSettings(), DECODER, "pairs"),
    "text-to-text, decoder": (TextToTextSettings(parts=PARTS), DECODER, "parts"),
    "answer, decoder": (AnswerSettings(), DECODER | {"max_positions": 48}, "answers"),
    "classify, decoder": (
        ClassifySettings(lm_loss=0.5),
        DECODER | {"heads": ["sequence"], "classifier_input": "last"},
        "labels",
    ),
    "distill": (DistillSettings(teacher="", hard=0.5), DECODER, "text"),
}  # fmt: skip
validation = partial(eval_context, 90, generation=GenerationConfig(max_new_tokens=3))
RANDOM = (
    "masked",
    "masked spans",
    "replaced",
    "permutation",
    "follows",
    "order",
    "denoise",
    "spans",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Objective, validation rows, their examples and a model of each kind, built once."""
    folder, cache = tmp_path_factory.mktemp("laws"), {}
    sentences = [f"W{n} w{n + 1} w{n * 7 % 9} w{n * 5 % 8}." for n in range(10)]
    documents = [" ".join(sentences[n : n + 3]) for n in range(8)]
    (folder / "text").write_text("\n".join(documents) + "\n", encoding="utf-8")
    rows = [f"w{n} w{n * 3 % 7}\t{'ab'[n % 2]} w{n}" for n in range(8)]
    (folder / "pairs.tsv").write_text("source\ttarget\n" + "\n".join(rows) + "\n", encoding="utf-8")
    labels = [f"w{n} w{n * 3 % 7}\t{'ab'[n % 2]}" for n in range(8)]
    (folder / "labels.tsv").write_text(
        "source\ttarget\n" + "\n".join(labels) + "\n", encoding="utf-8"
    )
    triplets = [f"w{n} w{n * 3 % 7}\tw{n}\tw{n * 5 % 8} w{n % 3}" for n in range(8)]
    (folder / "triplets.tsv").write_text(
        "anchor\tpositive\tnegative\n" + "\n".join(triplets) + "\n", encoding="utf-8"
    )
    with (folder / "answers.jsonl").open("w", encoding="utf-8") as file:
        for n, (context, question) in enumerate(zip(documents, sentences, strict=False)):
            answer = {"text": f"w{n + 1}", "answer_start": context.index(f"w{n + 1}")}
            row = {"question": question, "context": context, "answers": [answer][: n != 5]}
            file.write(json.dumps(row) + "\n")
    tags = [
        "\n".join(f"w{n * k % 7} {'OB'[(n + k) % 3 == 0]}" for k in range(1, 5)) for n in range(8)
    ]
    (folder / "tags.conll").write_text("\n\n".join(tags) + "\n", encoding="utf-8")

    def build(kind):
        if kind in cache:
            return cache[kind]
        settings, model, data = KINDS[kind]
        paths = (
            {}
            if data == "parts"
            else dict.fromkeys(("train", "valid"), str(folder / f"{data}.tsv"))
        )
        if data == "answers":
            paths = dict.fromkeys(("train", "valid"), str(folder / "answers.jsonl"))
        if data in ("text", "tags"):
            file = {"text": "text", "tags": "tags.conll"}[data]
            paths = dict.fromkeys(("train", "valid"), str(folder / file))
        if data == "parts":
            table = str(folder / "pairs.tsv")
            parts = {"a": settings.parts["a"].model_copy(update={"train": table, "valid": table})}
            settings = settings.model_copy(update={"parts": parts})
        context = BuildContext(
            DataSettings.parse(paths), TokenizerSettings.parse(MASKS), ModelConfig.parse(model), BatchSettings(), 1,
            folder / kind, lambda line: None,
        )  # fmt: skip
        bundle = (settings.of if kind == "distill" else settings).build(context)
        objective, model = bundle.objective, random_model(bundle.config)
        objective.add_modules(model)
        if kind == "distill":
            objective = Distill(settings, objective, random_model(bundle.config))
        cache[kind] = objective, bundle.valid, objective.examples(bundle.valid), model
        return cache[kind]

    return build


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_those_of_the_loss_terms(built, kind):
    objective, _, examples, model = built(kind)
    batch = objective.batch(examples, np.arange(4), draw=5).to(torch.device("cpu"))
    terms = objective.loss(model, batch)
    assert objective.counts(batch) == {name: term.count for name, term in terms.items()}
    assert terms["tokens"].count == batch.tokens > 0


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_loss_of_an_example_does_not_depend_on_its_batch(built, kind):
    """So no example attends to another, and its corruption is a function of the draw and its
    number.
    """
    objective, _, examples, model = built(kind)
    rows = np.array([2, 0, 3, 1])
    together = objective.loss(model, objective.batch(examples, rows, draw=9))
    alone = [
        objective.loss(model, objective.batch(examples, rows[n : n + 1], draw=9)) for n in range(4)
    ]
    for name, term in together.items():
        assert term.count == sum(each[name].count for each in alone)
        torch.testing.assert_close(
            term.sum, sum(each[name].sum for each in alone), rtol=2e-5, atol=1e-4
        )


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_only_corruption_depends_on_the_draw(built, kind):
    objective, _, examples, model = built(kind)
    sums = [
        float(
            objective.loss(model, objective.batch(examples, np.arange(8), draw=draw))["tokens"].sum
        )
        for draw in (1, 1, 2, 3, 4)
    ]
    assert sums[0] == sums[1]
    assert (len(set(sums)) > 1) == (kind in RANDOM)


@pytest.mark.parametrize("kind", KINDS)
def test_a_width_truncates_examples(built, kind):
    objective, _, examples, _ = built(kind)
    if kind in ("follows", "order"):
        pytest.skip("pairs are truncated when they are drawn")
    whole = objective.batch(examples, np.arange(4), draw=2)
    width = 2 if kind in ("translate", "text-to-text") else 3
    cut = objective.batch(examples, np.arange(4), width, draw=2)
    if kind.startswith("embed") or kind.endswith("decoder"):
        assert cut.inputs.packing.n_real < whole.inputs.packing.n_real
    elif kind in ("classify", "answer"):
        assert cut.inputs.packing.n_real == int(np.minimum(examples.lengths[:4], 3).sum())
    elif kind in ("masked", "masked spans", "replaced", "permutation"):
        assert cut.inputs.tokens.numel() < whole.inputs.tokens.numel() or cut.tokens < whole.tokens
    else:
        assert 0 < cut.tokens < whole.tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_validation_is_reproducible_and_does_not_depend_on_batch_sizes(built, kind):
    objective, rows, examples, model = built(kind)
    one, again = (objective.evaluate(model, rows, examples, validation()) for _ in range(2))
    assert one == again
    best_by = objective.settings.best_by
    assert one.value == (-one.loss if best_by == "loss" else one.scores[best_by])
    # The limit of length of training does not apply.
    small = objective.evaluate(
        model, rows, examples, validation(batches=BatchSettings(tokens=30, max_length=2))
    )
    assert small.loss == pytest.approx(one.loss, rel=1e-5)
    assert small.scores == pytest.approx(one.scores, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_poll_can_interrupt_a_validation(built, kind):
    class Stop(Exception):
        pass

    def stop():
        raise Stop

    objective, rows, examples, model = built(kind)
    with pytest.raises(Stop):
        objective.evaluate(model, rows, examples, validation(poll=stop))
