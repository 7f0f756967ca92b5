"""What a trial's process sends at its end: its task fills it in, and the parent reads it here.

It is filled while the task runs, so that what is known is sent even if the task fails later. Values
are not checked when they are read: ``to_record`` turns a result that it cannot use into
``infrastructure``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from autocompile.errors import TargetError
from autocompile.store.record import Outcome, Step

__all__ = [
    "AlgorithmResult",
    "ProbeResult",
    "RaceResult",
    "SaveResult",
    "SideResult",
    "TaskResult",
    "TraceResult",
    "TrialResult",
]

T = TypeVar("T", bound="TaskResult")


@dataclass
class TaskResult:
    """What every task may send."""

    outcome: str | None = None  # a value of Outcome; None if nothing has ended
    message: str = ""
    where: str | None = None  # the last line of the user's own code that an exception passed
    explained: Mapping[str, Any] | None = None  # what, details and hint of an error of ours
    detail: dict[str, Any] = field(default_factory=dict)  # what a record has no field for
    step: str | None = None  # that was reached; the channel adds it to what a task sends

    @property
    def error(self) -> TargetError | None:
        """The error that the process has explained; None if it has not."""
        said = self.explained
        if not isinstance(said, Mapping) or not {"what", "details", "hint"} <= said.keys():
            return None
        return TargetError(said["what"], *said["details"], hint=said["hint"])

    def to_dict(self) -> dict[str, Any]:
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def read(cls: type[T], payload: Mapping[str, Any]) -> T:
        """What a child has sent; keys of other versions are passed over."""
        return cls(**{f.name: payload[f.name] for f in fields(cls) if f.name in payload})


@dataclass
class TrialResult(TaskResult):
    """What a trial sends; fields that a record has too are explained there."""

    notes: list[str] = field(default_factory=list)
    measurement: Mapping[str, Any] | None = None  # as measurement_of reads it
    weights_live: bool | None = None  # whether new weights change what the compiled side computes
    reference_s: float | None = None  # of the reference workload
    page_faults: list[int | None] | None = None  # of one call, on each side
    code: str | None = None  # key of the code that the compile ended in
    same_code_as: int | None = None  # the trial that has measured it, in place of a measurement
    compile_s: float | None = None
    compile_window: tuple[float, float] | None = None  # begin and end, by time.monotonic
    refresh_s: float | None = None
    calls_per_update: int | None = None
    peak_memory_bytes: int | None = None
    eager_peak_memory_bytes: int | None = None
    held_bytes: int | None = None  # of a GPU, by the whole process
    graphs: int | None = None
    graph_breaks: int | None = None
    recompiles: int | None = None


@dataclass
class SideResult(TrialResult):
    """What a race sends of one side."""

    number: int | None = None  # of its trial; None before its turn has come


@dataclass
class RaceResult(TaskResult):
    """What a race sends."""

    sides: list[SideResult] = field(default_factory=list)
    reference_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "sides": [side.to_dict() for side in self.sides]}

    @classmethod
    def read(cls, payload: Mapping[str, Any]) -> RaceResult:
        """What a child has sent; entries that do not describe a side are ignored."""
        sides = payload.get("sides")
        sides = [s for s in sides if _is_side(s)] if isinstance(sides, list) else []
        return super().read({**payload, "sides": [SideResult.read(each) for each in sides]})


def _is_side(data: Any) -> bool:
    """Whether a side of a race is what this says: a known trial, outcome and step."""
    return (
        isinstance(data, Mapping)
        and isinstance(data.get("number"), int)
        and data.get("outcome") in {outcome.value for outcome in Outcome}
        and data.get("step") in {None, *(step.value for step in Step)}
    )


@dataclass
class ProbeResult(TaskResult):
    """What the probe sends."""

    target: dict[str, Any] = field(default_factory=dict)  # as run.json keeps it
    environment: Mapping[str, Any] = field(default_factory=dict)  # as run.json keeps it
    backends: Mapping[str, str] = field(default_factory=dict)  # why it cannot be used here, or ""
    all_backends: list[str] = field(default_factory=list)  # that Dynamo knows, the target's too
    modes: Mapping[str, str] = field(default_factory=dict)  # the mode that each equals here
    options: list[str] = field(default_factory=list)  # names of Inductor's options
    toolchain_s: float | None = None  # of the first compile; None where the fork server pays it
    during: str | None = None  # the user's function that was being called


@dataclass
class TraceResult(TaskResult):
    """What Dynamo makes of each phase."""

    traced: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class SaveResult(TaskResult):
    """What compiled code was saved, and in words what was not."""

    left_out: list[str] = field(default_factory=list)
    graphs: int = 0


@dataclass
class AlgorithmResult(TaskResult):
    """An RLlib algorithm with and without settings.

    Attributes:
        rounds: of each side the seconds of ``train()``, the env steps, the seconds of sampling and
            of the module's forward in it (of all env runners together), the seconds of gradient
            updates and their number.
        runners: how many sample.
        warmup_s, warmup_iterations: of each side.
        active: what is in effect in the tuned one.
    """

    rounds: list[dict[str, Any]] = field(default_factory=list)
    runners: int = 1
    warmup_s: dict[str, float] = field(default_factory=dict)
    warmup_iterations: dict[str, int] = field(default_factory=dict)
    active: Mapping[str, Any] = field(default_factory=dict)
