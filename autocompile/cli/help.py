"""``--help`` on one screen, and ``--help-all``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from autocompile.settings.option import COMMON


class Short(TyperCommand):
    """A command of many options, whose ``--help`` shows what nine of ten need.

    ``--help-all`` shows all of them.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without options that stand in other panels than the common one."""
        seldom = (
            [] if ctx.meta.get("all") else [p for p in self.params if _is_seldom(p)]
        )
        _hide(seldom, True)
        try:
            super().format_help(ctx, formatter)
        finally:
            _hide(seldom, False)


def _hide(params: Sequence[Any], hidden: bool) -> None:
    for each in params:
        each.hidden = hidden


def _is_seldom(param: Any) -> bool:
    return getattr(param, "rich_help_panel", None) not in (None, "", COMMON)


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.meta["all"] = True
        typer.echo(ctx.get_help(), color=ctx.color)
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        is_eager=True,
        callback=_show_all,
        help="Show all options and exit.",
    ),
]
"""The parameter of such a command."""
