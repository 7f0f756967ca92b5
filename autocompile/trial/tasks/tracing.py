"""Dynamo alone: whether a phase is one graph, told in seconds, with nothing compiled."""

from __future__ import annotations

import time

from autocompile.protocol.requests import TraceRequest
from autocompile.protocol.results import TraceResult
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Step
from autocompile.trial.inspect import explain, telemetry
from autocompile.trial.phases.phases import make_side
from autocompile.trial.process import failures
from autocompile.trial.process.channel import Channel
from autocompile.trial.tasks.probing import home_of, inputs_of, load

__all__ = ["trace"]

_DYNAMO_ALONE = CompileConfig("eager_noexcept")  # runs the graphs of Dynamo as they are


def trace(request: TraceRequest, channel: Channel, result: TraceResult) -> None:
    """For each phase ``graphs``, ``graph_breaks``, ``skipped_frames``, ``breaks``, or ``error``."""
    home, seed = home_of(request.header.target), request.header.seed
    target, device = load(request, channel)
    channel.step(Step.COMPILE)
    found = result.traced  # what is known is sent, whatever becomes of the next phase
    for phase in request.phases:
        inputs = inputs_of(target, phase, request.batch_size, device, seed)
        telemetry.reset_dynamo(_DYNAMO_ALONE.backend)
        witness = explain.Witness(home)
        began = time.monotonic()
        try:
            make_side(target, phase, inputs, _DYNAMO_ALONE).run()
        except Exception as error:  # what Dynamo cannot take is an answer too
            found[phase] = {"error": failures.first_words(error)}
            continue
        facts = telemetry.dynamo_facts()
        found[phase] = {
            "graphs": facts.graphs,
            "graph_breaks": facts.graph_breaks,
            "skipped_frames": facts.skipped_frames,
            "breaks": witness.facts()["breaks"],
            "trace_s": time.monotonic() - began,
        }
