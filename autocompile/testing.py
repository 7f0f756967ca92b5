"""Plays trials instead of running them: the real ``tune`` in about a second, without torch.

For whoever tries a sampler, a budget or a change of the search on what was recorded before, and for
tests. Nothing here is an option of the command line.

    recorded = Recorded.read("last")
    result = replay(recorded, budget_s=60, sampler="tpe")
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autocompile.api import Parts, tune_with
from autocompile.errors import RunError, UsageError
from autocompile.execute.executor import Ended, Ending, Event, Job, Stepped, Told
from autocompile.progress import Progress
from autocompile.protocol.requests import ProbeRequest, TrialRequest, read_request
from autocompile.protocol.requests import Request as ChildRequest
from autocompile.request import Request
from autocompile.result import Result
from autocompile.settings.config import CompileConfig, Setting
from autocompile.settings.phases import FORWARD
from autocompile.space.space import Space
from autocompile.store import runs
from autocompile.store.record import EXPORTED, Outcome, Record, Step
from autocompile.store.run import Run

__all__ = [
    "Clock",
    "Recorded",
    "ReplayExecutor",
    "ScriptedExecutor",
    "TimedExecutor",
    "failed",
    "kind_of",
    "measured",
    "probed",
    "replay",
]

Script = Callable[[Mapping[str, Any]], Ending]
"""Decides how a trial ends, by its request: the content of ``request.json``, and the ``config``.

Of a race it decides for each side, whose request has the number of its first trial as ``repeats``.
"""

# Compiling from a warm cache, as a share of a cold one: of settings that were never raced. As in
# studies/search/replay.py.
_WARM = 1 / 3


# --- how trials end -----------------------------------------------------------------------------


def measured(
    speedup: float,
    *,
    eager_s: float = 1e-3,
    noise: float = 0.002,
    rounds: int = 8,
    compile_s: float = 1.0,
    flags: Sequence[str] = (),
    **more: Any,
) -> Ending:
    """A successful trial: ``rounds`` pairs of blocks around a speed-up.

    Args:
        noise: relative half-range of the compiled blocks, spread evenly.
        flags: of the measurement, such as ``eager_slowed``.
        more: further keys of the payload, such as ``graph_breaks``.
    """
    spread = [noise * (2 * i / max(1, rounds - 1) - 1) for i in range(rounds)]
    payload = {
        "measurement": {
            "eager_s": [eager_s] * rounds,
            "compiled_s": [eager_s / speedup * (1 + s) for s in spread],
            "calls": [1, 1],
            "flags": list(flags),
        },
        "compile_s": compile_s,
        "graphs": 1,
        "graph_breaks": 0,
        "recompiles": 0,
    }
    return Ending(
        Outcome.OK, Step.EXIT, payload={**payload, **more}, wall_s=compile_s + 1
    )


def failed(outcome: str, step: str = "compile", message: str = "") -> Ending:
    """A failed trial."""
    return Ending(Outcome(outcome), Step(step), message or outcome, wall_s=1.0)


def probed(**more: Any) -> Ending:
    """A probe of a machine with inductor, two modes that differ, and a plain module."""
    payload = {
        "environment": {
            "torch": "2.13.0",
            "python": "3.11.7",
            "platform": "Linux",
            "device": "cpu",
            "device_name": "a CPU",
            "cores": 2,
            "threads": 1,
            "cuda": None,
        },
        "backends": {"inductor": "", "cudagraphs": "no CUDA device"},
        "all_backends": ["aot_eager", "cudagraphs", "inductor"],
        "modes": {
            "default": "default",
            "reduce-overhead": "default",
            "max-autotune": "max-autotune",
        },
        "target": {
            "kind": "functions",
            "description": "Linear",
            "parameters": 10,
            "phases": [FORWARD],
            "algorithm": None,
            "own_batch_size": {},
            "choices": {},
        },
    }
    return Ending(Outcome.OK, Step.EXIT, payload={**payload, **more}, wall_s=0.1)


# --- executors ----------------------------------------------------------------------------------


def kind_of(request: ChildRequest) -> str:
    """The kind of a request; of trials also ``race``, and ``exported`` for exported code."""
    if not isinstance(request, TrialRequest) or not request.is_race:
        return request.kind
    return "exported" if request.is_exported else "race"


class ScriptedExecutor:
    """An :class:`autocompile.execute.executor.Executor` whose trials a function decides, at once.

    Args:
        script: returns the ending of a trial for its request.
        probe: the ending of the probe.
        slots: how many jobs may run at once; they end in the order of their start.

    Attributes:
        requests: all started requests in order, without the probe.
    """

    def __init__(
        self, script: Script, probe: Ending | None = None, slots: int = 1
    ) -> None:
        self._script, self._probe, self.slots = script, probe or probed(), slots
        self.lanes = 1
        self._events: deque[Event] = deque()
        self.requests: list[dict[str, Any]] = []

    def compile_threads(self, alone: bool) -> int:
        """One."""
        return 1

    def start(self, job: Job) -> None:
        """Decide at once how it ends; :meth:`wait` tells."""
        asked = read_request(job.folder)
        request = {**asked.to_dict(), "kind": kind_of(asked)}
        if isinstance(asked, ProbeRequest):
            ending = self._probe
        elif isinstance(asked, TrialRequest):
            is_first = not asked.is_race and len(asked.sides) == 1
            ending = self._trial(request) if is_first else self._several(request)
        else:
            self.requests.append(request)
            ending = self._script(request)
        self._events.append(Stepped(job.number, Step.COMPILE))
        self._events.append(Ended(job.number, ending))

    def _trial(self, request: Mapping[str, Any]) -> Ending:
        """Run the script for the one side of a trial of the search."""
        (side,) = request["sides"]
        own = {**request, "config": side["config"]}
        self.requests.append(own)
        ending = self._script(own)
        payload = {**ending.payload, "checks": side["checks"]}
        return replace(ending, payload={"sides": [payload]})

    def _several(self, request: Mapping[str, Any]) -> Ending:
        """Run the script for each side, of a race or of a search, one after the other."""
        sides, wall_s = [], 0.0
        for side in request["sides"]:
            own = {**request, "config": side["config"]}
            number = side["number"]
            if side["repeats"] is not None:
                own["repeats"] = number = side["repeats"]
            if request["kind"] != "exported":
                self.requests.append(own)
            ending = self._script(own)
            wall_s += ending.wall_s
            said = {"number": number, "outcome": ending.outcome.value}
            said |= {"step": ending.step.value, "message": ending.message}
            said |= {"checks": side["checks"]}
            sides.append({**ending.payload, **said})
        payload = {"sides": sides}
        return Ending(Outcome.OK, Step.EXIT, payload=payload, wall_s=wall_s)

    def wait(self, timeout_s: float) -> list[Event]:
        """Return the next event."""
        return [self._events.popleft()] if self._events else []

    def cancel(self, number: int) -> None:
        """End a job as interrupted."""
        kept = [e for e in self._events if isinstance(e, Told) or e.number != number]
        self._events = deque(kept)
        self._events.append(
            Ended(number, Ending(Outcome.INTERRUPTED, Step.COMPILE, "stopped"))
        )

    def close(self) -> None:
        """Do nothing."""


class Clock:
    """Seconds that pass only while a played job runs."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, seconds: float) -> None:
        """Let so much time pass."""
        self.now_s += seconds


