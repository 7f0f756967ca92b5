"""The record of a trial: from how its job ended, or from its plainer twin, without running it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from autocompile.errors import AutocompileError
from autocompile.execute.executor import Ending
from autocompile.protocol.requests import TrialRequest
from autocompile.settings.config import Setting
from autocompile.store.record import Checks, GraphBreak, Outcome, Record, Step

Known = Mapping[Setting, Record]

# Measured in studies/dimensions: 4 to 17 µs.
_FULLGRAPH = "not timed: the code is the same, and torch's checks take a few microseconds more per call"
# Failures that may be of one process, or hide what the graph does.
_OF_ITS_PROCESS = (
    Outcome.INFRASTRUCTURE,
    Outcome.TIMEOUT,
    Outcome.CRASHED,
    Outcome.INTERRUPTED,
)
_NO_FAILURE = (Outcome.OK, Outcome.INTERRUPTED)
_OF_EACH_SIDE = ("compile", "verify", "measure")
# What does not say that it has passed all checks has not.
_NOTHING_SAID = {"checks": Checks.FIRST.value}
_PLACE = ("number", "phase", "config", "batch_size")
_NO_RECORD = (AutocompileError, KeyError, TypeError, ValueError, AttributeError)


def to_record(number: int, setting: Setting, ending: Ending) -> Record:
    """What a job has sent, or ``infrastructure`` if it makes no sense, and the parent has seen."""
    place = number, setting.phase, setting.config, setting.batch_size
    of_parent: dict[str, Any] = dict(zip(_PLACE, place, strict=True))
    of_parent |= {
        "outcome": ending.outcome,
        "step": ending.step,
        "message": "" if ending.outcome is Outcome.OK else ending.message,
    }
    of_parent |= {"role": "search"}
    of_parent |= dict.fromkeys(("repeats", "race", "raced_in", "duplicate_of"))
    spans = (*(ending.first.spans if ending.first else ()), *ending.spans)
    rounded = [(s, round(a, 3), round(b, 3)) for s, a, b in spans if b - a >= 0.001]
    of_parent |= {"wall_s": ending.wall_s, "step_s": ending.step_s, "spans": rounded}
    try:
        record = Record.from_dict({**_NOTHING_SAID, **ending.payload, **of_parent})
        if record.measurement is None and record.outcome is Outcome.OK:
            raise ValueError("it has no measurement")
        json.dumps([record.detail, record.explained], allow_nan=False)
    except _NO_RECORD as error:
        what = f"its result makes no sense: {error}"
        return Record(
            *place, outcome=Outcome.INFRASTRUCTURE, step=ending.step, message=what
        )
    if record.ok and ending.message:
        record.notes.append(ending.message)
    if ending.stack:
        record.detail["stack"] = ending.stack
    if first := ending.first:
        ended = f"{first.outcome.value} in {first.step.value} ({first.message})"
        record.notes.append(
            f"second try, alone and in a fresh interpreter; the first ended with {ended}"
        )
    if (
        record.compile_s is not None
    ):  # without the pauses for other trials' measurements
        begin, end = record.compile_window or (0.0, 0.0)
        paused_s = sum(max(0.0, min(end, b) - max(begin, a)) for a, b in ending.pauses)
        record.compile_s = max(0.0, record.compile_s - paused_s)
    record.compile_window = None
    return record


def records_of(
    request: TrialRequest, ending: Ending, at_work: int = -1
) -> list[Record]:
    """The records of a trial's sides, of those that had their turn.

    Of a setting's first trial by itself there is one whatever happened: what ended the process
    ended it. Of several each gets one if it has ended by itself, or was at work when its process
    did: what happens outside of all turns is nobody's. The numbers of what is timed again are to be
    given.

    Args:
        at_work: the trial that a side stands for that was at work when the process ended; another
            number for none.
    """
    sent = _sides_by_number(ending.payload)
    records = []
    for side in request.sides:
        number = request.number_of(side)
        setting = Setting(side.config, request.batch_size, request.phase)
        own = sent.get(number, {})
        if len(request.sides) == 1 and side.repeats is None:
            payload = of_only_side(ending.payload)
            whole = dataclasses.replace(ending, payload=payload)
            records.append(to_record(number, setting, whole))
            continue
        if at_work == number and (failure := _failure_of(ending)):
            its: Ending | None = failure
        else:
            its = _ending_of(own, ending)
        if its is not None:
            if side.repeats is None:
                record = to_record(number, setting, its)
                record.raced_in = request.number if number != request.number else None
            else:
                record = to_record(-1, setting, its)
                record.role, record.repeats = "confirm", number
            records.append(record)
    for record in records:
        record.wall_s /= len(records)
        if record.role == "search":
            # All sides have one import, build and reference; the rest is a share of each.
            record.step_s = {
                step: took_s / (len(records) if step in _OF_EACH_SIDE else 1)
                for step, took_s in record.step_s.items()
            }
    return records


def _failure_of(process: Ending) -> Ending | None:
    """How a process failed, if it did, in the later checks after its measurement too."""
    ended = process.cut or process.outcome
    if ended in _NO_FAILURE:
        return None
    step = Step.VERIFY if process.cut else process.step
    return dataclasses.replace(process, outcome=ended, step=step, payload={})


def of_only_side(payload: Mapping[str, Any]) -> dict[str, Any]:
    """What a trial of one setting has sent of it, with what ended the process outside of its turn."""
    sides = payload.get("sides")
    side = sides[0] if isinstance(sides, list) and sides else {}
    told = {name: payload[name] for name in ("where", "explained") if payload.get(name)}
    return {**(side if isinstance(side, Mapping) else {"sides": side}), **told}


def _sides_by_number(payload: Mapping[str, Any]) -> dict[Any, Mapping[str, Any]]:
    """What a process has sent of each side, as far as it is that."""
    sides = payload.get("sides")
    return {
        side["number"]: side
        for side in (sides if isinstance(sides, list) else ())
        if isinstance(side, Mapping) and isinstance(side.get("number"), int)
    }


def _ending_of(side: Mapping[str, Any], process: Ending) -> Ending | None:
    """How a side has ended by what was sent of it; None if it has not, or that is no ending."""
    try:
        outcome, step = Outcome(side["outcome"]), Step(side["step"])
    except (KeyError, ValueError):
        return None
    if outcome is Outcome.INTERRUPTED:  # it had no turn
        return None
    message = str(side.get("message", ""))
    return dataclasses.replace(
        process, outcome=outcome, step=step, message=message, payload=side
    )


def answer(number: int, setting: Setting, known: Known) -> Record | None:
    """The record of a setting by that of its plainer twin; None if it must be tried."""
    twin = known.get(setting.plainer_twin) if setting.plainer_twin else None
    if twin is None or twin.outcome in _OF_ITS_PROCESS:
        return None
    if twin.ok and twin.graph_breaks:
        place = number, setting.phase, setting.config, setting.batch_size
        breaks = list(twin.breaks)
        record = Record(*place, message=_breaks(twin), breaks=breaks, answered=True)
        record.outcome, record.step = Outcome.GRAPH_BREAK, Step.COMPILE
        return record
    # With fullgraph the same code is made only where it compiled once, as one graph.
    is_whole = twin.graphs in (None, 1)
    if twin.ok and (twin.recompiles or twin.skipped_frames or not is_whole):
        return None
    return dataclasses.replace(
        twin,
        number=number,
        config=setting.config,
        wall_s=0.0,
        spans=(),
        duplicate_of=twin.number if twin.duplicate_of is None else twin.duplicate_of,
        answered=not twin.ok,
        notes=[*twin.notes, _FULLGRAPH] if twin.ok else twin.notes,
    )


def _breaks(record: Record) -> str:
    """What a trial says of the breaks of its graph."""
    first = next(iter(record.breaks), GraphBreak())
    reason = f": {first.reason}" if first.reason else ""
    place = f" ({first.place})" if first.place else ""
    return f"trial {record.number} broke the graph {record.graph_breaks} times{reason}{place}"
