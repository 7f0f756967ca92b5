"""The rows of a suite and their statistics: what ``suite.json`` holds.

A row is copied from the answer of a run's report; nothing is measured or decided here. A
``suite.json`` may come from another machine and is not trusted.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from autocompile.errors import RunError, UsageError
from autocompile.estimate.candidates import ONE
from autocompile.estimate.intervals import Interval
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.store.reading import Part, demand_positive, demand_schema
from autocompile.store.record import SCHEMA
from autocompile.store.report import (
    Answer,
    PhaseResult,
    Report,
    Tried,
    size_in_words,
)

SUITE = "suite.json"


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
class Row(Part):
    """A model in a phase at a batch size.

    Attributes:
        verdict: that of the run's answer; ``not_run`` where there is no run of it yet.
        message: why there is no result.
        plain: ``torch.compile()`` without arguments.
        best: eager mode where that is to be kept; None without a result.
        settings: all that were tried beside eager mode, in the order of trials.
        calls: of a pass that makes several; ``batch_size`` is the samples of all of them.
    """

    target: str
    run: str
    phase: str = ""
    batch_size: int | None = None
    verdict: Literal[
        "faster", "within_limits", "keep_eager", "unknown", "failed", "not_run"
    ] = "failed"
    confidence: str = ""
    message: str = ""
    eager_call_s: float | None = None
    eager_peak_memory_bytes: int | None = None
    plain: Tried | None = None
    best: Tried | None = None
    settings: tuple[Tried, ...] = ()
    calls: int = 0

    optional = ("calls",)

    def __post_init__(self) -> None:
        demand_positive(eager_call_s=self.eager_call_s)

    @property
    def name(self) -> tuple[str, str, int | None]:
        return self.target, self.phase, self.batch_size

    @property
    def size(self) -> str:
        """``batch size 4``, or the samples of a pass of several calls."""
        return size_in_words(self.batch_size, self.calls) or "no batch size"

    @property
    def is_known(self) -> bool:
        """Whether its run has said something of it: a result, or that there is none."""
        return self.verdict not in ("not_run", "unknown")

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

    def __post_init__(self) -> None:
        for member in self.members:
            # A run is a folder of the suite's own: no path leads out of it.
            if Path(member.folder).name != member.folder or member.folder == "..":
                raise ValueError(f"{member.folder!r} is no name of a folder")

    @classmethod
    def read(cls, folder: Path) -> Suite:
        """That of a folder, or of a ``suite.json``; a RunError if it is none."""
        path = folder if folder.suffix == ".json" else folder / SUITE
        try:
            data = json.loads(path.read_text("utf-8"))
            demand_schema(path, data, SCHEMA)
            suite: Suite = cls.from_dict(data)
        except OSError as error:
            hint = "autocompile suite timm   (begins one)"
            raise RunError(
                f"cannot read {path}: {error.strerror or error}", hint=hint
            ) from None
        except UsageError as error:  # of a setting, such as one of a newer version
            raise RunError(
                f"{path} holds a setting that cannot be read: {error.what}",
                *error.details,
                hint=error.hint,
            ) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise RunError(f"{path} is damaged, or is no suite: {error}") from None
        return suite

    def rows_with(self, best: bool) -> list[Row]:
        """Those that have the best setting or plain ``torch.compile()``, right or not.

        Of a model without any result both have failed.
        """
        rows = [row for row in self.rows if row.is_known]
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

    def best_for_all(self) -> tuple[CompileConfig, float] | None:
        """The one setting whose geometric mean is highest, of those tried in every row.

        Where it fails it counts as eager mode, too. None where eager mode is the best, or no
        setting is right in most rows.
        """
        logs: dict[CompileConfig, list[float]] = {}
        right = Counter[CompileConfig]()
        rows = [row for row in self.rows if row.settings]
        for row in rows:
            for tried in row.settings:
                right[tried.config] += tried.is_right
                is_faster = tried.is_right and tried.speedup
                gain = tried.speedup.value if is_faster and tried.speedup else 1.0
                logs.setdefault(tried.config, []).append(math.log(gain))
        means = {
            config: fmean(each)
            for config, each in logs.items()
            if len(each) == len(rows) and right[config] > len(rows) / 2
        }
        best = max(means, key=lambda config: means[config], default=None)
        if best is None or means[best] <= 0:
            return None
        return best, math.exp(means[best])


def rows_of(member: Member, run: str, report: Report) -> Iterator[Row]:
    """A row for each phase and batch size of a run's report."""
    for name, phase in report.phases.items():
        for answer in phase.answers:
            copied = _row(phase, answer)
            yield replace(copied, target=member.target, run=run, phase=name)


def _row(phase: PhaseResult, answer: Answer) -> Row:
    """The row of an answer, without the names of its model, run and phase."""
    here = [t for t in phase.settings if t.batch_size == answer.batch_size]
    by_config = {tried.config: tried for tried in here}
    eager, best = by_config.get(EAGER), answer.best
    eager_call_s = eager.call_s if eager else None
    if best:
        eager_call_s = best.eager_call_s
    return Row(
        target="",
        run="",
        batch_size=answer.batch_size,
        verdict=answer.verdict,
        confidence=answer.confidence,
        message="" if best else answer.reason,
        eager_call_s=eager_call_s,
        eager_peak_memory_bytes=eager.peak_memory_bytes if eager else None,
        plain=by_config.get(DEFAULT_INDUCTOR),
        best=by_config.get(best.config) if best else None,
        settings=tuple(tried for tried in here if tried.config != EAGER),
        calls=answer.calls,
    )
