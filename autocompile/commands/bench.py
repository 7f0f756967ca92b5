"""Single jobs in processes of their own, for commands that keep no run.

One of them is here too: settings with their compiled code beside them (``export --with-cache``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autocompile.errors import ExportError, TargetError, UsageError
from autocompile.execute.ending import dump_in
from autocompile.execute.exclusive import held
from autocompile.execute.executor import Ending
from autocompile.execute.job import JobFactory
from autocompile.execute.local import LocalExecutor
from autocompile.progress import Progress
from autocompile.protocol.requests import (
    Header,
    ProbeResult,
    SaveRequest,
    SaveResult,
)
from autocompile.protocol.requests import Request as AnyRequest
from autocompile.request import Request
from autocompile.search.jobs import run_job
from autocompile.search.opening import probe_all
from autocompile.settings.tuned import Tuned, TunedSet
from autocompile.store.record import Outcome, RunFolder

SAMPLE = "autocompile.trial.model.sample:get_model"
_LINES, _BEFORE, _FRAMES = 12, 4, 8  # of a log
_PACKAGE = str(Path(__file__).parents[1])


class Bench:
    """Runs jobs one after another in a temporary folder."""

    def __init__(self, request: Request, folder: Path, executor: LocalExecutor) -> None:
        run = RunFolder(folder)
        run.create()
        self.folder, self.log = folder, folder
        self._request, self._executor = request, executor
        header, others = Header.of(request), request.environments
        self._jobs = JobFactory(run, header, request.timeout_s, None, pythons=others)

    def run(self, kind: type[AnyRequest], fresh: bool = False, **asked: Any) -> Ending:
        """Run what a request asks for; ``fresh`` in an interpreter of its own."""
        number = self._jobs.next_number()
        job = self._jobs.job(
            kind(header=self._jobs.header, number=number, **asked), fresh=fresh
        )
        self.log = job.folder / "log.txt"
        return run_job(self._executor, job, Progress())

    def probed(self) -> Mapping[str, ProbeResult]:
        """What the probe of each environment found, the tuner's own first."""
        with log_shown():
            return probe_all(self._request, self._jobs, self._executor, Progress())[1]


@contextlib.contextmanager
def log_shown() -> Iterator[None]:
    """Show the end of the log that an error names, since its folder will be gone.

    Not where the line of the user's code is named: below it are frames of torch.
    """
    try:
        yield
    except UsageError as error:
        *details, last = error.details or ("",)
        if not last.startswith("log: "):
            raise
        names_a_line = len(details) > 1
        log = [] if names_a_line else end_of(Path(last.removeprefix("log: ")))
        raise TargetError(error.what, *details, *log, hint=error.hint) from None


def end_of(log: Path) -> list[str]:
    """The last lines of a log, enough for the end of a traceback; none if there is no log.

    Of a crash or a hang what was written before it, and the frames of the thread that ran: Python
    writes the innermost one first.
    """
    if not log.exists():  # its process was ended before it had begun
        return []
    text = log.read_text("utf-8", "replace").strip()
    before, frames = dump_in(text)
    if not frames:
        return text.splitlines()[-_LINES:]
    said = [line for line in before.splitlines() if line.strip()]
    others = [line for line in frames if _PACKAGE not in line and "<frozen" not in line]
    return [*said[-_BEFORE:], *others[:_FRAMES]]


@contextlib.contextmanager
def bench(request: Request, wait: bool = True) -> Iterator[Bench]:
    """A bench whose folder and processes are gone afterwards; waits until the machine is free."""
    with (
        held(
            f"trying {request.target}",
            lambda text: print(text, file=sys.stderr),
            wait=wait,
        ),
        tempfile.TemporaryDirectory(prefix="autocompile-") as scratch,
        contextlib.closing(LocalExecutor(isolation=request.isolation)) as executor,
    ):
        yield Bench(request, Path(scratch), executor)


def export_with_cache(settings: Tuned, path: Path, timeout_s: float) -> list[str]:
    """Compile settings once more in a process of their own, and keep what torch made.

    The code is beside the settings, as ``NAME.cache``. Returns lines that say what was written and
    what is not in it.
    """
    cache = path.with_suffix(".cache")
    device = settings.fingerprint.get("device")
    if settings.decided_by.get("ranks", 1) > 1:
        raise ExportError(
            "compiled code of several ranks is not kept: each has code of its own",
            hint="the same command without --with-cache",
        )
    request = Request(
        settings.target,
        device=device,
        calls=Request.decided(settings.target, settings.decided_by).recorded,
        timeout_s=timeout_s,
        isolation="spawn",
    )
    with bench(request) as jobs:
        made = (jobs.folder / cache.name).absolute()
        ending = jobs.run(SaveRequest, settings=settings, file=str(made))
        if ending.outcome is not Outcome.OK:
            raise ExportError(
                f"the settings of {settings.target} cannot be compiled for a cache: "
                f"{ending.outcome.value}: {ending.message}",
                *end_of(jobs.log),
                hint="the same command without --with-cache",
            )
        saved = SaveResult.read(ending.payload)
        left_out = [f"not in the cache: {why}" for why in saved.left_out]
        try:
            if not made.exists():
                path.write_text(TunedSet((settings,)).to_json(), "utf-8")
                return [
                    f"wrote {path}, and no cache: there is nothing to keep",
                    *left_out,
                ]
            sha256 = hashlib.sha256(made.read_bytes()).hexdigest()
            shutil.move(made, cache)
            settings = dataclasses.replace(
                settings, cache={"file": cache.name, "sha256": sha256}
            )
            path.write_text(TunedSet((settings,)).to_json(), "utf-8")
        except OSError as error:
            raise UsageError(
                f"cannot write {error.filename}: {error.strerror}"
            ) from error
    size = f"{cache.stat().st_size / 2**20:.1f} MiB"
    return [f"wrote {path} and {cache} ({size}: {saved.graphs} graphs)", *left_out]
