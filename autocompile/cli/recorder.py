"""The command ``record``: run a program and note what its model is called with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from autocompile.errors import ExitCode, UsageError

Program = Annotated[
    list[str],
    typer.Argument(
        metavar="-- PROGRAM", help="such as  -- python serve.py --port 8000"
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FILE", help="where to; calls.json if left out"
    ),
]


def record(program: Program, output: Output = Path("calls.json")) -> None:
    """Run a program and note what its model is called with."""
    python, *rest = (
        program if Path(program[0]).name.startswith("python") else ["", *program]
    )
    if not rest or not (rest[0].endswith(".py") or rest[0] == "-m"):
        raise UsageError(
            f"{' '.join(program)} is no Python program that can be recorded",
            hint="autocompile record -- python serve.py",
        )
    command = [
        python or sys.executable,
        "-m",
        "autocompile.runtime.recording",
        str(output),
        *rest,
    ]
    try:
        code = subprocess.run(command).returncode
    except OSError as error:
        raise UsageError(f"{command[0]} does not start: {error.strerror}") from error
    raise typer.Exit(code if code >= 0 else ExitCode.INTERRUPTED)
