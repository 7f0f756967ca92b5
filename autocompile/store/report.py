"""The report of a run: the types of ``report.json``.

A report may come from another machine and is not trusted: each value has the type of its field,
and figures that something is divided by are above 0. ``tests/report_schema.py`` makes the schema
of these types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from autocompile.errors import UsageError
from autocompile.estimate.intervals import Interval, ratio
from autocompile.settings.config import CompileConfig
from autocompile.store.reading import Part, demand_positive, demand_schema
from autocompile.store.record import SCHEMA, CallKind, Outcome, Step

Unit = Literal["samples/s", "steps/s"]
Verdict = Literal["faster", "within_limits", "keep_eager", "unknown", "failed"]
"""``faster``: use the setting. ``within_limits``: use it, since eager mode breaks a limit,
although it is not surely faster. ``keep_eager``: nothing is faster. ``unknown``: nothing
compiled has ended and passed all checks. ``failed``: nothing works, or nothing that works keeps
the limits."""
Word = Literal["high", "open", "low", ""]


def size_in_words(batch_size: int | None, calls: int = 0) -> str:
    """A batch size, or the samples of a pass of several calls; empty for None."""
    if batch_size is None:
        return ""
    if calls > 1:
        return f"{batch_size} samples in {calls} calls"
    return f"batch size {batch_size}"


@dataclass(frozen=True, kw_only=True)
class Rate(Part):
    """A throughput."""

    value: float
    unit: Unit

    def __post_init__(self) -> None:
        demand_positive(throughput=self.value)


@dataclass(frozen=True)
class Throughput(Interval):
    """A throughput with its 95 % interval."""

    unit: Unit

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "unit": self.unit}


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


KEEP_MEMORY = "MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=33554432"
"""The environment in which glibc keeps freed memory, as in trials and after ``apply``."""


@dataclass(frozen=True, kw_only=True)
class GivenBack(Part):
    """What eager mode loses where glibc gives freed memory back: times as long, faults a call."""

    times: float
    faults: float


@dataclass(frozen=True, kw_only=True)
class Best(Part):
    """The setting of an answer with its figures; eager mode where that is to be kept.

    Attributes:
        number: of its trial in the search.
        speedup: over eager mode, with the costs of new weights and of a horizon.
        call_s: seconds of a call alone, without these costs.
        default_call_s: the same of plain ``torch.compile()``, where that works.
        confirmed_processes: fresh processes that the speed-up is the mean of.
        slow_sets: sets that were left out, since the machine was slower.
        same_code: numbers of other trials whose code is the same.
        ties: numbers of other trials that are as good.
        exported: None where its exported code was not run.
        beside: most other trials that ran while it compiled: alone that may be shorter.
        given_back: None where a program loses little if its memory is not kept.
    """

    optional = ("given_back", "beside")

    number: int
    config: CompileConfig
    speedup: Interval
    throughput: Throughput
    eager_throughput: Rate
    call_s: float
    eager_call_s: float
    default_call_s: float | None = None
    speedup_against_default: Interval | None = None
    confirmed_processes: int = 0
    slow_sets: int = 0
    same_code: tuple[int, ...] = ()
    ties: tuple[int, ...] = ()
    compile_s: float | None = None
    beside: int | None = None
    warm_compile_s: float | None = None
    break_even_calls: int | None = None
    peak_memory_bytes: int | None = None
    eager_peak_memory_bytes: int | None = None
    refresh_s: float | None = None
    calls_per_update: int | None = None
    calls_to_repay_refresh: int | None = None
    graphs: int | None = None
    weights_live: bool | None = None
    exported: Exported | None = None
    given_back: GivenBack | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.speedup.demand_positive("the speed-up")
        demand_positive(
            call_s=self.call_s,
            eager_call_s=self.eager_call_s,
            default_call_s=self.default_call_s,
        )

    @property
    def is_eager(self) -> bool:
        return self.config.is_eager


@dataclass(frozen=True, kw_only=True)
class Tried(Part):
    """One setting at one batch size: its figures where it is right, or what became of it.

    Figures are of the same sets of processes as those of an answer.
    """

    config: CompileConfig
    outcome: Outcome
    batch_size: int | None = None
    message: str = ""
    speedup: Interval | None = None
    call_s: float | None = None
    eager_call_s: float | None = None
    compile_s: float | None = None
    graph_breaks: int | None = None
    peak_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.speedup is not None:
            self.speedup.demand_positive("a speed-up")
        demand_positive(call_s=self.call_s, eager_call_s=self.eager_call_s)

    @property
    def is_right(self) -> bool:
        return self.outcome is Outcome.OK and self.speedup is not None

    def against(self, other: Tried) -> Interval:
        """The speed-up over another one's, where both are right."""
        assert self.speedup
        assert other.speedup
        return ratio(self.speedup, other.speedup)


