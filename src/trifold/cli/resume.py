"""`trifold resume`: continue a run."""

from pathlib import Path
from typing import Annotated

from trifold.cli import train
from trifold.cli.options import Json, argument
from trifold.cli.train import Changes, DataChanged

EXAMPLES = ("trifold resume runs/demo", "trifold resume runs/demo train.steps=3000")


def run(
    folder: Annotated[Path, argument("RUN", "A run folder.")],
    changes: Changes = None,
    data_changed: DataChanged = False,
    json: Json = False,
) -> None:
    """Continue a run from its last checkpoint, as if it had not stopped."""
    from trifold.train.run_folder import recipe_of_run

    recipe = recipe_of_run(folder)
    train.train_recipe(recipe, changes, recipe.path.parent, "auto", data_changed, json=json)
