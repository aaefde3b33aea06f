"""Hostile folders: valid folders of every kind with random mutations, opened by every entry point
under watch.

`python -m tests.hostile` makes the trials. `valid` makes the folders, `mutations` and `json_values`
damage them, `entries` open them, `watch` watches, `trials` judges."""
