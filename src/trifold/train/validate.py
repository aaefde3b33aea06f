"""Validation: average the last weights, measure them on validation data, and keep the best."""

from collections.abc import Callable, Collection
from dataclasses import replace

import torch
from torch import Tensor

from trifold import disk
from trifold.baselines.baseline import Baseline
from trifold.baselines.comparison import MeasuredBaselines
from trifold.baselines.stored import save_baselines, write_comparison
from trifold.baselines.table import fit_baselines
from trifold.errors import CheckpointError
from trifold.folders import UntrustedPath
from trifold.hub.card import write_card
from trifold.hub.peft import save_adapter
from trifold.nn import Transformer
from trifold.nn.lora import merge
from trifold.objectives.evaluation import EvalContext, Evaluation
from trifold.scores import score_text
from trifold.train import checkpoint
from trifold.train.checkpoint import BestValidation
from trifold.train.data import TrainingData
from trifold.train.fold_scores import FoldedEvaluation
from trifold.train.held_out import HeldOut
from trifold.train.model_card import run_card
from trifold.train.monitor import FoldScores, Validated, shown_continuation
from trifold.train.ranks import Interrupted
from trifold.train.run_folder import RunFolder

# In the cells of a table.
ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


class Validator:
    """Owns a second model, in fp32, that receives the (averaged) weights."""

    def __init__(
        self,
        data: TrainingData,
        folder: RunFolder,
        device: torch.device,
        trained: Collection[str] = (),
    ) -> None:
        self.data = data
        self.folder = folder
        self.trained = trained
        model = Transformer(data.config, initialize=False)
        data.objective.add_modules(model)
        self.model = model.to(device).eval()
        self._baselines: MeasuredBaselines | None = None
        self.folds: FoldedEvaluation | None = None
        if data.recipe.data.folds is not None:
            self.folds = FoldedEvaluation(data, folder)

    def averaged(
        self, step: int, current: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], list[str]]:
        """The mean of the current weights and those of the previous checkpoints, `train.average` in
        total.

        Also returns the error messages of damaged checkpoints, which are left out. Checkpoints of
        an interruption do not count, so that a resumed run averages what an uninterrupted one does.
        """
        settings = self.data.recipe.train
        if settings.average == 1:
            return current, []
        checkpoints = self.folder.below(self.folder.checkpoints)
        regular = checkpoint.regular_checkpoints(checkpoints, settings.save_every)
        earlier = [path for path in regular if checkpoint.step_of(path) < step]
        if not earlier:
            return current, []
        latest = earlier[-(settings.average - 1) :]
        mean, rejected = mean_weights(latest)
        share = 1 / (len(latest) - len(rejected) + 1)  # of the current weights
        weights = {
            name: torch.lerp(value, current[name].cpu(), share) for name, value in mean.items()
        }
        return current | weights, rejected

    @torch.no_grad()
    def __call__(
        self, step: int, current: dict[str, Tensor], best: BestValidation, poll: Callable[[], None]
    ) -> tuple[Validated, BestValidation]:
        """Evaluate, write samples, and save the weights to model/ if they are the best.

        poll: called now and then; it may raise Interrupted, and without an earlier model the
        weights are saved.
        """
        weights, damaged = self.averaged(step, current)
        weights = self.data.objective.saved_weights(weights)
        self._load(weights)
        data = self.data
        recipe = self.data.recipe
        is_fold = self.folder.part is not None  # its predictions are kept, and no model
        context = EvalContext(
            recipe.batch,
            recipe.generate,
            0 if is_fold else recipe.train.samples,
            recipe.train.seed,
            poll,
            chooses=True,
        )
        try:
            poll()
            result = self._evaluate(step, context)
            baselines = self._measure_baselines(step, poll)
        except Interrupted:
            if best.score is None and not is_fold:  # there is no other model to use
                self.save_model(weights, None)
            raise
        is_best = best.is_beaten(result.value, result.loss, result.balance)
        folds = None
        if self.folds is not None:
            folds = self.folds.at(step).facts
            is_best = True  # nothing compares the last weights
        if is_best and not is_fold:
            if result.shift is not None:
                weights = data.objective.shifted_weights(weights, result.shift)
                self._load(weights)
            self.save_model(weights, result, folds)
        if not is_fold:
            self._write_samples(step, result)
        validated = Validated(
            step,
            result.loss,
            result.scores,
            is_best,
            list(result.samples[: recipe.train.samples]),
            damaged,
            remark=describe_choice(result, best, is_best=is_best),
            baselines=baselines.values(),
        )
        if is_fold:
            held_out = HeldOut.of(step, data.objective, data.bundle.valid, result, baselines)
            held_out.write(self.folder.held_out(step))
        if folds is not None:
            validated = validated._replace(scores=folds.scores, folds=folds)
        best = best.after(step, result.value, result.loss, result.balance, is_best=is_best)
        if step == 0:  # also after a signal before the first step
            best = best._replace(fitted=self.loss_to_reach(result.loss))
        return validated, best

    def loss_to_reach(self, fitted: float) -> float | None:
        """The loss that training must get below, beside a part that is fitted. None without one.
        fitted: the loss before the first step.
        """
        objective = self.data.objective
        return fitted * objective.needed_share if objective.starts_fitted else None

    def _evaluate(self, step: int, context: EvalContext) -> Evaluation:
        """The scores of the validation rows; of a model of all rows, those of the folds."""
        data = self.data
        if self.folds is not None:
            return self.folds.at(step).evaluation(data.objective)
        return data.objective.evaluate(self.model, data.bundle.valid, data.valid, context)

    def _measure_baselines(self, step: int, poll: Callable[[], None]) -> MeasuredBaselines:
        """The baselines of the task, fitted, saved and measured at the first validation; none if
        the recipe does not want any.
        """
        if self._baselines is not None:
            return self._baselines
        data = self.data
        fitted = list[Baseline]()
        if data.recipe.train.baselines:
            fitted = fit_baselines(data.objective, data.bundle.train, data.train, poll)
        if fitted and self.folder.part is None:
            save_baselines(self.folder.path, fitted)
        if self.folds is not None:
            self._baselines = self.folds.at(step).baselines(data.objective, fitted)
            return self._baselines
        self._baselines = MeasuredBaselines.on(
            data.objective, fitted, data.bundle.valid, data.valid
        )
        for line in self._baselines.describe():
            data.report(line)
        return self._baselines

    def _load(self, weights: dict[str, Tensor]) -> None:
        """Copy weights to the model; adapters are added to the matrices that they change."""
        lora = self.data.recipe.train.lora
        if lora is not None:
            weights = merge(weights, lora.scale)
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])

    def save_model(
        self,
        weights: dict[str, Tensor],
        result: Evaluation | None,
        folds: FoldScores | None = None,
    ) -> None:
        """Write the weights, config, tokenizers and model card as a Hugging Face folder, and the
        adapters among `weights` alone to adapter/. result: of their validation, or of folds.
        """
        recipe = self.data.recipe
        generation = recipe.generate.model_dump() | dict(self.data.objective.generation)
        self.data.objective.save_model(self.folder.model, self.model, generation)
        self.data.objective.save(self.folder.model)
        comparison = None
        if result is not None and self._baselines is not None:
            comparison = self._baselines.compare(result)
        write_comparison(self.folder.scores, comparison)
        parameters = self.model.count_parameters()
        card = run_card(recipe, self.folder, parameters, result, comparison, folds)
        write_card(self.folder.model, card)
        lora = recipe.train.lora
        if lora is not None:
            adapter = self.folder.path / "adapter"
            base = recipe.start_from or ""
            trained = self.trained
            save_adapter(adapter, base, self.data.config, lora, weights, trained, generation)
            self.data.objective.save(adapter)
            write_card(adapter, replace(card, is_adapter=True))

    def _write_samples(self, step: int, result: Evaluation) -> None:
        """Write the generated samples as a table, and the scores or their signatures, which contain
        them.
        """
        if not (result.samples or result.signatures):
            return
        header = "prompt\tcontinuation"
        table: list[tuple[str, ...]] = [
            (sample.source, shown_continuation(sample.ours))
            for sample in result.samples
            if sample.reference is None
        ]
        if len(table) < len(result.samples):
            header = "source\treference\tours"
            table = [
                tuple(cell for cell in sample if cell is not None) for sample in result.samples
            ]
        rows = ["\t".join(cell.translate(ESCAPES) for cell in row) for row in table]
        scores = result.signatures or [
            score_text(name, value) for name, value in result.scores.items()
        ]
        path = self.folder.samples / f"step-{step:08d}.tsv"
        disk.replace_text(path, "\n".join([header, *rows]) + "\n")
        disk.replace_text(path.with_suffix(".scores.txt"), "\n".join(scores) + "\n")


def describe_choice(result: Evaluation, best: BestValidation, *, is_best: bool) -> str:
    """Why a model is not kept that gives all rows the same answer, or which thresholds are saved;
    empty for other models. best: before this validation.
    """
    balance = result.balance
    if balance is not None and best.is_refused(balance):
        return (
            f"it always answers {balance.answer!r:.20} and is not kept: with the same weight for "
            f"all classes it has {balance.score:.1f}, an earlier model {best.balanced:.1f}"
        )
    return result.shift_words if is_best else ""


def mean_weights(paths: list[UntrustedPath]) -> tuple[dict[str, Tensor], list[str]]:
    """The mean, summed in float64 (Vaswani et al. 2017, section 6.1), and the errors of damaged
    checkpoints.
    """
    total: dict[str, Tensor] = {}
    rejected: list[str] = []
    for path in paths:
        try:
            weights = checkpoint.load(path, optimizer=False).weights
        except CheckpointError as error:
            rejected.append(str(error))
            continue
        for name, value in weights.items():
            if name in total:
                total[name] += value
            else:
                total[name] = value.double()
    intact = len(paths) - len(rejected)
    mean = {name: (value / intact).to(weights[name].dtype) for name, value in total.items()}
    return mean, rejected
