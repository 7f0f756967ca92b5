"""What a trial's process is asked to do, the content of ``request.json``, and what it sends back.

A task fills its result in while it runs, so that what is known is sent even if the task fails
later. That of a trial is the :class:`~autocompile.store.record.Record` that is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from autocompile.errors import AutocompileError, RunError, TargetError, UsageError
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Tuned, TunedSet
from autocompile.store.reading import demand_schema, known, of_fields, plain
from autocompile.store.record import Outcome, Record, Step

SCHEMA = 1
"""Version of a request. 1: the first; it is not in the requests of older versions."""

T = TypeVar("T", bound="TaskResult")


class Kind(str, Enum):
    """The kinds of requests, as the file names them."""

    TRIAL = "trial"
    RACE = "race"
    EXPORTED = "exported"
    PROBE = "probe"
    SAVE = "save"
    IN_ALGORITHM = "in_algorithm"


@dataclass(frozen=True)
class Header:
    """What all requests of a run have in common."""

    target: str = ""
    device: str | None = None
    seed: int = 0
    tolerance: float | None = None


@dataclass(frozen=True)
class TimingLimits:
    """When to stop timing one setting."""

    rounds: int = 8  # at least, unless a call takes very long
    max_s: float = 0.5
    front_s: float = 1.0  # max_s of a setting near the best
    half_width: float = 0.01  # of the speed-up's interval, relative; stop when it is this narrow
    beat: float = 0.0  # the best known speed-up; stop when a setting is clearly below it
    block_s: float = 0.02  # about; a longer call is a block of its own


@dataclass(frozen=True)
class ExportedCode:
    """Lines of Python, and the settings that they read from ``tuned.json``."""

    code: str
    settings: Tuned


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

    header: Header
    number: int = -1  # of the job; -1 for the probe

    @property
    def kind(self) -> Kind:
        return next(kind for kind, made in _CLASSES.items() if made is type(self))

    def to_dict(self) -> dict[str, Any]:
        own = {f.name: plain(getattr(self, f.name)) for f in fields(self)}
        return {"schema": SCHEMA, "kind": self.kind.value, **own.pop("header"), **own}


@dataclass(frozen=True, kw_only=True)
class TrialRequest(Request):
    """Verify one setting and time it against eager mode."""

    phase: str
    config: CompileConfig
    batch_size: int | None = None
    limits: TimingLimits = TimingLimits()
    calls_per_update: int | None = None
    compile_threads: int = 1  # of Inductor


@dataclass(frozen=True, kw_only=True)
class RaceRequest(Request):
    """Verify settings and time them side by side."""

    phase: str
    sides: tuple[Side, ...]
    batch_size: int | None = None
    block_s: float
    rounds: int
    max_s: float  # of all rounds
    takes_turns: bool = False  # with other processes, round by round
    compile_threads: int = 1  # of Inductor
    calls_per_update: int | None = None

    @property
    def kind(self) -> Kind:
        return Kind.EXPORTED if any(side.exported for side in self.sides) else Kind.RACE


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(Request):
    """Look at machine, torch and target."""

    phases: tuple[str, ...] | None = None  # run once in eager mode; None: the target's usual ones
    batch_size: int
    backends: tuple[str, ...] | None = None  # to look for; None: the default ones
    toolchain: str | None = None  # folder that compiler caches start with; None: no compile


@dataclass(frozen=True, kw_only=True)
class SaveRequest(Request):
    """Compile settings as a user's process does, and keep what torch made in a file."""

    settings: Tuned
    file: str


@dataclass(frozen=True, kw_only=True)
class AlgorithmRequest(Request):
    """Run the target's RLlib algorithm with and without settings, for so many seconds."""

    tuned: TunedSet
    budget_s: float


_CLASSES: Mapping[Kind, type[Request]] = {
    Kind.TRIAL: TrialRequest,
    Kind.RACE: RaceRequest,
    Kind.EXPORTED: RaceRequest,
    Kind.PROBE: ProbeRequest,
    Kind.SAVE: SaveRequest,
    Kind.IN_ALGORITHM: AlgorithmRequest,
}


def read_request(folder: Path) -> Request:
    """What the folder of a trial asks for."""
    path = folder / "request.json"
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    return parse_request(data, path)


def parse_request(data: Any, where: object) -> Request:
    """The request that JSON holds, of any version up to this one.

    Raises:
        RunError: of a newer schema, of an unknown kind, with an unknown key, or damaged.
    """
    demand_schema(where, {"schema": SCHEMA, **data} if isinstance(data, dict) else data, SCHEMA)
    own = {name: value for name, value in data.items() if name not in ("schema", "kind")}
    own["header"] = {f.name: own.pop(f.name) for f in fields(Header) if f.name in own}
    try:
        request: Request = of_fields(_CLASSES[Kind(data.get("kind"))], own)
    except UsageError as error:
        raise RunError(f"{where}: {error.what}", *error.details, hint=error.hint) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{where} is damaged or of another version: {error}") from None
    return request


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
