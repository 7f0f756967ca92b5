"""A trial of the search: is this setting right, and may it be fast?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from autocompile.protocol.requests import TrialRequest
from autocompile.protocol.results import TrialResult
from autocompile.settings.backends import BACKENDS, Backend
from autocompile.settings.config import DEFAULT_INDUCTOR, CompileConfig
from autocompile.settings.phases import phase_of
from autocompile.store.record import Outcome, Step
from autocompile.trial.inspect import explain, telemetry
from autocompile.trial.inspect.same_code import same_code_key
from autocompile.trial.measure import memory
from autocompile.trial.measure.first_calls import FirstCalls, refresh_s
from autocompile.trial.measure.measure import screen
from autocompile.trial.measure.schedule import try_schedule
from autocompile.trial.measure.workload import ReferenceWork
from autocompile.trial.phases.phases import Side, make_side
from autocompile.trial.phases.sides import eager_and_verifier, exclusive, timed
from autocompile.trial.process import failures
from autocompile.trial.process.autotune_lock import make_autotuning_exclusive
from autocompile.trial.process.channel import Channel
from autocompile.trial.tasks.probing import home_of, inputs_of, load
from autocompile.trial.verify.own_draws import compare_with_eagers_draws, demand_plausible_draws
from autocompile.trial.verify.verifier import Failed

__all__ = ["screen_setting"]

_TOO_LONG_S = 2.0  # a call of which nothing is counted
_SCHEDULE_S = 5.0  # for trying changes of the learning rate; a while longer of the default


def screen_setting(request: TrialRequest, channel: Channel, result: TrialResult) -> None:
    """Eager twice, compile, verify, time against eager, verify again."""
    config, phase, header = request.config, request.phase, request.header
    home = home_of(header.target)
    target, device = load(request, channel)
    synchronize = telemetry.synchronizer(device)
    notes = result.notes
    channel.step(Step.EAGER)
    with exclusive(channel, device):
        eager, verifier = eager_and_verifier(target, request, device, config.numbers, notes)

    channel.step(Step.COMPILE)
    telemetry.reset_dynamo(config.backend)
    make_autotuning_exclusive(channel)
    witness = explain.Witness(home)
    inputs = inputs_of(target, phase, request.batch_size, device, header.seed)
    compiled = make_side(target, phase, inputs, config)
    with verifier.comparable_random_numbers(compiled):
        clock = FirstCalls(compiled, synchronize, lambda: channel.waited_s)
        output = verifier.seeded_call(compiled, 0)
        with channel.exclusive():
            channel.step(Step.VERIFY)
            verifier.first_calls(compiled, output)
            clock.stop()
            if not config.is_eager:
                _prove_compiled(result, witness)
            result.code = same_code_key(config, device)
            twin = request.known_codes.get(result.code)
            if twin is not None:  # it has been measured, and verified to its end
                result.same_code_as, result.compile_window = twin, clock.window
                result.compile_s = clock.compile_s(0.0)
                return
            demand_plausible_draws(verifier, compiled, notes)
            result.weights_live = verifier.weights(compiled)

            channel.step(Step.MEASURE)
            compiled.keep()
            reference = ReferenceWork(device)
            reference.sample()
            seed = header.seed + request.number
            measurement, said = screen(
                timed(eager), timed(compiled), synchronize, request.limits, seed
            )
            reference.sample()
            notes += said
            result.measurement = asdict(measurement)
            result.reference_s = reference.median_s

            channel.step(Step.VERIFY)
            verifier.last_call(compiled)
            if config.bakes_weights:
                result.refresh_s = refresh_s(compiled, synchronize, measurement.compiled_call_s)
                result.calls_per_update = request.calls_per_update
    # What follows is not timed, so the others may go on.
    result.eager_peak_memory_bytes = _peak_memory(eager, phase, device)
    result.peak_memory_bytes = _peak_memory(compiled, phase, device)
    is_short = measurement.eager_call_s < _TOO_LONG_S
    if device.type == "cpu" and is_short:
        with failures.only_logged():
            result.page_faults = [_page_faults(side) for side in (eager, compiled)]
    if not config.is_eager:
        result.compile_s = clock.compile_s(measurement.compiled_call_s)
        result.compile_window = clock.window  # the parent takes out what it held us
        if not config.bakes_weights:  # whose refreshes were compiles too
            _prove_compiled(result, witness)
    if is_short:
        with failures.only_logged():  # it is a good trial, whatever cannot be explained of it
            _count(eager, compiled, config, device, witness, result)
    if not config.is_eager:
        with verifier.comparable_random_numbers(compiled):
            # Dynamo recompiles alike whatever the backend's options: one setting shows all of it.
            longest_s = _SCHEDULE_S * (3 if config == DEFAULT_INDUCTOR else 1)
            try_schedule(verifier, compiled, result, longest_s)
    keeps_copies = config.bakes_weights or BACKENDS.get(config.backend, Backend()).lays_out
    if device.type == "cpu" and keeps_copies:
        _add_copies(result)
    compare_with_eagers_draws(verifier, compiled, config)


def _count(
    eager: Side,
    compiled: Side,
    config: CompileConfig,
    device: torch.device,
    witness: explain.Witness,
    result: TrialResult,
) -> None:
    """What one call launches on each side, now that nothing is timed any more."""
    result.detail["eager"] = explain.operators(eager.run, device)
    if config.is_eager:
        return

    def steady() -> None:
        # Otherwise Dynamo would compile the profiler's function, which is called meanwhile.
        with torch.compiler.set_stance("fail_on_recompile"), compiled.context():
            compiled.call()

    result.detail["compiled"] = witness.compiled(steady, result.recompiles or 0)


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


def _add_copies(result: TrialResult) -> None:
    """What a runtime keeps between two calls: no tensor of the side shows it.

    At the very end, for nothing that was compiled is there any more afterwards.
    """
    kept = memory.freed_bytes(torch._dynamo.reset)
    if kept is not None and result.peak_memory_bytes is not None:
        result.peak_memory_bytes += kept


def _prove_compiled(result: TrialResult, witness: explain.Witness) -> None:
    """At least one graph reached the backend, and what the setting asked for happened.

    Raises:
        Failed: nothing was captured.
    """
    facts = telemetry.dynamo_facts()
    result.graphs, result.graph_breaks = facts.graphs, facts.graph_breaks
    result.recompiles = facts.recompiles
    result.detail = {
        "break_reasons": list(facts.break_reasons),
        "skip_reasons": list(facts.skip_reasons),
        "recompile_reasons": list(facts.recompile_reasons),
        "cudagraph_skips": facts.cudagraph_skips,
        "skipped_frames": facts.skipped_frames,
        **witness.facts(),
    }
    if facts.graphs == 0:
        met = (*facts.break_reasons, *facts.skip_reasons)
        why = f": {met[0]}" if met else ""
        what = f"Dynamo captured no graph: everything ran in eager mode{why}"
        raise Failed(Outcome.NOT_COMPILED, what)
    skipped = "no CUDA graphs: Inductor gave them up here"
    if facts.cudagraph_skips and skipped not in result.notes:
        result.notes.append(skipped)
