"""A name that is no recipe is answered with the command that was probably meant."""

from __future__ import annotations

import shlex

import pytest

from trifold.errors import UsageError
from trifold.recipe import load_recipe, recipe_names
from trifold.suggest import RECIPE_OF, WORDS

FILES = {
    "reviews.csv": "text,label\n" + "a good film,yes\na bad film,no\n" * 5,
    "novel.txt": "It was cold.\nIt was dark.\n",
    "my novel.txt": "It was cold.\n",
    "a.en": "a dog\n",
    "a.de": "ein Hund\n",
    "english.txt": "a dog\n",
    "german.txt": "ein Hund\n",
    "model/config.json": "{}",
    "numbers.csv": "1\n2\n",
    "phrases.csv": "Nr;Original;Übersetzung;Kürzel\n"
    "1;Guten Morgen, wie geht es?;Good morning, how are you?;AB\n"
    "2;Ich habe heute keine Zeit.;I have no time today.;CD\n"
    "3;Das Haus ist sehr alt.;The house is very old.;AB\n"
    "4;Wir gehen ins Kino.;We go to the cinema.;CD\n"
    "5;Sie liest ein gutes Buch.;She reads a good book.;AB\n"
    "6;Der Hund schläft noch.;The dog is still asleep.;AB\n",
}
TRAIN = "`trifold train "
# The arguments of `trifold train` -> a part of the error.
ERRORS = {
    "reviews.csv": f"reviews.csv is data (columns 'text' and 'label'), not a recipe; you probably mean {TRAIN}classify data.train=reviews.csv`",
    "reviews.csv train.steps=9": "data.train=reviews.csv train.steps=9`",
    "novel.txt": f"novel.txt is data (plain text), not a recipe; you probably mean {TRAIN}causal data.train=novel.txt`",
    "'my novel.txt'": f"{TRAIN}causal 'data.train=my novel.txt'`",
    "a.en": f"{TRAIN}translate data.train=a.en,a.de`",
    "a.en,a.de": f"{TRAIN}translate data.train=a.en,a.de`",
    "english.txt german.txt": f"{TRAIN}translate data.train=english.txt,german.txt`",
    "data.train=novel.txt": f"data.train=novel.txt is a setting, and a recipe is missing before it; run {TRAIN}causal data.train=novel.txt`",
    "data.train=novel.txt model.preset=bert-tiny": f"run {TRAIN}masked data.train=novel.txt model.preset=bert-tiny`",
    "data.train=reviews.csv start_from=bert": f"run {TRAIN}classify data.train=reviews.csv start_from=bert`",
    "train.steps=9": f"run {TRAIN}RECIPE train.steps=9`",
    "classify reviews.csv": f"reviews.csv is not key=value; data is named by {TRAIN}classify data.train=reviews.csv`",
    "translate a.en a.de": f"{TRAIN}translate data.train=a.en,a.de`",
    "model": f"model is the folder of a model, not a recipe; train it with {TRAIN}RECIPE start_from=model data.train=FILE`",
    "model/config.json": f"model is the folder of a model, not a recipe; train it with {TRAIN}RECIPE start_from=model data.train=FILE`",
    "phrases.csv": f"{TRAIN}translate data.train=phrases.csv data.header=true data.source=Original 'data.target=Übersetzung'`",
    "classify data.columns.text=Review text": "'text' is not key=value; if it belongs to the value before it, put both in quotes: 'data.columns.text=Review text'",
    "classify data.columns.text=The long text train.steps=9": "put both in quotes: 'data.columns.text=The long text'",
    "numbers.csv": "numbers.csv is data, not a recipe, and its columns fit no task that is known; choose a recipe of `trifold recipes`, and name the file as data.train",
    "missing.csv": "no such file or recipe: 'missing.csv'; list them with `trifold recipes`",
    "folder/missing": "folder/missing: no such run (a run has a recipe.yaml)",
    "sentiment": f"unknown recipe 'sentiment'; did you mean 'classify' (Classify texts or pairs of texts; rate them by numbers)? Run {TRAIN}classify data.train=FILE`",
    "gpt data.train=novel.txt": f"did you mean 'causal' (Write text like yours: a language model)? Run {TRAIN}causal data.train=novel.txt`",
    "Language_Model": "did you mean 'causal'",
    "bert": "did you mean 'masked'",
    "translatoin": "did you mean 'translate'",
    "german-mt": "did you mean 'translate'",
    "multi30k-en-fr": "unknown recipe 'multi30k-en-fr'; did you mean 'multi30k-en-de'?; list them with `trifold recipes`",
    "zzz": "unknown recipe 'zzz'; list them with `trifold recipes`",
}  # fmt: skip


@pytest.mark.parametrize("arguments", ERRORS)
def test_the_command_that_was_meant_is_printed(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    name, *others = shlex.split(arguments)
    with pytest.raises(UsageError) as error:
        load_recipe(name, others)
    assert ERRORS[arguments] in error.value.message


def test_words_are_of_recipes_for_data_of_ones_own_and_of_one_each():
    words = [word for listed in WORDS.values() for word in listed.split()]
    assert len({*words}) == len(words)
    assert {*WORDS} == {*RECIPE_OF.values()} < {*recipe_names()}
    assert {*words}.isdisjoint(recipe_names())


def test_a_recipe_may_have_any_suffix(tmp_path):
    path = tmp_path / "mine.conf"
    path.write_text("data: {train: a.txt}\ntask: {kind: causal}\n", encoding="utf-8")
    assert load_recipe(path).task.kind == "causal"
