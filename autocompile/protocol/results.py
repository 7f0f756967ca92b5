"""What a trial's process sends at its end.

A task fills it in while it runs, so that what is known is sent even if the task fails later. That
of a trial is the :class:`~autocompile.store.record.Record` that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from autocompile.errors import AutocompileError, RunError, TargetError
from autocompile.store.reading import known, of_fields
from autocompile.store.record import Outcome, Record, Step

__all__ = [
    "AlgorithmResult",
    "ProbeResult",
    "RaceResult",
    "SaveResult",
    "TaskResult",
]

T = TypeVar("T", bound="TaskResult")


@dataclass(kw_only=True)
class TaskResult:
    """What every task may send; the fields are explained in the record."""

    outcome: Outcome = Outcome.INTERRUPTED
    step: Step = Step.IMPORT
    message: str = ""
    where: str | None = None
    explained: Mapping[str, Any] | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> TargetError | None:
        """The error that the process has explained; None if it has not."""
        if not self.explained or not {"what", "details", "hint"} <= self.explained.keys():
            return None
        said = self.explained
        return TargetError(said["what"], *said["details"], hint=said["hint"])

    @classmethod
    def read(cls: type[T], payload: Mapping[str, Any]) -> T:
        """What a child has sent; keys of other versions are passed over.

        Raises:
            RunError: it makes no sense.
        """
        try:
            result: T = of_fields(cls, known(cls, payload))
        except (AutocompileError, TypeError, ValueError) as error:
            raise RunError(f"the result of a process makes no sense: {error}") from None
        return result


@dataclass(kw_only=True)
class RaceResult(TaskResult):
    """What a race sends: a record of each side."""

    sides: list[Record] = field(default_factory=list)


@dataclass(kw_only=True)
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
    active: Mapping[str, Any] = field(default_factory=dict)  # what is in effect in the tuned one
