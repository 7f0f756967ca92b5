"""The report of a run, which ``report.json`` holds, and of a suite of runs, in ``suite.json``.

A report may come from another machine and is not trusted: each value has the type of its field.
``tests/report_schema.py`` makes the schema of these types.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

from autocompile.errors import RunError, UsageError
from autocompile.estimate.intervals import Interval, between_runs, over_sets, ratio
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.store.reading import demand_schema, known, of_fields, plain
from autocompile.store.record import SCHEMA, CallKind, Outcome, Step

SUITE = "suite.json"
_ONE = Interval(1.0, 1.0, 1.0)  # the speed-up of eager mode
Unit = Literal["samples/s", "steps/s"]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A part of a report; keys of other versions are left out when it is read."""

    optional: ClassVar[
        tuple[str, ...]
    ] = ()  # keys that are not there where they hold nothing

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Any:
        return of_fields(cls, known(cls, data))

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: plain(getattr(self, f.name)) for f in fields(self)}
        return {
            n: value for n, value in values.items() if value or n not in self.optional
        }


@dataclass(frozen=True, kw_only=True)
class Target(_Part):
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
class Rate(_Part):
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
class Confidence(_Part):
    """How sure an answer is."""

    word: Literal["high", "open", "low", ""] = ""  # empty in older reports
    decided: bool
    open: str  # what is open; empty if nothing is
    command: str  # what settles it


@dataclass(frozen=True, kw_only=True)
class Exported(_Part):
    """How the exported code of the best setting ran in a fresh interpreter.

    ``speedup`` is of one process. ``agrees``: within its uncertainty it is as fast as confirmed, by
    the speed-up or by the seconds of a call, where eager mode was faster in that process.
    """

    outcome: Outcome
    message: str
    agrees: bool = False
    speedup: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class Best(_Part):
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
class SizeRow(_Part):
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
class Failures(_Part):
    """Trials that failed for one cause."""

    count: int
    backend: str
    outcome: Outcome
    step: Step
    message: str  # of the first
    numbers: tuple[int, ...]
    answered: bool = (
        False  # none of them was tried, since other trials told the outcome
    )
    log: str | None = None


@dataclass(frozen=True, kw_only=True)
class Trial(_Part):
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
class Percentile(_Part):
    """Seconds that ``percent`` % of the calls do not exceed, those of a shape at their median."""

    percent: int
    eager_s: float
    call_s: float  # of the best setting


@dataclass(frozen=True, kw_only=True)
class FromCalls(_Part):
    """The setting that takes a program of so many calls or more the least time, with compiling."""

    number: int  # of the trial
    calls: int


@dataclass(frozen=True, kw_only=True)
class Workload(_Part):
    """The calls that a pass makes; times of a phase are of a pass."""

    calls: int
    kinds: int  # how many of them differ in shapes or plain arguments
    percentiles: tuple[Percentile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PhaseResult(_Part):
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
    unusable: Mapping[str, str] = field(
        default_factory=dict
    )  # why, by the name of a backend
    dropped: Mapping[str, int] = field(
        default_factory=dict
    )  # how many settings, by reason
    notes: tuple[str, ...] = ()
    tried: int | None = None
    settings: int | None = None
    compiled_tried: int | None = None  # of those tried, the ones that compile something
    compiled_settings: int | None = None
    workload: Workload | None = None  # None: one call
    horizon: int | None = None  # calls of a program, over which compile time counts
    as_calls_grow: tuple[
        FromCalls, ...
    ] = ()  # where there is a horizon; by rising calls
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
class Report(_Part):
    """A report: the results of all phases, and of what they are."""

    optional = ("decided_by", "in_algorithm")

    schema: int = SCHEMA
    target: Target
    environment: Mapping[str, Any]  # torch and the machine
    environments: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # interpreters
    run_dir: str = "last"
    interrupted: bool = False
    running: bool = False
    effort: Literal["quick", "normal", "full"] = "normal"
    objective: Literal["throughput", "latency"] = "throughput"
    seed: int = 0
    tolerance: float | None = None
    wall_s: float | None = None
    phases: Mapping[str, PhaseResult]
    exports: Mapping[str, str] = field(
        default_factory=dict
    )  # what export prints, by format
    notice: str = ""  # what of the run could not be read
    # The options by which ``verify`` judges, where they are not the default.
    decided_by: Mapping[str, Any] = field(default_factory=dict)
    # Of verify --in-algorithm: each figure ``untouched``, ``tuned``, and its ``gain``.
    in_algorithm: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)

    @classmethod
    def read(cls, data: Any, where: object) -> Report:
        """A report from JSON, which errors call ``where``."""
        demand_schema(where, data, SCHEMA)
        if lost := [
            name for name in ("target", "environment", "phases") if name not in data
        ]:
            raise UsageError(f"{where} is not a report: it has no {lost[0]}")
        try:
            report: Report = cls.from_dict(data)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{where} is damaged, or was written by another version: {error}",
                hint="autocompile show --schema   (prints what a report holds)",
            ) from None
        return report