@dataclass(frozen=True, kw_only=True)
class Next(Part):
    """The best of what is not recommended, where eager mode is kept."""

    number: int
    config: CompileConfig
    speedup: Interval
    confirmed_processes: int

    def __post_init__(self) -> None:
        self.speedup.demand_positive("a speed-up")


@dataclass(frozen=True, kw_only=True)
class Answer(Part):
    """What to use in a phase at a batch size, and how sure that is.

    Attributes:
        reason: why the verdict is what it is, as one sentence.
        confidence: ``high``: nothing, tried or not, is expected to be more than 2 % faster.
            ``open``: something may be. ``low``: too few processes have confirmed it, too
            little was tried, or what seems faster has not passed all checks. Empty without a result.
        why: what keeps it from being high; empty if nothing does.
        command: goes on with the run; empty where that would change nothing.
        best: the setting with its figures; None without a result.
        next: the best of the others, where eager mode is kept.
        calls: of a pass that makes several; ``batch_size`` is the samples of all of them.
    """

    optional = ("calls",)

    batch_size: int | None
    verdict: Verdict
    reason: str
    confidence: Word = ""
    why: str = ""
    command: str = ""
    best: Best | None = None
    next: Next | None = None
    calls: int = 0

    def __post_init__(self) -> None:
        has_best = self.verdict not in ("unknown", "failed")
        if has_best != (self.best is not None):
            raise ValueError(f"the verdict is {self.verdict}, and best does not fit it")

    @property
    def size(self) -> str:
        """What it is about: ``batch size 4``; empty for a phase without one."""
        return size_in_words(self.batch_size, self.calls)

    @property
    def is_faster(self) -> bool:
        return self.verdict == "faster"

    @property
    def changes_something(self) -> bool:
        """Whether something else than plain eager mode is to be used."""
        return self.verdict in ("faster", "within_limits")

    @property
    def is_decided(self) -> bool:
        return self.confidence == "high"

    @property
    def gain(self) -> Interval | None:
        """The speed-up over eager mode; None without a result."""
        return self.best.speedup if self.best else None


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
class Failures(Part):
    """Trials that failed for one cause."""

    count: int
    backend: str
    outcome: Outcome
    step: Step
    message: str  # of the first
    numbers: tuple[int, ...]
    # none of them was tried, since other trials told the outcome
    answered: bool = False
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
    config: CompileConfig
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

    def __post_init__(self) -> None:
        if self.speedup is not None:
            self.speedup.demand_positive("the speed-up of a trial")
        demand_positive(call_s=self.call_s, eager_call_s=self.eager_call_s)

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK


@dataclass(frozen=True, kw_only=True)
class Percentile(Part):
    """Seconds that ``percent`` % of the calls do not exceed, those of a shape at their median."""

    percent: int
    eager_s: float
    call_s: float  # of the best setting

    def __post_init__(self) -> None:
        demand_positive(eager_s=self.eager_s, call_s=self.call_s)


@dataclass(frozen=True, kw_only=True)
class FromCalls(Part):
    """The setting that takes a program of so many calls or more the least time, with compiling."""

    number: int  # of the trial
    config: CompileConfig
    calls: int


@dataclass(frozen=True, kw_only=True)
class OtherNumbers(Part):
    """What an option that changes numbers, and is not asked for, would bring eager mode.

    Attributes:
        option: of the command line.
        speedup: of a pass in eager mode, in one process.
        change: how far its results are from those without it, relative to their size.
    """

    option: str
    speedup: float
    change: float


