"""Progress of the installation of `make demo`: a line every few seconds, and the end of a failure."""

import sys

from tools.install import progress, run

LINES = (
    ["Obtaining file:///trifold\n"]
    + [f"Collecting package-{number}\n  Using cached p.metadata\n" for number in range(9)]
    + ["  Downloading torch-2.9.0-cp313-none.whl (820.1 MB)\n", *[None] * 45]
    + ["Installing collected packages: a, b, c\n", *[None] * 25]
)


def test_lines_are_a_few_seconds_apart_and_name_the_package():
    times = iter(range(1_000))
    assert list(progress(LINES, lambda: next(times))) == [
        "setup: found 4 packages, 5 s",
        "setup: found 9 packages, 10 s",
        "setup: package 9: torch (820.1 MB), 15 s",
        "setup: package 9: torch (820.1 MB), 35 s",
        "setup: package 9: torch (820.1 MB), 55 s",
        "setup: installing 3 packages, 60 s",
        "setup: installing 3 packages, 80 s",
    ]


def test_a_failure_prints_the_last_lines_and_its_code(capsys):
    program = "import sys; print('first\\n' * 100, 'ERROR: no such package'); sys.exit(3)"
    assert run([sys.executable, "-c", program]) == 3
    error = capsys.readouterr().err
    assert error.endswith("ERROR: no such package\n\n")
    assert error.count("first") < 40
