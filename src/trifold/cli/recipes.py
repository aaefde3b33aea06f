"""`trifold recipes`: list the recipes that `trifold train` knows."""

from trifold.cli.options import Json
from trifold.cli.terminal import print_json, print_table

EXAMPLES = ("trifold recipes", "trifold recipes --json")


def run(json: Json = False) -> None:
    """List the recipes that come with trifold; each is a whole experiment for `trifold train`.

    The column "missing" names a dataset, file or run that a recipe reads and that is not here;
    `trifold data NAME` downloads a dataset.
    """
    from trifold.recipe import included_recipes, missing_files

    included = included_recipes().items()
    recipes = [(name, missing_files(values), values["description"]) for name, values in included]
    if json:
        print_json(
            [
                dict(zip(("name", "missing", "description"), recipe, strict=True))
                for recipe in recipes
            ]
        )
        return
    rows = [("recipe", "missing", "what it trains")]
    for name, missing, description in recipes:
        names = dict.fromkeys(map(_dataset_or_file, missing))
        rows.append((name, ", ".join(names), description))
    print_table(rows)


def _dataset_or_file(file: str) -> str:
    """The name of the dataset that a missing file belongs to, or the file."""
    from trifold.data import expand_path
    from trifold.data.catalog import find_dataset

    dataset = find_dataset(expand_path(file))
    return file if dataset is None else dataset.name
