"""The command ``record``: run a program and note what its model is called with."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from autocompile.cli.output import say
from autocompile.errors import UsageError
from autocompile.store.call_journal import Called, called_modules

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
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WATCHED = (*_STOPS, signal.SIGCHLD)
_BY_THE_KERNEL = 0x80  # SI_KERNEL of sigaction(2): typed in a terminal
_WITH_A_VALUE = ("-X", "-W")  # options of Python whose value is the next word
_INTERPRETER = re.compile(r"python[0-9.]*")


def record(program: Program, output: Output = Path("calls.json")) -> None:
    """Run a program and note what its model is called with.

    The program ends as it would by itself, by Ctrl-C and SIGTERM too, and with its exit code;
    then the calls are written.
    """
    python, options, rest = _parts_of(program)
    if not output.absolute().parent.is_dir():
        raise UsageError(f"cannot write {output}: there is no such folder")
    with tempfile.TemporaryDirectory(prefix="autocompile-") as folder:
        journal = Path(folder, "calls")
        module = ("-m", "autocompile.runtime.recording", str(journal))
        with _held_signals() as usual:
            command = [python, *options, *module, *rest]
            code = _run(command, usual, lambda: _save(journal, output))
            _write(journal, output, rest[0], code)
    raise typer.Exit(code if code >= 0 else 128 - code)  # as a shell tells a signal


def _parts_of(program: list[str]) -> tuple[str, list[str], list[str]]:
    """The interpreter, its options, and the file or ``-m`` with what follows it."""
    is_named = _INTERPRETER.fullmatch(Path(program[0]).name)
    python, rest = (program[0], program[1:]) if is_named else (sys.executable, program)
    options: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        count = 2 if rest[0] in _WITH_A_VALUE else 1
        options, rest = options + rest[:count], rest[count:]
    is_module = rest[:1] == ["-m"] and len(rest) > 1
    if not (is_module or (rest and rest[0].endswith(".py"))):
        raise UsageError(
            f"{' '.join(program)} is no Python program that can be recorded",
            hint="autocompile record -- python serve.py",
        )
    return python, options, rest


@contextlib.contextmanager
def _held_signals() -> Iterator[set[signal.Signals]]:
    """Context in which no signal ends this process; gives those that were held before."""
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever began us may ignore it
    try:
        yield {signal.Signals(number) for number in usual}
    finally:
        while signal.sigtimedwait(_WATCHED, 0):
            pass  # they were the program's
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


def _run(
    command: list[str], usual: set[signal.Signals], save: Callable[[], Any]
) -> int:
    """Run a program to its end, which signals to this process reach too; its exit code.

    What has been called by then is saved first: who stops a program may kill it a moment later.
    Ctrl-C in a terminal goes to both processes: it is not passed on.
    """

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)

    try:
        process = subprocess.Popen(command, preexec_fn=begin)
        while process.poll() is None:
            seen = signal.sigwaitinfo(_WATCHED)
            if seen.si_signo in _STOPS:
                with contextlib.suppress(UsageError):  # said at the end
                    save()
                if seen.si_code != _BY_THE_KERNEL:
                    process.send_signal(seen.si_signo)
    except OSError as error:
        raise UsageError(f"{command[0]} does not start: {error.strerror}") from error
    return process.returncode


def _write(journal: Path, output: Path, program: str, code: int) -> None:
    """Write the calls of the module that took most time, and say what was seen."""
    modules = _save(journal, output)
    if not modules:
        say(f"error: no call of an nn.Module was seen in {program}: nothing is written")
        raise typer.Exit(code if code > 0 else 128 - code if code < 0 else 2)
    calls = modules[0].calls()
    also = ", ".join(f"{one.model} ({len(one.order)})" for one in modules[1:4])
    say(
        f"{len(calls.order)} calls of {calls.model}, {len(calls.distinct)} kinds → {output}"
        + (f"; not written: {also}" if also else "")
    )


def _save(journal: Path, output: Path) -> list[Called]:
    """Write the calls that there are, if any; the modules, that which was written first."""
    modules = called_modules(journal)
    try:
        if modules:
            modules[0].calls().write(output)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from error
    return modules
