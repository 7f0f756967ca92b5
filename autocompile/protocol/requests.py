"""What a trial's process is asked to do, the content of ``request.json``, and what it sends back.

A task fills its result in while it runs, so that what is known is sent even if the task fails
later. Of each side of a trial that is the :class:`~autocompile.store.record.Record` that is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from autocompile.errors import AutocompileError, RunError
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Tuned, TunedSet
from autocompile.store.reading import of_fields, plain
from autocompile.store.record import Checks, Record, TaskResult
from autocompile.store.recorded_calls import RecordedCalls

if TYPE_CHECKING:
    from autocompile.request import Request as Asked


@dataclass(frozen=True)
class Header:
    """What all requests of a run have in common."""

    target: str = ""
    device: str | None = None
    seed: int = 0
    tolerance: float | None = None
    # what the model is called with; None: the target says it
    calls: RecordedCalls | None = None
    ranks: int = 1  # processes of a training step that average gradients
    strategy: str = "ddp"  # how they do it

    @property
    def made_of(self) -> str:
        """All that a target on the CPU depends on; empty without one, or where ranks build it."""
        parts = [self.target, self.seed, plain(self.calls)]
        by_ranks = self.ranks > 1 and self.strategy == "own"
        return json.dumps(parts) if self.target and not by_ranks else ""

    @classmethod
    def of(cls, request: Asked) -> Header:
        """What of a user's request every trial is told."""
        about = request.target, request.device, request.seed, request.tolerance
        return cls(*about, request.recorded, request.ranks, request.strategy)


@dataclass(frozen=True)
class TimingLimits:
    """When to stop timing the sides of a trial beside eager mode.

    A search stops as soon as a speed-up is known well enough or is clearly too low; a race times
    as many rounds of all sides (:meth:`exactly`).
    """

    rounds: int = 8  # at least, unless a call takes very long
    most: int | None = None  # rounds; None: as many as fit
    max_s: float = 0.5
    front_s: float = 1.0  # max_s where a side is near the best
    # of a speed-up's interval, relative; stop when it is this narrow
    half_width: float = 0.01
    beat: float = 0.0  # the best known speed-up; stop when all are clearly below it
    # about; of a GPU three calls at least; a longer call is its own block
    block_s: float = 0.02

    @classmethod
    def exactly(cls, rounds: int, max_s: float, block_s: float = 0.02) -> TimingLimits:
        """So many rounds whatever they show, or as many as fit in ``max_s`` seconds."""
        times = {"max_s": max_s, "front_s": max_s, "block_s": block_s}
        return cls(rounds, rounds, half_width=0.0, **times)


@dataclass(frozen=True)
class ExportedCode:
    """Lines of Python, and the settings that they read from ``tuned.json``."""

    code: str
    settings: Tuned
    called: str = "model"  # the name of what a program calls in place of its model


@dataclass(frozen=True)
class Side:
    """One setting of a trial, which is verified and timed beside eager mode."""

    config: CompileConfig
    repeats: int | None = None  # the trial that found it; None: this is its first trial
    cache: str | None = None  # folder of its compiler cache; None: that of the process
    is_warm: bool = False  # whether its code is in the cache
    # what it is asked: of what has passed all, only what a process may still fail
    checks: Checks = Checks.ALL
    compile_s: float | None = None  # cold, where its first trial has told
    exported: ExportedCode | None = None  # makes this side in place of the setting
    number: int | None = None  # of its first trial; None: that of the process


@dataclass(frozen=True, kw_only=True)
class Request:
    """What every request holds."""

    kind: ClassVar[str]  # as the file names it
    header: Header
    number: int = -1  # of the job; -1 for the probe

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: plain(getattr(self, f.name)) for f in fields(self)}
        return {"kind": self.kind, **values.pop("header"), **values}


