"""A suite: many models, each tuned in a run of its own, and the row that each has in one table."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from autocompile.errors import RunError, UsageError
from autocompile.estimate.candidates import ONE
from autocompile.estimate.intervals import Interval, over_sets
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.store.files import write_json
from autocompile.store.reading import demand_schema
from autocompile.store.record import Outcome
from autocompile.store.report import Part, PhaseResult, Report, Trial

SCHEMA = 1
FILE = "suite.json"


@dataclass(frozen=True, kw_only=True)
class Member(Part):
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
class Tried(Part):
    """One setting at one batch size, or why it is none."""

    config: Mapping[str, Any]  # of any version
    outcome: Outcome
    message: str = ""
    speedup: Interval | None = None
    call_s: float | None = None
    compile_s: float | None = None
    graph_breaks: int | None = None
    peak_memory_bytes: int | None = None

    @property
    def is_right(self) -> bool:
        return self.outcome is Outcome.OK and self.speedup is not None


@dataclass(frozen=True, kw_only=True)
class Row(Part):
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
    verdict: Literal["faster", "keep_eager", "failed"] = "failed"
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
        return tried.speedup if tried and tried.is_right and tried.speedup else ONE


@dataclass(frozen=True, kw_only=True)
class Suite(Part):
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

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, self.to_dict())

    @classmethod
    def read(cls, folder: Path) -> Suite:
        """That of a folder, or of a ``suite.json``; a RunError if it is none."""
        path = folder if folder.suffix == ".json" else folder / FILE
        try:
            data = json.loads(path.read_text("utf-8"))
            demand_schema(path, data, SCHEMA)
            suite: Suite = cls.from_dict(data)
        except OSError as error:
            hint = "autocompile suite timm   (begins one)"
            raise RunError(f"cannot read {path}: {error.strerror or error}", hint=hint) from None
        except (TypeError, ValueError) as error:
            raise RunError(f"{path} is damaged, or is no suite: {error}") from None
        return suite

    def share_right(self, best: bool) -> float | None:
        """Of the rows, those with right results from the best setting, or plain torch.compile().

        None where none of them was tried.
        """
        rows = [row for row in self.rows if best or row.plain or row.message]
        tried = [row.best if best else row.plain for row in rows]
        return sum(bool(t and t.is_right) for t in tried) / len(rows) if any(tried) else None

    def geometric_mean(self, best: bool) -> float | None:
        """Of the speed-ups of what is right."""
        tried = [row.best if best else row.plain for row in self.rows]
        logs = [math.log(t.speedup.value) for t in tried if t and t.is_right and t.speedup]
        return math.exp(fmean(logs)) if logs else None

    def best_for_all(self) -> tuple[Mapping[str, Any], float] | None:
        """The one setting whose geometric mean is highest, of those tried in every row.

        Where it fails it counts as eager mode, which a program would then have to run.
        """
        found: dict[str, list[float]] = {}
        configs = {}
        rows = [row for row in self.rows if row.settings]
        for row in rows:
            for tried in row.settings:
                key = json.dumps(tried.config, sort_keys=True)
                configs[key] = tried.config
                gain = tried.speedup.value if tried.is_right and tried.speedup else 1.0
                found.setdefault(key, []).append(math.log(gain))
        means = {key: fmean(logs) for key, logs in found.items() if len(logs) == len(rows)}
        if not means:
            return None
        best = max(means, key=lambda key: means[key])
        return configs[best], math.exp(means[best])


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


def _answer(phase: PhaseResult, trials: list[Trial], size: int | None) -> dict[str, Any]:
    configs = {json.dumps(t.config, sort_keys=True): t.config for t in trials}
    settings = [
        _tried(config, [t for t in trials if t.config == config]) for config in configs.values()
    ]
    by_config = {json.dumps(t.config, sort_keys=True): t for t in settings}
    eager = next((t for t in trials if _is(t.config, EAGER) and t.call_s), None)
    beside = [t.eager_call_s for t in trials if t.eager_call_s]
    plain = next((t for t in settings if _is(t.config, DEFAULT_INDUCTOR)), None)
    answer: dict[str, Any] = {
        "settings": tuple(t for t in settings if not _is(t.config, EAGER)),
        "plain": plain,
        "eager_call_s": fmean(beside) if beside else None,
        "eager_peak_memory_bytes": eager.peak_memory_bytes if eager else None,
        "message": phase.reason if phase.verdict == "failed" else "",
        "confidence": phase.confidence.word if phase.confidence else "",
    }
    row = next((row for row in phase.sizes if row.batch_size == size), None)
    if row is None:
        return answer
    config = phase.config_of(row.number)
    found = by_config.get(json.dumps(config, sort_keys=True))
    if not row.is_faster or found is None:
        best = Tried(
            config=EAGER.to_dict(), outcome=Outcome.OK, speedup=ONE, call_s=answer["eager_call_s"]
        )
        return {**answer, "verdict": "keep_eager", "best": best}
    best = Tried(**{**vars(found), "speedup": row.speedup})
    return {**answer, "verdict": "faster", "best": best}


def _tried(config: Mapping[str, Any], trials: list[Trial]) -> Tried:
    """One setting from its trials: a failure counts before a figure, a race before the search."""
    failed = next((t for t in trials if not t.ok), None)
    raced = [t for t in trials if t.ok and t.speedup and t.role == "confirm"]
    measured = raced or [t for t in trials if t.ok and t.speedup]
    shown = failed or trials[0]
    logs = [math.log(t.speedup.value) for t in measured if t.speedup]
    calls = [t.call_s for t in measured if t.call_s]
    return Tried(
        config=config,
        outcome=shown.outcome,
        message=shown.message,
        speedup=over_sets(logs) if logs and not failed else None,
        call_s=fmean(calls) if calls else None,
        compile_s=shown.compile_s,
        graph_breaks=shown.graph_breaks,
        peak_memory_bytes=shown.peak_memory_bytes,
    )


def _is(config: Mapping[str, Any], setting: CompileConfig) -> bool:
    with contextlib.suppress(UsageError):  # of a newer version
        return CompileConfig.from_dict(config) == setting
    return False
