"""Dynamo alone: whether a phase is one graph, told in seconds, with nothing compiled."""

from __future__ import annotations

import time
from typing import Any

from autocompile.settings.config import CompileConfig
from autocompile.store.record import Step
from autocompile.trial.inspect import explain, telemetry
from autocompile.trial.phases.phases import make_side
from autocompile.trial.process import failures
from autocompile.trial.process.channel import Channel
from autocompile.trial.tasks.probing import inputs_of, load

__all__ = ["trace"]

_DYNAMO_ALONE = CompileConfig("eager_noexcept")  # runs the graphs of Dynamo as they are


def trace(request: dict[str, Any], channel: Channel, result: dict[str, Any]) -> None:
    """For each phase ``graphs``, ``graph_breaks``, ``skipped_frames``, ``breaks``, or ``error``."""
    target, device = load(request, channel)
    channel.step(Step.COMPILE)
    found: dict[str, dict[str, Any]] = {}
    result["traced"] = found  # what is known is sent, whatever becomes of the next phase
    for phase in request["phases"]:
        inputs = inputs_of(target, {**request, "phase": phase}, device, 0)
        telemetry.reset_dynamo(_DYNAMO_ALONE.backend)
        witness = explain.Witness(request["home"])
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
