"""From how a job ended to what is kept of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from autocompile.execute.executor import Ending
from autocompile.space.space import Setting
from autocompile.store.record import Outcome, Record, Step, measurement_of

__all__ = ["side_records", "to_record"]


_KEPT = ("reference_s", "raced_in", "page_faults", "code")


def to_record(number: int, phase: str, setting: Setting, ending: Ending) -> Record:
    """What is kept of a job that has ended; a payload that makes no sense is ``infrastructure``."""
    data: Mapping[str, Any] = ending.payload
    try:
        raw = data.get("measurement")
        measurement = measurement_of(raw) if raw else None
        detail = {**data.get("detail", {}), "weights_live": data.get("weights_live")}
        if where := data.get("where"):
            detail["where"] = where
        if ending.stack:
            detail["stack"] = ending.stack
        detail |= {name: data[name] for name in _KEPT if data.get(name)}
        return Record(
            number=number,
            phase=phase,
            config=setting.config,
            batch_size=setting.batch_size,
            outcome=ending.outcome,
            step=ending.step,
            message=ending.message,
            measurement=measurement,
            wall_s=ending.wall_s,
            step_s=ending.step_s,
            notes=(*map(str, data.get("notes", ())), *_of_first_try(ending)),
            detail=detail,
            compile_s=_compile_s(data, ending),
            refresh_s=data.get("refresh_s"),
            calls_per_update=data.get("calls_per_update"),
            peak_memory_bytes=data.get("peak_memory_bytes"),
            eager_peak_memory_bytes=data.get("eager_peak_memory_bytes"),
            graphs=data.get("graphs"),
            graph_breaks=data.get("graph_breaks"),
            recompiles=data.get("recompiles"),
        )
    except (TypeError, ValueError, AttributeError) as error:
        broken = Ending(Outcome.INFRASTRUCTURE, ending.step, f"its result makes no sense: {error}")
        return to_record(number, phase, setting, broken)


def _of_first_try(ending: Ending) -> list[str]:
    if (first := ending.first) is None:
        return []
    said = f"{first.outcome.value} in {first.step.value} ({first.message})"
    return [f"second try, alone and in a fresh interpreter; the first ended with {said}"]


def _compile_s(data: Mapping[str, Any], ending: Ending) -> float | None:
    """Compile time without the time in which the trial stood still for another's sake."""
    if (compile_s := data.get("compile_s")) is None:
        return None
    begin, end = data.get("compile_window") or (0.0, 0.0)
    held = sum(max(0.0, min(end, b) - max(begin, a)) for a, b in ending.pauses)
    return max(0.0, float(compile_s) - held)


def side_records(sides: Mapping[int, Record], ending: Ending, at_work: int) -> list[Record]:
    """What is kept of a race that has ended, a record for each side; numbers are still to be given.

    Args:
        sides: the trials that were raced, by their numbers.
        ending: of the race.
        at_work: the side whose turn it was when the process ended; another number for none.
    """
    if ending.outcome is Outcome.INTERRUPTED:
        return []
    said = ending.payload.get("sides", ())
    found: dict[int, Mapping[str, Any]] = {}
    for each in said if isinstance(said, list) else ():
        if isinstance(each, Mapping) and each.get("number") in sides and each.get("outcome"):
            found[each["number"]] = each
    if ending.outcome is not Outcome.OK:
        lost = {"outcome": ending.outcome, "step": ending.step, "message": ending.message}
        found = {at_work: lost} if at_work in sides else {}
    reference_s = ending.payload.get("reference_s")
    records = []
    for number, each in found.items():
        own = dataclasses.replace(
            ending,
            outcome=Outcome(each["outcome"]),
            step=Step(each.get("step", ending.step)),
            message=str(each.get("message", "")),
            payload={**each, "reference_s": reference_s},
            wall_s=ending.wall_s / len(found),
        )
        trial = sides[number]
        record = to_record(-1, trial.phase, Setting.of(trial), own)
        records.append(
            dataclasses.replace(
                record,
                role="confirm",
                repeats=number,
                refresh_s=trial.refresh_s,
                calls_per_update=trial.calls_per_update,
            )
        )
    return records