# A suite ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Member(_Part):
    """What one run of a suite is of.

    Attributes:
        folder: of the run, below that of the suite.
        phases: None for the target's own.
    """

    target: str
    folder: str
    phases: tuple[str, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Tried(_Part):
    """One setting at one batch size, or why it is none."""

    config: Mapping[str, Any]  # of any version
    outcome: Outcome
    message: str = ""
    speedup: Interval | None = None
    call_s: float | None = None
    eager_call_s: float | None = None  # beside it, in the same processes
    compile_s: float | None = None
    graph_breaks: int | None = None
    peak_memory_bytes: int | None = None

    @classmethod
    def none(cls) -> Tried:
        """What stands for a setting that has no result."""
        return cls(config={}, outcome=Outcome.NOT_COMPILED)

    @property
    def is_right(self) -> bool:
        return self.outcome is Outcome.OK and self.speedup is not None

    @property
    def key(self) -> str:
        """The setting as text, the same where an older version wrote it."""
        config = self.config
        with contextlib.suppress(UsageError):  # of a newer version
            config = CompileConfig.from_dict(config).to_dict()
        return json.dumps(config, sort_keys=True)

    def against(self, other: Tried) -> Interval:
        """The speed-up over another one's, where both are right."""
        assert self.speedup
        assert other.speedup
        return ratio(self.speedup, other.speedup)


@dataclass(frozen=True, kw_only=True)
class Row(_Part):
    """A model in a phase at a batch size.

    Attributes:
        message: why there is no result.
        plain: ``torch.compile()`` without arguments.
        best: eager mode where that is to be kept; None without a result.
        settings: all that were tried, in the order of trials.
    """

    target: str
    run: str
    phase: str = ""
    batch_size: int | None = None
    verdict: Literal["faster", "keep_eager", "failed", "not_run"] = "failed"
    confidence: str = ""
    message: str = ""
    eager_call_s: float | None = None
    eager_peak_memory_bytes: int | None = None
    plain: Tried | None = None
    best: Tried | None = None
    settings: tuple[Tried, ...] = ()

    @property
    def name(self) -> tuple[str, str, int | None]:
        return self.target, self.phase, self.batch_size

    def gain(self, best: bool) -> Interval:
        """The speed-up of the best setting, or of plain ``torch.compile()``; 1 without it."""
        tried = self.best if best else self.plain
        return tried.speedup if tried and tried.is_right and tried.speedup else _ONE


@dataclass(frozen=True, kw_only=True)
class Suite(_Part):
    """All of it, which ``suite.json`` holds; rows are made anew from the runs while it goes on."""

    schema: int = SCHEMA
    name: str
    members: tuple[Member, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    fixed: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = True  # until it has finished
    wall_s: float = 0.0
    rows: tuple[Row, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Suite:
        """That of a folder, or of a ``suite.json``; a RunError if it is none."""
        path = folder if folder.suffix == ".json" else folder / SUITE
        try:
            data = json.loads(path.read_text("utf-8"))
            demand_schema(path, data, SCHEMA)
            suite: Suite = cls.from_dict(data)
            tried = [
                t
                for row in suite.rows
                for t in (row.plain, row.best, *row.settings)
                if t
            ]
            if not all(0 < t.speedup.low <= t.speedup.high for t in tried if t.speedup):
                raise ValueError("a speed-up is not above 0")
            if odd := next(
                (m for m in suite.members if Path(m.folder).name != m.folder), None
            ):
                raise ValueError(f"{odd.folder!r} is no name of a folder")
        except OSError as error:
            hint = "autocompile suite timm   (begins one)"
            raise RunError(
                f"cannot read {path}: {error.strerror or error}", hint=hint
            ) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise RunError(f"{path} is damaged, or is no suite: {error}") from None
        return suite

    def rows_with(self, best: bool) -> list[Row]:
        """Those that have the best setting or plain ``torch.compile()``, right or not.

        Of a model without any result both have failed.
        """
        rows = [row for row in self.rows if row.verdict != "not_run"]
        return [
            row
            for row in rows
            if row.verdict == "failed" or (row.best if best else row.plain)
        ]

    def share_right(self, best: bool) -> float | None:
        """Of these rows, those with right results; None without rows."""
        rows = self.rows_with(best)
        right = [t.is_right for row in rows if (t := row.best if best else row.plain)]
        return sum(right) / len(rows) if rows else None

    def geometric_mean(self, best: bool) -> float | None:
        """Of the speed-ups in these rows; what fails counts as eager mode, which then has to run.

        None where nothing is right.
        """
        rows = self.rows_with(best)
        logs = [math.log(row.gain(best).value) for row in rows]
        return math.exp(fmean(logs)) if self.share_right(best) else None

    def best_for_all(self) -> tuple[Mapping[str, Any], float] | None:
        """The one setting whose geometric mean is highest, of those tried in every row.

        Where it fails it counts as eager mode, too. None where eager mode is the best, or no
        setting is right in most rows.
        """
        found: dict[str, list[float]] = {}
        configs, right = {}, Counter[str]()
        rows = [row for row in self.rows if row.settings]
        for row in rows:
            for tried in row.settings:
                configs[tried.key] = tried.config
                right[tried.key] += tried.is_right
                gain = tried.speedup.value if tried.is_right and tried.speedup else 1.0
                found.setdefault(tried.key, []).append(math.log(gain))
        means = {
            key: fmean(logs)
            for key, logs in found.items()
            if len(logs) == len(rows) and right[key] > len(rows) / 2
        }
        best = max(means, key=lambda key: means[key], default="")
        return (
            (configs[best], math.exp(means[best])) if means.get(best, 0.0) > 0 else None
        )


def rows_of(member: Member, run: str, report: Report) -> Iterator[Row]:
    """A row for each phase and batch size of a run's report."""
    for name, phase in report.phases.items():
        trials = [t for t in phase.trials if t.outcome is not Outcome.INTERRUPTED]
        sizes = sorted({t.batch_size for t in trials}, key=lambda size: size or 0)
        for size in sizes or [None]:
            of_size = [t for t in trials if t.batch_size == size]
            yield Row(
                target=member.target,
                run=run,
                phase=name,
                batch_size=size,
                **_answer(phase, of_size, size),
            )


NOT_TRIED = "the run ended before any other setting was tried"


def _answer(
    phase: PhaseResult, trials: list[Trial], size: int | None
) -> dict[str, Any]:
    configs = {json.dumps(t.config, sort_keys=True): t.config for t in trials}
    settings = [
        _tried(config, [t for t in trials if t.config == config])
        for config in configs.values()
    ]
    by_config = {t.key: t for t in settings}
    eager = next((t for t in trials if _is(t.config, EAGER) and t.call_s), None)
    beside = [t.eager_call_s for t in trials if t.eager_call_s]
    plain = next((t for t in settings if _is(t.config, DEFAULT_INDUCTOR)), None)
    answer: dict[str, Any] = {
        "settings": tuple(t for t in settings if not _is(t.config, EAGER)),
        "plain": plain,
        "eager_call_s": fmean(beside) if beside else eager and eager.call_s,
        "eager_peak_memory_bytes": eager.peak_memory_bytes if eager else None,
        "message": phase.reason if phase.verdict == "failed" else "",
    }
    row = next((row for row in phase.sizes if row.batch_size == size), None)
    if phase.best and phase.best.batch_size == size:
        answer["confidence"] = phase.confidence.word if phase.confidence else ""
    elif row and row.decided is False:
        answer["confidence"] = "open"
    lost = next((t for t in trials if _is(t.config, EAGER) and not t.ok), None)
    if row is None and lost is not None:
        return {
            **answer,
            "message": answer["message"] or f"eager mode fails: {lost.message}",
        }
    if row is None and (eager is None or not answer["settings"]):
        why = (
            "eager mode's own trial has not ended" if answer["settings"] else NOT_TRIED
        )
        # Of a phase with an answer the reason is about another size.
        why = phase.state or (phase.reason if phase.verdict == "failed" else why)
        return {**answer, "verdict": "not_run", "message": why}
    config = phase.config_of(row.number) if row else {}
    found = by_config.get(Tried(config=config, outcome=Outcome.OK).key)
    if row is None or not row.is_faster or found is None:
        best = Tried(
            config=EAGER.to_dict(),
            outcome=Outcome.OK,
            speedup=_ONE,
            call_s=answer["eager_call_s"],
        )
        return {**answer, "verdict": "keep_eager", "best": best}
    best = Tried(**{**vars(found), "speedup": row.speedup})
    return {**answer, "verdict": "faster", "best": best}


def _tried(config: Mapping[str, Any], trials: list[Trial]) -> Tried:
    """One setting from its trials: a failure counts before a figure, a race before the search."""
    # What came from outside a trial says nothing about its setting, unless there is nothing else.
    trials = [t for t in trials if t.outcome is not Outcome.INFRASTRUCTURE] or trials
    failed = next((t for t in trials if not t.ok), None)
    raced = [t for t in trials if t.ok and t.speedup and t.role == "confirm"]
    measured = raced or [t for t in trials if t.ok and t.speedup]
    shown = failed or trials[0]
    logs = [math.log(t.speedup.value) for t in measured if t.speedup]
    calls = [t.call_s for t in measured if t.call_s]
    eager = [t.eager_call_s for t in measured if t.eager_call_s]
    return Tried(
        config=config,
        outcome=shown.outcome,
        message=shown.message,
        speedup=between_runs(over_sets(logs)) if logs and not failed else None,
        call_s=fmean(calls) if calls else None,
        eager_call_s=fmean(eager) if eager else None,
        compile_s=shown.compile_s,
        graph_breaks=shown.graph_breaks,
        peak_memory_bytes=shown.peak_memory_bytes,
    )


def _is(config: Mapping[str, Any], setting: CompileConfig) -> bool:
    with contextlib.suppress(UsageError):  # of a newer version
        return CompileConfig.from_dict(config) == setting
    return False
