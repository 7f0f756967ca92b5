"""From how a job ended to what is kept of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from autocompile.execute.executor import Ending
from autocompile.protocol.results import RaceResult, SideResult, TrialResult
from autocompile.settings.setting import Setting
from autocompile.store.measurement import measurement_of
from autocompile.store.record import Outcome, Record, Step

__all__ = ["side_records", "to_record"]

_IN_DETAIL = ("where", "reference_s", "page_faults", "code")
_AS_SENT = (
    *("refresh_s", "calls_per_update", "peak_memory_bytes", "eager_peak_memory_bytes"),
    *("graphs", "graph_breaks", "recompiles"),
)


def to_record(number: int, setting: Setting, ending: Ending) -> Record:
    """What is kept of a job that has ended; a payload that makes no sense is ``infrastructure``."""
    said = TrialResult.read(ending.payload)
    try:
        detail = {**said.detail, "weights_live": said.weights_live}
        if ending.stack:
            detail["stack"] = ending.stack
        detail |= {name: value for name in _IN_DETAIL if (value := getattr(said, name))}
        notes = [*map(str, said.notes)]
        if first := ending.first:
            told = f"{first.outcome.value} in {first.step.value} ({first.message})"
            notes.append(
                f"second try, alone and in a fresh interpreter; the first ended with {told}"
            )
        return Record(
            number=number,
            phase=setting.phase,
            config=setting.config,
            batch_size=setting.batch_size,
            outcome=ending.outcome,
            step=ending.step,
            message=ending.message,
            measurement=measurement_of(said.measurement) if said.measurement else None,
            wall_s=ending.wall_s,
            step_s=ending.step_s,
            spans=_spans(ending),
            notes=tuple(notes),
            detail=detail,
            compile_s=_compile_s(said, ending),
            **{name: getattr(said, name) for name in _AS_SENT},
        )
    except (TypeError, ValueError, AttributeError) as error:
        broken = Ending(Outcome.INFRASTRUCTURE, ending.step, f"its result makes no sense: {error}")
        return to_record(number, setting, broken)


def _spans(ending: Ending) -> tuple[tuple[str, float, float], ...]:
    """Its stretches of work to the millisecond, those of a first try before."""
    every = [*(ending.first.spans if ending.first else ()), *ending.spans]
    return tuple((s, round(a, 3), round(b, 3)) for s, a, b in every if b - a >= 0.001)


def _compile_s(said: TrialResult, ending: Ending) -> float | None:
    """Compile time without the time in which the trial was stopped for another's measurement."""
    if said.compile_s is None:
        return None
    begin, end = said.compile_window or (0.0, 0.0)
    held = sum(max(0.0, min(end, b) - max(begin, a)) for a, b in ending.pauses)
    return max(0.0, float(said.compile_s) - held)


def side_records(trials: Sequence[Record], ending: Ending, at_work: int) -> list[Record]:
    """What is kept of a race that has ended, a record for each side; numbers are still to be given.

    Args:
        trials: those that were raced.
        at_work: the trial whose turn it was when the process ended; another number for none.
    """
    said, sides = RaceResult.read(ending.payload), {r.number: r for r in trials}
    found = {s.number: s for s in said.sides if s.number is not None and s.number in sides}
    if ending.outcome is Outcome.INTERRUPTED:
        found = {}
    elif ending.outcome is not Outcome.OK:
        lost = SideResult(ending.outcome.value, ending.message, step=ending.step.value)
        found = {at_work: lost} if at_work in sides else {}
    records = []
    for number, each in found.items():
        trial = sides[number]
        own = dataclasses.replace(
            ending,
            outcome=Outcome(each.outcome),
            step=Step(each.step or ending.step),
            message=str(each.message),
            payload={**each.to_dict(), "reference_s": said.reference_s},
            wall_s=ending.wall_s / len(found),
        )
        record = dataclasses.replace(
            to_record(-1, Setting.of(trial), own),
            role="confirm",
            repeats=number,
            refresh_s=trial.refresh_s,
            calls_per_update=trial.calls_per_update,
        )
        records.append(record)
    return records
