"""What is kept of a trial: from how its job ended, or from other trials, without running it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autocompile.errors import AutocompileError
from autocompile.execute.executor import Ending
from autocompile.settings.config import Setting
from autocompile.store.record import Outcome, Record, Step

Known = Mapping[Setting, Record]

# Measured in studies/dimensions: 4 to 17 µs.
_FULLGRAPH = (
    "not timed: the code is the same, and torch's checks take a few microseconds more per call"
)
_PLACE = ("number", "phase", "config", "batch_size")
_NO_RECORD = (AutocompileError, KeyError, TypeError, ValueError, AttributeError)


def to_record(number: int, setting: Setting, ending: Ending) -> Record:
    """The record that a job has sent, with what the parent has seen of the job.

    One that makes no sense is ``infrastructure``.
    """
    place = number, setting.phase, setting.config, setting.batch_size
    own: dict[str, Any] = dict(zip(_PLACE, place, strict=True))
    own |= {"outcome": ending.outcome, "step": ending.step, "message": ending.message}
    own |= {"role": "search", "repeats": None, "race": None}
    own |= {"wall_s": ending.wall_s, "step_s": ending.step_s, "spans": _spans(ending)}
    try:
        record = Record.from_dict({**ending.payload, **own})
        json.dumps([record.detail, record.explained], allow_nan=False)
    except _NO_RECORD as error:
        what = f"its result makes no sense: {error}"
        return Record(*place, Outcome.INFRASTRUCTURE, ending.step, what)
    if record.measurement or record.outcome is not Outcome.OK:
        record.duplicate_of = None
    if ending.stack:
        record.detail["stack"] = ending.stack
    if first := ending.first:
        told = f"{first.outcome.value} in {first.step.value} ({first.message})"
        record.notes.append(
            f"second try, alone and in a fresh interpreter; the first ended with {told}"
        )
    if record.compile_s is not None:  # without the pauses for other trials' measurements
        begin, end = record.compile_window or (0.0, 0.0)
        held = sum(max(0.0, min(end, b) - max(begin, a)) for a, b in ending.pauses)
        record.compile_s = max(0.0, record.compile_s - held)
    record.compile_window = None
    return record


def _spans(ending: Ending) -> tuple[tuple[str, float, float], ...]:
    """Its stretches of work to the millisecond, those of a first try before."""
    every = [*(ending.first.spans if ending.first else ()), *ending.spans]
    return tuple((s, round(a, 3), round(b, 3)) for s, a, b in every if b - a >= 0.001)


def side_records(trials: Sequence[Record], ending: Ending, at_work: int) -> list[Record]:
    """What is kept of a race that has ended, a record for each side; numbers are still to be given.

    Args:
        trials: those that were raced.
        at_work: the trial whose turn it was when the process ended; another number for none.
    """
    own = {r.number: r for r in trials}
    endings: dict[int, Ending] = {}
    sides = ending.payload.get("sides") if ending.outcome is Outcome.OK else None
    for said in sides if isinstance(sides, list) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError):  # it is no side
            trial, outcome, step = own[said["number"]], Outcome(said["outcome"]), Step(said["step"])
            message = str(said.get("message", ""))
            endings[trial.number] = dataclasses.replace(
                ending, outcome=outcome, step=step, message=message, payload=said
            )
    if ending.outcome not in (Outcome.OK, Outcome.INTERRUPTED) and at_work in own:
        endings[at_work] = dataclasses.replace(ending, payload={})
    records = []
    for number, each in endings.items():
        record = to_record(-1, Setting.of(own[number]), each)
        record.role, record.repeats = "confirm", number
        record.wall_s /= len(endings)
        record.refresh_s = own[number].refresh_s
        record.calls_per_update = own[number].calls_per_update
        records.append(record)
    return records


def answer(number: int, setting: Setting, known: Known) -> Record | None:
    """The record of a setting by that of its plainer twin; None if it must be tried."""
    twin = known.get(setting.plainer_twin) if setting.plainer_twin else None
    if twin is None:
        return None
    if twin.ok and twin.graph_breaks:
        place = number, setting.phase, setting.config, setting.batch_size
        detail = {"breaks": twin.detail.get("breaks", []), "answered": True}
        return Record(*place, Outcome.GRAPH_BREAK, Step.COMPILE, _breaks(twin), detail=detail)
    if twin.ok and not _is_one_graph(twin):
        return None
    return dataclasses.replace(
        twin,
        number=number,
        config=setting.config,
        wall_s=0.0,
        spans=(),
        duplicate_of=twin.number if twin.duplicate_of is None else twin.duplicate_of,
        detail=twin.detail if twin.ok else {**twin.detail, "answered": True},
        notes=[*twin.notes, _FULLGRAPH] if twin.ok else twin.notes,
    )


def _is_one_graph(record: Record) -> bool:
    """Whether it was compiled once as one graph, so that ``fullgraph=True`` is equal."""
    skipped = record.recompiles or record.detail.get("skipped_frames")
    return not skipped and record.graphs in (None, 1)


def _breaks(record: Record) -> str:
    """What a trial says of the breaks of its graph."""
    first: Mapping[str, str] = next(iter(record.detail.get("breaks", [])), {})
    reason = f": {first['reason']}" if first.get("reason") else ""
    place = f" ({first['place']})" if first.get("place") else ""
    return f"trial {record.number} broke the graph {record.graph_breaks} times{reason}{place}"


def known_codes(setting: Setting, worked: Iterable[Record]) -> dict[str, int]:
    """Compiled code (its hash) to trial number, of those that worked with the same inputs."""
    return {
        r.code: r.number
        for r in worked
        if r.code and r.duplicate_of is None and r.config.environment == setting.config.environment
    }


def of_twin(record: Record, known: Known) -> Record:
    """The result of a trial that ended in the code of another one, which was measured."""
    twin = record.duplicate_of
    source = next((r for r in known.values() if r.number == twin and r.ok), None)
    if source is None:
        what = "it has no measurement, and names no trial that has one"
        record.outcome, record.message, record.duplicate_of = Outcome.INFRASTRUCTURE, what, None
        return record
    return dataclasses.replace(
        source,
        number=record.number,
        config=record.config,
        duplicate_of=source.number,
        wall_s=record.wall_s,
        step_s=record.step_s,
        spans=record.spans,
        compile_s=record.compile_s,
        notes=[*source.notes, f"Inductor wrote the same code as for trial {source.number}"],
    )
