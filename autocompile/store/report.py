"""The report of a run, which ``report.json`` holds: the answers and what they rest on.

A report may come from another machine and is not trusted: each value has the type of its field.
``tests/report_schema.py`` makes the schema of these types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from autocompile.errors import UsageError
from autocompile.estimate.intervals import Interval
from autocompile.settings.config import EAGER
from autocompile.store.calls import RecordedCalls
from autocompile.store.reading import demand_schema, known, of_fields, plain
from autocompile.store.record import SCHEMA, CallKind, Outcome, Step

Unit = Literal["samples/s", "steps/s", "calls/s"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a report; keys of other versions are left out when it is read."""

    optional: ClassVar[tuple[str, ...]] = ()  # keys that are not there where they hold nothing

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Any:
        return of_fields(cls, known(cls, data))

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: plain(getattr(self, f.name)) for f in fields(self)}
        return {n: value for n, value in values.items() if value or n not in self.optional}


@dataclass(frozen=True, kw_only=True)
class Target(Part):
    """What was tuned. Figures by phase are left out of phases that have none."""

    spec: str
    kind: str | None = None
    description: str | None = None
    parameters: int | None = None
    algorithm: str | None = None
    own_batch_size: Mapping[str, int] | None = None
    calls_per_update: Mapping[str, int] | None = None
    samples_per_update: Mapping[str, int] | None = None
    optimizer: Mapping[str, Any] | None = None  # class, lr, and arguments
    choices: Mapping[str, str] | None = None  # where each choice came from, in words

    def own_size(self, phase: str) -> int | None:
        """The batch size that the user's own configuration has in a phase."""
        return (self.own_batch_size or {}).get(phase)


@dataclass(frozen=True, kw_only=True)
class Rate(Part):
    """A throughput."""

    value: float
    unit: Unit


@dataclass(frozen=True)
class Throughput(Interval):
    """A throughput with its 95 % interval."""

    unit: Unit

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "unit": self.unit}


@dataclass(frozen=True, kw_only=True)
class Confidence(Part):
    """How sure an answer is."""

    word: Literal["high", "open", "low", ""] = ""  # empty in older reports
    decided: bool
    open: str  # what is open; empty if nothing is
    command: str  # what settles it


@dataclass(frozen=True, kw_only=True)
class Exported(Part):
    """How the exported code of the best setting ran in a fresh interpreter.

    ``speedup`` is of one process. ``agrees``: within its uncertainty it is as fast as confirmed, by
    the speed-up or by the seconds of a call, where eager mode was faster in that process.
    """

    outcome: Outcome
    message: str
    agrees: bool = False
    speedup: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class Best(Part):
    """The best setting of a phase; eager mode where that is to be kept."""

    number: int
    config: Mapping[str, Any]  # of any version
    batch_size: int | None = None
    throughput: Throughput
    eager_throughput: Rate
    speedup: Interval
    speedup_against_default: Interval | None = None
    compile_s: float | None = None
    warm_compile_s: float | None = None
    peak_memory_bytes: int | None = None
    eager_peak_memory_bytes: int | None = None
    break_even_calls: int | None = None
    refresh_s: float | None = None
    calls_per_update: int | None = None
    calls_to_repay_refresh: int | None = None
    confirmed_processes: int = 0
    exported: Exported | None = None  # None: it was not run
    same_code: tuple[int, ...] = ()  # numbers of other trials
    slow_sets: int = 0  # left out because the machine was slower
    call_s: float | None = None
    weights_live: bool | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_eager(self) -> bool:
        return self.config.get("backend") == EAGER.backend


@dataclass(frozen=True, kw_only=True)
class SizeRow(Part):
    """The best setting of a batch size beside eager mode, as RLlib's benchmark has it."""

    batch_size: int | None
    eager_throughput: float
    best_throughput: float
    speedup: Interval
    number: int  # of the trial
    confirmed_processes: int = 1
    faster: bool | None = None  # None in older reports
    decided: bool | None = None

    @property
    def is_faster(self) -> bool:
        """Whether the setting is faster than eager mode."""
        return self.speedup.low > 1 if self.faster is None else self.faster


@dataclass(frozen=True, kw_only=True)
class Failures(Part):
    """Trials that failed for one cause."""

    count: int
    backend: str
    outcome: Outcome
    step: Step
    message: str  # of the first
    numbers: tuple[int, ...]
    answered: bool = False  # none of them was tried, since other trials told the outcome
    log: str | None = None


@dataclass(frozen=True, kw_only=True)
class Trial(Part):
    """One trial."""

    number: int
    batch_size: int | None
    message: str
    role: Literal["search", "confirm"]
    repeats: int | None = None  # the trial that was measured again
    duplicate_of: int | None = None
    compile_s: float | None = None
    peak_memory_bytes: int | None = None
    graph_breaks: int | None = None
    graphs: int | None = None
    recompiles: int | None = None
    began: float | None = None  # when its process began, in Unix time
    wall_s: float  # of its process, or its part of one, without pauses
    config: Mapping[str, Any]  # of any version
    outcome: Outcome
    step: Step
    answered: bool = False  # it was not run
    speedup: Interval | None = None
    throughput: Throughput | None = None
    call_s: float | None = None
    eager_call_s: float | None = None
    flags: tuple[str, ...] = ()  # of the measurement
    notes: tuple[str, ...] = ()
    log: str | None = None

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK


