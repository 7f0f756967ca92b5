"""The exported code of a run that is not over yet, for the run's own check of it."""

from __future__ import annotations

from collections.abc import Mapping

from autocompile.estimate.decision import Decision
from autocompile.export.lines import Choice, Facts
from autocompile.export.python import programs
from autocompile.protocol.requests import ExportedCode
from autocompile.settings.config import Cell
from autocompile.settings.tuned import FINGERPRINT, Tuned
from autocompile.settings.tuned import Choice as TunedChoice
from autocompile.store.run import Run


def exported_code(
    run: Run, decisions: Mapping[Cell, Decision]
) -> dict[Cell, ExportedCode]:
    """What ``--to python`` gives for each phase that is faster, by phase and batch size.

    A phase gets the lines of the whole export that it runs with, the settings that they may read,
    and the name of what it calls then. ``decisions``: one for
    each phase, at the batch size that its answer is about.
    """
    found = {cell: _choice(cell, decision) for cell, decision in decisions.items()}
    facts = Facts.of(run.target, run.environment, run.environments, run.phases)
    lines = {
        one.phase: (together, one)
        for together in programs(list(found.values()), facts)
        for one in together.phases
        if not one.is_empty
    }
    settings = _tuned(run, decisions)
    codes = {}
    for cell in found:
        if cell[0] in lines:
            together, one = lines[cell[0]]
            code = "\n".join(statement.code for statement in together.of(one.phase))
            codes[cell] = ExportedCode(code, settings, one.called)
    return codes


def _choice(cell: Cell, decision: Decision) -> Choice:
    phase, batch_size = cell
    config = decision.best.record.config
    if config.is_baseline:
        return Choice(phase, "keep_eager", None, "")
    return Choice(phase, "faster", config, "", batch_size=batch_size)


def _tuned(run: Run, decisions: Mapping[Cell, Decision]) -> Tuned:
    """The settings as a file holds them."""
    phases = {
        phase: (_tuned_choice(decision, batch_size),)
        for (phase, batch_size), decision in decisions.items()
    }
    return Tuned(
        phases,
        fingerprint={name: run.environment.get(name) for name in FINGERPRINT},
        target=run.request.target,
        batch_sizes={phase: size for phase, size in decisions if size is not None},
        interpreters={
            name: str(other.get("python_path"))
            for name, other in run.environments.items()
        },
    )


def _tuned_choice(decision: Decision, batch_size: int | None) -> TunedChoice:
    best = decision.best
    speedup = best.reported.to_dict()
    return TunedChoice(best.record.config, batch_size, speedup, best.sets or 1)
