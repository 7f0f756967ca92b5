"""What the first trial of a setting looks at beside right results and their time: its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autocompile.estimate.intervals import median
from autocompile.settings.phases import phase_of
from autocompile.store.record import CallKind, Outcome, Record
from autocompile.trial.failures import Failed
from autocompile.trial.measure import footprint, telemetry
from autocompile.trial.measure.timing import Timer, times_of_each_call
from autocompile.trial.model.calls import in_words, kinds, shape_of
from autocompile.trial.model.sides import Side
from autocompile.trial.tasks.session import Entrant, Session

# What Dynamo and Inductor count that is a field of a record.
_COUNTS = ("graphs", "graph_breaks", "recompiles", "skipped_frames", "cudagraph_skips")

# When it has compiled --------------------------------------------------------------------------


def prove_compiled(record: Record, home: Path) -> None:
    """At least one graph reached the backend, and what the setting asked for happened."""
    facts = telemetry.dynamo_facts()
    for name in _COUNTS:
        setattr(record, name, facts.pop(name))
    record.breaks = telemetry.breaks_met(home)
    skip_reasons = telemetry.cudagraph_skip_reasons()
    record.detail |= {**facts, "cudagraph_skip_reasons": skip_reasons}
    if record.graphs == 0:
        met = (*facts["break_reasons"], *facts["skip_reasons"])
        why = f": {met[0]}" if met else ""
        what = f"Dynamo captured no graph: everything ran in eager mode{why}"
        raise Failed(Outcome.NOT_COMPILED, what)
    skipped = "no CUDA graphs: Inductor gave them up here"
    if record.cudagraph_skips and skipped not in record.notes:
        record.notes.append(skipped)


# When it has been timed ------------------------------------------------------------------------


def seconds_of_kinds(
    baseline: Side, side: Side, timer: Timer
) -> tuple[list[CallKind], dict[Any, float]]:
    """Seconds of the calls of each shape: the most frequent shape first, and a side's by shape."""
    calls = side.inputs
    eager_s, side_s = times_of_each_call((baseline, side), timer)
    found, of_shape = list[CallKind](), dict[Any, float]()
    for group in kinds(calls):
        call = calls[group[0]]
        eager_call_s = median([eager_s[n] for n in group])
        of_shape[shape_of(call)] = call_s = median([side_s[n] for n in group])
        found.append(CallKind(in_words(call), len(group), eager_call_s, call_s))
    return sorted(found, key=lambda kind: -kind.calls), of_shape


# When its figures are known --------------------------------------------------------------------


def look_closer(session: Session, entrant: Entrant) -> None:
    """Memory, and once more what it has compiled."""
    record, side, device = entrant.record, entrant.side, session.target.device
    config, phase = side.config, session.request.phase
    is_alone = len(session.request.sides) == 1
    # Before the peaks of the two sides are measured. With others it says nothing of one.
    if device.type == "cuda" and is_alone:
        record.held_bytes = footprint.most_held_bytes(device)
    if not config.is_eager:
        prove_compiled(record, session.home)
    # Before more CUDA graphs are made.
    if session.eager_peak_bytes is None:
        session.eager_peak_bytes = _peak_memory(session.baseline, phase, device)
    record.eager_peak_memory_bytes = session.eager_peak_bytes
    if entrant.is_reference:
        record.peak_memory_bytes = session.eager_peak_bytes
        return
    # On a CPU no tensor shows the weights that another runtime or constants hold.
    hides = config.bakes_weights or config.entry.lays_out
    if device.type != "cpu" or not hides:
        record.peak_memory_bytes = _peak_memory(side, phase, device)


def _peak_memory(side: Side, name: str, device: Any) -> int:
    """What this side's tensors hold plus what a call needs on top, in bytes."""
    phase = phase_of(name)

    def held() -> Any:
        model = side.model
        tensors = [
            dict(model.named_parameters()),
            dict(model.named_buffers()),
            side.inputs,
        ]
        # Elsewhere they are the step's inputs, or left by a comparison.
        if phase.steps and phase.has_backward:
            tensors.append([p.grad for p in model.parameters()])
        return tensors, side.held()

    return footprint.peak_bytes(side.run, held, device, graphs=not side.is_eager)
