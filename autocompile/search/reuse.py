"""Derives results of settings from other trials, without running them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from autocompile.estimate.candidates import whole_call_s
from autocompile.execute.executor import Ending
from autocompile.search.records import to_record
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import DIMENSIONS
from autocompile.space.space import Setting, plainer_twins
from autocompile.store.record import Outcome, Record, Step

__all__ = ["answer", "known_codes", "of_twin"]

Known = Mapping[Setting, Record]

_HOPE = 0.8  # best case for constant weights, relative to the fastest known call
# Measured in studies/dimensions: 4 to 17 µs.
_FULLGRAPH_COSTS = (
    "not timed: the code is the same, and torch's checks take a few microseconds more per call"
)


def answer(
    number: int,
    setting: Setting,
    known: Known,
    calls_per_update: int | None,
) -> Record | None:
    """The record of a setting as far as other trials determine it; None if it must be tried."""
    known = {s: r for s, r in known.items() if s.phase == setting.phase}
    if reason := _cannot_pay(setting, known, calls_per_update):
        known_before = {"detail": {"answered": True}}
        ending = Ending(Outcome.UNSUPPORTED, Step.IMPORT, reason, payload=known_before)
        return to_record(number, setting.phase, setting, ending)
    source, same = None, None
    for twin in plainer_twins(setting):
        record = known.get(twin)
        if record and record.ok and _is_one_graph(record):
            source = record
            same = record.number if record.duplicate_of is None else record.duplicate_of
            break
    if source is None and setting.config.fullgraph and (broke := _break_of(setting, known)):
        return _broken(number, setting, broke)
    if source is None and (empty := _without_graph(setting, known)):
        return dataclasses.replace(
            empty,
            number=number,
            config=setting.config,
            batch_size=setting.batch_size,
            duplicate_of=empty.number,
            wall_s=0.0,
            detail={**empty.detail, "answered": True},
        )
    if source is None:
        return None
    return dataclasses.replace(
        source,
        number=number,
        config=setting.config,
        batch_size=setting.batch_size,
        duplicate_of=same,
        wall_s=0.0,
        notes=(*source.notes, _FULLGRAPH_COSTS),
    )


def _is_one_graph(record: Record) -> bool:
    """Whether it was compiled once as one graph, so that ``fullgraph=True`` is equal."""
    skipped = record.graph_breaks or record.recompiles or record.detail.get("skipped_frames")
    return not skipped and record.graphs in (None, 1)


def _broken(number: int, setting: Setting, broke: Record) -> Record:
    """A ``graph_break`` record based on another trial."""
    breaks = broke.detail.get("breaks", [])
    message = broke.message
    if broke.ok:
        first = breaks[0] if breaks else {}
        told = f": {first['reason']}" if first.get("reason") else ""
        told += f" ({first['place']})" if first.get("place") else ""
        message = f"trial {broke.number} broke the graph {broke.graph_breaks} times{told}"
    return Record(
        number=number,
        phase=broke.phase,
        config=setting.config,
        batch_size=setting.batch_size,
        outcome=Outcome.GRAPH_BREAK,
        step=Step.COMPILE,
        message=message,
        detail={"breaks": breaks, "answered": True},
        duplicate_of=None if broke.ok else broke.number,
    )


def _cannot_pay(setting: Setting, known: Known, calls: int | None) -> str:
    """Why constant weights cannot win here; empty if they may.

    Assumes for its calls the largest speed-up at any batch size, or ``_HOPE`` times the fastest
    call at this one, whichever is faster.
    """
    config = setting.config
    if not calls or not config.bakes_weights:
        return ""
    alike = ("backend", "mode", "options", "freezing")  # these determine the cost of a refresh
    costs = [
        r.refresh_s
        for r in known.values()
        if r.refresh_s and all(getattr(r.config, n) == getattr(config, n) for n in alike)
    ]
    here = [r for s, r in known.items() if s.cell == setting.cell and r.ok and r.measurement]
    if not costs or not here:
        return ""
    refresh_s = min(costs) / calls
    eager_s = min(r.measurement.eager_call_s for r in here if r.measurement)
    fastest_s = min(r.measurement.compiled_call_s for r in here if r.measurement)
    speedups = [r.measurement.speedup.value for r in known.values() if r.ok and r.measurement]
    hoped_s = min(_HOPE * fastest_s, eager_s / max(speedups))
    if hoped_s + refresh_s < min(map(_whole_call_s, here)):
        return ""
    return (
        f"not tried: new weights cost such a setting {min(costs):.2g} s every {calls} calls, more "
        "than it could save at the best known speed"
    )


def _whole_call_s(record: Record) -> float:
    assert record.measurement is not None
    return whole_call_s(record.measurement, record)


def _break_of(setting: Setting, known: Known) -> Record | None:
    """A trial in which Dynamo broke this graph, which does not depend on the backend.

    Either it failed because of the break, or it allowed breaks and counted them.
    """
    found = [
        r
        for r in known.values()
        if r.duplicate_of is None
        and not r.detail.get("answered")
        and (r.outcome is Outcome.GRAPH_BREAK or (r.ok and r.graph_breaks))
        and r.batch_size == setting.batch_size
        and _traces_alike(r.config, setting.config)
    ]
    # Prefer a failed one, which has torch's message.
    return min(found, key=lambda r: r.ok, default=None)


def _without_graph(setting: Setting, known: Known) -> Record | None:
    """A trial in which Dynamo captured no graph, which does not depend on the backend.

    Constant weights and regions compile something else, so they are excluded.
    """
    config = setting.config
    if config.is_eager or config.freezing or config.scope != "full":
        return None
    found = (
        r
        for r in known.values()
        if r.outcome is Outcome.NOT_COMPILED
        and not r.detail.get("answered")
        and not r.config.freezing
        and r.batch_size == setting.batch_size
        and _traces_alike(r.config, config)
    )
    return next(found, None)


def _traces_alike(ours: CompileConfig, theirs: CompileConfig) -> bool:
    """Whether Dynamo, which comes before any backend, sees one program and the same shapes."""
    same = (d.name for d in DIMENSIONS if not d.traces_alike)
    return all(getattr(ours, name) == getattr(theirs, name) for name in same) and (
        ours.dynamic is True
    ) == (theirs.dynamic is True)


def known_codes(setting: Setting, known: Known) -> dict[str, int]:
    """Compiled code (its hash) to trial number, of finished trials with the same inputs."""
    return {
        str(r.detail["code"]): r.number
        for r in known.values()
        if r.ok
        and r.duplicate_of is None
        and (r.phase, r.batch_size) == setting.cell
        and r.config.environment == setting.config.environment
        and r.detail.get("code")
    }


def of_twin(record: Record, twin: int | None, known: Known) -> Record:
    """The result of a trial that ended in the code of another one, which was measured."""
    source = next((r for r in known.values() if r.number == twin and r.ok), None)
    if source is None:
        what = "it has no measurement, and names no trial that has one"
        return dataclasses.replace(record, outcome=Outcome.INFRASTRUCTURE, message=what)
    return dataclasses.replace(
        source,
        number=record.number,
        config=record.config,
        duplicate_of=source.number,
        wall_s=record.wall_s,
        step_s=record.step_s,
        compile_s=record.compile_s,
        notes=(*source.notes, f"Inductor wrote the same code as for trial {source.number}"),
    )
