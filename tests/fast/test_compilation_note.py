"""What is printed when Numba compiles."""

import sys

import pytest

numba = pytest.importorskip("numba", reason="the loops need numba: `make setup` installs it")

from numba.core import event  # noqa: E402

from trifold.fast import loops  # noqa: E402
from trifold.fast.compilation_note import NOTE, CompilationNote  # noqa: E402


def compile_two() -> None:
    for number in (1, 2):
        numba.njit(lambda x, number=number: x + number)(3)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_gets_one_line_for_all_that_is_compiled(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setitem(event._registered, "numba:compile", [CompilationNote()])
    compile_two()
    assert capsys.readouterr().err == f"{NOTE}\n" * is_terminal


def test_the_loops_print_it() -> None:
    found = event._registered["numba:compile"]
    assert loops.loop is not None
    assert sum(isinstance(each, CompilationNote) for each in found) == 1
