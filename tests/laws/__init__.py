"""Laws: tests that hold for every part of a model and every allowed pair of parts.

    parts.py     the table of parts: one line each, with the values of the config that switch it on
    configs.py   the table of configs, which together have every allowed pair of parts; what breaks
                 a law by definition, with the reason
    pairs.py     counts pairs: allowed, covered, rejected with their message
    kernels.py   counts the calls of each fast kernel; a kernel that no law executed fails the run
    models.py    the models of the configs, and texts for them
    test_*.py    one law each

Every law runs with the plain and with the fast operations (conftest.py).
"""
