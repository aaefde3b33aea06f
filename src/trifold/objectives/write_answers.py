"""Question answering in the words of the model: a decoder reads the context and the question in a
prompt, and writes the answer, which need not stand in the context.

rows -> examples, loss   those of `prompted`; no answer is an empty target
scores                   exact match and F1 of words, as for answers that are spans
"""

from typing import Any

from trifold.objectives.evaluation import EvalRun, Evaluation
from trifold.objectives.prompted import Prompted, PromptedExamples
from trifold.objectives.questions import score_answers


class WriteAnswers(Prompted):
    """Question answering by a decoder."""

    row_name = "questions"

    def examples(self, rows: Any, draw: int | None = None) -> PromptedExamples:
        return self.encode_rows(rows)

    def compute_scores(self, run: EvalRun) -> Evaluation:
        outputs = self.outputs(run, run.examples.sources)
        return score_answers(run.rows, outputs, run.context.samples)
