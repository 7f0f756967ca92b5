"""What ``--help`` says, of every command, as plain text of 80 columns."""

from __future__ import annotations

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from autocompile.cli.commands import app
from autocompile.settings.dimensions import SEARCHED

PANELS = ["Common", "Search", "Limits and CI", "Measuring", "Other machines", "Output"]
COMMANDS = list(get_command(app).commands)  # type: ignore[attr-defined]


def shown(*args: str) -> str:
    done = CliRunner().invoke(app, [*args, "--help"], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_help_is_plain_text_of_80_columns(command: list[str]) -> None:
    text = shown(*command)
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"<.*>|\w\.\.\.$", text, re.M), text


def test_summaries_of_commands_are_a_line_each() -> None:
    listed = shown().split("Commands:")[1].strip().splitlines()
    assert [line.split()[0] for line in listed] == COMMANDS
    assert all(line.endswith(".") for line in listed), listed


def test_options_of_tune_stand_in_panels() -> None:
    text = shown("tune")
    heads = [head for head in re.findall(r"^([A-Z][\w ]+):$", text, re.M) if head in PANELS]
    assert heads == PANELS
    search = text.split("\nSearch:")[1].split("\nLimits and CI:")[0]
    assert all(f"  {d.flag} LIST" in search for d in SEARCHED)
    assert "Options:" not in text
    assert len(re.findall(r"^ +autocompile tune model\.py", text, re.M)) == 2  # examples


def test_each_option_is_explained() -> None:
    for command in get_command(app).commands.values():  # type: ignore[attr-defined]
        assert all(param.help for param in command.params), command.name
