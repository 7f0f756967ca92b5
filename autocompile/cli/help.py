"""``--help`` as plain text of 80 columns: nothing is cut off, and rich is not imported."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

from autocompile.cli.arguments import PANELS

__all__ = ["Command", "Group", "Stopped"]

_LONG = 20  # options that fit one list


class Command(TyperCommand):
    """A command; many options stand in the panels that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown = [(param, param.get_help_record(ctx)) for param in self.get_params(ctx)]
        rows: dict[str, list[tuple[str, str]]] = {}
        for param, record in shown:
            part = "Arguments" if param.param_type_name == "argument" else "Options"
            if part == "Options" and len(shown) > _LONG:
                part = getattr(param, "rich_help_panel", None) or "Output"
            if record:
                name = _with_metavar(record[0], param)
                rows.setdefault(part, []).append((name, record[1]))
        for part in ("Arguments", "Options", *PANELS):
            if part in rows:
                with formatter.section(part):
                    formatter.write_dl(rows[part])


def _with_metavar(name: str, param: Any) -> str:
    """``--budget TIME``: some versions of Typer show the type, as ``--budget <float>``."""
    shown = f" {param.metavar}" if param.metavar and param.param_type_name == "option" else ""
    return re.sub(r" <.*>$", shown, name) if param.metavar else name


class Stopped(Exception):
    """Ctrl-C, carried past Typer, which has an exit code of its own for it."""


class Group(TyperGroup):
    """The program: the summary of each command is shown whole."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(n, c.get_short_help_str(10_000)) for n, c in commands if c])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped from None