@dataclass(frozen=True, kw_only=True)
class Workload(Part):
    """The calls that a pass makes; times of a phase are of a pass."""

    calls: int
    kinds: int  # how many of them differ in shapes or plain arguments
    percentiles: tuple[Percentile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OfRanks(Part):
    """Several processes that make each step together.

    Attributes:
        count: of processes, whose samples a throughput counts.
        strategy: how they average gradients.
        alone_s: seconds of an eager step in which nothing is averaged, as one by itself has it,
            on its share of the cores.
        scaling: samples in a second of all in eager mode over those of one by itself.
    """

    count: int
    strategy: str
    alone_s: float | None = None
    scaling: float | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseResult(Part):
    """The answer of a phase, how sure it is, and everything that was tried.

    Attributes:
        answer: at the batch size that the phase is about.
        other_sizes: the answers at the other batch sizes, by size.
        role: the part of a library that does it; empty where it is none.
        explanation: why the best is the best, or why compiling does not help.
        settings: each setting at each batch size, with its figures or its failure; eager
            mode is one of them.
        tried, listed: how many settings were tried, of how many.
        compiled_tried, compiled_listed: the same of those that compile something.
        workload: None where one call is timed.
        horizon: calls of a program, over which compile time counts.
        as_calls_grow: where there is a horizon, the best setting by rising calls.
        calls: by shape, of the best setting.
        other_numbers: what lower precision would bring, where it is much.
        ranks: the processes that make each step together, where there are several.
    """

    optional = ("as_calls_grow", "other_numbers", "ranks")

    answer: Answer
    other_sizes: tuple[Answer, ...] = ()
    role: str = ""
    explanation: tuple[str, ...] = ()
    failures: tuple[Failures, ...] = ()
    unusable: Mapping[str, str] = field(default_factory=dict)  # by backend
    dropped: Mapping[str, int] = field(default_factory=dict)  # by reason
    notes: tuple[str, ...] = ()
    tried: int = 0
    listed: int | None = None
    compiled_tried: int = 0
    compiled_listed: int | None = None
    workload: Workload | None = None
    horizon: int | None = None
    as_calls_grow: tuple[FromCalls, ...] = ()
    calls: tuple[CallKind, ...] = ()
    other_numbers: tuple[OtherNumbers, ...] = ()
    ranks: OfRanks | None = None
    settings: tuple[Tried, ...] = ()
    trials: tuple[Trial, ...] = ()

    def __post_init__(self) -> None:
        for kind in self.calls:
            demand_positive(eager_s=kind.eager_s, call_s=kind.call_s, calls=kind.calls)

    @property
    def answers(self) -> list[Answer]:
        """Of all batch sizes, by size."""
        every = (self.answer, *self.other_sizes)
        return sorted(every, key=lambda answer: answer.batch_size or 0)

    @property
    def searched(self) -> list[Trial]:
        return [t for t in self.trials if t.role == "search"]


@dataclass(frozen=True, kw_only=True)
class Report(Part):
    """A report: the results of all phases, and of what they are."""

    optional = ("decided_by", "in_algorithm")

    schema: int = SCHEMA
    target: Target
    environment: Mapping[str, Any]  # torch and the machine
    # Interpreters.
    environments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    run_dir: str = "last"
    interrupted: bool = False
    running: bool = False
    effort: Literal["quick", "normal", "full"] = "normal"
    objective: Literal["throughput", "latency"] = "throughput"
    seed: int = 0
    tolerance: float | None = None
    wall_s: float | None = None
    phases: Mapping[str, PhaseResult]
    # What export prints, by format.
    exports: Mapping[str, str] = field(default_factory=dict)
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
        except UsageError as error:  # of a setting, such as one of a newer version
            what = f"{where} holds a setting that cannot be read: {error.what}"
            raise UsageError(what, *error.details, hint=error.hint) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"{where} is damaged, or was written by another version: {error}",
                hint="autocompile show --schema   (prints what a report holds)",
            ) from None
        return report


def leading_size(
    own: int | None, sizes: Sequence[int | None], objective: str
) -> int | None:
    """The batch size that a phase's answer is about: the target's own, else by the objective.

    The largest for throughput, the smallest for latency; None
    where a phase has no batch size. It is settled before the search, and kept.
    """
    if own is not None and own in sizes:
        return own
    known = [size for size in sizes if size is not None]
    if not known:
        return None
    return max(known) if objective == "throughput" else min(known)
