"""What a trial's process does, from the request to the result."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from autocompile.backends import BACKENDS, Backend
from autocompile.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.errors import AutocompileError
from autocompile.record import Outcome, Step
from autocompile.trial import explain, failures, memory, telemetry
from autocompile.trial.artifact import same_code_key
from autocompile.trial.channel import Channel
from autocompile.trial.first_calls import FirstCalls, refresh_s
from autocompile.trial.hush import hush_autotuning
from autocompile.trial.judge import Failed, Judge
from autocompile.trial.measure import Limits, Timed, watched_blocks
from autocompile.trial.own_draws import compare_with_eagers_draws, demand_plausible_draws
from autocompile.trial.pace import Pace
from autocompile.trial.phases import Side, make_side
from autocompile.trial.precision import demand_close
from autocompile.trial.probing import inputs_of, load, probe
from autocompile.trial.schedule import try_schedule
from autocompile.trial.strain import Strain
from autocompile.trial.target import split_spec
from autocompile.trial.tracing import trace

__all__ = ["run"]

_TOO_LONG_S = 2.0  # a call of which nothing is counted


def run(
    folder: str,
    descriptor: int | None = None,
    nonce: str = "",
    control: int | None = None,
    zygote: bool = False,
) -> None:
    """Do what ``folder/request.json`` asks and send how it ended.

    Args:
        folder: of the trial.
        descriptor: the result channel; None for stdout.
        nonce: of the channel.
        control: where the parent says that the neighbours stand still; None if there are none.
        zygote: there is one, which prepares what trials share.
    """
    channel = Channel(descriptor, nonce, control)
    request = json.loads((Path(folder) / "request.json").read_text("utf-8"))
    place, _ = split_spec(request.get("target") or "")
    home = Path(place).resolve().parent  # found now: the target may change directory
    result: dict[str, Any] = {}
    request["zygote"], request["home"] = zygote, home
    task = {"probe": probe, "trace": trace}.get(request["kind"], _trial)
    try:
        task(request, channel, result)
        result["outcome"] = Outcome.OK.value
        channel.current = Step.EXIT
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the user's code as well
        traceback.print_exc()
        _explain(error, home, channel, result)
    channel.result(result)
    if descriptor is not None:  # the result is final: tearing the interpreter down costs a second
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _explain(error: BaseException, home: Path, channel: Channel, result: dict[str, Any]) -> None:
    if isinstance(error, Failed):
        result["outcome"], result["message"] = error.outcome.value, str(error)
        return
    result["outcome"] = failures.outcome_of(error, channel.current).value
    result["message"] = failures.first_words(error)
    if isinstance(error, AutocompileError):
        result["message"] = error.what
        result["explained"] = {
            "what": error.what, "details": list(error.details), "hint": error.hint,
        }  # fmt: skip
    result["where"] = failures.where_in(error, home)
    if result["outcome"] == Outcome.GRAPH_BREAK.value:
        result["detail"] = {**result.get("detail", {}), "breaks": explain.breaks_of(error, home)}


def _trial(request: dict[str, Any], channel: Channel, result: dict[str, Any]) -> None:
    """Eager twice, compile, verify, measure, verify again."""
    config = CompileConfig.from_dict(request["config"])
    phase = request["phase"]
    target, device = load(request, channel)
    synchronize = telemetry.synchronizer(device)
    inputs, other = (inputs_of(target, request, device, draw) for draw in (0, 1))
    notes: list[str] = []
    result["notes"] = notes

    # On a CPU eager's threads wait for each other by spinning: beside a neighbour that compiles,
    # a tenth of a second becomes one, for both.
    with channel.quiet() if device.type == "cpu" else contextlib.nullcontext():
        channel.step(Step.EAGER)
        draws, tolerance = (inputs, other), request.get("tolerance")
        judge = Judge(target, phase, draws, request["seed"], notes, tolerance, config.numbers)
        eager = judge.eager
        if config.numbers != EAGER:  # what is timed against is the model as it stands
            eager = make_side(target, phase, inputs)
            demand_close(judge, eager, notes, tolerance, target.check)

    channel.step(Step.COMPILE)
    telemetry.reset_dynamo(config.backend)
    hush_autotuning(channel)
    witness = explain.Witness(request["home"])
    compiled = make_side(target, phase, inputs, config)
    with judge.comparable_random_numbers(compiled):
        clock = FirstCalls(compiled, synchronize, lambda: channel.waited_s)
        output = judge.seeded_call(compiled, 0)
        channel.quiet_from_now_on()
        channel.step(Step.VERIFY)
        judge.first_calls(compiled, output)
        clock.stop()
        if not config.is_eager:
            _prove_compiled(result, notes, witness)
        result["code"] = same_code_key(config, device)
        twin = request.get("known_codes", {}).get(result["code"])
        if twin is not None:  # it has been measured, and verified to its end
            result["same_code_as"], result["compile_window"] = twin, clock.window
            result["compile_s"] = clock.compile_s(0.0)
            return
        demand_plausible_draws(judge, compiled, notes)
        result["weights_live"] = judge.weights(compiled)

        channel.step(Step.MEASURE)
        compiled.keep()
        before, pace = telemetry.busy_seconds(), Pace(device, request.get("pace_s", ()))
        strain = Strain(device, pace)
        measurement, said = watched_blocks(
            Timed(eager.call, eager.restore, eager.context),
            Timed(compiled.call, compiled.restore, _timing_context(compiled, config)),
            synchronize,
            Limits(**request["limits"]),
            request["seed"] + request["number"],
            strain,
        )
        notes += said
        result["measurement"] = asdict(measurement)
        result["pace_s"], result["strain"] = pace.best(), strain.summary()
        if others := telemetry.others_busy(before):
            left_out, rounds = len(measurement.disturbed), len(measurement.eager_s)
            notes.append(
                f"other processes kept {others:.0%} of a core busy while this was timed; "
                f"{left_out} of {rounds} rounds were disturbed"
            )
        if device.type == "cpu" and measurement.eager_call_s < _TOO_LONG_S:
            with failures.only_logged():
                result["page_faults"] = [_page_faults(side) for side in (eager, compiled)]

        channel.step(Step.VERIFY)
        judge.last_call(compiled)
        if config.bakes_weights:
            result["refresh_s"] = refresh_s(compiled, synchronize, measurement.compiled_call_s)
            result["calls_per_update"] = request.get("calls_per_update")
        result["eager_peak_memory_bytes"] = _peak_memory(eager, phase, device)
        result["peak_memory_bytes"] = _peak_memory(compiled, phase, device)
    if not config.is_eager:
        result["compile_s"] = clock.compile_s(measurement.compiled_call_s)
        result["compile_window"] = clock.window  # the parent takes out what it held us
        if not config.bakes_weights:  # whose refreshes were compiles too
            _prove_compiled(result, notes, witness)
    if request.get("repeats") is None and measurement.eager_call_s < _TOO_LONG_S:
        with failures.only_logged():  # it is a good trial, whatever cannot be explained of it
            _count(eager, compiled, config, device, witness, result)
    if request.get("repeats") is None and not config.is_eager:
        with judge.comparable_random_numbers(compiled):
            # Dynamo recompiles alike whatever the backend's options: one setting shows all of it.
            try_schedule(judge, compiled, result, 15.0 if config == DEFAULT_INDUCTOR else 5.0)
    keeps_copies = config.bakes_weights or BACKENDS.get(config.backend, Backend()).lays_out
    if device.type == "cpu" and keeps_copies:
        _add_copies(result)
    compare_with_eagers_draws(judge, compiled, config)


def _count(
    eager: Side,
    compiled: Side,
    config: CompileConfig,
    device: torch.device,
    witness: explain.Witness,
    result: dict[str, Any],
) -> None:
    """What one call launches on each side, now that nothing is timed any more."""
    detail = result.setdefault("detail", {})
    detail["eager"] = explain.operators(eager.run, device)
    if config.is_eager:
        return

    def steady() -> None:
        # Otherwise Dynamo would compile the profiler's function, which is called meanwhile.
        with torch.compiler.set_stance("fail_on_recompile"), compiled.context():
            compiled.call()

    detail["compiled"] = witness.compiled(steady, result["recompiles"])


def _timing_context(
    side: Side, config: CompileConfig
) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """The side's grad mode; a recompile inside a timed block is an error, not a slow sample.

    It is counted afterwards: under torch's stance ``fail_on_recompile`` each call of what was
    compiled takes a microsecond more, which is one percent where calls take a hundred.
    """
    if config.is_eager:
        return side.context

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        before = telemetry.compilations()
        with side.context():
            yield
        if telemetry.compilations() != before:
            reasons = telemetry.dynamo_facts().recompile_reasons
            raise RuntimeError(f"it recompiled while it was timed: {(*reasons, 'no reason')[0]}")

    return context


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
        if phase == "train_step":  # elsewhere they are the step's inputs, or left by a comparison
            tensors.append([p.grad for p in model.parameters()])
        return tensors, side.held()

    return memory.peak_bytes(side.run, held, device, graphs=not side.is_eager)


def _add_copies(result: dict[str, Any]) -> None:
    """What a runtime keeps between two calls: no tensor of the side shows it.

    At the very end, for nothing that was compiled is there any more afterwards.
    """
    kept = memory.freed_bytes(torch._dynamo.reset)
    if kept is not None and result["peak_memory_bytes"] is not None:
        result["peak_memory_bytes"] += kept


def _prove_compiled(result: dict[str, Any], notes: list[str], witness: explain.Witness) -> None:
    """At least one graph reached the backend, and what the setting asked for happened.

    Raises:
        Failed: nothing was captured.
    """
    facts = telemetry.dynamo_facts()
    result.update(graphs=facts.graphs, graph_breaks=facts.graph_breaks, recompiles=facts.recompiles)
    result["detail"] = {
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
    if facts.cudagraph_skips and skipped not in notes:
        notes.append(skipped)
