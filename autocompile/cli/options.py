"""The options of the commands, made of the fields of a Request.

A command gets what was typed as values, by the place of their field. Every mistake is a
UsageError, and is found before the command begins.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from autocompile.commands.toml import space_of
from autocompile.errors import UsageError
from autocompile.request import Request
from autocompile.settings.option import (
    FLAG,
    OUTPUT,
    Declared,
    Kind,
    choice,
    declared,
    nested,
)

DECLARED = {".".join(each.path): each for each in declared(Request)}
"""Every option of a Request, by its field; ``limits.latency_s`` is one of a group."""
Asked = Mapping[tuple[str, ...], Any]
"""The values of the options that were typed, by the path of their field."""


def of_search() -> list[Declared]:
    """The dimensions of a search, and the file that may list them."""
    return [each for each in DECLARED.values() if each.path[0] == "space"]


def named(name: str, **changes: Any) -> Declared:
    """The option of a field; a command may say more exactly what it means there.

    Args:
        changes: fields of its :class:`Option`, such as ``help``.
    """
    each = DECLARED[name]
    return replace(each, option=replace(each.option, **changes))


def takes(every: Iterable[Declared]) -> Callable[[Callable[..., None]], Any]:
    """Give a command these options, in the place of its parameter ``asked``."""
    by_flag: dict[str, list[Declared]] = {}
    for each in every:
        by_flag.setdefault(each.option.flag, []).append(each)

    def decorate(command: Callable[..., None]) -> Any:
        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters: list[inspect.Parameter] = []
        for p in own:
            if p.name == "asked":
                parameters += map(_parameter, by_flag.values())
            else:
                parameters.append(p.replace(kind=p.KEYWORD_ONLY))

        @functools.wraps(command)
        def run(**typed: Any) -> None:
            asked: dict[tuple[str, ...], Any] = {}
            for flag, fields in by_flag.items():
                asked |= _read(flag, fields, typed.pop(fields[0].name))
            command(**typed, asked=asked)

        changed: Any = run
        changed.__signature__ = inspect.Signature(parameters)
        changed.__annotations__ = {p.name: p.annotation for p in parameters}
        return changed

    return decorate


def _parameter(fields: Sequence[Declared]) -> inspect.Parameter:
    """One parameter of a command for the fields that share a flag."""
    first = fields[0].option

    def check(context: typer.Context, value: Any) -> Any:
        try:
            _read(first.flag, fields, value)
        except UsageError as error:
            hint = error.hint or f"{context.command_path} --help"
            raise UsageError(error.what, *error.details, hint=hint) from None
        return value

    def complete(incomplete: str) -> list[str]:
        return [word for word in first.kind.words if word.startswith(incomplete)]

    kind: Any = list[str] | None if first.kind.repeats else str | None
    more: dict[str, Any] = {"metavar": first.kind.word, "autocompletion": complete}
    if first.kind is FLAG:
        kind, more = bool, {}
    said = typer.Option(
        first.flag,
        help=first.help,
        rich_help_panel=first.panel,
        callback=check,
        show_default=False,
        **more,
    )
    return inspect.Parameter(
        fields[0].name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if first.kind is FLAG else None,
        annotation=Annotated[kind, said],
    )


def _read(
    flag: str, fields: Sequence[Declared], value: Any
) -> dict[tuple[str, ...], Any]:
    """What was typed for a flag as the values of its fields."""
    if value in (None, False, []):  # an empty text was typed
        return {}
    texts = value if isinstance(value, list) else [str(value)]
    found = {each.path: each.option.kind.read(flag, texts) for each in fields}
    return {path: one for path, one in found.items() if one is not None}


def given(asked: Asked) -> dict[str, Any]:
    """What was asked for as keywords of :meth:`Request.of`.

    What names a dimension goes before what a ``--space`` file says.
    """
    lists = {
        path[1]: one for path, one in asked.items() if path[0] == "space" != path[-1]
    }
    others = {path: one for path, one in asked.items() if path[0] != "space"}
    return {**nested(others), "space": space_of(asked.get(("space",)), lists)}


# Options of commands that no request has --------------------------------------------------


def own(kind: Kind, flag: str, help: str, panel: str = "") -> Any:
    """An option of one command, with a value of a kind."""

    def read(text: Any) -> Any:
        return kind.read(flag, [str(text)])

    return typer.Option(
        flag,
        metavar=kind.word,
        parser=read,
        show_default=False,
        help=help,
        rich_help_panel=panel,
    )


def texts(word: str, flag: str, help: str, panel: str = "") -> Any:
    """An option of one command that may be typed several times, and that it reads itself."""
    return typer.Option(flag, metavar=word, help=help, rich_help_panel=panel)


def switch(names: str, help: str, panel: str = "") -> Any:
    """An option of one command without a value."""
    return typer.Option(*names.split(), help=help, rich_help_panel=panel)


_TARGET = "model.py, PATH:NAME, package.module:NAME or timm:NAME"
Target = Annotated[str, typer.Argument(metavar="TARGET", help=_TARGET)]
_JSON = "print one JSON document and nothing else"
Json = Annotated[bool, switch("--json", _JSON, OUTPUT)]
_PROGRESS = choice("KIND", "auto", "plain", "none")
_SHOWN = "what stderr shows: auto (if left out), plain or none"
Progress = Annotated[str, own(_PROGRESS, "--progress", _SHOWN, OUTPUT)]
Verbose = Annotated[bool, switch("--verbose -v", "say more", OUTPUT)]
