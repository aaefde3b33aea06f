"""The help of a command shows each option in one panel, and the common ones first."""

import io
import re
import sys

import pytest
import typer
from tests.command_line import Pipe

from trifold.cli import COMMANDS, _app, panels
from trifold.cli.panels import FIRST

MANY = 12  # options that are easily read without panels


def _panels(help: str) -> dict[str, list[str]]:
    """The options in each section of a help."""
    sections = re.split(r"^(\S.*):\n", help, flags=re.MULTILINE)
    return {
        title: re.findall(r"^  (?:-h, )?(--[a-z-]+)", text, re.MULTILINE)
        for title, text in zip(sections[1::2], sections[2::2], strict=True)
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_no_panel_has_many_options(trifold, name):
    parameters = typer.main.get_command(_app([name])).commands[name].params
    options = [parameter for parameter in parameters if parameter.param_type_name == "option"]
    declared = [option.opts[0] for option in options if not option.hidden]
    sections = _panels(trifold(name, "--help").out)
    shown = [option for options in sections.values() for option in options]
    assert sorted(shown) == sorted([*declared, "--help"])
    assert next(title for title, options in sections.items() if options) == FIRST
    assert "--help" in sections[FIRST]
    assert max(map(len, sections.values())) <= MANY


def test_usage_shows_arguments_as_declared(trifold):
    usages = {
        "generate": "Usage: trifold generate [OPTIONS] MODEL [TEXT|-]\n",
        "predict": "Usage: trifold predict [OPTIONS] MODEL [TEXT|TABLE|-]...\n",
        "doctor": "Usage: trifold doctor [OPTIONS]\n",
    }
    for name, usage in usages.items():
        assert trifold(name, "--help").out.startswith(usage)


@pytest.mark.parametrize(
    ("is_terminal", "environment", "is_bold"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": ""}, False)],
)
def test_titles_are_bold_on_a_terminal_that_can_show_them(
    monkeypatch, is_terminal, environment, is_bold
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", Pipe(io.BytesIO()))
    monkeypatch.setattr(sys.stdout, "terminal", is_terminal)
    assert panels.bold("Beams").startswith("\x1b[1m") == is_bold
