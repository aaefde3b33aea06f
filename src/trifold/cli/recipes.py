"""`trifold recipes`: list the recipes that `trifold train` knows."""

from __future__ import annotations

from trifold.cli.options import Json
from trifold.cli.terminal import print_json, print_table

EXAMPLES = ("trifold recipes", "trifold recipes --json")
DATASETS = "TRIFOLD_DATA"


def run(json: Json = False) -> None:
    """List the recipes that come with trifold; each is a whole experiment for `trifold train`.

    The column "missing" names a file or run that a recipe reads and that is not here, or the variable TRIFOLD_DATA,
    to be set to the folder of the datasets.
    """
    from trifold.recipe import included_recipes, missing_files

    recipes = [
        (name, missing_files(values), values["description"]) for name, values in included_recipes().items()
    ]
    if json:
        print_json([dict(zip(("name", "missing", "description"), recipe, strict=True)) for recipe in recipes])
        return
    rows = [
        (name, DATASETS if any(DATASETS in file for file in missing) else ", ".join(missing), description)
        for name, missing, description in recipes
    ]
    print_table([("recipe", "missing", "what it trains"), *rows])
