"""`trifold recipes`: what can be trained out of the box."""

from __future__ import annotations

from trifold.cli.options import Json
from trifold.cli.streams import print_json

EXAMPLES = (
    "trifold recipes",
    "trifold recipes --json",
)


def run(json: Json = False) -> None:
    """List the recipes that ship: each is a whole experiment, ready for `trifold train`."""
    from trifold.look.canvas import table
    from trifold.recipe import recipe_names

    names = recipe_names()
    if json:
        print_json([{"name": name, "description": description} for name, description in names.items()])
    else:
        print(table([("recipe", "what it trains"), *names.items()]))
