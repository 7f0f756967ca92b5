"""A trial of the search: is this setting right, and may it be fast?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from autocompile.protocol.requests import TrialRequest
from autocompile.protocol.results import TrialResult
from autocompile.settings.backends import BACKENDS, Backend
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.settings.phases import phase_of
from autocompile.store.measurement import Measurement
from autocompile.store.record import Outcome, Step
from autocompile.trial.inspect import explain, telemetry
from autocompile.trial.measure import memory
from autocompile.trial.measure.clocks import FirstCalls, ReferenceWork, refresh_s
from autocompile.trial.measure.schedule import try_schedule
from autocompile.trial.measure.timing import screen
from autocompile.trial.phases.phases import make_side
from autocompile.trial.phases.side import Side
from autocompile.trial.process import failures
from autocompile.trial.process.channel import Channel, make_autotuning_exclusive
from autocompile.trial.tasks.steps import (
    eager_and_verifier,
    exclusive,
    home_of,
    inputs_of,
    load,
    timed,
)
from autocompile.trial.verify.random_draws import compare_with_eagers_draws, demand_plausible_draws
from autocompile.trial.verify.verifier import Verifier

__all__ = ["screen_setting"]

_TOO_LONG_S = 2.0  # a call of which nothing is counted
_SCHEDULE_S = 5.0  # for trying changes of the learning rate; a while longer of the default


@dataclass(frozen=True)
class _Trial:
    """Both sides, what checks and times them, and the result that is filled in."""

    request: TrialRequest
    channel: Channel
    result: TrialResult
    device: torch.device
    eager: Side
    compiled: Side
    verifier: Verifier
    witness: explain.Witness
    clock: FirstCalls


def screen_setting(request: TrialRequest, channel: Channel, result: TrialResult) -> None:
    """Eager twice, compile, verify, time against eager, verify again."""
    config, phase, header = request.config, request.phase, request.header
    home = home_of(header.target)
    target, device = load(request, channel)
    synchronize = telemetry.synchronizer(device)
    channel.step(Step.EAGER)
    with exclusive(channel, device):
        eager, verifier = eager_and_verifier(target, request, device, config.numbers, result.notes)
    channel.step(Step.COMPILE)
    telemetry.reset_dynamo(config.backend)
    make_autotuning_exclusive(channel)
    witness = explain.Witness(home)
    inputs = inputs_of(target, phase, request.batch_size, device, header.seed)
    compiled = make_side(target, phase, inputs, config)
    clock = FirstCalls(compiled, synchronize, lambda: channel.waited_s)
    trial = _Trial(request, channel, result, device, eager, compiled, verifier, witness, clock)
    with verifier.comparable_random_numbers(compiled):
        output = verifier.seeded_call(compiled, 0)
        with channel.exclusive():
            if _is_known_code(trial, output):
                return
            measurement = _measure(trial)
    _look_closer(trial, measurement)  # not timed, so the others may go on
    compare_with_eagers_draws(verifier, compiled, config)


def _is_known_code(trial: _Trial, output: Any) -> bool:
    """Verify the first calls; whether the code has been measured, and verified to its end."""
    request, result, clock = trial.request, trial.result, trial.clock
    trial.channel.step(Step.VERIFY)
    trial.verifier.first_calls(trial.compiled, output)
    clock.stop()
    if not request.config.is_eager:
        _prove_compiled(trial)
    result.code = telemetry.same_code_key(request.config, trial.device)
    result.same_code_as = request.known_codes.get(result.code)
    if result.same_code_as is None:
        return False
    result.compile_window, result.compile_s = clock.window, clock.compile_s(0.0)
    return True


def _measure(trial: _Trial) -> Measurement:
    """Verify the rest, time, and verify again."""
    request, result, verifier = trial.request, trial.result, trial.verifier
    eager, compiled = trial.eager, trial.compiled
    synchronize = telemetry.synchronizer(trial.device)
    demand_plausible_draws(verifier, compiled, result.notes)
    result.weights_live = verifier.weights(compiled)
    trial.channel.step(Step.MEASURE)
    compiled.keep()
    reference = ReferenceWork(trial.device)
    reference.sample()
    seed = request.header.seed + request.number
    measurement, said = screen(timed(eager), timed(compiled), synchronize, request.limits, seed)
    reference.sample()
    result.notes += said
    result.measurement = asdict(measurement)
    result.reference_s = reference.median_s
    trial.channel.step(Step.VERIFY)
    verifier.last_call(compiled)
    if request.config.bakes_weights:
        result.refresh_s = refresh_s(compiled, synchronize, measurement.compiled_call_s)
        result.calls_per_update = request.calls_per_update
    return measurement


def _look_closer(trial: _Trial, measurement: Measurement) -> None:
    """Memory, compile time, what is launched, and what a learning-rate schedule recompiles."""
    config, result, device = trial.request.config, trial.result, trial.device
    eager, compiled, phase = trial.eager, trial.compiled, trial.request.phase
    result.eager_peak_memory_bytes = _peak_memory(eager, phase, device)
    result.peak_memory_bytes = _peak_memory(compiled, phase, device)
    is_short = measurement.eager_call_s < _TOO_LONG_S
    if device.type == "cpu" and is_short:
        with failures.only_logged():
            result.page_faults = [_page_faults(side) for side in (eager, compiled)]
    if not config.is_eager:
        result.compile_s = trial.clock.compile_s(measurement.compiled_call_s)
        result.compile_window = trial.clock.window  # the parent takes out what it held us
        if not config.bakes_weights:  # whose refreshes were compiles too
            _prove_compiled(trial)
    if is_short:
        with failures.only_logged():  # it is a good trial, whatever cannot be explained of it
            _count(trial)
    if not config.is_eager:
        with trial.verifier.comparable_random_numbers(compiled):
            # Dynamo recompiles alike whatever the backend's options: one setting shows all of it.
            longest_s = _SCHEDULE_S * (3 if config == DEFAULT_INDUCTOR else 1)
            try_schedule(trial.verifier, compiled, result, longest_s)
    if device.type != "cpu" or result.peak_memory_bytes is None:
        return
    if config.bakes_weights or BACKENDS.get(config.backend, Backend()).lays_out:
        # What a runtime keeps between two calls, no tensor of the side shows. At the very end:
        # nothing that was compiled is there any more afterwards.
        result.peak_memory_bytes += memory.freed_bytes(torch._dynamo.reset)


def _count(trial: _Trial) -> None:
    """What one call launches on each side."""
    compiled, result = trial.compiled, trial.result
    result.detail["eager"] = explain.operators(trial.eager.run, trial.device)
    if compiled.is_eager:
        return

    def steady() -> None:
        # Otherwise Dynamo would compile the profiler's function, which is called meanwhile.
        with torch.compiler.set_stance("fail_on_recompile"), compiled.context():
            compiled.call()

    result.detail["compiled"] = trial.witness.compiled(steady, result.recompiles or 0)


def _page_faults(side: Side) -> int | None:
    side.restore()
    found = memory.page_faults(side.run)
    side.restore()
    return found


def _peak_memory(side: Side, phase: str, device: torch.device) -> int | None:
    """What this side's tensors hold plus what a call needs on top, in bytes."""

    def held() -> Any:
        model = side.model
        tensors = [dict(model.named_parameters()), dict(model.named_buffers()), side.inputs]
        # Elsewhere they are the step's inputs, or left by a comparison.
        if phase_of(phase).steps and phase_of(phase).has_backward:
            tensors.append([p.grad for p in model.parameters()])
        return tensors, side.held()

    return memory.peak_bytes(side.run, held, device, graphs=not side.is_eager)


def _prove_compiled(trial: _Trial) -> None:
    """At least one graph reached the backend, and what the setting asked for happened.

    Raises:
        Failed: nothing was captured.
    """
    result, facts = trial.result, asdict(telemetry.dynamo_facts())
    for name in ("graphs", "graph_breaks", "recompiles"):
        setattr(result, name, facts.pop(name))
    result.detail = {**facts, **trial.witness.facts()}
    if result.graphs == 0:
        met = (*facts["break_reasons"], *facts["skip_reasons"])
        why = f": {met[0]}" if met else ""
        what = f"Dynamo captured no graph: everything ran in eager mode{why}"
        raise failures.Failed(Outcome.NOT_COMPILED, what)
    skipped = "no CUDA graphs: Inductor gave them up here"
    if facts["cudagraph_skips"] and skipped not in result.notes:
        result.notes.append(skipped)
