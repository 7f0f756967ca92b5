"""Scripts for fake executors, and executors that watch or disturb what they run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conftest import Clock
from fakes import FakeExecutor, kind_of, measured, probed

import autocompile
from autocompile.api import Parts, tune_with
from autocompile.commands.verify import request_for
from autocompile.execute.executor import Ended, Ending, Event, Job
from autocompile.progress import Progress
from autocompile.protocol.requests import read_request
from autocompile.request import Request as Asked
from autocompile.settings.searchspace import SearchSpace
from autocompile.settings.tuned import Tuned
from autocompile.store.targets import target_spec
from autocompile.testing import TimedExecutor

Request = Mapping[str, Any]
Script = Callable[[Request], Ending]

TRUTH = {"default": 1.2, "max-autotune": 1.5}
SPACE = SearchSpace(batch_sizes=(4,))


def is_eager(request: Request) -> bool:
    return bool(request["config"]["backend"] == "eager")


def is_compiled(request: Request) -> bool:
    return not is_eager(request)


def is_raced(request: Request) -> bool:
    return "repeats" in request


def is_best(request: Request) -> bool:
    """Whether it is about the setting that is the fastest in ``TRUTH``."""
    return bool(request["config"]["mode"] == "max-autotune")


def is_best_raced(request: Request) -> bool:
    return is_best(request) and is_raced(request)


def speeds(truth: Mapping[str, float], **more: Any) -> Script:
    """Speed-ups by mode."""
    return lambda r: measured(
        1.0 if is_eager(r) else truth[r["config"]["mode"]], **more
    )


def script(request: Request) -> Ending:
    """Speed-ups of ``TRUTH``; dynamic shapes take longer to compile."""
    if is_eager(request):
        return measured(1.0, noise=0.005)
    compile_s = 2.0 if request["config"]["dynamic"] else 1.0
    return measured(TRUTH[request["config"]["mode"]], compile_s=compile_s)


def where(condition: Callable[[Request], bool], then: Ending | Script) -> Script:
    """``script`` but for some requests."""

    def changed(request: Request) -> Ending:
        if not condition(request):
            return script(request)
        return then if isinstance(then, Ending) else then(request)

    return changed


def tune(
    target: Any,
    executor: Any = None,
    *,
    only: Tuned | None = None,
    clock: Callable[[], float] = time.monotonic,
    progress: Any = "auto",
    **options: Any,
) -> autocompile.Result:
    """``autocompile.tune`` with an executor and a clock of the test's.

    Args:
        only: settings that are tried again, as ``autocompile verify`` does.
    """
    if only is None:
        request = Asked.of(target_spec(target), options)
    else:
        request = request_for(only, str(target), options)
    return tune_with(request, Parts(executor, progress, clock))


def tuned(
    target: Path, script: Script | FakeExecutor = script, **options: Any
) -> autocompile.Result:
    """A run at batch size 4, if nothing else is asked for."""
    executor = script if isinstance(script, FakeExecutor) else FakeExecutor(script)
    return tune(target, executor, **{"space": SPACE, **options})


def with_modes(script: Script, *modes: str, **more: Any) -> FakeExecutor:
    """An executor on a machine where these modes differ."""
    return FakeExecutor(script, probed(modes={m: m for m in modes}), **more)


def target_with(**facts: Any) -> Ending:
    """The probe of a target of which something more is known."""
    return probed(target={**probed().payload["target"], **facts})


def searched(executor: FakeExecutor) -> list[dict[str, Any]]:
    """The requests of the search."""
    return [request for request in executor.requests if not is_raced(request)]


class Listener(Progress):
    """Keeps what a user is told."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.races: list[int | None] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)

    def racing(
        self, phase: str, batch_size: int | None, sides: int, number: int
    ) -> None:
        self.races.append(batch_size)


class Recorder(FakeExecutor):
    """Keeps the jobs, what each is asked for, and how many others ran when it was started."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.jobs: list[tuple[Job, str, int]] = []
        self.asked: dict[int, dict[str, Any]] = {}
        self._alive: set[int] = set()

    def start(self, job: Job) -> None:
        request = read_request(job.folder)
        kind = kind_of(request)
        self.jobs.append((job, kind, len(self._alive)))
        self.asked[job.number] = request.to_dict()
        self._alive.add(job.number)
        super().start(job)

    def wait(self, timeout_s: float) -> list[Event]:
        events = super().wait(timeout_s)
        self._alive -= {e.number for e in events if isinstance(e, Ended)}
        return events

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        """What jobs of a kind were asked for."""
        return [self.asked[job.number] for job, kind, _ in self.jobs if kind in kinds]

    @property
    def fresh(self) -> list[Job]:
        """The jobs with a new interpreter, those of exported code left out."""
        return [job for job, kind, _ in self.jobs if job.fresh and kind != "exported"]


class Timed(TimedExecutor):
    """Jobs by the clock of a test, of which some never end.

    Args:
        hangs: whether a job never ends by itself, by its request.
    """

    def __init__(
        self,
        script: Script,
        clock: Clock,
        probe: Ending | None = None,
        slots: int = 1,
        hangs: Callable[[Request], bool] = lambda request: False,
    ) -> None:
        super().__init__(script, clock, probe, slots)
        self._hangs = hangs
        self.cancelled: list[int] = []

    def takes_s(self, job: Job, ending: Ending) -> float:
        hangs = self._hangs(read_request(job.folder).to_dict())
        return math.inf if hangs else ending.wall_s

    def cancel(self, number: int) -> None:
        super().cancel(number)
        self.cancelled.append(number)
