"""Derives results of settings from other trials, without running them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from autocompile.estimate.candidates import whole_call_s
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import DIMENSIONS
from autocompile.settings.setting import Setting
from autocompile.store.record import Outcome, Record, Step

__all__ = ["answer", "known_codes", "of_twin"]

Known = Mapping[Setting, Record]

_HOPE = 0.8  # best case for constant weights, relative to the fastest known call
# Measured in studies/dimensions: 4 to 17 µs.
_FULLGRAPH = (
    "not timed: the code is the same, and torch's checks take a few microseconds more per call"
)


def answer(
    number: int, setting: Setting, known: Known, calls_per_update: int | None
) -> Record | None:
    """The record of a setting as far as other trials determine it; None if it must be tried."""
    known = {s: r for s, r in known.items() if s.phase == setting.phase}
    place = number, setting.phase, setting.config, setting.batch_size
    own: dict[str, Any] = {"number": number, "config": setting.config, "wall_s": 0.0, "spans": ()}
    if reason := _cannot_pay(setting, known, calls_per_update):
        return Record(*place, Outcome.UNSUPPORTED, Step.IMPORT, reason, detail={"answered": True})
    twin = known.get(setting.plainer_twin) if setting.plainer_twin else None
    if twin and twin.ok and _is_one_graph(twin):
        source = twin.number if twin.duplicate_of is None else twin.duplicate_of
        notes = (*twin.notes, _FULLGRAPH)
        return dataclasses.replace(twin, duplicate_of=source, notes=notes, **own)
    if setting.config.fullgraph and (broke := _break_of(setting, known)):
        same = None if broke.ok else broke.number
        detail = {"breaks": broke.detail.get("breaks", []), "answered": True}
        outcome, step = Outcome.GRAPH_BREAK, Step.COMPILE
        return Record(*place, outcome, step, _told(broke), duplicate_of=same, detail=detail)
    if empty := _without_graph(setting, known):
        detail = {**empty.detail, "answered": True}
        return dataclasses.replace(empty, duplicate_of=empty.number, detail=detail, **own)
    return None


def _is_one_graph(record: Record) -> bool:
    """Whether it was compiled once as one graph, so that ``fullgraph=True`` is equal."""
    skipped = record.graph_breaks or record.recompiles or record.detail.get("skipped_frames")
    return not skipped and record.graphs in (None, 1)


def _told(broke: Record) -> str:
    """How a trial says that the graph breaks."""
    if not broke.ok:
        return broke.message
    first: Mapping[str, str] = next(iter(broke.detail.get("breaks", [])), {})
    reason = f": {first['reason']}" if first.get("reason") else ""
    place = f" ({first['place']})" if first.get("place") else ""
    return f"trial {broke.number} broke the graph {broke.graph_breaks} times{reason}{place}"


def _cannot_pay(setting: Setting, known: Known, calls: int | None) -> str:
    """Why constant weights cannot win here; empty if they may.

    Assumes for its calls the largest speed-up at any batch size, or ``_HOPE`` times the fastest
    call at this one, whichever is faster.
    """
    if not calls or not setting.config.bakes_weights:
        return ""
    bakes = [d.name for d in DIMENSIONS if d.bakes]  # new weights cost the same where these agree
    costs = [
        r.refresh_s
        for r in known.values()
        if r.refresh_s and all(getattr(r.config, n) == getattr(setting.config, n) for n in bakes)
    ]
    timed = [(r, r.measurement) for r in known.values() if r.ok and r.measurement]
    here = [(r, measured) for r, measured in timed if r.batch_size == setting.batch_size]
    if not costs or not here:
        return ""
    fastest_s = min(measured.compiled_call_s for _, measured in here)
    eager_s = min(measured.eager_call_s for _, measured in here)
    best = max(measured.speedup.value for _, measured in timed)
    hoped_s = min(_HOPE * fastest_s, eager_s / best)
    if hoped_s + min(costs) / calls < min(whole_call_s(measured, r) for r, measured in here):
        return ""
    return (
        f"not tried: new weights cost such a setting {min(costs):.2g} s every {calls} calls, more "
        "than it could save at the best known speed"
    )


def _break_of(setting: Setting, known: Known) -> Record | None:
    """A trial in which Dynamo broke this graph: it failed of that, or counted the breaks."""
    found = [
        r
        for r in _traced_alike(setting, known)
        if r.duplicate_of is None
        and (r.outcome is Outcome.GRAPH_BREAK or (r.ok and r.graph_breaks))
    ]
    return min(found, key=lambda r: r.ok, default=None)  # a failed one has torch's message


def _without_graph(setting: Setting, known: Known) -> Record | None:
    """A trial in which Dynamo captured no graph.

    Constant weights and regions compile something else, so they are excluded.
    """
    config = setting.config
    if config.is_eager or config.freezing or config.scope != "full":
        return None
    alike = (r for r in _traced_alike(setting, known) if not r.config.freezing)
    return next((r for r in alike if r.outcome is Outcome.NOT_COMPILED), None)


def _traced_alike(setting: Setting, known: Known) -> list[Record]:
    """The trials in which Dynamo has seen what it would see of this setting, with any backend."""
    return [
        r
        for r in known.values()
        if r.batch_size == setting.batch_size
        and not r.detail.get("answered")
        and _traces_alike(r.config, setting.config)
    ]


def _traces_alike(ours: CompileConfig, theirs: CompileConfig) -> bool:
    """Whether Dynamo, which comes before any backend, sees one program and the same shapes."""
    same = (d.name for d in DIMENSIONS if not d.traces_alike)
    same_shapes = (ours.dynamic is True) == (theirs.dynamic is True)
    return same_shapes and all(getattr(ours, name) == getattr(theirs, name) for name in same)


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
        spans=record.spans,
        compile_s=record.compile_s,
        notes=(*source.notes, f"Inductor wrote the same code as for trial {source.number}"),
    )
