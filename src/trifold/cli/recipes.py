"""`trifold recipes`: list the recipes that `trifold train` knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from textwrap import shorten
from typing import Annotated, Any, NamedTuple

from trifold.cli.options import Json, argument
from trifold.cli.terminal import print_json
from trifold.errors import UsageError, join_or, wrapped

EXAMPLES = ("trifold recipes", "trifold recipes benchmarks", "trifold recipes gpt")
# Recipes that are compared with each other, or that others start from.
BENCHMARKS = frozenset(
    "mlm-plain mlm-spans mlm-whole-word multi30k-additive multi30k-denoise "
    "multi30k-dynamic-convolution multi30k-en-de-cased multi30k-en-de-pretrained nsp permutation "
    "shakespeare-adaptive-span shakespeare-char-tiny shakespeare-compressive shakespeare-distill "
    "shakespeare-student shakespeare-teacher sop span-corruption sst2-fourier "
    "text-to-text".split()
)
# Published families and variants, for one's own data.
FAMILIES = frozenset(
    "albert bigbird bp-transformer distilbert electra linformer longformer minilm performer "
    "reformer transformer-xl xlnet".split()
)
GLUE = "glue-"  # how the names of its tasks begin
SCREEN = 80  # columns
LONGEST = 100  # columns of the names of a group
# Name of a group -> its title.
GROUPS = {
    "data": "Your data: trifold train NAME data.train=FILE",
    "public": "Public data; what is in brackets is not here: trifold data NAME downloads it",
    "demos": "Demos, which need no data: trifold train NAME",
    "glue": "GLUE",
    "families": "Families, on your data",
    "benchmarks": "Benchmarks",
}
# Groups of which the list of all recipes has only the names.
CONDENSED = ("glue", "families", "benchmarks")


class Listed(NamedTuple):
    """A recipe in the list. missing: what it reads and is not here."""

    name: str
    missing: list[str]
    description: str
    group: str

    def line(self, width: int, *, is_short: bool) -> str:
        """The line about the recipe, whose name has `width` columns; a short one has only the first
        missing name.
        """
        names = [*dict.fromkeys(map(_dataset_or_file, self.missing))]
        if is_short:
            names[1:] = ["…"] if names[1:] else []
        missing = ""
        if self.group not in ("data", "families") and names:
            missing = f" [{', '.join(names)}]"
        return f"  {self.name:{width}}  {self.description}{missing}"


def run(
    word: Annotated[
        str | None, argument("[WORD]", "A group, or a word: gpt, ner, shakespeare, ….")
    ] = None,
    json: Json = False,
) -> None:
    """List the recipes that come with trifold; each is a whole experiment for `trifold train`.

    In brackets is a dataset, file or run that a recipe reads and that is not here; `trifold data
    NAME` downloads a dataset.
    """
    from trifold.recipe import included_recipes, missing_files

    recipes = [
        Listed(name, missing_files(values), values["description"], _group_of(name, values))
        for name, values in sorted(included_recipes().items())
    ]
    if word is not None:
        recipes = [*_find(recipes, word)]
    if json:
        print_json([recipe._asdict() for recipe in recipes])
        return
    if word is not None:
        found = (_block(recipes, group, is_short=False) for group in GROUPS)
        print("\n\n".join(filter(None, found)))
        return
    blocks = [_block(recipes, group, is_short=True) for group in GROUPS if group not in CONDENSED]
    print("\n\n".join([*blocks, "\n".join(_names(recipes, group) for group in CONDENSED)]))


def _group_of(name: str, values: Mapping[str, Any]) -> str:
    """The group of an included recipe."""
    source = values.get("data", {}).get("train")
    if name in BENCHMARKS:
        return "benchmarks"
    if name.startswith(GLUE):
        return "glue"
    if name in FAMILIES:
        return "families"
    if not source:
        return "data"
    return "demos" if str(source).startswith("embedded:") else "public"


def _find(recipes: list[Listed], word: str) -> Iterator[Listed]:
    """The recipes of a group, or those that a word means or that have one in their lines which
    begins with it. Raises UsageError if there is none.
    """
    from trifold.suggest import recipe_meant

    meant = recipe_meant(word)
    begins_a_word = re.compile(rf"(?<!\w){re.escape(word)}", re.IGNORECASE)
    found = [recipe for recipe in recipes if word in (recipe.group, recipe.name)]
    found = found or [
        recipe
        for recipe in recipes
        if recipe.name == meant or begins_a_word.search(f"{recipe.name} {recipe.description}")
    ]
    if not found:
        raise UsageError(
            f"{word!r}: no such recipe; leave it out, or name a group: {join_or([*GROUPS])}"
        )
    yield from found


def _names(recipes: list[Listed], group: str) -> str:
    """The names of a group, and the command that describes them."""
    names = ", ".join(recipe.name for recipe in recipes if recipe.group == group)
    line = f"{GROUPS[group]} (trifold recipes {group}): {names}"
    return wrapped(shorten(line, LONGEST, break_on_hyphens=False, placeholder=" …"), SCREEN)


def _block(recipes: list[Listed], group: str, *, is_short: bool) -> str:
    """The title and the lines of a group, which may be short."""
    members = [recipe for recipe in recipes if recipe.group == group]
    if not members:
        return ""
    width = max(len(recipe.name) for recipe in members)
    lines = [recipe.line(width, is_short=is_short) for recipe in members]
    text = "\n".join(wrapped(line, SCREEN) for line in lines)
    return f"{GROUPS[group]}\n{text}"


def _dataset_or_file(file: str) -> str:
    """The name of the dataset that a missing file belongs to, or the file."""
    from trifold.data import expand_path
    from trifold.data.catalog import find_dataset

    dataset = find_dataset(expand_path(file))
    return file if dataset is None else dataset.name
