"""`trifold recipes`: list the recipes that `trifold train` knows."""

from __future__ import annotations

from trifold.cli.options import Json
from trifold.cli.terminal import print_json, print_table

EXAMPLES = ("trifold recipes", "trifold recipes --json")


def run(json: Json = False) -> None:
    """List the recipes that come with trifold; each is a whole experiment for `trifold train`."""
    from trifold.recipe import recipe_names

    names = recipe_names()
    if json:
        print_json([{"name": name, "description": description} for name, description in names.items()])
    else:
        print_table([("recipe", "what it trains"), *names.items()])
