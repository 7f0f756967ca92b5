"""What a trial's process is asked to do, the content of ``request.json``, and what it sends back.

A task fills its result in while it runs, so that what is known is sent even if the task fails
later. That of a trial is the :class:`~autocompile.store.record.Record` that is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from autocompile.errors import AutocompileError, RunError
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Tuned, TunedSet
from autocompile.store.calls import RecordedCalls
from autocompile.store.reading import of_fields, plain
from autocompile.store.record import Record, TaskResult


@dataclass(frozen=True)
class Header:
    """What all requests of a run have in common."""

    target: str = ""
    device: str | None = None
    seed: int = 0
    tolerance: float | None = None
    calls: RecordedCalls | None = (
        None  # what the model is called with; None: the target says it
    )


@dataclass(frozen=True)
class TimingLimits:
    """When to stop timing one setting."""

    rounds: int = 8  # at least, unless a call takes very long
    max_s: float = 0.5
    front_s: float = 1.0  # max_s of a setting near the best
    half_width: float = (
        0.01  # of the speed-up's interval, relative; stop when it is this narrow
    )
    beat: float = (
        0.0  # the best known speed-up; stop when a setting is clearly below it
    )
    block_s: float = (
        0.02  # about; of a GPU three calls at least; a longer call is its own block
    )


@dataclass(frozen=True)
class ExportedCode:
    """Lines of Python, and the settings that they read from ``tuned.json``."""

    code: str
    settings: Tuned
    called: str = "model"  # the name of what a program calls in place of its model


@dataclass(frozen=True)
class Side:
    """One setting of a race."""

    number: int  # of the trial that found it
    config: CompileConfig
    cache: str  # folder of its compiler cache
    is_warm: bool  # whether its code is in the cache
    exported: ExportedCode | None = None  # makes this side in place of the setting


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
    """Verify one setting and time it against eager mode."""

    kind = "trial"
    phase: str
    config: CompileConfig
    batch_size: int | None = None
    limits: TimingLimits = TimingLimits()
    calls_per_update: int | None = None
    compile_threads: int = 1  # of Inductor


@dataclass(frozen=True, kw_only=True)
class RaceRequest(Request):
    """Verify settings, or exported code, and time them side by side."""

    kind = "race"
    phase: str
    sides: tuple[Side, ...]
    batch_size: int | None = None
    block_s: float
    rounds: int
    max_s: float  # of all rounds
    takes_turns: bool = False  # with other processes, round by round
    compile_threads: int = 1  # of Inductor
    calls_per_update: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(Request):
    """Look at machine, torch and target."""

    kind = "probe"
    phases: tuple[str, ...] | None = (
        None  # run once in eager mode; None: the target's usual ones
    )
    batch_size: int
    backends: tuple[str, ...] | None = None  # to look for; None: the default ones
    toolchain: str | None = (
        None  # folder that compiler caches start with; None: no compile
    )


@dataclass(frozen=True, kw_only=True)
class SaveRequest(Request):
    """Compile settings as a user's process does, and keep what torch made in a file."""

    kind = "save"
    settings: Tuned
    file: str


@dataclass(frozen=True, kw_only=True)
class AlgorithmRequest(Request):
    """Run the target's RLlib algorithm with and without settings, for so many seconds."""

    kind = "in_algorithm"
    tuned: TunedSet
    budget_s: float


_CLASSES: Mapping[str, type[Request]] = {
    one.kind: one
    for one in (TrialRequest, RaceRequest, ProbeRequest, SaveRequest, AlgorithmRequest)
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
class RaceResult(TaskResult):
    """What a race sends: a record of each side."""

    sides: list[Record] = field(default_factory=list)


@dataclass(kw_only=True)
class ProbeResult(TaskResult):
    """What the probe sends."""

    target: dict[str, Any] = field(default_factory=dict)  # as run.json keeps it
    environment: Mapping[str, Any] = field(default_factory=dict)  # as run.json keeps it
    backends: Mapping[str, str] = field(
        default_factory=dict
    )  # why it cannot be used here, or ""
    all_backends: list[str] = field(
        default_factory=list
    )  # that Dynamo knows, the target's too
    modes: Mapping[str, str] = field(
        default_factory=dict
    )  # the mode that each equals here
    options: list[str] = field(default_factory=list)  # names of Inductor's options
    toolchain_s: float | None = (
        None  # of the first compile; None where the fork server pays it
    )
    during: str | None = None  # the user's function that was being called


@dataclass(kw_only=True)
class SaveResult(TaskResult):
    """What compiled code was saved, and in words what was not."""

    left_out: list[str] = field(default_factory=list)
    graphs: int = 0


@dataclass(kw_only=True)
class AlgorithmResult(TaskResult):
    """An RLlib algorithm with and without settings.

    A round holds of each side the seconds of ``train()``, the env steps, the seconds of sampling
    and of the module's forward in it (of all env runners together), and the seconds and number of
    gradient updates.
    """

    rounds: list[dict[str, Any]] = field(default_factory=list)
    runners: int = 1  # that sample
    warmup_s: dict[str, float] = field(default_factory=dict)  # of each side
    warmup_iterations: dict[str, int] = field(default_factory=dict)  # of each side
    active: Mapping[str, Any] = field(
        default_factory=dict
    )  # what is in effect in the tuned one