@dataclass(frozen=True, kw_only=True)
class TrialRequest(Request):
    """Verify settings and time them beside eager mode: one in a search, several in a race.

    What compiles nothing may share the process of its first trial.

    Raises:
        ValueError: no side; sides of different precisions, which no one reference can judge; or
            first trials of several that compile, which is counted for the whole process.
    """

    kind = "trial"
    phase: str
    sides: tuple[Side, ...]
    batch_size: int | None = None
    limits: TimingLimits = TimingLimits()
    takes_turns: bool = False  # with other processes, round by round
    calls_per_update: int | None = None
    compile_threads: int = 1  # of Inductor
    profiles: bool = False  # whether one eager call is profiled too

    def __post_init__(self) -> None:
        if not self.sides:
            raise ValueError("a trial has no side")
        compiles = any(not side.config.is_eager for side in self.sides)
        if not self.is_race and len(self.sides) > 1 and compiles:
            raise ValueError("a first trial that compiles has one side only")
        if len({side.config.eager_reference for side in self.sides}) > 1:
            raise ValueError("the sides of a trial have different precisions")

    @property
    def is_race(self) -> bool:
        """Whether it times again what other trials have found."""
        return any(side.repeats is not None for side in self.sides)

    @property
    def is_exported(self) -> bool:
        """Whether exported code makes a side."""
        return any(side.exported is not None for side in self.sides)

    def number_of(self, side: Side) -> int:
        """The trial that a side stands for: the one that found it, or its first."""
        given = side.number if side.repeats is None else side.repeats
        return self.number if given is None else given


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(Request):
    """Look at machine, torch and target."""

    kind = "probe"
    # run once in eager mode; None: the target's usual ones
    phases: tuple[str, ...] | None = None
    batch_size: int
    backends: tuple[str, ...] | None = None  # to look for; None: the default ones
    # folder that compiler caches start with; None: no compile
    toolchain: str | None = None


@dataclass(frozen=True, kw_only=True)
class SaveRequest(Request):
    """Compile settings as a user's process does, and keep what torch made in a file."""

    kind = "save"
    settings: Tuned
    file: str


@dataclass(frozen=True, kw_only=True)
class AlgorithmRequest(Request):
    """Run the target's training algorithm with and without settings, for so many seconds."""

    kind = "in_algorithm"
    tuned: TunedSet
    budget_s: float


_CLASSES: Mapping[str, type[Request]] = {
    one.kind: one for one in (TrialRequest, ProbeRequest, SaveRequest, AlgorithmRequest)
}


def read_request(folder: Path) -> Request:
    """What the folder of a trial asks for."""
    path = folder / "request.json"
    try:
        return request_of(json.loads(path.read_text("utf-8")))
    except (AutocompileError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from error


def request_of(data: Mapping[str, Any]) -> Request:
    """The request that JSON holds."""
    given = dict(data)
    header = {f.name: given.pop(f.name) for f in fields(Header) if f.name in given}
    request: Request = of_fields(
        _CLASSES[given.pop("kind")], {**given, "header": header}
    )
    return request


@dataclass(kw_only=True)
class TrialResult(TaskResult):
    """What a trial sends: a record of each side, whose ``number`` is :meth:`TrialRequest.number_of`.

    How the trial ended is how its only side did, or that of several all had their turn.
    """

    sides: list[Record] = field(default_factory=list)


@dataclass(kw_only=True)
class ProbeResult(TaskResult):
    """What the probe sends."""

    target: dict[str, Any] = field(default_factory=dict)  # as run.json keeps it
    environment: Mapping[str, Any] = field(default_factory=dict)  # as run.json keeps it
    # Why it cannot be used here, or "".
    backends: Mapping[str, str] = field(default_factory=dict)
    # That Dynamo knows, the target's too.
    all_backends: list[str] = field(default_factory=list)
    # The mode that each equals here.
    modes: Mapping[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)  # names of Inductor's options
    # What connects several ranks here: a backend of torch.distributed, and how many find a device.
    collectives: Mapping[str, int] = field(default_factory=dict)
    # of the first compile; None where the fork server pays it
    toolchain_s: float | None = None
    during: str | None = None  # the user's function that was being called


@dataclass(kw_only=True)
class SaveResult(TaskResult):
    """What compiled code was saved, and in words what was not."""

    left_out: list[str] = field(default_factory=list)
    graphs: int = 0


@dataclass(kw_only=True)
class AlgorithmResult(TaskResult):
    """A training algorithm with and without settings.

    A round holds of each side the seconds of ``train()``, the env steps, the seconds of sampling
    and of the module's forward in it (of all env runners together), and the seconds and number of
    gradient updates.
    """

    rounds: list[dict[str, Any]] = field(default_factory=list)
    runners: int = 1  # that sample
    warmup_s: dict[str, float] = field(default_factory=dict)  # of each side
    warmup_iterations: dict[str, int] = field(default_factory=dict)  # of each side
    # What is in effect in the tuned one.
    active: Mapping[str, Any] = field(default_factory=dict)
