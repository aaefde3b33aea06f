"""The help of a command: its options in panels, the common ones first."""

import copy
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

import typer
from typer.core import TyperArgument, TyperCommand

Function = TypeVar("Function", bound=Callable[..., Any])
Panels = Mapping[str, Sequence[str]]  # title -> names of parameters

FIRST = "Options"  # the panel of the common options, of --help, and of those that no table names
FLAG_WIDTH = 26  # characters of an option with its value; the help of a longer one is below it


def in_panels(panels: Panels) -> Callable[[Function], Function]:
    """Decorator: show the options of a command in these panels, in this order."""

    def decorate(command: Function) -> Function:
        signature = inspect.signature(command, eval_str=True)
        rest = dict(signature.parameters)
        grouped = [
            _in_panel(rest.pop(name), title) for title, names in panels.items() for name in names
        ]
        parameters = [*rest.values(), *grouped]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _in_panel(parameter: inspect.Parameter, title: str) -> inspect.Parameter:
    """The parameter of an option with the title of its panel. It is passed by name, so that the
    order of parameters is free to be that of the help.
    """
    kind, declared = get_args(parameter.annotation)
    declared = copy.copy(declared)
    declared.rich_help_panel = title
    keyword = inspect.Parameter.KEYWORD_ONLY
    return parameter.replace(kind=keyword, annotation=Annotated[kind, declared])


class PanelCommand(TyperCommand):
    """A command whose help is plain text with a section for each panel."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words after the name of the command: arguments as they are declared, which say
        themselves whether they may be left out or repeated.
        """
        arguments = [argument for argument in self.params if isinstance(argument, TyperArgument)]
        return ["[OPTIONS]", *(str(argument.metavar) for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options, panel by panel."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], FIRST: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if isinstance(parameter, TyperArgument):
                panels["Arguments"].append((str(parameter.metavar), record[1]))
            else:
                title = getattr(parameter, "rich_help_panel", None) or FIRST
                panels.setdefault(title, []).append(record)
        widths = (len(flag) for records in panels.values() for flag, _ in records)
        width = min(FLAG_WIDTH, max(widths))
        for title, records in panels.items():
            if records:
                with formatter.section(bold(title)):
                    aligned = [(flag.ljust(width), help) for flag, help in records]
                    formatter.write_dl(aligned, col_max=FLAG_WIDTH)


def bold(title: str) -> str:
    """A title, which stands out on a terminal that can show it."""
    is_plain = os.environ.get("TERM") == "dumb" or "NO_COLOR" in os.environ
    if is_plain or not sys.stdout.isatty():
        return title
    return typer.style(title, bold=True)
