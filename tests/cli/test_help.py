"""What ``--help`` says, of every command, in 80 columns."""

from __future__ import annotations

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from autocompile.cli.commands import app
from autocompile.settings.dimensions import SEARCHED

PANELS = [
    "Common",
    "What may be chosen",
    "What is tried",
    "How it is called and compared",
    "Processes",
    "Other machines",
    "Output",
]
COMMANDS = list(get_command(app).commands)  # type: ignore[attr-defined]


def shown(*args: str, how: str = "--help") -> str:
    done = CliRunner().invoke(app, [*args, how], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_help_fits_80_columns_without_colours_and_nothing_is_cut_off(
    command: list[str],
) -> None:
    text = shown(*command)
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"\x1b|…|\w\.\.\.( |$)", text), text


def test_summaries_of_commands_are_a_line_each() -> None:
    first = "─ Start here ─"
    listed = re.findall(r"^│ (\w+) +(.*?) *│$", shown().split(first)[1], re.M)
    assert [name for name, _ in listed] == COMMANDS
    assert COMMANDS[0] == "tune"
    assert "autocompile tune model.py" in shown().split(first)[0]
    assert all(line.endswith(".") for _, line in listed), listed


def test_what_nine_of_ten_need_fits_one_screen() -> None:
    text = shown("tune")
    assert len(text.splitlines()) <= 40
    assert re.findall(r"^╭─ ([\w ]+) ─", text, re.M) == [
        "Arguments",
        "Options",
        "Common",
    ]
    assert "--help-all" in text


def test_options_of_tune_stand_in_panels() -> None:
    text = shown("tune", how="--help-all")
    assert re.findall(r"^╭─ ([\w ]+) ─", text, re.M) == [
        "Arguments",
        "Options",
        *PANELS,
    ]
    first = text.split("─ Common ─")[1].split("─ What may be chosen ─")[0]
    tried = text.split("─ What is tried ─")[1].split("─ How it is called")[0]
    for d in SEARCHED:
        panel = first if d.asked == "batch_sizes" else tried
        assert re.search(rf"│ {d.flag} +LIST ", panel), d.flag
    assert (
        len(re.findall(r"^ +autocompile tune model\.py", text, re.M)) == 2
    )  # examples


def test_each_option_is_explained() -> None:
    for command in get_command(app).commands.values():  # type: ignore[attr-defined]
        assert all(param.help for param in command.params), command.name
