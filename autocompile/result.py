"""Result: the outcome of a run for Python code."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from autocompile.errors import AutocompileError, NothingWorked
from autocompile.estimate.intervals import Interval
from autocompile.export import FORMATS, export, to_paste
from autocompile.report.build import build_report
from autocompile.report.page import to_html
from autocompile.report.terminal import render
from autocompile.settings.config import CompileConfig
from autocompile.settings.phases import phase_of
from autocompile.store.files import write_json, write_text
from autocompile.store.reading import made
from autocompile.store.record import Outcome, Record, RunFolder
from autocompile.store.report import Report
from autocompile.store.run import Run

Model = TypeVar("Model")


class Result:
    """The result of a run. Mappings are keyed by phase, without phases in which nothing worked.

    Attributes:
        best: the best trial; eager's if the verdict is ``keep_eager``.
        config: its settings.
        speedup: its speed-up over eager, with the interval in which other runs of this machine lie.
        report: all of it, typed.
        verdict: ``faster``, ``within_limits`` (eager mode breaks a limit, this setting keeps them),
            ``keep_eager``, ``unknown`` (nothing compiled has ended and passed all checks) or
            ``failed``, of every phase.
        trials: all trials of the run.
        environment: versions and machine.
        interrupted: the run was stopped early.
        notice: about parts of the run that this version cannot read; empty if none.
    """

    def __init__(self, report: Report, trials: list[Record]) -> None:
        self.report = report
        self.trials = trials
        self.environment = report.environment
        self.interrupted = report.interrupted
        self.run_dir = report.run_dir
        self.notice = report.notice
        answers = {name: phase.answer for name, phase in report.phases.items()}
        self.verdict: dict[str, str] = {n: a.verdict for n, a in answers.items()}
        best = {name: a.best for name, a in answers.items() if a.best}
        by_number = {r.number: r for r in trials}
        self.best: dict[str, Record] = {n: by_number[b.number] for n, b in best.items()}
        self.config: dict[str, CompileConfig] = {n: b.config for n, b in best.items()}
        self.speedup: dict[str, Interval] = {n: b.speedup for n, b in best.items()}

    def is_faster_by(self, factor: float, phase: str) -> bool:
        """Whether a phase's interval is above a factor, confirmed by several processes."""
        answer = self.report.phases[phase].answer
        best = answer.best
        if best is None or not answer.is_faster or best.confirmed_processes < 2:
            return False
        return best.speedup.low >= factor

    @property
    def has_answer(self) -> bool:
        """Whether any phase has a result: ``unknown`` and ``failed`` are none."""
        return bool(self.best)

    @property
    def kwargs(self) -> dict[str, dict[str, Any]]:
        """Arguments of ``torch.compile`` by phase; ``{"disable": True}`` if eager is best.

        They hold what ``torch.compile`` takes. Memory formats, optimizers, frozen weights, threads
        and precision are not among it: :meth:`compile` and :func:`autocompile.apply` set those too.
        """
        return {
            name: {"disable": True} if config.is_eager else config.compile_kwargs()
            for name, config in self.config.items()
        }

    def compile(
        self,
        model: Model,
        phase: str | None = None,
        optimizer: Any = None,
    ) -> Model:
        """Apply ``config`` of a phase in place, as :func:`autocompile.apply` does.

        A phase may be left out if the run has one forward phase.
        """
        from autocompile.runtime.apply import apply

        asked = [
            n
            for n in self.best
            if n == phase or (phase is None and phase_of(n).is_forward)
        ]
        size = self.best[asked[0]].batch_size if asked else None
        applied: Any = apply(model, self, phase, batch_size=size, optimizer=optimizer)  # type: ignore[type-var]
        return applied  # type: ignore[no-any-return]

    def apply_to(self, algorithm_config: Any) -> Any:
        """What :func:`autocompile.rllib.tuned` makes of an ``AlgorithmConfig`` and this."""
        from autocompile.rllib.algorithm import tuned

        return tuned(algorithm_config, self)

    def export(self, to: str) -> str:
        """The result for ``python``, ``json``, ``rllib``, ``accelerate``, ``transformers`` or
        ``lightning``; an ExportError if the format cannot express it.
        """
        return export(self.report, to)

    def to_dict(self) -> dict[str, Any]:
        """The content of ``report.json``."""
        return self.report.to_dict()

    def __str__(self) -> str:
        """The report as ``autocompile show`` prints it."""
        text = io.StringIO()
        # Otherwise rich writes to a notebook's display, and colors where FORCE_COLOR is set.
        console = Console(
            file=text, width=100, force_jupyter=False, force_terminal=False
        )
        render(self.report, console)
        return text.getvalue()

    def _repr_html_(self) -> str:
        """The report as text, which a notebook shows in place of ``repr``."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def write_html(self) -> Path:
        """Write ``report.html`` into the run's folder, and return its path."""
        folder = RunFolder(self.run_dir).path
        page = to_html(self.report, self.trials, to_paste(self.report))
        write_text(folder / "report.html", page)
        return folder / "report.html"

    def __repr__(self) -> str:
        phases = ", ".join(f"{n}: {v}" for n, v in self.verdict.items())
        return f"<autocompile.Result of {self.run_dir}: {phases}>"


def make_result(
    folder: RunFolder,
    run: Run,
    records: list[Record],
    notice: str = "",
) -> Result:
    """The result of a run, including all possible exports."""
    report = build_report(run, records, str(folder.path))
    with contextlib.suppress(OSError, TypeError, ValueError):
        figures = json.loads(folder.in_algorithm.read_text("utf-8"))
        read = made(Mapping[str, Mapping[str, Interval]], figures)
        report = dataclasses.replace(report, in_algorithm=read)
    exports = {}
    for to in FORMATS:
        with contextlib.suppress(AutocompileError):
            exports[to] = export(report, to)
    return Result(dataclasses.replace(report, notice=notice, exports=exports), records)


def write_result(folder: RunFolder, run: Run, records: list[Record]) -> Result:
    """Make the result of a finished run and write ``report.json`` and ``report.html``."""
    result = make_result(folder, run, records)
    write_json(folder.path / "report.json", result.to_dict())
    result.write_html()
    return result


def demand_some(result: Result, run: Run) -> None:
    """Raise NothingWorked if no phase of a run has a result."""
    if set(result.verdict.values()) != {"failed"} or run.interrupted:
        return
    first = next(iter(result.report.phases.values()))
    rows = first.failures[:1]
    words = [f"most often: {r.message} ({r.count} ×) · log: {r.log}" for r in rows]
    reason = first.answer.reason
    what, hint = f"no setting and no eager run worked: {reason}", None
    if any(trial.ok for trial in first.trials):  # what works breaks the limits
        what, words = f"there is no result: {reason}", []
        hint = "looser limits, or other batch sizes"
    elif rows and rows[0].outcome is Outcome.TIMEOUT:
        hint = "the same command with a longer --timeout, if a call or a compile needs more time"
    raise NothingWorked(what, *words, hint=hint)
