from __future__ import annotations

import json

from trifold.recipe import recipe_names


def test_recipes_are_listed_as_table_and_json(trifold):
    table = trifold("recipes").out
    listed = json.loads(trifold("recipes", "--json").out)
    assert {row["name"]: row["description"] for row in listed} == recipe_names()
    words = " ".join(table.split())
    for name, description in recipe_names().items():
        assert any(line.startswith(f"{name} ") for line in table.splitlines())
        assert description.split()[0] in words
    assert max(map(len, table.splitlines())) <= 80
