"""Baselines: the simplest models of each objective, fitted on the training rows of a run and
measured on the rows, and by the scores, that its Transformer is measured by.

rows -> fitted baselines (`table`, one file for each kind) -> predictions -> scores (`scoring`) ->
the comparison with the Transformer (`comparison`); `stored` keeps them in the folder of the run.
"""