@dataclass(frozen=True, kw_only=True)
class Percentile(Part):
    """Seconds that ``percent`` % of the calls do not exceed, those of a shape at their median."""

    percent: int
    eager_s: float
    call_s: float  # of the best setting


@dataclass(frozen=True, kw_only=True)
class FromCalls(Part):
    """The setting that takes a program of so many calls or more the least time, with compiling."""

    number: int  # of the trial
    calls: int


@dataclass(frozen=True, kw_only=True)
class Workload(Part):
    """The calls that a pass makes; times of a phase are of a pass."""

    calls: int
    kinds: int  # how many of them differ in shapes or plain arguments
    percentiles: tuple[Percentile, ...] = ()
    # By what is decided: the figures of a phase are of a call at this percentile, not of a pass.
    decided_by: int | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseResult(Part):
    """The answer of a phase, how sure it is, and everything that was tried."""

    optional = ("as_calls_grow",)

    verdict: Literal["faster", "keep_eager", "failed"]
    role: str = ""  # the part of RLlib that does it
    reason: str
    confidence: Confidence | None = None
    explanation: tuple[str, ...] = ()
    best: Best | None
    ties: tuple[int, ...] = ()
    by_batch_size: tuple[SizeRow, ...] = ()
    failures: tuple[Failures, ...] = ()
    unusable: Mapping[str, str] = field(default_factory=dict)  # why, by the name of a backend
    dropped: Mapping[str, int] = field(default_factory=dict)  # how many settings, by reason
    notes: tuple[str, ...] = ()
    tried: int | None = None
    settings: int | None = None
    compiled_tried: int | None = None  # of those tried, the ones that compile something
    compiled_settings: int | None = None
    workload: Workload | None = None  # None: one call
    horizon: int | None = None  # calls of a program, over which compile time counts
    as_calls_grow: tuple[FromCalls, ...] = ()  # where there is a horizon; by rising calls
    calls: tuple[CallKind, ...] = ()  # by shape, of the best setting
    trials: tuple[Trial, ...]
    state: str = ""  # why it is too early for a verdict

    def __post_init__(self) -> None:
        named = {row.number for row in self.sizes}
        if lost := named - {trial.number for trial in self.trials}:
            raise ValueError(f"trial {min(lost)} is missing")

    def config_of(self, number: int) -> Mapping[str, Any]:
        """The setting of a trial."""
        every: list[Best | Trial] = [*([self.best] if self.best else []), *self.trials]
        return next(one.config for one in every if one.number == number)

    @property
    def answer(self) -> Best | None:
        """The best setting; None where there is no result."""
        return None if self.verdict == "failed" else self.best

    @property
    def is_faster(self) -> bool:
        return self.verdict == "faster" and self.best is not None

    @property
    def searched(self) -> list[Trial]:
        return [t for t in self.trials if t.role == "search"]

    @property
    def sizes(self) -> list[SizeRow]:
        """A row for each batch size; also for the best's where nothing but eager mode worked."""
        best, rows = self.best, list(self.by_batch_size)
        if best and best.batch_size not in [row.batch_size for row in rows]:
            row = SizeRow(
                batch_size=best.batch_size,
                eager_throughput=best.throughput.value,
                best_throughput=best.throughput.value,
                speedup=best.speedup,
                number=best.number,
                confirmed_processes=best.confirmed_processes,
                faster=False,
            )
            rows.append(row)
        return rows if best else []


@dataclass(frozen=True, kw_only=True)
class Report(Part):
    """A report: the results of all phases, and of what they are."""

    optional = ("recorded_calls", "in_algorithm")

    schema: int = SCHEMA
    target: Target
    environment: Mapping[str, Any]  # torch and the machine
    environments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # interpreters
    run_dir: str = "last"
    interrupted: bool = False
    running: bool = False
    effort: Literal["quick", "normal", "full"] = "normal"
    objective: Literal["throughput", "latency", "p50", "p95", "p99"] = "throughput"
    seed: int = 0
    tolerance: float | None = None
    wall_s: float | None = None
    phases: Mapping[str, PhaseResult]
    exports: Mapping[str, str] = field(default_factory=dict)  # what export prints, by format
    notice: str = ""  # what of the run could not be read
    recorded_calls: RecordedCalls | None = None  # that the run was given
    # Of verify --in-algorithm: each figure ``untouched``, ``tuned``, and its ``gain``.
    in_algorithm: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)

    @classmethod
    def read(cls, data: Any, where: object) -> Report:
        """A report from JSON, which errors call ``where``."""
        demand_schema(where, data, SCHEMA)
        if lost := [name for name in ("target", "environment", "phases") if name not in data]:
            raise UsageError(f"{where} is not a report: it has no {lost[0]}")
        try:
            report: Report = cls.from_dict(data)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{where} is damaged, or was written by another version: {error}",
                hint="autocompile show --schema   (prints what a report holds)",
            ) from None
        return report
