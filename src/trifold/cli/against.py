"""`trifold eval A --against B`: how far the predictions of two models are apart.

Language models and translators: KL divergence of the distributions of the next token, equal most
probable tokens, perplexities. Encoders: cosines of the vectors of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from trifold.cli.batch import load_pipeline
from trifold.cli.options import DTYPES, dtype_option, option
from trifold.cli.progress import count_progress
from trifold.dtypes import Weights
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.batches import BatchSettings
    from trifold.objectives.objective import Objective
    from trifold.pipeline import Pipeline
    from trifold.ragged import Ragged
    from trifold.text import Tokenizer

OPTIONS: dict[str, Any] = {
    "against": option(
        str,
        "Measure how far the predictions are from those of this model: KL divergence, equal top "
        "tokens, perplexities; of encoders cosines.",
        metavar="MODEL",
    ),
    "against_weights": option(Weights, "Weights of that model.", show_default="file"),
    "against_dtype": Annotated[
        str | None,
        dtype_option(DTYPES, "Precision of that model.", show_default="as --dtype"),
    ],
}
# Other options that have an effect together with --against.
ALSO = frozenset({"documents", "source", "target"})
# Heads of encoders that learned no task with labels.
UNLABELLED = frozenset({"lm", "pooler", "next-sentence", "replaced", "boundary"})
PROBED = 1_000  # rows whose tokens by both tokenizers are compared
TEXTS = 256  # texts whose vectors are compared at once


class ModelPair(NamedTuple):
    """A model and the reference, with the names by which the user calls them."""

    name: str
    ours: Pipeline
    reference_name: str
    reference: Pipeline


class Reference(NamedTuple):
    """The model of --against, and how it is loaded."""

    name: str
    load: Callable[[], Pipeline]


class PairReport(NamedTuple):
    """The values of a comparison for JSON, and the lines for standard output."""

    values: dict[str, Any]
    lines: list[str]


def take_reference(
    options: dict[str, Any], dtype: str, machine: Mapping[str, Any]
) -> Reference | None:
    """The model of --against, whose options are removed; None without it.

    dtype: that of the model that is measured. machine: further options of both. Raises UsageError
    for options of a model that is not named.
    """
    name, weights, own_dtype = (options.pop(option) for option in OPTIONS)
    if name is None:
        for flag, given in (("weights", weights), ("dtype", own_dtype)):
            if given is not None:
                raise UsageError(f"--against-{flag} has no effect without --against; add it")
        return None
    load = partial(
        load_pipeline, name, dtype=own_dtype or dtype, weights=weights or "file", **machine
    )
    return Reference(name, load)


def check_options(options: dict[str, Any], *, writes_report: bool) -> None:
    """Raises UsageError for options of `trifold eval` that a comparison ignores."""
    for name in options:
        if name not in ALSO:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} has no effect with --against; leave it out")
    if writes_report:
        raise UsageError("--report has no effect with --against; leave it out")


def compares_vectors(name: str, pipeline: Pipeline) -> bool:
    """Whether vectors of texts are compared, and not tokens. Raises UsageError for a model with
    neither.
    """
    config = pipeline.config
    if config.n_patches:
        raise UsageError(
            f"{name}: reads images; --against compares language models, translators and encoders "
            "of texts"
        )
    if config.decoder_layers and "lm" in config.chosen_heads:
        return False
    is_unlabelled = UNLABELLED.issuperset(config.chosen_heads)
    if config.encoder_layers and not config.decoder_layers and is_unlabelled:
        return True
    heads = ", ".join(config.chosen_heads) or "none"
    raise UsageError(
        f"{name}: this {config.shape} (heads: {heads}) predicts no next token and is no plain "
        f"encoder, so --against does not apply; `trifold compare A B` compares scores"
    )


# --- tokens ---------------------------------------------------------------------------------------


def compare_tokens(
    pair: ModelPair, task: Objective, examples: Any, batches: BatchSettings
) -> PairReport:
    """The divergence over the labels of all examples. Raises UsageError for models that do not
    predict the same tokens, TrifoldError for logits that are not finite.
    """
    from torch import tensor

    from trifold.generate.decoding import refuse_non_finite
    from trifold.objectives.divergence import measure_divergence

    _check_shapes(pair)
    _check_tokenizers(pair, "tokenizer", _examples_of(examples)[0])
    _check_tokenizers(pair, "target_tokenizer", _examples_of(examples)[-1])
    models = (pair.ours.model, pair.reference.model)
    with count_progress(task.row_name, len(examples.lengths)) as on_done:
        values = measure_divergence(task, *models, examples, batches, on_done).values()
    if not values:
        raise UsageError("the data has no token to predict; name other data")
    refuse_non_finite(tensor([values["kl"], values["perplexity"]]))
    interval = f"95 % interval {values['kl_low']:.5f} to {values['kl_high']:.5f}"
    lines = [
        f"KL divergence {values['kl']:.5f} nats per token ({interval})",
        f"99th percentile {values['kl_p99']:.5f}",
        f"equal top tokens {values['equal_top']:.2f} %",
        f"perplexity {values['perplexity']:.3f}; of {pair.reference_name} "
        f"{values['perplexity_against']:.3f}",
    ]
    return PairReport(values, lines)


def check_task(task: Objective) -> None:
    """Raises UsageError for a task that predicts no next tokens."""
    if not task.predicts_tokens:
        raise UsageError(
            f"--against: task.kind: {task.settings.kind} predicts no next tokens; `trifold compare "
            "A B` compares scores"
        )


def _examples_of(examples: Any) -> Sequence[Ragged]:
    """The encoded texts of the sides of the examples: one, or source and target."""
    if hasattr(examples, "sources"):
        return (examples.sources, examples.targets)
    if hasattr(examples, "documents"):
        return (examples.documents,)
    return (examples.tokens,)


def _check_shapes(pair: ModelPair) -> None:
    """Raises UsageError for models whose inputs or outputs differ in shape."""
    ours = pair.ours.config
    theirs = pair.reference.config
    for key in ("shape", "vocab_size", "output_vocab_size"):
        values = (getattr(ours, key), getattr(theirs, key))
        if values[0] != values[1]:
            raise UsageError(
                f"{pair.reference_name}: its {key} is {values[1]}, but that of {pair.name} "
                f"{values[0]}; their predictions are of different tokens"
            )
    if theirs.max_positions < ours.max_positions:
        raise UsageError(
            f"{pair.reference_name}: reads at most {theirs.max_positions:,} tokens, but "
            f"{pair.name} {ours.max_positions:,}; exchange the two models"
        )


def _check_tokenizers(pair: ModelPair, name: str, rows: Ragged) -> None:
    """Raises UsageError unless both models have the same tokens and encode the texts of some rows
    alike. name: the attribute of the pipelines.
    """
    ours: Tokenizer | None = getattr(pair.ours, name)
    theirs: Tokenizer | None = getattr(pair.reference, name)
    assert ours is not None and theirs is not None, "see `load_pipeline`"
    both = f"{pair.name} and {pair.reference_name} have different tokenizers"
    remedy = "predictions of the same tokens are compared: name models with one tokenizer"
    for number in range(max(ours.vocab_size, theirs.vocab_size)):
        tokens = [each.library.id_to_token(number) for each in (ours, theirs)]
        if tokens[0] != tokens[1]:
            first, second = ("none" if token is None else repr(token) for token in tokens)
            raise UsageError(f"{both}: token {number:,} is {first} and {second}; {remedy}")
    for row in rows.tolist()[:PROBED]:
        text = ours.decode([row])[0]
        if ours.encode([text]) != theirs.encode([text]):
            raise UsageError(f"{both}: they divide {text!r:.60} differently; {remedy}")


# --- vectors --------------------------------------------------------------------------------------


def compare_vectors(pair: ModelPair, texts: Sequence[str]) -> PairReport:
    """The cosines of the vectors of texts. Raises UsageError for vectors of different sizes."""
    import numpy as np

    from trifold.scores.divergence import CosineScore

    score = CosineScore()
    with count_progress("texts", len(texts)) as on_done:
        for start in range(0, len(texts), TEXTS):
            part = list(texts[start : start + TEXTS])
            ours, theirs = (np.stack(each.embed(part)) for each in (pair.ours, pair.reference))
            if ours.shape != theirs.shape:
                raise UsageError(
                    f"{pair.reference_name}: its vectors have {theirs.shape[1]:,} elements, those "
                    f"of {pair.name} {ours.shape[1]:,}; cosines need equal sizes"
                )
            score.add(ours, theirs)
            on_done(len(part))
    values = score.values()
    return PairReport(
        values,
        [f"cosine {values['cosine']:.6f}", f"cosine, minimum {values['cosine_minimum']:.6f}"],
    )
