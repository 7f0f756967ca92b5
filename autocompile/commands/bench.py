"""Single jobs in processes of their own, for commands that keep no run."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autocompile.errors import TargetError, UsageError
from autocompile.execute.exclusive import held
from autocompile.execute.executor import Ending
from autocompile.execute.job import JobFactory
from autocompile.execute.local import Isolation, LocalExecutor
from autocompile.progress import Progress
from autocompile.protocol.requests import Request
from autocompile.protocol.results import ProbeResult
from autocompile.search.jobs import run_job
from autocompile.search.opening import probe_all
from autocompile.space.plan import Plan
from autocompile.store.record import RunFolder

__all__ = ["Bench", "bench", "end_of", "log_shown"]


class Bench:
    """Runs jobs one after another in a temporary folder."""

    def __init__(self, plan: Plan, folder: Path, timeout_s: float, executor: LocalExecutor) -> None:
        run = RunFolder(folder)
        run.create()
        self.folder, self.log = folder, folder
        self._plan, self._executor = plan, executor
        self._jobs = JobFactory(run, plan.header, timeout_s, None, pythons=dict(plan.pythons))

    def run(self, kind: type[Request], fresh: bool = False, **asked: Any) -> Ending:
        """Run what a request asks for; ``fresh`` in an interpreter of its own."""
        number = self._jobs.next_number()
        job = self._jobs.job(kind(header=self._jobs.header, number=number, **asked), fresh=fresh)
        self.log = job.folder / "log.txt"
        return run_job(self._executor, job, Progress())

    def probed(self) -> Mapping[str, ProbeResult]:
        """What the probe of each environment found, the tuner's own first."""
        with log_shown():
            return probe_all(self._plan, self._jobs, self._executor, Progress())[1]


@contextlib.contextmanager
def log_shown() -> Iterator[None]:
    """Show the end of the log that an error names, since its folder will be gone."""
    try:
        yield
    except UsageError as error:
        *details, last = error.details or ("",)
        if not last.startswith("log: "):
            raise
        raise TargetError(error.what, *details, *end_of(Path(last.removeprefix("log: ")))) from None


def end_of(log: Path) -> list[str]:
    """The last lines of a log, enough for the end of a traceback."""
    return log.read_text("utf-8", "replace").strip().splitlines()[-12:]


@contextlib.contextmanager
def bench(
    plan: Plan, timeout_s: float, isolation: Isolation = "auto", wait: bool = True
) -> Iterator[Bench]:
    """A bench whose folder and processes are gone afterwards; waits until the machine is free."""
    with (
        held(f"trying {plan.target}", lambda text: print(text, file=sys.stderr), wait=wait),
        tempfile.TemporaryDirectory(prefix="autocompile-") as scratch,
        contextlib.closing(LocalExecutor(isolation=isolation)) as executor,
    ):
        yield Bench(plan, Path(scratch), timeout_s, executor)
