"""How long a model is trained, and in which batches: by the number of its rows, and by what it
begins with. The values of fine-tuning were chosen by validation rows (docs/fine-tuning.md).
"""

from math import ceil
from typing import NamedTuple

from trifold.nn.variants import ModelConfig
from trifold.objectives.rates import SMALL_WIDTH

MOST_STEPS = 10_000
# Settings of the model of a new classifier: with a linear path, where there is such a part.
PATH = "linear_path"
PATH_BY_DEFAULT = {PATH: True} if PATH in ModelConfig.model_fields else {}
PATH_OF_IMAGES = {key: {"filters": 100} for key in PATH_BY_DEFAULT}
# Of a new tagger: a path on the forms of words.
FORMS_BY_DEFAULT = {key: {"forms": 2**16} for key in PATH_BY_DEFAULT}
# The tasks whose fine-tuning is planned by rows: texts with labels. The values were chosen on them.
LABELLED = ("classify", "tag", "answer", "choose")


class Plan(NamedTuple):
    """Rules of a run.

    epochs: of data that is large enough. fewest_steps: of less data, which is read more often, at
    most `most_epochs` times. validations: of a run, at least. rows: of a batch; None for batches
    that are counted in tokens.
    """

    epochs: int
    fewest_steps: int
    most_epochs: float
    validations: int
    rows: int | None = None

    def steps_for(self, updates: float) -> int:
        """The steps of a run. updates: of an epoch."""
        fewest = round(min(self.fewest_steps, self.most_epochs * updates))
        return min(MOST_STEPS, max(fewest, round(self.epochs * updates), 1))

    def interval(self, steps: int) -> int:
        """The steps between validations."""
        return min(steps, 500, max(20, -(-steps // self.validations)))

    def rows_for(self, rows: int) -> int | None:
        """The rows of a batch for this many rows of data: more if the epochs would take more than
        the most steps.
        """
        if self.rows is None:
            return None
        return max(self.rows, ceil(self.epochs * rows / MOST_STEPS))


NEW = Plan(epochs=10, fewest_steps=100, most_epochs=float("inf"), validations=10)
# A Transformer beside a fitted linear path is validated twice in an epoch.
WITH_PATH = Plan(epochs=5, fewest_steps=100, most_epochs=float("inf"), validations=10)
FINE_TUNING = Plan(epochs=3, fewest_steps=100, most_epochs=10, validations=3, rows=32)


def plan_for(kind: str, start: ModelConfig | None, *, has_path: bool = False) -> Plan:
    """The plan of a task. start: the config of start_from; None for new weights. A small model
    learns as a new one does. has_path: whether a new model has a linear path.
    """
    if start is None and has_path:
        return WITH_PATH
    if start is None or start.d_model <= SMALL_WIDTH or kind not in LABELLED:
        return NEW
    return FINE_TUNING