class TimedExecutor(ScriptedExecutor):
    """The same by a clock: a job ends ``wall_s`` after its start, and jobs run side by side.

    Args:
        clock: is to be the clock of the run, too.
    """

    def __init__(
        self,
        script: Script,
        clock: Clock,
        probe: Ending | None = None,
        slots: int = 1,
    ) -> None:
        super().__init__(script, probe, slots)
        self.clock = clock
        self._until: dict[int, tuple[float, Ended]] = {}

    def start(self, job: Job) -> None:
        """Decide how and when it ends."""
        super().start(job)
        ended = self._events.pop()
        assert isinstance(ended, Ended)
        self._until[job.number] = self.clock() + self.takes_s(job, ended.ending), ended

    def takes_s(self, job: Job, ending: Ending) -> float:
        """Seconds from the start of a job to its end."""
        return ending.wall_s

    def wait(self, timeout_s: float) -> list[Event]:
        """Let time pass to the next event, or by ``timeout_s``."""
        if self._events:
            return super().wait(timeout_s)
        now_s = self.clock()
        until_s, ended = min(
            self._until.values(), key=lambda each: each[0], default=(None, None)
        )
        if until_s is None or ended is None or until_s > now_s + timeout_s:
            self.clock.work(timeout_s)
            return []
        self.clock.work(max(0.0, until_s - now_s))
        del self._until[ended.number]
        return [ended]

    def cancel(self, number: int) -> None:
        """End a job at once, as interrupted."""
        ending = Ending(Outcome.INTERRUPTED, Step.COMPILE, "stopped")
        self._until[number] = self.clock(), Ended(number, ending)


# --- what was recorded --------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """How each setting of a target did: of a run, or of a table of one's own.

    Attributes:
        trials: how the trial of each setting ended, eager mode's among them. Nothing else is tried.
        races: of settings that were raced, how each set of fresh processes ended.
        probe: what is known of the machine and the target.
        target: its name, for the report.
    """

    trials: Mapping[Setting, Ending]
    races: Mapping[Setting, Sequence[Ending]] = field(default_factory=dict)
    probe: Ending = field(default_factory=probed)
    target: str = "recorded"

    @classmethod
    def read(cls, run: str | Path = "last") -> Recorded:
        """What a run has recorded, given by its folder, the folder's name, or ``last``.

        Raises:
            RunError: no such run, or none of its trials has ended.
        """
        folder = runs.find(run)
        found, (records, _) = Run.read(folder), folder.read()
        ended = [r for r in records if r.outcome is not Outcome.INTERRUPTED]
        trials = {Setting.of(r): _ending(r) for r in ended if r.role == "search"}
        if not trials:
            raise RunError(
                f"{folder.path} has no trial that has ended, so there is nothing to play",
                hint="autocompile list",
            )
        races: dict[Setting, list[Ending]] = {}
        for record in ended:
            if record.role not in ("search", EXPORTED):
                races.setdefault(Setting.of(record), []).append(_ending(record))
        # It imports, builds and calls the target once, as every trial does.
        begins = ("import", "build", "eager")
        wall_s = max(sum(r.step_s.get(s, 0.0) for s in begins) for r in ended)
        facts = {"environment": found.environment, "target": found.target}
        probe = replace(probed(**facts), wall_s=wall_s)
        return cls(trials, races, probe, found.request.target)

    @property
    def spaces(self) -> dict[str, Space]:
        """The recorded settings of each phase, baselines first."""
        ordered = sorted(
            self.trials, key=lambda setting: not setting.config.is_baseline
        )
        return {
            phase: Space(tuple(s for s in ordered if s.phase == phase), {})
            for phase in dict.fromkeys(s.phase for s in self.trials)
        }


def _ending(record: Record) -> Ending:
    """How the job of a record ended."""
    return Ending(
        record.outcome,
        record.step,
        record.message,
        payload=record.to_dict(),
        wall_s=record.wall_s,
        step_s=record.step_s,
    )


class ReplayExecutor(TimedExecutor):
    """Answers probes, trials and races from what was recorded, by a simulated clock.

    A race plays the recorded sets of each setting in turn, and begins anew after the last. A
    setting that was never raced shows the figures of its trial again. Times are those that were
    recorded, whatever ran beside a trial then and does now; limits of time are not applied.

    Args:
        slots: how many trials run side by side.
    """

    def __init__(self, recorded: Recorded, clock: Clock, slots: int = 1) -> None:
        super().__init__(self._played, clock, recorded.probe, slots)
        self._recorded = recorded
        self._sets = Counter[Setting]()

    def _played(self, request: Mapping[str, Any]) -> Ending:
        phase = request["phase"]
        config = CompileConfig.from_dict(request["config"], phase)
        setting = Setting(config, request["batch_size"], phase)
        trial = self._recorded.trials.get(setting)
        if trial is None:
            return failed("infrastructure", "import", "it was not recorded")
        if "repeats" not in request:
            return trial
        sets = self._recorded.races.get(setting) or [_warm(trial)]
        number = self._sets[setting]
        self._sets[setting] += 1
        return sets[number % len(sets)]


def _warm(trial: Ending) -> Ending:
    """A trial again, with its compiled code in the cache."""
    compile_s = trial.payload.get("compile_s") or 0.0
    payload = {**trial.payload, "compile_s": _WARM * compile_s}
    wall_s = max(0.0, trial.wall_s - (1 - _WARM) * compile_s)
    return replace(trial, payload=payload, wall_s=wall_s)


def replay(
    recorded: Recorded | str | Path = "last",
    *,
    slots: int = 1,
    progress: Progress | str = "none",
    **options: Any,
) -> Result:
    """Tune as :func:`autocompile.tune` does, on recorded trials and by a simulated clock.

    Args:
        recorded: or the run that recorded them, as :meth:`Recorded.read` takes it.
        slots: how many trials run side by side.
        options: those of :func:`autocompile.tune`, such as ``budget_s`` and ``sampler``. Without
            ``run_dir`` the run is written to a folder that is removed when the process ends.

    Raises:
        RunError, UsageError, NothingWorked: as of :func:`autocompile.tune`.
    """
    if not isinstance(recorded, Recorded):
        recorded = Recorded.read(recorded)
    clock = Clock()
    _demand_playable(recorded)
    if options.get("run_dir") is None:
        folder = tempfile.mkdtemp(prefix="replay-")
        # The result reads from it until then.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        options["run_dir"] = Path(folder) / "run"
    if options.get("phases") is None:
        options["phases"] = tuple(recorded.spaces)
    request = Request.of(recorded.target, options)
    for phase in request.phases or ():
        if phase not in recorded.spaces:
            raise UsageError(
                f"the phase {phase!r} was not recorded",
                hint=f"phases={tuple(recorded.spaces)!r}",
            )
    spaces = {n: s for n, s in recorded.spaces.items() if n in (request.phases or ())}
    executor = ReplayExecutor(recorded, clock, slots)
    return tune_with(request, Parts(executor, progress, clock, spaces=spaces))


def _demand_playable(recorded: Recorded) -> None:
    """Raise a UsageError where there is nothing to play, or the probe has no such phase."""
    if not recorded.trials:
        raise UsageError(
            "there is no trial to play: Recorded(trials) is empty",
            "each setting that is to be tried needs an ending, eager mode among them",
            hint="Recorded({Setting(EAGER, 4, 'forward'): measured(1.0), ...})",
        )
    known = recorded.probe.payload["target"]["phases"]
    unknown = [phase for phase in recorded.spaces if phase not in known]
    if unknown:
        raise UsageError(
            f"settings of {', '.join(unknown)} were recorded, and the probe knows "
            f"{', '.join(known)} only",
            hint="Recorded(trials, probe=probed(target={..., 'phases': [...]}))",
        )
